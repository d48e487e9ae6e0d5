//! Report of `peer-bench`: the table of medians, ranges and ratios per figure, how much worse
//! Redline's perplexity may be, and hardware, builds and command lines, as text or as one JSON
//! document.

use std::fs;

use judge::diff::policy::standard;
use judge::side_by_side::{Ratio, ratio_of_pairs};
use judge::summary::{self, Summary};
use schema::run::HardwareFacts;
use schema::shell;
use serde::Serialize;

use crate::float;
use crate::peer::figure::{Figure, Sample};
use crate::peer::{Comparison, Measured, Resident};
use campaign::build::source::BuildFacts;
use campaign::files::FileError;
use campaign::inputs::cache::sha256_file;
use campaign::server_spec::{Filling, ServerSpec, command_line};
use campaign::stop::Stop;

/// Report of the comparison of two engines; its fields are those of the JSON document.
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
    /// Ratios of Redline's perplexity to the other engine's and to its own in f32, with their
    /// limits; empty if perplexity was not measured.
    perplexity_limits: Vec<Limit>,
    /// Memory of the two servers at the end of each served run.
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
    /// Facts about the build of the other engine; `None` for Redline.
    #[serde(skip_serializing_if = "Option::is_none")]
    build: Option<BuildFacts>,
    /// Command line of the server in served runs as records have it: with placeholders such as
    /// `{model}` in place of values that differ between machines.
    serve: Vec<String>,
    /// Command line of the server in the measurement of the first answer as records have it: with
    /// placeholders such as `{model}` in place of values that differ between machines.
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
        let figures = rows(&measured.samples);
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
            perplexity_limits: limits(&figures, &peer.engine.id),
            figures,
            memory: measured.memory,
            remarks: measured.remarks,
        })
    }

    /// Returns the comparison's report as one JSON document.
    pub fn json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default()
    }

    /// Returns the comparison's report as text.
    pub fn text(&self) -> String {
        let (redline, peer) = (&self.redline, &self.peer);
        let cpu = self.hardware.cpu_model.as_deref().unwrap_or("unknown processor");
        let Self { threads, repeats, model: ModelFile { id, bytes, .. }, .. } = self;
        let mut lines = vec![
            format!("{} beside {}", redline.title(), peer.title()),
            format!("{cpu} ({}), {threads} threads each", self.hardware.id),
            format!("{id}, {bytes} bytes; {repeats} repeats\n"),
            render(&self.figures, &peer.engine),
            format!(
                "ratio: redline / {}, geometric mean of the pairs with its 95 % interval",
                peer.engine
            ),
        ];
        lines.extend(self.perplexity_limits.iter().map(Limit::line));
        for variant in [redline, peer] {
            let last = self.memory.iter().rfind(|resident| resident.engine == variant.engine);
            lines.extend(last.map(memory_line));
        }
        for variant in [redline, peer] {
            lines.push(format!("{} served: {}", variant.engine, shell::line(&variant.serve)));
            if variant.start != variant.serve {
                let start = shell::line(&variant.start);
                lines.push(format!("{} first answer: {start}", variant.engine));
            }
        }
        if let Some(build) = &peer.build {
            let compiler = build.compiler.as_deref().unwrap_or("unknown compiler");
            let settings = build.settings.join(" ");
            lines.push(format!("{} built: {}, {compiler}, {settings}", peer.engine, build.sdist));
        }
        lines.extend(self.remarks.iter().map(|remark| format!("note: {remark}")));
        lines.join("\n")
    }
}

impl EngineReport {
    /// Formats the engine's name, release and commit: `redline v0.9.2-dev (commit 1a2b3c4d5e, with
    /// changes)`.
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

fn memory_line(resident: &Resident) -> String {
    let mib = |bytes: u64| format!("{:.0}", float(bytes) / super::MIB);
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

/// A figure of both engines in the report, with their ratio over the pairs of repeats.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    pub figure: Figure,
    pub more_is_better: bool,
    pub redline: Repeats,
    pub peer: Repeats,
    /// Ratio of Redline's value to the other engine's over the pairs of repeats: geometric mean and
    /// 95 % interval, which a single pair does not have.
    pub ratio: Ratio,
}

/// Values of one figure of one engine in the order of the repeats, and their summary.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Repeats {
    #[serde(flatten)]
    pub summary: Summary,
    pub values: Vec<f64>,
}

