//! Report of `peer-bench`: the table with hardware, builds and command lines, as text or as one
//! JSON document.

use std::fmt::Write;
use std::fs;

use schema::run::HardwareFacts;
use serde::Serialize;

use crate::peer::memory::Resident;
use crate::peer::table::{self, Limit, Row};
use crate::peer::{Comparison, Measured};
use campaign::build::source::BuildFacts;
use campaign::files::FileError;
use campaign::inputs::cache::sha256_file;
use campaign::server_spec::ServerSpec;
use campaign::server_spec::{Filling, command_line};
use campaign::stop::Stop;

/// The report's content; its fields are those of the JSON document.
#[derive(Debug, Serialize)]
pub struct Report {
    schema: &'static str,
    hardware: HardwareFacts,
    threads: u32,
    repeats: u32,
    model: ModelFile,
    redline: EngineReport,
    peer: EngineReport,
    figures: Vec<Row>,
    /// Ratios of Redline's perplexity to others, with their limits; empty if it was not measured.
    perplexity_limits: Vec<Limit>,
    /// Memory of the servers, after each served run.
    memory: Vec<Resident>,
    remarks: Vec<String>,
}

#[derive(Debug, Serialize)]
struct ModelFile {
    id: String,
    sha256: String,
    bytes: u64,
}

#[derive(Debug, Serialize)]
struct EngineReport {
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
        let ([redline, peer], threads) = (comparison.variants, comparison.threads);
        let figures = table::rows(&measured.samples);
        Ok(Self {
            schema: "peer-bench.v2",
            hardware: comparison.hardware.clone(),
            threads,
            repeats,
            model: ModelFile {
                id: comparison.cell.cell.model.clone(),
                sha256: sha256_file(model)?,
                bytes: meta.len(),
            },
            redline: engine_report(redline, threads, None),
            peer: engine_report(peer, threads, Some(build)),
            perplexity_limits: table::limits(&figures, &peer.engine.id),
            figures,
            memory: measured.memory,
            remarks: measured.remarks,
        })
    }

    /// Returns the report as one JSON document.
    pub fn json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default()
    }

    /// Returns the report as text.
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
        let _ = writeln!(
            out,
            "\nratio: redline / {}, geometric mean of the pairs with its 95 % interval",
            peer.engine
        );
        for limit in &self.perplexity_limits {
            let _ = writeln!(out, "{}", limit.line());
        }
        for variant in [redline, peer] {
            let last = self.memory.iter().rfind(|resident| resident.engine == variant.engine);
            if let Some(resident) = last {
                let _ = writeln!(out, "{}", memory_line(resident));
            }
        }
        for variant in [redline, peer] {
            let _ = writeln!(out, "{} served: {}", variant.engine, variant.serve.join(" "));
            if variant.start != variant.serve {
                let _ =
                    writeln!(out, "{} first answer: {}", variant.engine, variant.start.join(" "));
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

impl EngineReport {
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

fn engine_report(variant: &ServerSpec, threads: u32, build: Option<BuildFacts>) -> EngineReport {
    let recorded = |flags: &[String]| {
        let line = command_line(&variant.engine.file, Filling { flags, ..variant.filling("", 0) });
        // No optional setting is requested, so the engine's file cannot lack a flag.
        line.map(|line| line.recorded).unwrap_or_default()
    };
    let facts = &variant.built.facts;
    EngineReport {
        engine: variant.engine.id.clone(),
        release: facts.release.clone(),
        commit: facts.commit.clone(),
        // Without a commit, as for a source distribution, "with changes" has no meaning.
        dirty: facts.commit.as_ref().and(facts.dirty),
        binary_sha256: facts.binary_sha256.clone(),
        build,
        serve: recorded(&variant.built.variant.flags),
        start: recorded(&variant.engine.thread_flags(threads)),
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
