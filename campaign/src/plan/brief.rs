//! The plan of a campaign as printed text: variants, cells, expected durations and GPU-hours. It is
//! printed before anything is built or downloaded.

use std::fmt::Write;

use judge::alternation::compare::minutes;
use judge::diff::words::plural;

use crate::cli::Servers;
use crate::console::about;
use crate::plan::estimate::Estimate;

/// Summary, for the printed plan, of the runs of one engine in one cell (model and scenario).
#[derive(Debug, Clone)]
pub struct CellBrief {
    pub engine: String,
    pub model: String,
    pub tp: u32,
    /// Scenario of the cell as `id@rev`.
    pub scenario: String,
    /// Number of planned runs of the engine's variants in the cell.
    pub runs: u64,
    pub each: Estimate,
    /// Time that a server takes to start, in microseconds: the median of earlier runs; `None` if
    /// there are none.
    pub start_us: Option<u64>,
    /// Newest revision of the scenario as `id@rev`, which published pages answer, and its dataset,
    /// where an older revision is measured because the dataset is not at hand; `None` otherwise.
    pub newer: Option<(String, String)>,
}

/// Jobs of a campaign on a scheduler, each of which takes one whole node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Jobs {
    /// Name of the executor.
    pub executor: &'static str,
    pub count: usize,
    /// Partition that the user names; `None` for the scheduler's default.
    pub partition: Option<String>,
}

impl CellBrief {
    /// Returns the expected time of all runs of the engine in the cell, in microseconds; `None` if
    /// the duration of a run is unknown.
    fn expected_us(&self) -> Option<u64> {
        self.each.us().map(|us| us.saturating_mul(self.runs))
    }
}

/// What pairs of runs can see, where they decide and no slices in turns.
pub const PAIRS_SHOW: &str = "they show changes of 10 to 20 % on a shared machine";

/// A campaign's plan, as it is printed.
#[derive(Debug, Clone)]
pub struct Brief {
    pub campaign: String,
    /// Titles of the variants for the printed plan, baseline first.
    pub variants: Vec<String>,
    /// Command lines that start the servers, each with the variant that it belongs to.
    pub commands: Vec<String>,
    /// Jobs on a scheduler; `None` where this machine runs them.
    pub jobs: Option<Jobs>,
    pub hardware: String,
    pub target: String,
    /// True when a server takes one GPU per tensor-parallel rank; false when it runs on a
    /// processor.
    pub on_gpu: bool,
    pub cells: Vec<CellBrief>,
    /// Number of pairs of confirmation runs in each cell with a suspected change; `None` without a
    /// confirmation stage.
    pub confirm_pairs: Option<u32>,
    /// Time of the alternating comparisons of all cells in microseconds; `None` without any.
    pub alternation_us: Option<u64>,
    /// Why pairs of runs decide and not an alternating comparison; `None` where they do not.
    pub pairs_because: Option<String>,
    /// Which runs share a server; `None` where runs on a shared server are impossible.
    pub servers: Option<Servers>,
    /// Descriptions of the virtual environments that the campaign uses, each with its size.
    pub packages: Vec<String>,
    /// Ids of the models and datasets that the runs need, each with where it comes from.
    pub inputs: Vec<(String, Availability)>,
    /// GPUs and programs that the campaign needs and this machine lacks, in words.
    pub missing: Vec<String>,
    /// Known peculiarities of the measured engines that a reader of the results should know.
    pub quirks: Vec<String>,
    /// Where the campaign's records will lie, and whether they are committed, as a text for the
    /// user.
    pub records: String,
}

/// Where a model or dataset comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Availability {
    /// This machine has it.
    Here,
    /// The campaign downloads it.
    Download,
    /// The user brings it with the command `hf download ID`, of a model with this id on the hub: the
    /// campaign downloads no models of the hub.
    Hub(String),
}

