//! Tests of reference checkpoints converted to GGUF as llama.cpp's converter does it: other names,
//! other orders of rows, stacked experts.

use std::collections::BTreeMap;

use super::conformance::references;
use super::tiny_gguf::Writer;
use super::*;
use engine_core::WeightType;
use engine_weights::gguf::Value as Setting;
use engine_weights::{Checkpoint, random_tensor};

/// Converter of a safetensors test checkpoint to GGUF.
struct Converter {
    config: Value,
    checkpoint: Checkpoint,
    architecture: &'static str,
    /// Prefix of the decoder's tensor names in the safetensors checkpoint.
    prefix: &'static str,
    file: Writer,
}

/// Bytes of a stored weight matrix, such as a bf16 matrix `[N, K]`, row after row.
type Bytes = Vec<u8>;

impl Converter {
    fn new(folder: &Path, architecture: &'static str) -> Self {
        let text = std::fs::read(folder.join("config.json")).unwrap();
        let source = ModelSource::find(folder.to_str().unwrap(), None).unwrap();
        let mut config: Value = serde_json::from_slice(&text).unwrap();
        let is_nested = config["text_config"].is_object();
        if is_nested {
            config = config["text_config"].take();
        }
        Self {
            config,
            prefix: if is_nested { "model.language_model." } else { "model." },
            checkpoint: Checkpoint::open(&source.files, None).unwrap(),
            architecture,
            file: Writer::default(),
        }
    }

    fn size(&self, key: &str) -> usize {
        self.config[key].as_u64().unwrap_or_else(|| panic!("{key}")) as usize
    }

    fn setting(&mut self, key: &str, value: Setting) {
        self.file.value(format!("{}.{key}", self.architecture), value);
    }

    fn settings(&mut self) {
        self.file.value("general.architecture", Setting::Text(self.architecture.to_owned()));
        let expert = match self.architecture {
            "gpt-oss" => "intermediate_size",
            _ => "moe_intermediate_size",
        };
        let sizes = [
            ("block_count", "num_hidden_layers"),
            ("context_length", "max_position_embeddings"),
            ("embedding_length", "hidden_size"),
            ("feed_forward_length", "intermediate_size"),
            ("attention.head_count", "num_attention_heads"),
            ("attention.head_count_kv", "num_key_value_heads"),
            ("attention.key_length", "head_dim"),
            ("vocab_size", "vocab_size"),
            ("expert_count", "num_local_experts"),
            ("expert_used_count", "num_experts_per_tok"),
            ("expert_feed_forward_length", expert),
            ("attention.sliding_window", "sliding_window"),
            ("ssm.conv_kernel", "linear_conv_kernel_dim"),
            ("ssm.state_size", "linear_key_head_dim"),
            ("ssm.group_count", "linear_num_key_heads"),
            ("ssm.time_step_rank", "linear_num_value_heads"),
        ];
        for (key, json_key) in sizes {
            if let Some(size) = self.config[json_key].as_u64() {
                self.setting(key, Setting::Unsigned(size));
            }
        }
        if self.architecture == "qwen35" {
            let heads = self.size("linear_num_value_heads");
            let inner = (heads * self.size("linear_value_head_dim")) as u64;
            self.setting("ssm.inner_size", Setting::Unsigned(inner));
            let share = self.config["rope_parameters"]["partial_rotary_factor"].as_f64().unwrap();
            let turned = (self.size("head_dim") as f64 * share) as u64;
            self.setting("rope.dimension_count", Setting::Unsigned(turned));
            self.setting("full_attention_interval", Setting::Unsigned(4));
        }
        let epsilon = self.config["rms_norm_eps"].as_f64().unwrap();
        self.setting("attention.layer_norm_rms_epsilon", Setting::Float(epsilon));
        let rope = self.config["rope_parameters"].clone();
        let theta = rope["rope_theta"].as_f64().or(self.config["rope_theta"].as_f64()).unwrap();
        self.setting("rope.freq_base", Setting::Float(theta));
        if rope["rope_type"] == "yarn" {
            let factor = rope["factor"].as_f64().unwrap();
            let original = rope["original_max_position_embeddings"].as_u64().unwrap();
            self.setting("rope.scaling.type", Setting::Text("yarn".to_owned()));
            self.setting("rope.scaling.factor", Setting::Float(factor));
            self.setting("rope.scaling.original_context_length", Setting::Unsigned(original));
        }
    }

