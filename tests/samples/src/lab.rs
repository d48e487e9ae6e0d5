//! A made-up lab: what a server with given options does is scripted, and its rounds are launched
//! until it concludes.

use std::collections::BTreeMap;

use judge::diff::policy;
use judge::lab::{Next, replay};
use judge::{Registry, Stored};
use schema::campaign::{CampaignLab, CampaignRecord, PlannedRun, SCHEMA};
use schema::canonical::{record_sha256, sha256_hex};
use schema::lab::{Candidate, LabFile, Round};
use schema::run::RunRecord;

use crate::registry::{registry, wobble};
use crate::{Sample, campaign_id, reseal};

/// What becomes of a launch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Fate {
    /// It answers so many times as fast as the baseline.
    Runs(f64),
    /// The server ends before it is ready.
    Dies,
    /// So many of 32 requests are lost.
    Loses(u64),
}

/// Number of the made-up campaign; its runs are numbered from a thousand times that.
const SERIAL: u64 = 60;

/// A lab that asks `file` and may make `runs_max` launches, each as `fate` has it.
///
/// # Panics
/// A made-up record has no JSON form.
pub fn lab(file: &LabFile, runs_max: u32, fate: impl Fn(&Candidate) -> Fate) -> Registry {
    let policy = policy::standard();
    let mut records: Vec<RunRecord> = Vec::new();
    while let Next::Round(round) = replay(file, &policy.file, runs_max, &records).next {
        let launched = launched(file, &round, records.len(), &fate);
        records.extend(launched);
    }
    let planned = records.iter().map(PlannedRun::of).collect();
    let mut campaign = CampaignRecord {
        schema: SCHEMA.to_owned(),
        id: campaign_id(SERIAL),
        command: ["lab", "made-up"].map(str::to_owned).to_vec(),
        releases: file.engines.iter().map(|engine| engine.version.clone()).collect(),
        hardware: Sample::default().hardware,
        plan: planned,
        policy: Some(policy.quoted),
        budget: BTreeMap::from([("wall_us".to_owned(), 3_141_000_000_u64.into())]),
        lab: Some(Box::new(CampaignLab {
            id: "made-up".to_owned(),
            sha256: sha256_hex(b"made-up"),
            file: file.clone(),
            runs_max,
        })),
        ..CampaignRecord::default()
    };
    campaign.record_sha256 = record_sha256(&campaign).expect("made-up figures are numbers");
    let path = schema::path::of_campaign(&campaign).expect("a made-up id is a ULID");
    let mut registry = registry(records);
    registry.campaigns.push(Stored { path, root: 0, record: campaign });
    registry
}

/// The records of a round, numbered after the `before` that there are.
fn launched(
    file: &LabFile,
    round: &Round,
    before: usize,
    fate: &impl Fn(&Candidate) -> Fate,
) -> Vec<RunRecord> {
    let mut records = Vec::new();
    let blocks = (0..round.repeats).flat_map(|_| file.profiles.iter());
    for (block, profile) in (round.block..).zip(blocks) {
        for (position, candidate) in (0..).zip(&round.candidates) {
            let engine = &file.engines[candidate.engine];
            let number = u64::try_from(before + records.len()).expect("few runs");
            let serial = SERIAL * 1_000 + number;
            let (speed, failed) = match fate(candidate) {
                Fate::Runs(speed) => (speed, 0),
                Fate::Dies => (1.0, 0),
                Fate::Loses(count) => (1.0, count),
            };
            let options = candidate.options.iter();
            let sample = Sample {
                // The server reports the options that it was started with.
                flags: options.map(|(axis, to)| (axis.clone(), to.clone().into())).collect(),
                engine: engine.id.clone(),
                release: engine.version.clone(),
                model: file.model.clone(),
                scenario: profile.clone(),
                serial,
                seed: serial,
                campaign: (campaign_id(SERIAL), block, position),
                repeat: block - round.block + 1,
                speed: speed * wobble(serial),
                failed,
                ..Sample::default()
            };
            let dies = fate(candidate) == Fate::Dies;
            let mut record = if dies { sample.failed_record() } else { sample.record() };
            if let Some(server) = &mut record.server {
                server.variant = candidate.variant();
                let argv = [engine.id.as_str(), "serve", "{model}", "--port", "{port}"];
                let flags = file.flags(candidate);
                server.argv = Some(argv.map(str::to_owned).into_iter().chain(flags).collect());
            }
            records.push(reseal(record));
        }
    }
    records
}
