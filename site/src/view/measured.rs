//! View of Redline's measurements on the machines of a registry: beside other engines, where the
//! latest releases of both answered the same scenarios, and beside the machines' own limits
//! (roofline), from the latest kernel record. For a document, not a page. Ratios come from `judge`,
//! and shares of limits were computed when they were measured.

use std::collections::{BTreeMap, BTreeSet};

use judge::Stored;
use judge::diff::policy;
use judge::kernels::{self, Reached};
use judge::side_by_side::{self, InTurns, Match};
use minijinja::{Value, context};
use schema::kernel::{BenchLimits, KernelRecord, ModelBench};
use schema::run::{Kind, RunRecord};

use super::figure::{self, Column};
use super::release::{dates, day};
use super::{command, fact, hardware};
use crate::catalog::{self, Catalog, Cell, ReleaseKey, Run};
use crate::format::{self, or_dash};
use crate::link::{Link, Target};
use crate::outside;

/// Name of Redline as an engine, with which the other engines are compared.
const OWN: &str = "redline";

/// Names of the metrics by which Redline and another engine are compared.
const METRICS: [&str; 4] = ["output_tokens_per_s", "ttft_us_p50", "tpot_us_p50", "rss_bytes_max"];

/// Builds the view of the measured part of a document: one comparison with Redline per hardware,
/// model and other engine, and one roofline per hardware with a kernel record.
pub fn view(catalog: &Catalog) -> Value {
    let records = kernels::newest(&catalog.registry.kernels, OWN).into_iter();
    let rooflines: Value = records.map(roofline).collect();
    context! { engines => engines(catalog, |_| true), rooflines }
}

/// Builds the comparisons of Redline with other engines for one model on one hardware, of which only
/// those with interleaved runs have ratios.
pub fn of_place(catalog: &Catalog, model: &str, hardware: &str) -> Vec<Value> {
    engines(catalog, |record| record.model.id == model && record.hardware.id == hardware)
}

/// Compares Redline with each other engine that was measured with the same model on the same
/// hardware in a common scenario, over the runs that `test` accepts.
fn engines(catalog: &Catalog, test: impl Fn(&RunRecord) -> bool) -> Vec<Value> {
    let is_measured = |record: &RunRecord| {
        record.kind != Kind::Imported && test(record) && catalog.is_contender(record)
    };
    let runs = catalog.runs_where(is_measured);
    let mut found = Vec::new();
    let mut places: BTreeMap<(&str, &str), Vec<&Run>> = BTreeMap::new();
    for run in runs.into_iter().filter(|run| run.is_usable()) {
        places.entry((&run.record.hardware.id, &run.record.model.id)).or_default().push(run);
    }
    for here in places.into_values() {
        let (ours, others): (Vec<&Run>, Vec<&Run>) =
            here.into_iter().partition(|run| run.record.engine.name == OWN);
        let mut engines: BTreeMap<&str, Vec<&Run>> = BTreeMap::new();
        for run in others {
            engines.entry(&run.record.engine.name).or_default().push(run);
        }
        found.extend(engines.values().filter_map(|theirs| latest(catalog, &ours, theirs)));
    }
    found
}

/// Scenario that both compared engines answered, with the cells of both, and the interleaved blocks
/// that their runs are from (`None` where the engines did not run interleaved).
struct Shown<'a> {
    ours: Cell<'a>,
    theirs: Cell<'a>,
    in_turns: Option<InTurns<'a>>,
}

/// Compares the latest releases of Redline and of another engine that answered a common scenario;
/// `None` where they share no scenario.
fn latest<'a>(catalog: &Catalog, ours: &[&'a Run<'a>], theirs: &[&'a Run<'a>]) -> Option<Value> {
    let [our_records, their_records] =
        [ours, theirs].map(|runs| runs.iter().map(|run| run.record).collect::<Vec<_>>());
    let matches = side_by_side::latest(&our_records, &their_records);
    let shown =
        matches.into_iter().filter_map(|Match { ours: our, theirs: their, in_turns, .. }| {
            Some(Shown { ours: cell(ours, &our)?, theirs: cell(theirs, &their)?, in_turns })
        });
    let shown: Vec<Shown> = shown.collect();
    (!shown.is_empty()).then(|| comparison(catalog, &shown))
}

/// Returns those of `runs` whose records are `chosen`, as a catalog cell (a group of repeats);
/// `None` where there are none.
fn cell<'a>(runs: &[&'a Run<'a>], chosen: &[&RunRecord]) -> Option<Cell<'a>> {
    let is_chosen = |run: &&&Run| chosen.iter().any(|record| std::ptr::eq(*record, run.record));
    catalog::cells(&runs.iter().filter(is_chosen).copied().collect::<Vec<_>>()).pop()
}

