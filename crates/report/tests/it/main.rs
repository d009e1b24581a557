//! The report, its views, exports, imports and page, through what the crate offers: sums to the byte on made-up plans, golden
//! texts and pictures of a small one, and other programs that open what is written.

mod damaged;
mod exports;
mod foreign;
mod imports;
mod page;
mod plans;
mod sums;
mod views;
