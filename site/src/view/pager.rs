//! Splits long lists into pages of a fixed number of rows. The first page has the address of the
//! list, the others lie below it.

use serde::Serialize;

use crate::link::Target;

/// Link to one page of a list that is split into pages.
#[derive(Debug, Clone, Serialize)]
pub struct PartLink {
    pub number: usize,
    pub target: Target,
    pub here: bool,
}

/// Page of a list: its rows, its target, and the links to the list's other pages.
#[derive(Debug)]
pub struct Part<T> {
    pub target: Target,
    pub rows: Vec<T>,
    /// Links to all pages of the list; empty where there is only one.
    pub pager: Vec<PartLink>,
}

/// Splits `rows` into pages of at most `most` rows. Without rows there is one empty page.
pub fn split<T>(of: &Target, rows: Vec<T>, most: usize) -> Vec<Part<T>> {
    let count = rows.len().div_ceil(most).max(1);
    let target = |number: usize| match number {
        1 => of.clone(),
        number => Target::Part { of: Box::new(of.clone()), number },
    };
    let link = |number, here| PartLink { number, target: target(number), here: number == here };
    let mut rows = rows.into_iter();
    let part = |here: usize| Part {
        target: target(here),
        rows: rows.by_ref().take(most).collect(),
        pager: if count == 1 { Vec::new() } else { (1..=count).map(|n| link(n, here)).collect() },
    };
    (1..=count).map(part).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_is_on_one_part() {
        for (rows, counts) in [(0, vec![0]), (3, vec![3]), (4, vec![3, 1]), (6, vec![3, 3])] {
            let parts = split(&Target::Health {}, (0..rows).collect::<Vec<i32>>(), 3);
            assert_eq!(parts.iter().map(|part| part.rows.len()).collect::<Vec<_>>(), counts);
            assert_eq!(parts[0].target, Target::Health {});
            let pages = if counts.len() == 1 { 0 } else { counts.len() };
            assert!(parts.iter().all(|part| part.pager.len() == pages));
        }
    }
}
