//! The command `peer-bench`: compares Redline with another engine, interleaved on one machine, with
//! the same model file and number of threads. It prints the figures, and judges only perplexity.
//!
//! The engine, its build and its tools are described by data: `suite/engines/<id>.toml`.
//!
//! The time from a server's start to its first answer, and its resident memory beyond the KV cache,
//! are measured on the server's process.

pub mod figure;
pub mod report;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use campaign::Engine;
use campaign::build::{source, variants};
use campaign::catalog::unknown;
use campaign::files::{FileError, make_dir, read_text};
use campaign::inputs::Input;
use campaign::lock::Lock;
use campaign::node::hardware;
use campaign::node::server::{ProbeAnswer, Server, ask, free_port, status_bytes};
use campaign::places::CampaignPlaces;
use campaign::plan::decide::{default_cell, ready_cells};
use campaign::plan::{PlannedRun, Round, Variant, interleave};
use campaign::process::{Group, describe};
use campaign::server_spec::{Filling, ReadyCell, ServerSpec, command_line};
use campaign::stop::Stop;
use campaign::tools::{self, BENCH};
use campaign::world::{Ids, World};
use clap::ValueEnum;
use schema::engine::{Distribution, Source};
use schema::exit::Exit;
use schema::probe::{FirstAnswer, Probe};
use schema::run::{HardwareFacts, RunRecord, Status, ValidityVerdict};
use serde::Serialize;

use crate::cli::PeerBench;
use crate::peer::figure::{Figure, Sample, ToolFilling, Work};
use crate::peer::report::{PERPLEXITY_TEXT, Report};
use crate::{RivalError, float, local_bench, name_of, whole};

/// Name, in an engine's file, of the tool that measures the perplexity of the engine's f32
/// reference path, for an engine that serves with another path.
const PERPLEXITY_F32: &str = "perplexity-f32";

/// Runs `peer-bench` and prints its report.
///
/// # Errors
/// A file of the suite is missing or not valid; that of the other engine has no `[source]`, or that
/// of an engine lacks the tool of a figure; no model is given and the target `cpu` lists none, or
/// the model has random weights; another process holds the clone's lock; a program is missing or
/// does not build; source, model or dataset cannot be obtained; a file cannot be read or written;
/// an engine or tool fails, or a run gives no figures; or the command is interrupted.
pub fn run(world: &World, flags: &PeerBench) -> Result<Exit, Stop> {
    let (engine, distribution) = peer(world, &flags.engine)?;
    world.tools.check()?;
    let cell = default_cell(world, flags.model.as_deref())?;
    let scenario = world.catalog.scenario(&cell.scenario)?;
    // Another measurement in this clone would use the same cores.
    let _lock = Lock::take(&world.places.lock(), world.pid)?;
    let machine = hardware::detect(world)?;
    let threads = flags.threads.unwrap_or(world.cores);
    let build = source::obtain(world, &flags.engine, &distribution, &machine.cpu)?;
    let mut variant = Variant::plain(&engine.id, &format!("v{}", distribution.version));
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
    // Engines alternate, so that drift of the machine affects both alike.
    let mut slots = interleave(&round, || ids.next_id());
    // Perplexity does not vary.
    slots.retain(|slot| works[slot.cell] != Work::Perplexity || slot.repeat == 1);
    let measured = comparison.carry_out(&works, &slots)?;
    let report = Report::of(&comparison, flags.repeats, build.facts, measured)?;
    world.console.answer(&if flags.json { report.json() } else { report.text() })?;
    Ok(Exit::Well)
}

/// Selects the measurements: those named with `--figure` (by default all), without those named with
/// `--skip`.
fn works(flags: &PeerBench) -> Vec<Work> {
    let named = if flags.figures.is_empty() { Work::value_variants() } else { &flags.figures };
    named.iter().copied().filter(|work| !flags.skipped.contains(work)).collect()
}

