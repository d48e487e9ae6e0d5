//! Reader of the result files of criterion 0.8: `<home>/**/new/benchmark.json`, `estimates.json`
//! and `sample.json`. Their form is undocumented and may change with criterion; no other module
//! knows it.

use std::fs;
use std::path::{Path, PathBuf};

use schema::kernel::KernelBench;
use serde::Deserialize;

use crate::files::read_text;
use crate::stop::Stop;

#[derive(Deserialize)]
struct Benchmark {
    full_id: String,
    throughput: Option<Throughput>,
}

/// Work of one call, if the benchmark states it.
#[derive(Deserialize)]
enum Throughput {
    Bits(u64),
    Bytes(u64),
    BytesDecimal(u64),
    Elements(u64),
    ElementsAndBytes { elements: u64, bytes: u64 },
}

impl Throughput {
    fn bytes(&self) -> Option<u64> {
        match self {
            Self::Bytes(bytes)
            | Self::BytesDecimal(bytes)
            | Self::ElementsAndBytes { bytes, .. } => Some(*bytes),
            Self::Bits(bits) => Some(bits / 8),
            Self::Elements(_) => None,
        }
    }

    /// Floating-point operations of one call; Redline's benchmarks state them as criterion's
    /// "elements".
    fn flops(&self) -> Option<u64> {
        match self {
            Self::Elements(elements) | Self::ElementsAndBytes { elements, .. } => Some(*elements),
            Self::Bits(_) | Self::Bytes(_) | Self::BytesDecimal(_) => None,
        }
    }
}

#[derive(Deserialize)]
struct Estimates {
    median: Estimate,
    median_abs_dev: Estimate,
}

#[derive(Deserialize)]
struct Estimate {
    /// Time of one call in nanoseconds.
    point_estimate: f64,
}

#[derive(Deserialize)]
struct Sample {
    iters: Vec<f64>,
}

/// Reads every benchmark below `home`, sorted by name.
///
/// # Errors
/// A file is missing, or has another form.
pub fn read(home: &Path) -> Result<Vec<KernelBench>, Stop> {
    let folders = new_folders(home);
    let mut benches =
        folders.iter().map(|dir| read_one(dir)).collect::<Result<Vec<KernelBench>, _>>()?;
    let key = |b: &KernelBench| (b.op.clone(), b.shape.clone(), b.dtype.clone(), b.isa.clone());
    benches.sort_by_key(key);
    Ok(benches)
}

fn read_one(dir: &Path) -> Result<KernelBench, Stop> {
    let benchmark: Benchmark = parse(&dir.join("benchmark.json"))?;
    let estimates: Estimates = parse(&dir.join("estimates.json"))?;
    let sample: Sample = parse(&dir.join("sample.json"))?;
    let Name { op, shape, dtype, isa } = name(&benchmark.full_id).ok_or_else(|| {
        let name = &benchmark.full_id;
        Stop::wrong_use(format!("bench `{name}` is not named `<op>/<shape>_<dtype>/<isa>`"))
    })?;
    let throughput = benchmark.throughput.as_ref();
    // Kernels of a GPU name its architecture, such as `sm_90a`, in place of an instruction set.
    let device = if isa.starts_with("sm_") { "cuda" } else { "cpu" };
    Ok(KernelBench {
        op,
        shape,
        dtype,
        isa,
        device: device.to_owned(),
        median_ns: estimates.median.point_estimate,
        mad_ns: estimates.median_abs_dev.point_estimate,
        samples: sample.iters.len() as u64,
        bytes: throughput.and_then(Throughput::bytes),
        flops: throughput.and_then(Throughput::flops),
        limit_share: None,
    })
}

#[derive(Debug, PartialEq, Eq)]
struct Name {
    op: String,
    shape: String,
    dtype: String,
    isa: String,
}

/// Splits a benchmark's name such as `matmul/T512_K576_N1536_q4_1/avx512`. The shape is the leading
/// parts that are a letter and a number; the rest is the data type.
fn name(full_id: &str) -> Option<Name> {
    let [op, middle, isa] = full_id.split('/').collect::<Vec<_>>().try_into().ok()?;
    let parts: Vec<&str> = middle.split('_').collect();
    let sizes = parts.iter().take_while(|part| is_size(part)).count();
    if sizes == 0 || sizes == parts.len() || op.is_empty() || isa.is_empty() {
        return None;
    }
    let (shape, dtype) = (parts[..sizes].join("_"), parts[sizes..].join("_"));
    Some(Name { op: op.to_owned(), shape, dtype, isa: isa.to_owned() })
}

