//! Stage that runs every test of a Rust test program in a process of its own: after one illegal
//! address of a kernel, all later GPU operations of the same process fail.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Command, ExitStatus};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use campaign::files::{self, FileError};
use campaign::process::{self, Group, Interrupt, ProcessError, describe};
use campaign::stop::Stop;
use schema::gpu_validation::{EachTest, Outcome};

/// Time that an ended test may take before it is killed.
const GRACE: Duration = Duration::from_secs(2);
/// Beginning of the line by which a test says that the machine lacks something that it needs, as
/// `tests/fixtures` prints it.
const SKIPPED: &str = "skipped: ";

/// Tests of one stage and how to run them.
pub struct Tests<'a> {
    /// Program and arguments of the stage: programs that wrap the test program, the test program,
    /// and its filters.
    pub argv: &'a [String],
    /// Index of the test program in `argv`.
    pub program: usize,
    pub limits: EachTest,
    /// Time limit of all tests together.
    pub stage_limit: Duration,
    /// Folder for the output of each test.
    pub outputs: PathBuf,
    /// Sets working directory and environment of a command.
    pub prepare: &'a (dyn Fn(&mut Command) + Sync),
    pub interrupt: &'a Interrupt,
}

/// End of one test.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Ended {
    Passed,
    Failed(String),
    /// The test could not run on this machine, for the reason that it printed.
    Skipped(String),
    /// The watchdog ended the test.
    TooLong,
    /// The stage had no time left for the test.
    NotRun,
}

impl Tests<'_> {
    /// Runs the tests that the stage's filters select. Returns the stage's outcome with the number of
    /// tests that passed and the names of the others, and a text with one line for each test.
    ///
    /// # Errors
    /// The program cannot list its tests, an output cannot be written, a test cannot be started, or
    /// the run is interrupted.
    pub fn run(&self) -> Result<(Outcome, Option<String>, String), Stop> {
        let mut list = self.command(&self.argv[self.program..], &["--list", "--format", "terse"]);
        let listed = match process::capture(&mut list, self.interrupt) {
            // This is no error of the whole run, because the other stages can still be run.
            Err(error @ ProcessError::Start { .. }) => {
                return Ok((Outcome::Failed, Some(error.to_string()), String::new()));
            }
            listed => listed?,
        };
        if !listed.status.success() {
            let detail = format!("the tests cannot be listed: {}", describe(listed.status));
            return Ok((Outcome::Failed, Some(detail), listed.stderr));
        }
        let names = names(&listed.stdout);
        files::make_dir(&self.outputs)?;
        let started = self.interrupt.elapsed();
        let (next, ended) = (AtomicUsize::new(0), Mutex::new(BTreeMap::new()));
        let work = || -> Result<(), Stop> {
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                let Some(name) = names.get(index) else { return Ok(()) };
                let begun = self.interrupt.elapsed();
                let left = self.stage_limit.saturating_sub(begun.saturating_sub(started));
                let end = if left.is_zero() { Ended::NotRun } else { self.one(name, left)? };
                let took = self.interrupt.elapsed().saturating_sub(begun);
                ended.lock().expect("no holder panics").insert(index, (end, took));
            }
        };
        thread::scope(|scope| {
            let count = (self.limits.parallel.max(1) as usize).min(names.len());
            let threads: Vec<_> = (0..count).map(|_| scope.spawn(work)).collect();
            threads.into_iter().try_for_each(|thread| thread.join().expect("it does not panic"))
        })?;
        let ended = ended.into_inner().expect("no holder panics");
        let rows = names.iter().map(String::as_str).zip(ended.into_values());
        let rows: Vec<(&str, (Ended, Duration))> = rows.collect();
        let (outcome, detail) = summary(&rows, self.limits.limit_s);
        Ok((outcome, detail, lines(&rows)))
    }

    /// Runs one test in a process of its own, for at most `left`.
    fn one(&self, name: &str, left: Duration) -> Result<Ended, Stop> {
        let path = self.outputs.join(format!("{}.txt", name.replace("::", ".")));
        let output = File::create(&path).map_err(FileError::at("write", &path))?;
        let again = output.try_clone().map_err(FileError::at("write", &path))?;
        let only = ["--exact", name, "--nocapture", "--test-threads", "1"];
        let mut command = self.command(&self.argv[..=self.program], &only);
        command.stdout(output).stderr(again);
        let mut group = Group::start(&mut command)?;
        let limit = Duration::from_secs(self.limits.limit_s).min(left);
        let status = group.wait(Some(limit), self.interrupt)?;
        if status.is_none() {
            group.end(GRACE);
        }
        Ok(end_of(name, status, &fs::read_to_string(&path).unwrap_or_default()))
    }

    fn command(&self, words: &[String], more: &[&str]) -> Command {
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).args(more);
        (self.prepare)(&mut command);
        command
    }
}