    fn read(&self, name: &str, shape: &[usize]) -> Bytes {
        let tensor = self.checkpoint.tensor(name, shape).unwrap();
        assert_eq!(tensor.weight_type, WeightType::Bf16);
        tensor.bytes.into_owned()
    }

    /// Adds a vector to the GGUF file as f32, as llama.cpp stores vectors.
    fn vector(&mut self, from: &str, to: String, shape: &[usize]) {
        let values = self.values(from, shape);
        self.floats(to, shape, &values);
    }

    /// Adds the weights of a norm to the GGUF file. GGUF files store whole weights, whereas some
    /// checkpoints store the weights minus one.
    fn norm(&mut self, from: &str, to: String, len: usize) {
        let mut values = self.values(from, &[len]);
        if self.architecture == "qwen35" {
            values.iter_mut().for_each(|weight| *weight += 1.0);
        }
        self.floats(to, &[len], &values);
    }

    fn values(&self, from: &str, shape: &[usize]) -> Vec<f32> {
        let bytes = self.read(from, shape);
        let mut values = vec![0.0; shape.iter().product()];
        engine_weights::format::dequantize(WeightType::Bf16, &bytes, &mut values);
        values
    }

    fn floats(&mut self, to: String, shape: &[usize], values: &[f32]) {
        let bytes = values.iter().flat_map(|x| x.to_le_bytes()).collect();
        self.file.tensor(to, shape, WeightType::F32, bytes);
    }

    fn matrix(&mut self, from: &str, to: String, n: usize, k: usize) {
        let bytes = self.read(from, &[n, k]);
        self.file.tensor(to, &[n, k], WeightType::Bf16, bytes);
    }

    /// Adds a query or key projection of Llama to the GGUF file, which alternates the rows of the
    /// two halves of each head.
    fn paired(&mut self, from: &str, to: String, n: usize, k: usize) {
        let (bytes, head) = (self.read(from, &[n, k]), self.size("head_dim"));
        let row = |i: usize| &bytes[2 * i * k..2 * (i + 1) * k];
        let mut out = Vec::new();
        for first in (0..n).step_by(head) {
            for pair in 0..head / 2 {
                out.extend_from_slice(row(first + pair));
                out.extend_from_slice(row(first + head / 2 + pair));
            }
        }
        self.file.tensor(to, &[n, k], WeightType::Bf16, out);
    }

    fn convert(mut self) -> Vec<u8> {
        self.settings();
        let (hidden, vocab) = (self.size("hidden_size"), self.size("vocab_size"));
        let prefix = self.prefix;
        let embedding = format!("{prefix}embed_tokens.weight");
        self.matrix(&embedding, "token_embd.weight".to_owned(), vocab, hidden);
        self.norm(&format!("{prefix}norm.weight"), "output_norm.weight".to_owned(), hidden);
        if self.checkpoint.lists("lm_head.weight") {
            self.matrix("lm_head.weight", "output.weight".to_owned(), vocab, hidden);
        }
        for layer in 0..self.size("num_hidden_layers") {
            self.norms(layer);
            if self.checkpoint.lists(&format!("{prefix}layers.{layer}.linear_attn.A_log")) {
                self.delta_net(layer);
            } else {
                self.attention(layer);
            }
            match self.architecture {
                "gpt-oss" => self.gpt_oss(layer),
                "qwen3moe" => self.experts(layer),
                _ => self.dense(layer),
            }
        }
        self.file.bytes()
    }

    fn norms(&mut self, layer: usize) {
        let hidden = self.size("hidden_size");
        let (from, to) = (format!("{}layers.{layer}.", self.prefix), format!("blk.{layer}."));
        let first = format!("{from}input_layernorm.weight");
        self.norm(&first, format!("{to}attn_norm.weight"), hidden);
        let norm = match self.architecture {
            "gpt-oss" | "qwen35" => "post_attention_norm",
            _ => "ffn_norm",
        };
        let second = format!("{from}post_attention_layernorm.weight");
        self.norm(&second, format!("{to}{norm}.weight"), hidden);
    }

