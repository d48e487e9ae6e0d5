//! Simulation of labs over a made-up engine whose best configuration is known: counts how often it
//! is recommended (docs/method/comparisons.md).

mod limits;

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;

use expect_test::expect;
use judge::diff::policy;
use judge::lab::{Conclusion, Failure, Found, Launch, Outcomes, explore, runs_min};
use samples::{LAB, Sample, campaign_id, reseal};
use schema::campaign::{CampaignLab, CampaignRecord, SCHEMA};
use schema::canonical::{record_sha256, sha256_hex, to_file_text};
use schema::lab::{Candidate, LabFile, LabStage, Round, parse};
use schema::path::of_run;
use schema::run::RunRecord;

use crate::scratch::{Scratch, write};
use crate::simulation::Random;

/// Number of simulated labs of each kind.
const LABS: u32 = 100;
/// Standard deviation of a run, in log units.
const NOISE: f64 = 0.01;
/// Standard deviation of the machine's drift from one run to the next, in log units.
const DRIFT: f64 = 0.002;
/// Budget of runs that none of these labs exhausts.
const PLENTY: u32 = 10_000;

/// A lab with one axis per gain (`a0`, `a1`, ...), whose only option is named after its gain in
/// percent.
fn lab(gains_pct: &[u32], combine: &str) -> LabFile {
    let axes: Vec<String> = (0..)
        .zip(gains_pct)
        .map(|(index, gain)| {
            format!(
                "[[axes]]\nname = \"a{index}\"\nengine = \"scripted\"\n\
                 options = [{{ name = \"{gain}\", flags = [\"--a{index}\"] }}]\n"
            )
        })
        .collect();
    let head = format!(
        "question = \"Which?\"\nrev = 1\ntarget = \"cpu\"\nmodel = \"m\"\n\
         profiles = [\"p\", \"q\"]\nobjective = {{ metric = \"total_tokens_per_s\" }}\n\
         engines = [{{ id = \"scripted\", version = \"v1\" }}]\ncombine = \"{combine}\"\n\
         budget = {{ runs = {PLENTY} }}\n"
    );
    parse(&(head + &axes.concat())).unwrap()
}

/// True gain of a candidate, in log units; gains multiply.
fn truth(candidate: &Candidate) -> f64 {
    candidate.options.values().map(|gain| (gain.parse::<f64>().unwrap() / 100.0).ln_1p()).sum()
}

/// Simulated machine: its speed drifts, and runs have noise of their own.
struct Machine {
    random: Random,
    drift: f64,
    /// True gain of a candidate, in log units.
    truth: fn(&Candidate) -> f64,
}

impl Machine {
    fn new(seed: u64, truth: fn(&Candidate) -> f64) -> Self {
        Self { random: Random::new(seed), drift: 0.0, truth }
    }

    fn round(&mut self, lab: &LabFile, round: &Round) -> Vec<Outcomes> {
        let empty = Outcomes(vec![Vec::new(); lab.profiles.len()]);
        let mut found = vec![empty; round.candidates.len()];
        for repeat in 0..round.repeats {
            for profile in 0..lab.profiles.len() {
                let mut order: Vec<usize> = (0..round.candidates.len()).collect();
                if repeat % 2 == 1 {
                    order.reverse();
                }
                for index in order {
                    self.drift += DRIFT * self.random.normal();
                    let noise = self.drift + NOISE * self.random.normal();
                    let value = ((self.truth)(&round.candidates[index]) + noise).exp() * 1_000.0;
                    let bounded = BTreeMap::new();
                    found[index].0[profile].push(Launch::Measured { value, bounded });
                }
            }
        }
        found
    }
}

fn simulated(lab: &LabFile, seed: u64, runs_max: u32) -> Conclusion {
    let mut machine = Machine::new(seed, truth);
    let measure = |round: &Round| Ok::<_, Infallible>(machine.round(lab, round));
    let Ok(found) = explore(lab, &policy::standard().file, runs_max, measure);
    found
}

