//! Tables of what the gate found: of real trials, of replays of their noise, and of the half-widths
//! of intervals.

use std::collections::BTreeSet;

use judge::alternation::replay::{Noise, effects, replay};
use judge::binomial::exact_interval;
use judge::quantile::median;
use schema::metric::by_name;
use schema::random::SplitMix64;

use super::planted::{Kind, Planted};
use super::trial::{ScenarioTrial, Trial};
use crate::float;

/// Times in minutes within which a change is counted as found.
const WITHIN_MIN: [u64; 3] = [5, 10, 15];
/// Confidence of the intervals of rates.
const CONFIDENCE: f64 = 0.95;
/// Number of replays of each effect.
const REPLAYS: u64 = 1_000;
/// Seed of the replays.
const SEED: u64 = 1;
/// Metrics that a slower step of the engine makes worse.
const OF_STEP: &[&str] = &["output_tokens_per_s", "tpot_us_p50", "ttft_us_p50"];
/// Effects that are replayed: title, metrics that become worse, and by how many percent.
const EFFECTS: [(&str, &[&str], f64); 7] = [
    ("identical code", &[], 0.0),
    ("each step 5 % slower", OF_STEP, 5.0),
    ("each step 3 % slower", OF_STEP, 3.0),
    ("each step 2 % slower", OF_STEP, 2.0),
    ("TTFT alone 5 % longer", &["ttft_us_p50"], 5.0),
    ("TPOT p99 alone 20 % longer", &["tpot_us_p99"], 20.0),
    ("2 % more memory", &["rss_bytes_max"], 2.0),
];
/// Metrics whose half-widths are shown.
const OF_WIDTH: [&str; 3] = ["output_tokens_per_s", "ttft_us_p50", "tpot_us_p50"];

/// Renders all tables, as far as there are trials for them.
pub fn render(planted: &Planted, trials: &[Trial]) -> String {
    let decided: Vec<&Trial> = trials.iter().filter(|trial| !trial.whole).collect();
    let parts = [
        found(planted, &decided),
        same(planted, &decided),
        replays(planted, &decided),
        half_widths(trials),
        provenance(trials),
    ];
    let parts: Vec<String> = parts.into_iter().filter(|part| !part.is_empty()).collect();
    match parts.is_empty() {
        true => "Not measured yet: today's judge has no trials.".to_owned(),
        false => parts.join("\n"),
    }
}

/// Renders the planted changes that have trials: how many were found, and how soon.
fn found(planted: &Planted, trials: &[&Trial]) -> String {
    let mut rows = String::new();
    for kind in planted.kinds.iter().filter(|kind| kind.patch.is_some()) {
        let own = of_kind(kind, trials);
        if own.is_empty() {
            continue;
        }
        let within = WITHIN_MIN.map(|minutes| match kind.worse.is_empty() {
            true => String::new(),
            false => share(own.iter().filter(|trial| is_found(trial, minutes)).count(), own.len()),
        });
        let times: Vec<f64> =
            own.iter().filter_map(|trial| Some(float(trial.found_us?) / 60e6)).collect();
        let time = median(&times).map_or(String::new(), |minutes| format!("{minutes:.1}"));
        rows += &format!(
            "| `{}` | {} | {}{:.0} | {} | {} | {} | {time} | {} |\n",
            kind.id,
            kind.does,
            if kind.is_exact { "" } else { "about " },
            kind.size_pct,
            own.len(),
            measured(kind, &own),
            within.join(" | "),
            kind.wanted,
        );
    }
    if rows.is_empty() {
        return rows;
    }
    format!(
        "Planted changes, real trials:\n\n\
         | change | what it does | size, % | trials | measured, % | found in 5 min | in 10 min | \
         in 15 min | median time, min | wanted |\n|---|---|---|---|---|---|---|---|---|---|\n{rows}"
    )
}

