//! Translates the scheduler's plan of a step to the model's input batch: token ids, positions,
//! block tables and logits to return.

use super::desk::Desk;
use engine_core::{LogitRows, SegmentState, StepBatch, StepToken};
use engine_schedule::Plan;

impl Desk {
    /// Fills `batch` for `plan`. The batch comes from an earlier step, so that its memory is
    /// reused.
    pub(super) fn fill(&mut self, batch: &mut StepBatch, plan: &Plan) {
        // Number of tokens that the device samples in this step, up to here.
        let mut draws = 0;
        batch.tokens.clear();
        // Resized rather than cleared, to keep the memory of the block tables.
        batch.segments.resize_with(plan.slots.len(), Default::default);
        for (slot, segment) in plan.slots.iter().zip(&mut batch.segments) {
            let sequence = self.scheduler.sequence(slot.id).expect("a planned sequence lives");
            let active = self.active.get_mut(slot.id).expect("a planned sequence is active");
            let end = slot.position + slot.rows;
            // The newest input token may still be on the device, sampled by the step in flight.
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
            // Index of the output token that is sampled after the last row; 0 while the prompt
            // lasts.
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
