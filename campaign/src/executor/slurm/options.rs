//! The user's `--slurm-option` values: which are passed to `sbatch`, and which are refused because
//! Redline relies on its own value of them. Pure.

use super::ask::SlurmError;

/// Names of reserved `sbatch` options, each with the reason for the error message. Prefixes are
/// reserved too, since `sbatch` accepts abbreviated names.
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

/// Checked `sbatch` options of the user.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Options {
    /// Options that follow Redline's own on the command line: of two for the same setting `sbatch`
    /// takes the last.
    pub words: Vec<String>,
    /// Node list of the user's `--exclude`, in Slurm's notation.
    pub excluded: Option<String>,
}

impl Options {
    /// Checks the words of `--slurm-option`.
    ///
    /// # Errors
    /// A word is not `--name` or `--name=value`, or names a reserved option.
    pub fn parse(words: &[String]) -> Result<Self, SlurmError> {
        let mut options = Self::default();
        for word in words {
            let name = name_of(word)?;
            // `starts_with` in this direction, because `--nod=2` means `--nodes=2` to `sbatch`.
            let ours = OURS.iter().find(|(ours, _)| ours.starts_with(name));
            if let Some((_, why)) = ours {
                let message = format!("`--{name}` cannot be given to sbatch: {why}");
                return Err(SlurmError::WrongUse(message));
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

fn name_of(word: &str) -> Result<&str, SlurmError> {
    let name = word.strip_prefix("--").map(|rest| rest.split('=').next().unwrap_or(rest));
    let is_name = |name: &&str| {
        name.len() > 1 && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-')
    };
    name.filter(is_name).ok_or_else(|| {
        let message = format!("`{word}` is no long option of sbatch, such as `--partition=h200`");
        SlurmError::WrongUse(message)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> Result<Options, String> {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        Options::parse(&words).map_err(|error| error.to_string())
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
