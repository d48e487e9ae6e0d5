//! How far a run is, on standard error: a line that redraws itself on a terminal, else a plain
//! one every few seconds.

use std::io::IsTerminal;
use std::time::Duration;

use clap::ValueEnum;
use indicatif::{ProgressBar, ProgressStyle};

use crate::client::drive::Tally;

/// Between two plain lines.
const PLAIN_NS: u64 = 5_000_000_000;
/// The rate shown is that of the last few seconds, so that ramp and drain show.
const RATE_NS: u64 = 2_000_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Style {
    /// Redrawn on a terminal, else plain.
    Auto,
    /// A line every five seconds.
    Plain,
    None,
}

/// Shows tallies as they come.
#[derive(Debug)]
pub struct Progress {
    bar: Option<ProgressBar>,
    plain: bool,
    planned_tokens: u64,
    shown_ns: u64,
    /// Tokens and time at the start of the present rate's span, and the rate before.
    mark: (u64, u64),
    rate: f64,
}

impl Progress {
    pub fn new(style: Style, requests: u64, planned_tokens: u64) -> Self {
        let terminal = std::io::stderr().is_terminal();
        let bar = (style == Style::Auto && terminal).then(|| bar(requests));
        let plain = style == Style::Plain || (style == Style::Auto && !terminal);
        Self { bar, plain, planned_tokens, shown_ns: 0, mark: (0, 0), rate: 0.0 }
    }

    pub fn show(&mut self, tally: &Tally) {
        self.take_rate(tally);
        if let Some(bar) = &self.bar {
            bar.set_position(tally.done);
            bar.set_message(self.words(tally));
        }
        if self.plain && tally.elapsed_ns.saturating_sub(self.shown_ns) >= PLAIN_NS {
            self.shown_ns = tally.elapsed_ns;
            eprintln!("{} of {} requests, {}", tally.done, tally.planned, self.words(tally));
        }
    }

    pub fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "shown with no digit after the point")]
    fn take_rate(&mut self, tally: &Tally) {
        let (tokens, since_ns) = self.mark;
        let span_ns = tally.elapsed_ns.saturating_sub(since_ns);
        if span_ns >= RATE_NS {
            self.rate = tally.tokens.saturating_sub(tokens) as f64 * 1e9 / span_ns as f64;
            self.mark = (tally.tokens, tally.elapsed_ns);
        }
    }

    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a time left is shown in whole seconds"
    )]
    fn words(&self, tally: &Tally) -> String {
        let mut words = format!("{:.0} tokens/s", self.rate);
        if self.rate > 0.0 {
            let left = self.planned_tokens.saturating_sub(tally.tokens) as f64 / self.rate;
            words += &format!(", {} s left", left.ceil() as u64);
        }
        if tally.failed > 0 {
            words += &format!(", {} failed", tally.failed);
        }
        words
    }
}

fn bar(requests: u64) -> ProgressBar {
    let bar = ProgressBar::new(requests);
    // The template is a constant of the form that the crate asks for.
    if let Ok(style) = ProgressStyle::with_template("{wide_bar} {pos}/{len} requests, {msg}") {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}
