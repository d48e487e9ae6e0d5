//! Questions that the suite's scenarios answer (the first key of each file), and the labs that ask
//! about a model, both compiled into this program. Knows ids, not records.

use schema::scenario::Scenario;

// Tables `SCENARIOS` and `LABS` of id and text of each file, which the build script writes.
include!(concat!(env!("OUT_DIR"), "/suite.rs"));

/// Returns the id of the suite's lab that asks about `model` on `target`; `None` where there is
/// none.
pub fn lab_of(model: &str, target: &str) -> Option<&'static str> {
    let asks = |text: &str| {
        schema::lab::parse(text).is_ok_and(|lab| lab.model == model && lab.target == target)
    };
    LABS.iter().find(|(_, text)| asks(text)).map(|(id, _)| *id)
}

/// Returns the question that scenario `id` answers at revision `rev`; `None` for a scenario that is
/// not the suite's, or a revision that its file no longer has.
pub fn of(id: &str, rev: u32) -> Option<String> {
    let (_, text) = SCENARIOS.iter().find(|(known, _)| *known == id)?;
    let file = Scenario::parse(text).ok()?;
    (file.rev == rev).then_some(file.question)
}

/// True when the suite has a scenario with the id of `scenario` (given as `id@rev`), at any
/// revision.
pub fn is_known(scenario: &str) -> bool {
    let id = scenario.split('@').next().unwrap_or(scenario);
    SCENARIOS.iter().any(|(known, _)| *known == id)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;

    /// Returns, for tests, the names without extension of the TOML files in `folder` below
    /// `suite/`.
    fn stems(folder: &str) -> BTreeSet<String> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../suite").join(folder);
        let entries = std::fs::read_dir(folder).expect("a folder of the suite");
        entries
            .map(|entry| entry.expect("an entry").path())
            .filter(|path| path.extension().is_some_and(|extension| extension == "toml"))
            .map(|path| path.file_stem().expect("a name").to_string_lossy().into_owned())
            .collect()
    }

    #[test]
    fn every_lab_of_the_suite_is_known() {
        let known: BTreeSet<String> = LABS.iter().map(|(id, _)| (*id).to_owned()).collect();
        assert_eq!(known, stems("labs"));
        assert_eq!(lab_of("qwen3.5-9b", "h100-80g"), Some("h100-qwen3.5-9b"));
        assert_eq!(lab_of("qwen3.5-9b", "cpu"), None);
    }

    #[test]
    fn every_scenario_of_the_suite_has_its_question() {
        let on_disk = stems("scenarios");
        let known: BTreeSet<String> = SCENARIOS.iter().map(|(id, _)| (*id).to_owned()).collect();
        assert_eq!(known, on_disk);
        for id in on_disk {
            let asked = (1..=9).find_map(|rev| of(&id, rev));
            assert!(asked.is_some_and(|question| question.ends_with('?')), "`{id}`");
        }
        assert_eq!(of("sharegpt", 0), None, "no file has revision 0");
    }
}
