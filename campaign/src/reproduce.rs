//! The command `reproduce`, which measures a committed run again on this machine and says whether the
//! figures of its record come out again; of results that others published it shows both figures. The
//! new runs are never committed.

mod cells;
mod published;

use std::fmt::Write as _;
use std::path::Path;

use judge::by_prefix;
use judge::reproduction::{self, CONFIDENCE_PCT, Fact, Prediction, Reproduction, Verdict};
use schema::exit::Exit;
use schema::metric::Unit;
use schema::run::{Kind, RunRecord};

use crate::campaign::{check_executor, measure};
use crate::cli::{Execution, ReleaseBench, Reproduce};
use crate::executor::job;
use crate::lock::Lock;
use crate::plan::decide::decide;
use crate::plan::revision::at_hand;
use crate::publish::Registry;
use crate::stop::{Stop, wrong_use};
use crate::world::World;

/// Runs the command `reproduce`: exit code 0 where the run is reproduced, 1 where it is not, 3 where
/// this machine is of another kind or nothing can be predicted.
///
/// # Errors
/// The run is not in the registry, was not measured there, or had server flags of its own; its
/// scenario has changed since; or its release cannot be built and measured here.
pub fn run(world: &World, flags: &Reproduce) -> Result<Exit, Stop> {
    check_executor(&uncommitted(flags))?;
    world.tools.check()?;
    let lock = || Lock::take(&world.places.lock(), world.pid);
    let _lock = (!flags.dry_run).then(lock).transpose()?;
    let path = Path::new(&flags.run);
    if path.exists() {
        return published::run(world, flags, path);
    }
    let registry = flags.registry.clone().unwrap_or_else(|| world.places.root.clone());
    let loaded = store::load(&[&Registry::new(world, &registry).results()])?;
    let standing: Vec<&RunRecord> = loaded.standing().map(|stored| &stored.record).collect();
    let record = named(&standing, &flags.run)?;
    let scenario = format!("{}@{}", record.scenario.id, record.scenario.rev);
    can_be_measured(world, record, &scenario)?;
    let bench = ReleaseBench {
        release: Some(record.engine.release.clone()),
        engine: record.engine.name.clone(),
        models: vec![record.model.id.clone()],
        scenarios: vec![scenario],
        ..uncommitted(flags)
    };
    let decided = decide(world, &bench)?;
    let campaign = decided.plan.campaign.clone();
    let Some(ended) = measure(world, &bench, decided)? else { return Ok(Exit::Well) };
    let new = job::records(&world.places.campaign(&campaign).staged())?;
    let found = reproduction::judge(record, &standing, &new);
    world.console.answer(&format!("\n{}", render(record, &found)))?;
    Ok(match found.verdict {
        // A run that failed here is no reproduction, whatever its other figures are.
        Verdict::Reproduced => ended,
        Verdict::NotReproduced => Exit::Worse,
        Verdict::OtherMachine | Verdict::NoInterval => Exit::Inconclusive,
    })
}

/// Returns the flags of a campaign whose records stay uncommitted: a reproduction answers its question,
/// and the registry keeps what its maintainers measure.
fn uncommitted(flags: &Reproduce) -> ReleaseBench {
    ReleaseBench {
        repeats: Some(flags.repeats),
        packages: flags.packages,
        servers: flags.servers,
        max_gpu_hours: flags.max_gpu_hours,
        execution: Execution {
            registry: flags.registry.clone(),
            executor: flags.executor.clone(),
            slurm_options: flags.slurm_options.clone(),
            ..Execution::default()
        },
        dry_run: flags.dry_run,
        yes: flags.yes,
        uncommitted: true,
        ..ReleaseBench::default()
    }
}

/// Returns the run whose id begins with `start`.
fn named<'a>(standing: &[&'a RunRecord], start: &str) -> Result<&'a RunRecord, Stop> {
    let start = start.to_ascii_uppercase();
    by_prefix(standing.iter().map(|run| (run.id.as_str(), *run)), &start).map_err(|count| {
        match count {
            0 => wrong_use!("no run in the registry has an id that begins with `{start}`")
                .with_hint(
                    "`cargo xtask list --runs` lists them; retracted ones are not reproduced",
                ),
            _ => wrong_use!("several runs have ids that begin with `{start}`"),
        }
    })
}

