//! Model with the same short answer to everything, in a GGUF file. It calls a tool wherever its chat
//! template shows tools, so that the agents of clients run as they do with a trained model.
//!
//! The weights are a table: attention and feed-forward are zero, the embedding of a token is one-hot,
//! and the LM head has a large logit for the successor of each token. Smaller logits end strings,
//! lists and objects early where a grammar decides what may follow.

use std::io::Write as _;

use engine_core::WeightType;
use engine_weights::gguf::Value;
use tempfile::NamedTempFile;

use crate::tiny_gguf::Writer;

/// Text that the model writes; no character in it comes twice, since the last one decides the next.
pub const ANSWER: &str = "Yes, ok!";

/// Limit on the tokens of a sequence. A token is a byte, and the prompts of agents are long.
const CONTEXT: u64 = 65_536;

/// Size of a hidden state; at least the number of tokens.
const HIDDEN: usize = 320;
const INTERMEDIATE: usize = 32;
const HEADS: usize = 5;
const HEAD_DIM: usize = 64;

const SPECIAL: [&str; 6] =
    ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|call|>", "<tool_call>", "</tool_call>"];
const END: usize = 2;
const WANTS_CALL: usize = 3;
const CALL: usize = 4;

/// Ends the prompt with `<|call|>`, to which the model answers with a call, if there are tools and the
/// last message is no result of one.
const TEMPLATE: &str = r#"{%- if tools %}<|im_start|>system
<tools>
{%- for tool in tools %}
{{ tool | tojson }}
{%- endfor %}
</tools>
Call tools within <tool_call> and </tool_call>.<|im_end|>
{% endif %}
{%- for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}
{%- for call in message.tool_calls or [] %}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>
{%- endfor %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% if tools and messages[-1].role != "tool" %}<|call|>{% endif %}
{%- endif %}"#;

/// Writes the model to a temporary file, which is deleted with the returned handle.
pub fn one_answer_model() -> NamedTempFile {
    written(false)
}

/// Writes the model as one that embeds: the embedding of a text is 1 at its last token's place.
pub fn embedding_model() -> NamedTempFile {
    written(true)
}

fn written(embeds: bool) -> NamedTempFile {
    let mut file = tempfile::Builder::new().suffix(".gguf").tempfile().unwrap();
    file.write_all(&gguf(embeds)).unwrap();
    file
}

fn gguf(embeds: bool) -> Vec<u8> {
    let tokens = tokens();
    let vocab = tokens.len();
    let mut file = Writer::default();
    let size = |n: usize| Value::Unsigned(n as u64);
    let text = |text: &str| Value::Text(text.to_owned());
    file.value("general.architecture", text("llama"))
        .value("general.name", text("One answer"))
        .value("llama.block_count", size(1))
        .value("llama.context_length", Value::Unsigned(CONTEXT))
        .value("llama.embedding_length", size(HIDDEN))
        .value("llama.feed_forward_length", size(INTERMEDIATE))
        .value("llama.attention.head_count", size(HEADS))
        .value("llama.attention.head_count_kv", size(1))
        .value("llama.attention.layer_norm_rms_epsilon", Value::Float(1e-5))
        .value("llama.rope.freq_base", Value::Float(10_000.0))
        .value("llama.rope.dimension_count", size(HEAD_DIM))
        .value("tokenizer.ggml.model", text("gpt2"))
        .value("tokenizer.ggml.pre", text("smollm"))
        .value("tokenizer.ggml.token_type", token_types(vocab))
        .value("tokenizer.ggml.merges", Value::Texts(Vec::new()))
        .value("tokenizer.ggml.bos_token_id", size(1))
        .value("tokenizer.ggml.eos_token_id", size(END))
        .value("tokenizer.ggml.add_bos_token", Value::Bool(false))
        .value("tokenizer.chat_template", text(TEMPLATE));
    if embeds {
        // llama.cpp's number for pooling by the last token.
        file.value("llama.pooling_type", size(3));
    }
    let mut tensor = |name: &str, shape: &[usize], values: &[f32]| {
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        file.tensor(name, shape, WeightType::F32, bytes);
    };
    let mut embeddings = vec![0.0; vocab * HIDDEN];
    for token in 0..vocab {
        embeddings[token * HIDDEN + token] = 1.0;
    }
    tensor("token_embd.weight", &[vocab, HIDDEN], &embeddings);
    tensor("output.weight", &[vocab, HIDDEN], &lm_head(&tokens));
    for norm in ["output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"] {
        tensor(&format!("{norm}.weight"), &[HIDDEN], &[1.0; HIDDEN]);
    }
    for (name, rows, columns) in [
        ("attn_q", HEADS * HEAD_DIM, HIDDEN),
        ("attn_k", HEAD_DIM, HIDDEN),
        ("attn_v", HEAD_DIM, HIDDEN),
        ("attn_output", HIDDEN, HEADS * HEAD_DIM),
        ("ffn_gate", INTERMEDIATE, HIDDEN),
        ("ffn_up", INTERMEDIATE, HIDDEN),
        ("ffn_down", HIDDEN, INTERMEDIATE),
    ] {
        let zeros = vec![0.0; rows * columns];
        tensor(&format!("blk.0.{name}.weight"), &[rows, columns], &zeros);
    }
    file.value("tokenizer.ggml.tokens", Value::Texts(tokens));
    file.bytes()
}

/// Weights of the LM head, of shape `[tokens, HIDDEN]`. After normalization a hidden state is the
/// square root of [`HIDDEN`] in one place, so that a weight of 1 is a logit of about 18.
fn lm_head(tokens: &[String]) -> Vec<f32> {
    let id = |c: char| {
        let spelled = if c == ' ' { 'Ġ' } else { c };
        tokens.iter().position(|token| token.chars().eq([spelled])).unwrap()
    };
    let first = id(ANSWER.chars().next().unwrap());
    let mut successor = vec![first; tokens.len()];
    for (before, after) in ANSWER.chars().zip(ANSWER.chars().skip(1)) {
        successor[id(before)] = id(after);
    }
    // The answer ends after its last character, a call after `</tool_call>`, and JSON after `}`.
    for last in ['!', '>', '}'] {
        successor[id(last)] = END;
    }
    successor[CALL + 1] = END;
    successor[WANTS_CALL] = CALL;
    let mut weights = vec![0.0; tokens.len() * HIDDEN];
    for (token, successor) in successor.into_iter().enumerate() {
        // Where the grammar forbids the successor.
        for (c, weight) in [('"', 0.8), ('}', 0.6), (']', 0.6), (',', 0.4), ('{', 0.2)] {
            weights[id(c) * HIDDEN + token] = weight;
        }
        weights[successor * HIDDEN + token] = 1.7;
    }
    weights
}

/// Vocabulary of the model: special tokens, and one token for each byte, in GPT-2's spelling.
fn tokens() -> Vec<String> {
    let bytes = ('!'..='~').chain('¡'..='¬').chain('®'..='ÿ').chain('\u{100}'..='\u{143}');
    SPECIAL.iter().map(|token| (*token).to_owned()).chain(bytes.map(String::from)).collect()
}

/// Types of the tokens: the first special ones are control tokens, and the marks of calls are text.
fn token_types(vocab: usize) -> Value {
    const NORMAL: i64 = 1;
    const CONTROL: i64 = 3;
    const USER_DEFINED: i64 = 4;
    let kind = |id| match id {
        0..CALL => CONTROL,
        id if id < SPECIAL.len() => USER_DEFINED,
        _ => NORMAL,
    };
    Value::Integers((0..vocab).map(kind).collect())
}