/// Number of labs that end at a configuration within 2 % of the best, and the mean number of runs
/// per lab.
fn good(gains_pct: &[u32], combine: &str) -> (u32, u32) {
    let lab = lab(gains_pct, combine);
    let best: f64 = match combine {
        "one-at-a-time" => f64::from(*gains_pct.iter().max().unwrap()) / 100.0,
        _ => gains_pct.iter().map(|gain| 1.0 + f64::from(*gain) / 100.0).product::<f64>() - 1.0,
    };
    let least = best.ln_1p() + (1.0_f64 - 0.02).ln();
    let mut runs = 0;
    let good = (0..LABS).filter(|seed| {
        let found = simulated(&lab, u64::from(*seed), PLENTY);
        runs += found.runs;
        truth(&found.recommended.unwrap()) >= least
    });
    let good = u32::try_from(good.count()).unwrap();
    println!("{combine} of {gains_pct:?}: {good} of {LABS} within 2 %, {} launches", runs / LABS);
    (good, runs / LABS)
}

#[test]
fn what_is_recommended_is_within_two_percent_of_the_best() {
    let gains = [0, 3, 5, 10];
    for combine in ["one-at-a-time", "staged", "grid", "factorial"] {
        let (good, _) = good(&gains, combine);
        assert!(good >= 95, "{combine}: {good}");
    }
    for combine in ["staged", "factorial"] {
        let (good, _) = good(&[0, 0, 10, 0, 3, 0, 0, 5, 0], combine);
        assert!(good >= 95, "{combine}: {good}");
    }
}

#[test]
fn where_no_option_matters_the_baseline_is_recommended() {
    for combine in ["one-at-a-time", "staged", "grid", "factorial"] {
        let lab = lab(&[0, 0, 0, 0], combine);
        let recommended = |seed: &u32| simulated(&lab, u64::from(*seed), PLENTY).recommended;
        let kept = (0..LABS).filter(|seed| recommended(seed) == Some(LabFile::plain(0))).count();
        println!("{combine}: {kept} of {LABS} at the baseline");
        assert!(kept >= 95, "{combine}: {kept}");
    }
}

/// True gain of a candidate whose options `a0` and `a1` lose 0.27 and 0.54 % alone and gain 2.09 %
/// together, as the two options of a published lab do.
fn published_pair(candidate: &Candidate) -> f64 {
    let has = |axis: &str| candidate.options.contains_key(axis);
    let gain_pct: f64 = match (has("a0"), has("a1")) {
        (true, true) => 2.09,
        (true, false) => -0.27,
        (false, true) => -0.54,
        (false, false) => 0.0,
    };
    (gain_pct / 100.0).ln_1p()
}

#[test]
fn two_options_that_lose_alone_and_win_together_are_found_by_a_factorial_design() {
    let policy = policy::standard().file;
    for axes in [2, 5, 8] {
        let file = lab(&vec![0; axes], "factorial");
        let found = (0..LABS).filter(|seed| {
            let mut machine = Machine::new(u64::from(*seed), published_pair);
            let measure = |round: &Round| Ok::<_, Infallible>(machine.round(&file, round));
            let Ok(found) = explore(&file, &policy, PLENTY, measure);
            // Sixteen runs of the design, and eight of each confirmed candidate and the baseline.
            let confirmed = u32::try_from(found.confirmed.len()).unwrap();
            assert_eq!(found.runs, 2 * (16 + 8 * (1 + confirmed)));
            let recommended = found.recommended.unwrap();
            recommended.options.contains_key("a0") && recommended.options.contains_key("a1")
        });
        let found = found.count();
        println!("{axes} axes: the pair is recommended by {found} of {LABS}");
        assert!(found >= 95, "{axes} axes: {found}");
    }
    let file = lab(&[0; 5], "staged");
    let mut machine = Machine::new(1, published_pair);
    let measure = |round: &Round| Ok::<_, Infallible>(machine.round(&file, round));
    let Ok(found) = explore(&file, &policy, PLENTY, measure);
    assert_eq!(found.recommended, Some(LabFile::plain(0)), "neither of them helped alone");
}

