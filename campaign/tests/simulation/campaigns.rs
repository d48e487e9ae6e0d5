//! Campaigns of a simulation: what is measured and where, as if it had been planned, built and
//! fetched.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use samples::Sample;

use super::figures::{BASELINE, CANDIDATE, engine, hardware};
use crate::catalog::Catalog;
use crate::clock::Clock;
use crate::console::Console;
use crate::executor::journal::{PreparedCampaign, PreparedGate, RecordedHardware};
use crate::inputs::Obtained;
use crate::inputs::cache::Cache;
use crate::places::Places;
use crate::plan::{Cell, Plan, PlannedAlternation, Round, Variant, interleave};
use crate::process::Interrupt;
use crate::redact::Identity;
use crate::server_spec::{BuiltVariant, ReadyCell, ServerSpec};
use crate::tools::Tools;
use crate::world::{Ids, World};

/// Returns the environment of a program that runs in the clone `root`.
pub fn world(root: &Path, clock: Clock, random: u128) -> World {
    World {
        places: Places::new(root, None),
        tools: Tools::new(&root.join("tools")),
        catalog: Catalog::new(&root.join("suite")),
        cache: Cache::new(&root.join("cache")),
        interrupt: Interrupt::new(clock),
        clock,
        console: Console::silent(),
        identity: Identity::default(),
        server_env: BTreeMap::new(),
        slurm_env: BTreeMap::new(),
        search_path: Vec::new(),
        cores: 1,
        pid: std::process::id(),
        program: "redline-campaign".into(),
        random,
        hub_home: root.join("hub"),
        hub_cache: root.join("hub/hub"),
        given: BTreeMap::new(),
        command: vec!["release-bench".to_owned()],
    }
}

/// What a campaign measures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// One release in two cells.
    Single,
    /// Two releases, with a screening and a confirmation stage.
    Paired,
    /// Two releases, which then answer in turns.
    InTurns,
    /// Two servers that answer in turns, for a gate.
    Gate,
}

/// Variants of the two releases, as if they had been built.
pub static VARIANTS: LazyLock<[ServerSpec; 2]> = LazyLock::new(|| {
    let redline = suite().engine("redline").unwrap();
    [BASELINE, CANDIDATE].map(|release| {
        let variant = Variant::plain("redline", release);
        let built = BuiltVariant::program(variant, engine(release), "redline".into(), None);
        ServerSpec { engine: redline.clone(), built }
    })
});

/// Cells of two scenarios, as if their inputs had been fetched.
pub static CELLS: LazyLock<[ReadyCell; 2]> = LazyLock::new(|| {
    ["balanced-lite", "thinking-lite"].map(|id| {
        let scenario = suite().scenario(id).unwrap();
        let model = Obtained::file("m.gguf".into(), "00".repeat(32), "path".to_owned());
        let tokenizer = model.path.clone();
        let cell = Cell {
            model: Sample::default().model,
            tp: 1,
            scenario: id.to_owned(),
            ..Cell::default()
        };
        ReadyCell { cell, scenario, model, dataset: None, tokenizer, plan: None }
    })
});

/// Returns the suite's catalog in this repository.
fn suite() -> Catalog {
    Catalog::new(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../suite"))
}

/// Returns a prepared campaign of this kind, whose records go into the repository `registry`.
pub fn prepared(kind: Kind, registry: &Path, ids: &mut Ids) -> PreparedCampaign {
    let is_single = kind == Kind::Single;
    let variants = if is_single { &VARIANTS[1..] } else { &VARIANTS[..] }.to_vec();
    let cells = if is_single { &CELLS[..] } else { &CELLS[..1] }.to_vec();
    let repeats = match kind {
        Kind::Single => 2,
        Kind::Paired => 3,
        Kind::InTurns => 1,
        Kind::Gate => 0,
    };
    let campaign = ids.next_id();
    let round = Round::first(cells.len(), variants.len(), repeats);
    let plan = Plan {
        campaign,
        variants: variants.iter().map(|variant| variant.built.variant.clone()).collect(),
        cells: cells.iter().map(|cell| cell.cell.clone()).collect(),
        runs: interleave(&round, || ids.next_id()),
        random_order_seed: None,
    };
    let alternation =
        PlannedAlternation { budget_us: 600_000_000, family: 5, memory_percent: None };
    let in_turns = matches!(kind, Kind::InTurns | Kind::Gate);
    PreparedCampaign {
        command: vec!["release-bench".to_owned()],
        executor: "simulated".to_owned(),
        plan,
        inputs: vec![Vec::new(); cells.len()],
        each_us: vec![vec![0; variants.len()]; cells.len()],
        variants,
        cells,
        hardware: RecordedHardware(hardware()),
        // A node with a GPU is not calibrated.
        on_gpu: true,
        confirm_pairs: (kind == Kind::Paired).then_some(1),
        alternation: in_turns.then_some(alternation),
        commits: kind != Kind::Gate,
        registry: registry.to_owned(),
        gate: (kind == Kind::Gate).then(|| PreparedGate { out: gate_out(registry) }),
        ..PreparedCampaign::default()
    }
}

/// Returns the folder of a gate's comparison.
pub fn gate_out(clone: &Path) -> PathBuf {
    clone.join("target/gate")
}