impl Repeats {
    fn of(values: Vec<f64>) -> Option<Self> {
        Some(Self { summary: summary::of(&values)?, values })
    }
}

/// Builds a report row for every figure that both engines have.
pub fn rows(samples: &[Sample]) -> Vec<Row> {
    let row = |figure: Figure| {
        let of = |variant: usize| -> Vec<f64> {
            let here = samples.iter().filter(|s| s.figure == figure && s.variant == variant);
            here.map(|sample| sample.value).collect()
        };
        let (redline, peer) = (of(0), of(1));
        Some(Row {
            figure,
            more_is_better: figure.more_is_better(),
            ratio: ratio_of_pairs(&redline, &peer, &standard().file)?,
            redline: Repeats::of(redline)?,
            peer: Repeats::of(peer)?,
        })
    };
    Figure::ALL.into_iter().filter_map(row).collect()
}

/// Renders the report rows as a text table, under a heading with the engines' names.
pub fn render(rows: &[Row], peer: &str) -> String {
    let mut text =
        format!("{:<38} {:>10} {:>10} {:>8}   {}\n", "", "redline", peer, "ratio", "interval");
    for row in rows {
        let better = if row.more_is_better { "" } else { " (less is better)" };
        let interval = row.ratio.interval.map(|(low, high)| format!("{low:.2} to {high:.2}"));
        let interval = interval.unwrap_or_else(|| "one pair".to_owned());
        text += &format!(
            "{:<38} {:>10} {:>10} {:>7.2}x   {interval}{better}\n",
            row.figure.title(),
            shown(row.redline.summary.median),
            shown(row.peer.summary.median),
            row.ratio.mean,
        );
    }
    text
}

/// Formats a figure's value: without decimals if it is at least 100, with two if it is at least 10,
/// else with three.
fn shown(value: f64) -> String {
    match value {
        v if v >= 100.0 => format!("{v:.0}"),
        v if v >= 10.0 => format!("{v:.2}"),
        v => format!("{v:.3}"),
    }
}

/// Id of the dataset, a file of `suite/datasets/`, with the text on which perplexity is measured.
pub const PERPLEXITY_TEXT: &str = "alice29";
/// Largest allowed ratio of Redline's perplexity to the other engine's.
const OF_PEER: f64 = 1.005;
/// Largest allowed ratio of Redline's perplexity to that of its own f32 reference path.
const OF_F32: f64 = 1.01;

/// Ratio of Redline's perplexity to another perplexity, and its limit.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Limit {
    /// Phrase that names the perplexity in the denominator: the other engine's, or Redline's in
    /// f32.
    pub of: String,
    pub ratio: f64,
    pub at_most: f64,
    pub holds: bool,
}

impl Limit {
    /// Formats the ratio, its limit and whether it passes as a line for people.
    pub fn line(&self) -> String {
        let Self { of, ratio, at_most, holds } = self;
        let verdict = if *holds { "passes" } else { "FAILS" };
        format!("perplexity is {ratio:.4} times {of}, at most {at_most}: {verdict}")
    }
}