/// Formats what the trials measured of the change in the metric that the kind shows: the median of
/// the effects over trials and scenarios.
fn measured(kind: &Kind, trials: &[&&Trial]) -> String {
    let Some(metric) = kind.shows.as_ref().or(kind.worse.first()) else { return String::new() };
    let effects: Vec<f64> = trials.iter().flat_map(|trial| trial.effects_pct(metric)).collect();
    let title = by_name(metric).map_or("", |metric| metric.title);
    median(&effects).map_or(String::new(), |pct| format!("{title} {pct:+.1}"))
}

/// Renders the trials of identical code, in which nothing may be called worse.
fn same(planted: &Planted, trials: &[&Trial]) -> String {
    let same = planted.kinds.iter().filter(|kind| kind.patch.is_none());
    let own: Vec<&&Trial> = same.flat_map(|kind| of_kind(kind, trials)).collect();
    if own.is_empty() {
        return String::new();
    }
    let count = |is: &dyn Fn(&Trial) -> bool| own.iter().filter(|trial| is(trial)).count();
    let worse = share(count(&|trial| trial.any_worse), own.len());
    let unchanged = share(count(&|trial| trial.all_unchanged), own.len());
    let times: Vec<f64> = own.iter().map(|trial| float(trial.spent_us) / 60e6).collect();
    let time = median(&times).unwrap_or(0.0);
    let wanted = |of: &str| {
        let line = planted.kinds.iter().find(|kind| kind.patch.is_none());
        let parts = line.map(|kind| kind.wanted.split("; ").collect::<Vec<_>>());
        let found = parts.unwrap_or_default().into_iter().find(|part| part.starts_with(of));
        found.map_or(String::new(), |part| {
            part.trim_start_matches(of).trim_start_matches(':').trim().to_owned()
        })
    };
    format!(
        "Identical code, built twice, real trials, each of {time:.1} min in the median:\n\n\
         | | trials | wanted |\n|---|---|---|\n\
         | any release-blocking metric called worse | {worse} | {} |\n\
         | every release-blocking metric called unchanged | {unchanged} | {} |\n",
        wanted("worse"),
        wanted("unchanged"),
    )
}

/// Renders error rates and power by replays of the starts of identical code.
fn replays(planted: &Planted, trials: &[&Trial]) -> String {
    let (noise, count) = noise(planted, trials);
    let Some(budget_us) = trials.iter().map(|trial| trial.budget_us).max().filter(|_| count > 0)
    else {
        return String::new();
    };
    let mut rows = String::new();
    for (title, names, size_pct) in EFFECTS {
        let (mut worse, mut unchanged, mut within) = (0, 0, [0; 3]);
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let effects = effects(&names, size_pct);
        // Every effect meets the same starts.
        let mut random = SplitMix64(SEED);
        for _ in 0..REPLAYS {
            let outcome = replay(&noise, &effects, budget_us, &mut random);
            worse += usize::from(outcome.any_worse);
            unchanged += usize::from(outcome.all_unchanged);
            for (found, minutes) in within.iter_mut().zip(WITHIN_MIN) {
                *found +=
                    usize::from(outcome.found_us.is_some_and(|us| us <= minutes * 60_000_000));
            }
        }
        let replays = usize::try_from(REPLAYS).unwrap_or(usize::MAX);
        let shares = within.map(|found| match names.is_empty() {
            true => String::new(),
            false => percent_of(found, replays),
        });
        let (worse, unchanged) = (percent_of(worse, replays), percent_of(unchanged, replays));
        rows += &format!("| {title} | {worse} | {unchanged} | {} |\n", shares.join(" | "));
    }
    format!(
        "{} replays of each row, drawn from the starts of identical code in trials that were \
         not used for the design (number of trials: {count}):\n\n\
         | effect added | called worse | all unchanged | found in 5 min | in 10 min | in 15 min |\n\
         |---|---|---|---|---|---|\n{rows}",
        crate::clients::table::grouped(float(REPLAYS), 0),
    )
}

