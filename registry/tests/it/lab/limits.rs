//! Limits that a lab file gives an engine on the runs for its options: what they refuse before the
//! first run, and where they end the search.

use judge::diff::policy;
use judge::lab::{Found, check_budget};
use schema::lab::LabStage;

use super::{PLENTY, lab, simulated};

/// Runs that judge each of three options once: four candidates at three runs, under two profiles.
const ONCE: u32 = 2 * 4 * 3;
/// Runs that confirm the best option and the runner-up: three candidates at eight runs, under two
/// profiles.
const LAST: u32 = 2 * 3 * 8;

#[test]
fn a_limit_that_decides_nothing_is_refused_with_one_that_would_do() {
    let policy = policy::standard().file;
    for combine in ["one-at-a-time", "staged", "grid", "factorial"] {
        let mut lab = lab(&[10, 3, 5], combine);
        lab.engines[0].runs = Some(1);
        let refused = check_budget(&lab, &policy, PLENTY).unwrap_err().0;
        let said = "1 runs for the options of `scripted` decide nothing";
        assert!(refused.starts_with(said), "{combine}: {refused}");
        lab.engines[0].runs = None;
        assert!(check_budget(&lab, &policy, PLENTY).is_ok(), "{combine}");
    }
    let mut lab = lab(&[10, 3, 5], "staged");
    lab.engines[0].runs = Some(ONCE - 1);
    let refused = check_budget(&lab, &policy, PLENTY).unwrap_err().0;
    assert!(refused.contains(&format!("hint: allow {ONCE} as `runs` of this engine")), "{refused}");
    lab.engines[0].runs = Some(ONCE);
    assert!(check_budget(&lab, &policy, PLENTY).is_ok());
}

#[test]
fn a_limit_ends_the_search_and_leaves_the_confirmation() {
    let mut lab = lab(&[10, 3, 5], "staged");
    lab.engines[0].runs = Some(ONCE);
    let found = simulated(&lab, 1, PLENTY);
    assert_eq!((found.runs, found.confirmed.len()), (ONCE + LAST, 2), "{found:?}");
    let combined: Vec<_> =
        found.rows.iter().filter(|row| row.stage == LabStage::Combinations).collect();
    assert!(!combined.is_empty(), "{found:?}");
    for row in combined {
        let Found::NotExplored { reason } = &row.found else { panic!("{row:?}") };
        assert_eq!(reason, "the engine's own limit on runs was reached before");
    }
    let free = {
        lab.engines[0].runs = None;
        simulated(&lab, 1, PLENTY)
    };
    assert!(free.runs > found.runs, "without a limit the combinations are tried");
}
