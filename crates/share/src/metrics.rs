//! [`Metrics`]: the daemon's figures as atomics. Reading them takes no lock and does not wait for the server's loop.

use std::fmt::Write;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Upper bounds of the histograms in seconds.
const BOUNDS: [f64; 12] = [1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 1e-3, 1e-2, 0.1, 0.5, 1.0, 10.0, 60.0];

/// A number.
#[derive(Debug, Default)]
pub struct Figure(AtomicU64);

impl Figure {
    /// Adds one.
    pub fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// Replaces the number.
    pub fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    /// The number.
    pub fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Counts of durations by upper bound.
#[derive(Debug, Default)]
pub struct Histogram {
    counts: [Figure; BOUNDS.len() + 1],
    nanoseconds: AtomicU64,
}

impl Histogram {
    /// Adds a duration.
    pub fn add(&self, nanoseconds: u64) {
        let seconds = nanoseconds as f64 / 1e9;
        self.counts[BOUNDS.iter().position(|bound| seconds <= *bound).unwrap_or(BOUNDS.len())].add();
        self.nanoseconds.fetch_add(nanoseconds, Ordering::Relaxed);
    }

    fn write(&self, to: &mut String, name: &str, help: &str) {
        let _ = writeln!(to, "# HELP {name} {help}\n# TYPE {name} histogram");
        let mut sum = 0;
        for (ix, count) in self.counts.iter().enumerate() {
            sum += count.value();
            let bound = BOUNDS.get(ix).map_or("+Inf".to_string(), f64::to_string);
            let _ = writeln!(to, "{name}_bucket{{le=\"{bound}\"}} {sum}");
        }
        let _ = writeln!(to, "{name}_sum {}", self.nanoseconds.load(Ordering::Relaxed) as f64 / 1e9);
        let _ = writeln!(to, "{name}_count {sum}");
    }
}

/// The figures.
#[derive(Debug, Default)]
#[expect(missing_docs, reason = "the texts of `render` describe them")]
pub struct Metrics {
    pub ready: AtomicBool,
    pub hits_host: Figure,
    pub hits_disk: Figure,
    pub hits_device: Figure,
    pub fillings: Figure,
    pub refusals: Figure,
    pub loads: Figure,
    pub load_failures: Figure,
    pub evictions: Figure,
    pub strangers: Figure,
    pub protocol_errors: Figure,
    pub limit_bytes: Figure,
    pub resident_bytes: Figure,
    pub reserved_bytes: Figure,
    pub shared_bytes: Figure,
    pub models: Figure,
    pub extents: Figure,
    pub leases: Figure,
    pub clients: Figure,
    pub opens: Histogram,
    pub load_times: Histogram,
    devices: OnceLock<Vec<DeviceFigures>>,
}

/// The figures of a device.
#[derive(Debug, Default)]
#[expect(missing_docs, reason = "the texts of `render` describe them")]
pub struct DeviceFigures {
    labels: String,
    pub limit_bytes: Figure,
    pub resident_bytes: Figure,
    pub reserved_bytes: Figure,
}

impl Metrics {
    /// Names the devices, once.
    pub fn set_devices<'a>(&self, names: impl Iterator<Item = &'a str>) {
        let labels = |name: &str| format!("{{tier=\"device\",device=\"{name}\"}}");
        let figures = names.map(|name| DeviceFigures { labels: labels(name), ..DeviceFigures::default() });
        self.devices.get_or_init(|| figures.collect());
    }

    /// The figures of the devices, in their order.
    pub fn devices(&self) -> &[DeviceFigures] {
        self.devices.get().map_or(&[], Vec::as_slice)
    }

