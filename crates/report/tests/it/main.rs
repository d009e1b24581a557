//! The report, its views, exports, imports and page, through the public interface: sums to the byte on synthetic plans,
//! golden texts and images of a small plan, and other programs that open the files.

mod damaged;
mod exports;
mod foreign;
mod imports;
mod page;
mod plans;
mod sums;
mod values;
mod verdicts;
mod views;
