//! Flags of the other tools that `redline-bench serving` does not support. A flag that would change
//! the measurement or ask for a file that is not written is refused by name; a flag without such an
//! effect is accepted and ignored.

use std::ffi::OsString;

use anyhow::bail;
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Args, Command, Error, FromArgMatches};

/// Table of refused flags: in each line the names of a group of flags, and after the first colon a
/// hint about what to do instead.
const REFUSED: &str = include_str!("refused.txt");

/// Table of refused values: in each line the name of a flag and some values of it, and after the first
/// colon a hint about what to do instead.
const VALUES: &str = include_str!("refused_values.txt");

/// Values of refused flags that the tools have without the flag, so that it has no effect.
const DEFAULTS: &[(&str, &str)] = &[
    ("gsp-num-turns", "1"),
    ("image-count", "1"),
    ("lora-assignment", "random"),
    ("mooncake-num-rounds", "1"),
    ("mooncake-slowdown-factor", "1.0"),
    ("prompt-suffix", ""),
    ("random-batch-size", "1"),
    ("tokenizer-mode", "auto"),
];

/// Accepted flags that affect neither the measurement nor the files written.
const TAKEN: &[&str] = &[
    "trust-remote-code",
    "request-id-prefix",
    "no-stream",
    "no-reranker",
    "gsp-fast-prepare",
    "flush-cache-timeout",
];

/// Iterates over the names of all refused flags, each with the hint of its group.
fn refused() -> impl Iterator<Item = (&'static str, &'static str)> {
    let groups = REFUSED.lines().filter_map(|group| group.split_once(": "));
    groups.flat_map(|(names, hint)| names.split(' ').map(move |name| (name, hint)))
}

/// First flag on the command line that is not supported, and the hint about what to do instead;
/// `None` if all flags are supported.
#[derive(Clone, Copy, Debug)]
pub struct Refused(Option<(&'static str, &'static str)>);

impl Refused {
    /// Checks that no unsupported flag was given on the command line.
    ///
    /// # Errors
    /// An unsupported flag was given; the message names it and gives its hint.
    pub fn check(self) -> anyhow::Result<()> {
        match self.0 {
            None => Ok(()),
            Some((name, hint)) => bail!(
                "`--{name}` is not supported, and would change what is measured or written\n\
                 hint: {hint}"
            ),
        }
    }
}

impl Args for Refused {
    fn augment_args(command: Command) -> Command {
        let refused = refused().map(|(name, _)| name);
        // An unknown number of values may follow such a flag, so all of them are accepted.
        let unseen = |name| Arg::new(name).long(name).num_args(0..).hide(true);
        command.args(refused.chain(TAKEN.iter().copied()).map(unseen))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for Refused {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let is_given = |name| matches.value_source(name) == Some(ValueSource::CommandLine);
        let is_default = |name: &str| {
            let values = matches.get_many::<String>(name).into_iter().flatten();
            let values: Vec<&str> = values.map(String::as_str).collect();
            DEFAULTS.iter().any(|(known, default)| *known == name && values == [*default])
        };
        Ok(Self(refused().find(|(name, _)| is_given(name) && !is_default(name))))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// Returns a command line as the parser takes it: vLLM's tool accepts underscores in the names of
/// long flags.
///
/// # Errors
/// A flag has a value that the tools know and that is not supported; the message names it and gives
/// its hint.
pub fn spelled(words: Vec<OsString>) -> anyhow::Result<Vec<OsString>> {
    let words: Vec<OsString> = words.into_iter().map(with_dashes).collect();
    let texts: Vec<&str> = words.iter().map(|word| word.to_str().unwrap_or_default()).collect();
    for (at, text) in texts.iter().enumerate() {
        let Some(flag) = text.strip_prefix("--") else { continue };
        let next = texts.get(at + 1).copied().unwrap_or_default();
        let (name, value) = flag.split_once('=').unwrap_or((flag, next));
        // Older versions of vLLM's tool have another name for the flag.
        let known = if name == "endpoint-type" { "backend" } else { name };
        if let Some(hint) = hint_of(known, value) {
            bail!("`--{name} {value}` is not supported\nhint: {hint}");
        }
    }
    Ok(words)
}

fn with_dashes(word: OsString) -> OsString {
    let Some(flag) = word.to_str().filter(|text| text.starts_with("--")) else { return word };
    match flag.split_once('=') {
        Some((name, value)) => format!("{}={value}", name.replace('_', "-")).into(),
        None => flag.replace('_', "-").into(),
    }
}

/// Returns the hint for a refused value of a flag; `None` for any other value.
fn hint_of(name: &str, value: &str) -> Option<&'static str> {
    VALUES.lines().filter_map(|group| group.split_once(": ")).find_map(|(values, hint)| {
        let mut values = values.split(' ');
        let is_flag = values.next() == Some(name);
        (is_flag && values.any(|known| known == value)).then_some(hint)
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn parsed(flags: &[&str]) -> Result<(), String> {
        let command = Refused::augment_args(Command::new("x"));
        let matches = command.try_get_matches_from(["x"].iter().chain(flags)).unwrap();
        Refused::from_arg_matches(&matches).unwrap().check().map_err(|error| error.to_string())
    }

    #[test]
    fn every_refused_flag_is_named_with_a_way_out() {
        let hints: BTreeSet<&str> = refused().map(|(_, hint)| hint).collect();
        assert_eq!(hints.len(), REFUSED.lines().count(), "each line is a group with its hint");
        for (name, hint) in refused() {
            let said = parsed(&[&format!("--{name}"), "a", "b"]).unwrap_err();
            assert!(said.contains(&format!("`--{name}`")), "{said}");
            assert!(said.contains(&format!("\nhint: {hint}")), "{said}");
        }
    }

    #[test]
    fn flags_without_effect_are_taken_with_or_without_a_value() {
        assert_eq!(parsed(&["--trust-remote-code", "--request-id-prefix", "a"]), Ok(()));
        assert_eq!(parsed(&[]), Ok(()));
    }

    #[test]
    fn a_refused_flag_at_its_default_is_taken() {
        for (name, default) in DEFAULTS {
            assert!(refused().any(|(known, _)| known == *name), "{name}");
            assert_eq!(parsed(&[&format!("--{name}"), default]), Ok(()), "{name}");
        }
        assert!(parsed(&["--tokenizer-mode", "slow"]).is_err());
    }

    #[test]
    fn long_flags_may_have_underscores_and_values_keep_theirs() {
        let spelled = |words: &[&str]| {
            let words = spelled(words.iter().map(OsString::from).collect())?;
            anyhow::Ok(
                words.into_iter().map(|word| word.into_string().unwrap()).collect::<Vec<_>>(),
            )
        };
        let words = ["serving", "--dataset_name", "prefix_repetition", "--result_dir=a_b", "-x_y"];
        let wanted = ["serving", "--dataset-name", "prefix_repetition", "--result-dir=a_b", "-x_y"];
        assert_eq!(spelled(&words).unwrap(), wanted);
        for words in [["--dataset_name", "spec_bench"], ["x", "--dataset-name=spec_bench"]] {
            let said = spelled(&words).unwrap_err().to_string();
            assert!(
                said.starts_with("`--dataset-name spec_bench` is not supported\nhint: "),
                "{said}"
            );
        }
    }
}