    /// Prometheus' text form.
    pub fn render(&self) -> String {
        let mut to = String::with_capacity(4096);
        let mut row = |name: &str, kind: &str, help: &str, rows: &[(&str, &Figure)]| {
            let _ = writeln!(to, "# HELP uprd_{name} {help}\n# TYPE uprd_{name} {kind}");
            for (labels, figure) in rows {
                let _ = writeln!(to, "uprd_{name}{labels} {}", figure.value());
            }
        };
        row(
            "opens_total",
            "counter",
            "leases granted, by the tier that had the bytes",
            &[
                ("{tier=\"device\"}", &self.hits_device),
                ("{tier=\"host\"}", &self.hits_host),
                ("{tier=\"disk\"}", &self.hits_disk),
            ],
        );
        row("fillings_total", "counter", "clients that went on with weights of their own", &[("", &self.fillings)]);
        row("refusals_total", "counter", "requests refused", &[("", &self.refusals)]);
        row("loads_total", "counter", "loads that succeeded", &[("", &self.loads)]);
        row("load_failures_total", "counter", "loads that failed", &[("", &self.load_failures)]);
        row("evictions_total", "counter", "models whose bytes were dropped", &[("", &self.evictions)]);
        row("strangers_total", "counter", "connections of users that are not allowed", &[("", &self.strangers)]);
        row("protocol_errors_total", "counter", "malformed packets", &[("", &self.protocol_errors)]);
        let mut tiers = |name: &str, help: &str, host: &Figure, of: fn(&DeviceFigures) -> &Figure| {
            let mut rows = vec![("{tier=\"host\"}", host)];
            rows.extend(self.devices().iter().map(|own| (own.labels.as_str(), of(own))));
            row(name, "gauge", help, &rows);
        };
        tiers("limit_bytes", "the budget of the tier", &self.limit_bytes, |own| &own.limit_bytes);
        tiers("resident_bytes", "bytes of models", &self.resident_bytes, |own| &own.resident_bytes);
        tiers("reserved_bytes", "budget reserved by loads", &self.reserved_bytes, |own| &own.reserved_bytes);
        row("shared_bytes", "gauge", "bytes that models share and hold once", &[("", &self.shared_bytes)]);
        row("models", "gauge", "resident models", &[("", &self.models)]);
        row("extents", "gauge", "blocks of sealed memory", &[("", &self.extents)]);
        row("leases", "gauge", "leases", &[("", &self.leases)]);
        row("clients", "gauge", "connections", &[("", &self.clients)]);
        self.opens.write(&mut to, "uprd_open_seconds", "time from request to reply for resident models");
        self.load_times.write(&mut to, "uprd_load_seconds", "time to load a model");
        let _ = writeln!(
            to,
            "# HELP uprd_ready whether leases are granted\n# TYPE uprd_ready gauge\nuprd_ready {}",
            u8::from(self.ready.load(Ordering::Relaxed))
        );
        to
    }

    /// The reply to one HTTP request: `/metrics`, `/healthz`, `/readyz`.
    pub fn http(&self, request: &[u8]) -> String {
        let path = std::str::from_utf8(request).ok().and_then(|text| text.strip_prefix("GET ")?.split(' ').next());
        let is_ready = self.ready.load(Ordering::Relaxed);
        let (status, body) = match path {
            Some("/metrics" | "/") => ("200 OK", self.render()),
            Some("/healthz") => ("200 OK", "alive\n".to_string()),
            Some("/readyz") if is_ready => ("200 OK", "ready\n".to_string()),
            Some("/readyz") => ("503 Service Unavailable", "draining\n".to_string()),
            Some(_) => ("404 Not Found", "the paths are /metrics, /healthz and /readyz\n".to_string()),
            None => ("400 Bad Request", "the request must be GET PATH HTTP/1.1\n".to_string()),
        };
        let kind = "text/plain; version=0.0.4; charset=utf-8";
        let length = body.len();
        format!(
            "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_and_histograms_are_in_prometheus_form() {
        let metrics = Metrics::default();
        metrics.hits_host.add();
        metrics.opens.add(60_000);
        metrics.opens.add(90_000_000_000);
        let text = metrics.render();
        assert!(text.contains("uprd_opens_total{tier=\"host\"} 1\n"), "{text}");
        assert!(text.contains("uprd_open_seconds_bucket{le=\"0.0001\"} 1\n"), "{text}");
        assert!(text.contains("uprd_open_seconds_bucket{le=\"+Inf\"} 2\n"), "{text}");
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let value = line.rsplit(' ').next().and_then(|value| value.parse::<f64>().ok());
            assert!(value.is_some(), "{line}");
        }
    }

    #[test]
    fn readiness_follows_the_flag_and_other_paths_are_refused() {
        let metrics = Metrics::default();
        assert!(metrics.http(b"GET /readyz HTTP/1.1\r\n").starts_with("HTTP/1.1 503"));
        metrics.ready.store(true, Ordering::Relaxed);
        assert!(metrics.http(b"GET /readyz HTTP/1.1\r\n").starts_with("HTTP/1.1 200"));
        assert!(metrics.http(b"GET /x HTTP/1.1\r\n").starts_with("HTTP/1.1 404"));
        assert!(metrics.http(b"\xff").starts_with("HTTP/1.1 400"));
    }
}
