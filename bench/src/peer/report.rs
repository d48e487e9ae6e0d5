//! Report of `peer-bench`: the table with hardware, builds and command lines, as text or as one
//! JSON document.

use std::fmt::Write;
use std::fs;

use schema::run::HardwareFacts;
use serde::Serialize;

use crate::peer::memory::Resident;
use crate::peer::perplexity::{self, Limit};
use crate::peer::table::{self, Row};
use crate::peer::{Comparison, Measured};
use campaign::build::contender::Contender;
use campaign::build::source::BuildFacts;
use campaign::files::FileError;
use campaign::inputs::cache::sha256_file;
use campaign::plan::launch::{Filling, command_line};
use campaign::stop::Stop;

/// The report's content; its fields are those of the JSON document.
#[derive(Debug, Serialize)]
pub struct Report {
    schema: &'static str,
    hardware: HardwareFacts,
    threads: u32,
    repeats: u32,
    model: ModelSide,
    redline: EngineSide,
    peer: EngineSide,
    figures: Vec<Row>,
    /// Ratios of Redline's perplexity to others, with their limits; empty if it was not measured.
    perplexity_limits: Vec<Limit>,
    /// Memory of the servers, after each served run.
    memory: Vec<Resident>,
    remarks: Vec<String>,
}

#[derive(Debug, Serialize)]
struct ModelSide {
    id: String,
    sha256: String,
    bytes: u64,
}

#[derive(Debug, Serialize)]
struct EngineSide {
    engine: String,
    release: String,
    commit: Option<String>,
    dirty: Option<bool>,
    binary_sha256: Option<String>,
    /// Build facts of the other engine; `None` for Redline.
    #[serde(skip_serializing_if = "Option::is_none")]
    build: Option<BuildFacts>,
    /// Command line of the server under load, without paths.
    serve: Vec<String>,
    /// Command line of the server in the first-answer measurement.
    start: Vec<String>,
}

impl Report {
    /// Joins the measured figures with the facts of model, engines and hardware.
    ///
    /// # Errors
    /// The model's file cannot be read.
    pub(super) fn of(
        comparison: &Comparison<'_>,
        repeats: u32,
        build: BuildFacts,
        measured: Measured,
    ) -> Result<Self, Stop> {
        let model = &comparison.cell.model.path;
        let meta = fs::metadata(model).map_err(FileError::at("read", model))?;
        let [redline, peer] = comparison.sides;
        let figures = table::rows(&measured.samples);
        Ok(Self {
            schema: "peer-bench.v1",
            hardware: comparison.hardware.0.clone(),
            threads: comparison.threads,
            repeats,
            model: ModelSide {
                id: comparison.cell.cell.model.clone(),
                sha256: sha256_file(model)?,
                bytes: meta.len(),
            },
            redline: engine_side(redline, None),
            peer: engine_side(peer, Some(build)),
            perplexity_limits: perplexity::limits(&figures, &peer.engine.id),
            figures,
            memory: measured.memory,
            remarks: measured.remarks,
        })
    }

    /// Returns the report as one JSON document.
    #[must_use]
    pub fn json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default()
    }

    /// Returns the report as text.
    #[must_use]
    pub fn text(&self) -> String {
        let mut out = String::new();
        let (redline, peer) = (&self.redline, &self.peer);
        let cpu = self.hardware.cpu_model.as_deref().unwrap_or("unknown processor");
        let _ = writeln!(out, "{} beside {}", redline.title(), peer.title());
        let _ = writeln!(out, "{cpu} ({}), {} threads each", self.hardware.id, self.threads);
        let _ = writeln!(
            out,
            "{}, {} bytes; {} repeats\n",
            self.model.id, self.model.bytes, self.repeats
        );
        out += &table::render(&self.figures, &peer.engine);
        let _ = writeln!(out, "\nratio: redline / {}, median of the pairs", peer.engine);
        for limit in &self.perplexity_limits {
            let _ = writeln!(out, "{}", limit.line());
        }
        for side in [redline, peer] {
            let last = self.memory.iter().rfind(|resident| resident.engine == side.engine);
            if let Some(resident) = last {
                let _ = writeln!(out, "{}", memory_line(resident));
            }
        }
        for side in [redline, peer] {
            let _ = writeln!(out, "{} served: {}", side.engine, side.serve.join(" "));
            if side.start != side.serve {
                let _ = writeln!(out, "{} first answer: {}", side.engine, side.start.join(" "));
            }
        }
        if let Some(build) = &peer.build {
            let compiler = build.compiler.as_deref().unwrap_or("unknown compiler");
            let settings = build.settings.join(" ");
            let _ = writeln!(out, "{} built: {}, {compiler}, {settings}", peer.engine, build.sdist);
        }
        for remark in &self.remarks {
            let _ = writeln!(out, "note: {remark}");
        }
        out.trim_end().to_owned()
    }
}

impl EngineSide {
    /// Title of an engine: `redline v0.9.2-dev (commit 1a2b3c4d5e, with changes)`.
    fn title(&self) -> String {
        let mut title = format!("{} {}", self.engine, self.release);
        if let Some(commit) = &self.commit {
            let changes = if self.dirty == Some(true) { ", with changes" } else { "" };
            title += &format!(" (commit {}{changes})", commit.get(..10).unwrap_or(commit));
        }
        title
    }
}

fn engine_side(side: &Contender, build: Option<BuildFacts>) -> EngineSide {
    let recorded = |flags: &[String]| {
        let filling = Filling::measured(&side.engine.id, side.binary(), "", 0);
        let line = command_line(&side.engine.file, Filling { flags, ..filling });
        // No optional setting is requested, so the engine's file cannot lack a flag.
        line.map(|line| line.recorded).unwrap_or_default()
    };
    let facts = &side.built.facts;
    EngineSide {
        engine: side.engine.id.clone(),
        release: facts.release.clone(),
        commit: facts.commit.clone(),
        // Without a commit, as for a source distribution, "with changes" has no meaning.
        dirty: facts.commit.as_ref().and(facts.dirty),
        binary_sha256: facts.binary_sha256.clone(),
        build,
        serve: recorded(&side.built.side.flags),
        start: recorded(&side.plain_flags),
    }
}

#[expect(clippy::cast_precision_loss, reason = "shown in MiB with no digit after the point")]
fn memory_line(resident: &Resident) -> String {
    let mib = |bytes: u64| format!("{:.0}", bytes as f64 / (1024.0 * 1024.0));
    let part = |bytes: Option<u64>| bytes.map_or("?".to_owned(), mib);
    format!(
        "{} memory, MiB: {} resident (anonymous {}, of files {}), {} of it KV cache: {}",
        resident.engine,
        mib(resident.rss_bytes),
        part(resident.rss_anon_bytes),
        part(resident.rss_file_bytes),
        mib(resident.kv_bytes),
        resident.kv_from,
    )
}
