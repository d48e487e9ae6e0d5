//! `cargo xtask cuda-check`: compiles every CUDA kernel, which needs no GPU, and checks each kernel
//! entry's machine code against the budget at the head of its file.

mod budget;
mod toolchain;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use anyhow::{Context, Result, bail};

use crate::shell::Shell;
use budget::{Budget, Code, Head, read_bounds, read_code, serialized};

/// Folder of the CUDA kernels; every `.cu` file in it is compiled.
const KERNELS: &str = "engine/cuda/kernels";

/// Text of the Python script that compiles a kernel with NVRTC. NVRTC is a library, and this
/// program loads none.
const NVRTC: &str = include_str!("nvrtc.py");

/// File of the kernel whose matrix multiplications ptxas serializes.
const SERIALIZED: &str = "xtask/src/cuda/serialized.cu";

/// GPU generation that kernels are compiled for.
#[derive(Debug, Clone, Copy)]
struct Generation {
    name: &'static str,
    /// Number of bytes of each block's shared memory that the system reserves on this GPU
    /// generation.
    reserved_bytes: usize,
}

const GENERATIONS: [Generation; 2] = [
    Generation { name: "sm_80", reserved_bytes: 0 },
    Generation { name: "sm_90a", reserved_bytes: 1024 },
];

/// Compilation of one kernel file for one GPU generation.
struct Unit {
    source: PathBuf,
    generation: Generation,
}

/// Result of checking one kernel file for one GPU generation: a line for each entry within its
/// budget, and the findings.
#[derive(Default)]
struct Report {
    within: Vec<String>,
    findings: Vec<String>,
}

/// Compiles and checks every kernel; exit code 1 if the head of a file is malformed, a kernel does
/// not compile, or an entry breaks its budget or has none.
///
/// # Errors
/// The toolchain cannot be obtained or started, its disassembler fails, there are no kernels, or a
/// file cannot be read or written.
pub fn run(shell: &Shell) -> Result<u8> {
    let toolchain = toolchain::obtain(shell)?;
    let units = units(&shell.root.join(KERNELS))?;
    let out = shell.target.join("cuda");
    fs::create_dir_all(&out).with_context(|| format!("cannot write `{}`", out.display()))?;
    let mut reports = for_all(&units, |unit| unit.check(shell, &toolchain, &out))?;
    reports.push(check_messages(shell, &toolchain, &out)?);
    reports.iter().flat_map(|report| &report.within).for_each(|line| eprintln!("{line}"));
    // Findings are printed last, below the many lines about entries within their budgets.
    let findings: Vec<&String> = reports.iter().flat_map(|report| &report.findings).collect();
    findings.iter().for_each(|finding| eprintln!("{finding}"));
    Ok(u8::from(!findings.is_empty()))
}

/// Compiles a kernel whose matrix multiplications ptxas serializes. It is a finding if the messages of
/// ptxas do not say so in the form that is looked for, since no other kernel's would be found then.
fn check_messages(shell: &Shell, toolchain: &Path, out: &Path) -> Result<Report> {
    let unit = Unit { source: shell.root.join(SERIALIZED), generation: GENERATIONS[1] };
    let kept = out.join("kept").join(unit.stem());
    fs::create_dir_all(&kept).with_context(|| format!("cannot write `{}`", kept.display()))?;
    let words = unit.words(&kept.join("cubin"), &kept);
    let compiled = shell.output(&toolchain.join("bin/nvcc"), &words)?;
    let _gone = fs::remove_dir_all(&kept);
    let messages = String::from_utf8_lossy(&compiled.stderr);
    let mut report = Report::default();
    match serialized(&messages).into_iter().find(|message| message.contains("are serialized")) {
        Some(message) => report.within.push(format!("{}: as it should: {message}", unit.name())),
        None => report.findings.push(format!(
            "{}: ptxas does not say in the known form that it serializes multiplications: see what \
             it says, and teach `serialized` in `xtask/src/cuda/budget.rs`\n{}",
            unit.name(),
            messages.trim_end()
        )),
    }
    Ok(report)
}

/// Returns one unit for each pair of a kernel file and a GPU generation, also where the file is not
/// for the generation, in order of the files' names.
fn units(dir: &Path) -> Result<Vec<Unit>> {
    let entries = fs::read_dir(dir).with_context(|| format!("cannot read `{}`", dir.display()))?;
    let mut sources = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<PathBuf>>>()?;
    sources.retain(|path| path.extension().is_some_and(|extension| extension == "cu"));
    sources.sort();
    if sources.is_empty() {
        // A wrong path must not pass as a check of no kernels.
        bail!("`{}` has no kernels", dir.display());
    }
    let units =
        |source: PathBuf| GENERATIONS.map(|generation| Unit { source: source.clone(), generation });
    Ok(sources.into_iter().flat_map(units).collect())
}

/// Calls `ask` for all units (kernel files for a GPU generation), on as many threads as there are
/// processors; returns the reports in the order of the units.
fn for_all(units: &[Unit], ask: impl Fn(&Unit) -> Result<Report> + Sync) -> Result<Vec<Report>> {
    let (next, answers) = (AtomicUsize::new(0), Mutex::new(BTreeMap::new()));
    let work = || {
        loop {
            // Each thread takes the next unit, because units take different times to compile.
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(unit) = units.get(index) else { break };
            let answer = ask(unit);
            answers.lock().expect("no holder panics").insert(index, answer);
        }
    };
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(work);
        }
    });
    answers.into_inner().expect("no holder panics").into_values().collect()
}

