//! A tiny random model in one GGUF file, for tests that need a server whose answers do not matter.

use crate::gguf::{Value, Writer};
use crate::random_tensor;
use engine_core::WeightType;

const LAYERS: usize = 2;
const HIDDEN: usize = 64;
const INTERMEDIATE: usize = 128;
const HEADS: usize = 4;
const KV_HEADS: usize = 2;
const HEAD_DIM: usize = 16;
const CONTEXT: u64 = 1024;

const SPECIAL: [&str; 3] = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"];
const MERGES: [&str; 8] = ["t h", "Ġ a", "th e", "Ġ the", "i n", "e r", "o n", "Ġ s"];
const TEMPLATE: &str = "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + \
                        message['content'] + '<|im_end|>' + '\n' }}{% endfor %}\
                        {% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

/// Builds the GGUF file of a Llama model with 2 layers and hidden size 64: random weights from
/// `seed`, a byte-level tokenizer and a chat template. Equal seeds give equal bytes, about 120 KB.
pub fn tiny_llama_gguf(seed: u64) -> Vec<u8> {
    let tokens = tokens();
    let vocab = tokens.len();
    let mut file = Writer::default();
    let size = |n: usize| Value::Unsigned(n as u64);
    let text = |text: &str| Value::Text(text.to_owned());
    file.value("general.architecture", text("llama"))
        .value("general.name", text("Tiny"))
        .value("llama.block_count", size(LAYERS))
        .value("llama.context_length", Value::Unsigned(CONTEXT))
        .value("llama.embedding_length", size(HIDDEN))
        .value("llama.feed_forward_length", size(INTERMEDIATE))
        .value("llama.attention.head_count", size(HEADS))
        .value("llama.attention.head_count_kv", size(KV_HEADS))
        .value("llama.attention.layer_norm_rms_epsilon", Value::Float(1e-5))
        .value("llama.rope.freq_base", Value::Float(10_000.0))
        .value("llama.rope.dimension_count", size(HEAD_DIM))
        .value("tokenizer.ggml.model", text("gpt2"))
        .value("tokenizer.ggml.pre", text("smollm"))
        .value("tokenizer.ggml.token_type", token_types(vocab))
        .value("tokenizer.ggml.tokens", Value::Texts(tokens))
        .value("tokenizer.ggml.merges", Value::Texts(MERGES.map(str::to_owned).to_vec()))
        .value("tokenizer.ggml.bos_token_id", size(1))
        .value("tokenizer.ggml.eos_token_id", size(2))
        .value("tokenizer.ggml.add_bos_token", Value::Bool(false))
        .value("tokenizer.chat_template", text(TEMPLATE));
    let mut tensor = |name: &str, weight_type: WeightType, shape: &[usize]| {
        let data = random_tensor(seed, name, weight_type, shape);
        file.tensor(name, shape, weight_type, data.bytes.into_owned());
    };
    tensor("token_embd.weight", WeightType::Q8_0, &[vocab, HIDDEN]);
    tensor("output.weight", WeightType::Q8_0, &[vocab, HIDDEN]);
    tensor("output_norm.weight", WeightType::F32, &[HIDDEN]);
    for layer in 0..LAYERS {
        let mut tensor = |name: &str, weight_type, shape: &[usize]| {
            tensor(&format!("blk.{layer}.{name}.weight"), weight_type, shape);
        };
        tensor("attn_norm", WeightType::F32, &[HIDDEN]);
        tensor("attn_q", WeightType::Q4_1, &[HEADS * HEAD_DIM, HIDDEN]);
        tensor("attn_k", WeightType::Q4_1, &[KV_HEADS * HEAD_DIM, HIDDEN]);
        tensor("attn_v", WeightType::F16, &[KV_HEADS * HEAD_DIM, HIDDEN]);
        tensor("attn_output", WeightType::Q4_1, &[HIDDEN, HEADS * HEAD_DIM]);
        tensor("ffn_norm", WeightType::F32, &[HIDDEN]);
        tensor("ffn_gate", WeightType::Q4_1, &[INTERMEDIATE, HIDDEN]);
        tensor("ffn_up", WeightType::Q4_1, &[INTERMEDIATE, HIDDEN]);
        tensor("ffn_down", WeightType::Q8_0, &[HIDDEN, INTERMEDIATE]);
    }
    file.bytes()
}

/// Vocabulary of the model: special tokens, one token for each byte, one token for each merge.
fn tokens() -> Vec<String> {
    let special = SPECIAL.iter().map(|token| (*token).to_owned());
    // GPT-2's spelling of the 256 bytes.
    let bytes = ('!'..='~').chain('¡'..='¬').chain('®'..='ÿ').chain('\u{100}'..='\u{143}');
    let bytes = bytes.map(String::from);
    let merged = MERGES.iter().map(|merge| merge.replace(' ', ""));
    special.chain(bytes).chain(merged).collect()
}

fn token_types(vocab: usize) -> Value {
    const NORMAL: i64 = 1;
    const CONTROL: i64 = 3;
    Value::Integers(
        (0..vocab).map(|id| if id < SPECIAL.len() { CONTROL } else { NORMAL }).collect(),
    )
}
