//! A tiny random model in one GGUF file, for tests that need a server whose answers do not matter,
//! and the writer of GGUF files that makes it. Test programs include this file by its path.

use engine_core::WeightType;
use engine_weights::gguf::Value;
use engine_weights::random_tensor;

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
    tiny_llama(seed).bytes()
}

/// The same file before its end, so that a test may add to it.
pub fn tiny_llama(seed: u64) -> Writer {
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
    file
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

/// GGUF file under construction: metadata and tensors in the order of the calls.
#[derive(Debug, Default)]
pub struct Writer {
    values: Vec<(String, Value)>,
    tensors: Vec<Tensor>,
}

#[derive(Debug)]
struct Tensor {
    name: String,
    /// Shape of the tensor, slowest dimension first.
    shape: Vec<usize>,
    weight_type: WeightType,
    bytes: Vec<u8>,
}

const VERSION: u32 = 3;
const ALIGNMENT: usize = 32;

impl Writer {
    /// Adds a metadata value to the file.
    pub fn value(&mut self, key: impl Into<String>, value: Value) -> &mut Self {
        self.values.push((key.into(), value));
        self
    }

    /// Adds a tensor whose `bytes` are whole blocks of `weight_type`.
    pub fn tensor(
        &mut self,
        name: impl Into<String>,
        shape: &[usize],
        weight_type: WeightType,
        bytes: Vec<u8>,
    ) -> &mut Self {
        let (name, shape) = (name.into(), shape.to_vec());
        self.tensors.push(Tensor { name, shape, weight_type, bytes });
        self
    }

    /// Returns the bytes of the GGUF file.
    pub fn bytes(&self) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend(VERSION.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.values.len() as u64).to_le_bytes());
        for (key, value) in &self.values {
            text(&mut out, key);
            out.extend(kind(value).to_le_bytes());
            content(&mut out, value);
        }
        let mut offset = 0usize;
        for tensor in &self.tensors {
            text(&mut out, &tensor.name);
            out.extend((tensor.shape.len() as u32).to_le_bytes());
            for dimension in tensor.shape.iter().rev() {
                out.extend((*dimension as u64).to_le_bytes());
            }
            out.extend(type_id(tensor.weight_type).to_le_bytes());
            out.extend((offset as u64).to_le_bytes());
            offset += tensor.bytes.len().next_multiple_of(ALIGNMENT);
        }
        for tensor in &self.tensors {
            out.resize(out.len().next_multiple_of(ALIGNMENT), 0);
            out.extend(&tensor.bytes);
        }
        out.resize(out.len().next_multiple_of(ALIGNMENT), 0);
        out
    }
}

/// Returns the GGUF type id of `weight_type`.
fn type_id(weight_type: WeightType) -> u32 {
    match weight_type {
        WeightType::F32 => 0,
        WeightType::F16 => 1,
        WeightType::Q4_0 => 2,
        WeightType::Q4_1 => 3,
        WeightType::Q5_0 => 6,
        WeightType::Q5_1 => 7,
        WeightType::Q8_0 => 8,
        WeightType::Q4K => 12,
        WeightType::Q5K => 13,
        WeightType::Q6K => 14,
        WeightType::Bf16 => 30,
        WeightType::Mxfp4 => 39,
        WeightType::F8E4M3 => panic!("GGUF has no type {}", weight_type.name()),
    }
}

fn kind(value: &Value) -> u32 {
    match value {
        Value::Float(_) => 6,
        Value::Bool(_) => 7,
        Value::Text(_) => 8,
        Value::Texts(_) | Value::Integers(_) | Value::Array(_) => 9,
        Value::Unsigned(_) => 10,
        Value::Signed(_) => 11,
    }
}

fn text(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

fn content(out: &mut Vec<u8>, value: &Value) {
    match value {
        Value::Unsigned(n) => out.extend(n.to_le_bytes()),
        Value::Signed(n) => out.extend(n.to_le_bytes()),
        Value::Float(x) => out.extend((*x as f32).to_le_bytes()),
        Value::Bool(flag) => out.push(u8::from(*flag)),
        Value::Text(content) => text(out, content),
        Value::Texts(texts) => {
            out.extend(8u32.to_le_bytes());
            out.extend((texts.len() as u64).to_le_bytes());
            texts.iter().for_each(|content| text(out, content));
        }
        Value::Integers(numbers) => {
            out.extend(11u32.to_le_bytes());
            out.extend((numbers.len() as u64).to_le_bytes());
            numbers.iter().for_each(|n| out.extend(n.to_le_bytes()));
        }
        Value::Array(values) => {
            out.extend(values.first().map_or(10, kind).to_le_bytes());
            out.extend((values.len() as u64).to_le_bytes());
            values.iter().for_each(|value| content(out, value));
        }
    }
}
