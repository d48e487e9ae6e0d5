//! Catalog: the records of a registry, grouped as pages need them. Reads through `store`; does not
//! know how records are shown.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Result, bail};
use judge::diff::cells::Cells;
use judge::facts::{Figures, figures};
use judge::finding::first_of;
use judge::groups::copies;
use judge::{Registry, Stored, newest, order, trend};
use schema::canonical::sha256_hex;
use schema::event::EventKind;
use schema::path::{config_slug, read_again};
use schema::run::{Check, Kind, PromptForm, RunRecord};
use schema::verdict;
use serde::{Deserialize, Serialize};

/// Run record with what events say about the run, and the findings of quality rules that are newer
/// than the record.
#[derive(Debug, Clone)]
pub struct Run<'a> {
    pub record: &'a RunRecord,
    /// Path of the run's record below the results folder that it was read from.
    pub path: &'a str,
    /// Index of the results folder that the run's record was read from; 0 is the registry.
    pub root: usize,
    /// Use of the run's figures in summaries: whole, partial (some requests failed), or none.
    pub figures: Figures,
    /// Reason for which the run was retracted; `None` for a run that was not.
    pub retracted: Option<String>,
    pub replaced_by: Option<String>,
    /// Annotations of the run, in the words of their authors; empty where there are none.
    pub notes: Vec<String>,
    /// Id of an earlier published result of the same report file whose every figure the run repeats;
    /// `None` where there is none.
    pub twin: Option<&'a str>,
    /// Findings of quality rules that are newer than the run's record, also of rules that the run
    /// keeps.
    pub later: Vec<Check>,
    /// True for a run of a GPU validation, which a campaign on the machine itself cannot repeat.
    pub is_validation: bool,
}

impl<'a> Run<'a> {
    /// Joins a stored run record with the events about it.
    fn new(
        stored: &'a Stored<RunRecord>,
        registry: &Registry,
        validations: &BTreeSet<&str>,
    ) -> Self {
        let record = &stored.record;
        let retraction = registry.retracted.get(&record.id);
        let notes = registry.events.iter().map(|event| &event.record).filter(|event| {
            event.kind == EventKind::Annotate && event.names(&record.id, &stored.path)
        });
        Self {
            record,
            path: &stored.path,
            root: stored.root,
            figures: figures(record, retraction.is_some()),
            retracted: retraction.map(|retraction| retraction.reason.clone()),
            replaced_by: retraction.and_then(|retraction| retraction.replaced_by.clone()),
            notes: notes.map(|event| event.reason.clone()).collect(),
            twin: None,
            later: judge::findings_later(record),
            is_validation: record
                .campaign
                .as_ref()
                .is_some_and(|slot| validations.contains(slot.id.as_str())),
        }
    }

    /// True when the run answered every request and its figures may enter a summary.
    pub fn is_usable(&self) -> bool {
        self.figures == Figures::Whole
    }

    /// Returns the findings of broken rules as they count today: those stored in the record, except
    /// of rules that others took the place of, followed by those of newer rules.
    pub fn broken(&self) -> impl Iterator<Item = &Check> {
        let all = self.record.checks.iter().chain(&self.later);
        all.filter(|check| !check.ok && judge::counts_today(check))
    }
}

/// Key of a release's page: engine, release and hardware.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ReleaseKey {
    /// Id of the engine that the page is about.
    pub engine: String,
    /// Release of the engine that the page is about, such as `v0.9.2`.
    pub release: String,
    /// Id of the hardware that the page is about.
    pub hardware: String,
}

impl ReleaseKey {
    /// Returns the key of the release page that run record `record` belongs to.
    pub fn of(record: &RunRecord) -> Self {
        Self::new(&record.engine.name, &record.engine.release, &record.hardware.id)
    }

    /// Returns the key of the page about `release` of `engine` on `hardware`.
    pub fn new(engine: &str, release: &str, hardware: &str) -> Self {
        let [engine, release, hardware] = [engine, release, hardware].map(str::to_owned);
        Self { engine, release, hardware }
    }
}

