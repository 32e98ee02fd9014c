//! Documents of results for the page.

use benches::result::Document;
use serde_json::{Value, json};

/// A row of an adapter with 32 in flight for each worker.
fn row(adapter: &str, block_size: u32, depth: u32, workers: u32) -> Value {
    let speed = if adapter == "lsi" { 1.0 } else { 1.2 };
    let iops = speed * 4e5 / f64::from(block_size / 1024).sqrt() * f64::from(depth).sqrt();
    let spread = |value: f64| json!({"median": value, "min": value * 0.9, "max": value * 1.1});
    let cycles = 2.6e9 / iops;
    let mut row = json!({
        "adapter": adapter,
        "disk": {"format": "passthrough", "subformat": null, "path": "/dev/loop0", "capacity": 104_857_600, "options": ["cached"]},
        "engine": "kvm", "rw": "randread", "read_percent": 100, "block_size": block_size, "queue_depth": depth,
        "workers": workers, "coalescing": "oio-iops", "runs": 5, "accesses": 1000, "iops": spread(iops),
        "mb_per_s": spread(iops * f64::from(block_size) / 1e6),
        "latency_us": {"mean": 80.0, "p50": 75.0, "p99": 150.0, "p999": 300.0},
        "interrupts_per_io": 0.05, "exits_per_io": 0.1, "doorbells_per_io": 0.04, "errors": 0,
    });
    row["cycles_per_io"] = json!({});
    for part in ["total", "guest", "exit", "device", "kernel"] {
        row["cycles_per_io"][part] = spread(cycles);
    }
    row
}

fn document(suite: Option<&str>, results: &[Value], ratios: &[Value]) -> Document {
    let host = json!({
        "cpu": "Some CPU", "cores": 8, "tsc_hz": 2_600_000_000_u64, "kernel": "6.18", "kvm": "hardware", "cycles_source": "cpu_time_x_tsc"
    });
    let mut value =
        json!({"schema": 1, "host": host, "results": results, "ratios": ratios, "command": "paradisk bench"});
    if let Some(suite) = suite {
        value["suite"] = suite.into();
    }
    Document::read(&value.to_string()).unwrap()
}

/// The name of a row, as the meter gives it.
fn label(adapter: &str, block_size: u32, workers: u32) -> String {
    format!(
        "kvm/{adapter}/passthrough cached of 104857600 /dev/loop0/randread/bs {block_size}/qd 32/workers {workers}/oio-iops"
    )
}

/// The suite `pvscsi-vs-lsi`, from the largest block to the smallest.
pub(crate) fn suite() -> Document {
    let loads = || (0..10).rev().flat_map(|power| [1, 2].map(|workers| (1024 << power, workers)));
    let results: Vec<Value> = loads()
        .flat_map(|(size, workers)| ["lsi", "pvscsi"].map(|adapter| row(adapter, size, 32, workers)))
        .collect();
    let ratio = |(size, workers): (u32, u32), metric: &str, median: f64| {
        json!({
            "name": "pvscsi against lsi, passthrough cached", "baseline": label("lsi", size, workers),
            "candidate": label("pvscsi", size, workers), "metric": metric, "median": median, "min": median * 0.95, "max": median * 1.05,
            "confidence": {"low": median * 0.97, "high": median * 1.03, "margin": 0.02, "verdict": "faster"}
        })
    };
    let ratios: Vec<Value> = loads()
        .flat_map(|load| [ratio(load, "iops", 1.2), ratio(load, "cycles_per_io.total", 0.83)])
        .collect();
    document(Some("pvscsi-vs-lsi"), &results, &ratios)
}

/// Depths of two adapters, without a suite.
pub(crate) fn plain() -> Document {
    let results: Vec<Value> = [1, 8, 32, 128]
        .iter()
        .flat_map(|depth| ["lsi", "pvscsi"].map(|adapter| row(adapter, 4096, *depth, 1)))
        .collect();
    document(None, &results, &[])
}
