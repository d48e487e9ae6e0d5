//! Slurm submission of a job: the batch script that starts the job's program, the arguments of
//! `sbatch`, and the user's `--slurm-option` values. Options that Redline sets itself are refused.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use schema::shell;

use crate::executor::JobSpec;
use crate::files::write_whole;
use crate::places::NODE_LOG;
use crate::stop::{Stop, wrong_use};

/// Names of `sbatch` options that are reserved, each with the reason for the error message.
/// Prefixes are reserved too, since `sbatch` accepts abbreviated names.
const OURS: &[(&str, &str)] = &[
    ("array", "a job is one list of blocks"),
    ("batch", "a job has one node"),
    ("chdir", "a job runs in its own folder"),
    ("clusters", "a job is looked for on one cluster"),
    ("error", "what a job says is kept in its folder"),
    ("exclusive", "a node that others use measures them too"),
    ("export", "a job sees its own variables alone"),
    ("export-file", "a job sees its own variables alone"),
    ("get-user-env", "a job sees its own variables alone"),
    ("job-name", "jobs are found by it"),
    ("nodes", "a job has one node"),
    ("no-requeue", "the campaign itself starts a job again, on another node"),
    ("ntasks", "a job has one task"),
    ("open-mode", "what a job says is kept in its folder"),
    ("output", "what a job says is kept in its folder"),
    ("oversubscribe", "a node that others use measures them too"),
    ("parsable", "the answer is read"),
    ("quiet", "the answer is read"),
    ("requeue", "the campaign itself starts a job again, on another node"),
    ("share", "a node that others use measures them too"),
    ("test-only", "it submits nothing"),
    ("wait", "jobs are watched"),
    ("wrap", "a job runs one program"),
];

/// Options for `sbatch` that the user gave with `--slurm-option`, checked.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Options {
    /// The user's options except `--exclude`, which follow Redline's own on the command line: of
    /// two for the same setting `sbatch` takes the last.
    pub words: Vec<String>,
    /// Node list of the user's `--exclude`, in Slurm's notation; `None` if the user excludes none.
    pub excluded: Option<String>,
}

impl Options {
    /// Checks the values of `--slurm-option` and returns them as options for `sbatch`.
    ///
    /// # Errors
    /// A word is not `--name` or `--name=value`, or names a reserved option.
    pub fn parse(words: &[String]) -> Result<Self, Stop> {
        let mut options = Self::default();
        for word in words {
            let name = name_of(word)?;
            // `starts_with` in this direction, because `--nod=2` means `--nodes=2` to `sbatch`.
            let ours = OURS.iter().find(|(ours, _)| ours.starts_with(name));
            if let Some((_, why)) = ours {
                return Err(wrong_use!("`--{name}` cannot be given to sbatch: {why}"));
            }
            match word.strip_prefix("--exclude=") {
                // Merged with the nodes on which attempts failed: of two `--exclude` only the last
                // would count.
                Some(nodes) => options.excluded = Some(nodes.to_owned()),
                None => options.words.push(word.clone()),
            }
        }
        Ok(options)
    }
}

fn name_of(word: &str) -> Result<&str, Stop> {
    let name = word.strip_prefix("--").map(|rest| rest.split('=').next().unwrap_or(rest));
    let is_name = |name: &&str| {
        name.len() > 1 && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-')
    };
    name.filter(is_name).ok_or_else(|| {
        wrong_use!("`{word}` is no long option of sbatch, such as `--partition=h200`")
    })
}

/// Writes the batch script into the job's folder, where a person finds it next to the log, and
/// returns its path.
///
/// # Errors
/// The script cannot be written, or an environment variable has an invalid name.
pub fn write(job: &JobSpec) -> Result<PathBuf, Stop> {
    let path = job.dir.join("slurm.sh");
    write_whole(&path, text(job)?.as_bytes())?;
    Ok(path)
}

/// Returns the text of the batch script. It exports the job's variables itself, because `--export`
/// with a name adds the login environment and splits values at commas. It `exec`s the program, so
/// that Slurm's signals reach it.
fn text(job: &JobSpec) -> Result<String, Stop> {
    let mut text = format!("#!/bin/sh\n# {}: what sbatch was given.\n", job.key);
    for (name, value) in &job.env {
        if !shell::is_variable(name) {
            return Err(wrong_use!("`{name}` is no name of a variable"));
        }
        // Writing to a string cannot fail.
        let _ = writeln!(text, "export {name}={}", shell::word(value));
    }
    let _ = writeln!(text, "exec {}", shell::line(&job.argv));
    Ok(text)
}

