//! Ends an output at a string, even where the string is spread over tokens, and lets no part of it
//! out before.

use crate::text::overlap;

/// Text on its way out, of one sequence.
#[derive(Debug, Default)]
pub(super) struct StopText {
    stops: Vec<String>,
    /// Whether the string that ended the output is part of it.
    include: bool,
    /// Text that may be the beginning of a stop string.
    held: String,
}

/// What became certain with a piece of text.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Released {
    pub(super) text: String,
    /// The stop string that was found.
    pub(super) stop: Option<String>,
}

impl StopText {
    pub(super) fn new(stops: Vec<String>, include: bool) -> Self {
        debug_assert!(stops.iter().all(|stop| !stop.is_empty()), "an empty string stops nothing");
        Self { stops, include, held: String::new() }
    }

    /// Adds text and lets out what cannot be part of a stop string any more.
    pub(super) fn push(&mut self, text: &str) -> Released {
        if self.stops.is_empty() {
            return Released { text: text.to_owned(), stop: None };
        }
        self.held.push_str(text);
        let found = self.stops.iter().filter_map(|stop| Some((self.held.find(stop)?, stop)));
        // The first in the text ends it; of two at one place the longer, which the caller meant.
        if let Some((at, stop)) = found.min_by_key(|(at, stop)| (*at, usize::MAX - stop.len())) {
            let end = if self.include { at + stop.len() } else { at };
            let stop = stop.clone();
            self.held.truncate(end);
            return Released { text: std::mem::take(&mut self.held), stop: Some(stop) };
        }
        let keep = self.stops.iter().map(|stop| overlap(&self.held, stop)).max().unwrap_or(0);
        let rest = self.held.split_off(self.held.len() - keep);
        Released { text: std::mem::replace(&mut self.held, rest), stop: None }
    }

    /// Adds text that cannot end the output, and lets everything out.
    pub(super) fn pass(&mut self, text: &str) -> String {
        let mut all = std::mem::take(&mut self.held);
        all.push_str(text);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What comes out piece by piece, ended by `!` if a stop was found.
    fn pieces(stops: &[&str], include: bool, input: &[&str]) -> String {
        let mut stop = StopText::new(stops.iter().map(ToString::to_string).collect(), include);
        let mut out = Vec::new();
        for piece in input {
            let released = stop.push(piece);
            out.push(released.text);
            if released.stop.is_some() {
                return out.join("|") + "!";
            }
        }
        out.push(stop.pass(""));
        out.join("|")
    }

    #[test]
    fn a_stop_string_never_leaks() {
        for (stops, include, input, expected) in [
            (&["END"][..], false, &["a E", "N", "D b"][..], "a ||!"),
            (&["END"], true, &["a E", "N", "D b"], "a ||END!"),
            (&["END"], false, &["E", "NE", "x"], "|EN|Ex|"),
            (&["END"], false, &["EN", "D"], "|!"),
            (&["aab"], false, &["aaa", "b"], "a|!"),
            (&["x", "abc"], false, &["ab", "x"], "|ab!"),
            (&["bc", "abcd"], false, &["abcd"], "!"),
            (&["b", "bc"], true, &["abc"], "abc!"),
            (&["é!"], false, &["caf", "é", "?"], "caf||é?|"),
            (&[], false, &["a", "b"], "a|b|"),
        ] {
            assert_eq!(pieces(stops, include, input), expected, "{stops:?} in {input:?}");
        }
    }
}