/// Key of a cell among the runs of one release on one hardware: model, configuration, scenario,
/// prompt form, kind of the record, and id of an imported record. Runs that are equal in all of
/// them are repeats of one another.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct CellKey {
    pub model: String,
    /// Configuration slug without its hash; for an imported record, the tensor-parallel size and
    /// the flags that its report states, except those in `ELSEWHERE`.
    pub config: String,
    /// Scenario of the cell, as `id@rev`.
    pub scenario: String,
    pub text_prompts: bool,
    pub kind: &'static str,
    /// Id of an imported record, because two published results are never repeats of one another;
    /// `None` for other records.
    pub block: Option<String>,
}

/// Runs of one cell, which are repeats of one another, ordered by id as the catalog's runs are.
#[derive(Debug, Clone)]
pub struct Cell<'a> {
    pub key: CellKey,
    pub runs: Vec<&'a Run<'a>>,
}

impl<'a> Cell<'a> {
    /// Returns the runs whose figures the cell's summaries are made from: those of the newest
    /// campaign that measured the cell and answered all requests, or, if there are none, those that
    /// lost some requests. Retracted and INVALID runs and runs without metrics are in neither.
    pub fn counted(&self) -> impl Iterator<Item = &'a Run<'a>> + '_ {
        newest::newest(&self.runs, |run| (run.record, run.figures)).into_iter()
    }

    /// Returns the runs of the campaign that the figures come from, also those without figures, and
    /// of later campaigns, in which the cell has none. Runs of earlier campaigns are history.
    pub fn current(&self) -> Vec<&'a Run<'a>> {
        newest::current(&self.runs, |run| (run.record, run.figures))
    }

    /// Returns the records of the runs whose figures the cell's summaries are made from, as
    /// [`Self::counted`] selects them.
    pub fn records(&self) -> impl Iterator<Item = &'a RunRecord> + '_ {
        self.counted().map(|run| run.record)
    }
}

/// Records of a registry, grouped and joined as the pages of the site need them.
#[derive(Debug)]
pub struct Catalog<'a> {
    /// Registry whose records the catalog groups.
    pub registry: &'a Registry,
    /// Runs of all results folders, also retracted ones, ordered by id, then by path. A retracted
    /// reading of a report that was read again is left out: its result is there once.
    pub runs: Vec<Run<'a>>,
    /// Duplicates among published results: maps the id of a result to the id of the first result of
    /// the same report file that has exactly the same figures.
    pub twins: BTreeMap<&'a str, &'a str>,
    /// Ids of the campaigns that are labs.
    labs: BTreeSet<&'a str>,
    /// Assignment of runs to the cells of trends, as `judge` computes it.
    cells: Cells<'a>,
}

/// Reads the results folders `roots`, each laid out like `results/`, into a registry.
///
/// # Errors
///
/// A folder or file cannot be read, or reading finds a breach of a storage rule, such as a record
/// that cannot be parsed.
pub fn read(roots: &[&Path]) -> Result<Registry> {
    let registry = store::load(roots)?;
    let lines = first_of(registry.findings.iter().filter(|finding| finding.breach));
    if !lines.is_empty() {
        let lines = lines.join("\n");
        bail!("the registry is unsound:\n{lines}\n  hint: `cargo xtask check` judges all of it");
    }
    Ok(registry)
}

impl<'a> Catalog<'a> {
    /// Builds the catalog of `registry`: joins each run with the events about it and with the
    /// findings of quality rules that are newer than its record.
    pub fn of(registry: &'a Registry) -> Self {
        let again = read_again(registry.runs.iter().map(|stored| stored.path.as_str()));
        let is_replaced = |stored: &&Stored<RunRecord>| {
            again.contains(stored.path.as_str())
                && registry.retracted.contains_key(&stored.record.id)
        };
        let runs = registry.runs.iter().filter(|stored| !is_replaced(stored));
        let campaigns = registry.campaigns.iter().map(|stored| &stored.record);
        let validations = campaigns.filter(|record| record.is_validation());
        let validations: BTreeSet<&str> = validations.map(|record| record.id.as_str()).collect();
        let run = |stored| Run::new(stored, registry, &validations);
        let mut runs: Vec<Run> = runs.map(run).collect();
        // Imported records of different sources can share an id, so the path decides among them.
        runs.sort_by(|a, b| a.record.id.cmp(&b.record.id).then_with(|| a.path.cmp(b.path)));
        let twins = copies(registry.standing());
        for run in &mut runs {
            run.twin = twins.get(run.record.id.as_str()).copied();
        }
        Self { registry, runs, twins, labs: registry.labs(), cells: trend::cells(registry) }
    }