#[test]
fn an_option_and_a_pair_that_servers_refuse_leave_the_others_decided() {
    let file = lab(&[0, 5, 0, 3, 0], "factorial");
    let is_refused = |candidate: &Candidate| {
        let has = |axis: &str| candidate.options.contains_key(axis);
        has("a0") || (has("a1") && has("a2"))
    };
    let mut machine = Machine::new(1, truth);
    let mut launched = Vec::new();
    let measure = |round: &Round| {
        let mut found = machine.round(&file, round);
        for (candidate, outcomes) in round.candidates.iter().zip(&mut found) {
            launched.push((round.stage, candidate.clone()));
            if is_refused(candidate) {
                let reason = "refused".to_owned();
                outcomes.0[0] = vec![Launch::Failed(Failure { reason, survived: None })];
            }
        }
        Ok::<_, Infallible>(found)
    };
    let Ok(found) = explore(&file, &policy::standard().file, PLENTY, measure);
    let failed = found.rows.iter().filter(|row| matches!(row.found, Found::Failed(_)));
    // Eight configurations have `a0`, and of the others two have both `a1` and `a2`.
    assert_eq!(failed.count(), 8 + 2, "each failed configuration is a row");
    let screening = found.screening.unwrap();
    assert_eq!((screening.planned, screening.measured), (16, 6));
    let effect = |axes: &[&str]| {
        let is = |of: &Candidate| of.options.keys().map(String::as_str).eq(axes.iter().copied());
        let mut effects = screening.effects.iter();
        effects.find(|effect| effect.candidates.iter().any(is)).map(|effect| effect.gain_pct)
    };
    assert_eq!((effect(&["a0"]), effect(&["a1", "a2"])), (Some(None), Some(None)));
    assert!(effect(&["a1"]).unwrap().is_some_and(|gain| gain > 2.0), "{:?}", effect(&["a1"]));
    let confirmed = launched.iter().filter(|(stage, _)| *stage == LabStage::Confirm);
    for (_, candidate) in confirmed {
        assert!(!is_refused(candidate), "what is refused is not confirmed: {candidate:?}");
    }
    let recommended = found.recommended.unwrap();
    assert!(recommended.options.contains_key("a1") && recommended.options.contains_key("a3"));
}

#[test]
fn halving_spares_launches_of_what_does_not_help() {
    let gains = [0, 0, 0, 0, 0, 0, 0, 10];
    let (_, runs) = good(&gains, "one-at-a-time");
    // Runs without halving: every candidate as often as a finalist, and the finalists.
    let all = 2 * (9 + 3) * policy::standard().file.confirm_pairs;
    assert!(runs < all * 3 / 4, "{runs} of {all}");
}

#[test]
fn the_same_outcomes_give_the_same_conclusion() {
    let lab = lab(&[0, 3, 5, 10], "staged");
    assert_eq!(simulated(&lab, 7, PLENTY), simulated(&lab, 7, PLENTY));
    assert_ne!(simulated(&lab, 7, PLENTY), simulated(&lab, 8, PLENTY));
}

#[test]
fn a_failed_option_is_a_row_with_its_reason_and_never_recommended() {
    let lab = lab(&[10, 3], "staged");
    let mut machine = Machine::new(1, truth);
    let measure = |round: &Round| {
        let mut found = machine.round(&lab, round);
        for (candidate, outcomes) in round.candidates.iter().zip(&mut found) {
            if candidate.options.contains_key("a0") {
                let reason = "out of memory".to_owned();
                let failure = Failure { reason, survived: Some(0.514) };
                outcomes.0[1] = vec![Launch::Failed(failure)];
            }
        }
        Ok::<_, Infallible>(found)
    };
    let Ok(found) = explore(&lab, &policy::standard().file, PLENTY, measure);
    let recommended = found.recommended.unwrap();
    assert_eq!(recommended.variant().as_deref(), Some("a1-3"));
    let row = found.rows.iter().find(|row| row.candidate.options.contains_key("a0")).unwrap();
    let Found::Failed(failure) = &row.found else { panic!("{row:?}") };
    assert_eq!((failure.reason.as_str(), failure.survived), ("out of memory", Some(0.514)));
    assert_eq!(row.effect, None, "a failed option has no number beside the others");
}

