//! Tensor-parallel sharding: which heads and columns of a model a rank holds, as plain arithmetic
//! on which all ranks agree without communication.

use std::ops::Range;

use engine_core::{AttentionShape, DeltaNetShape, Rank};

/// Attention heads (or gated DeltaNet heads) that one tensor-parallel rank holds, by index in the
/// whole model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Heads {
    pub query: Range<usize>,
    /// Range of the key/value heads that the rank's query heads use. If there are more ranks than
    /// key/value heads, several ranks hold the same one.
    pub kv: Range<usize>,
}

impl Heads {
    /// Returns the heads that `rank` holds of `query_heads` and `kv_heads`; none if the rank would
    /// have no query head.
    ///
    /// With at least as many key heads as ranks, a rank holds some key heads and all query heads of
    /// each. Otherwise several ranks hold the same key head and divide its query heads among them.
    fn new(rank: Rank, query_heads: usize, kv_heads: usize) -> Option<Self> {
        let group = query_heads / kv_heads;
        if rank.count <= kv_heads {
            let kv = rank.share(kv_heads);
            return Some(Self { query: kv.start * group..kv.end * group, kv });
        }
        // Ranks take key heads in order, so the ranks that share one are adjacent.
        let of_rank = |index: usize| index * kv_heads / rank.count;
        let kv = of_rank(rank.index);
        let sharers = (0..rank.count).filter(|index| of_rank(*index) == kv);
        let (first, count) = (sharers.clone().next()?, sharers.count());
        // Within the sharers of one key head, its query heads are divided like any other range.
        let own = Rank { index: rank.index - first, count }.share(group);
        let query = kv * group + own.start..kv * group + own.end;
        (!own.is_empty()).then_some(Self { query, kv: kv..kv + 1 })
    }

    /// Returns the heads that `rank` holds of the attention `whole`, and the shape that they form;
    /// none if the rank would have no head.
    pub fn of_attention(rank: Rank, whole: &AttentionShape) -> Option<(Self, AttentionShape)> {
        let own = Self::new(rank, whole.heads, whole.kv_heads)?;
        let (heads, kv_heads) = (own.query.len(), own.kv.len());
        Some((own, AttentionShape { heads, kv_heads, ..*whole }))
    }

    /// Returns the heads that `rank` holds of the gated DeltaNet `whole`, and the shape that they
    /// form; none if the rank would have no head. Value heads take the role of query heads.
    pub fn of_delta_net(rank: Rank, whole: &DeltaNetShape) -> Option<(Self, DeltaNetShape)> {
        let own = Self::new(rank, whole.value_heads, whole.key_heads)?;
        let (value_heads, key_heads) = (own.query.len(), own.kv.len());
        Some((own, DeltaNetShape { value_heads, key_heads, ..*whole }))
    }
}

/// Returns the index range of `total` columns that `rank` holds, as [`Rank::share`] does, but with
/// borders on multiples of `unit`; the last range ends at `total`.
pub fn share_in_units(rank: Rank, total: usize, unit: usize) -> Range<usize> {
    let units = rank.share(total.div_ceil(unit));
    (units.start * unit).min(total)..(units.end * unit).min(total)
}

/// Returns the range of the columns of the heads `heads`, of `dim` columns each; `first` is the
/// first column of head 0.
pub fn columns(first: usize, heads: &Range<usize>, dim: usize) -> Range<usize> {
    first + heads.start * dim..first + heads.end * dim
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_query_head_has_one_rank_and_its_own_key_head() {
        for (heads, kv_heads) in [(6, 2), (9, 3), (8, 8), (12, 4), (14, 2), (32, 1), (64, 8)] {
            let group = heads / kv_heads;
            for count in 1..=8 {
                let own: Option<Vec<_>> = (0..count)
                    .map(|index| Heads::new(Rank { index, count }, heads, kv_heads))
                    .collect();
                let Some(own) = own else {
                    assert!(count > kv_heads, "{heads} heads, {count} ranks");
                    continue;
                };
                let mut next = 0;
                for Heads { query, kv } in &own {
                    assert_eq!(query.start, next, "{heads}/{kv_heads} heads, {count} ranks");
                    next = query.end;
                    assert_eq!(query.start / group, kv.start);
                    assert_eq!((query.end - 1) / group + 1, kv.end);
                    assert_eq!(query.len() % kv.len(), 0, "a group is whole, or alone");
                }
                assert_eq!(next, heads);
                let sizes = own.iter().map(|own| own.query.len());
                assert!(sizes.clone().max().unwrap() - sizes.min().unwrap() <= group);
            }
        }
    }

    #[test]
    fn shares_cover_everything_once_and_keep_to_units() {
        for (total, unit) in [(160, 1), (160, 32), (4864, 256), (7, 1), (3, 1), (100, 32)] {
            for count in 1..=8 {
                let mut next = 0;
                for index in 0..count {
                    let own = share_in_units(Rank { index, count }, total, unit);
                    assert_eq!(own.start, next, "{total} in {unit} by {count}");
                    assert!(own.start == total || own.start.is_multiple_of(unit));
                    next = own.end;
                }
                assert_eq!(next, total);
            }
        }
    }
}
