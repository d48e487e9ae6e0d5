//! Progress of a run on standard error: a bar on a terminal, else a plain line every few seconds.
//! The client's event loop only stores numbers; a thread of its own prints them, so that a slow
//! terminal cannot delay the loop.

use std::collections::VecDeque;
use std::io::IsTerminal;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use clap::ValueEnum;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::client::drive::Tally;
use crate::measure::summary::{float, whole};

/// Time between two reads of the run's progress by the progress thread.
const POLL: Duration = Duration::from_millis(200);
/// Time between two plain progress lines, in nanoseconds.
const PLAIN_NS: u64 = 5_000_000_000;
/// Period over which the token rate is averaged, in nanoseconds: one second, so that ramp-up and
/// drain are visible.
const RATE_NS: u64 = 1_000_000_000;

/// Style in which the progress of a run is reported on standard error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Style {
    /// Progress bar on a terminal, else plain lines.
    Auto,
    /// One progress line every five seconds, and one at the end.
    Plain,
    /// No progress report.
    None,
}

/// Progress report of one run, updated by the client's event loop.
#[derive(Debug)]
pub struct Progress {
    board: Arc<Board>,
    latest: Tally,
    shower: Option<JoinHandle<()>>,
}

/// Progress that the client's event loop writes and the progress thread reads, and whether the run
/// is over.
#[derive(Debug, Default)]
struct Board {
    tally: Mutex<Tally>,
    over: AtomicBool,
}

impl Progress {
    /// Starts the progress report of a run with `planned` requests and `planned_tokens` output
    /// tokens; with none, it reports no token rate.
    pub fn begin(style: Style, planned: u64, planned_tokens: u64) -> Self {
        let board = Arc::new(Board::default());
        let terminal = std::io::stderr().is_terminal();
        let face = match style {
            Style::None => return Self { board, latest: Tally::default(), shower: None },
            Style::Auto if terminal => Face::Bar(bar(planned, ProgressDrawTarget::stderr())),
            Style::Auto | Style::Plain => Face::Plain { shown_ns: 0 },
        };
        let mut view = View { face, planned, planned_tokens, rate: Rate::default() };
        let seen = Arc::clone(&board);
        let show = move || {
            loop {
                // `finish` unparks the thread, so that the end of a run is shown without delay.
                thread::park_timeout(POLL);
                let over = seen.over.load(Ordering::Acquire);
                if let Some(line) = view.show(&seen.tally(), over) {
                    eprintln!("{line}");
                }
                if over {
                    return;
                }
            }
        };
        // If no thread can be started, the run goes on without a progress report.
        let shower = thread::Builder::new().name("progress".to_owned()).spawn(show).ok();
        Self { board, latest: Tally::default(), shower }
    }

    /// Stores the current tally of the run for the progress thread. The event loop never waits: while
    /// that thread reads, the tally is left for the next call or the end.
    pub fn show(&mut self, tally: &Tally) {
        self.latest = *tally;
        if let Ok(mut seen) = self.board.tally.try_lock() {
            *seen = *tally;
        }
    }

    /// Prints the last line of a plain progress report or removes the progress bar, and ends the
    /// progress thread.
    pub fn finish(&mut self) {
        *self.board.lock() = self.latest;
        self.board.over.store(true, Ordering::Release);
        if let Some(shower) = self.shower.take() {
            shower.thread().unpark();
            // A panic in the thread was already printed, and must not spoil the measurement.
            let _ = shower.join();
        }
    }
}

impl Board {
    fn lock(&self) -> MutexGuard<'_, Tally> {
        self.tally.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tally(&self) -> Tally {
        *self.lock()
    }
}

/// State of the display: its style, the planned totals and the current token rate.
struct View {
    face: Face,
    planned: u64,
    planned_tokens: u64,
    rate: Rate,
}

enum Face {
    Bar(ProgressBar),
    /// Display as plain lines, with the time of the last printed line in nanoseconds since the run
    /// began.
    Plain {
        shown_ns: u64,
    },
}

impl View {
    /// Updates the progress bar, or returns the plain progress line if one is due.
    fn show(&mut self, tally: &Tally, over: bool) -> Option<String> {
        self.rate.take(tally);
        let words = self.words(tally);
        match &mut self.face {
            Face::Bar(bar) if over => bar.finish_and_clear(),
            Face::Bar(bar) => {
                bar.set_position(tally.done);
                bar.set_message(words);
            }
            Face::Plain { .. } if over => {
                return Some(format!(
                    "{} of {} requests done, {} failed, in {}",
                    tally.done,
                    self.planned,
                    tally.failed,
                    clock(tally.elapsed_ns)
                ));
            }
            Face::Plain { shown_ns } if tally.elapsed_ns - *shown_ns >= PLAIN_NS => {
                *shown_ns = tally.elapsed_ns;
                return Some(format!("{} of {} requests, {words}", tally.done, self.planned));
            }
            Face::Plain { .. } => {}
        }
        None
    }

    fn words(&self, tally: &Tally) -> String {
        let per_s = self.rate.tokens_per_s();
        let has_tokens = self.planned_tokens > 0;
        let rate = if has_tokens { format!("{per_s:.0} tokens/s, ") } else { String::new() };
        let mut words = format!(
            "{} failed, {} in flight, {rate}{}",
            tally.failed,
            tally.in_flight,
            clock(tally.elapsed_ns)
        );
        let left = self.planned_tokens.saturating_sub(tally.tokens);
        if per_s > 0.0 {
            let left_ns = whole((float(left) / per_s).ceil()) * 1_000_000_000;
            words += &format!(", {} left", clock(left_ns));
        }
        words
    }
}

/// Output token rate over the last second, from pairs of time in nanoseconds and total tokens.
#[derive(Default)]
struct Rate(VecDeque<(u64, u64)>);

impl Rate {
    fn take(&mut self, tally: &Tally) {
        self.0.push_back((tally.elapsed_ns, tally.tokens));
        // The newest entry older than a second is kept as the starting point of the difference.
        while self.0.get(1).is_some_and(|(at_ns, _)| tally.elapsed_ns - at_ns >= RATE_NS) {
            self.0.pop_front();
        }
    }

    fn tokens_per_s(&self) -> f64 {
        let ends = self.0.front().zip(self.0.back());
        let Some(((from_ns, before), (to_ns, tokens))) = ends else { return 0.0 };
        if to_ns == from_ns {
            return 0.0;
        }
        float(tokens.saturating_sub(*before)) * 1e9 / float(to_ns - from_ns)
    }
}

/// Formats a duration as `0:07`, or as `1:02:03` from one hour on.
fn clock(ns: u64) -> String {
    let (minutes, seconds) = (ns / 60_000_000_000, ns / 1_000_000_000 % 60);
    if minutes < 60 {
        return format!("{minutes}:{seconds:02}");
    }
    format!("{}:{:02}:{seconds:02}", minutes / 60, minutes % 60)
}

fn bar(planned: u64, target: ProgressDrawTarget) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(planned), target);
    // The template is a constant in the crate's syntax, so this cannot fail.
    if let Ok(style) = ProgressStyle::with_template("{wide_bar} {pos}/{len} {msg}") {
        bar.set_style(style);
    }
    bar
}

#[cfg(test)]
mod tests;
