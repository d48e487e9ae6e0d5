//! GPU validation: the commands and scenarios that a release must pass on a machine that may have
//! no network and no compiler, in stages that can be run one at a time.

use std::collections::BTreeSet;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::random::SplitMix64;
use crate::run::EngineFacts;
use crate::scenario::{InvalidFile, from_toml};
use crate::target::{TargetMatch, TargetModel};

/// GPU validation file `suite/validations/<id>.toml`; the id is the file's stem.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GpuValidation {
    /// Question that the GPU validation answers.
    pub question: String,
    /// Condition that a machine must meet for the GPU validation to be meant for it; an empty table
    /// matches any machine.
    #[serde(rename = "match")]
    pub matches: TargetMatch,
    /// Server flags that the GPU validation adds to the command line of every server.
    #[serde(default)]
    pub flags: Vec<String>,
    /// Time limit for the command of a stage, or for the measurement of its scenario, in seconds;
    /// one that takes longer is ended, and its stage has failed.
    pub stage_limit_s: u64,
    /// Models that the GPU validation serves.
    pub models: Vec<TargetModel>,
    /// Calls in which the GPU validation is made, in their order: each has a time limit and is useful
    /// alone, for machines that are lent for minutes.
    pub calls: Vec<ValidationCall>,
}

/// Call of a GPU validation: stages that run one after the other within a time limit. Stages that
/// do not end in time are left for the same call made again.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ValidationCall {
    /// Id of the call, such as `smoke`.
    pub id: String,
    /// Time limit of the call, in seconds.
    pub limit_s: u64,
    /// Commands of the call, which run before its scenarios.
    #[serde(default)]
    pub commands: Vec<ValidationCommand>,
    /// Ids of the scenarios to measure; each scenario is one stage for each model. The stages of a
    /// model share a server, whose prefix cache is emptied before each, and run in an order that is
    /// drawn for each model.
    #[serde(default)]
    pub scenarios: Vec<String>,
}

/// Command of a GPU validation. It passes if it ends with exit code 0 within the time limit and
/// printed what `prints` says. With `each_test`, it passes if no test fails and at least one runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ValidationCommand {
    /// Id of the stage that runs the command, or the prefix of its stage ids where there is one
    /// stage for each model.
    pub id: String,
    /// Program and arguments, with the placeholders `{redline}`, `{model}`, `{tests}` (tests of the
    /// models) and `{cuda_tests}` (tests of the CUDA device). A command with a test program has
    /// `each_test`.
    pub argv: Vec<String>,
    /// Name of the program that the machine must have for the command; without it the stage is
    /// skipped. Left out where the command needs none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub needs: Option<String>,
    /// True when the command runs once for each model that the GPU validation serves; false when it
    /// runs once in the whole validation.
    #[serde(default)]
    pub each_model: bool,
    /// Id of the model whose path replaces `{model}` in a command that runs once; the GPU validation
    /// need not serve it. Left out where the command runs for each model, or needs none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Text that the standard output of the command must have, for a program that ends with exit
    /// code 0 though it did nothing. Left out where the exit code says all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prints: Option<String>,
    /// Limits for a command that runs each test of its test program in a process of its own, so
    /// that a test that breaks the GPU's context fails alone. Left out for all other commands.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub each_test: Option<EachTest>,
}

/// Limits for the tests of a stage that run in a process each. A test that prints that it is skipped
/// is reported as skipped, and has not passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EachTest {
    /// Time limit for one test, in seconds; one that takes longer is ended, and has failed.
    #[serde(default = "limit_s")]
    pub limit_s: u64,
    /// Number of tests that run at once.
    #[serde(default = "one")]
    pub parallel: u32,
}

fn limit_s() -> u64 {
    30
}

fn one() -> u32 {
    1
}

impl GpuValidation {
    /// True when one of the commands runs the engine's tests.
    pub fn has_tests(&self) -> bool {
        self.commands().any(ValidationCommand::has_tests)
    }

    /// Returns the ids of all scenarios, in the order of the calls.
    pub fn scenarios(&self) -> impl Iterator<Item = &String> {
        self.calls.iter().flat_map(|call| &call.scenarios)
    }

    /// Returns the ids of the models that only commands use, in the order of the calls.
    pub fn models_of_commands(&self) -> impl Iterator<Item = &String> {
        let is_served = move |id: &&String| self.models.iter().any(|model| model.id == **id);
        self.commands()
            .filter_map(|command| command.model.as_ref())
            .filter(move |id| !is_served(id))
    }

    fn commands(&self) -> impl Iterator<Item = &ValidationCommand> {
        self.calls.iter().flat_map(|call| &call.commands)
    }
}

