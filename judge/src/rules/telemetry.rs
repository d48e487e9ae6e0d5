//! Quality rules over the telemetry of a run: the server's counters, the host's CPU time, the
//! GPUs' clocks, memory errors and energy.

use schema::run::RunRecord;
use schema::telemetry::{GpuTelemetry, ServerTelemetry, Spread, Telemetry, Throttled};

use super::{claim, float, within};
use crate::rule::{Condition, Family, Outcome, Rule, Scope};

/// Relative difference that rule E33 tolerates between the server's counter of output tokens and
/// the tokens in its answers.
pub const SERVER_COUNT_SHARE: f64 = 0.01;
/// Number of output tokens by which the server's counter may differ from its answers in any run,
/// even where that is more than [`SERVER_COUNT_SHARE`].
pub const SERVER_COUNT_TOKENS: f64 = 16.0;
/// Largest share of all cores' time that the hypervisor may give to other guests.
pub const STEAL_SHARE_MAX: f64 = 0.02;
/// Shortest run, in microseconds, whose share of stolen CPU time is judged: a shorter one has too
/// few of the kernel's clock ticks.
pub const STEAL_WALL_US_MIN: u64 = 1_000_000;
/// Largest share of telemetry samples in which a GPU's clocks may be throttled.
pub const THROTTLED_SHARE_MAX: f64 = 0.01;

/// Relative difference that rule E35 tolerates between the energy per token, which is stored
/// without rounding, and the energy of the GPUs divided by the tokens.
const ENERGY_SHARE: f64 = 1e-6;
/// Rounding error of a sum of CPU shares, which are stored with four decimals.
const SHARES_ROUNDING: f64 = 0.001;

/// Quality rules over the telemetry of a run, ordered by id.
pub(super) const RULES: &[Rule] = &[
    Rule {
        id: "E14",
        title: "no GPU had memory errors or was slowed down by its hardware",
        finding: "defective GPU",
        why: "A GPU with failing memory or too little power measures its own defect.",
        since: Some(6),
        scope: Scope::MEASURED,
        conditions: &[Condition::new(undisturbed)],
        ..Rule::ERROR
    },
    Rule {
        id: "E33",
        title: "the server's counter of output tokens agrees with its answers",
        finding: "server counter differs",
        why: "If they differ, another client used the server during the run, or the counter and \
              the answers count tokens in different ways.",
        since: Some(4),
        affects: &[Family::Throughput],
        conditions: &[Condition::new(counted).degraded(
            "server-count",
            "the server's counter of output tokens differs from the tokens of its answers by more \
             than 1 % and 16 tokens",
        )],
        ..Rule::ERROR
    },
    Rule {
        id: "E34",
        title: "telemetry is consistent: series add up to totals, shares to one, pages in use are \
                at most those that exist",
        finding: "telemetry inconsistent",
        why: "Inconsistent telemetry was read from two servers, or from one that was started \
              again.",
        since: Some(4),
        scope: Scope::MEASURED,
        affects: &[Family::Energy],
        conditions: &[Condition::new(adds_up)],
        ..Rule::ERROR
    },
    Rule {
        id: "E35",
        title: "joules per token follow from the energy of the GPUs in use",
        finding: "energy inconsistent",
        why: "The energy of fewer GPUs, or of other tokens, makes an engine look efficient.",
        since: Some(4),
        affects: &[Family::Energy],
        conditions: &[Condition::new(energy)],
        ..Rule::ERROR
    },
    Rule {
        id: "W05",
        title: "neither heat nor the hardware throttled a GPU",
        finding: "GPU throttled",
        why: "A hot GPU is slower than the same GPU cooled well.",
        since: Some(4),
        conditions: &[Condition::new(throttled).degraded(
            "throttled",
            "heat or the hardware throttled a GPU in more than 1 % of the samples",
        )],
        ..Rule::WARNING
    },
    Rule {
        id: "W16",
        title: "the hypervisor took at most 2 % of the CPU time",
        finding: "CPU time stolen",
        why: "On a shared machine, other guests slow down a run.",
        since: Some(4),
        conditions: &[Condition::new(steal).degraded(
            "steal",
            "the hypervisor took more than 2 % of the CPU time (in a run of 1 s or more)",
        )],
        ..Rule::WARNING
    },
    Rule {
        id: "power-limited",
        title: "no GPU was at its power limit",
        finding: "GPU at power limit",
        why: "The limit is a setting of the machine, and it determines a part of the speed.",
        since: None,
        conditions: &[Condition::new(power_limited)
            .note("power-limited", "a GPU was at its power limit in more than 1 % of the samples")],
        ..Rule::WARNING
    },
];

/// Returns the largest share of telemetry polls at which a GPU that worked was throttled by the
/// causes that `share` reads; `None` where no GPU reports it.
fn throttled_share(record: &RunRecord, share: fn(&Throttled) -> f64) -> Option<f64> {
    let gpus = worked(record.telemetry.as_ref()?);
    gpus.filter_map(|gpu| gpu.throttled.as_ref()).map(share).reduce(f64::max)
}

fn worked(telemetry: &Telemetry) -> impl Iterator<Item = &GpuTelemetry> {
    telemetry.gpus.iter().flatten().filter(|gpu| gpu.worked)
}

