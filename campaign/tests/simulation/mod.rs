//! Deterministic simulation of campaigns. The controller, the journal, the nodes and the registry are
//! the program's own code; the clock, the disk, the scheduler, the servers and other programs are
//! simulated. A seed decides what fails at which step: a process is killed, the power is lost with
//! what was not flushed, the disk is full, the scheduler is silent, a job is lost, a report comes
//! late, the clock is set. After each failure the campaign is resumed, until it is finished; its
//! records are then those of a campaign that nothing disturbed.
//!
//! `REDLINE_SEED=7 cargo nextest run -p campaign simulation --no-capture` replays a seed and prints
//! its steps. `REDLINE_SEED=0..100000 cargo test --release -p campaign simulation` runs many: cargo's
//! own runner has no time limit.

pub mod campaigns;
mod cluster;
mod faults;
mod figures;
mod files;
mod lives;
pub mod machine;
mod outcome;
pub mod programs;
pub mod time;
mod unsynced;

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use lives::Simulation;

/// Seeds that each run tries.
const SEEDS: Range<u64> = 0..100;
/// Seeds that found a fault in the program or in the simulation.
const FOUND: &[u64] = &[
    112,
    2_001_098,
    3_005_236,
    7_013_242,
    7_028_476,
    1_795_687_992_836_124,
    1_795_746_354_092_578,
];
/// Time for which new seeds are tried.
const NEW: Duration = Duration::from_secs(60);

/// Simulates the campaign of a seed.
fn run(seed: u64, is_alone: bool) {
    let simulation = Simulation::new(seed);
    let ended = catch_unwind(AssertUnwindSafe(|| simulation.carry_out()));
    if is_alone || ended.is_err() {
        println!("{}", simulation.log());
    }
    simulation.end();
    if let Err(panic) = ended {
        println!(
            "seed {seed} fails; `REDLINE_SEED={seed} cargo nextest run -p campaign simulation` replays it"
        );
        resume_unwind(panic);
    }
}

#[test]
fn a_campaign_has_all_its_records_whatever_fails_at_any_step() {
    let named = fixtures::named_seeds();
    let is_named = named.is_some();
    let seeds = named.unwrap_or(SEEDS);
    let is_alone = seeds.end - seeds.start == 1;
    FOUND.iter().filter(|_| !is_named).for_each(|seed| run(*seed, false));
    seeds.for_each(|seed| run(seed, is_alone));
}

/// The seeds are drawn from the clock, so that each run tries others.
#[test]
fn extra_new_seeds_fail_nowhere() {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let first = u64::try_from(now.as_micros()).unwrap();
    let began = Instant::now();
    let mut seed = first;
    while began.elapsed() < NEW {
        run(seed, false);
        seed += 1;
    }
    println!("{} seeds from {first} on", seed - first);
}