/// Downloads the text on which perplexity is measured, unless it is in the cache, and returns its
/// path.
fn text(world: &World) -> Result<PathBuf, Stop> {
    let file = world.catalog.dataset(PERPLEXITY_TEXT)?;
    Ok(world.obtain(&Input::dataset(PERPLEXITY_TEXT, &file))?.path)
}

/// Reads the file of the engine `id`, and returns the engine and the newest source distribution that
/// its file pins; an error if the engine is unknown or its file has no `[source]`.
fn peer(world: &World, id: &str) -> Result<(Engine, Distribution), Stop> {
    if !world.catalog.ids("engine")?.iter().any(|known| known == id) {
        return Err(unknown("engine", id, &peers(world)?));
    }
    let engine = world.catalog.engine(id)?;
    match engine.file.source.as_ref().map(Source::newest) {
        Some(distribution) => Ok((engine, distribution)),
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

/// What a comparison of Redline with another engine is made on: the two engines, the model, the
/// machine and the folders. Its results are in [`Measured`].
#[derive(Debug)]
pub struct Comparison<'a> {
    pub world: &'a World,
    pub id: &'a str,
    pub places: CampaignPlaces,
    pub hardware: HardwareFacts,
    pub variants: &'a [ServerSpec; 2],
    pub cell: &'a ReadyCell,
    pub threads: u32,
    /// Path of the text on which perplexity is measured; `None` if perplexity is not measured.
    pub text: Option<PathBuf>,
}

/// Results of the comparison of two engines: values of its figures, memory of the servers, and
/// remarks for the report.
#[derive(Debug, Default)]
pub struct Measured {
    pub samples: Vec<Sample>,
    pub memory: Vec<Resident>,
    /// Remarks about single served runs, such as that one is degraded.
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
                // The report has only rows with values of both engines, so an engine without
                // such a path gets its one perplexity there.
                let f32 = if has_f32 { self.by_tool(variant, PERPLEXITY_F32)? } else { own };
                add(Figure::PerplexityF32, f32);
            }
            Work::FirstAnswer => {
                let files = (&*self.places.log(&slot.run), &*self.places.measurement(&slot.run));
                let seconds = first_answer_s(self.world, variant, model, self.threads, files)?;
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

    /// Runs the scenario once over HTTP against one engine, and adds to `into` the output rate and
    /// the server's memory at the run's end. A run that is degraded or invalid also adds a remark.
    fn serve(
        &self,
        slot: &PlannedRun,
        variant: &ServerSpec,
        into: &mut Measured,
    ) -> Result<(), Stop> {
        let bench = local_bench(self.world, self.id, &self.places, &self.hardware);
        let mut resident = None;
        let record = bench.run(slot, variant, self.cell, &mut |server| {
            // The memory is read here, because the server is stopped when the run is over.
            resident = Some(resident_memory(self.world, variant, server)?);
            Ok(())
        })?;
        let tokens_per_s = record.metrics.as_ref().and_then(|metrics| metrics.output_tokens_per_s);
        let (Status::Ok, Some(tokens_per_s), Some(resident)) =
            (record.status, tokens_per_s, resident)
        else {
            return Err(failed(&variant.engine.id, &record));
        };
        // Such a run stays in the comparison, and the report shows the reasons below the figures.
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
        let meta = fs::metadata(path);
        Ok(meta.map_err(FileError::at("read", path))?.len())
    }
}

/// Builds the error of a run that gave no figures, from the failure in its record.
pub fn failed(engine: &str, record: &RunRecord) -> Stop {
    let said = record.failure.as_ref().map(|failure| failure.message.as_str());
    let (what, log) = said
        .and_then(|said| said.split_once('\n'))
        .unwrap_or((said.unwrap_or("not every request was answered"), "see its record's counts"));
    failure(engine, what, log)
}

/// Builds the error of an engine that failed, with the end of its server's log.
pub fn failure(engine: &str, what: &str, log: &str) -> Stop {
    Stop::from(RivalError(format!("{engine}: {what}\n{log}")))
        .with_hint("nothing is compared with an engine that fails")
}

/// Interval at which the server and the client are polled; the measured time to the first answer
/// does not depend on it.
const POLL: Duration = Duration::from_millis(20);
const VERB: &str = "first-answer";

/// Measures the seconds from just before the server's start to the first byte of its first answer.
/// The server gets no optional flags except those for threads. The client is started before the
/// server, so that its own start does not count.
///
/// # Errors
/// No port is free, the server cannot be started, dies or does not answer in time, the client
/// cannot be run or fails, a file cannot be read or written, or the wait is interrupted.
pub fn first_answer_s(
    world: &World,
    variant: &ServerSpec,
    model: &Path,
    threads: u32,
    (log, answer): (&Path, &Path),
) -> Result<f64, Stop> {
    let port = free_port()?;
    let name = model.to_string_lossy();
    // Ready for no more than the server is by itself: only its threads are set.
    let flags = variant.engine.thread_flags(threads);
    let filling = Filling { flags: &flags, ..variant.filling(&name, port) };
    let line = command_line(&variant.engine.file, filling)?;
    // Reading the file puts it into the page cache, so that every measurement starts alike.
    let read = fs::File::open(model).and_then(|mut f| std::io::copy(&mut f, &mut std::io::sink()));
    read.map_err(FileError::at("read", model))?;
    make_dir(answer.parent().unwrap_or(Path::new(".")))?;
    let written = fs::File::create(answer).map_err(FileError::at("write", answer))?;
    let mut asking = world.tools.bench(VERB);
    let timeout_s = variant.engine.file.launch.timeout_s;
    asking
        .args(["--url", &format!("http://127.0.0.1:{port}"), "--engine"])
        .arg(&variant.engine.path);
    asking.args(["--timeout-s", &timeout_s.to_string()]).stdout(written);
    let mut client = Group::start(&mut asking)?;
    let started_ns = world.clock.monotonic_ns();
    let mut server =
        Server::start(&line.argv, &variant.engine.file.launch.env, port, log, &world.interrupt)?;
    let status = loop {
        if let Some(status) = client.wait(Some(POLL), &world.interrupt)? {
            break status;
        }
        // Without this check the client would wait for a dead server until its own time limit.
        if let Some(status) = server.poll()? {
            let what = format!("its server ended with {}", describe(status));
            let log = world.identity.tail(&server.log_tail());
            return Err(failure(&variant.engine.id, &what, &log));
        }
    };
    server.stop();
    if !status.success() {
        return Err(tools::ended(BENCH, VERB, status));
    }
    let first: FirstAnswer = serde_json::from_str(&read_text(answer)?)
        .map_err(|error| tools::unreadable(BENCH, VERB, &error))?;
    Ok(Duration::from_nanos(first.first_byte_ns.saturating_sub(started_ns)).as_secs_f64())
}

const PROBE_LIMIT: Duration = Duration::from_secs(10);
pub(super) const MIB: f64 = 1024.0 * 1024.0;

/// Memory of one server at the end of its served run, in bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Resident {
    pub engine: String,
    /// Resident memory of the server (`VmRSS`): anonymous memory and mapped files.
    pub rss_bytes: u64,
    pub rss_anon_bytes: Option<u64>,
    pub rss_file_bytes: Option<u64>,
    /// Bytes of the server's KV cache that are resident: pages touched so far, or the whole cache
    /// where the engine reports only its size.
    pub kv_bytes: u64,
    /// Phrase that says from where the bytes of the KV cache are known, for the report.
    pub kv_from: &'static str,
}

