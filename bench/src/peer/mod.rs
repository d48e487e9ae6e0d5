//! The command `peer-bench`: compares Redline with another engine, interleaved on one machine, with
//! the same model file and number of threads. It prints the figures, and judges only perplexity.
//!
//! The engine, its build and its tools are described by data: `suite/engines/<id>.toml`.

pub mod figure;
pub mod report;
pub mod server;

use std::path::PathBuf;

use clap::ValueEnum;
use schema::engine::Source;
use schema::exit::Exit;
use schema::run::{HardwareFacts, RunRecord, Status, ValidityVerdict};

use crate::cli::PeerBench;
use crate::peer::figure::{Figure, Sample, ToolFilling, Work};
use crate::peer::report::{PERPLEXITY_TEXT, Report};
use crate::peer::server::Resident;
use crate::{RivalError, local_bench, name_of};
use campaign::Engine;
use campaign::build::{source, variants};
use campaign::catalog::unknown;
use campaign::inputs::Input;
use campaign::lock::Lock;
use campaign::node::hardware;
use campaign::places::CampaignPlaces;
use campaign::plan::decide::{default_cell, ready_cells};
use campaign::plan::{PlannedRun, Round, Variant, interleave};
use campaign::server_spec::{ReadyCell, ServerSpec};
use campaign::stop::Stop;
use campaign::world::{Ids, World};

/// Name of the figure for an engine whose reference path differs from the one that it serves with.
const PERPLEXITY_F32: &str = "perplexity-f32";

/// Runs `peer-bench`.
///
/// # Errors
/// The engine is unknown or cannot be built, or one of the two fails.
pub fn run(world: &World, flags: &PeerBench) -> Result<Exit, Stop> {
    let (engine, distribution) = peer(world, &flags.engine)?;
    world.tools.check()?;
    let cell = default_cell(world, flags.model.as_deref())?;
    let scenario = world.catalog.scenario(&cell.scenario)?;
    let _lock = Lock::take(&world.places.lock(), world.pid)?;
    let machine = hardware::detect(world)?;
    let threads = flags.threads.unwrap_or(world.cores);
    let build = source::obtain(world, &flags.engine, &distribution, &machine.cpu)?;
    let mut variant = Variant::plain(&engine.id, &format!("v{}", distribution.version()));
    variant.flags = engine.loaded_flags(threads);
    let peer = ServerSpec { built: build.variant(variant, &distribution), engine };
    let variants = [variants::build_working_tree(world, threads)?, peer];
    world.console.step(world.clock.elapsed(), "Fetch inputs");
    let cell = ready_cells(world, &[cell], &[scenario])?.remove(0);
    let mut ids = Ids::new(world.clock.unix_ms(), world.random);
    let id = ids.next_id();
    let works = works(flags);
    let text = works.contains(&Work::Perplexity).then(|| text(world)).transpose()?;
    let comparison = Comparison {
        world,
        id: &id,
        places: CampaignPlaces::at(&world.places.target("peer-bench").join(&id)),
        hardware: machine.facts(&machine.id(false)),
        variants: &variants,
        cell: &cell,
        threads,
        text,
    };
    let round = Round::first(works.len(), variants.len(), flags.repeats);
    let mut slots = interleave(&round, || ids.next_id());
    slots.retain(|slot| works[slot.cell].is_done_in(slot.repeat));
    let measured = comparison.carry_out(&works, &slots)?;
    let report = Report::of(&comparison, flags.repeats, build.facts, measured)?;
    world.console.answer(&if flags.json { report.json() } else { report.text() });
    Ok(Exit::Well)
}

/// Selects the measurements: the named ones, by default all, without the skipped ones.
fn works(flags: &PeerBench) -> Vec<Work> {
    let named = if flags.figures.is_empty() { Work::value_variants() } else { &flags.figures };
    named.iter().copied().filter(|work| !flags.skipped.contains(work)).collect()
}

/// Fetches the text on which perplexity is measured.
fn text(world: &World) -> Result<PathBuf, Stop> {
    let file = world.catalog.dataset(PERPLEXITY_TEXT)?;
    Ok(world.fetcher().obtain(&Input::dataset(PERPLEXITY_TEXT, &file))?.path)
}

/// Reads the other engine's file and its source distribution.
fn peer(world: &World, id: &str) -> Result<(Engine, Source), Stop> {
    if !world.catalog.ids("engine")?.iter().any(|known| known == id) {
        return Err(unknown("engine", id, &peers(world)?));
    }
    let engine = world.catalog.engine(id)?;
    match engine.file.source.clone() {
        Some(source) => Ok((engine, source)),
        None => Err(Stop::wrong_use(format!(
            "engine `{id}` is no peer: its file has no `[source]`; peers are {}",
            peers(world)?.join(", ")
        ))),
    }
}

fn peers(world: &World) -> Result<Vec<String>, Stop> {
    let mut known = world.catalog.ids("engine")?;
    known.retain(|id| world.catalog.engine(id).is_ok_and(|engine| engine.file.source.is_some()));
    Ok(known)
}

/// A comparison of two engines on one model.
#[derive(Debug)]
pub struct Comparison<'a> {
    pub world: &'a World,
    pub id: &'a str,
    pub places: CampaignPlaces,
    pub hardware: HardwareFacts,
    pub variants: &'a [ServerSpec; 2],
    pub cell: &'a ReadyCell,
    pub threads: u32,
    /// Text on which perplexity is measured; `None` if it is not measured.
    pub text: Option<PathBuf>,
}