/// Returns the noise of the trials of identical code, by scenario in the order of the first trial,
/// and the number of these trials. The first ones, which served the design, are left out.
fn noise(planted: &Planted, trials: &[&Trial]) -> (Vec<Noise>, usize) {
    let of_design = |kind: &Kind| of_kind(kind, trials).into_iter().skip(kind.design);
    let same = planted.kinds.iter().filter(|kind| kind.patch.is_none());
    let own: Vec<&&Trial> = same.flat_map(of_design).collect();
    let mut noise: Vec<(&str, Noise)> = Vec::new();
    for scenario in own.iter().flat_map(|trial| &trial.scenarios) {
        let found = scenario.noise();
        match noise.iter_mut().find(|(id, _)| *id == scenario.scenario) {
            Some((_, all)) => all.starts.extend(found.starts),
            None => noise.push((&scenario.scenario, found)),
        }
    }
    (noise.into_iter().map(|(_, noise)| noise).collect(), own.len())
}

/// Renders the half-widths of the intervals after the whole time of each scenario.
fn half_widths(trials: &[Trial]) -> String {
    let whole: Vec<&ScenarioTrial> =
        trials.iter().filter(|trial| trial.whole).flat_map(|trial| &trial.scenarios).collect();
    let mut scenarios: Vec<&str> = Vec::new();
    for scenario in &whole {
        if !scenarios.contains(&scenario.scenario.as_str()) {
            scenarios.push(&scenario.scenario);
        }
    }
    if scenarios.is_empty() {
        return String::new();
    }
    let title = |name: &str| by_name(name).map_or("", |metric| metric.title);
    let mut text = format!(
        "Half-widths in percent of the intervals of identical code after ten minutes in each \
         scenario, medians of the comparisons; wanted: 2, better 1:\n\n\
         | scenario | comparisons | {} |\n|---|---|---|---|---|\n",
        OF_WIDTH.map(title).join(" | ")
    );
    for id in scenarios {
        let own: Vec<&&ScenarioTrial> = whole.iter().filter(|one| one.scenario == id).collect();
        let width = |name: &str| {
            let of = |one: &&&ScenarioTrial| {
                let judged = one.estimates();
                let (low, high) = judged.iter().find(|one| one.metric.name == name)?.interval_pct;
                Some((high - low) / 2.0)
            };
            let widths: Vec<f64> = own.iter().filter_map(of).collect();
            median(&widths).map_or(String::new(), |width| format!("{width:.2}"))
        };
        text += &format!("| {id} | {} | {} |\n", own.len(), OF_WIDTH.map(width).join(" | "));
    }
    text
}

/// Formats when, where and on which commits the trials were run.
fn provenance(trials: &[Trial]) -> String {
    let day = |trial: &Trial| trial.began_at.get(..10).unwrap_or("an unknown day").to_owned();
    let days: BTreeSet<String> = trials.iter().map(day).collect();
    let (Some(first), Some(last)) = (days.first(), days.last()) else { return String::new() };
    let days = if first == last { format!("on {first}") } else { format!("{first} to {last}") };
    let short = |trial: &Trial| trial.commit.get(..10).unwrap_or(&trial.commit).to_owned();
    let commits: BTreeSet<String> = trials.iter().map(short).collect();
    let hardware: BTreeSet<&str> = trials.iter().map(|trial| &*trial.hardware).collect();
    let join = |of: Vec<&str>| of.join(", ");
    let hours: f64 = trials.iter().map(|trial| float(trial.wall_us) / 3.6e9).sum();
    format!(
        "Measured {days} at {}: {}, {hours:.1} hours. Brackets are exact binomial intervals of 95 %.\n",
        join(commits.iter().map(String::as_str).collect()),
        join(hardware.into_iter().collect()),
    )
}

fn of_kind<'a, 'b>(kind: &Kind, trials: &'b [&'a Trial]) -> Vec<&'b &'a Trial> {
    trials.iter().filter(|trial| trial.kind == kind.id).collect()
}

fn is_found(trial: &Trial, minutes: u64) -> bool {
    trial.found_us.is_some_and(|us| us <= minutes * 60_000_000)
}

