//! Checks of a lab file: whether its values are allowed and agree with each other.

use std::collections::{BTreeMap, BTreeSet};

use super::{Combine, FACTORS_MAX, GRID_MAX, LabBudget, LabEngine, LabFile, Objective, flag_name};
use crate::metric;
use crate::scenario::InvalidFile;

/// Checks that the values of a lab file are allowed and agree with each other.
///
/// # Errors
/// A value is missing, repeated, unknown, out of range or in contradiction to another.
pub fn check(lab: &LabFile) -> Result<(), InvalidFile> {
    let senseless = |why: String| Err(InvalidFile(why));
    if lab.profiles.is_empty() || lab.engines.is_empty() {
        return senseless("a lab needs at least one of `profiles` and one of `engines`".into());
    }
    if let Some(twice) = repeated(lab.profiles.iter()) {
        return senseless(format!("profile `{twice}` is listed twice"));
    }
    if let Some(twice) = repeated(lab.engines.iter().map(|engine| &engine.id)) {
        return senseless(format!(
            "engine `{twice}` is listed twice: use an axis for its variants"
        ));
    }
    check_objective(lab)?;
    match lab.budget {
        LabBudget { runs: None, hours: None } => {
            return senseless("`budget` names neither `runs` nor `hours`".into());
        }
        LabBudget { hours: Some(hours), .. } if !(hours.is_finite() && hours > 0.0) => {
            return senseless(format!("a budget of {hours} hours is not above zero"));
        }
        LabBudget { .. } => {}
    }
    check_axes(lab)?;
    check_limits(lab)
}

/// Checks the engines' own limits on runs: only options can take them.
fn check_limits(lab: &LabFile) -> Result<(), InvalidFile> {
    for LabEngine { id, runs, .. } in &lab.engines {
        let has_axis = lab.axes.iter().any(|axis| axis.engine == *id);
        let why = match runs {
            Some(0) => format!("`runs` of engine `{id}` is 0, and its options need some"),
            Some(_) if !has_axis => {
                format!("engine `{id}` has `runs` for its options, and no axis is for it")
            }
            _ => continue,
        };
        return Err(InvalidFile(why));
    }
    Ok(())
}

/// Checks the objective of a lab: its metrics, its bounds, and the profiles for which it has some.
fn check_objective(lab: &LabFile) -> Result<(), InvalidFile> {
    let senseless = |why: String| Err(InvalidFile(why));
    let Objective { metric, bounds, by_profile } = &lab.objective;
    if let Some(profile) = by_profile.keys().find(|profile| !lab.profiles.contains(profile)) {
        return senseless(format!(
            "`by_profile` has bounds for `{profile}`, no profile of this lab"
        ));
    }
    let bounds = || std::iter::once(bounds).chain(by_profile.values()).flatten();
    for name in std::iter::once(metric).chain(bounds().map(|(name, _)| name)) {
        if metric::by_name(name).is_none() {
            let known: Vec<&str> = metric::METRICS.iter().map(|metric| metric.name).collect();
            return senseless(format!("no metric `{name}`; known are {}", known.join(", ")));
        }
    }
    if let Some((name, value)) = bounds().find(|(_, value)| !value.is_finite()) {
        return senseless(format!("the bound of `{name}` is {value}, not a finite number"));
    }
    Ok(())
}

