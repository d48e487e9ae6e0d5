//! Translates the scheduler's plan of a step to the model's input batch: token ids, positions,
//! block tables and logits to return.

use super::desk::Desk;
use crate::model::{LogitRows, SegmentState, StepBatch, StepToken};
use crate::schedule::Plan;

impl Desk {
    /// Fills `batch` for `plan`. The batch is reused, so that a step allocates no memory.
    pub(super) fn fill(&mut self, batch: &mut StepBatch, plan: &Plan) {
        let mut draws = 0;
        batch.tokens.clear();
        batch.segments.resize_with(plan.slots.len(), Default::default);
        for (slot, segment) in plan.slots.iter().zip(&mut batch.segments) {
            let sequence = self.scheduler.sequence(slot.id).expect("a planned sequence lives");
            let active = self.active.get_mut(slot.id).expect("a planned sequence is active");
            let end = slot.position + slot.rows;
            let known = &sequence.tokens()[slot.position..end - usize::from(slot.unknown)];
            batch.tokens.extend(known.iter().copied().map(StepToken::Known));
            if slot.unknown {
                let index = active.drawn.expect("a token on its way is drawn by the step before");
                batch.tokens.push(StepToken::Drawn(index));
            }
            segment.rows = slot.rows;
            segment.position = slot.position;
            segment.pages.clear();
            segment.pages.extend(sequence.pages().iter().map(|page| page.0));
            let n = end.saturating_sub(sequence.prompt_tokens());
            segment.logits = active.logit_rows(slot, n);
            segment.state = slot.state.map(|state| SegmentState {
                place: state.place.0,
                load: state.load.map(|snapshot| snapshot.0),
                save: state.save.map(|snapshot| snapshot.0),
            });
            active.drawn = matches!(segment.logits, LogitRows::Draw(_)).then_some(draws);
            draws += u32::from(active.drawn.is_some());
        }
    }
}
