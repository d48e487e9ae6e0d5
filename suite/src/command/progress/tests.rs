//! Tests of the progress report, without a clock and without a terminal.

use std::io;
use std::sync::Mutex;

use expect_test::expect;
use indicatif::TermLike;

use super::*;

const SECOND: u64 = 1_000_000_000;

/// Returns the progress, after `tenths` tenths of a second, of a run of four streams that outputs
/// 1,000 tokens per second for ten seconds.
fn tally(tenths: u64) -> Tally {
    let elapsed_ns = tenths * SECOND / 10;
    let (done, tokens) = (tenths * 4 / 10, tenths * 100);
    Tally { planned: 40, done, failed: 1, in_flight: 4, tokens, elapsed_ns }
}

fn view(face: Face) -> View {
    View { face, planned: 40, planned_tokens: 10_000, rate: Rate::default() }
}

#[test]
fn plain_lines_come_every_five_seconds_and_at_the_end() {
    let mut view = view(Face::Plain { shown_ns: 0 });
    let shown = (0..=100).step_by(2).filter_map(|tenths| view.show(&tally(tenths), false));
    let mut lines: Vec<String> = shown.collect();
    lines.extend(view.show(&tally(101), true));
    expect![[r#"
        20 of 40 requests, 1 failed, 4 in flight, 1000 tokens/s, 0:05, 0:05 left
        40 of 40 requests, 1 failed, 4 in flight, 1000 tokens/s, 0:10, 0:00 left
        40 of 40 requests done, 1 failed, in 0:10"#]]
    .assert_eq(&lines.join("\n"));
}

#[test]
fn the_rate_is_that_of_the_last_second() {
    let mut rate = Rate::default();
    assert_eq!(rate.tokens_per_s(), 0.0);
    for tenths in 0..30 {
        // No tokens for two seconds, then 10 tokens in each tenth of a second.
        let tokens = u64::saturating_sub(tenths, 20) * 10;
        rate.take(&Tally { tokens, elapsed_ns: tenths * SECOND / 10, ..Tally::default() });
    }
    assert_eq!(rate.tokens_per_s(), 90.0, "nine tenths of the second gave 10 tokens each");
    assert!(rate.0.len() <= 11, "what is older is forgotten: {}", rate.0.len());
}

#[test]
fn times_have_hours_only_where_they_need_them() {
    let shown = [0, 59 * SECOND, 61 * SECOND, 3_723 * SECOND].map(clock);
    assert_eq!(shown, ["0:00", "0:59", "1:01", "1:02:03"]);
}

#[test]
fn the_thread_shows_what_was_stored_and_ends_with_the_run() {
    let mut progress = Progress::begin(Style::Plain, 40, 10_000);
    progress.show(&tally(3));
    assert_eq!(progress.board.tally(), tally(3));
    progress.finish();
    assert!(progress.shower.is_none());
}

/// Simulated terminal of 80 columns that keeps what is drawn on it.
#[derive(Clone, Debug, Default)]
struct Screen(Arc<Mutex<String>>);

impl Screen {
    fn text(&self) -> String {
        self.0.lock().unwrap().trim().to_owned()
    }
}

impl TermLike for Screen {
    fn width(&self) -> u16 {
        80
    }
    fn move_cursor_up(&self, _: usize) -> io::Result<()> {
        Ok(())
    }
    fn move_cursor_down(&self, _: usize) -> io::Result<()> {
        Ok(())
    }
    fn move_cursor_right(&self, _: usize) -> io::Result<()> {
        Ok(())
    }
    fn move_cursor_left(&self, _: usize) -> io::Result<()> {
        Ok(())
    }
    fn write_line(&self, text: &str) -> io::Result<()> {
        self.write_str(text)
    }
    fn write_str(&self, text: &str) -> io::Result<()> {
        self.0.lock().unwrap().push_str(text);
        Ok(())
    }
    fn clear_line(&self) -> io::Result<()> {
        self.0.lock().unwrap().clear();
        Ok(())
    }
    fn flush(&self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn the_bar_fits_a_terminal_and_is_gone_at_the_end() {
    let screen = Screen::default();
    let target = ProgressDrawTarget::term_like_with_hz(Box::new(screen.clone()), 255);
    let mut view = view(Face::Bar(bar(40, target)));
    for tenths in [0, 10, 20] {
        view.show(&tally(tenths), false);
        // The bar limits how often it redraws, but every step must be visible here.
        if let Face::Bar(bar) = &view.face {
            bar.force_draw();
        }
    }
    let drawn = screen.text();
    assert!(
        drawn.contains("8/40 1 failed, 4 in flight, 1000 tokens/s, 0:02, 0:08 left"),
        "{drawn}"
    );
    assert_eq!(drawn.chars().count(), 80, "{drawn}");
    view.show(&tally(21), true);
    assert_eq!(screen.text(), "");
}