/// Checks the axes of a lab: their names and those of their options, which become parts of variant
/// names, their engines, and that each has options and each option has flags.
fn check_axes(lab: &LabFile) -> Result<(), InvalidFile> {
    let senseless = |why: String| Err(InvalidFile(why));
    if let Some(twice) = repeated(lab.axes.iter().map(|axis| &axis.name)) {
        return senseless(format!("axis `{twice}` is defined twice"));
    }
    for axis in &lab.axes {
        let name = &axis.name;
        if !lab.engines.iter().any(|engine| engine.id == axis.engine) {
            let engine = &axis.engine;
            return senseless(format!("axis `{name}` is for `{engine}`, no engine of this lab"));
        }
        if axis.options.is_empty() {
            return senseless(format!("axis `{name}` has no options"));
        }
        if let Some(twice) = repeated(axis.options.iter().map(|option| &option.name)) {
            return senseless(format!("option `{twice}` of axis `{name}` is defined twice"));
        }
        for part in std::iter::once(name).chain(axis.options.iter().map(|option| &option.name)) {
            let fits = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
            if part.is_empty() || part.len() > NAME_BYTES_MAX || !part.bytes().all(fits) {
                return senseless(format!(
                    "`{part}` of axis `{name}` is not a name of up to {NAME_BYTES_MAX} lower-case \
                     letters, digits and hyphens"
                ));
            }
        }
        if let Some(option) = axis.options.iter().find(|option| option.flags.is_empty()) {
            let option = &option.name;
            return senseless(format!(
                "option `{option}` of axis `{name}` has no flags: that is the baseline"
            ));
        }
    }
    check_grid(lab)?;
    check_factors(lab)?;
    check_flags(lab)
}

/// Checks that a grid is not larger than a lab can try.
fn check_grid(lab: &LabFile) -> Result<(), InvalidFile> {
    let grids = lab.engines.iter().enumerate().map(|(index, engine)| {
        let combinations = if lab.combine == Combine::Grid { lab.combinations(index) } else { 0 };
        (&engine.id, combinations)
    });
    match grids.max_by_key(|(_, combinations)| *combinations) {
        Some((engine, combinations)) if combinations > GRID_MAX => {
            let size = match combinations {
                0..=999_999 => combinations.to_string(),
                _ => "a million or more".to_owned(),
            };
            Err(InvalidFile(format!(
                "the grid of `{engine}` has {size} combinations, and a lab tries {GRID_MAX}: combine \
                 as `staged` or `factorial`, or leave out options"
            )))
        }
        _ => Ok(()),
    }
}

/// Checks the options with which the axes of a lab enter a factorial design.
fn check_factors(lab: &LabFile) -> Result<(), InvalidFile> {
    let is_factorial = lab.combine == Combine::Factorial;
    for axis in &lab.axes {
        let name = &axis.name;
        if let Some(high) = axis.high.as_ref().filter(|_| axis.high_option().is_none()) {
            return Err(InvalidFile(format!(
                "axis `{name}` has no option `{high}`: `high` names one"
            )));
        }
        if is_factorial && axis.high.is_none() && axis.options.len() > 1 {
            return Err(InvalidFile(format!(
                "axis `{name}` has several options, and a factorial design has one of each axis: name \
                 it with `high`"
            )));
        }
    }
    let axes_of =
        |engine: &LabEngine| lab.axes.iter().filter(|axis| axis.engine == engine.id).count();
    let most = lab.engines.iter().map(axes_of).max().unwrap_or(0);
    if is_factorial && most > FACTORS_MAX {
        return Err(InvalidFile(format!(
            "an engine has {most} axes, and a factorial design takes {FACTORS_MAX}: leave some out"
        )));
    }
    Ok(())
}

/// Longest name of an axis or option that a lab file may have, in bytes; a longer one is refused.
const NAME_BYTES_MAX: usize = 18;

/// Checks that no two axes of an engine set the same flag: a server that gets a flag twice uses one
/// of the values or refuses to start.
fn check_flags(lab: &LabFile) -> Result<(), InvalidFile> {
    let mut owners: BTreeMap<(&str, &str), &str> = BTreeMap::new();
    for axis in &lab.axes {
        let words = axis.options.iter().flat_map(|option| &option.flags);
        for flag in words.filter_map(|word| flag_name(word)) {
            let owner = owners.entry((&axis.engine, flag)).or_insert(&axis.name);
            if *owner != axis.name {
                return Err(InvalidFile(format!(
                    "axes `{owner}` and `{}` both set `{flag}`: options of one axis exclude each \
                     other, so make them one axis",
                    axis.name
                )));
            }
        }
    }
    Ok(())
}

fn repeated<'a>(names: impl Iterator<Item = &'a String>) -> Option<&'a String> {
    let mut seen = BTreeSet::new();
    names.into_iter().find(|name| !seen.insert(*name))
}