fn undisturbed(record: &RunRecord) -> Outcome {
    let gpus = record.telemetry.as_ref()?.gpus.as_deref()?.iter().enumerate();
    let slowed = |gpu: &GpuTelemetry| gpu.throttled.as_ref().map(|held| held.hardware_share);
    let told: Vec<_> = gpus
        .filter(|(_, gpu)| gpu.worked)
        .map(|(index, gpu)| (index, gpu.ecc_uncorrected, slowed(gpu)))
        .filter(|(_, errors, slowed)| errors.is_some() || slowed.is_some())
        .collect();
    let mut wrong = Vec::new();
    for (index, errors, slowed) in &told {
        if let Some(errors) = errors.filter(|errors| *errors > 0) {
            wrong.push(format!("GPU {index} had {errors} errors of memory that stayed"));
        }
        if let Some(share) = slowed.filter(|share| *share > 0.0) {
            let percent = share * 100.0;
            wrong.push(format!("the hardware slowed GPU {index} at {percent:.1} % of the looks"));
        }
    }
    told.first()?;
    claim(wrong.is_empty(), || wrong.join("; "))
}

/// Judges rule E33 (the server's token counter) where every request was answered: only the server
/// knows how many tokens it produced for the others.
fn counted(record: &RunRecord) -> Outcome {
    let counted = record.telemetry.as_ref()?.server.as_ref()?.output_tokens?;
    let counts = record.counts.as_ref().filter(|counts| counts.requests_failed == Some(0))?;
    let reported = counts.output_tokens_reported?;
    let off = float(counted.abs_diff(reported));
    let strays = off > SERVER_COUNT_TOKENS && off > float(reported) * SERVER_COUNT_SHARE;
    claim(!strays, || {
        format!("the server counted {counted} output tokens, and its answers hold {reported}")
    })
}

fn adds_up(record: &RunRecord) -> Outcome {
    let telemetry = record.telemetry.as_ref()?;
    if telemetry.server.is_none() && telemetry.host.is_none() {
        return None;
    }
    let server = telemetry.server.as_ref().and_then(|server| {
        series_stray(server).or_else(|| pages_stray(server)).or_else(|| levels_fall(server))
    });
    Some(server.or_else(|| shares_stray(telemetry)).map_or(Ok(()), Err))
}

fn series_stray(server: &ServerTelemetry) -> Option<String> {
    let columns = &server.series.as_ref()?.columns;
    let totals = [
        ("prompt_tokens", server.prompt_tokens),
        ("output_tokens", server.output_tokens),
        ("prefix_query_tokens", server.prefix_query_tokens),
        ("prefix_hit_tokens", server.prefix_hit_tokens),
        ("preemptions", server.preemptions),
        ("draft_tokens", server.draft_tokens),
        ("accepted_tokens", server.accepted_tokens),
    ];
    totals.into_iter().find_map(|(name, total)| {
        let total = total?;
        // A counter that is missing from one telemetry sample has no series.
        let sum = columns.get(name)?.iter().fold(0, |sum: u64, point| sum.saturating_add(*point));
        (sum != total).then(|| format!("`{name}` grew by {total}, its series by {sum}"))
    })
}

fn pages_stray(server: &ServerTelemetry) -> Option<String> {
    let (most, pages) = (server.kv_pages_used?.max, server.kv_pages?);
    (most > pages).then(|| format!("{most} KV pages were in use, and there are {pages}"))
}

fn levels_fall(server: &ServerTelemetry) -> Option<String> {
    let levels = [
        ("requests_running", server.requests_running),
        ("requests_waiting", server.requests_waiting),
        ("kv_pages_used", server.kv_pages_used),
    ];
    let rises = |level: &Spread| [level.p5, level.p50, level.p95, level.max].is_sorted();
    let fallen = levels.into_iter().find(|(_, level)| level.is_some_and(|level| !rises(&level)));
    fallen.map(|(name, _)| format!("the percentiles of `{name}` do not rise"))
}

fn shares_stray(telemetry: &Telemetry) -> Option<String> {
    let host = telemetry.host.as_ref()?;
    let shares =
        [host.cpu_user_share, host.cpu_system_share, host.cpu_iowait_share, host.cpu_steal_share];
    let sum: f64 = shares.into_iter().flatten().sum();
    (sum > 1.0 + SHARES_ROUNDING).then(|| format!("the cores' time adds up to {sum:.3} of itself"))
}

fn energy(record: &RunRecord) -> Outcome {
    let told = record.metrics.as_ref()?.joules_per_output_token?;
    let tokens = record.counts.as_ref()?.output_tokens_reported.filter(|tokens| *tokens > 0)?;
    // The sum is `None` as soon as one GPU does not report its energy.
    let energy: Option<u64> = worked(record.telemetry.as_ref()?).map(|gpu| gpu.energy_mj).sum();
    let Some(energy) = energy.filter(|energy| *energy > 0) else {
        return Some(Err(format!("{told} J a token, and no GPU tells what it took")));
    };
    let follows = float(energy) / 1000.0 / float(tokens);
    claim(within(told, follows, ENERGY_SHARE), || {
        format!("{told:.3} J a token, and the GPUs took {follows:.3} J for each")
    })
}

fn throttled(record: &RunRecord) -> Outcome {
    let held = throttled_share(record, |held| held.thermal_share.max(held.hardware_share))?;
    claim(held <= THROTTLED_SHARE_MAX, || {
        format!("heat or the hardware slowed a GPU at {:.0} % of the looks", held * 100.0)
    })
}

fn power_limited(record: &RunRecord) -> Outcome {
    let limited = throttled_share(record, |held| held.power_share)?;
    claim(limited <= THROTTLED_SHARE_MAX, || {
        format!("a GPU was at its power limit at {:.0} % of the looks", limited * 100.0)
    })
}

fn steal(record: &RunRecord) -> Outcome {
    let share = record.telemetry.as_ref()?.host.as_ref()?.cpu_steal_share?;
    record.time.as_ref()?.wall_us.filter(|wall_us| *wall_us >= STEAL_WALL_US_MIN)?;
    claim(share <= STEAL_SHARE_MAX, || {
        format!("the hypervisor gave others {:.1} % of the cores' time", share * 100.0)
    })
}
