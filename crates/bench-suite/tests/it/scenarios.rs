//! Scenarios with subjects whose time is known.

use std::io::{BufReader, Cursor, Write};
use std::time::Duration;

use prestow_bench_suite::{
    BenchResult, RawSeries, RawTimes, Scenario, ScenarioLimits, ScenarioResult, ServerRun, Subject, answer_queries,
    bisect_rate, now_ns, poisson_arrivals,
};

use crate::Folder;

fn sleeping(ms: u64) -> Box<dyn Subject> {
    Box::new(move || {
        std::thread::sleep(Duration::from_millis(ms));
        Ok(())
    })
}

fn limits(seconds: f64, queries: usize) -> ScenarioLimits {
    ScenarioLimits { seconds, queries }
}

#[test]
fn single_stream_holds_duration_and_count() {
    let mut subject = sleeping(2);
    let result = ScenarioResult::streams(Scenario::SingleStream, &mut *subject, limits(0.1, 5)).unwrap();
    assert!(0.1 <= result.seconds && (20..=50).contains(&result.latencies_ns.len()), "{result:?}");
    assert!((2.0..20.0).contains(&result.percentile_ms));
    let result = ScenarioResult::streams(Scenario::SingleStream, &mut *subject, limits(0.0, 7)).unwrap();
    assert_eq!(result.latencies_ns.len(), 7);
}

#[test]
fn offline_uses_every_subject() {
    let one = ScenarioResult::offline(&mut [sleeping(4)], limits(0.0, 40)).unwrap();
    let four: Vec<_> = (0..4).map(|_| sleeping(4)).collect();
    let four = ScenarioResult::offline(&mut { four }, limits(0.0, 40)).unwrap();
    assert_eq!((one.samples, four.samples), (40, 40));
    assert!(2.5 * one.samples_per_s < four.samples_per_s, "{} {}", one.samples_per_s, four.samples_per_s);
}

#[test]
fn arrivals_are_a_poisson_process_of_the_seed() {
    let arrivals = poisson_arrivals(1000.0, 7, limits(0.0, 20_000));
    assert_eq!(arrivals, poisson_arrivals(1000.0, 7, limits(0.0, 20_000)));
    assert_ne!(arrivals, poisson_arrivals(1000.0, 8, limits(0.0, 20_000)));
    let gaps: Vec<f64> = arrivals.windows(2).map(|pair| (pair[1] - pair[0]) as f64 / 1e6).collect();
    let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
    let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
    // An exponential distribution has its mean as its standard deviation.
    assert!((0.97..1.03).contains(&mean) && (0.95..1.05).contains(&variance.sqrt()), "{mean} {variance}");
    assert!((2.0..2.01).contains(&(*poisson_arrivals(1000.0, 7, limits(2.0, 1)).last().unwrap() as f64 / 1e9)));
}

/// Scheduled times of the trace that LoadGen 6.0.17 writes for these settings.
#[test]
fn arrivals_are_those_of_loadgen() {
    let first = [0, 257_914, 642_066, 4_468_962, 5_077_005, 5_445_192, 5_751_541, 5_842_279, 6_385_924, 6_401_962];
    let by_count = poisson_arrivals(1000.0, 7, limits(0.01, 40));
    assert_eq!((&by_count[..10], by_count.len(), by_count[39]), (&first[..], 40, 36_346_839));
    let by_duration = poisson_arrivals(1000.0, 7, limits(0.1, 1));
    assert_eq!((by_duration.len(), by_duration[104]), (105, 100_101_780));
    // The seed of a round of MLPerf: the generator takes its lower 32 bits.
    let published = poisson_arrivals(1000.0, 3_133_965_575_612_453_542, limits(0.1, 1));
    assert_eq!((published.len(), published[1], published[109]), (110, 1_614_918, 100_137_885));
}

/// Reads answers as a load generator does: the next query is issued when its predecessor is complete.
#[test]
fn queries_of_another_program_are_answered_in_their_order() {
    let lines = (0..20).map(|ix| format!("query {ix}\n")).collect::<String>();
    let mut answers = Vec::new();
    let count = answer_queries(&mut [sleeping(0)], Cursor::new(lines.clone()), &mut answers).unwrap();
    // Each line with the time of its run.
    let without_times = |answers: &[u8]| {
        let text = String::from_utf8(answers.to_vec()).unwrap();
        let parts = text.lines().map(|line| line.split_once('\t').unwrap());
        let checked = parts.map(|(line, ns)| {
            ns.parse::<u64>().unwrap();
            format!("{line}\n")
        });
        checked.collect::<Vec<String>>()
    };
    assert_eq!((count, without_times(&answers).concat()), (20, lines.clone()));
    let mut answers = Vec::new();
    let mut subjects: Vec<_> = (0..4).map(|_| sleeping(5)).collect();
    let start = now_ns();
    answer_queries(&mut subjects, Cursor::new(lines.clone()), &mut answers).unwrap();
    assert!(now_ns() - start < 80_000_000, "four subjects take a quarter of 100 ms");
    let mut answered = without_times(&answers);
    answered.sort_unstable();
    let mut issued: Vec<String> = lines.lines().map(|line| format!("{line}\n")).collect();
    issued.sort_unstable();
    assert_eq!(answered, issued, "each query once");
    // The writer stays open: a failure does not wait for the end of the input.
    let (reader, mut writer) = std::io::pipe().unwrap();
    writer.write_all(b"1\n").unwrap();
    let failing = || -> Box<dyn Subject> { Box::new(|| Err("the device is lost".to_string())) };
    let error = answer_queries(&mut [failing(), failing()], BufReader::new(reader), Vec::new()).unwrap_err();
    assert_eq!(error, "the device is lost");
}

