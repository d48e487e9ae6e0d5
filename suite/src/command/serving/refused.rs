//! Flags of the other tools that `redline-bench serving` does not support. A flag that would change
//! the measurement or ask for a file that is not written is refused by name; a flag without such an
//! effect is accepted and ignored.

use anyhow::bail;
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Args, Command, Error, FromArgMatches};

/// Table of refused flags: in each line the names of a group of flags, and after the first colon a
/// hint about what to do instead.
const REFUSED: &str = include_str!("refused.txt");

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
        Ok(Self(refused().find(|(name, _)| is_given(name))))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
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
}