/// Builds the comparison of two engines with one model on one hardware, from `matches`, which must
/// not be empty.
fn comparison(catalog: &Catalog, matches: &[Shown]) -> Value {
    let runs: Vec<&Run> = matches
        .iter()
        .flat_map(|found| found.ours.runs.iter().chain(&found.theirs.runs).copied())
        .collect();
    let first = &matches[0];
    let (ours, theirs) = (key(&first.ours), key(&first.theirs));
    let configs = |side: fn(&Shown) -> String| {
        let names: BTreeSet<String> = matches.iter().map(side).collect();
        outside::name(&Vec::from_iter(names).join(", "))
    };
    context! {
        hardware => outside::name(&ours.hardware),
        device => fact::device(&runs),
        model => outside::name(&first.ours.key.model),
        // Configurations of Redline and of the other engine.
        configs => [
            configs(|found| found.ours.key.config.clone()),
            configs(|found| found.theirs.key.config.clone()),
        ],
        // Days of the runs behind the table.
        measured => dates(&runs).unwrap_or_else(|| "day unknown".to_owned()),
        rows => matches.iter().flat_map(rows).collect::<Value>(),
        // True where some scenario was measured in turns, so that it has a ratio.
        has_ratio => matches.iter().any(|found| found.in_turns.is_some()),
        // Commands that measure the comparison again.
        commands => commands(catalog, matches, &ours, &theirs),
        ours => Link::release(&ours),
        theirs => Link::release(&theirs),
    }
}

fn key(cell: &Cell) -> ReleaseKey {
    cell.runs.first().map(|run| ReleaseKey::of(run.record)).expect("a match has runs")
}

/// Builds the rows, for one scenario, of the metrics that at least one of the two engines has.
fn rows(found: &Shown) -> Vec<Value> {
    let policy = policy::standard().file;
    let row = |name: &&str| {
        let column = Column::new(figure::metric(name), [&found.ours, &found.theirs]);
        let [ours, theirs] = [&found.ours, &found.theirs].map(|cell| column.figure(cell));
        if ours.missing && theirs.missing {
            return None;
        }
        let in_turns = found.in_turns.as_ref();
        let ratio = in_turns.and_then(|turns| turns.ratio(column.metric, &policy));
        let interval = ratio.and_then(|ratio| ratio.interval);
        let shown = |value: f64| format::rounded(value, None);
        Some(context! {
            scenario => outside::name(&found.ours.key.scenario),
            head => column.head(),
            ours,
            theirs,
            // Ratio of Redline's figure to the other engine's; `-` where they were not run
            // interleaved.
            ratio => or_dash(ratio, |ratio| format!("{}x", shown(ratio.mean))),
            interval => or_dash(interval, |(low, high)| format!("{} to {}", shown(low), shown(high))),
            pairs => or_dash(ratio, |ratio| ratio.pairs.to_string()),
        })
    };
    METRICS.iter().filter_map(row).collect()
}

/// Returns the commands of the campaigns that ran both engines interleaved, or, if none is known,
/// the command that runs them interleaved.
fn commands(
    catalog: &Catalog,
    matches: &[Shown],
    ours: &ReleaseKey,
    theirs: &ReleaseKey,
) -> Vec<String> {
    let in_turns = matches.iter().filter_map(|found| found.in_turns.as_ref());
    let campaigns: BTreeSet<&str> = in_turns.map(|turns| turns.campaign.as_str()).collect();
    let known = catalog.registry.campaigns.iter().map(|stored| &stored.record);
    let mut commands: Vec<String> = known
        .filter(|record| campaigns.contains(record.id.as_str()) && !record.command.is_empty())
        .map(|record| format!("cargo xtask {}", outside::command(&record.command)))
        .collect();
    if commands.is_empty() {
        let beside = format!("{}@{}", ours.engine, ours.release);
        let version = theirs.release.trim_start_matches('v');
        let theirs = ReleaseKey::new(&theirs.engine, version, &theirs.hardware);
        commands.push(command::release_bench(&theirs, &["--beside", &beside]));
    }
    commands
}

/// Builds the roofline of one hardware, from its latest kernel record.
fn roofline(stored: &Stored<KernelRecord>) -> Value {
    let record = &stored.record;
    let device = hardware::name(&record.hardware).unwrap_or_else(|| "-".to_owned());
    let release = outside::name(&record.engine.release);
    let with_share = record.benches.iter().filter(|bench| bench.limit_share.is_some());
    context! {
        engine => outside::name(&record.engine.name),
        hardware => outside::name(&record.hardware.id),
        device => outside::name(&device),
        measured => day(record.time.started_at.as_deref().unwrap_or("day unknown")),
        record => Target::Record { path: stored.path.clone() },
        commands => commands_of_kernels(record),
        release,
        models => record.model_benches().map(model).collect::<Value>(),
        kernels => kernels::reached(&record.benches).into_iter().map(kernel).collect::<Value>(),
        // Number of kernel benchmarks in the record, and of those with a share of a limit.
        benches => record.benches.len(),
        with_share => with_share.count(),
    }
}

