//! Reader of the result files of criterion 0.8: `<home>/**/new/benchmark.json`, `estimates.json`
//! and `sample.json`. Their form is undocumented and may change with criterion; no other module
//! knows it.

use std::fs;
use std::path::{Path, PathBuf};

use schema::kernel::KernelBench;
use serde_json::Value;

use crate::files::read_text;
use crate::stop::Stop;

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
    let benchmark = File::read(dir, "benchmark.json")?;
    let estimates = File::read(dir, "estimates.json")?;
    let sample = File::read(dir, "sample.json")?;
    let id = benchmark.get("/full_id", Value::as_str)?;
    let Name { op, shape, dtype, isa } = name(id).ok_or_else(|| {
        Stop::wrong_use(format!("bench `{id}` is not named `<op>/<shape>_<dtype>/<isa>`"))
    })?;
    // Work of one call, if the benchmark states it, under the name of criterion's kind of
    // throughput. Redline's benchmarks state floating-point operations as "elements".
    let work = |kinds: [&str; 2]| {
        let throughput = benchmark.value.get("throughput")?;
        kinds.iter().find_map(|kind| throughput.pointer(kind)?.as_u64())
    };
    // Kernels of a GPU name its architecture, such as `sm_90a`, in place of an instruction set.
    let device = if isa.starts_with("sm_") { "cuda" } else { "cpu" };
    Ok(KernelBench {
        op,
        shape,
        dtype,
        isa,
        device: device.to_owned(),
        median_ns: estimates.get("/median/point_estimate", Value::as_f64)?,
        mad_ns: estimates.get("/median_abs_dev/point_estimate", Value::as_f64)?,
        samples: sample.get("/iters", Value::as_array)?.len() as u64,
        bytes: work(["/Bytes", "/ElementsAndBytes/bytes"]),
        flops: work(["/Elements", "/ElementsAndBytes/elements"]),
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

/// A file of criterion.
struct File {
    path: PathBuf,
    value: Value,
}

impl File {
    fn read(dir: &Path, name: &str) -> Result<Self, Stop> {
        let path = dir.join(name);
        let value = serde_json::from_str(&read_text(&path)?).unwrap_or_default();
        Ok(Self { path, value })
    }

    /// Returns the value at the JSON pointer `at`, which criterion 0.8 always writes.
    fn get<'a, T>(
        &'a self,
        at: &str,
        read: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<T, Stop> {
        self.value.pointer(at).and_then(read).ok_or_else(|| {
            let path = self.path.display();
            Stop::wrong_use(format!("`{path}` is not what criterion 0.8 writes: no `{at}`"))
        })
    }
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