    /// Returns, for each run, kernel, campaign and event record, the path of its file below the
    /// results folder that it was read from, and the index of that folder.
    pub fn files(&self) -> Vec<(&'a str, usize)> {
        fn of<T>(stored: &[Stored<T>]) -> impl Iterator<Item = (&str, usize)> {
            stored.iter().map(|stored| (stored.path.as_str(), stored.root))
        }
        let Registry { runs, kernels, campaigns, events, .. } = self.registry;
        of(runs).chain(of(kernels)).chain(of(campaigns)).chain(of(events)).collect()
    }

    /// Returns the runs whose record passes `test`, ordered by id.
    pub fn runs_where(&self, test: impl Fn(&RunRecord) -> bool) -> Vec<&Run<'a>> {
        self.runs.iter().filter(|run| test(run.record)).collect()
    }

    /// True when pages compare the run with runs of other engines: it neither repeats every figure
    /// of an earlier published result, nor belongs to the campaign of a lab.
    pub fn is_contender(&self, run: &RunRecord) -> bool {
        !self.twins.contains_key(run.id.as_str()) && !self.is_of_lab(run)
    }

    fn is_of_lab(&self, run: &RunRecord) -> bool {
        run.campaign.as_ref().is_some_and(|campaign| self.labs.contains(campaign.id.as_str()))
    }

    /// Returns the usable runs that a trend of `cell` is made of, ordered by id.
    pub fn runs_of_series(&self, cell: &verdict::Cell) -> Vec<&'a RunRecord> {
        let of_machine = |run: &&RunRecord| {
            (&run.engine.name, &run.hardware.id, &run.model.id)
                == (&cell.engine, &cell.hardware, &cell.model)
        };
        let runs = self.runs.iter().filter(|run| run.is_usable()).map(|run| run.record);
        let runs = runs.filter(of_machine).filter(|run| !self.is_of_lab(run));
        runs.filter(|run| self.cells.cell(run) == *cell).collect()
    }

    /// Returns every distinct name that `read` extracts from the catalog's run records, in natural
    /// order (`v0.9.2` before `v0.10.0`).
    pub fn names(&self, read: impl Fn(&'a RunRecord) -> &'a str) -> Vec<&'a str> {
        names(&self.runs.iter().collect::<Vec<_>>(), read)
    }

    /// Returns every scenario of the runs as `id@rev`, in natural order.
    pub fn scenarios(&self) -> Vec<String> {
        let mut names: Vec<String> = self.runs.iter().map(|run| scenario(run.record)).collect();
        names.sort_by(|a, b| order::natural(a, b));
        names.dedup();
        names
    }

    /// Returns every pair of a model and a hardware that has runs, in natural order.
    pub fn places(&self) -> Vec<(&'a str, &'a str)> {
        let place = |run: &Run<'a>| (run.record.model.id.as_str(), run.record.hardware.id.as_str());
        let mut places: Vec<_> = self.runs.iter().map(place).collect();
        places.sort_by(|a, b| order::natural(a.0, b.0).then_with(|| order::natural(a.1, b.1)));
        places.dedup();
        places
    }

    /// Groups runs by engine, release and hardware, without runs of labs, whose pages show them.
    /// Where only labs measured a release on a hardware, their runs without a variant of the flags
    /// stay, or all of their runs if each has a variant.
    pub fn releases(&self) -> BTreeMap<ReleaseKey, Vec<&Run<'a>>> {
        let mut releases: BTreeMap<ReleaseKey, Vec<&Run<'a>>> = BTreeMap::new();
        for run in &self.runs {
            releases.entry(ReleaseKey::of(run.record)).or_default().push(run);
        }
        for runs in releases.values_mut() {
            let of_own_flags =
                |run: &RunRecord| run.server.as_ref().is_none_or(|server| server.variant.is_none());
            prefer(runs, |run| !self.is_of_lab(run) || of_own_flags(run));
            prefer(runs, |run| !self.is_of_lab(run));
        }
        releases
    }
}