/// Returns the names of the tests in the output of `--list --format terse`.
fn names(listed: &str) -> Vec<String> {
    listed.lines().filter_map(|line| Some(line.strip_suffix(": test")?.to_owned())).collect()
}

/// Returns how the test `name` ended from its process's exit status, `None` if the watchdog ended it,
/// and its output.
fn end_of(name: &str, status: Option<ExitStatus>, output: &str) -> Ended {
    match status {
        None => Ended::TooLong,
        Some(status) if !status.success() => Ended::Failed(describe(status)),
        // A name that selects no test passes as well.
        Some(_) if !output.contains("1 passed") => Ended::Failed("it did not run".to_owned()),
        Some(_) => reason_of_skip(name, output).map_or(Ended::Passed, Ended::Skipped),
    }
}

/// Returns what the test `name` printed where the machine lacks something that it needs. For its test
/// program, such a test has passed.
fn reason_of_skip(name: &str, output: &str) -> Option<String> {
    // The test program begins the line on which the test prints first.
    let begun = format!("test {name} ... ");
    let reason = |line: &str| {
        let of_test = line.strip_prefix(begun.as_str()).unwrap_or(line);
        of_test.strip_prefix(SKIPPED).map(str::to_owned)
    };
    output.lines().find_map(reason)
}

/// Returns the outcome of a stage, the number of tests that passed, and the names of the others. A
/// stage whose tests were all skipped is skipped.
fn summary(rows: &[(&str, (Ended, Duration))], limit_s: u64) -> (Outcome, Option<String>) {
    let of = |fits: fn(&Ended) -> bool| {
        let names = rows.iter().filter(|(_, (end, _))| fits(end)).map(|(name, _)| *name);
        names.collect::<Vec<&str>>()
    };
    let groups = [
        ("failed".to_owned(), of(|end| matches!(end, Ended::Failed(_)))),
        (format!("ended after {limit_s} s"), of(|end| *end == Ended::TooLong)),
        ("not run for lack of time".to_owned(), of(|end| *end == Ended::NotRun)),
    ];
    let passed = of(|end| *end == Ended::Passed).len();
    let skipped = ("skipped".to_owned(), of(|end| matches!(end, Ended::Skipped(_))));
    let is_bad = groups.iter().any(|(_, names)| !names.is_empty());
    let others: Vec<String> = groups
        .iter()
        .chain([&skipped])
        .filter(|(_, names)| !names.is_empty())
        .map(|(what, names)| format!("{} {what}: {}", names.len(), names.join(" ")))
        .collect();
    let outcome = match (is_bad, passed) {
        _ if rows.is_empty() => {
            return (Outcome::Failed, Some("its test program ran no test".to_owned()));
        }
        (true, _) => Outcome::Failed,
        (false, 0) => Outcome::Skipped,
        (false, _) => Outcome::Done,
    };
    let tests = if passed == 1 { "test" } else { "tests" };
    let parts = [vec![format!("{passed} {tests} passed")], others].concat();
    (outcome, Some(parts.join("; ")))
}