/// The made-up engine, with a bounded metric whose value `of` gives for a candidate.
fn bounded(of: fn(&Candidate) -> f64) -> Conclusion {
    let mut lab = lab(&[10, 3], "staged");
    lab.objective.bounds.insert("ttft_us_p99".to_owned(), 1e6);
    let mut machine = Machine::new(1, truth);
    let measure = |round: &Round| {
        let mut found = machine.round(&lab, round);
        for (candidate, outcomes) in round.candidates.iter().zip(&mut found) {
            for launch in outcomes.0.iter_mut().flatten() {
                let Launch::Measured { bounded, .. } = launch else { continue };
                bounded.insert("ttft_us_p99".to_owned(), of(candidate));
            }
        }
        Ok::<_, Infallible>(found)
    };
    let Ok(found) = explore(&lab, &policy::standard().file, PLENTY, measure);
    found
}

#[test]
fn what_does_not_keep_the_bounds_is_not_recommended() {
    let fast_is_late = bounded(|it| if it.options.contains_key("a0") { 2e6 } else { 5e5 });
    assert_eq!(fast_is_late.recommended.unwrap().variant().as_deref(), Some("a1-3"));
    assert!(fast_is_late.rows.iter().any(|row| matches!(&row.found,
        Found::OutOfBounds { metric, profile, median: 2e6 }
            if metric == "ttft_us_p99" && profile == "p")));
    let baseline_is_late = bounded(|it| if it.options.contains_key("a1") { 5e5 } else { 2e6 });
    assert_eq!(baseline_is_late.recommended.unwrap().variant().as_deref(), Some("a1-3"));
    assert_eq!(bounded(|_| 2e6).recommended, None, "nothing keeps the bound");
}

#[test]
fn a_limit_of_one_profile_excludes_what_is_faster_and_breaks_it_there() {
    for combine in ["staged", "factorial"] {
        let mut file = lab(&[10, 3], combine);
        let limit = [("tpot_us_p50".to_owned(), 3e4)].into();
        file.objective.by_profile = [("q".to_owned(), limit)].into();
        let mut machine = Machine::new(1, truth);
        let measure = |round: &Round| {
            let mut found = machine.round(&file, round);
            for (candidate, outcomes) in round.candidates.iter().zip(&mut found) {
                let tpot = if candidate.options.contains_key("a0") { 5e4 } else { 2e4 };
                for launch in outcomes.0.iter_mut().flatten() {
                    let Launch::Measured { bounded, .. } = launch else { continue };
                    bounded.insert("tpot_us_p50".to_owned(), tpot);
                }
            }
            Ok::<_, Infallible>(found)
        };
        let Ok(found) = explore(&file, &policy::standard().file, PLENTY, measure);
        assert_eq!(found.recommended.unwrap().variant().as_deref(), Some("a1-3"), "{combine}");
        let mut broken = found.rows.iter().filter_map(|row| match &row.found {
            Found::OutOfBounds { profile, .. } => Some((profile, &row.candidate)),
            _ => None,
        });
        assert!(broken.all(|(profile, of)| profile == "q" && of.options.contains_key("a0")));
        let is_fast = |of: &Candidate| of.options.contains_key("a0");
        assert!(!found.confirmed.iter().any(|of| is_fast(&of.row.candidate)), "{combine}");
    }
}

#[test]
fn a_budget_keeps_launches_for_the_last_round_and_says_what_was_not_explored() {
    let lab = lab(&[10, 3, 5], "staged");
    let policy = policy::standard().file;
    let least = runs_min(&lab, &policy);
    // Four candidates at three runs and three at eight, under two profiles.
    assert_eq!(least, 2 * (4 * 3 + 3 * 8));
    let found = simulated(&lab, 1, least);
    assert!(found.runs <= least && !found.confirmed.is_empty(), "{found:?}");
    let unexplored = |stage| {
        let of = found.rows.iter().filter(move |row| row.stage == stage);
        of.filter(|row| matches!(row.found, Found::NotExplored { .. })).count()
    };
    assert_eq!((unexplored(LabStage::Options), unexplored(LabStage::Combinations)), (0, 4));
}

#[test]
fn every_lab_file_is_sound() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../suite");
    let exists = |kind: &str, id: &str| folder.join(format!("{kind}/{id}.toml")).exists();
    let mut count = 0;
    for entry in std::fs::read_dir(folder.join("labs")).unwrap() {
        let path = entry.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        let lab = parse(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        assert!(text.starts_with("question = "), "{}: the question comes first", path.display());
        assert!(exists("targets", &lab.target) && exists("models", &lab.model), "{path:?}");
        assert!(lab.profiles.iter().all(|id| exists("scenarios", id)), "{path:?}");
        assert!(lab.engines.iter().all(|engine| exists("engines", &engine.id)), "{path:?}");
        count += 1;
    }
    assert!(count > 0);
}

