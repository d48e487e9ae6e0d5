//! Building of a grammar in pieces. The grammar engine cannot be interrupted, so between two pieces the
//! grammar is given up if nobody waits for it any more.
//!
//! Each piece ends by itself: what a structure may consist of is limited before, and the grammar
//! engine counts its work on regular expressions as fuel.

use std::panic::AssertUnwindSafe;

use llguidance::api::{GrammarInit, TopLevelGrammar};
use llguidance::earley::lexerspec::LexerSpec;
use llguidance::panic_utils::catch_unwind;
use llguidance::toktrie::TokEnv;
use llguidance::{Matcher, ParserFactory};

use super::TextError;

/// Function that returns true as long as somebody waits for a grammar.
pub type IsWanted<'a> = &'a (dyn Fn() -> bool + Sync);

/// Returns an error if nobody waits for a grammar any more.
pub(super) fn check_wanted(is_wanted: IsWanted<'_>) -> Result<(), TextError> {
    if is_wanted() { Ok(()) } else { Err(TextError("nobody waits for its grammar".into())) }
}

/// Builder of the grammars of one structure.
pub(super) struct Builder<'a> {
    pub(super) factory: &'a ParserFactory,
    pub(super) is_wanted: IsWanted<'a>,
    /// True if a text or number of the structure may have to match several regular expressions at
    /// once.
    pub(super) has_intersections: bool,
}

impl Builder<'_> {
    /// Builds a matcher at the beginning of a grammar.
    pub(super) fn matcher(&self, grammar: TopLevelGrammar) -> Result<Matcher, TextError> {
        let (tokens, limits) = (self.factory.tok_env(), self.factory.limits());
        let (grammar, lexer) = self.piece(|| {
            let grammar = GrammarInit::Serialized(grammar);
            grammar.to_internal(Some(TokEnv::clone(tokens)), limits.clone())
        })?;
        if self.has_intersections {
            self.piece(|| follow_first_bytes(self.factory, &lexer, limits.initial_lexer_fuel))?;
        }
        let internal = GrammarInit::Internal(grammar, lexer);
        let parser = self.piece(|| self.factory.create_parser_from_init_default(internal))?;
        let mut matcher = Matcher::new(Ok(parser));
        if let Some(error) = matcher.get_error() {
            return Err(TextError::of(&error));
        }
        check_wanted(self.is_wanted)?;
        // A structure that no token can begin is refused here; later it would fail a running
        // sequence.
        if let Err(error) = matcher.compute_mask_or_eos() {
            let reason = TextError::of(&error);
            return Err(TextError(format!("no answer can begin with it ({reason})")));
        }
        Ok(matcher)
    }

    /// Runs a piece of the work, if the grammar is still wanted. The grammar engine reports some
    /// errors by panics.
    fn piece<T>(&self, work: impl FnOnce() -> anyhow::Result<T>) -> Result<T, TextError> {
        check_wanted(self.is_wanted)?;
        catch_unwind(AssertUnwindSafe(work)).map_err(|error| TextError::of(&error))
    }
}

/// Follows every first byte of a grammar's lexemes, and returns an error where that takes more than
/// `fuel`.
///
/// The grammar engine does the same without a limit when it creates a parser. Where a text that must
/// match several regular expressions is an alternative to something else, this is also the first
/// search for a text that matches them all, and the search may have no end. After this function the
/// grammar engine repeats the same steps.
pub(super) fn follow_first_bytes(
    factory: &ParserFactory,
    lexer: &LexerSpec,
    fuel: u64,
) -> anyhow::Result<()> {
    let mut lexer = lexer.clone();
    lexer.add_extra_lexemes(&factory.extra_lexemes());
    let mut states = lexer.to_regex_vec(&mut factory.limits().clone())?;
    states.set_fuel(fuel);
    let start = states.initial_state(&lexer.all_lexemes());
    for byte in 0..=u8::MAX {
        states.transition(start, byte);
        // In this state no transition may follow.
        anyhow::ensure!(
            !states.has_error(),
            "its regular expressions take too much work to combine; hint: fewer or shorter ones, \
             with smaller counts"
        );
    }
    Ok(())
}