impl Resident {
    /// Computes the resident memory beyond the KV cache as a multiple of the model file's size.
    pub fn files(&self, file_bytes: u64) -> f64 {
        float(self.rss_bytes.saturating_sub(self.kv_bytes)) / float(file_bytes)
    }
}

/// Reads the resident memory and the KV cache size of a running server.
///
/// # Errors
/// The server does not answer, the system does not report the server's memory, neither the server's
/// metrics nor its log state the size of its KV cache, or the wait is interrupted.
fn resident_memory(world: &World, variant: &ServerSpec, server: &Server) -> Result<Resident, Stop> {
    let engine = &variant.engine;
    let unknown =
        |what: &str| RivalError(format!("{}: its memory cannot be read: {what}", engine.id));
    let status = server.status().ok_or_else(|| unknown("the system does not show its memory"))?;
    let bytes = |field: &str| status_bytes(&status, field);
    let answer = ask(&world.tools, &server.url(), &engine.path, PROBE_LIMIT, &world.interrupt)?;
    let ProbeAnswer::Ready(probe) = answer else {
        return Err(unknown("it no longer answers").into());
    };
    let marker = engine.file.cache.kv_log.as_deref();
    // Engines without such a metric allocate the whole KV cache at the start and log its size.
    let logged = || marker.and_then(|marker| logged_mib(&server.log(), marker));
    let (kv_bytes, kv_from) = match (touched(&probe), logged()) {
        (Some(bytes), _) => (bytes, "the pages that were touched, of its metrics"),
        (None, Some(bytes)) => (bytes, "the whole buffer, of its log"),
        (None, None) => return Err(unknown("it reports the size of its KV cache nowhere").into()),
    };
    Ok(Resident {
        engine: engine.id.clone(),
        rss_bytes: bytes("VmRSS").ok_or_else(|| unknown("the system does not show its memory"))?,
        rss_anon_bytes: bytes("RssAnon"),
        rss_file_bytes: bytes("RssFile"),
        kv_bytes,
        kv_from,
    })
}