impl ValidationCommand {
    /// True when the command runs tests of the engine.
    fn has_tests(&self) -> bool {
        // Both placeholders of test programs end in this way: `{tests}` and `{cuda_tests}`.
        self.argv.iter().any(|word| word.ends_with("tests}"))
    }

    /// Returns what is wrong with the keys of the command together; `None` where they fit.
    fn problem(&self) -> Option<&'static str> {
        let has_model = self.argv.iter().any(|word| word == "{model}");
        match (self.has_tests(), self.each_test.is_some()) {
            // Run together, tests that were skipped would count as passed.
            (true, false) => return Some("runs tests, and has no `each_test`"),
            (false, true) => return Some("has `each_test`, and names no test program"),
            _ => {}
        }
        match (has_model, self.each_model, self.model.is_some()) {
            (_, true, true) => Some("has both `each_model` and `model`"),
            (true, false, false) => {
                Some("names `{model}`, and has neither `each_model` nor `model`")
            }
            (false, _, true) => Some("has a `model`, and does not name `{model}`"),
            _ => None,
        }
    }
}

/// File `bundle.json` of a GPU validation bundle: facts about the engine that lies beside it, and
/// the stages to run with that engine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ValidationBundle {
    /// Name of this schema, always `proof-box.v1`.
    pub schema: String,
    /// Id of the GPU validation: stem of its file under `suite/validations/`.
    // The key of a written file is never renamed, unlike the field.
    #[serde(rename = "proof")]
    pub validation: String,
    /// ULID of the campaign that the run records belong to.
    pub campaign: String,
    /// Condition that a machine must meet for the bundle to be meant for it; an empty table matches
    /// any machine.
    #[serde(rename = "match")]
    pub matches: TargetMatch,
    /// Engine that the bundle contains and validates.
    pub engine: EngineFacts,
    /// Version that the server of the bundle's engine must report; a run whose server reports
    /// another one fails.
    pub version: String,
    /// Server flags that the GPU validation adds to the command line of every server.
    pub flags: Vec<String>,
    /// Time limit for the command of a stage, or for the measurement of its scenario, in seconds;
    /// one that takes longer is ended, and its stage has failed.
    pub stage_limit_s: u64,
    /// Calls of the GPU validation in their order, each with its time limit; empty in older bundles.
    #[serde(default)]
    pub calls: Vec<BundleCall>,
    /// Seed of the generator (SplitMix64) by which the order of each model's scenarios was drawn,
    /// below 2^53; left out in older bundles.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub random_order_seed: Option<u64>,
    /// Stages of the GPU validation, in the order in which they run.
    pub stages: Vec<Stage>,
}

/// Call of a bundle.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BundleCall {
    /// Id of the call, by which its stages name it.
    pub id: String,
    /// Time limit of the call, in seconds.
    pub limit_s: u64,
}

/// Schema name of a bundle's `bundle.json`.
pub const BUNDLE_SCHEMA: &str = "proof-box.v1";

/// Stage of a GPU validation: one command or one measured run, with the id that names its files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Stage {
    /// Id of the stage, by which the files of its report and outputs are named.
    pub id: String,
    /// Id of the call that runs the stage; empty in older bundles.
    #[serde(default)]
    pub call: String,
    /// Command or scenario that the stage runs.
    #[serde(flatten)]
    pub work: StageWork,
}

/// Action of a GPU validation stage: a command, or a measured run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum StageWork {
    /// Command: the stage runs a command. It passes if the command ends with exit code 0 within the
    /// time limit and printed what `prints` says; with `each_test`, if no test fails and at least
    /// one runs.
    Command {
        /// Program and arguments of the stage's command, with placeholders such as `{model}`.
        argv: Vec<String>,
        /// Name of the program that the machine must have for the command; without it the stage is
        /// skipped. Null where the command needs none.
        needs: Option<String>,
        /// Id of the model whose path replaces `{model}` in the command; null for a command that
        /// names none.
        model: Option<String>,
        /// Text that the standard output of the command must have; left out where the exit code says
        /// all.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        prints: Option<String>,
        /// Limits where each test of the command's test program runs in a process of its own; left
        /// out for all other commands.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        each_test: Option<EachTest>,
    },
    /// Scenario: the stage measures a scenario, on the server of the stage before it if that serves
    /// the same model.
    Scenario {
        /// Id of the model that the stage serves.
        model: String,
        /// Number of tensor-parallel ranks of the stage's server.
        tp: u32,
        /// Id of the scenario that the stage measures.
        scenario: String,
        /// ULID of the stage's run, fixed in the bundle so that a repeated stage writes the same
        /// record.
        run: String,
        /// Position of the run among the scenario stages of the GPU validation, from 0.
        position: u32,
    },
}

