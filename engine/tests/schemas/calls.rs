//! Random answers with tool calls, in the format of each model: the arguments of every call that is
//! completed conform to its tool's schema.

use std::ops::Range;

use crate::generated::Generator;
use crate::validator::{is_valid, read};
use crate::walk::choose;
use engine::guide::{Calls, Grammars, Guide, Opening, Structure, TokenBytes};
use engine::tokenize::{Reasoning, SplitText, Splitter};
use engine::tools::{FORMATS, HARMONY, Tool};

/// Texts that are one token, besides the bytes: special tokens, and tokens that end a trigger or go on
/// after it.
const TEXTS: [(&str, bool); 21] = [
    ("<end>", true),
    ("[TOOL_CALLS]", true),
    ("[ARGS]", true),
    ("<｜tool▁calls▁begin｜>", true),
    ("<｜tool▁calls▁end｜>", true),
    ("<｜tool▁call▁begin｜>", true),
    ("<｜tool▁call▁end｜>", true),
    ("<｜tool▁sep｜>", true),
    ("<|channel|>", true),
    ("<|message|>", true),
    ("<|start|>", true),
    ("<|end|>", true),
    ("<|constrain|>", true),
    ("<tool_call>", false),
    ("</tool_call>", false),
    ("call>", false),
    ("call>\n{", false),
    ("{\"", false),
    ("\":", false),
    ("\": \"", false),
    ("functions.f", false),
];
/// Id of the first of [`TEXTS`], which is the end token.
const END: u32 = 256;
/// Number of tokens after which an answer is given up: a string may go on without end.
const TOKENS_MAX: usize = 3000;

fn bytes_of(token: u32) -> Vec<u8> {
    match u8::try_from(token) {
        Ok(byte) => vec![byte],
        Err(_) => TEXTS[(token - END) as usize].0.as_bytes().to_vec(),
    }
}

fn grammars() -> Grammars {
    let tokens = (0..END + TEXTS.len() as u32).map(|token| TokenBytes {
        bytes: bytes_of(token),
        is_special: token >= END && TEXTS[(token - END) as usize].1,
    });
    Grammars::new(tokens, &[END]).unwrap()
}

/// Returns a text as tokens, at random long or short ones.
fn encoded(text: &str, random: &mut Generator) -> Vec<u32> {
    let mut tokens = Vec::new();
    let mut rest = text.as_bytes();
    while let Some(first) = rest.first() {
        let whole = TEXTS.iter().position(|(name, is_special)| {
            let may = *is_special || random.below(2) == 0;
            may && rest.starts_with(name.as_bytes())
        });
        let (token, len) = match whole {
            Some(number) => (END + number as u32, TEXTS[number].0.len()),
            None => (u32::from(*first), 1),
        };
        tokens.push(token);
        rest = &rest[len..];
    }
    tokens
}

/// Returns the text of a random answer that the guide accepts; none if it became too long. Where every
/// token is possible the answer is one of `texts`.
fn answer(mut guide: Guide, texts: &[&str], random: &mut Generator) -> Option<Vec<u32>> {
    let (mut tokens, mut planned, mut texts) = (Vec::new(), Vec::new(), texts.iter());
    let mut in_call = Vec::new();
    while tokens.len() < TOKENS_MAX {
        let allowed = guide.allowed().unwrap();
        let is_allowed =
            |token: u32| allowed.as_ref().is_none_or(|allowed| allowed.contains(token));
        // A set of nearly all tokens is that of free text.
        let is_free = (b'a'..=b'z').chain([b'#', 0x80]).all(|byte| is_allowed(u32::from(byte)));
        let token = if is_free {
            in_call.clear();
            if planned.is_empty() {
                let Some(text) = texts.next() else { break };
                planned = encoded(text, random);
                planned.reverse();
            }
            match planned.pop() {
                Some(token) if is_allowed(token) => token,
                // Such a token goes on after a trigger; the bytes do not.
                Some(token) => {
                    let bytes = bytes_of(token);
                    planned.extend(bytes[1..].iter().rev().map(|byte| u32::from(*byte)));
                    u32::from(bytes[0])
                }
                None => continue,
            }
        } else if is_allowed(END) && random.below(2) == 0 {
            break;
        } else {
            planned.clear();
            let byte = choose(&in_call, |byte| is_allowed(u32::from(byte)), random);
            let other = (END + 1..END + TEXTS.len() as u32).find(|token| is_allowed(*token));
            match (byte, other) {
                (Some(_), Some(other)) if random.below(4) == 0 => other,
                (Some(byte), _) => u32::from(byte),
                (None, Some(other)) => other,
                (None, None) => break,
            }
        };
        in_call.extend(bytes_of(token));
        tokens.push(token);
        if guide.accept(token).unwrap() {
            break;
        }
    }
    (tokens.len() < TOKENS_MAX).then_some(tokens)
}