impl Unit {
    fn check(&self, shell: &Shell, toolchain: &Path, out: &Path) -> Result<Report> {
        let source = fs::read_to_string(&self.source)
            .with_context(|| format!("cannot read `{}`", self.source.display()))?;
        let mut report = Report::default();
        let head = match Head::read(&source, &GENERATIONS.map(|generation| generation.name)) {
            Ok(head) => head,
            Err(error) => {
                // This is a finding and no error, so that the other kernels are still checked.
                report.findings.push(format!("{}: {error:#}", self.name()));
                return Ok(report);
            }
        };
        if !head.is_for(self.generation.name) {
            return Ok(report);
        }
        let cubin = out.join(format!("{}.{}.cubin", self.stem(), self.generation.name));
        // The folder for intermediate files, of which PTX is read.
        let kept = out.join("kept").join(format!("{}.{}", self.stem(), self.generation.name));
        fs::create_dir_all(&kept).with_context(|| format!("cannot write `{}`", kept.display()))?;
        let compiled = shell.output(&toolchain.join("bin/nvcc"), &self.words(&cubin, &kept))?;
        if !compiled.status.success() {
            let why = String::from_utf8_lossy(&compiled.stderr).into_owned();
            report.findings.push(format!(
                "{}: it does not compile\n{}",
                self.name(),
                why.trim_end()
            ));
            return Ok(report);
        }
        let messages = String::from_utf8_lossy(&compiled.stderr);
        let serialized = serialized(&messages).into_iter();
        report.findings.extend(serialized.map(|message| format!("{}: {message}", self.name())));
        let ptx = kept.join(format!("{}.ptx", self.stem()));
        let ptx =
            fs::read_to_string(&ptx).with_context(|| format!("cannot read `{}`", ptx.display()))?;
        let _gone = fs::remove_dir_all(&kept);
        if let Some(why) = self.refused_by_nvrtc(shell, toolchain)? {
            let what = "NVRTC, which has no headers, does not compile it";
            report.findings.push(format!("{}: {what}\n{why}", self.name()));
        }
        let dump = |what: &str| -> Result<String> {
            shell.read(
                &toolchain.join("bin/cuobjdump"),
                &[OsString::from(what), cubin.clone().into()],
            )
        };
        let entries = read_code(&dump("-res-usage")?, &dump("-sass")?);
        self.judge(&head.budgets, &entries, &mut report);
        for (entry, bounds) in read_bounds(&ptx) {
            let overflow = entries.get(&entry).and_then(|code| code.overflow(bounds));
            report.findings.extend(overflow.map(|why| format!("{}: {entry}: {why}", self.name())));
        }
        Ok(report)
    }

    /// Returns the arguments of `nvcc`. There are no include folders, so that only files beside the
    /// kernel are found.
    /// `kept` is the folder for intermediate files.
    fn words(&self, cubin: &Path, kept: &Path) -> Vec<OsString> {
        let fixed = "-std=c++17 -O3 -cubin -Werror all-warnings -Xptxas -v --keep";
        let mut words: Vec<OsString> = fixed.split(' ').map(OsString::from).collect();
        words.push(format!("-arch={}", self.generation.name).into());
        words.extend(["--keep-dir".into(), kept.into()]);
        words.extend(["-o".into(), cubin.into(), self.source.clone().into()]);
        words
    }

    /// Compiles the kernel with NVRTC as well; returns its errors, if any. On machines that have
    /// only a driver, NVRTC is the compiler.
    fn refused_by_nvrtc(&self, shell: &Shell, toolchain: &Path) -> Result<Option<String>> {
        let library = toolchain.join("lib/libnvrtc.so.13").into_os_string();
        let [script, generation, source] =
            [NVRTC.as_ref(), self.generation.name.as_ref(), self.source.as_os_str()];
        let words = ["-c".as_ref(), script, &library, generation, source];
        let done = shell.output(Path::new("python3"), &words)?;
        let report = String::from_utf8_lossy(&done.stderr);
        Ok((!done.status.success()).then(|| report.trim_end().to_owned()))
    }

    fn judge(&self, budgets: &[Budget], entries: &BTreeMap<String, Code>, report: &mut Report) {
        for budget in budgets {
            let name = format!("{}: {}", self.name(), budget.entry);
            let Some(code) = entries.get(&budget.entry) else {
                report.findings.push(format!("{name}: no such entry: rename it at the head"));
                continue;
            };
            let findings = code.judge(budget, self.generation.reserved_bytes);
            if findings.is_empty() {
                report.within.push(format!(
                    "{name}: {} registers{}",
                    code.registers,
                    code.counts()
                ));
            }
            report.findings.extend(findings.iter().map(|finding| format!("{name}: {finding}")));
        }
        // An entry without a budget would never be checked.
        let has_budget = |entry: &String| budgets.iter().any(|budget| budget.entry == *entry);
        report.findings.extend(entries.keys().filter(|entry| !has_budget(entry)).map(|entry| {
            let what = "no budget: add a line `//@ NAME: ...` for it at the head";
            format!("{}: {entry}: {what}", self.name())
        }));
    }

    fn stem(&self) -> String {
        self.source.file_stem().unwrap_or_default().to_string_lossy().into_owned()
    }

    fn name(&self) -> String {
        format!("{}.cu, {}", self.stem(), self.generation.name)
    }
}
