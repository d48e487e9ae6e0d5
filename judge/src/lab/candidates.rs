//! Candidates of each stage of a lab: single options, combinations and pairs of options that
//! helped.

use std::collections::BTreeMap;

use schema::lab::{Axis, Candidate, GRID_MAX, LabFile};

/// Returns the axes (sets of mutually exclusive options) that the lab file gives to an engine.
pub fn axes(lab: &LabFile, engine: usize) -> impl Iterator<Item = &Axis> {
    lab.axes.iter().filter(move |axis| axis.engine == lab.engines[engine].id)
}

/// Returns one candidate for each option of `engine`, in the order of the lab's file.
pub fn alone(lab: &LabFile, engine: usize) -> Vec<Candidate> {
    let with = |axis: &Axis| {
        let name = axis.name.clone();
        let options = axis.options.iter();
        options
            .map(|option| BTreeMap::from([(name.clone(), option.name.clone())]))
            .collect::<Vec<_>>()
    };
    axes(lab, engine).flat_map(with).map(|options| Candidate { engine, options }).collect()
}

/// Returns every combination of options of `engine`, except the one without any option; none where
/// there are more than a lab file may have.
pub fn grid(lab: &LabFile, engine: usize) -> Vec<Candidate> {
    // A record of somebody else may have a lab that no parser has checked.
    if lab.combinations(engine) > GRID_MAX {
        return Vec::new();
    }
    let mut all = vec![LabFile::plain(engine)];
    for axis in axes(lab, engine) {
        let with = |before: &Candidate, name: &String| {
            let mut candidate = before.clone();
            candidate.options.insert(axis.name.clone(), name.clone());
            candidate
        };
        let more: Vec<Candidate> = all
            .iter()
            .flat_map(|before| axis.options.iter().map(move |option| with(before, &option.name)))
            .collect();
        all.extend(more);
    }
    // The first has no option: it is the reference of the stage.
    all.split_off(1)
}

/// Combines candidates of one option each: all pairs whose options lie on different axes, and,
/// where the options lie on three axes or more, the first (best) option of each axis together.
/// `helped` lists the best candidate first.
pub fn together(helped: &[Candidate]) -> Vec<Candidate> {
    let mut found: Vec<Candidate> = Vec::new();
    for (index, first) in helped.iter().enumerate() {
        for second in &helped[index + 1..] {
            found.extend(joined(first, second));
        }
    }
    let mut all = match helped.first() {
        Some(best) => best.clone(),
        None => return found,
    };
    for next in helped {
        all = joined(&all, next).unwrap_or(all);
    }
    // With two axes the best of both is already among the pairs.
    if all.options.len() > 2 {
        found.push(all);
    }
    found
}

/// Unites the options of two candidates; `None` where both set the same axis.
fn joined(first: &Candidate, second: &Candidate) -> Option<Candidate> {
    if second.options.keys().any(|axis| first.options.contains_key(axis)) {
        return None;
    }
    let mut both = first.clone();
    both.options.extend(second.options.clone());
    Some(both)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(options: &[(&str, &str)]) -> Candidate {
        let owned = |(axis, option): &(&str, &str)| ((*axis).to_owned(), (*option).to_owned());
        Candidate { engine: 0, options: options.iter().map(owned).collect() }
    }

    #[test]
    fn what_helped_is_tried_in_pairs_and_all_together() {
        let helped = [of(&[("a", "1")]), of(&[("a", "2")]), of(&[("b", "1")]), of(&[("c", "1")])];
        let names: Vec<_> = together(&helped).iter().filter_map(Candidate::variant).collect();
        assert_eq!(names, ["a-1-b-1", "a-1-c-1", "a-2-b-1", "a-2-c-1", "b-1-c-1", "a-1-b-1-c-1"]);
        assert_eq!(together(&helped[..2]), []);
        assert_eq!(together(&[]), []);
    }
}
