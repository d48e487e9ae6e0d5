//! View of a lab: its recommendation, how certain that is, the result of every option, and how to
//! repeat the lab. Results come from `judge`, computed again from the runs; this module only
//! formats them.

mod conclusion;
mod section;
mod words;

use std::collections::BTreeMap;
use std::ops::Range;

pub use conclusion::view as conclusion;
use judge::lab::{Conclusion, Contrast, Launches, Next, Replay, Superseded, text};
use judge::summary;
use minijinja::{Value, context};
use schema::campaign::{CampaignLab, CampaignRecord};
use schema::lab::{Candidate, LabFile, LabStage};
use schema::metric::{Metric, by_name};
use schema::run::RunRecord;
use serde::Serialize;

use super::fact::{self, Fact, FactGroup};
use super::figure::{self, Column, Figure};
use crate::catalog::{self, Catalog, Run};
use crate::format::{self, Scale};
use crate::judged::{DecidedLab, Judged};
use crate::link::{Link, Target};
use crate::outside;

/// Names of the metrics that a lab's page shows under each profile, whatever its objective is.
const METRICS: [&str; 3] = ["output_tokens_per_s", "ttft_us_p50", "tpot_us_p50"];

/// Stages in the order in which a candidate's runs are searched: fresh runs first, because the runs
/// by which a candidate was selected overstate its gain.
const STAGES: [LabStage; 5] = [
    LabStage::Confirm,
    LabStage::Combinations,
    LabStage::Factorial,
    LabStage::Options,
    LabStage::Engines,
];

/// Lab campaign with its runs, and the lab's decisions as `judge` computed them again from the
/// runs.
#[derive(Debug)]
pub struct Lab<'a> {
    path: &'a str,
    /// Index of the results folder that the campaign was read from; 0 is the registry.
    pub root: usize,
    pub campaign: &'a CampaignRecord,
    pub asked: &'a CampaignLab,
    replay: &'a Replay,
    superseded: Option<&'a Superseded>,
    /// Runs of the campaign ordered by id, including retracted ones.
    pub runs: Vec<&'a Run<'a>>,
    by_id: BTreeMap<&'a str, &'a Run<'a>>,
}

/// Returns the labs of `catalog`, newest first.
pub fn all<'a>(catalog: &'a Catalog<'a>, judged: &'a Judged) -> Vec<Lab<'a>> {
    let campaigns = &catalog.registry.campaigns;
    let labs = judged.labs.iter().filter_map(|DecidedLab { campaign, replay, superseded }| {
        let stored = campaigns.get(*campaign)?;
        let campaign = &stored.record;
        let asked = campaign.lab.as_deref()?;
        let of = |record: &RunRecord| {
            record.campaign.as_ref().is_some_and(|slot| slot.id == campaign.id)
        };
        let runs = catalog.runs_where(of);
        let by_id = runs.iter().map(|run| (run.record.id.as_str(), *run)).collect();
        let superseded = superseded.as_ref();
        let (path, root) = (stored.path.as_str(), stored.root);
        Some(Lab { path, root, campaign, asked, replay, superseded, runs, by_id })
    });
    labs.collect()
}

impl<'a> Lab<'a> {
    /// Returns the target of the lab's page.
    pub fn target(&self) -> Target {
        Target::Lab { lab: self.asked.id.clone(), campaign: self.campaign.id.clone() }
    }

    /// Returns a link to the lab's page, whose text is the name of the lab and what it recommends.
    pub fn link(&self) -> Link {
        let text = format!("{}: {}", self.name(), self.recommended().0);
        Link { text, target: self.target() }
    }

    /// Returns the lab's question and what it recommends, in words.
    pub fn sentence(&self) -> String {
        let (found, gain) = self.recommended();
        let gain = if gain == "-" { String::new() } else { format!(" ({gain})") };
        format!("{} Recommended: {found}{gain}", outside::message(&self.file().question))
    }

    /// Builds the line of the lab in a list of labs.
    pub fn line(&self) -> Value {
        let (found, gain) = self.recommended();
        context! {
            lab => Link { text: self.name(), target: self.target() },
            model => outside::name(&self.asked.file.model),
            hardware => outside::name(&self.campaign.hardware),
            found,
            gain,
        }
    }