/// True for an upper-case letter followed by a number, such as `T512`.
fn is_size(part: &str) -> bool {
    let mut bytes = part.bytes();
    bytes.next().is_some_and(|first| first.is_ascii_uppercase())
        && part.len() > 1
        && bytes.all(|byte| byte.is_ascii_digit())
}

fn parse<T: for<'a> Deserialize<'a>>(path: &Path) -> Result<T, Stop> {
    let text = read_text(path)?;
    serde_json::from_str(&text).map_err(|error| {
        let path = path.display();
        Stop::wrong_use(format!("`{path}` is not what criterion 0.8 writes: {error}"))
    })
}

/// Finds every folder `new` that contains a finished benchmark.
fn new_folders(dir: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    let mut found = Vec::new();
    for path in entries.flatten().map(|entry| entry.path()).filter(|path| path.is_dir()) {
        if path.ends_with("new") && path.join("benchmark.json").is_file() {
            found.push(path);
        } else {
            found.extend(new_folders(&path));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use schema::exit::Exit;

    fn write(home: &Path, folder: &str, id: &str, throughput: &str) {
        let dir = home.join(folder).join("new");
        fs::create_dir_all(&dir).unwrap();
        let estimate = |ns: f64| {
            format!(r#"{{"confidence_interval":{{}},"point_estimate":{ns},"standard_error":0.1}}"#)
        };
        let benchmark = format!(
            r#"{{"group_id":"g","function_id":null,"value_str":null,"throughput":{throughput},"full_id":"{id}","directory_name":"d","title":"t"}}"#
        );
        let estimates = format!(
            r#"{{"mean":{m},"median":{m},"median_abs_dev":{d},"slope":null,"std_dev":{d}}}"#,
            m = estimate(1500.5),
            d = estimate(12.25)
        );
        fs::write(dir.join("benchmark.json"), benchmark).unwrap();
        fs::write(dir.join("estimates.json"), estimates).unwrap();
        fs::write(
            dir.join("sample.json"),
            r#"{"sampling_mode":"Flat","iters":[1.0,1.0,1.0],"times":[1.0,1.0,1.0]}"#,
        )
        .unwrap();
    }

    #[test]
    fn criterions_files_become_benches() {
        let home = tempfile::tempdir().unwrap();
        write(home.path(), "rms", "rms_norm/T64_D576_f32/portable", "null");
        write(
            home.path(),
            "mm/x",
            "matmul/T512_K576_N1536_q4_1/avx512",
            r#"{"ElementsAndBytes":{"elements":9,"bytes":7}}"#,
        );
        write(home.path(), "mm/y", "matmul/T1_K576_N1536_q4_1/sm_90a", r#"{"Bytes":7}"#);
        write(home.path(), "mm8/x", "matmul_int8/T8_K576_N1536_q8_0/avx2-vnni", "null");
        let benches = read(home.path()).unwrap();
        let line = |b: &KernelBench| {
            let counts = format!("{:?} {:?} n={}", b.bytes, b.flops, b.samples);
            format!("{} {} {} {} {} {counts}", b.op, b.shape, b.dtype, b.isa, b.device)
        };
        let lines: Vec<String> = benches.iter().map(line).collect();
        assert_eq!(
            lines,
            [
                "matmul T1_K576_N1536 q4_1 sm_90a cuda Some(7) None n=3",
                "matmul T512_K576_N1536 q4_1 avx512 cpu Some(7) Some(9) n=3",
                "matmul_int8 T8_K576_N1536 q8_0 avx2-vnni cpu None None n=3",
                "rms_norm T64_D576 f32 portable cpu None None n=3",
            ]
        );
        assert!((benches[0].median_ns - 1500.5).abs() < 1e-9);
        assert!((benches[0].mad_ns - 12.25).abs() < 1e-9);
    }

    #[test]
    fn another_form_is_named_with_its_file() {
        let home = tempfile::tempdir().unwrap();
        write(home.path(), "x", "matmul/T1_f32/avx2", "null");
        fs::write(home.path().join("x/new/estimates.json"), r#"{"median":1}"#).unwrap();
        let error = read(home.path()).unwrap_err();
        assert!(error.to_string().contains("estimates.json` is not what criterion 0.8 writes"));
        assert_eq!(error.exit(), Exit::Unsound);
    }

    #[test]
    fn a_bench_must_be_named_by_op_shape_and_isa() {
        for bad in ["matmul", "matmul/T1/avx2", "matmul/f32/avx2", "a/T1_f32/b/c", "/T1_f32/avx2"] {
            assert_eq!(name(bad), None, "`{bad}` was taken");
        }
    }
}
