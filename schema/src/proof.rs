//! A proof: what a release is to show on a machine that may have no network and no compiler, in
//! stages that can be carried out one at a time.

use std::collections::BTreeSet;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::run::EngineFacts;
use crate::target::{TargetMatch, TargetModel};

/// `suite/proofs/<id>.toml`. The id is the file's stem.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Proof {
    /// What this file answers.
    pub question: String,
    /// The machine that it is for; the empty one takes any.
    #[serde(rename = "match")]
    pub matches: TargetMatch,
    /// Flags of the server beside those of every launch.
    #[serde(default)]
    pub flags: Vec<String>,
    /// What a stage may take; then it is ended and has failed.
    pub stage_limit_s: u64,
    /// What is served.
    pub models: Vec<TargetModel>,
    /// Scenario ids: each is a stage for each model.
    pub scenarios: Vec<String>,
    /// What is run before the scenarios.
    #[serde(default)]
    pub commands: Vec<ProofCommand>,
}

/// A program whose exit code is an answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ProofCommand {
    /// Name of the stage, or the beginning of it where there is one for each model.
    pub id: String,
    /// `{redline}`, `{tests}` (the engine's own tests) and `{model}` are filled in.
    pub argv: Vec<String>,
    /// A program of the machine without which the stage is skipped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub needs: Option<String>,
    /// Whether it is run for each model.
    #[serde(default)]
    pub each_model: bool,
}

impl Proof {
    /// True when a command runs the engine's tests.
    #[must_use]
    pub fn has_tests(&self) -> bool {
        self.commands.iter().flat_map(|command| &command.argv).any(|word| word == "{tests}")
    }
}

/// `box.json`: what lies beside it, and what is to be done with that.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ProofBox {
    /// Always `proof-box.v1`.
    pub schema: String,
    /// Id of the proof.
    pub proof: String,
    /// ULID of the campaign that its records belong to.
    pub campaign: String,
    /// The machine that it is for.
    #[serde(rename = "match")]
    pub matches: TargetMatch,
    /// What is shown.
    pub engine: EngineFacts,
    /// What the server must say that it is.
    pub version: String,
    /// Of the server, beside those of every launch.
    pub flags: Vec<String>,
    /// What a stage may take.
    pub stage_limit_s: u64,
    /// In their order.
    pub stages: Vec<Stage>,
}

/// The schema name of a box.
pub const BOX_SCHEMA: &str = "proof-box.v1";

/// One stage: it is done as a whole, or again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Stage {
    /// Name of its folder and of its report.
    pub id: String,
    /// What is done.
    #[serde(flatten)]
    pub work: StageWork,
}

/// What a stage does: a program's command, or a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum StageWork {
    /// A program is run.
    Command {
        /// Program and arguments, with what is to be filled in.
        argv: Vec<String>,
        /// A program of the machine without which the stage is skipped.
        needs: Option<String>,
        /// What `{model}` is, for a command of each model.
        model: Option<String>,
    },
    /// A server is launched and measured.
    Scenario {
        /// The model's id.
        model: String,
        /// Tensor-parallel ranks.
        tp: u32,
        /// The scenario's id.
        scenario: String,
        /// ULID of the run: a stage that is done again makes the same record.
        run: String,
        /// Place in the order of runs.
        position: u32,
    },
}

/// `stages/<id>.json`: how a stage went.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StageReport {
    /// Always `proof-stage.v1`.
    pub schema: String,
    /// Its id.
    pub stage: String,
    /// How it ended.
    pub outcome: Outcome,
    /// Why it failed or was skipped, or what a scenario measured.
    pub detail: Option<String>,
    /// RFC 3339, UTC.
    pub started_at: String,
    /// How long it took.
    pub wall_us: u64,
}

/// The schema name of a report.
pub const STAGE_SCHEMA: &str = "proof-stage.v1";

/// How a stage ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// As it should.
    Done,
    /// Otherwise.
    Failed,
    /// It was not begun.
    Skipped,
}

/// The stages of a proof in their order: commands, then each model's scenarios.
#[must_use]
pub fn stages(proof: &Proof, mut next_id: impl FnMut() -> String) -> Vec<Stage> {
    let mut stages = Vec::new();
    for command in &proof.commands {
        let ProofCommand { id, argv, needs, each_model } = command;
        let models: Vec<Option<&str>> = match each_model {
            true => proof.models.iter().map(|model| Some(model.id.as_str())).collect(),
            false => vec![None],
        };
        for model in models {
            let work = StageWork::Command {
                argv: argv.clone(),
                needs: needs.clone(),
                model: model.map(str::to_owned),
            };
            let id = model.map_or(id.clone(), |model| format!("{id}-{model}"));
            stages.push(Stage { id, work });
        }
    }
    let mut position = 0;
    for model in &proof.models {
        for scenario in &proof.scenarios {
            let work = StageWork::Scenario {
                model: model.id.clone(),
                tp: model.tp,
                scenario: scenario.clone(),
                run: next_id(),
                position,
            };
            stages.push(Stage { id: format!("{scenario}-{}", model.id), work });
            position += 1;
        }
    }
    stages
}

/// Reads a proof's file.
///
/// # Errors
/// The text is not TOML of this shape, or two stages have one name.
pub fn parse(text: &str) -> Result<Proof, Box<toml::de::Error>> {
    let proof: Proof = toml::from_str(text)?;
    let mut ids = BTreeSet::new();
    let twice = stages(&proof, String::new).into_iter().find(|stage| !ids.insert(stage.id.clone()));
    match twice {
        None => Ok(proof),
        Some(stage) => {
            let message = format!("two stages are called `{}`", stage.id);
            Err(Box::new(serde::de::Error::custom(message)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"
        question = "Does it run?"
        match = {}
        stage_limit_s = 60
        models = [{ id = "a", tp = 1 }, { id = "b", tp = 2 }]
        scenarios = ["x", "y"]
        commands = [
            { id = "tests", argv = ["{tests}"] },
            { id = "bench", argv = ["{redline}", "bench", "{model}"], each_model = true },
        ]
    "#;

    #[test]
    fn commands_come_before_each_models_scenarios() {
        let proof = parse(TEXT).unwrap();
        let mut count = 0;
        let stages = stages(&proof, || {
            count += 1;
            count.to_string()
        });
        let ids: Vec<&str> = stages.iter().map(|stage| stage.id.as_str()).collect();
        assert_eq!(ids.join(" "), "tests bench-a bench-b x-a y-a x-b y-b");
        let StageWork::Scenario { run, position, tp, .. } = &stages[6].work else { panic!() };
        assert_eq!((run.as_str(), *position, *tp), ("4", 3, 2));
        assert!(proof.has_tests());
    }

    #[test]
    fn two_stages_of_one_name_are_refused() {
        let error = parse(&TEXT.replace(r#"["x", "y"]"#, r#"["x", "x"]"#)).unwrap_err();
        assert!(error.to_string().contains("two stages are called `x-a`"), "{error}");
    }
}