    /// Returns the recommended configuration and its gain, in words: `no conclusion yet` or
    /// `nothing` where there is no recommendation, and `-` without a gain.
    fn recommended(&self) -> (String, String) {
        let Some(found) = self.concluded() else {
            return ("no conclusion yet".to_owned(), "-".to_owned());
        };
        let Some(candidate) = &found.recommended else {
            return ("nothing: no candidate runs within the bounds".to_owned(), "-".to_owned());
        };
        let effect = conclusion::confirmed(found, candidate).and_then(|found| found.row.effect);
        let title = match words::superseded(self) {
            Some(newer) => format!("{}, {newer}", self.title(candidate)),
            None => self.title(candidate),
        };
        (title, words::gain(effect.as_ref()))
    }

    /// Returns the name of the lab on pages: `Lab cpu-smollm2`.
    pub fn name(&self) -> String {
        outside::name(&format!("Lab {}", self.asked.id))
    }

    fn file(&self) -> &'a LabFile {
        &self.asked.file
    }

    fn concluded(&self) -> Option<&'a Conclusion> {
        match &self.replay.next {
            Next::Conclusion(found) => Some(found),
            Next::Round(_) => None,
        }
    }

    fn metric(&self) -> Option<&'static Metric> {
        by_name(&self.file().objective.metric)
    }

    /// Returns the metrics that the page shows under each profile: that of the objective, and those of
    /// every lab.
    fn metrics(&self) -> Vec<&'static Metric> {
        let objective = self.metric().filter(|metric| !METRICS.contains(&metric.name));
        objective.into_iter().chain(METRICS.map(figure::metric)).collect()
    }

    /// Returns the title of a lab candidate on pages.
    fn title(&self, candidate: &Candidate) -> String {
        outside::name(&text::title(self.file(), candidate))
    }

    /// Returns the flags of the options of a candidate, which the engine's own flags do not contain;
    /// for a candidate without options none.
    fn own_flags(&self, candidate: &Candidate) -> Vec<String> {
        let file = self.file();
        let engine = file.engines.get(candidate.engine).map_or("", |engine| engine.id.as_str());
        let chosen = file.axes.iter().filter(|axis| axis.engine == engine).filter_map(|axis| {
            let name = candidate.options.get(&axis.name)?;
            axis.options.iter().find(|option| option.name == *name)
        });
        chosen.flat_map(|option| &option.flags).cloned().collect()
    }

    /// Returns the flags that all variants of an engine share, by engine; without engines that have
    /// none.
    fn common_flags(&self) -> Vec<(String, String)> {
        let engines = self.file().engines.iter().filter(|engine| !engine.flags.is_empty());
        engines.map(|engine| (outside::name(&engine.id), outside::command(&engine.flags))).collect()
    }

    /// Builds the column of a metric over all runs of the lab, so that all its figures have one
    /// unit.
    fn column(&self, metric: &'static Metric) -> Column {
        let found = summary::of_metric(metric, self.runs.iter().map(|run| run.record));
        Column { metric, scale: Scale::fit(metric.unit, found.map_or(0.0, |found| found.median)) }
    }

    fn launches(&self, stage: LabStage, candidate: &Candidate) -> Option<&'a Launches> {
        let same = |of: &&Launches| of.stage == stage && of.candidate == *candidate;
        self.replay.launches.iter().find(same)
    }

    /// Returns the runs under one profile among `launches`, which are those of a candidate in one
    /// stage; empty without `launches`.
    fn runs_of(&self, launches: Option<&Launches>, profile: usize) -> Vec<&'a Run<'a>> {
        let ids = launches.and_then(|launches| launches.runs.get(profile)).into_iter().flatten();
        ids.filter_map(|id| self.by_id.get(id.as_str()).copied()).collect()
    }

    /// Returns the figure of a metric over a candidate's runs: their mean, as comparisons show it;
    /// a missing figure where no run has the metric.
    fn figure(&self, metric: &Metric, runs: &[&Run], scale: Scale) -> Figure {
        match summary::of_metric(metric, runs.iter().map(|run| run.record)) {
            Some(found) if found.mean.is_finite() => Figure::mean(&found, scale),
            _ => Figure::missing("nothing was measured"),
        }
    }

    /// Returns the name of a profile's scenario, with a target if the scenario was run and so has a
    /// page.
    fn profile(&self, index: usize) -> Place {
        let id = self.file().profiles.get(index).map_or("", String::as_str);
        let run = self.runs.iter().find(|run| run.record.scenario.id == id);
        let scenario = run.map(|run| catalog::scenario(run.record));
        Place {
            text: outside::name(scenario.as_deref().unwrap_or(id)),
            page: scenario.map(|scenario| Target::Scenario { scenario }),
        }
    }

    fn profiles(&self) -> Range<usize> {
        0..self.file().profiles.len()
    }
}