    fn attention(&mut self, layer: usize) {
        let hidden = self.size("hidden_size");
        let (heads, kv_heads) =
            (self.size("num_attention_heads"), self.size("num_key_value_heads"));
        let head = self.size("head_dim");
        let (from, to) = (format!("{}layers.{layer}.", self.prefix), format!("blk.{layer}."));
        let gates = if self.architecture == "qwen35" { 2 } else { 1 };
        let projections = [
            ("q_proj", "attn_q", gates * heads * head, hidden),
            ("k_proj", "attn_k", kv_heads * head, hidden),
            ("v_proj", "attn_v", kv_heads * head, hidden),
            ("o_proj", "attn_output", hidden, heads * head),
        ];
        for (name, gguf, n, k) in projections {
            let (from, to) = (format!("{from}self_attn.{name}"), format!("{to}{gguf}"));
            let is_paired = self.architecture == "llama" && ["attn_q", "attn_k"].contains(&gguf);
            let (weight, target) = (format!("{from}.weight"), format!("{to}.weight"));
            if is_paired {
                self.paired(&weight, target, n, k);
            } else {
                self.matrix(&weight, target, n, k);
            }
            if self.checkpoint.lists(&format!("{from}.bias")) {
                self.vector(&format!("{from}.bias"), format!("{to}.bias"), &[n]);
            }
        }
        for (name, gguf, len) in [
            ("q_norm.weight", "attn_q_norm.weight", head),
            ("k_norm.weight", "attn_k_norm.weight", head),
            ("sinks", "attn_sinks.weight", heads),
        ] {
            let from = format!("{from}self_attn.{name}");
            if self.checkpoint.lists(&from) {
                self.norm(&from, format!("{to}{gguf}"), len);
            }
        }
    }

    /// Adds a gated DeltaNet block to the GGUF file: value heads alternate over the key heads, and
    /// the decay is stored as a rate.
    fn delta_net(&mut self, layer: usize) {
        let (keys, heads) =
            (self.size("linear_num_key_heads"), self.size("linear_num_value_heads"));
        let (key_dim, dim) = (self.size("linear_key_head_dim"), self.size("linear_value_head_dim"));
        let (hidden, taps) = (self.size("hidden_size"), self.size("linear_conv_kernel_dim"));
        let from = format!("{}layers.{layer}.linear_attn.", self.prefix);
        let to = |name: &str| format!("blk.{layer}.{name}");
        let group = heads / keys;
        // Reorders value heads in units of `size` elements and leaves the first `before` elements
        // in place.
        let turns = |values: &[u8], before: usize, size: usize| -> Bytes {
            let (first, of_heads) = values.split_at(before);
            let heads = (0..heads).map(|place| place % keys * group + place / keys);
            let moved = heads.flat_map(|head| &of_heads[head * size..(head + 1) * size]);
            first.iter().chain(moved).copied().collect()
        };
        let (qk, values) = (2 * keys * key_dim, heads * dim);
        let row = 2 * hidden;
        for (name, gguf, n, before, unit) in [
            ("in_proj_qkv", "attn_qkv.weight", qk + values, qk * row, dim * row),
            ("in_proj_z", "attn_gate.weight", values, 0, dim * row),
            ("in_proj_b", "ssm_beta.weight", heads, 0, row),
            ("in_proj_a", "ssm_alpha.weight", heads, 0, row),
        ] {
            let bytes =
                turns(&self.read(&format!("{from}{name}.weight"), &[n, hidden]), before, unit);
            self.file.tensor(to(gguf), &[n, hidden], WeightType::Bf16, bytes);
        }
        let output = self.read(&format!("{from}out_proj.weight"), &[hidden, values]);
        let output =
            output.chunks_exact(2 * values).flat_map(|row| turns(row, 0, 2 * dim)).collect();
        self.file.tensor(to("ssm_out.weight"), &[hidden, values], WeightType::Bf16, output);
        let conv = self.values(&format!("{from}conv1d.weight"), &[qk + values, 1, taps]);
        let conv = turns(bytemuck::cast_slice(&conv), 4 * qk * taps, 4 * dim * taps);
        self.file.tensor(to("ssm_conv1d.weight"), &[qk + values, taps], WeightType::F32, conv);
        let rate = self.values(&format!("{from}A_log"), &[heads]);
        let rate: Vec<f32> = rate.iter().map(|log| -log.exp()).collect();
        let bias = self.values(&format!("{from}dt_bias"), &[heads]);
        for (name, values) in [("ssm_a", rate), ("ssm_dt.bias", bias)] {
            let bytes = turns(bytemuck::cast_slice(&values), 0, 4);
            self.file.tensor(to(name), &[heads], WeightType::F32, bytes);
        }
        self.vector(&format!("{from}norm.weight"), to("ssm_norm.weight"), &[dim]);
    }