/// Keeps only the runs that pass `test`; keeps all runs if none passes.
fn prefer(runs: &mut Vec<&Run>, test: impl Fn(&RunRecord) -> bool) {
    if runs.iter().any(|run| test(run.record)) {
        runs.retain(|run| test(run.record));
    }
}

/// Returns every distinct name that `read` extracts from the records of `runs`, in natural order.
pub fn names<'a>(runs: &[&Run<'a>], read: impl Fn(&'a RunRecord) -> &'a str) -> Vec<&'a str> {
    let mut names: Vec<&str> = runs.iter().map(|run| read(run.record)).collect();
    names.sort_by(|a, b| order::natural(a, b));
    names.dedup();
    names
}

/// Returns source and file of the imported record at `path`, which is
/// `imports/<source>/<hash>/<block>.json`; `None` for a shorter path.
pub fn report_of(path: &str) -> Option<(String, String)> {
    let mut parts = path.split('/').skip(1).map(str::to_owned);
    Some((parts.next()?, parts.next()?))
}

/// Returns `items` in their order, each once.
pub fn distinct<T: PartialEq>(items: impl IntoIterator<Item = T>) -> Vec<T> {
    let mut found = Vec::new();
    for item in items {
        if !found.contains(&item) {
            found.push(item);
        }
    }
    found
}

/// Groups `runs` into cells, in the order in which pages show them.
pub fn cells<'a>(runs: &[&'a Run<'a>]) -> Vec<Cell<'a>> {
    let mut cells: BTreeMap<CellKey, Vec<&'a Run<'a>>> = BTreeMap::new();
    for run in runs {
        let record = run.record;
        let key = CellKey {
            model: record.model.id.clone(),
            config: config(record),
            scenario: scenario(record),
            text_prompts: record.scenario.prompt_form == Some(PromptForm::Text),
            kind: record.kind.name(),
            block: (record.kind == Kind::Imported).then(|| record.id.clone()),
        };
        cells.entry(key).or_default().push(run);
    }
    let mut cells: Vec<Cell> = cells.into_iter().map(|(key, runs)| Cell { key, runs }).collect();
    cells.sort_by(|a, b| {
        order::natural(&a.key.model, &b.key.model)
            .then_with(|| order::natural(&a.key.config, &b.key.config))
            .then_with(|| order::scenarios(&a.key.scenario, &b.key.scenario))
            .then_with(|| a.key.cmp(&b.key))
    });
    cells
}

/// Groups `runs` by engine, release and hardware, and returns only the groups of the latest release
/// (among `runs`) of each engine on each hardware.
pub fn latest_releases<'a, 'b>(runs: &[&'a Run<'b>]) -> BTreeMap<ReleaseKey, Vec<&'a Run<'b>>> {
    let mut groups: BTreeMap<ReleaseKey, Vec<&'a Run<'b>>> = BTreeMap::new();
    for run in runs {
        groups.entry(ReleaseKey::of(run.record)).or_default().push(run);
    }
    let mut releases: BTreeMap<(&str, &str), BTreeSet<&str>> = BTreeMap::new();
    for RunRecord { engine, hardware, .. } in runs.iter().map(|run| run.record) {
        releases.entry((&engine.name, &hardware.id)).or_default().insert(&engine.release);
    }
    let newest: BTreeMap<_, _> =
        releases.into_iter().map(|(of, releases)| (of, order::newest(releases))).collect();
    groups.retain(|key, _| newest[&(&*key.engine, &*key.hardware)] == Some(&key.release));
    groups
}