/// Published page whose options the suite's lab of Qwen3.5 9B measures again, with repeats.
const PAGE: &str = "003_b58ebedf0df33e6b.txt";

/// Words of each list after "Backend Parameters:" on a page.
fn backend_parameters(page: &str) -> BTreeSet<Vec<String>> {
    let fenced = page.split("Backend Parameters: ```bash ").skip(1);
    let words = |rest: &str| {
        let line = rest.split("```").next().unwrap();
        line.split_whitespace().map(str::to_owned).collect::<Vec<String>>()
    };
    fenced.map(words).collect()
}

/// Every candidate of an engine: no option or one option of each of its axes.
fn every_candidate(lab: &LabFile, engine: usize) -> Vec<Candidate> {
    let mut all = vec![LabFile::plain(engine)];
    for axis in lab.axes.iter().filter(|axis| axis.engine == lab.engines[engine].id) {
        for index in 0..all.len() {
            for option in &axis.options {
                let mut with = all[index].clone();
                with.options.insert(axis.name.clone(), option.name.clone());
                all.push(with);
            }
        }
    }
    all
}

/// Sorts flags: a server accepts them in any order, and the page itself varies the order.
fn sorted(mut words: Vec<String>) -> Vec<String> {
    words.sort();
    words
}

#[test]
fn the_lab_of_a_published_page_has_every_configuration_of_it_word_by_word() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let text = std::fs::read_to_string(root.join("suite/labs/h100-qwen3.5-9b.toml")).unwrap();
    let lab = parse(&text).unwrap();
    let offered: BTreeSet<(String, Vec<String>)> = (0..lab.engines.len())
        .flat_map(|engine| every_candidate(&lab, engine))
        .map(|candidate| {
            let engine = lab.engines[candidate.engine].id.clone();
            (engine, sorted(lab.flags(&candidate)))
        })
        .collect();
    let blocks = root.join("results/imports/performance-lab/d88cdf37-r5");
    let mut published = BTreeSet::new();
    for entry in std::fs::read_dir(blocks).unwrap() {
        let text = std::fs::read_to_string(entry.unwrap().path()).unwrap();
        let run: RunRecord = serde_json::from_str(&text).unwrap();
        let flags = run.server.and_then(|server| server.argv).unwrap();
        let engine = lab.engines.iter().find(|engine| engine.id == run.engine.name).unwrap();
        assert_eq!(engine.version, run.engine.release);
        assert_eq!((&run.model.id, &run.hardware.id), (&lab.model, &lab.target));
        let asked = (run.engine.name, sorted(flags.clone()));
        assert!(offered.contains(&asked), "no candidate of the lab is {asked:?}");
        published.insert(flags);
    }
    assert_eq!(published.len(), 15, "24 blocks of 15 configurations");
    let Some(page) = fixtures::published_page(PAGE) else { return };
    assert_eq!(backend_parameters(&std::fs::read_to_string(page).unwrap()), published);
}

/// Records of a round on an engine that a batch of 4 makes slower and 16-bit keys make faster, and
/// that cannot start with 8-bit keys.
fn launched(round: &Round, serial: &mut u64) -> Vec<RunRecord> {
    let mut records = Vec::new();
    for block in round.block..round.block + 2 * round.repeats {
        for (position, candidate) in (0..).zip(&round.candidates) {
            let has = |axis: &str, option: &str| {
                candidate.options.get(axis).is_some_and(|name| name == option)
            };
            *serial += 1;
            let slow = if has("batch", "4") { 0.9 } else { 1.0 };
            let fast = if has("kv", "f16") { 1.1 } else { 1.0 };
            let sample = Sample {
                serial: *serial,
                seed: *serial,
                campaign: (campaign_id(1), block, position),
                speed: slow * fast,
                ..Sample::default()
            };
            let mut record =
                if has("kv", "fp8") { sample.failed_record() } else { sample.record() };
            if let Some(server) = &mut record.server {
                server.variant = candidate.variant();
            }
            records.push(reseal(record));
        }
    }
    records
}