/// Checks the ratios of Redline's perplexity to the other engine's and to its own in f32 against
/// their limits; returns an empty list if perplexity was not measured.
pub fn limits(rows: &[Row], peer: &str) -> Vec<Limit> {
    let row = |figure: Figure| rows.iter().find(|row| row.figure == figure);
    let (Some(own), Some(f32)) = (row(Figure::Perplexity), row(Figure::PerplexityF32)) else {
        return Vec::new();
    };
    let of_f32 = own.redline.summary.median / f32.redline.summary.median;
    let limit = |of, ratio, at_most| Limit { of, ratio, at_most, holds: ratio <= at_most };
    vec![
        // Perplexity is measured once per engine, so the mean over the pairs is the one ratio.
        limit(format!("that of {peer}"), own.ratio.mean, OF_PEER),
        limit("redline's in f32".into(), of_f32, OF_F32),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    fn samples(figure: Figure, redline: &[f64], peer: &[f64]) -> Vec<Sample> {
        let of = |variant, values: &[f64]| -> Vec<Sample> {
            values.iter().map(|value| Sample { figure, variant, value: *value }).collect()
        };
        [of(0, redline), of(1, peer)].concat()
    }

    #[test]
    fn ratios_are_taken_pair_by_pair() {
        // The machine was twice as fast in the second repeat; the ratio is the same in each pair.
        let drift = rows(&samples(Figure::Decode, &[100.0, 200.0, 100.0], &[50.0, 100.0, 50.0]));
        let near = |found: f64, expected: f64| (found - expected).abs() < 1e-9;
        let Ratio { pairs, mean, interval } = drift[0].ratio;
        assert!(pairs == 3 && near(mean, 2.0), "{mean}");
        assert!(interval.is_some_and(|(low, high)| near(low, 2.0) && near(high, 2.0)));
        let noisy = rows(&samples(Figure::Decode, &[90.0, 110.0, 100.0], &[50.0, 50.0, 40.0]));
        // The geometric mean of 1.8, 2.2 and 2.5.
        assert!(near(noisy[0].ratio.mean, 9.9_f64.cbrt()), "{:?}", noisy[0].ratio);
        let (low, high) = noisy[0].ratio.interval.unwrap();
        assert!(low < 1.8 && high > 2.5, "{low} to {high}");
        assert_eq!(noisy[0].redline.summary.median, 100.0);
    }

    #[test]
    fn a_figure_of_one_side_alone_has_no_row() {
        assert_eq!(rows(&samples(Figure::Memory, &[1.0], &[])), []);
    }

    #[test]
    fn the_table_reads_from_fast_to_small() {
        let all = [
            samples(Figure::Memory, &[1.25, 1.25], &[1.5, 1.5]),
            samples(Figure::Prefill, &[1500.0, 1650.0], &[750.0, 750.0]),
        ];
        let text = render(&rows(&all.concat()), "llama.cpp");
        expect![[r#"
                                                      redline  llama.cpp    ratio   interval
            prefill 512 tokens, tok/s                    1575        750    2.10x   1.14 to 3.84
            resident beyond KV, x file                  1.250      1.500    0.83x   0.83 to 0.83 (less is better)
        "#]]
        .assert_eq(&text);
    }

    fn lines(own: f64, f32: f64, peer: f64) -> Vec<String> {
        let samples = [
            (Figure::Perplexity, 0, own),
            (Figure::Perplexity, 1, peer),
            (Figure::PerplexityF32, 0, f32),
            (Figure::PerplexityF32, 1, peer),
        ];
        let samples = samples.map(|(figure, variant, value)| Sample { figure, variant, value });
        limits(&rows(&samples), "llama.cpp").iter().map(Limit::line).collect()
    }

    #[test]
    fn each_limit_is_judged_by_itself() {
        let of_peer = "perplexity is 1.0060 times that of llama.cpp, at most 1.005: FAILS";
        let of_f32 = "perplexity is 1.0080 times redline's in f32, at most 1.01: passes";
        assert_eq!(lines(10.08, 10.0, 10.02), [of_peer, of_f32]);
        let of_peer = "perplexity is 1.0000 times that of llama.cpp, at most 1.005: passes";
        let of_f32 = "perplexity is 1.0200 times redline's in f32, at most 1.01: FAILS";
        assert_eq!(lines(10.2, 10.0, 10.2), [of_peer, of_f32]);
    }

    #[test]
    fn what_was_not_measured_is_not_judged() {
        assert_eq!(limits(&[], "llama.cpp"), []);
    }
}
