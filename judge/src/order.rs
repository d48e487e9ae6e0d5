//! Order of names: releases as version numbers, scenarios by family, other names with their numbers
//! taken as numbers.

use std::cmp::Ordering;

use schema::scenario::id_of;

use crate::facts::concurrency_level;

/// Sort key of a release: `v0.9.2` before `v0.10.0`, and `-dev` before the release itself.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ReleaseKey {
    numbers: Vec<u64>,
    released: bool,
    name: String,
}

impl ReleaseKey {
    /// Returns the sort key of a release's name.
    pub fn of(name: &str) -> Self {
        let (core, suffix) = name.split_once('-').map_or((name, None), |(a, b)| (a, Some(b)));
        // Parts that are no numbers count as zero; the name decides among equal ones.
        let numbers = core.trim_start_matches('v').split('.').map(|n| n.parse().unwrap_or(0));
        Self { numbers: numbers.collect(), released: suffix.is_none(), name: name.to_owned() }
    }

    /// Returns the name of the release, as it was given.
    pub fn name(&self) -> &str {
        &self.name
    }
}

/// True when both names mean the same release, with or without a leading `v`.
pub fn is_release(left: &str, right: &str) -> bool {
    left.trim_start_matches('v') == right.trim_start_matches('v')
}

/// Returns the newest of `releases`; `None` without any.
pub fn newest<'a>(releases: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    releases.into_iter().max_by(|a, b| self::releases(a, b))
}

/// Scenario families in their order on pages. Concurrency sweeps and then other scenarios follow.
const FAMILIES: [&str; 4] = ["sharegpt", "balanced", "thinking", "long-input"];

/// Compares two texts, taking the numbers in them as numbers: `v0.9.2` before `v0.10.0`.
pub fn natural(a: &str, b: &str) -> Ordering {
    pieces(a).cmp(&pieces(b)).then_with(|| a.cmp(b))
}

/// Compares two releases by version; `-dev` comes before the release itself.
pub fn releases(a: &str, b: &str) -> Ordering {
    ReleaseKey::of(a).cmp(&ReleaseKey::of(b))
}

/// Compares two scenarios by family, then by name in natural order.
pub fn scenarios(a: &str, b: &str) -> Ordering {
    family(a).cmp(&family(b)).then_with(|| natural(a, b))
}

fn family(scenario: &str) -> usize {
    let id = id_of(scenario);
    let other = FAMILIES.len() + usize::from(concurrency_level(id).is_none());
    FAMILIES.iter().position(|family| id.starts_with(family)).unwrap_or(other)
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Piece {
    Number(u64),
    Text(String),
}

fn pieces(text: &str) -> Vec<Piece> {
    let mut pieces: Vec<Piece> = Vec::new();
    for c in text.chars() {
        match (c.to_digit(10), pieces.last_mut()) {
            (Some(digit), Some(Piece::Number(number))) => {
                *number = number.saturating_mul(10).saturating_add(u64::from(digit));
            }
            (Some(digit), _) => pieces.push(Piece::Number(u64::from(digit))),
            (None, Some(Piece::Text(text))) => text.push(c),
            (None, _) => pieces.push(Piece::Text(c.to_string())),
        }
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_sort_as_people_read_them() {
        let ordered = ["v0.9.2", "v0.9.10", "v0.10.0-dev", "v0.10.0", "v1.0.0"];
        let keys: Vec<ReleaseKey> = ordered.into_iter().map(ReleaseKey::of).collect();
        assert!(keys.windows(2).all(|pair| pair[0] < pair[1]), "{keys:?}");
        assert_eq!(keys[2].name(), "v0.10.0-dev");
    }

    #[test]
    fn numbers_count_as_numbers() {
        let mut found = vec!["v0.10.0", "v0.9.2", "v0.10.0-dev", "v0.9.10", "v0.9.1"];
        found.sort_by(|a, b| releases(a, b));
        assert_eq!(found, ["v0.9.1", "v0.9.2", "v0.9.10", "v0.10.0-dev", "v0.10.0"]);
    }

    #[test]
    fn scenarios_come_in_the_order_of_their_families() {
        let mut found =
            vec!["ladder-c16", "long-input@1", "zeta", "sharegpt@1", "ladder-c4", "balanced@1"];
        found.sort_by(|a, b| scenarios(a, b));
        let expected =
            ["sharegpt@1", "balanced@1", "long-input@1", "ladder-c4", "ladder-c16", "zeta"];
        assert_eq!(found, expected);
    }
}
