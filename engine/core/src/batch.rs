//! Checks of a step's batch that every device makes before it computes: page tables, state slots
//! and references to sampled tokens.

use std::collections::BTreeSet;

use super::KvShape;
use crate::{SegmentState, StepBatch, StepToken};

/// Checks the segments and tokens of `batch` against the KV cache's `shape`. A page table that
/// points outside of the cache would make a kernel read or write foreign memory. `drawn` is the
/// number of tokens that the previous step sampled.
///
/// # Errors
/// Returns a description of the first violation.
pub fn check(batch: &StepBatch, shape: &KvShape, drawn: usize) -> Result<(), String> {
    let mut rows = 0;
    for (index, segment) in batch.segments.iter().enumerate() {
        let end = segment.position + segment.rows;
        // The table must cover the last row too, since its key and value are written.
        let needed = end.div_ceil(shape.page_tokens);
        if segment.rows == 0 || segment.pages.len() < needed {
            let (rows, pages) = (segment.rows, segment.pages.len());
            return Err(format!(
                "sequence {index} has {rows} rows up to position {end} and {pages} pages"
            ));
        }
        if let Some(page) = segment.pages.iter().find(|page| **page as usize >= shape.pages) {
            return Err(format!("sequence {index} uses page {page} of {}", shape.pages));
        }
        rows += segment.rows;
    }
    check_places(batch)?;
    if rows != batch.tokens.len() {
        return Err(format!("{} tokens for {rows} rows", batch.tokens.len()));
    }
    let is_unknown =
        |token: &&StepToken| matches!(token, StepToken::Drawn(index) if *index as usize >= drawn);
    match batch.tokens.iter().find(is_unknown) {
        Some(StepToken::Drawn(index)) => {
            Err(format!("sampled token {index} does not exist: the previous step sampled {drawn}"))
        }
        _ => Ok(()),
    }
}

/// Returns an error if a state slot that one segment writes is used by another one: segments run in
/// parallel, so the result would depend on timing.
fn check_places(batch: &StepBatch) -> Result<(), String> {
    let states = || batch.segments.iter().filter_map(|segment| segment.state);
    let mut written = BTreeSet::new();
    for place in states().flat_map(|state| [Some(state.place), state.save]).flatten() {
        if !written.insert(place) {
            return Err(format!("state slot {place} is written twice"));
        }
    }
    match states().filter_map(|state| state.load).find(|load| written.contains(load)) {
        Some(place) => Err(format!("state slot {place} is loaded and written in one step")),
        None => Ok(()),
    }
}

/// Checks that every segment of a step has a state slot and names only slots below `places`, the
/// number of slots.
///
/// # Errors
/// Returns a description of the first violation.
pub fn check_states(
    states: impl Iterator<Item = Option<SegmentState>>,
    places: usize,
) -> Result<(), String> {
    for (index, state) in states.enumerate() {
        let Some(state) = state else {
            return Err(format!("sequence {index} has no state slot"));
        };
        let named = [Some(state.place), state.load, state.save];
        if let Some(place) = named.iter().flatten().max()
            && *place as usize >= places
        {
            return Err(format!("sequence {index} uses state slot {place} of {places}"));
        }
    }
    Ok(())
}
