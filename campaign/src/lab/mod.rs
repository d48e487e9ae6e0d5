//! The command `lab`: one campaign whose runs are planned round by round until the registry can
//! recommend a server configuration. It judges no figures: the registry decides the next round and
//! the conclusion. Refuses, before anything is built, flags that the engine's own command line sets
//! already or that contradict each other, and profiles longer than the model's context.

pub(crate) mod explore;
mod plan;

use std::collections::BTreeSet;
use std::time::Duration;

use judge::diff::policy::{Standard, standard};
use schema::engine::EngineFile;
use schema::exit::Exit;
use schema::lab::{LabFile, flag_name};

use crate::build::variants::Origin;
use crate::campaign::{self, ASK_BEYOND, check_executor, check_scheduler, consent, executor_of};
use crate::cli::Lab;
use crate::console::about;
use crate::executor::journal::opposite;
use crate::lock::Lock;
use crate::plan::decide::{Decided, decide};
use crate::server_spec::ServerSettings;
use crate::stop::{Stop, wrong_use};
use crate::world::World;

/// Runs the command `lab`: plans a lab and carries it out, or resumes one.
///
/// # Errors
/// Wrong use, a machine or clone that is unfit or in use by another campaign, a build, download,
/// tool or file operation that fails, or an interruption. An engine that fails in a run is no
/// error: its failure becomes a record.
pub fn run(world: &World, flags: &Lab) -> Result<Exit, Stop> {
    world.tools.check()?;
    let lock = || Lock::take(&world.places.lock(), world.pid);
    let _lock = (!flags.dry_run).then(lock).transpose()?;
    if flags.resume {
        return resume(world, flags);
    }
    check_scheduler(world, &flags.execution, flags.dry_run)?;
    let source = plan::read(world, &flags.name)?;
    let bench = source.campaign(flags);
    check_executor(&bench)?;
    let mut decided = decide(world, &bench)?;
    refuse(world, &source.lab, &decided)?;
    let Standard { file: policy, quoted } = standard();
    let outline = judge::lab::outline(&source.lab, &policy, &quoted);
    let lab = source.prepared(flags, outline, &mut decided)?;
    let executor = plan::executor(&flags.execution, &world.slurm_env, source.lab.profiles.len());
    let plan = plan::render(&lab, &decided, (source.budget(flags), executor));
    world.console.answer(plan.trim_end())?;
    if flags.dry_run {
        return Ok(Exit::Well);
    }
    let executor = executor_of(world, &bench, &decided.plan.campaign)?;
    executor.preflight()?;
    let most = u64::from(lab.runs_most()).saturating_mul(lab.each_us);
    // The largest possible duration counts, since the lab may need all of its rounds.
    if !flags.yes && Duration::from_micros(most) > ASK_BEYOND {
        consent(&about(most), "fewer `--max-runs` or `--max-hours`", &world.interrupt)?;
    }
    campaign::begin(world, &bench, (decided, Some(lab)), &*executor)
}

/// Resumes the latest unfinished campaign of the lab that the command line names.
fn resume(world: &World, flags: &Lab) -> Result<Exit, Stop> {
    let id = plan::id(&flags.name);
    let latest = campaign::latest_unfinished(world, |ready| {
        ready.lab.as_ref().is_some_and(|lab| lab.asked.id == id)
    })?;
    let campaign = latest.ok_or_else(|| {
        wrong_use!("lab `{id}` has no unfinished campaign")
            .with_hint("leave `--resume` out to start one")
    })?;
    campaign::resume(world, (&campaign, &format!("lab {id}, campaign {campaign}")), None)
}