/// Returns the scenario of `record` as pages name it: `id@rev`.
pub fn scenario(record: &RunRecord) -> String {
    format!("{}@{}", record.scenario.id, record.scenario.rev)
}

/// Returns the configuration of `record` as one text, whose parts are separated by spaces.
pub fn config(record: &RunRecord) -> String {
    config_parts(record).join(" ")
}

/// Returns the configuration of `record` in parts: its slug alone, or, for an imported record, the
/// tensor-parallel size and the flags with two hyphens that the report states, each with its value,
/// except those in `ELSEWHERE`.
pub fn config_parts(record: &RunRecord) -> Vec<String> {
    if record.kind != Kind::Imported {
        return vec![config_slug(record)];
    }
    let server = record.server.as_ref();
    let ranks = server.and_then(|server| server.tp);
    let mut parts: Vec<String> = ranks.map(|tp| format!("tp{tp}")).into_iter().collect();
    let argv = server.and_then(|server| server.argv.as_deref()).unwrap_or_default();
    // Words before the first flag are the program and its subcommand.
    let mut rest = argv.iter().skip_while(|word| !word.starts_with('-')).peekable();
    while let Some(word) = rest.next() {
        let flag = word.split('=').next().unwrap_or(word);
        let value = rest.next_if(|next| !word.contains('=') && !next.starts_with('-'));
        if !flag.starts_with("--") || ELSEWHERE.contains(&flag) {
            continue;
        }
        parts.push(value.map_or_else(|| word.clone(), |value| format!("{word} {value}")));
    }
    if parts.is_empty() {
        parts.push("flags not stated".to_owned());
    }
    parts
}

/// Flags that are left out of the configuration of an imported record, because they name what is
/// served or where, not how, or because the page shows them elsewhere.
const ELSEWHERE: [&str; 8] = [
    "--model",
    "--model-path",
    "--served-model-name",
    "--host",
    "--port",
    "--tp",
    "--tensor-parallel-size",
    "--server-port",
];

/// Computes a SHA-256 over the sorted distinct record hashes, one per line, that identifies the
/// data behind a page.
pub fn records_sha256<'a>(hashes: impl Iterator<Item = &'a str>) -> String {
    let mut hashes: Vec<&str> = hashes.collect();
    hashes.sort_unstable();
    hashes.dedup();
    sha256_hex(hashes.join("\n").as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use samples::registry as sample;
    use schema::run::Status;

    #[test]
    fn a_cell_never_mixes_whole_runs_with_partial_ones() {
        let registry = sample::registry(sample::records());
        let catalog = Catalog::of(&registry);
        let runs: Vec<_> = catalog.runs.iter().collect();
        let partial = |run: &&Run| run.record.status == Status::Partial;
        let mut seen = 0;
        for cell in cells(&runs) {
            if cell.runs.iter().any(partial) {
                seen += 1;
                assert!(cell.counted().all(Run::is_usable), "{:?}", cell.key);
            }
        }
        assert!(seen > 0, "the made-up registry has a partial run");
    }

    #[test]
    fn a_cell_takes_its_figures_from_the_newest_campaign_alone() {
        let results = Path::new(env!("CARGO_MANIFEST_DIR")).join("../results");
        let registry = store::load(&[&results]).expect("readable records");
        let catalog = Catalog::of(&registry);
        let campaigns = |runs: &[&RunRecord]| -> BTreeSet<String> {
            let slots = runs.iter().filter_map(|run| run.campaign.as_ref());
            slots.map(|slot| slot.id.clone()).collect()
        };
        let mut of_several = 0;
        for runs in catalog.releases().values() {
            for cell in cells(runs) {
                let counted = campaigns(&cell.records().collect::<Vec<_>>());
                let all = campaigns(&cell.runs.iter().map(|run| run.record).collect::<Vec<_>>());
                assert!(counted.len() <= 1, "{:?} pools {counted:?}", cell.key);
                assert_eq!(counted.last(), all.last(), "{:?}", cell.key);
                of_several += usize::from(all.len() > 1);
            }
        }
        assert!(of_several >= 4, "{of_several} cells were measured by several campaigns");
    }
}