/// Separates an answer, which arrives token by token or as a whole.
fn split(calls: &Calls, tokens: &[u32], streams: bool) -> SplitText {
    let reasoning = if *calls.format == HARMONY { Reasoning::Harmony } else { Reasoning::None };
    let are_alone = calls.answer.is_some() || calls.is_required;
    let mut splitter = Splitter::new(reasoning, "").with_calls(calls.format, are_alone);
    let bytes: Vec<u8> = tokens.iter().flat_map(|token| bytes_of(*token)).collect();
    let text = String::from_utf8(bytes).expect("the text of an answer is UTF-8");
    let pieces: Vec<&str> = match streams {
        true => text.split_inclusive(|_| true).collect(),
        false => vec![&text],
    };
    let mut all = SplitText::default();
    let mut add = |piece: SplitText| {
        all.reasoning += &piece.reasoning;
        all.content += &piece.content;
        all.calls.extend(piece.calls);
    };
    pieces.iter().for_each(|piece| add(splitter.push(piece)));
    add(splitter.finish());
    all.whole()
}

/// Checks answers with the tools of these seeds; returns the number of calls that were checked, and of
/// sets of tools that the grammar engine does not support.
fn check(seeds: Range<u64>) -> (usize, usize) {
    let grammars = grammars();
    let (mut checked, mut refused) = (0, 0);
    for seed in seeds {
        let mut random = Generator::new(seed);
        let format = FORMATS[random.below(FORMATS.len())];
        let tools: Vec<Tool> = (0..1 + random.below(3))
            .map(|number| Tool { name: format!("f{number}"), parameters: random.arguments() })
            .collect();
        let is_required = random.below(2) == 0;
        let may_repeat = (format.repeats || format.between.is_some()) && random.below(2) == 0;
        let shows_special = true;
        let calls = Calls { format, tools, is_required, may_repeat, shows_special, answer: None };
        let opening = Opening::AtOnce;
        let Ok(guide) = grammars.guide(&Structure::Calls(calls.clone()), opening, &|| true) else {
            refused += 1;
            continue;
        };
        let trigger = &format.triggers[random.below(format.triggers.len())];
        let before = match (trigger.at_start, *format == HARMONY) {
            (false, false) => "So <tool_ca {\"name [TOOL.\n",
            (false, true) => "<|channel|>analysis<|message|>to=functions.f0<|end|>",
            (true, _) => "",
        };
        let texts = [before, trigger.text, "\n", trigger.text];
        let Some(tokens) = answer(guide, &texts, &mut random) else { continue };
        let found = split(&calls, &tokens, false);
        assert_eq!(split(&calls, &tokens, true), found, "seed {seed}: streamed and whole");
        let said: Vec<u8> = tokens.iter().flat_map(|token| bytes_of(*token)).collect();
        let said = String::from_utf8_lossy(&said);
        assert!(!found.calls.is_empty(), "seed {seed}: no call of {} in `{said}`", format.name);
        for call in &found.calls {
            let tool = calls.tools.iter().find(|tool| call.name.as_ref() == Some(&tool.name));
            let schema = &tool.expect("a call of one of the tools").parameters;
            let Some(value) = read(&call.arguments, seed) else { continue };
            assert!(is_valid(schema, schema, &value), "seed {seed}: {call:?} for {schema}");
            checked += 1;
        }
    }
    (checked, refused)
}

#[test]
fn calls_conform_to_the_schemas_of_their_tools() {
    let (checked, refused) = check(0..400);
    assert!(checked > 300 && refused < 150, "{checked} calls, {refused} refused");
}

#[test]
fn extra_ten_thousand_calls_conform_to_the_schemas_of_their_tools() {
    let (checked, _) = check(400..14_000);
    assert!(checked > 10_000, "{checked} calls");
}