/// Checks that this clone can measure what the record measured: `scenario`, given as `id@rev`.
fn can_be_measured(world: &World, record: &RunRecord, scenario: &str) -> Result<(), Stop> {
    let id = &record.id;
    if record.kind != Kind::Measured {
        return Err(wrong_use!("run {id} was published elsewhere")
            .with_hint("`reproduce results/imports/...` measures the file of such a record here"));
    }
    if let Some(name) = record.server.as_ref().and_then(|server| server.variant.as_ref()) {
        return Err(wrong_use!("run {id} had the server flags of variant `{name}`")
            .with_hint("runs with the flags that a release has by default can be reproduced"));
    }
    let entry = at_hand(world, scenario)?;
    if record.scenario.file_sha256.as_ref().is_some_and(|hash| *hash != entry.file_sha256) {
        return Err(wrong_use!("the file of scenario `{scenario}` has changed since run {id}")
            .with_hint("check out a commit of the time at which the run was recorded"));
    }
    Ok(())
}

fn render(record: &RunRecord, found: &Reproduction) -> String {
    let (release, scenario) = (&record.engine.release, &record.scenario.id);
    let (model, hardware) = (&record.model.id, &record.hardware.id);
    let mut text = format!("Run {}: {release}, {scenario}, {model} on {hardware}\n\n", record.id);
    for fact in &found.facts {
        let _ = writeln!(text, "{:<14} {}", fact.name, compared(fact));
    }
    // Writing to a string cannot fail.
    let _ = writeln!(text, "\n{:<24} {:>24} {:>8} {:>12}", "Prediction", "interval", "±", "found");
    for figure in &found.figures {
        let _ = writeln!(text, "{}", row(figure));
    }
    let runs = found.figures.iter().map(|figure| figure.runs).max().unwrap_or(0);
    let _ = writeln!(
        text,
        "\nIntervals come from {runs} runs of the record's campaign; an unchanged engine falls into \
         all\nof them in {CONFIDENCE_PCT:.0} % of all reproductions.\n\nverdict  {}",
        found.verdict
    );
    text.trim_end().to_owned()
}

fn compared(fact: &Fact) -> String {
    let short = |hash: &Option<String>| {
        hash.as_deref().and_then(|hash| hash.get(..12)).unwrap_or("unknown").to_owned()
    };
    let recorded = short(&fact.recorded);
    if fact.recorded.is_none() {
        return "not in the record".to_owned();
    }
    if fact.is_equal() {
        return format!("equal      {recorded}");
    }
    let other = fact.found.iter().find(|found| **found != fact.recorded);
    format!("different  {recorded}, found {}", other.map_or_else(|| "nothing".to_owned(), short))
}

/// Formats a row of the table of predictions, within 80 columns.
fn row(figure: &Prediction) -> String {
    let (scale, unit) = match figure.metric.unit {
        Unit::Microseconds => (1e-3, " ms"),
        Unit::Bytes => (1e-6, " MB"),
        Unit::PerSecond => (1.0, "/s"),
        Unit::Count => (1.0, ""),
    };
    let number = |value: f64| {
        let value = value * scale;
        let digits = usize::from(value < 1000.0 && value != 0.0) * 2;
        format!("{value:.digits$}")
    };
    let interval = figure.interval.map_or_else(
        || "none".to_owned(),
        |(low, high)| format!("{} to {}", number(low), number(high)),
    );
    let half = figure.half_width_pct().map_or_else(String::new, |half| format!("{half:.1} %"));
    let value = figure.found.map_or_else(|| "unknown".to_owned(), number);
    let met = match figure.is_met() {
        Some(true) => "within",
        Some(false) => "outside",
        None => "",
    };
    let title = format!("{}{unit}", figure.metric.title);
    format!("{title:<24} {interval:>24} {half:>8} {value:>12}  {met}").trim_end().to_owned()
}