/// Stage report `stages/<id>.json`: outcome and duration of a stage.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StageReport {
    /// Name of this schema, always `proof-stage.v1`.
    pub schema: String,
    /// Id of the stage that the report is about.
    pub stage: String,
    /// Outcome of the validation stage: done, failed or skipped.
    pub outcome: Outcome,
    /// Reason for a failure or skip, the numbers of tests that passed and that were skipped, or the
    /// output rate of a measured scenario with the reasons of its verdict; null for another command
    /// that passed.
    pub detail: Option<String>,
    /// Start of the stage, RFC 3339 in UTC.
    pub started_at: String,
    /// Duration of the stage, in microseconds.
    pub wall_us: u64,
}

/// Schema name of a stage report.
pub const STAGE_SCHEMA: &str = "proof-stage.v1";

/// Outcome of a GPU validation stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// Done: the stage of the GPU validation ran and passed.
    Done,
    /// Failed: the stage of the GPU validation ran and did not pass.
    Failed,
    /// Skipped: the machine lacks a program that the command of the stage needs, so that the stage
    /// was not started; or it lacks what each test of the stage needs.
    Skipped,
}

/// Builds the stages of a GPU validation in the order in which they run: in each call one or, for a
/// command that runs for each model, several for each command, then those of each model's
/// scenarios, in an order that is drawn with `seed` for each call and model. `next_id` returns a new
/// run id for each scenario stage.
pub fn stages(
    validation: &GpuValidation,
    seed: u64,
    mut next_id: impl FnMut() -> String,
) -> Vec<Stage> {
    let mut random = SplitMix64(seed);
    let mut stages = Vec::new();
    // Commands have no position: only scenario stages are runs.
    let mut position = 0;
    for call in &validation.calls {
        for command in &call.commands {
            stages.extend(of_command(validation, call, command));
        }
        for model in &validation.models {
            let mut scenarios: Vec<&String> = call.scenarios.iter().collect();
            random.shuffle(&mut scenarios);
            for scenario in scenarios {
                let work = StageWork::Scenario {
                    model: model.id.clone(),
                    tp: model.tp,
                    scenario: scenario.clone(),
                    run: next_id(),
                    position,
                };
                let id = format!("{scenario}-{}", model.id);
                stages.push(Stage { id, call: call.id.clone(), work });
                position += 1;
            }
        }
    }
    stages
}

/// Builds the stages of one command: one, or one for each model.
fn of_command(
    validation: &GpuValidation,
    call: &ValidationCall,
    command: &ValidationCommand,
) -> Vec<Stage> {
    let ValidationCommand { id, argv, needs, each_model, model, prints, each_test } = command;
    let stage = |id: String, model: Option<&String>| {
        let work = StageWork::Command {
            argv: argv.clone(),
            needs: needs.clone(),
            model: model.cloned(),
            prints: prints.clone(),
            each_test: *each_test,
        };
        Stage { id, call: call.id.clone(), work }
    };
    if !*each_model {
        return vec![stage(id.clone(), model.as_ref())];
    }
    let models = validation.models.iter().map(|model| &model.id);
    models.map(|model| stage(format!("{id}-{model}"), Some(model))).collect()
}

/// Parses a GPU validation file.
///
/// # Errors
/// The text is not TOML with the fields of a validation, keys of a command contradict each other,
/// or two calls or two stages have the same id.
pub fn parse(text: &str) -> Result<GpuValidation, InvalidFile> {
    let validation: GpuValidation = from_toml(text)?;
    let wrong = validation.commands().find_map(|command| Some((&command.id, command.problem()?)));
    if let Some((id, problem)) = wrong {
        return Err(InvalidFile(format!("command `{id}` {problem}")));
    }
    // Neither the order of stages nor the ids of runs play a part here.
    let stages = stages(&validation, 0, String::new);
    let stage = repeated(stages.iter().map(|stage| &stage.id)).map(|id| ("stages", id));
    let call = repeated(validation.calls.iter().map(|call| &call.id)).map(|id| ("calls", id));
    match stage.or(call) {
        None => Ok(validation),
        Some((what, id)) => Err(InvalidFile(format!("two {what} are called `{id}`"))),
    }
}

