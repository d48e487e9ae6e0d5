//! Flags of the other tools that `redline-bench serving` does not support. A flag that would change
//! the measurement or ask for a file that is not written is refused by name; a flag without such an
//! effect is accepted and ignored.

use anyhow::bail;
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Args, Command, Error, FromArgMatches};

/// Refused flags, and a hint for each group about what to do instead.
const REFUSED: &[(&[&str], &str)] = &[
    (
        &["apply-chat-template", "chat-template-kwargs"],
        "the server applies its own template behind `--backend openai-chat`, `sglang-oai-chat` or \
         `lmdeploy-chat`",
    ),
    (
        &["no-oversample", "sharegpt-context-len", "prompt-suffix"],
        "requests are drawn as the tools do without it; `redline-bench run` sends any others \
         from a `jsonl` dataset",
    ),
    (
        &["random-batch-size", "gsp-num-turns", "gsp-ordered"],
        "only shuffled requests of one prompt and one turn are supported; `redline-bench run` has \
         `multi-turn` for conversations",
    ),
    (
        &["gsp-group-distribution", "gsp-zipf-alpha", "gsp-send-routing-key"],
        "all groups have the same number of requests",
    ),
    (
        &["ramp-up-strategy", "ramp-up-start-rps", "ramp-up-end-rps"],
        "a ramp of another process is `arrival = { kind = \"ramp\" }` for `redline-bench run`",
    ),
    (
        &["multi", "request-rate-range"],
        "give one `--request-rate` at a time, or several to `redline-bench sweep`",
    ),
    (
        &["self-timed", "use-trace-timestamps", "mooncake-slowdown-factor", "mooncake-num-rounds"],
        "timed traces are `trace@mooncake` for `redline-bench run`",
    ),
    (&["probe-request-rate"], "run a second `redline-bench` beside this one"),
    (&["disable-stream"], "token times can only be measured in a stream"),
    (
        &["logprobs", "return-logprob", "top-logprobs-num", "token-ids-logprob"],
        "`--extra-body '{\"logprobs\": 1}'` asks the server for them; they are not kept",
    ),
    (&["use-beam-search"], "`--extra-body` can ask the server for it"),
    (&["lora-modules", "lora-assignment", "lora-name"], "`--served-model-name` names one adapter"),
    (
        &["profile", "profile-activities", "profile-num-steps", "profile-by-stage"],
        "profiling changes the server's speed; start it by hand, and not during a measurement",
    ),
    (&["pd-separated", "fake-prefill"], "give the URL of the router in front of both"),
    (&["header"], "the only header sent is the API key of `--api-key-file` or OPENAI_API_KEY"),
    (
        &["tokenizer-mode", "skip-tokenizer-init"],
        "lengths are counted by the tokenizer file that `--tokenizer` names",
    ),
    (
        &["plot-timeline", "plot-dataset-stats", "plot-throughput", "timeline-itl-thresholds"],
        "`--save-detailed` writes the figures of every request",
    ),
    (&["cache-report"], "hits of the prefix cache are under `cache` in Redline's own record"),
    (&["print-requests"], "`redline-bench plan` shows what would be sent"),
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

/// First flag on the command line that is not supported, and its hint; `None` if there is none.
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
        let refused = REFUSED.iter().flat_map(|(names, _)| names.iter());
        // An unknown number of values may follow such a flag, so all of them are accepted.
        let unseen = |name| Arg::new(name).long(name).num_args(0..).hide(true);
        command.args(refused.chain(TAKEN).copied().map(unseen))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for Refused {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let given = |name: &&str| matches.value_source(name) == Some(ValueSource::CommandLine);
        let of = |(names, hint): &(&[&'static str], &'static str)| {
            names.iter().copied().find(given).map(|name| (name, *hint))
        };
        Ok(Self(REFUSED.iter().find_map(of)))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(flags: &[&str]) -> Result<(), String> {
        let command = Refused::augment_args(Command::new("x"));
        let matches = command.try_get_matches_from(["x"].iter().chain(flags)).unwrap();
        Refused::from_arg_matches(&matches).unwrap().check().map_err(|error| error.to_string())
    }

    #[test]
    fn every_refused_flag_is_named_with_a_way_out() {
        for (names, hint) in REFUSED {
            for name in *names {
                let said = parsed(&[&format!("--{name}"), "a", "b"]).unwrap_err();
                assert!(said.contains(&format!("`--{name}`")), "{said}");
                assert!(said.contains(&format!("\nhint: {hint}")), "{said}");
            }
        }
    }

    #[test]
    fn flags_without_effect_are_taken_with_or_without_a_value() {
        assert_eq!(parsed(&["--trust-remote-code", "--request-id-prefix", "a"]), Ok(()));
        assert_eq!(parsed(&[]), Ok(()));
    }
}
