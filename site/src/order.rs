//! Order in which pages show releases, models and scenarios.

use std::cmp::Ordering;

use judge::release::ReleaseKey;

/// Scenario families in their order on pages; other scenarios follow by name.
const FAMILIES: [&str; 5] = ["sharegpt", "balanced", "thinking", "long-input", "ladder"];

/// Compares two texts, taking the numbers in them as numbers: `v0.9.2` before `v0.10.0`.
pub fn natural(a: &str, b: &str) -> Ordering {
    pieces(a).cmp(&pieces(b)).then_with(|| a.cmp(b))
}

/// Compares two releases as `judge` does; `-dev` comes before the release itself.
pub fn releases(a: &str, b: &str) -> Ordering {
    ReleaseKey::of(a).cmp(&ReleaseKey::of(b))
}

/// Compares two scenarios by family, then by name in natural order.
pub fn scenarios(a: &str, b: &str) -> Ordering {
    family(a).cmp(&family(b)).then_with(|| natural(a, b))
}

fn family(scenario: &str) -> usize {
    FAMILIES.iter().position(|family| scenario.starts_with(family)).unwrap_or(FAMILIES.len())
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