/// Formats a count of trials with its exact interval, such as `19 of 20 [75 to 100 %]`.
fn share(hits: usize, trials: usize) -> String {
    format!("{hits} of {trials}{}", bracket(hits, trials, 0))
}

/// Formats a count of replays in percent with its exact interval.
#[expect(clippy::cast_precision_loss, reason = "there are a thousand replays")]
fn percent_of(hits: usize, trials: usize) -> String {
    format!("{:.1} %{}", 100.0 * hits as f64 / trials as f64, bracket(hits, trials, 1))
}

fn bracket(hits: usize, trials: usize, digits: usize) -> String {
    let Some((low, high)) = exact_interval(hits as u64, trials as u64, CONFIDENCE) else {
        return String::new();
    };
    format!(" [{:.digits$} to {:.digits$} %]", 100.0 * low, 100.0 * high)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gate_bench::trial::JudgedMetric;
    use expect_test::expect;
    use judge::alternation::Call;
    use schema::comparison::DecisionKind;

    fn planted() -> Planted {
        toml::from_str(
            "[[kind]]\nid = \"step-5\"\npatch = \"step-5.patch\"\ndoes = \"Each step is slower.\"\n\
             worse = [\"output_tokens_per_s\"]\nsize_pct = 5.0\nis_exact = true\ntrials = 10\n\
             wanted = \"19 of 20 in 10 min\"\n\
             [[kind]]\nid = \"same\"\ndoes = \"Nothing.\"\nworse = []\nsize_pct = 0.0\n\
             is_exact = true\ntrials = 20\ndesign = 1\n\
             wanted = \"worse: at most 1 in 40; unchanged: 30 of 40\"\n",
        )
        .unwrap()
    }

    /// Trial of one scenario with thirty starts of ten seconds, in which throughput changed by this
    /// log ratio, more or less.
    fn trial(kind: &str, log: f64, found_us: Option<u64>, whole: bool) -> Trial {
        let call = if found_us.is_some() { Call::Worse } else { Call::Unchanged };
        let logs = (0..30).map(|index| Some(log + 0.001 * f64::from(index % 5 - 2))).collect();
        let judged = JudgedMetric {
            metric: "output_tokens_per_s".to_owned(),
            call,
            effect_pct: 100.0 * log.exp_m1(),
            interval_pct: (-1.0, 1.0),
            spent_us: 60_000_000,
            starts: 6,
            slices: 240,
        };
        let scenario = ScenarioTrial {
            scenario: "burst@1".to_owned(),
            arrival: None,
            family: 1,
            budget_us: 300_000_000,
            ends_us: (1..=30).map(|end| end * 10_000_000).collect(),
            slices: vec![40; 30],
            log_ratios: [
                ("output_tokens_per_s".to_owned(), logs),
                ("rss_bytes_max".to_owned(), vec![Some(0.0); 30]),
            ]
            .into(),
            judged: vec![judged],
        };
        Trial {
            began_at: "2026-11-26T01:02:03Z".to_owned(),
            hardware: "cpu-x-2c".to_owned(),
            kind: kind.to_owned(),
            commit: "0123456789abcdef".to_owned(),
            budget_us: 300_000_000,
            whole,
            scenarios: vec![scenario],
            pooled: Vec::new(),
            decision: DecisionKind::Ship,
            any_worse: call == Call::Worse,
            all_unchanged: call == Call::Unchanged,
            found_us,
            spent_us: 60_000_000,
            wall_us: 90_000_000,
        }
    }

    #[test]
    fn tables_tell_trials_from_replays_and_have_exact_intervals() {
        let trials = [
            trial("step-5", -0.049, Some(60_000_000), false),
            trial("step-5", -0.049, Some(420_000_000), false),
            trial("same", 0.0, None, false),
            trial("same", 0.0, None, false),
            trial("same", 0.0, None, true),
        ];
        expect![[r#"
            Planted changes, real trials:

            | change | what it does | size, % | trials | measured, % | found in 5 min | in 10 min | in 15 min | median time, min | wanted |
            |---|---|---|---|---|---|---|---|---|---|
            | `step-5` | Each step is slower. | 5 | 2 | Output tokens -4.8 | 1 of 2 [1 to 99 %] | 2 of 2 [16 to 100 %] | 2 of 2 [16 to 100 %] | 4.0 | 19 of 20 in 10 min |

            Identical code, built twice, real trials, each of 1.0 min in the median:

            | | trials | wanted |
            |---|---|---|
            | any release-blocking metric called worse | 0 of 2 [0 to 84 %] | at most 1 in 40 |
            | every release-blocking metric called unchanged | 2 of 2 [16 to 100 %] | 30 of 40 |

            1,000 replays of each row, drawn from the starts of identical code in trials that were not used for the design (number of trials: 1):

            | effect added | called worse | all unchanged | found in 5 min | in 10 min | in 15 min |
            |---|---|---|---|---|---|
            | identical code | 0.0 % [0.0 to 0.4 %] | 100.0 % [99.6 to 100.0 %] |  |  |  |
            | each step 5 % slower | 100.0 % [99.6 to 100.0 %] | 0.0 % [0.0 to 0.4 %] | 100.0 % [99.6 to 100.0 %] | 100.0 % [99.6 to 100.0 %] | 100.0 % [99.6 to 100.0 %] |
            | each step 3 % slower | 100.0 % [99.6 to 100.0 %] | 0.0 % [0.0 to 0.4 %] | 100.0 % [99.6 to 100.0 %] | 100.0 % [99.6 to 100.0 %] | 100.0 % [99.6 to 100.0 %] |
            | each step 2 % slower | 99.5 % [98.8 to 99.8 %] | 0.5 % [0.2 to 1.2 %] | 99.5 % [98.8 to 99.8 %] | 99.5 % [98.8 to 99.8 %] | 99.5 % [98.8 to 99.8 %] |
            | TTFT alone 5 % longer | 0.0 % [0.0 to 0.4 %] | 100.0 % [99.6 to 100.0 %] | 0.0 % [0.0 to 0.4 %] | 0.0 % [0.0 to 0.4 %] | 0.0 % [0.0 to 0.4 %] |
            | TPOT p99 alone 20 % longer | 0.0 % [0.0 to 0.4 %] | 100.0 % [99.6 to 100.0 %] | 0.0 % [0.0 to 0.4 %] | 0.0 % [0.0 to 0.4 %] | 0.0 % [0.0 to 0.4 %] |
            | 2 % more memory | 100.0 % [99.6 to 100.0 %] | 0.0 % [0.0 to 0.4 %] | 100.0 % [99.6 to 100.0 %] | 100.0 % [99.6 to 100.0 %] | 100.0 % [99.6 to 100.0 %] |

            Half-widths in percent of the intervals of identical code after ten minutes in each scenario, medians of the comparisons; wanted: 2, better 1:

            | scenario | comparisons | Output tokens | TTFT p50 | TPOT p50 |
            |---|---|---|---|---|
            | burst@1 | 1 | 0.06 |  |  |

            Measured on 2026-11-26 at 0123456789: cpu-x-2c, 0.1 hours. Brackets are exact binomial intervals of 95 %.
        "#]].assert_eq(&render(&planted(), &trials));
    }

    #[test]
    fn trials_that_served_the_design_are_not_replayed() {
        let trials = [trial("same", 0.0, None, false)];
        let decided: Vec<&Trial> = trials.iter().collect();
        assert_eq!(noise(&planted(), &decided), (Vec::new(), 0));
        assert!(!render(&planted(), &trials).contains("replays"));
        assert_eq!(render(&planted(), &[]), "Not measured yet: today's judge has no trials.");
    }

    #[test]
    fn a_trial_reads_as_it_was_written() {
        let trial = trial("step-5", -0.049, Some(60_000_000), false);
        let text = serde_json::to_string(&trial).unwrap();
        assert_eq!(serde_json::from_str::<Trial>(&text).unwrap(), trial);
    }
}
