//! Submission rules over the runs of a campaign: order and overlap in time, the plan, missing
//! repeats.

use std::collections::{BTreeMap, BTreeSet};

use schema::campaign::{CampaignRecord, PlannedRun};
use schema::event::unix_s_of;
use schema::run::RunRecord;

use super::{ORDER, OVERLAP, PLANNED, Submission, WHOLE};
use crate::finding::Finding;
use crate::records::Stored;

/// Largest overlap of two runs in seconds: times are stored as whole seconds.
const OVERLAP_S_MAX: i64 = 1;

/// Judges a submission by the rules B08 to B11.
pub(super) fn findings(submission: &Submission) -> Vec<Finding> {
    let campaigns = submission.campaigns.iter().chain(&submission.known_campaigns);
    let campaigns: BTreeMap<&str, &CampaignRecord> =
        campaigns.map(|stored| (stored.record.id.as_str(), &stored.record)).collect();
    let mut found = timeline_problems(&submission.runs, &campaigns);
    for run in &submission.runs {
        found.extend(plan_problem(run, &campaigns).map(|text| PLANNED.breach(&run.path, text)));
    }
    found.extend(missing_runs(submission, &campaigns));
    found
}

/// Span of a run in time and its position in its campaign.
struct Span<'a> {
    path: &'a str,
    start: i64,
    end: i64,
    place: (u32, u32),
}

fn timeline_problems(
    runs: &[Stored<RunRecord>],
    campaigns: &BTreeMap<&str, &CampaignRecord>,
) -> Vec<Finding> {
    let mut lines: BTreeMap<(&str, &str), Vec<Span<'_>>> = BTreeMap::new();
    for run in runs {
        let (Some(slot), Some(time)) = (&run.record.campaign, &run.record.time) else { continue };
        let start = time.started_at.as_deref().and_then(unix_s_of);
        let end = time.finished_at.as_deref().and_then(unix_s_of);
        let (Some(start), Some(end)) = (start, end) else { continue };
        // Nodes of a cluster run side by side.
        if slot.executor == "local" {
            let (path, place) = (run.path.as_str(), (slot.block, slot.position));
            let line = lines.entry((&slot.id, &run.record.hardware.id)).or_default();
            line.push(Span { path, start, end, place });
        }
    }
    let mut found = Vec::new();
    for ((id, _), spans) in &mut lines {
        // The stages of a GPU validation run in several calls, in any order.
        let has_order = !campaigns.get(id).is_some_and(|campaign| campaign.is_validation());
        spans.sort_by_key(|span| (span.start, span.place));
        for pair in spans.windows(2) {
            let [before, after] = pair else { continue };
            if after.start < before.end - OVERLAP_S_MAX {
                let detail = format!("it began before `{}` had ended", before.path);
                found.push(OVERLAP.breach(after.path, detail));
            }
            if has_order && after.place < before.place {
                let detail = format!("it began after `{}`, which its plan has later", before.path);
                found.push(ORDER.remark(after.path, detail));
            }
        }
    }
    found
}

/// Returns how a run contradicts its campaign's record.
fn plan_problem(
    run: &Stored<RunRecord>,
    campaigns: &BTreeMap<&str, &CampaignRecord>,
) -> Option<String> {
    let record = &run.record;
    let Some(slot) = &record.campaign else {
        return Some("it names no campaign".to_owned());
    };
    let Some(campaign) = campaigns.get(slot.id.as_str()) else {
        return Some(format!("neither bundle nor registry has its campaign `{}`", slot.id));
    };
    let Some(planned) = campaign.plan.iter().find(|planned| planned.run == record.id) else {
        return Some("its campaign did not plan it".to_owned());
    };
    let due = PlannedRun::of(record);
    if *planned != due {
        let words = |run: &PlannedRun| {
            let PlannedRun { engine, release, model, scenario, block, position, .. } = run;
            format!("{engine} {release}, {model}, {scenario}, block {block}.{position}")
        };
        return Some(format!("it says {}, its campaign {}", words(&due), words(planned)));
    }
    let (own, due) = (&record.hardware.id, &campaign.hardware);
    (own != due).then(|| format!("it ran on `{own}`, its campaign on `{due}`"))
}

/// Cell of a planned run within its campaign.
fn cell(run: &PlannedRun) -> [&str; 4] {
    [&run.engine, &run.release, &run.model, &run.scenario]
}

/// Finds planned runs that are neither in the bundle nor in the registry, of cells that the bundle
/// has runs of. A run that the submitter says to have retracted is a remark.
fn missing_runs(
    submission: &Submission,
    campaigns: &BTreeMap<&str, &CampaignRecord>,
) -> Vec<Finding> {
    let there: BTreeSet<&str> =
        submission.all_runs().map(|(run, _)| run.record.id.as_str()).collect();
    let mut found = Vec::new();
    for (id, campaign) in campaigns {
        let of_campaign = submission
            .runs
            .iter()
            .filter(|run| run.record.campaign.as_ref().is_some_and(|slot| slot.id.as_str() == *id));
        let planned: Vec<PlannedRun> =
            of_campaign.clone().map(|run| PlannedRun::of(&run.record)).collect();
        let cells: BTreeSet<[&str; 4]> = planned.iter().map(cell).collect();
        let Some(first) = of_campaign.clone().next() else { continue };
        let absent = campaign.plan.iter().filter(|run| !there.contains(run.run.as_str()));
        let absent: Vec<&PlannedRun> = absent.filter(|run| cells.contains(&cell(run))).collect();
        let withheld = |run: &&&PlannedRun| submission.withheld.contains(&run.run);
        let (said, unsaid) = (
            absent.iter().filter(withheld).count(),
            absent.iter().find(|run| !submission.withheld.contains(&run.run)),
        );
        if let Some(run) = unsaid {
            let count = absent.len() - said;
            let detail = format!(
                "{count} runs that its campaign planned are missing, such as `{}` of {} {}, {}",
                run.run, run.engine, run.release, run.scenario
            );
            found.push(WHOLE.breach(&first.path, detail));
        }
        if said > 0 {
            let detail = format!("the submitter retracted {said} runs of its campaign");
            found.push(WHOLE.remark(&first.path, detail));
        }
    }
    found
}
