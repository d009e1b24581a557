//! The verdict of a run: its most serious fault.

use prestow_report::{Report, Verdict};
use runtime::audit::{Audit, BufferAudit};
use runtime::process::{DeviceUsage, ProcessMemory};

use crate::plans::small;

/// A run that wrote every planned byte of the small plan.
fn whole() -> Audit {
    let sizes = [100, 200, 256, 256, 200];
    Audit {
        planned_bytes: 776,
        written_bytes: 776,
        buffers: sizes.map(|written| BufferAudit { written, ..BufferAudit::default() }).to_vec(),
        same_results: true,
        ..Audit::default()
    }
}

#[track_caller]
fn check(audit: &Audit, heap_allocations: u64, memory: &ProcessMemory, expected: Verdict) {
    let report = Report::new(&small()).with_actual(audit, heap_allocations, memory);
    assert_eq!(report.measured.as_ref().map(|measured| measured.verdict), Some(expected));
    assert_eq!(report.agrees(), expected == Verdict::Equal);
}

#[test]
fn verdict_is_the_most_serious_fault() {
    let none = ProcessMemory::default();
    check(&whole(), 0, &none, Verdict::Equal);
    let mut audit = whole();
    audit.written_bytes -= 1;
    check(&audit, 0, &none, Verdict::Smaller);
    check(&audit, 1, &none, Verdict::Allocates);
    audit.same_results = false;
    check(&audit, 1, &none, Verdict::Stale);
    audit.outside_bytes = 1;
    check(&audit, 1, &none, Verdict::Outside);
}

#[test]
fn allocations_on_a_device_count() {
    check(&whole(), 0, &ProcessMemory { device_in_run: 1, ..ProcessMemory::default() }, Verdict::Allocates);
    let of_driver = |allocations_in_run| {
        let device_usage = DeviceUsage { allocations_in_run, ..DeviceUsage::default() };
        ProcessMemory { device_usage, ..ProcessMemory::default() }
    };
    check(&whole(), 0, &of_driver(Some(1)), Verdict::Allocates);
    check(&whole(), 0, &of_driver(Some(0)), Verdict::Equal);
    check(&whole(), 0, &of_driver(None), Verdict::Equal);
}