impl std::fmt::Display for Availability {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Here => f.write_str("available"),
            Self::Download => f.write_str("to be downloaded"),
            Self::Hub(id) => write!(f, "to be brought by `hf download {id}`"),
        }
    }
}

impl Brief {
    /// Returns the expected total time, in microseconds, of those planned runs whose duration is
    /// known.
    pub fn expected_us(&self) -> u64 {
        let runs: u64 = self.cells.iter().filter_map(CellBrief::expected_us).sum();
        runs.saturating_add(self.alternation_us.unwrap_or(0))
    }

    /// Returns the expected total GPU-hours of those planned runs whose duration is known.
    pub fn gpu_hours(&self) -> f64 {
        let of = |cell: &CellBrief| Some(gpu_hours(cell.expected_us()?, self.gpus(cell.tp)));
        self.cells.iter().filter_map(of).sum()
    }

    /// Returns the number of GPUs that a server of `tp` ranks takes; 0 on a processor.
    pub fn gpus(&self, tp: u32) -> u32 {
        if self.on_gpu { tp } else { 0 }
    }

    /// Returns the number of planned runs whose duration is unknown.
    pub fn unknown(&self) -> u64 {
        let unknown = self.cells.iter().filter(|cell| cell.each == Estimate::Unknown);
        unknown.map(|cell| cell.runs).sum()
    }

    /// Returns the number of servers that the campaign starts if they are shared like this, with the
    /// time of the starts in microseconds; 0 where it is unknown.
    fn starts(&self, servers: Servers) -> (u64, u64) {
        let mut starts = (0, 0);
        let by_model = self.cells.chunk_by(|a, b| a.model == b.model);
        for of_model in by_model {
            let counted = match servers {
                Servers::PerRun => of_model,
                Servers::PerModel => &of_model[..1],
            };
            for cell in counted {
                starts.0 += cell.runs;
                starts.1 += cell.runs * cell.start_us.unwrap_or(0);
            }
        }
        starts
    }

    /// Formats the starts of servers that are shared like this: `12 starts, about 24 s`.
    fn starts_shown(&self, servers: Servers) -> String {
        let (count, us) = self.starts(servers);
        let mut shown = plural(usize::try_from(count).unwrap_or(usize::MAX), "start");
        if us > 0 {
            let _ = write!(shown, ", {}", about(us));
        }
        // The GPUs of a campaign's models may differ in number; those of the first stand for all.
        let gpus = self.cells.first().map_or(0, |cell| self.gpus(cell.tp));
        if us > 0 && gpus > 0 {
            let _ = write!(shown, " and {:.2} GPU-hours", gpu_hours(us, gpus));
        }
        shown
    }

    /// Renders the plan of the campaign as text for the terminal.
    pub fn render(&self) -> String {
        let mut listing = Listing::new(format!("Plan of campaign {}", self.campaign));
        listing.lines("measured", self.variants.iter().cloned());
        listing.line("hardware", &format!("{} (target {})", self.hardware, self.target));
        // Engine names are printed only if there is more than one.
        let several = self.cells.iter().any(|cell| cell.engine != self.cells[0].engine);
        let mut model = "";
        for cell in &self.cells {
            if model != cell.model {
                model = &cell.model;
                let ranks = if cell.tp == 1 { "rank" } else { "ranks" };
                listing.line("model", &format!("{model}, {} {ranks}", cell.tp));
            }
            listing.line("", &self.cell_line(cell, several));
            if let Some((newest, dataset)) = &cell.newer {
                let way = format!("`cargo xtask fetch {dataset}` gets their dataset");
                listing.line("", &format!("not the published requests, those of {newest}: {way}"));
            }
        }
        listing.lines("commands", self.commands.iter().cloned());
        listing.inputs(self);
        if self.cells.iter().any(|cell| cell.runs > 0) {
            listing.line("runs", &self.total());
        }
        if let Some(jobs) = &self.jobs {
            listing.line("executor", &jobs.shown());
        }
        if let Some(servers) = self.servers {
            let (way, other) = match servers {
                Servers::PerRun => ("one for each run", Servers::PerModel),
                Servers::PerModel => ("one for each model and repeat", Servers::PerRun),
            };
            listing.line("servers", &format!("{way}: {}", self.starts_shown(servers)));
            let shown = self.starts_shown(other);
            listing.line("", &format!("with `--servers {}`: {shown}", other.name()));
        }
        if let Some(us) = self.alternation_us {
            let key = if self.cells.iter().all(|cell| cell.runs == 0) { "in turns" } else { "" };
            let minutes = minutes(us);
            let count = plural(self.cells.len(), "scenario");
            listing.line(key, &format!("both servers, in {count}, at most {minutes} together"));
        }
        if let Some(pairs) = self.confirm_pairs {
            let each: u64 = self.cells.iter().filter_map(|cell| cell.each.us()).sum();
            let most = about(each.saturating_mul(2 * u64::from(pairs)));
            let confirmation = "pairs of each cell that differs, at most";
            listing.line("", &format!("then {pairs} {confirmation} {most}"));
            if let Some(said) = &self.pairs_because {
                listing.line("", &format!("in pairs of runs, because {said};"));
                listing.line("", PAIRS_SHOW);
            }
        }
        listing.line("records", &self.records);
        listing.text
    }

