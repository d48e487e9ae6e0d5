//! Tool calls: how models (Qwen3 and Hermes, Llama 3, gpt-oss, Mistral, DeepSeek) write them, and how the text of an answer is read.
//!
//! A chat template shows the tools to the model, and the model calls one by writing marked JSON. The
//! marks differ from model to model (`FORMATS`). The grammar of a call (`guide/calls.rs`) begins at the
//! mark, so that a call that is completed has the name of a tool and arguments that conform to its
//! schema; `parser` separates the calls from the rest of the text. This module must not know requests.

mod instructions;
mod parser;

pub use instructions::{instructed, wants_instructions};
pub use parser::{CallParser, CallPart};

use serde_json::Value;

/// Format in which a model writes tool calls. A block of calls begins with one of the `triggers`:
///
/// ```text
/// trigger open  before_name NAME after_name ARGUMENTS after_arguments
///      between  before_name NAME after_name ARGUMENTS after_arguments  close
/// ```
#[derive(Debug, PartialEq, Eq)]
pub struct Format {
    /// Name for people, after the models that made the format known.
    pub name: &'static str,
    /// Texts with which a block begins; one or more.
    pub triggers: &'static [Trigger],
    /// Text between the trigger and the first call; spaces may stand before it.
    pub open: &'static str,
    /// Text before the name of a call's tool.
    pub before_name: &'static str,
    /// Text after the arguments of a call.
    pub after_arguments: &'static str,
    /// Text between two calls of a block; `None` if a block has one call.
    pub between: Option<&'static str>,
    /// Text after the last call of a block.
    pub close: &'static str,
    /// True if text and further blocks may follow a block.
    pub repeats: bool,
}

/// Text with which tool calls begin.
#[derive(Debug, PartialEq, Eq)]
pub struct Trigger {
    /// The text, which ends at the end of a token.
    pub text: &'static str,
    /// True if calls begin only where this is the first text of the answer.
    pub at_start: bool,
    /// Text between the name of a call's tool and its arguments.
    pub after_name: &'static str,
}

/// `<tool_call>` tags, as Qwen3 and Hermes write them. The server's own instructions
/// ([`instructed`]) ask for them as well.
pub static TAGS: Format = Format {
    name: "Qwen3",
    triggers: &[Trigger {
        text: "<tool_call>",
        at_start: false,
        after_name: "\", \"arguments\": ",
    }],
    open: "",
    before_name: "\n{\"name\": \"",
    after_arguments: "}\n</tool_call>",
    between: None,
    close: "",
    repeats: true,
};

/// An answer that is one JSON object, as Llama 3 writes it.
pub static LLAMA: Format = Format {
    name: "Llama 3",
    triggers: &[Trigger { text: "{\"name\":", at_start: true, after_name: "\", \"parameters\": " }],
    open: "",
    before_name: " \"",
    after_arguments: "}",
    between: None,
    close: "",
    repeats: false,
};

/// A list of JSON objects after `[TOOL_CALLS]`, as Mistral's models write it up to tokenizer v7.
pub static MISTRAL: Format = Format {
    name: "Mistral",
    triggers: &[Trigger {
        text: "[TOOL_CALLS]",
        at_start: false,
        after_name: "\", \"arguments\": ",
    }],
    open: "[",
    before_name: "{\"name\": \"",
    after_arguments: "}",
    between: Some(", "),
    close: "]",
    repeats: false,
};

/// `[TOOL_CALLS]`, name, `[ARGS]` and arguments, as Mistral's models write it from tokenizer v11 on.
pub static MISTRAL_ARGS: Format = Format {
    name: "Mistral v11",
    triggers: &[Trigger { text: "[TOOL_CALLS]", at_start: false, after_name: "[ARGS]" }],
    open: "",
    before_name: "",
    after_arguments: "",
    between: None,
    close: "",
    repeats: true,
};

/// Arguments in a code block, as DeepSeek-V3 and DeepSeek-R1 write them.
pub static DEEPSEEK: Format = Format {
    name: "DeepSeek",
    triggers: &[Trigger {
        text: "<｜tool▁calls▁begin｜>",
        at_start: false,
        after_name: "\n```json\n",
    }],
    open: "",
    before_name: "<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
    after_arguments: "\n```<｜tool▁call▁end｜>",
    between: Some("\n"),
    close: "<｜tool▁calls▁end｜>",
    repeats: false,
};

/// Name, mark and arguments, as DeepSeek-V3.1 writes them.
pub static DEEPSEEK_V3_1: Format = Format {
    name: "DeepSeek-V3.1",
    triggers: &[Trigger {
        text: "<｜tool▁calls▁begin｜>",
        at_start: false,
        after_name: "<｜tool▁sep｜>",
    }],
    open: "",
    before_name: "<｜tool▁call▁begin｜>",
    after_arguments: "<｜tool▁call▁end｜>",
    between: Some(""),
    close: "<｜tool▁calls▁end｜>",
    repeats: false,
};

