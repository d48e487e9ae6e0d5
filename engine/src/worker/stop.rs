//! Detector of stop strings: ends an output at a stop string, even if it is spread over several
//! tokens, and never releases the beginning of one.

use crate::tokenize::overlap;

/// Output text of one sequence, which is held back while it may be the beginning of a stop string.
#[derive(Debug, Default)]
pub(super) struct StopText {
    stops: Vec<String>,
    /// True to keep the stop string that ended the output in the output's text.
    include: bool,
    /// Output text held back, since it may be the beginning of a stop string.
    held: String,
}

/// Output text that became final when a piece was added, and the stop string if one was completed.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Released {
    pub(super) text: String,
    /// Stop string that the added piece completed, if it completed one.
    pub(super) stop: Option<String>,
}

impl StopText {
    pub(super) fn new(stops: Vec<String>, include: bool) -> Self {
        debug_assert!(stops.iter().all(|stop| !stop.is_empty()), "an empty string stops nothing");
        Self { stops, include, held: String::new() }
    }

    /// Adds a piece of output text, and releases the text that cannot belong to a stop string any
    /// more. Once a stop string is complete, text after it is dropped.
    pub(super) fn push(&mut self, text: String) -> Released {
        if self.stops.is_empty() {
            return Released { text, stop: None };
        }
        for c in text.chars() {
            self.held.push(c);
            // Character by character, so that the result does not depend on how the text is cut
            // into tokens. Of two stop strings that are complete at once the longer wins, since it
            // began first.
            let complete = self.stops.iter().filter(|stop| self.held.ends_with(stop.as_str()));
            if let Some(stop) = complete.max_by_key(|stop| stop.len()).cloned() {
                let end = self.held.len() - if self.include { 0 } else { stop.len() };
                self.held.truncate(end);
                return Released { text: std::mem::take(&mut self.held), stop: Some(stop) };
            }
        }
        // Keeps the longest end that may still become a stop string.
        let keep = self.stops.iter().map(|stop| overlap(&self.held, stop)).max().unwrap_or(0);
        let rest = self.held.split_off(self.held.len() - keep);
        Released { text: std::mem::replace(&mut self.held, rest), stop: None }
    }

    /// Adds a piece of text in which no stop string is looked for, and releases it with all text
    /// held back.
    pub(super) fn pass(&mut self, text: &str) -> String {
        let mut all = std::mem::take(&mut self.held);
        all.push_str(text);
        all
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Test helper: adds the pieces `input` to a detector of stop strings and returns the texts
    /// that it releases, joined by `|`; a final `!` means that a stop string was found.
    fn pieces(stops: &[&str], include: bool, input: &[&str]) -> String {
        let mut stop = StopText::new(stops.iter().map(ToString::to_string).collect(), include);
        let mut out = Vec::new();
        for piece in input {
            let released = stop.push((*piece).to_owned());
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
            (&["bc", "abcd"], false, &["abcd"], "a!"),
            (&["bc", "abc"], false, &["abc"], "!"),
            (&["b", "bc"], true, &["abc"], "ab!"),
            (&["é!"], false, &["caf", "é", "?"], "caf||é?|"),
            (&[], false, &["a", "b"], "a|b|"),
        ] {
            assert_eq!(pieces(stops, include, input), expected, "{stops:?} in {input:?}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn how_a_text_is_cut_into_tokens_makes_no_difference(
            text in "[abé]{0,24}",
            stops in prop::collection::vec("[abé]{1,4}", 0..4),
            include in any::<bool>(),
            cuts in prop::collection::vec(0usize..24, 0..8),
        ) {
            let stops: Vec<&str> = stops.iter().map(String::as_str).collect();
            let mut cuts: Vec<usize> =
                cuts.into_iter().filter(|cut| text.is_char_boundary(*cut)).collect();
            cuts.extend([0, text.len()]);
            cuts.sort_unstable();
            cuts.retain(|cut| *cut <= text.len());
            let parts: Vec<&str> = cuts.windows(2).map(|ends| &text[ends[0]..ends[1]]).collect();
            let whole = pieces(&stops, include, &[&text]).replace('|', "");
            prop_assert_eq!(pieces(&stops, include, &parts).replace('|', ""), &whole[..]);
            // No stop string is part of the text, except at its end where it is included.
            let shown = whole.trim_end_matches('!');
            let last = shown.char_indices().next_back().map_or(0, |(at, _)| at);
            let shown = if include { &shown[..last] } else { shown };
            prop_assert!(stops.iter().all(|stop| !shown.contains(stop)), "{}", whole);
        }
    }
}
