//! Exports read by the tools whose formats they have.

use std::fs;
use std::path::Path;
use std::process::Command;

use schema::measurement::Measurement;
use serde_json::Value;

use crate::workspace::{Workspace, server, stderr};

/// Program that loads a folder as AIPerf's `plot` does, without drawing, which needs a browser.
const PLOT: &str = "
import pathlib, sys
from aiperf.plot.core.data_loader import DataLoader
run = DataLoader().load_run(pathlib.Path(sys.argv[1]))
print(len(run.requests), run.metadata.model, sorted(set(run.requests['output_sequence_length'])))
";

/// guidellm without `torch`, which it needs only to draw requests: it alone is larger than the rest.
const GUIDELLM: &[&[&str]] = &[
    &["--no-deps", "guidellm==0.8.1"],
    &[
        "click~=8.4.0",
        "culsans~=0.10.0",
        "datasets>=5.0.1",
        "eval_type_backport",
        "faker",
        "ftfy>=6.0.0",
        "httpx[http2]<1.0.0",
        "jinja2",
        "loguru",
        "more-itertools>=10.8.0",
        "msgpack",
        "numpy>=2.0.0",
        "protobuf",
        "pydantic>=2.11.7",
        "pydantic-settings>=2.0.0",
        "pyyaml>=6.0.0",
        "rich",
        "sanic",
        "tabulate",
        "transformers",
        "typing-extensions>=4.15.0",
        "uvloop>=0.18",
        "websockets>=13.0",
    ],
];

/// Modules in place of `torch`, with the two names that guidellm imports from it.
const TORCH: [(&str, &str); 5] = [
    ("torch/__init__.py", "__version__ = '0'\n"),
    ("torch/utils/__init__.py", ""),
    ("torch/utils/data/__init__.py", ""),
    (
        "torch/utils/data/dataloader.py",
        "class DataLoader:\n    def __class_getitem__(cls, of):\n        return cls\n",
    ),
    (
        "torch/utils/data/dataset.py",
        "class IterableDataset:\n    def __class_getitem__(cls, of):\n        return cls\n",
    ),
];

/// Program that prints three cells of guidellm's table, whose first three rows are its heading:
/// answered requests, median TTFT in milliseconds and output tokens per second.
const CELLS: &str = "
import csv, json
heads, (row,) = (lambda rows: (list(zip(*rows[:3])), rows[3:]))(list(csv.reader(open('benchmarks.csv'))))
cells = dict(zip(heads, row))
print(json.dumps([float(cells[head]) for head in [
    ('Request Counts', 'Successful', ''),
    ('Time to First Token', 'Successful ms', 'Median'),
    ('Token Throughput', 'Successful Output Tokens/Sec', 'Mean'),
]]))
";

fn exported(flags: &[&str]) -> (Workspace, Measurement) {
    let workspace = Workspace::new();
    let (code, measurement) = workspace.run(&server(Vec::new()), flags);
    assert_eq!(code, Some(0));
    (workspace, measurement)
}

#[test]
fn weekly_aiperfs_plot_loads_our_report_and_records() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("aiperf==0.13.0");
    let installs: [&[&str]; 1] = [&["aiperf==0.13.0"]];
    let Some(python) = fixtures::python_with(&folder, &installs) else { return };
    let report = "aiperf=profile_export_aiperf.json";
    let records = "aiperf-jsonl=profile_export.jsonl";
    let (workspace, _) = exported(&["--export", report, "--export", records]);
    let output = Command::new(python).args(["-c", PLOT]).arg(workspace.path("")).output();
    let output = output.expect("runs");
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(printed.ends_with("4 emitter [5]\n"), "{printed}{}", stderr(&output));
}

#[test]
fn weekly_guidellms_export_reads_our_report() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("guidellm==0.8.1");
    let Some(python) = fixtures::python_with(&folder, GUIDELLM) else { return };
    let (workspace, measured) = exported(&["--export", "guidellm=ours.json"]);
    for (name, text) in TORCH {
        let file = workspace.path(name);
        fs::create_dir_all(file.parent().expect("a folder")).expect("writable");
        fs::write(file, text).expect("writable");
    }
    let run = |words: &[&str]| {
        let mut command = Command::new(&python);
        command.args(words).current_dir(workspace.path("")).env("PYTHONPATH", workspace.path(""));
        let output = command.output().expect("runs");
        assert!(output.status.success(), "{words:?}: {}", stderr(&output));
        String::from_utf8(output.stdout).expect("UTF-8")
    };
    run(&["-m", "guidellm", "export", "ours.json", "--output", "kind=csv"]);
    let cells: [f64; 3] = serde_json::from_str(&run(&["-c", CELLS])).expect("three numbers");
    let ours = fs::read(workspace.path("ours.json")).expect("the report");
    let ours: Value = serde_json::from_slice(&ours).expect("JSON");
    let median = "/benchmarks/0/metrics/time_to_first_token_ms/successful/median";
    let metrics = measured.metrics.expect("metrics");
    let wanted = [
        measured.counts.and_then(|counts| counts.requests_ok).map(|count| count as f64),
        ours.pointer(median).and_then(Value::as_f64),
        metrics.output_tokens_per_s,
    ]
    .map(|value| value.expect("a figure"));
    for (cell, own) in cells.iter().zip(wanted) {
        assert!((cell / own - 1.0).abs() < 1e-9, "{cells:?} of {wanted:?}");
    }
    // Its percentiles are samples, ours lie between two of them.
    let p50_ms = metrics.ttft_us.and_then(|ttft| ttft.p50).expect("a median") as f64 / 1e3;
    assert!((cells[1] / p50_ms - 1.0).abs() < 0.2, "{} and {p50_ms}", cells[1]);
}
