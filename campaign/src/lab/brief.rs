//! The plan of a lab as printed text: engines, profiles, axes, budget. It is printed before
//! anything is built or downloaded.

use std::fmt::Write;
use std::time::Duration;

use schema::lab::{Combine, LabBudget};

use super::budget::cell_us;
use super::spec::PreparedLab;
use crate::console::about;
use crate::plan::brief::basis;
use crate::plan::decide::Decided;
use crate::plan::estimate::{Estimate, tokens_per_s_assumed};

/// Renders the plan as text for the terminal.
pub fn render(lab: &PreparedLab, decided: &Decided, budget: LabBudget) -> String {
    let (file, brief) = (&lab.asked.file, &decided.brief);
    let mut text = format!("Plan of lab {}, campaign {}\n", lab.asked.id, brief.campaign);
    let mut line = |key: &str, value: &str| {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "  {key:<10} {value}");
    };
    line("question", &file.question);
    for (index, title) in brief.variants.iter().enumerate() {
        let flags = decided.plan.variants[index].flags.join(" ");
        let flags = if flags.is_empty() { flags } else { format!(", with {flags}") };
        line(if index == 0 { "baseline" } else { "beside it" }, &format!("{title}{flags}"));
    }
    line("hardware", &format!("{} (target {})", brief.hardware, brief.target));
    line("model", &file.model);
    for (index, cell) in brief.cells.iter().enumerate() {
        let key = if index == 0 { "profiles" } else { "" };
        let each = about(cell_us(decided, cell));
        let basis = match cell.each {
            Estimate::Unknown => {
                let rate = tokens_per_s_assumed(brief.on_gpu);
                format!("no earlier record: assumed at {rate} tokens/s")
            }
            known => basis(known),
        };
        let (scenario, engine) = (&cell.scenario, &cell.engine);
        line(key, &format!("{scenario:<28} {engine}: {each} per run ({basis})"));
    }
    line("objective", &objective(lab));
    for (index, axis) in file.axes.iter().enumerate() {
        let options: Vec<String> =
            axis.options.iter().map(|option| option.flags.join(" ")).collect();
        let key = if index == 0 { "axes" } else { "" };
        line(key, &format!("{} of {}: {}", axis.name, axis.engine, options.join(" | ")));
    }
    line("combined", combined(file.combine));
    for (index, (id, had)) in brief.inputs.iter().enumerate() {
        let state = if *had { "available" } else { "to be downloaded" };
        line(if index == 0 { "inputs" } else { "" }, &format!("{id}, {state}"));
    }
    for (index, quirk) in brief.quirks.iter().enumerate() {
        line(if index == 0 { "known" } else { "" }, quirk);
    }
    spending(lab, budget, line);
    let _ = writeln!(text, "  {:<10} {}", "records", brief.records);
    text
}

/// Adds the lines about rounds, runs and time.
fn spending(lab: &PreparedLab, budget: LabBudget, mut line: impl FnMut(&str, &str)) {
    let outline = &lab.outline;
    let (least, most) = (outline.rounds_least, outline.rounds_most);
    line("rounds", &format!("{least} at least, {most} at most"));
    let time = |runs: u32| about(u64::from(runs).saturating_mul(lab.each_us));
    let (runs_least, runs_most) = (outline.runs_least, lab.runs_most());
    let launches = format!(
        "{runs_least} at least, {}; {runs_most} at most, {}",
        time(runs_least),
        time(runs_most)
    );
    line("runs", &format!("{launches}, beside builds and downloads"));
    let hours = budget.hours.map(|hours| format!("{hours} h of runs"));
    let runs = budget.runs.map(|runs| format!("{runs} runs"));
    let limits: Vec<String> = hours.into_iter().chain(runs).collect();
    let each = Duration::from_micros(lab.each_us).as_secs_f64();
    let of = match runs_most < outline.runs_most {
        true => format!("of {} that it might want, at {each:.0} s", outline.runs_most),
        false => format!("more than it can want, at {each:.0} s"),
    };
    line("budget", &format!("{}: {} runs, {of}", limits.join(", "), lab.asked.runs_max));
}

fn objective(lab: &PreparedLab) -> String {
    let objective = &lab.asked.file.objective;
    let bounds: Vec<String> =
        objective.bounds.iter().map(|(metric, limit)| format!("{metric} {limit}")).collect();
    match bounds.is_empty() {
        true => objective.metric.clone(),
        false => format!("{}, within {}", objective.metric, bounds.join(", ")),
    }
}

fn combined(combine: Combine) -> &'static str {
    match combine {
        Combine::OneAtATime => "each option alone",
        Combine::Grid => "every combination",
        Combine::Staged => {
            "the best engine first, then each of its options, then those that helped together"
        }
    }
}
