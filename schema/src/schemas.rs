//! JSON Schemas of every kind of record and file, as generated into `schema/json/`.

use schemars::{Schema, schema_for};

/// Returns the name and JSON Schema of each kind of record or file, ordered by name.
pub fn all() -> Vec<(&'static str, Schema)> {
    vec![
        ("alternation.v1", schema_for!(crate::alternation::Alternation)),
        ("campaign.v1", schema_for!(crate::campaign::CampaignRecord)),
        ("dataset", schema_for!(crate::model::DatasetFile)),
        ("diff.v1", schema_for!(crate::comparison::Diff)),
        ("engine", schema_for!(crate::engine::EngineFile)),
        ("event.v1", schema_for!(crate::event::Event)),
        ("kernel.v1", schema_for!(crate::kernel::KernelRecord)),
        ("lab", schema_for!(crate::lab::LabFile)),
        ("manifest.v1", schema_for!(crate::manifest::Manifest)),
        ("measurement.v1", schema_for!(crate::measurement::Measurement)),
        ("model", schema_for!(crate::model::ModelFile)),
        ("plan.v1", schema_for!(crate::plan::PlanFile)),
        ("policy", schema_for!(crate::policy::PolicyFile)),
        ("probe.v1", schema_for!(crate::probe::Probe)),
        ("proof", schema_for!(crate::gpu_validation::GpuValidation)),
        ("proof-box.v1", schema_for!(crate::gpu_validation::ValidationBundle)),
        ("proof-stage.v1", schema_for!(crate::gpu_validation::StageReport)),
        ("run.v1", schema_for!(crate::run::RunRecord)),
        ("samples.v1", schema_for!(crate::samples::Line)),
        ("scenario", schema_for!(crate::scenario::Scenario)),
        ("search.v1", schema_for!(crate::search::SearchResult)),
        ("submission-manifest.v1", schema_for!(crate::submission::SubmissionManifest)),
        ("submission.v1", schema_for!(crate::submission::SubmissionBundle)),
        ("target", schema_for!(crate::target::Target)),
        ("trend.v1", schema_for!(crate::trend::Trend)),
        ("verdict", schema_for!(crate::verdict::Verdict)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_schema_lists_its_properties() {
        for (name, schema) in all() {
            let value = schema.to_value();
            let properties = value.get("properties").and_then(|p| p.as_object());
            let kinds = value.get("oneOf").and_then(|kinds| kinds.as_array());
            let listed = properties.is_some_and(|p| !p.is_empty())
                || kinds.is_some_and(|kinds| !kinds.is_empty());
            assert!(listed, "`{name}` has no properties");
        }
    }
}