/// A stall of 100 ms delays every query that arrives in it, not only the one that runs.
#[test]
fn stall_counts_for_all_queries_that_arrive_in_it() {
    let mut count = 0;
    let stalling: Box<dyn Subject> = Box::new(move || {
        count += 1;
        if count == 10 {
            std::thread::sleep(Duration::from_millis(100));
        }
        Ok(())
    });
    let run = ServerRun::new(&mut [stalling], 500.0, 50.0, 1, limits(0.0, 200)).unwrap();
    let late = run.result.latencies_ns.iter().filter(|&&ns| 20_000_000 < ns).count();
    assert!((20..=60).contains(&late), "about 40 queries arrive in the first 80 ms of the stall: {late}");
    assert!(!run.is_valid, "10 % of the queries are late, the bound is for 1 %");
}

#[test]
fn bisection_finds_the_largest_rate_that_holds_the_bound() {
    // A machine whose latency grows with the rate.
    let (found, best) = bisect_rate(1000.0, |rate| {
        let result = ScenarioResult {
            scenario: Scenario::Server,
            latencies_ns: vec![],
            seconds: 1.0,
            samples: 1,
            samples_per_s: rate,
            percentile_ms: rate / 10.0,
        };
        Ok(ServerRun { rate, is_valid: result.percentile_ms <= 37.0, result })
    })
    .unwrap();
    let rate = found.rate.unwrap();
    assert!((362.0..=370.0).contains(&rate) && best.unwrap().rate == rate, "{rate}");
    let (found, best) = bisect_rate(1000.0, |rate| {
        let run = ServerRun::new(&mut [sleeping(0)], 1000.0, 0.0, 1, limits(0.0, 1)).unwrap();
        Ok(ServerRun { rate, is_valid: false, ..run })
    })
    .unwrap();
    assert!(found.rate.is_none() && best.is_none() && found.tried.len() < 20);
}

#[test]
fn rates_with_arrivals_that_do_not_fit_are_refused() {
    for (rate, limits) in [
        (f64::INFINITY, limits(1.0, 1)),
        (f64::NAN, limits(1.0, 1)),
        (0.0, limits(0.0, 1)),
        (-1.0, limits(0.0, 1)),
        (1e6, limits(1e9, 1)),
        (1e6, limits(f64::NAN, usize::MAX)),
    ] {
        let error = ServerRun::new(&mut [sleeping(0)], rate, 1.0, 1, limits).unwrap_err();
        assert!(error.contains("lower the rate"), "{rate}: {error}");
    }
}

#[test]
fn failing_run_ends_the_scenario_with_its_reason() {
    let failing = || -> Box<dyn Subject> { Box::new(|| Err("the device is lost".to_string())) };
    let once = limits(0.0, 3);
    let error = ScenarioResult::streams(Scenario::MultiStream, &mut *failing(), once).unwrap_err();
    assert_eq!(error, "the device is lost");
    assert_eq!(ScenarioResult::offline(&mut [failing()], once).unwrap_err(), "the device is lost");
    assert_eq!(ServerRun::new(&mut [failing()], 100.0, 1.0, 1, once).unwrap_err(), "the device is lost");
}

#[test]
fn raw_times_and_results_are_read_back() {
    let folder = Folder::new("raw");
    let path = folder.0.join("times.jsonl");
    let mut raw = RawTimes::default();
    raw.add(RawSeries { kind: "run", batch: 1, threads: 2, times_ns: vec![5, 7] });
    raw.add(RawSeries { kind: "query", batch: 1, threads: 2, times_ns: vec![13] });
    raw.add(RawSeries { kind: "run", batch: 8, threads: 2, times_ns: vec![11] });
    raw.write(&path, "run").unwrap();
    assert_eq!(RawTimes::read(&path).unwrap(), [5, 7, 11]);
    let text = std::fs::read_to_string(&path).unwrap();
    assert_eq!(text.lines().last(), Some("{\"batch\":8,\"kind\":\"run\",\"ns\":11,\"run\":0,\"threads\":2}"));
    raw.write(&path, "query").unwrap();
    assert_eq!(RawTimes::read(&path).unwrap(), [13]);
    std::fs::write(&path, "{\"ns\":1}\n{}\n").unwrap();
    assert!(RawTimes::read(&path).unwrap_err().ends_with("line 2: must have a number `ns`"));
    let result = BenchResult::new("lenet", &[1_000_000, 3_000_000], 4);
    assert_eq!(result.samples_per_s, 2000.0);
    let text = serde_json::to_string(&result).unwrap();
    assert_eq!(serde_json::from_str::<BenchResult>(&text).unwrap(), result);
    assert!(now_ns() <= now_ns());
}