/// Returns the arguments of `sbatch`: one whole node with all of its memory, for one program.
///
/// # Errors
/// A path is not UTF-8.
pub fn submission(job: &JobSpec, options: &Options, script: &Path) -> Result<Vec<String>, Stop> {
    let path = |path: &Path| {
        let message = || wrong_use!("`{}` is not UTF-8", path.display());
        path.to_str().map(str::to_owned).ok_or_else(message)
    };
    // Not requeued: the campaign retries a lost job itself, under another key, in another folder
    // and on another node; a copy restarted by Slurm would run next to it.
    let mut words: Vec<String> =
        ["--parsable", "--no-requeue", "--nodes=1", "--ntasks=1", "--exclusive", "--mem=0"]
            .map(str::to_owned)
            .into();
    // Exports the environment of `sbatch`, which holds only the variables of `client_environment`.
    words.push("--export=ALL".to_owned());
    words.push(format!("--job-name={}", job.key));
    words.push(format!("--chdir={}", path(&job.dir)?));
    // Relative to `--chdir`, since a path may contain `%` patterns of `--output`; appended, so that
    // a second start of the job keeps the log of the first.
    words.push(format!("--output={}", NODE_LOG));
    words.push("--open-mode=append".to_owned());
    // Slurm's limit has a resolution of one minute.
    words.push(format!("--time={}", job.wall_max.as_secs().div_ceil(60).max(1)));
    if job.gpus > 0 {
        words.push(format!("--gpus-per-node={}", job.gpus));
    }
    let excluded: Vec<&str> =
        options.excluded.iter().chain(&job.excluded_nodes).map(String::as_str).collect();
    if !excluded.is_empty() {
        words.push(format!("--exclude={}", excluded.join(",")));
    }
    // Last, because of two options for one setting `sbatch` takes the later.
    words.extend(options.words.iter().cloned());
    words.push(path(script)?);
    Ok(words)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::process::Command;
    use std::time::Duration;

    use super::*;

    fn job() -> JobSpec {
        JobSpec {
            key: "redline-0123456789ab-1".to_owned(),
            dir: "/shared/100% of it".into(),
            argv: vec!["printenv".to_owned(), "PLAIN".to_owned()],
            env: BTreeMap::from([("PLAIN".to_owned(), "a, b 'c' $HOME `d`\n\"e\\".to_owned())]),
            wall_max: Duration::from_secs(61),
            gpus: 0,
            excluded_nodes: Vec::new(),
        }
    }

    #[test]
    fn values_reach_the_program_whatever_they_hold() {
        let folder = tempfile::tempdir().unwrap();
        let job = JobSpec { dir: folder.path().to_owned(), ..job() };
        let script = write(&job).unwrap();
        let output = Command::new("/bin/sh").arg(script).output().unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        assert_eq!(said.strip_suffix('\n'), Some(job.env["PLAIN"].as_str()));
        let odd = JobSpec { env: BTreeMap::from([("A B".to_owned(), String::new())]), ..job };
        assert_eq!(write(&odd).unwrap_err().cause().0, "`A B` is no name of a variable");
    }

    #[test]
    fn a_job_asks_for_a_whole_node_and_leaves_out_those_that_failed() {
        let words = |job: &JobSpec, options: &Options| {
            submission(job, options, Path::new("/s.sh")).unwrap().join(" ")
        };
        assert_eq!(
            words(&job(), &Options::default()),
            "--parsable --no-requeue --nodes=1 --ntasks=1 --exclusive --mem=0 --export=ALL \
             --job-name=redline-0123456789ab-1 --chdir=/shared/100% of it --output=node.log \
             --open-mode=append --time=2 /s.sh"
        );
        let job = JobSpec { gpus: 8, excluded_nodes: vec!["n4".into(), "n9".into()], ..job() };
        let options = Options { words: vec!["--partition=p".into()], excluded: Some("m1".into()) };
        let said = words(&job, &options);
        let end = "--time=2 --gpus-per-node=8 --exclude=m1,n4,n9 --partition=p /s.sh";
        assert!(said.ends_with(end), "{said}");
    }

    fn parse(words: &[&str]) -> Result<Options, String> {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        Options::parse(&words).map_err(|error| error.cause().0)
    }

    #[test]
    fn partition_account_and_their_like_go_to_sbatch_as_they_are() {
        let options = parse(&["--partition=h200", "--exclude=n[1-3]", "--gres=gpu:h200:8"]);
        let words = vec!["--partition=h200".to_owned(), "--gres=gpu:h200:8".to_owned()];
        assert_eq!(options, Ok(Options { words, excluded: Some("n[1-3]".to_owned()) }));
    }

    #[test]
    fn what_jobs_are_found_and_kept_apart_by_is_refused_also_cut_short() {
        for (word, said) in [
            ("--job-name=x", "jobs are found by it"),
            ("--job-n=x", "jobs are found by it"),
            ("--array=1-9", "a job is one list of blocks"),
            ("--requeue", "the campaign itself starts a job again, on another node"),
            ("--output=x", "what a job says is kept in its folder"),
        ] {
            let error = parse(&[word]).unwrap_err();
            assert!(error.ends_with(said), "{word}: {error}");
        }
        for word in ["-p", "h200", "--", "--Part=x", "-Ph200", ""] {
            let error = parse(&[word]).unwrap_err();
            assert!(error.contains("is no long option of sbatch"), "{word}: {error}");
        }
    }
}