    /// Summarizes all planned runs: `20, about 12 min and 0.4 GPU-hours beside builds and
    /// downloads, ...`.
    fn total(&self) -> String {
        let runs: u64 = self.cells.iter().map(|cell| cell.runs).sum();
        let unknown = self.unknown();
        if unknown == runs {
            return format!("{runs}, and how long they take is unknown");
        }
        let mut total = format!("{runs}, {}", about(self.expected_us()));
        if self.on_gpu {
            let _ = write!(total, " and {:.1} GPU-hours", self.gpu_hours());
        }
        if self.jobs.is_some() {
            // A job takes one whole node, whatever its server uses of it.
            let _ = write!(total, ", {:.1} node-hours", gpu_hours(self.expected_us(), 1));
        }
        total.push_str(" beside builds and downloads");
        if unknown > 0 {
            let _ = write!(total, ", and {unknown} of them of unknown length");
        }
        total
    }

    fn cell_line(&self, cell: &CellBrief, several: bool) -> String {
        if cell.runs == 0 {
            return cell.scenario.clone();
        }
        let runs = match cell.runs {
            1 => "1 run".to_owned(),
            count => format!("{count} runs"),
        };
        let hours = match (self.on_gpu, cell.expected_us()) {
            (true, Some(us)) => format!(", {:.1} GPU-hours", gpu_hours(us, cell.tp)),
            _ => String::new(),
        };
        let engine = if several { format!("{}: ", cell.engine) } else { String::new() };
        let each = cell.each.us().map_or("unknown".to_owned(), about);
        let basis = basis(cell.each);
        format!("{:<22} {engine}{runs}, {each} each{hours} ({basis})", cell.scenario)
    }
}

impl Jobs {
    /// Formats the jobs for the printed plan: `slurm, 8 jobs, each on a whole node, partition a100`.
    fn shown(&self) -> String {
        let partition = self.partition.as_deref().unwrap_or("the scheduler's choice");
        let count = plural(self.count, "job");
        format!("{}, {count}, each on a whole node, partition {partition}", self.executor)
    }
}

/// Formats what an estimated duration is based on, such as `median of 3 earlier runs`.
pub fn basis(each: Estimate) -> String {
    match each {
        Estimate::Measured { runs: 1, .. } => "as an earlier run took".to_owned(),
        Estimate::Measured { runs, .. } => format!("median of {runs} earlier runs"),
        Estimate::Imported { runs: 1, .. } => {
            "as published by others, server start not counted".to_owned()
        }
        Estimate::Imported { runs, .. } => {
            format!("median of {runs} published by others, server start not counted")
        }
        Estimate::Unknown => "no earlier record".to_owned(),
    }
}

