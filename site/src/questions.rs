//! What each scenario of the suite asks: the first key of its file, as it was when this program
//! was built. Knows ids, not records.

use schema::scenario::Scenario;

macro_rules! scenarios {
    ($($id:literal),* $(,)?) => {
        /// Every scenario of the suite: its id and its file.
        const SCENARIOS: &[(&str, &str)] =
            &[$(($id, include_str!(concat!("../../suite/scenarios/", $id, ".toml")))),*];
    };
}

scenarios![
    "balanced",
    "balanced-lite",
    "balanced-quarter",
    "lab-generation-heavy",
    "lab-generation-heavy-lite",
    "lab-long-context",
    "lab-long-context-lite",
    "lab-sharegpt",
    "lab-sharegpt-lite",
    "lab-throughput",
    "lab-throughput-lite",
    "ladder-c1",
    "ladder-c16",
    "ladder-c256",
    "ladder-c4",
    "ladder-c64",
    "ladder-lite-c1",
    "ladder-lite-c16",
    "ladder-lite-c4",
    "long-input",
    "long-input-lite",
    "long-input-quarter",
    "sharegpt",
    "sharegpt-lite",
    "sharegpt-quarter",
    "thinking",
    "thinking-lite",
    "thinking-quarter",
];

/// The question that scenario `id` answers at `rev`; none for a scenario that is not the suite's,
/// or a revision that its file no longer has.
#[must_use]
pub fn of(id: &str, rev: u32) -> Option<String> {
    let (_, text) = SCENARIOS.iter().find(|(known, _)| *known == id)?;
    let file = Scenario::parse(text).ok()?;
    (file.rev == rev).then_some(file.question)
}

/// True where the suite has a scenario by the name of `scenario`, which is `id@rev`, at any revision.
#[must_use]
pub fn is_known(scenario: &str) -> bool {
    let id = scenario.split('@').next().unwrap_or(scenario);
    SCENARIOS.iter().any(|(known, _)| *known == id)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;

    #[test]
    fn every_scenario_of_the_suite_has_its_question() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../suite/scenarios");
        let entries = std::fs::read_dir(folder).expect("the suite's scenarios");
        let on_disk: BTreeSet<String> = entries
            .map(|entry| entry.expect("an entry").path())
            .filter(|path| path.extension().is_some_and(|extension| extension == "toml"))
            .map(|path| path.file_stem().expect("a name").to_string_lossy().into_owned())
            .collect();
        let known: BTreeSet<String> = SCENARIOS.iter().map(|(id, _)| (*id).to_owned()).collect();
        assert_eq!(known, on_disk, "the table in questions.rs and suite/scenarios must agree");
        for id in on_disk {
            let asked = (1..=9).find_map(|rev| of(&id, rev));
            assert!(asked.is_some_and(|question| question.ends_with('?')), "`{id}`");
        }
        assert_eq!(of("sharegpt", 0), None, "no file has revision 0");
    }
}