const AFTER_RECIPIENT: &str = " <|constrain|>json<|message|>";
const AFTER_ROLE: &str = "<|channel|>commentary <|constrain|>json<|message|>";

/// Harmony's messages to `functions.NAME`, as gpt-oss writes them: the recipient stands in the
/// channel or in the role. The splitter of harmony's messages reads them.
pub static HARMONY: Format = Format {
    name: "gpt-oss",
    triggers: &[
        Trigger {
            text: "<|channel|>commentary to=functions.",
            at_start: false,
            after_name: AFTER_RECIPIENT,
        },
        Trigger {
            text: "<|channel|>analysis to=functions.",
            at_start: false,
            after_name: AFTER_RECIPIENT,
        },
        Trigger {
            text: "<|start|>assistant to=functions.",
            at_start: false,
            after_name: AFTER_ROLE,
        },
        // The prompt ends with `<|start|>assistant`.
        Trigger { text: " to=functions.", at_start: true, after_name: AFTER_ROLE },
    ],
    open: "",
    before_name: "",
    // `<|call|>` follows, with which the model ends its answer.
    after_arguments: "",
    between: None,
    close: "",
    repeats: false,
};

/// All formats.
pub static FORMATS: [&Format; 7] =
    [&TAGS, &LLAMA, &MISTRAL, &MISTRAL_ARGS, &DEEPSEEK, &DEEPSEEK_V3_1, &HARMONY];

impl Format {
    /// Returns the format in which a model with the chat template `source` writes calls. A template
    /// that names no tools leaves [`TAGS`], which the server then asks for. `None` if the template
    /// asks for a format that is not known.
    pub fn of(source: &str) -> Option<&'static Self> {
        let has = |text: &str| source.contains(text);
        if has("[TOOL_CALLS]") {
            Some(if has("[ARGS]") { &MISTRAL_ARGS } else { &MISTRAL })
        } else if has(DEEPSEEK.triggers[0].text) {
            Some(if has("```json") { &DEEPSEEK } else { &DEEPSEEK_V3_1 })
        } else if has("<tool_call>") {
            // Qwen3-Coder and Qwen3.5 write each argument as an element of XML.
            (!has("<function=")).then_some(&TAGS)
        } else if has("<|start_header_id|>") && has("\"parameters\"") {
            Some(&LLAMA)
        } else {
            wants_instructions(source).then_some(&TAGS)
        }
    }

    /// Returns true if `name` is a special token or a text that this format is made of.
    pub fn names(&self, name: &str) -> bool {
        let shared = [self.open, self.before_name, self.after_arguments, self.close];
        let between = self.between.unwrap_or_default();
        let triggers = self.triggers.iter().flat_map(|trigger| [trigger.text, trigger.after_name]);
        triggers.chain(shared).chain([between]).any(|text| text.contains(name))
    }
}

/// Tool that a model may call.
#[derive(Debug, Clone, PartialEq)]
pub struct Tool {
    /// Name of the function: 1 to 64 letters, digits, `_` and `-`.
    pub name: String,
    /// JSON schema of the arguments, which are an object.
    pub parameters: Value,
}

/// Longest name of a tool, as OpenAI has it.
pub const NAME_CHARS_MAX: usize = 64;

/// Returns true if `name` can be the name of a tool.
pub fn is_name(name: &str) -> bool {
    (1..=NAME_CHARS_MAX).contains(&name.len()) && name.bytes().all(is_of_name)
}

/// Returns true for the bytes of a tool's name.
fn is_of_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_are_told_by_their_templates() {
        for (source, name) in [
            ("{% if tools %}<tools>...<tool_call>", Some("Qwen3")),
            ("<tool_call>\n<function=example>", None),
            ("[AVAILABLE_TOOLS]...[TOOL_CALLS]", Some("Mistral")),
            ("[TOOL_CALLS]' + name + '[ARGS]", Some("Mistral v11")),
            ("<｜tool▁calls▁begin｜>...```json", Some("DeepSeek")),
            ("<｜tool▁calls▁begin｜>...<｜tool▁sep｜>", Some("DeepSeek-V3.1")),
            (r#"<|start_header_id|>...{"name": function name, "parameters": ..}"#, Some("Llama 3")),
            ("{% for message in messages %}", Some("Qwen3")),
            ("{% for tool in tools %}my own{% endfor %}", None),
        ] {
            assert_eq!(Format::of(source).map(|format| format.name), name, "{source}");
        }
    }
}