/// Name of a model, hardware or scenario, with the target of its page if the site has one.
#[derive(Debug, Clone, Serialize)]
pub struct Place {
    pub text: String,
    pub page: Option<Target>,
}

/// Builds the view of the page of `lab` without conclusion and variants, and separately the
/// variants, page by page. `related` are links to other pages about the same model.
pub fn view(lab: &Lab, related: Vec<Link>) -> (Value, Vec<Value>) {
    let ran = |test: &dyn Fn(&RunRecord) -> bool| lab.runs.iter().any(|run| test(run.record));
    let place =
        |Link { text, target }: Link, exists: bool| Place { text, page: exists.then_some(target) };
    let (model, hardware) = (&lab.file().model, &lab.campaign.hardware);
    let view = context! {
        lab => outside::name(&lab.asked.id),
        question => outside::message(&lab.file().question),
        model => place(Link::model(model), ran(&|record| record.model.id == *model)),
        hardware =>
            place(Link::hardware(hardware), ran(&|record| record.hardware.id == *hardware)),
        // Sentences that a reader must see before the conclusion, or that say why there is none.
        notices => words::notices(lab),
        related,
        common => lab.common_flags(),
        // Effects that a factorial design has shown; empty for a lab without one.
        effects => effects(lab),
        method => words::method(lab),
        unexplored => words::unexplored(lab),
        environment => environment(lab),
        campaign => Link::new(&lab.campaign.id, Target::Record { path: lab.path.to_owned() }),
        // Command that runs the lab again.
        repeat => outside::command(&["cargo", "xtask", "lab", &lab.asked.id]),
    };
    (view, section::pages(lab))
}

/// Builds the effects that the lab's factorial design has shown, in the order of `judge`: the options
/// or pairs, and the effect in percent.
fn effects(lab: &Lab) -> Vec<Value> {
    let screening = lab.concluded().and_then(|found| found.screening.as_ref());
    let effects = screening.into_iter().flat_map(|screening| &screening.effects);
    let row = |effect: &Contrast| {
        context! {
            of => outside::line(&text::contrast(lab.file(), effect)),
            gain => effect.gain_pct.map_or_else(|| "undecidable".to_owned(), format::change),
        }
    };
    effects.map(row).collect()
}

/// Returns the facts about the lab, followed by those about machine, engines and load generator.
fn environment(lab: &Lab) -> Vec<FactGroup> {
    let known = |name: &str, values: Vec<String>, code| Fact {
        name: name.into(),
        values,
        reason: "not recorded".into(),
        code,
    };
    let file = lab.file();
    let engines = file.engines.iter();
    let engines = engines.map(|engine| outside::name(&format!("{} {}", engine.id, engine.version)));
    let launches =
        format!("{} of at most {}", lab.runs.len(), format::whole(u64::from(lab.asked.runs_max)));
    let spent = lab.campaign.budget.get("wall_us").and_then(serde_json::Value::as_u64);
    let policy = lab.campaign.policy.iter().map(|policy| format!("{}@{}", policy.id, policy.rev));
    let facts = vec![
        known("File", vec![outside::name(&format!("suite/labs/{}.toml", lab.asked.id))], true),
        known("Revision", vec![file.rev.to_string()], false),
        known("SHA-256", vec![outside::short_hash(&lab.asked.sha256, 12)], true),
        known("Target", vec![outside::name(&file.target)], true),
        known("Engines", engines.collect(), false),
        known("Runs", vec![launches], false),
        known("Took", spent.map(format::seconds).into_iter().collect(), false),
        known("Policy", policy.map(|quoted| outside::name(&quoted)).collect(), true),
    ];
    [vec![fact::group("Lab", facts)], fact::environment(&lab.runs)].concat()
}