/// Returns the first of `ids` that occurred before.
fn repeated<'a>(mut ids: impl Iterator<Item = &'a String>) -> Option<&'a String> {
    let mut seen = BTreeSet::new();
    ids.find(|id| !seen.insert(*id))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"
        question = "Does it run?"
        match = {}
        stage_limit_s = 60
        models = [{ id = "a", tp = 1 }, { id = "b", tp = 2 }]
        [[calls]]
        id = "smoke"
        limit_s = 120
        commands = [
            { id = "tests", argv = ["{tests}"], each_test = { parallel = 4 } },
            { id = "bench", argv = ["{redline}", "bench", "{model}"], each_model = true },
        ]
        [[calls]]
        id = "scenarios"
        limit_s = 600
        scenarios = ["x", "y"]
    "#;

    #[test]
    fn commands_come_before_each_models_scenarios() {
        let validation = parse(TEXT).unwrap();
        let mut count = 0;
        let stages = stages(&validation, 0, || {
            count += 1;
            count.to_string()
        });
        let ids: Vec<&str> = stages.iter().map(|stage| stage.id.as_str()).collect();
        assert_eq!(ids[..3], ["tests", "bench-a", "bench-b"]);
        for (of_model, model) in ids[3..].chunks_exact(2).zip(["a", "b"]) {
            let mut of_model = of_model.to_vec();
            of_model.sort_unstable();
            assert_eq!(of_model, [format!("x-{model}"), format!("y-{model}")]);
        }
        let calls: Vec<&str> = stages.iter().map(|stage| stage.call.as_str()).collect();
        assert_eq!(calls, [vec!["smoke"; 3], vec!["scenarios"; 4]].concat());
        let StageWork::Scenario { run, position, tp, .. } = &stages[6].work else { panic!() };
        assert_eq!((run.as_str(), *position, *tp), ("4", 3, 2));
        assert!(validation.has_tests());
        let StageWork::Command { each_test, .. } = stages[0].work else { panic!() };
        assert_eq!(each_test, Some(EachTest { limit_s: 30, parallel: 4 }));
    }

    #[test]
    fn each_model_has_an_order_of_its_own_within_each_call() {
        let later = "[[calls]]\nid = \"sweep\"\nlimit_s = 600\nscenarios = [\"r1\", \"r2\"]\n";
        let validation = parse(&format!("{TEXT}\n{later}")).unwrap();
        let order = |seed| -> Vec<String> {
            stages(&validation, seed, String::new).into_iter().map(|stage| stage.id).collect()
        };
        assert_eq!(order(7), order(7), "the seed decides");
        let orders: BTreeSet<Vec<String>> = (0..400).map(order).collect();
        // Two models and two calls with two orders each.
        assert_eq!(orders.len(), 16);
        for order in &orders {
            let first_of_sweep = order.iter().position(|id| id.starts_with('r'));
            let last_before = order.iter().rposition(|id| id.starts_with(['x', 'y']));
            assert!(last_before < first_of_sweep, "{order:?}");
        }
    }

    #[test]
    fn keys_of_a_command_that_contradict_each_other_are_refused() {
        let refused = |from: &str, to: &str| {
            assert!(TEXT.contains(from));
            parse(&TEXT.replace(from, to)).unwrap_err().to_string()
        };
        for (from, to, problem) in [
            (", each_test = { parallel = 4 }", "", "`tests` runs tests, and has no `each_test`"),
            ("\"{tests}\"", "\"true\"", "`tests` has `each_test`, and names no test program"),
            ("each_model = true", "each_model = true, model = \"c\"", "`bench` has both"),
            (", each_model = true", "", "`bench` names `{model}`, and has neither"),
            ("{ parallel = 4 }", "{}, model = \"c\"", "`tests` has a `model`, and does not"),
        ] {
            let error = refused(from, to);
            assert!(error.contains(&format!("command {problem}")), "{error}");
        }
        let one = parse(&TEXT.replace("each_model = true", "model = \"c\"")).unwrap();
        assert_eq!(one.models_of_commands().collect::<Vec<_>>(), ["c"]);
        let served = parse(&TEXT.replace("each_model = true", "model = \"a\"")).unwrap();
        assert_eq!(served.models_of_commands().count(), 0);
        let StageWork::Command { model, .. } = &stages(&one, 0, String::new)[1].work else {
            panic!()
        };
        assert_eq!(model.as_deref(), Some("c"));
    }

    #[test]
    fn two_stages_or_calls_of_one_name_are_refused() {
        let error = parse(&TEXT.replace(r#"["x", "y"]"#, r#"["x", "x"]"#)).unwrap_err();
        assert!(error.to_string().contains("two stages are called `x-a`"), "{error}");
        let error = parse(&TEXT.replace("\"scenarios\"\n", "\"smoke\"\n")).unwrap_err();
        assert!(error.to_string().contains("two calls are called `smoke`"), "{error}");
    }
}
