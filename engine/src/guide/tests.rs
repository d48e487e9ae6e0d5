//! Tests of grammars and of what is refused before or while one is built.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use llguidance::api::GrammarInit;
use serde_json::json;

use super::build::follow_first_bytes;
use super::*;
use crate::tools::Tool;

const THINK: u32 = 256;
const DONE: u32 = 257;
const END: u32 = 258;

/// Builds the grammar engine of the tests, for a vocabulary with a token for each of the 256
/// bytes, and three special tokens.
fn grammars() -> Grammars {
    let bytes = (0..=u8::MAX).map(|byte| TokenBytes { bytes: vec![byte], is_special: false });
    let special = ["<think>", "</think>", "<end>"];
    let special =
        special.map(|name| TokenBytes { bytes: name.as_bytes().to_vec(), is_special: true });
    Grammars::new(bytes.chain(special), &[END]).unwrap()
}

/// Test helper: returns the longest prefix of `text` with which an output of this structure may
/// begin, and whether the output may end after it.
fn follow(structure: &Structure, text: &str) -> (String, bool) {
    let mut guide = grammars().guide(structure, Opening::AtOnce, &|| true).unwrap();
    let mut said = String::new();
    for byte in text.bytes() {
        let allowed = guide.allowed().unwrap().expect("the structure begins at once");
        if !allowed.contains(u32::from(byte)) {
            return (said, allowed.contains(END));
        }
        said.push(char::from(byte));
        if guide.accept(u32::from(byte)).unwrap() {
            return (said, true);
        }
    }
    let ends = guide.allowed().unwrap().is_some_and(|allowed| allowed.contains(END));
    (said, ends)
}

#[test]
fn a_text_can_go_as_far_as_its_structure_allows() {
    let schema = json!({
        "type": "object", "required": ["name", "age"], "additionalProperties": false,
        "properties": {"name": {"type": "string"}, "age": {"$ref": "#/$defs/age"}},
        "$defs": {"age": {"type": "integer"}},
    });
    let dense = Structure::Json(json!({
        "type": "object", "x-guidance": {"whitespace_flexible": false},
    }));
    let number = Structure::Regex("-?[0-9]{1,3}".into());
    let choice = Structure::Choice(vec!["yes".into(), "n.o".into(), "<a>".into()]);
    for (structure, text, said, ends) in [
        (&Structure::any_object(), r#"{"a": [1, true]} "#, r#"{"a": [1, true]}"#, true),
        (&Structure::any_object(), "{\n", "{", false),
        (&Structure::any_object(), "[1]", "", false),
        (&dense, r#"{"a": 1}"#, r#"{"a":"#, false),
        (
            &Structure::Json(schema.clone()),
            r#"{"name":"x","age":7}"#,
            r#"{"name":"x","age":7}"#,
            true,
        ),
        (&Structure::Json(schema.clone()), r#"{"name":"x"}"#, r#"{"name":"x""#, false),
        (&Structure::Json(schema), r#"{"age":7,"name":"x"}"#, r#"{""#, false),
        (&number, "-42", "-42", true),
        (&number, "1234", "123", true),
        (&choice, "yesterday", "yes", true),
        (&choice, "nno", "n", false),
        (&choice, "n.o", "n.o", true),
        (&choice, "<a>", "<a>", true),
    ] {
        assert_eq!(follow(structure, text), (said.to_owned(), ends), "{structure:?}: {text}");
    }
}

#[test]
fn structures_that_make_no_sense_are_refused_in_one_line() {
    for structure in [
        Structure::Json(json!({"type": "wizard"})),
        Structure::Json(json!({"$ref": "#/$defs/none"})),
        Structure::Json(json!({"$ref": "#"})),
        Structure::Json(json!({"$ref": "https://example.org/x"})),
        Structure::Json(json!(7)),
        Structure::Json(json!({"type": "integer", "minimum": 3, "maximum": 2})),
        Structure::Regex("(".into()),
        Structure::Regex("(?=a)b".into()),
    ] {
        let refused = grammars().guide(&structure, Opening::AtOnce, &|| true);
        let error = refused.expect_err("a bad structure");
        let message = error.to_string();
        assert!(!message.is_empty() && !message.contains('\n'), "{structure:?}: {message}");
    }
    let open = grammars().guide(&Structure::Regex("(".into()), Opening::AtOnce, &|| true);
    let message = open.unwrap_err().to_string();
    assert!(message.ends_with("regex parse error: unclosed group"), "{message}");
}

#[test]
fn a_structure_begins_after_the_thinking_whatever_that_says() {
    let structure = Structure::Regex("ok".into());
    let opening = Opening::Unless { open: THINK, close: DONE };
    let guide = grammars().guide(&structure, opening, &|| true).unwrap();
    let letter = |letter: char| u32::from(letter);

    let mut thinking = guide.clone();
    assert!(thinking.allowed().unwrap().unwrap().contains(THINK));
    for token in [THINK, letter('x'), END] {
        assert_eq!(thinking.accept(token), Ok(false));
        assert_eq!(thinking.allowed(), Ok(None));
    }
    assert_eq!(thinking.accept(DONE), Ok(false));
    let allowed = thinking.allowed().unwrap().unwrap();
    assert!(allowed.contains(letter('o')) && !allowed.contains(THINK));

    let mut plain = guide.clone();
    assert_eq!(plain.accept(letter('o')), Ok(false));
    let allowed = plain.allowed().unwrap().unwrap();
    assert!(allowed.contains(letter('k')) && !allowed.contains(THINK));
    assert_eq!(plain.accept(letter('k')), Ok(true));

    let mut after = grammars().guide(&structure, Opening::After(vec![3, 4]), &|| true).unwrap();
    for token in [3, 3, 4] {
        assert_eq!(after.allowed(), Ok(None));
        assert_eq!(after.accept(token), Ok(false));
    }
    assert!(after.allowed().unwrap().unwrap().contains(letter('o')));
}

#[test]
fn a_grammar_for_which_nobody_waits_is_given_up_at_the_next_piece() {
    let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}}});
    let expression = json!({"type": "string", "pattern": "^a+$", "maxLength": 3});
    let tool = Tool { name: "f".into(), parameters: schema.clone() };
    // Harmony has two grammars, since the mark after the name differs.
    let calls = Calls {
        format: &crate::tools::HARMONY,
        tools: vec![tool],
        is_required: false,
        may_repeat: false,
        shows_special: true,
        answer: None,
    };
    let grammars = grammars();
    for (structure, pieces) in [
        (Structure::Regex("a+".into()), 4_usize),
        (Structure::Json(schema), 4),
        (Structure::Json(expression), 5),
        (Structure::Calls(calls), 7),
    ] {
        let gone = TextError("nobody waits for its grammar".into());
        for before in 0..=pieces {
            let asked = AtomicUsize::new(0);
            let is_wanted = || asked.fetch_add(1, Relaxed) < before;
            let built = grammars.guide(&structure, Opening::AtOnce, &is_wanted);
            let wanted = if before < pieces { Some(&gone) } else { None };
            assert_eq!(built.err().as_ref(), wanted, "{structure:?} after {before} pieces");
            // Nothing is begun after the answer.
            assert_eq!(asked.load(Relaxed), pieces.min(before + 1), "{structure:?}");
        }
    }
    // Nothing is built at all, so that nothing can be wrong with it.
    let refused = grammars.guide(&Structure::Regex("(".into()), Opening::AtOnce, &|| false);
    assert_eq!(refused.unwrap_err().0, "nobody waits for its grammar");
}