/// Refuses a lab whose servers could not be started with its flags and profiles.
///
/// # Errors
/// A flag or a profile is refused, and the message says which and why; or the model's file is
/// missing or invalid.
fn refuse(world: &World, lab: &LabFile, decided: &Decided) -> Result<(), Stop> {
    for (engine, wanted) in lab.engines.iter().zip(&decided.wanted) {
        let settings = decided.plan.cells.first().map(|cell| &cell.settings);
        let file = &wanted.engine.file;
        let image = file.launch.image.as_ref();
        let image = image.filter(|_| matches!(wanted.origin, Origin::Image { .. }));
        let argv = image.map_or(&file.launch.argv, |image| &image.argv);
        let own = set_at_start(file, argv, settings);
        check_flags(lab, &engine.id, &own)?;
    }
    let model = world.catalog.model(&lab.model)?.context_tokens();
    for (cell, entry) in decided.plan.cells.iter().zip(&decided.scenarios) {
        let limits = model.into_iter().chain(cell.settings.context_tokens);
        let Some(longest) = entry.scenario.workload.tokens_max() else { continue };
        if let Some(limit) = limits.min().filter(|limit| longest > *limit) {
            let (profile, model) = (&entry.id, &lab.model);
            return Err(wrong_use!(
                "profile `{profile}` has sequences of {longest} tokens, and `{model}` takes {limit}"
            )
            .with_hint("leave the profile out, or name a model of a longer context"));
        }
    }
    Ok(())
}

/// Name of what states a list of server flags, such as an engine of the lab, for error messages;
/// and the flags.
type Given<'a> = (String, &'a [String]);

/// Checks the flags that a lab gives an engine whose command line sets the flags `own` in every run.
///
/// # Errors
/// A flag is refused, and the message says which and why.
fn check_flags(lab: &LabFile, engine: &str, own: &BTreeSet<&str>) -> Result<(), Stop> {
    let of_engine = lab.engines.iter().filter(|other| other.id == engine);
    let mut axes: Vec<Vec<Given<'_>>> = of_engine
        .filter(|engine| !engine.flags.is_empty())
        .map(|engine| vec![(format!("engine `{}`", engine.id), engine.flags.as_slice())])
        .collect();
    // An option replaces an engine flag of the same name, but does not remove its opposite.
    for axis in lab.axes.iter().filter(|axis| axis.engine == engine) {
        let said = axis.options.iter().map(|option| {
            let who = format!("option `{}` of axis `{}`", option.name, axis.name);
            (who, option.flags.as_slice())
        });
        axes.push(said.collect());
    }
    for (who, flags) in axes.iter().flatten() {
        check_words(who, flags)?;
        let mut names = flags.iter().filter_map(|word| flag_name(word));
        if let Some(name) = names.find(|name| own.contains(name)) {
            return Err(wrong_use!(
                "{who} sets `{name}`, which the command line of `{engine}` sets already"
            )
            .with_hint("leave it out"));
        }
    }
    for (index, axis) in axes.iter().enumerate() {
        let others = || axes[index + 1..].iter().flatten();
        for (first, second) in axis.iter().flat_map(|said| others().map(move |o| (said, o))) {
            if let Some((name, denied)) = contradiction(first.1, second.1) {
                return Err(wrong_use!(
                    "{} and {} contradict each other: `{name}`, `{denied}`",
                    first.0,
                    second.0
                )
                .with_hint("options of one axis exclude each other: make them one axis"));
            }
        }
    }
    Ok(())
}

/// Checks a list of server flags: it begins with a flag, repeats none, and does not contain both a
/// flag and its opposite.
fn check_words(who: &str, flags: &[String]) -> Result<(), Stop> {
    if let Some(word) = flags.first().filter(|word| flag_name(word).is_none()) {
        return Err(wrong_use!("{who} begins with `{word}`, which is no flag"));
    }
    let mut seen = BTreeSet::new();
    if let Some(name) = flags.iter().filter_map(|word| flag_name(word)).find(|n| !seen.insert(*n)) {
        return Err(wrong_use!("{who} sets `{name}` twice"));
    }
    match contradiction(flags, flags) {
        Some((name, denied)) => Err(wrong_use!("{who} sets both `{name}` and `{denied}`")),
        None => Ok(()),
    }
}

/// Returns the first flag of `first` whose opposite is in `second`, with that opposite; `None` if
/// there is none.
fn contradiction<'a>(first: &'a [String], second: &[String]) -> Option<(&'a str, String)> {
    let said: BTreeSet<&str> = second.iter().filter_map(|word| flag_name(word)).collect();
    let mut names = first.iter().filter_map(|word| flag_name(word));
    names.find_map(|name| {
        let denied = opposite(name);
        said.contains(denied.as_str()).then_some((name, denied))
    })
}