    fn dense(&mut self, layer: usize) {
        let (hidden, wide) = (self.size("hidden_size"), self.size("intermediate_size"));
        for (name, n, k) in [("gate", wide, hidden), ("up", wide, hidden), ("down", hidden, wide)] {
            let from = format!("{}layers.{layer}.mlp.{name}_proj.weight", self.prefix);
            self.matrix(&from, format!("blk.{layer}.ffn_{name}.weight"), n, k);
        }
    }

    fn experts(&mut self, layer: usize) {
        let (hidden, wide) = (self.size("hidden_size"), self.size("moe_intermediate_size"));
        let experts = self.size("num_local_experts");
        let router = format!("model.layers.{layer}.mlp.gate.weight");
        self.matrix(&router, format!("blk.{layer}.ffn_gate_inp.weight"), experts, hidden);
        for (name, n, k) in [("gate", wide, hidden), ("up", wide, hidden), ("down", hidden, wide)] {
            let own =
                |expert| format!("model.layers.{layer}.mlp.experts.{expert}.{name}_proj.weight");
            let bytes = (0..experts).flat_map(|e| self.read(&own(e), &[n, k])).collect();
            let to = format!("blk.{layer}.ffn_{name}_exps.weight");
            self.file.tensor(to, &[experts, n, k], WeightType::Bf16, bytes);
        }
    }

    fn gpt_oss(&mut self, layer: usize) {
        let (hidden, wide) = (self.size("hidden_size"), self.size("intermediate_size"));
        let experts = self.size("num_local_experts");
        let (from, to) = (format!("model.layers.{layer}.mlp."), format!("blk.{layer}.ffn_"));
        self.matrix(
            &format!("{from}router.weight"),
            format!("{to}gate_inp.weight"),
            experts,
            hidden,
        );
        self.vector(&format!("{from}router.bias"), format!("{to}gate_inp.bias"), &[experts]);
        let down_bias = format!("{from}experts.down_proj_bias");
        self.vector(&down_bias, format!("{to}down_exps.bias"), &[experts, hidden]);
        let shape = [experts, hidden, wide];
        let (stored, down) = self.stack(&format!("{from}experts.down_proj"), shape);
        self.file.tensor(format!("{to}down_exps.weight"), &shape, stored, down);

        let gate_up = format!("{from}experts.gate_up_proj");
        let (stored, both) = self.stack(&gate_up, [experts, 2 * wide, hidden]);
        let bias = self.read(&format!("{from}experts.gate_up_proj_bias"), &[experts, 2 * wide]);
        for (name, first) in [("gate", 0), ("up", 1)] {
            let rows = |bytes: &[u8], row: usize| -> Bytes {
                bytes.chunks_exact(row).skip(first).step_by(2).flatten().copied().collect()
            };
            let shape = [experts, wide, hidden];
            let weights = rows(&both, stored.row_bytes(hidden));
            self.file.tensor(format!("{to}{name}_exps.weight"), &shape, stored, weights);
            let biases = rows(&bias, 2);
            let shape = [experts, wide];
            self.file.tensor(format!("{to}{name}_exps.bias"), &shape, WeightType::Bf16, biases);
        }
    }