/// Returns the commands that measure a kernel record again. `cargo xtask kernels` measures no GPU.
fn commands_of_kernels(record: &KernelRecord) -> Vec<String> {
    let release = record.engine.release.as_str();
    match record.benches.iter().any(|bench| bench.device == "cuda") {
        true => command::of_bundle(release, &record.hardware.id, &[]),
        false => vec![outside::command(&["cargo", "xtask", "kernels", release])],
    }
}

/// Builds the roofline's part about one model that was measured on one device.
fn model(bench: &ModelBench) -> Value {
    let (name, dtype) = (outside::name(&bench.model), outside::name(&bench.dtype));
    let device = match bench.threads {
        None => "a GPU".to_owned(),
        Some(1) => "1 thread".to_owned(),
        Some(threads) => format!("{threads} threads"),
    };
    context! {
        // Name of the model, data type of its matrix multiplications, and device.
        title => format!("{name}, computed in {dtype} on {device}"),
        // Limits that the machine reached without other load, each with its unit.
        limits => limits(&bench.limits),
        steps => steps(bench),
    }
}

fn limits(limits: &BenchLimits) -> Vec<String> {
    let of =
        |limit: Option<f64>, unit, name| limit.map(|limit| format!("{} {name}", rate(limit, unit)));
    let shown = [
        of(limits.int8_ops_per_s, "op/s", "in int8"),
        of(limits.bf16_flops_per_s, "flop/s", "in bf16"),
        of(limits.f32_flops_per_s, "flop/s", "in f32"),
        of(Some(limits.read_bytes_per_s), "B/s", "read from memory"),
    ];
    shown.into_iter().flatten().collect()
}

/// Formats a rate in billions or trillions per second: `4.01 Top/s`.
fn rate(value: f64, unit: &str) -> String {
    let (divisor, prefix) = if value >= 1e12 { (1e12, "T") } else { (1e9, "G") };
    format!("{} {prefix}{unit}", format::rounded(value / divisor, None))
}

fn share(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

/// Builds a row of the roofline: a step or a kernel of the model, its speed, the share of its
/// limit, and the name of that limit.
fn step(what: String, reached: String, share: String, limit: &str) -> Value {
    context! { what, reached, share, limit }
}

/// Builds the roofline's rows of the model's steps: prefill, then decode, then single kernels.
fn steps(bench: &ModelBench) -> Vec<Value> {
    let arithmetic = |dtype: &str| format!("arithmetic in {}", outside::name(dtype));
    let prefill = bench.prefill.iter().map(|row| {
        let what = format!("a prompt of {} tokens", format::whole(row.tokens));
        let reached = tokens_per_s(row.tokens_per_s);
        step(what, reached, share(row.limit_share), &arithmetic(&bench.dtype))
    });
    let decode = bench.decode.iter().map(|row| {
        let sequences = match row.batch {
            1 => "one sequence".to_owned(),
            batch => format!("each of {batch} sequences"),
        };
        let what = format!("a token for {sequences}, after {}", format::whole(row.context));
        let share = or_dash(row.limit_share, share);
        step(what, tokens_per_s(row.tokens_per_s), share, "reading memory")
    });
    let matmul = bench.products.iter().map(|row| {
        let [rows, n, k] = [row.rows, row.n, row.k].map(format::whole);
        let stored = outside::name(&row.weight_dtype);
        let what = format!("product of {rows} rows by {n} x {k} in {stored}");
        let reached = rate(row.ops_per_s, "op/s");
        step(what, reached, share(row.limit_share), &arithmetic(&row.dtype))
    });
    let attention = bench.attention.iter().map(|row| {
        let rows = if row.rows == 1 { "one row".to_owned() } else { format!("{} rows", row.rows) };
        let what = format!("attention of {rows} over {} positions", format::whole(row.context));
        let (reached, limit) = match row.limit == "read_bytes_per_s" {
            true => (rate(row.kv_bytes_per_s, "B/s"), "reading memory"),
            false => (rate(row.flops_per_s, "flop/s"), "arithmetic in f32"),
        };
        step(what, reached, share(row.limit_share), limit)
    });
    prefill.chain(decode).chain(matmul).chain(attention).collect()
}

fn tokens_per_s(value: f64) -> String {
    format!("{} tokens/s", format::rounded(value, None))
}

/// Builds the roofline's row of an operation in one data type, with the instruction set that comes
/// closest to the limit.
fn kernel(Reached { most, least, shapes }: Reached) -> Value {
    context! {
        op => outside::name(&most.0.op),
        dtype => outside::name(&most.0.dtype),
        isa => outside::name(&most.0.isa),
        shapes,
        // Largest and smallest share of the limit over the shapes, each with its shape.
        most => share(most.1),
        most_shape => outside::name(&most.0.shape),
        least => share(least.1),
        least_shape => outside::name(&least.0.shape),
    }
}