/// Returns the names of the flags that the engine's own command line, which begins with `argv`, sets in
/// every run, so that a lab may not.
fn set_at_start<'a>(
    file: &'a EngineFile,
    argv: &'a [String],
    asked: Option<&ServerSettings>,
) -> BTreeSet<&'a str> {
    let launch = &file.launch;
    let settings = &launch.settings;
    let is_requested = |has: fn(&ServerSettings) -> bool| asked.is_some_and(has);
    let said = [
        (&settings.tp, true),
        (&settings.host, true),
        (&settings.port, true),
        (&settings.seed, is_requested(|asked| asked.seed.is_some())),
        (&settings.context, is_requested(|asked| asked.context_tokens.is_some())),
        (&settings.memory, is_requested(|asked| asked.memory_percent.is_some())),
    ];
    let said =
        said.into_iter().filter(|(_, said)| *said).filter_map(|(setting, _)| setting.as_ref());
    // A lab that set one of these would change how runs are started or measured.
    let words = argv.iter().chain(&launch.observe).chain(&launch.random_weights);
    let words = words.chain(said.flat_map(|setting| &setting.flags));
    words.filter_map(|word| flag_name(word)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(axes: &str, engine_flags: &str) -> String {
        let engine = "\
            title = \"E\"\n[launch]\nargv = [\"e\", \"--port\", \"{port}\", \"-m\", \"{model}\"]\n\
            observe = [\"--metrics\"]\ntimeout_s = 1\n[launch.settings]\n\
            context = { flags = [\"--ctx\", \"{value}\"] }\n[ready]\nroute = \"/\"\n\
            [info]\ndialect = \"fields\"\n[cache]\n[request]\nroute = \"/v1/completions\"\n\
            token_ids = true\nignore_eos = true\nreturn_token_ids = false\n[metrics]\n";
        let file = schema::engine::parse(engine).unwrap();
        let lab = schema::lab::parse(&format!(
            "question = \"?\"\nrev = 1\ntarget = \"cpu\"\nmodel = \"m\"\nprofiles = [\"p\"]\n\
             objective = {{ metric = \"total_tokens_per_s\" }}\ncombine = \"grid\"\n\
             budget = {{ runs = 1 }}\n\
             engines = [{{ id = \"e\", version = \"1\", flags = {engine_flags} }}]\n{axes}"
        ))
        .unwrap();
        let asked = ServerSettings { context_tokens: Some(8), ..ServerSettings::default() };
        let own = set_at_start(&file, &file.launch.argv, Some(&asked));
        let found = check_flags(&lab, "e", &own);
        found.map_err(|stop| stop.to_string()).err().unwrap_or_default()
    }

    fn axis(name: &str, flags: &str) -> String {
        format!(
            "[[axes]]\nname = \"{name}\"\nengine = \"e\"\n\
             options = [{{ name = \"o\", flags = [{flags}] }}]\n"
        )
    }

    #[test]
    fn flags_that_a_start_would_not_take_are_refused() {
        for (axes, said) in [
            (axis("a", "\"--port\", \"1\""), "option `o` of axis `a` sets `--port`, which the"),
            (axis("a", "\"-m=x\""), "sets `-m`, which the command line of `e` sets already"),
            (axis("a", "\"--metrics\""), "sets `--metrics`, which the"),
            (axis("a", "\"--ctx\", \"9\""), "sets `--ctx`, which the"),
            (axis("a", "\"x\", \"--y\""), "begins with `x`, which is no flag"),
            (axis("a", "\"--x=1\", \"--x=2\""), "sets `--x` twice"),
            (axis("a", "\"--x\", \"--no-x\""), "sets both `--x` and `--no-x`"),
            (
                axis("a", "\"--x\"") + &axis("b", "\"--no-x\""),
                "option `o` of axis `a` and option `o` of axis `b` contradict each other: `--x`",
            ),
            (axis("a", "\"--no-q\""), "engine `e` and option `o` of axis `a` contradict"),
        ] {
            let found = refused(&axes, "[\"--q\", \"1\"]");
            assert!(found.contains(said), "{axes}: {found}");
        }
        assert_eq!(
            refused(&(axis("a", "\"--q\", \"2\"") + &axis("b", "\"--x\"")), "[\"--q\"]"),
            ""
        );
    }
}