    /// Returns the matrices of all E experts, `[E, N, K]`, of the safetensors checkpoint, in the
    /// type that the loader returns.
    fn stack(&self, name: &str, shape: [usize; 3]) -> (WeightType, Bytes) {
        let stack = self.checkpoint.mx_stack(name, shape).unwrap();
        let experts: Vec<_> = (0..shape[0]).map(|expert| stack.matrix(expert)).collect();
        (experts[0].0, experts.into_iter().flat_map(|(_, bytes)| bytes).collect())
    }
}

/// Checks that the checkpoint in `folder` and its GGUF form give the same logits.
fn check(folder: &Path, architecture: &'static str) {
    let files = tempfile::tempdir().unwrap();
    let path = files.path().join("model.gguf");
    std::fs::write(&path, Converter::new(folder, architecture).convert()).unwrap();
    let logits = |path: &Path| {
        let options = LoadOptions { kv: KvType::F32, ..LoadOptions::default() };
        let mut loaded = load_path(path, &options);
        loaded.model.allocate_kv(5, PAGE_TOKENS).unwrap();
        loaded.model.allocate_states(1).unwrap();
        let tokens: Vec<u32> = (0..70).map(|i| i * 17 % 100).collect();
        let sequences = vec![scheduled(tokens.len(), 0, (0..5).collect(), LogitRows::All)];
        let logits = loaded.model.step(&StepBatch::known(&tokens, sequences)).unwrap();
        (logits.to_vec(), loaded.info().parameters)
    };
    assert!(logits(&path) == logits(folder), "{architecture}");
}

#[test]
fn gguf_forms_of_the_checkpoints_have_the_same_logits() {
    let forms = [
        ("llama-tied", "llama"),
        ("qwen3-dense", "qwen3"),
        ("qwen3-moe", "qwen3moe"),
        ("gpt-oss-mxfp4", "gpt-oss"),
        ("qwen3_5-hybrid", "qwen35"),
    ];
    for reference in references() {
        if let Some((_, form)) = forms.iter().find(|(name, _)| *name == reference.name) {
            check(&reference.folder, form);
        }
    }
}

/// Qwen2 has no reference checkpoint, so the test converts one with random weights.
#[test]
fn the_gguf_form_of_qwen2_has_the_same_logits() {
    let config = serde_json::json!({
        "architectures": ["Qwen2ForCausalLM"], "hidden_size": 48, "num_hidden_layers": 2,
        "num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 16,
        "intermediate_size": 80, "vocab_size": 100, "max_position_embeddings": 128,
        "rms_norm_eps": 1e-6, "rope_theta": 1e6, "tie_word_embeddings": true,
    });
    let mut shapes = vec![("model.embed_tokens.weight".to_owned(), vec![100, 48])];
    shapes.push(("model.norm.weight".to_owned(), vec![48]));
    for layer in 0..2 {
        let mut add = |name: &str, shape: &[usize]| {
            shapes.push((format!("model.layers.{layer}.{name}"), shape.to_vec()));
        };
        add("input_layernorm.weight", &[48]);
        add("post_attention_layernorm.weight", &[48]);
        for (name, n) in [("q", 48), ("k", 16), ("v", 16)] {
            add(&format!("self_attn.{name}_proj.weight"), &[n, 48]);
            add(&format!("self_attn.{name}_proj.bias"), &[n]);
        }
        add("self_attn.o_proj.weight", &[48, 48]);
        add("mlp.gate_proj.weight", &[80, 48]);
        add("mlp.up_proj.weight", &[80, 48]);
        add("mlp.down_proj.weight", &[48, 80]);
    }
    let data: Vec<_> = shapes
        .iter()
        .map(|(name, shape)| (name, random_tensor(7, name, WeightType::Bf16, shape)))
        .collect();
    let views: BTreeMap<_, _> = data
        .iter()
        .map(|(name, tensor)| {
            let shape = tensor.shape.clone();
            let dtype = safetensors::Dtype::BF16;
            let view = safetensors::tensor::TensorView::new(dtype, shape, &tensor.bytes).unwrap();
            (name.as_str(), view)
        })
        .collect();
    let folder = tempfile::tempdir().unwrap();
    let weights = safetensors::serialize(&views, None).unwrap();
    std::fs::write(folder.path().join("model.safetensors"), weights).unwrap();
    std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    check(folder.path(), "qwen2");
}