/// Converts a time in microseconds on `gpus` GPUs to GPU-hours.
#[expect(clippy::cast_precision_loss, reason = "microseconds of a campaign are far below 2^53")]
pub fn gpu_hours(us: u64, gpus: u32) -> f64 {
    us as f64 / 3.6e9 * f64::from(gpus)
}

/// Text of a printed plan: a title, and below it lines that each consist of a key and a value.
#[derive(Debug)]
pub struct Listing {
    pub text: String,
}

impl Listing {
    pub fn new(title: String) -> Self {
        Self { text: title + "\n" }
    }

    pub fn line(&mut self, key: &str, value: &str) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.text, "  {key:<10} {value}");
    }

    /// Adds a line for each value to the printed plan; only the first of them shows the key.
    pub fn lines(&mut self, key: &str, values: impl Iterator<Item = String>) {
        for (index, value) in values.enumerate() {
            self.line(if index == 0 { key } else { "" }, &value);
        }
    }

    /// Adds the lines about virtual environments, inputs and known peculiarities of engines to the
    /// printed plan.
    pub fn inputs(&mut self, brief: &Brief) {
        let inputs = brief.inputs.iter().map(|(id, from)| format!("{id}, {from}"));
        self.lines("packages", brief.packages.iter().cloned());
        self.lines("inputs", inputs);
        self.lines("missing", brief.missing.iter().cloned());
        self.lines("known", brief.quirks.iter().cloned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    fn cell(engine: &str, scenario: &str, each: Estimate) -> CellBrief {
        CellBrief {
            engine: engine.into(),
            model: "smollm2-135m-instruct-q4_1".into(),
            tp: 1,
            scenario: scenario.into(),
            runs: 10,
            each,
            start_us: None,
            newer: None,
        }
    }

    fn brief(cells: Vec<CellBrief>) -> Brief {
        Brief {
            campaign: "01JD5XQ0000000000000000000".into(),
            variants: vec!["redline v0.9.1, commit 1111111111".into(), "redline v0.9.2".into()],
            commands: Vec::new(),
            jobs: None,
            hardware: "cpu-intel-xeon-f6m85s7-2c".into(),
            target: "cpu".into(),
            on_gpu: false,
            cells,
            confirm_pairs: Some(8),
            alternation_us: None,
            pairs_because: Some("two servers need 9 MiB".into()),
            servers: None,
            packages: vec!["vllm==0.10.1, available (5.1 GiB)".into()],
            inputs: vec![
                ("smollm2".into(), Availability::Here),
                ("qwen3-8b".into(), Availability::Hub("Qwen/Qwen3-8B".into())),
                ("sharegpt-head".into(), Availability::Download),
            ],
            missing: vec!["2 GPUs named like h100".into()],
            quirks: Vec::new(),
            records: "results/, committed on the branch that is checked out".into(),
        }
    }

    #[test]
    fn the_plan_says_what_how_long_and_where() {
        let brief = brief(vec![
            cell("redline", "sharegpt-lite@1", Estimate::Measured { us: 41_000_000, runs: 6 }),
            cell("redline", "balanced-lite@1", Estimate::Unknown),
        ]);
        expect![[r#"
            Plan of campaign 01JD5XQ0000000000000000000
              measured   redline v0.9.1, commit 1111111111
                         redline v0.9.2
              hardware   cpu-intel-xeon-f6m85s7-2c (target cpu)
              model      smollm2-135m-instruct-q4_1, 1 rank
                         sharegpt-lite@1        10 runs, about 41 s each (median of 6 earlier runs)
                         balanced-lite@1        10 runs, unknown each (no earlier record)
              packages   vllm==0.10.1, available (5.1 GiB)
              inputs     smollm2, available
                         qwen3-8b, to be brought by `hf download Qwen/Qwen3-8B`
                         sharegpt-head, to be downloaded
              missing    2 GPUs named like h100
              runs       20, about 7 min beside builds and downloads, and 10 of them of unknown length
                         then 8 pairs of each cell that differs, at most about 11 min
                         in pairs of runs, because two servers need 9 MiB;
                         they show changes of 10 to 20 % on a shared machine
              records    results/, committed on the branch that is checked out
        "#]]
        .assert_eq(&brief.render());
    }

    #[test]
    fn the_plan_shows_both_ways_to_start_servers() {
        let each = Estimate::Measured { us: 41_000_000, runs: 6 };
        let of = |scenario: &str, start_us| CellBrief {
            runs: 3,
            start_us,
            ..cell("redline", scenario, each)
        };
        let cells = vec![of("sharegpt@1", Some(60_000_000)), of("balanced@1", Some(40_000_000))];
        let brief = Brief {
            servers: Some(Servers::PerRun),
            confirm_pairs: None,
            on_gpu: true,
            ..brief(cells.clone())
        };
        let text = brief.render();
        let lines: Vec<&str> = text.lines().skip_while(|line| !line.contains("servers")).collect();
        assert_eq!(
            &lines[..2],
            [
                "  servers    one for each run: 6 starts, about 5 min and 0.08 GPU-hours",
                "             with `--servers per-model`: 3 starts, about 3 min and 0.05 GPU-hours",
            ]
        );
        let of_unknown = Brief { cells: vec![of("sharegpt@1", None)], ..brief };
        let text = Brief { servers: Some(Servers::PerModel), ..of_unknown }.render();
        assert!(text.contains("one for each model and repeat: 3 starts\n"), "{text}");
        assert!(text.contains("with `--servers per-run`: 3 starts\n"), "{text}");
    }

    #[test]
    fn a_scheduler_gets_whole_nodes_and_other_requests_than_the_published_ones_are_marked() {
        let hour = Estimate::Imported { us: 3_600_000_000, runs: 1 };
        let newer = Some(("sharegpt@2".into(), "sharegpt".into()));
        let cells = vec![CellBrief { runs: 3, newer, ..cell("lmdeploy", "sharegpt@1", hour) }];
        let partition = Some("a100".to_owned());
        let text = Brief {
            on_gpu: true,
            confirm_pairs: None,
            commands: vec!["lmdeploy v0.10.0 (pytorch): lmdeploy serve api_server".into()],
            jobs: Some(Jobs { executor: "slurm", count: 1, partition }),
            ..brief(cells)
        }
        .render();
        for line in [
            "not the published requests, those of sharegpt@2: `cargo xtask fetch sharegpt` gets",
            "commands   lmdeploy v0.10.0 (pytorch): lmdeploy serve api_server\n",
            "runs       3, about 3.0 h and 3.0 GPU-hours, 3.0 node-hours beside builds",
            "executor   slurm, 1 job, each on a whole node, partition a100\n",
        ] {
            assert!(text.contains(line), "`{line}` is not in {text}");
        }
    }

    #[test]
    fn gpus_count_by_the_ranks_that_take_them() {
        let hour = Estimate::Imported { us: 3_600_000_000, runs: 1 };
        let cells = vec![
            CellBrief { tp: 8, runs: 3, ..cell("vllm", "balanced@1", hour) },
            cell("redline", "balanced@1", Estimate::Unknown),
        ];
        let on_gpu = Brief { on_gpu: true, confirm_pairs: None, ..brief(cells) };
        assert_eq!((on_gpu.gpu_hours(), on_gpu.unknown()), (24.0, 10));
        let text = on_gpu.render();
        let line = "vllm: 3 runs, about 60 min each, 24.0 GPU-hours (as published by others";
        assert!(text.contains(line), "{text}");
        assert!(text.contains("13, about 3.0 h and 24.0 GPU-hours beside"), "{text}");
        assert_eq!(Brief { on_gpu: false, ..on_gpu }.gpu_hours(), 0.0);
    }
}