/// Returns the bytes of the KV pages that a server used at least once (untouched pages are not
/// resident); `None` if the server does not report them.
fn touched(probe: &Probe) -> Option<u64> {
    let count = |name: &str| probe.metrics.get(name).copied();
    let (touched, pages) = (count("kv_pages_touched")?, count("kv_pages")?);
    (pages > 0.0).then_some(whole(float(probe.server.kv_bytes?) * touched / pages))
}

/// Sums the sizes in MiB that follow `marker` in a log, and returns the sum in bytes; `None` if no
/// size follows it.
fn logged_mib(log: &str, marker: &str) -> Option<u64> {
    let sizes = log.split(marker).skip(1).filter_map(|rest| {
        rest.split_whitespace().next()?.parse::<f64>().ok().filter(|mib| *mib >= 0.0)
    });
    let sizes: Vec<f64> = sizes.collect();
    (!sizes.is_empty()).then(|| whole(sizes.iter().sum::<f64>() * MIB))
}

#[cfg(test)]
mod tests {
    use super::*;
    use schema::run::ServerFacts;

    #[test]
    fn the_kv_cache_is_read_from_a_log() {
        let log = "load\nkv: CPU KV buffer size =    90.00 MiB\nkv: CPU KV buffer size = 1.5 MiB\n";
        assert_eq!(logged_mib(log, "KV buffer size ="), Some((91.5 * MIB) as u64));
        assert_eq!(logged_mib("KV buffer size = unknown", "KV buffer size ="), None);
        assert_eq!(logged_mib("", "KV buffer size ="), None);
    }

    #[test]
    fn only_touched_pages_are_resident() {
        let mut probe = Probe {
            server: ServerFacts { kv_bytes: Some(1000), ..ServerFacts::default() },
            ..Probe::default()
        };
        assert_eq!(touched(&probe), None);
        probe.metrics = [("kv_pages".into(), 10.0), ("kv_pages_touched".into(), 3.0)].into();
        assert_eq!(touched(&probe), Some(300));
    }

    #[test]
    fn memory_is_a_multiple_of_the_file() {
        let resident = Resident {
            engine: "x".into(),
            rss_bytes: 250,
            rss_anon_bytes: None,
            rss_file_bytes: None,
            kv_bytes: 100,
            kv_from: "a test",
        };
        assert_eq!(resident.files(100), 1.5);
    }
}