/// Formats a line for each test: its end, its duration in seconds and its name.
fn lines(rows: &[(&str, (Ended, Duration))]) -> String {
    rows.iter().fold(String::new(), |mut text, (name, (end, took))| {
        let end = match end {
            Ended::Passed => "passed".to_owned(),
            Ended::Failed(why) => format!("FAILED ({why})"),
            Ended::Skipped(why) => format!("skipped ({why})"),
            Ended::TooLong => "ENDED".to_owned(),
            Ended::NotRun => "not run".to_owned(),
        };
        writeln!(text, "{end} {:.1} s {name}", took.as_secs_f64()).expect("a text takes it");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use campaign::clock::Clock;

    /// Text of a shell script that behaves like a Rust test program with five tests: one passes,
    /// one fails, one crashes, one never ends, one lacks something.
    const PROGRAM: &str = "#!/bin/sh\n\
        ok='test result: ok. 1 passed; 0 failed'\n\
        case \"$*\" in\n\
        *--list*) for name in good bad dead slow bare; do echo \"a::$name: test\"; done ;;\n\
        *a::good*) echo \"test a::good ... ok\"; echo \"$ok\" ;;\n\
        *a::bad*) exit 101 ;;\n\
        *a::dead*) kill -9 $$ ;;\n\
        *a::slow*) sleep 100 ;;\n\
        *a::bare*) echo 'test a::bare ... skipped: a GPU is missing; hint: buy one'; echo \"$ok\" ;;\n\
        esac\n";

    #[test]
    fn a_test_that_fails_or_never_ends_leaves_the_others_alone() {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("program");
        fs::write(&program, PROGRAM).unwrap();
        files::set_mode(&program, 0o755).unwrap();
        let argv = [program.to_str().unwrap(), "filter"].map(str::to_owned);
        let tests = Tests {
            argv: &argv,
            program: 0,
            limits: EachTest { limit_s: 1, parallel: 2 },
            stage_limit: Duration::from_secs(60),
            outputs: dir.path().join("outputs"),
            prepare: &|_| (),
            interrupt: &Interrupt::new(Clock::start()),
        };
        let (outcome, detail, lines) = tests.run().unwrap();
        assert_eq!(outcome, Outcome::Failed);
        let detail = detail.unwrap();
        assert_eq!(
            detail,
            "1 test passed; 2 failed: a::bad a::dead; 1 ended after 1 s: a::slow; \
             1 skipped: a::bare",
            "{lines}"
        );
        let begins: Vec<&str> = lines.lines().filter_map(|line| line.split(' ').next()).collect();
        assert_eq!(begins, ["passed", "FAILED", "FAILED", "ENDED", "skipped"], "{lines}");
        assert!(lines.contains("skipped (a GPU is missing; hint: buy one) "), "{lines}");
        let output = fs::read_to_string(dir.path().join("outputs/a.good.txt")).unwrap();
        assert!(output.contains("1 passed"));
    }

    #[test]
    fn a_stage_without_tests_and_one_without_time_have_failed() {
        let none = summary(&[], 30);
        assert_eq!(none, (Outcome::Failed, Some("its test program ran no test".to_owned())));
        let rows = [("a", (Ended::Passed, Duration::ZERO)), ("b", (Ended::NotRun, Duration::ZERO))];
        let (outcome, detail) = summary(&rows, 30);
        assert_eq!(outcome, Outcome::Failed);
        assert_eq!(detail.unwrap(), "1 test passed; 1 not run for lack of time: b");
    }

    #[test]
    fn a_skipped_test_has_not_passed() {
        let row = |name, end| (name, (end, Duration::ZERO));
        let skipped = || Ended::Skipped("NCCL is missing".to_owned());
        let rows = [row("a", Ended::Passed), row("b", Ended::Passed), row("c", skipped())];
        let text = "2 tests passed; 1 skipped: c".to_owned();
        assert_eq!(summary(&rows, 30), (Outcome::Done, Some(text)));
        let text = "0 tests passed; 1 skipped: c".to_owned();
        assert_eq!(summary(&rows[2..], 30), (Outcome::Skipped, Some(text)));

        let ended = |output: &str| end_of("a::b", Some(ExitStatus::default()), output);
        let result = "test result: ok. 1 passed; 0 failed";
        let why = Ended::Skipped("a GPU is missing; hint: none".to_owned());
        for begun in ["test a::b ... ", "========= COMPUTE-SANITIZER\n"] {
            let said = format!("{begun}skipped: a GPU is missing; hint: none\nok\n{result}");
            assert_eq!(ended(&said), why);
        }
        let said = format!("test a::b ... 3 were skipped: these\nok\n{result}");
        assert_eq!(ended(&said), Ended::Passed);
    }
}