/// Results of the comparison.
#[derive(Debug, Default)]
pub struct Measured {
    pub samples: Vec<Sample>,
    pub memory: Vec<Resident>,
    /// Remarks about single runs, such as that one is degraded.
    pub remarks: Vec<String>,
}

impl Comparison<'_> {
    fn carry_out(&self, works: &[Work], slots: &[PlannedRun]) -> Result<Measured, Stop> {
        let mut measured = Measured::default();
        for (index, slot) in slots.iter().enumerate() {
            self.world.interrupt.check()?;
            let (work, variant) = (works[slot.cell], &self.variants[slot.variant]);
            let (count, repeat) = (slots.len(), slot.repeat);
            let title = format!("{}, {}, repeat {repeat}", variant.engine.id, name_of(work));
            let elapsed = self.world.clock.elapsed();
            self.world.console.step(elapsed, &format!("Run {} of {count}: {title}", index + 1));
            let before = measured.samples.len();
            self.measure(work, slot, &mut measured)?;
            for sample in &measured.samples[before..] {
                self.world.console.note(&format!("{:.3} {}", sample.value, sample.figure.id()));
            }
        }
        Ok(measured)
    }

    fn measure(&self, work: Work, slot: &PlannedRun, into: &mut Measured) -> Result<(), Stop> {
        let variant = &self.variants[slot.variant];
        let model = &self.cell.model.path;
        let mut add =
            |figure, value| into.samples.push(Sample { figure, variant: slot.variant, value });
        match work {
            Work::Prefill => add(Figure::Prefill, self.by_tool(variant, "prefill")?),
            Work::Decode => add(Figure::Decode, self.by_tool(variant, "decode")?),
            Work::DecodeBatch => add(Figure::DecodeBatch, self.by_tool(variant, "decode-batch")?),
            Work::Perplexity => {
                let own = self.by_tool(variant, "perplexity")?;
                add(Figure::Perplexity, own);
                let has_f32 = variant.engine.file.figures.contains_key(PERPLEXITY_F32);
                let f32 = if has_f32 { self.by_tool(variant, PERPLEXITY_F32)? } else { own };
                add(Figure::PerplexityF32, f32);
            }
            Work::FirstAnswer => {
                let files = (&*self.places.log(&slot.run), &*self.places.measurement(&slot.run));
                let seconds =
                    server::first_answer_s(self.world, variant, model, self.threads, files)?;
                add(Figure::FirstAnswer, seconds);
            }
            Work::Served => self.serve(slot, variant, into)?,
        }
        Ok(())
    }

    fn by_tool(&self, variant: &ServerSpec, figure: &'static str) -> Result<f64, Stop> {
        let engine = &variant.engine;
        let missing = || format!("the file of engine `{}` has no `[figures.{figure}]`", engine.id);
        let tool = engine.file.figures.get(figure).ok_or_else(|| Stop::wrong_use(missing()))?;
        let with = ToolFilling {
            engine: &engine.id,
            binary: variant.binary(),
            model: &self.cell.model.path,
            threads: self.threads,
            text: self.text.as_deref(),
        };
        figure::measure(tool, with, &self.world.interrupt)
    }

    /// Measures one served run, and the server's memory at its end.
    fn serve(
        &self,
        slot: &PlannedRun,
        variant: &ServerSpec,
        into: &mut Measured,
    ) -> Result<(), Stop> {
        let bench = local_bench(self.world, self.id, &self.places, &self.hardware);
        let mut resident = None;
        let record = bench.run(slot, variant, self.cell, &mut |server| {
            resident = Some(server::resident(self.world, variant, server)?);
            Ok(())
        })?;
        let tokens_per_s = record.metrics.as_ref().and_then(|metrics| metrics.output_tokens_per_s);
        let (Status::Ok, Some(tokens_per_s), Some(resident)) =
            (record.status, tokens_per_s, resident)
        else {
            return Err(failed(&variant.engine.id, &record));
        };
        if record.validity.verdict != ValidityVerdict::Valid {
            let verdict = format!("{:?}", record.validity.verdict).to_uppercase();
            let (engine, reasons) = (&variant.engine.id, record.validity.reasons.join("; "));
            into.remarks.push(format!("{engine}, repeat {}: {verdict}: {reasons}", slot.repeat));
        }
        let files = resident.files(self.file_bytes()?);
        into.memory.push(resident);
        for (figure, value) in [(Figure::Served, tokens_per_s), (Figure::Memory, files)] {
            into.samples.push(Sample { figure, variant: slot.variant, value });
        }
        Ok(())
    }

    fn file_bytes(&self) -> Result<u64, Stop> {
        let path = &self.cell.model.path;
        let meta = std::fs::metadata(path);
        Ok(meta.map_err(campaign::files::FileError::at("read", path))?.len())
    }
}

/// Makes the error of a run that gave no figures.
pub fn failed(engine: &str, record: &RunRecord) -> Stop {
    let said = record.failure.as_ref().map(|failure| failure.message.as_str());
    let (what, log) = said
        .and_then(|said| said.split_once('\n'))
        .unwrap_or((said.unwrap_or("not every request was answered"), "see its record's counts"));
    failure(engine, what, log)
}

/// Makes the error of an engine that failed, with the end of its log.
pub fn failure(engine: &str, what: &str, log: &str) -> Stop {
    Stop::from(RivalError(format!("{engine}: {what}\n{log}")))
        .with_hint("nothing is compared with an engine that fails")
}
