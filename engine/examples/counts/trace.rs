//! Fixed trace of arrivals through the scheduler, with shared prefixes, chunked prompts and
//! preempted sequences, whose instructions are counted.

use engine_schedule::{Limits, Needs, Scheduler, SeqId};

const STEPS: usize = 300;

const LIMITS: Limits = Limits {
    max_batch_size: 16,
    token_budget: 256,
    mixed_budget: 256,
    max_seq_len: 512,
    pages: 48,
    page_tokens: 16,
    chunk_tokens: 64,
    prefix_cache: true,
    states: None,
    run_ahead: 0,
    max_drafts: 0,
};

/// Runs the whole trace of arrivals, beginning with an empty scheduler.
pub fn run() {
    let mut scheduler = Scheduler::new(LIMITS);
    let mut random = Random(1);
    for step in 0..STEPS as u64 {
        if random.below(3) == 0 {
            let id = SeqId(step);
            scheduler
                .add(id, prompt(&mut random), output(id), Needs::default())
                .expect("prompts fit");
        }
        let plan = scheduler.plan();
        if plan.sequences.is_empty() {
            continue;
        }
        scheduler.commit(&plan);
        for planned in plan.sequences.iter().filter(|planned| planned.samples) {
            let sequence = scheduler.sequence(planned.id).expect("a planned sequence lives");
            if sequence.output().len() + 1 == output(planned.id) {
                scheduler.remove(planned.id);
            } else {
                scheduler.append(planned.id, random.below(1000));
            }
        }
    }
    let totals = scheduler.totals();
    assert!(totals.preemptions > 0 && totals.hit_tokens > 0, "nothing hard came: {totals:?}");
}

/// Returns the number of tokens that a sequence generates.
fn output(id: SeqId) -> usize {
    1 + (id.0 * 37 % 120) as usize
}

/// Returns a random prompt that begins like those of one of four families, so that prefixes are
/// shared.
fn prompt(random: &mut Random) -> Vec<u32> {
    let (family, length) = (random.below(4), 1 + random.below(200));
    (0..length).map(|index| family * 1000 + index).collect()
}

/// Linear congruential generator of the trace's random numbers.
struct Random(u32);

impl Random {
    fn below(&mut self, end: u32) -> u32 {
        self.0 = self.0.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (self.0 >> 8) % end
    }
}