/// Schema of a text that must match two regular expressions, or is null. A short text of control
/// characters matches both, and is found at once. In JSON it is long, and the grammar engine looks for
/// a shorter one before: it tries a hundred million numbers of `a`, after which the expressions want
/// different letters.
fn long_search() -> Value {
    let control = r"\x01".repeat(60);
    let first = format!("^({control}|(a{{9973}})*b)$");
    let second = format!("^({control}|(a{{9967}})*c)$");
    let texts = [first, second].map(|pattern| json!({"type": "string", "pattern": pattern}));
    json!({"anyOf": [{"type": "null"}, {"allOf": texts}]})
}

#[test]
fn a_search_for_a_text_without_end_is_refused() {
    let structure = Structure::Json(long_search());
    let refused = grammars().guide(&structure, Opening::AtOnce, &|| true);
    let message = refused.unwrap_err().to_string();
    assert!(message.contains("take too much work to combine"), "{message}");
}

#[test]
fn the_first_bytes_of_lexemes_are_followed_with_fuel() {
    let Grammars { factory, tokens } = grammars();
    let schema =
        json!({"type": ["string", "null"], "pattern": "^(a|b)*a(a|b){3}$", "maxLength": 9});
    let grammar = GrammarInit::Serialized(Structure::Json(schema).grammar(tokens.tok_trie()));
    let limits = factory.limits();
    let (_, lexer) = grammar.to_internal(Some(tokens.clone()), limits.clone()).unwrap();
    assert!(follow_first_bytes(&factory, &lexer, limits.initial_lexer_fuel).is_ok());
    assert!(follow_first_bytes(&factory, &lexer, 10).is_err());
}