#[test]
fn a_lab_is_asked_for_its_next_round_until_it_concludes() {
    let scratch = Scratch::new();
    scratch.write("lab.toml", LAB);
    let staged = scratch.staged("o", &[]);
    let (file, campaign) = (scratch.path("lab.toml"), campaign_id(1));
    let ask = |format: &str| {
        let named = ["lab", file.to_str().unwrap(), "--campaign", &campaign, "--format", format];
        let answer =
            scratch.results(&[&named[..], &["--overlay", staged.to_str().unwrap()]].concat());
        assert_eq!(answer.code, 0, "{}", answer.err);
        answer.out
    };
    expect![[r#"
        next: options, 8 launches 3 times
          redline v0.9.2
          redline v0.9.2, batch 4
          redline v0.9.2, kv f16
          redline v0.9.2, kv fp8
    "#]]
    .assert_eq(&ask("text"));
    let mut serial = 0;
    let mut stages = Vec::new();
    loop {
        let next: serde_json::Value = serde_json::from_str(&ask("json")).unwrap();
        assert_eq!(next["text"], ask("text").trim_end(), "programs are told what people are");
        let Some(round) = next.get("round") else { break };
        let round: Round = serde_json::from_value(round.clone()).unwrap();
        stages.push(round.stage);
        for record in launched(&round, &mut serial) {
            write(&staged.join(of_run(&record).unwrap()), &to_file_text(&record).unwrap());
        }
    }
    assert_eq!(stages, [LabStage::Options, LabStage::Confirm]);
    expect![[r#"
        recommended: redline v0.9.2, kv f16
          flags: --threads 2 --kv-dtype f16
          after 56 launches
        STAGE    CANDIDATE                GAIN     INTERVAL         PAIRS  FOUND
        options  redline v0.9.2, batch 4  -10.1 %  -10.6 to -9.6 %  3      no gain
        options  redline v0.9.2, kv f16   +10.0 %  +9.4 to +10.6 %  3      gain
        options  redline v0.9.2, kv fp8   -        -                -      failed: the server ended before it was ready
        confirm  redline v0.9.2, kv f16   +9.9 %   +9.6 to +10.2 %  8      confirmed
    "#]].assert_eq(&ask("text"));
    let concluded = ask("text");
    scratch.write(
        "lab.toml",
        &LAB.replace("\"--max-batch-size\", \"4\"", "\"--batch\", \"8\"").replace("\"4\"", "\"8\""),
    );
    assert!(ask("text").starts_with("next: options"), "another file wants other runs");
    let mut record = CampaignRecord {
        schema: SCHEMA.to_owned(),
        id: campaign.clone(),
        lab: Some(Box::new(CampaignLab {
            id: "lab".to_owned(),
            sha256: sha256_hex(LAB.as_bytes()),
            file: parse(LAB).unwrap(),
            runs_max: 400,
        })),
        ..CampaignRecord::default()
    };
    record.record_sha256 = record_sha256(&record).unwrap();
    let path = schema::path::of_campaign(&record).unwrap();
    write(&staged.join(path), &to_file_text(&record).unwrap());
    assert_eq!(ask("text"), concluded, "a finished campaign keeps its conclusion");
}

#[test]
fn a_lab_that_cannot_be_answered_is_refused_with_what_to_do() {
    let scratch = Scratch::new();
    scratch.write("small.toml", &LAB.replace("runs = 400", "runs = 20"));
    scratch.write("other.toml", &LAB.replace("total_tokens_per_s", "speed"));
    for (name, code, error) in [
        (
            "small.toml",
            2,
            "error: a budget of 20 launches concludes nothing: 72 judge every option once and \
             confirm the best\nhint: allow 72, or leave out options or profiles",
        ),
        ("other.toml", 2, "is no lab: no metric `speed`; known are requests_per_s"),
        ("none.toml", 4, "No such file or directory"),
    ] {
        let file = scratch.path(name);
        let answer =
            scratch.results(&["lab", file.to_str().unwrap(), "--campaign", &campaign_id(1)]);
        assert_eq!(answer.code, code, "{name}: {}", answer.err);
        assert!(answer.err.contains(error), "{name}: {}", answer.err);
    }
}
