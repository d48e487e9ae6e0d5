//! Tests of FP8 KV pages with the key and value scales of a checkpoint.

use std::collections::BTreeMap;

use safetensors::tensor::{Dtype, TensorView};

use super::ranks::{devices, shared};
use super::*;
use crate::LoadError;
use engine_core::WeightType;
use engine_weights::random_tensor;

const CONFIG: &str = r#"{"architectures": ["LlamaForCausalLM"], "model_type": "llama",
    "hidden_size": 128, "intermediate_size": 128, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 64, "num_hidden_layers": 2, "vocab_size": 256,
    "max_position_embeddings": 512, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
    "tie_word_embeddings": true, "hidden_act": "silu", "torch_dtype": "bfloat16"}"#;

/// Factor by which keys and values exceed the range of e4m3. Queries and the output projection are
/// smaller by the same factor, so the exact results do not change.
const GAIN: f32 = 4096.0;
/// Scale in the checkpoint that brings keys and values back into the range of e4m3.
const SCALE: f32 = 16.0;

/// Tensors of a test checkpoint by name, with type, shape and bytes.
type Tensors = BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>;

/// Returns the tensors of a model of two layers whose keys and values are too large for e4m3.
fn tensors() -> Tensors {
    let mut all = Tensors::new();
    let mut add = |name: String, shape: &[usize], gain: f32| {
        let bytes = random_tensor(5, &name, WeightType::Bf16, shape).bytes;
        let numbers = bytes.chunks_exact(2).map(|x| half::bf16::from_le_bytes([x[0], x[1]]));
        let bytes = numbers.flat_map(|x| half::bf16::from_f32(x.to_f32() * gain).to_le_bytes());
        all.insert(name, (Dtype::BF16, shape.to_vec(), bytes.collect()));
    };
    add("model.embed_tokens.weight".to_owned(), &[256, 128], 1.0);
    add("model.norm.weight".to_owned(), &[128], 1.0);
    for layer in 0..2 {
        let own = |name: &str| format!("model.layers.{layer}.{name}.weight");
        for norm in ["input_layernorm", "post_attention_layernorm"] {
            add(own(norm), &[128], 1.0);
        }
        add(own("self_attn.q_proj"), &[256, 128], 1.0 / GAIN);
        add(own("self_attn.k_proj"), &[128, 128], GAIN);
        add(own("self_attn.v_proj"), &[128, 128], GAIN);
        add(own("self_attn.o_proj"), &[128, 256], 1.0 / GAIN);
        for name in ["gate_proj", "up_proj", "down_proj"] {
            add(own(&format!("mlp.{name}")), &[128, 128], 1.0);
        }
    }
    all
}

/// Returns the tensors of the test model together with key and value scales: one for all heads or
/// one per head, under the names that files use.
fn with_scales(scale: f32) -> Tensors {
    let mut all = tensors();
    let mut add = |name: &str, shape: &[usize]| {
        let bytes = scale.to_le_bytes().repeat(shape.iter().product());
        all.insert(format!("model.layers.{name}"), (Dtype::F32, shape.to_vec(), bytes));
    };
    add("0.self_attn.k_proj.k_scale", &[]);
    add("0.self_attn.v_proj.v_scale", &[2]);
    add("1.self_attn.kv_scale", &[1]);
    all
}

fn write(tensors: &Tensors) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("config.json"), CONFIG).unwrap();
    let views = tensors.iter().map(|(name, (dtype, shape, bytes))| {
        (name, TensorView::new(*dtype, shape.clone(), bytes).unwrap())
    });
    let path = folder.path().join("model.safetensors");
    safetensors::serialize_to_file(views, None, &path).unwrap();
    folder
}

fn logits(model: &mut dyn Model) -> Vec<f32> {
    let tokens: Vec<u32> = (0..20).map(|i| (i * 29 + 5) % 256).collect();
    model.allocate_kv(2, PAGE_TOKENS).unwrap();
    let own = scheduled(tokens.len(), 0, vec![1, 0], LogitRows::All);
    model.step(&StepBatch::known(&tokens, vec![own])).unwrap().to_vec()
}

#[test]
fn scales_of_a_checkpoint_bring_keys_and_values_within_eight_bits() {
    let (plain, scaled) = (write(&tensors()), write(&with_scales(SCALE)));
    let want = logits(load_path(plain.path(), &exact()).model.as_mut());
    assert!(want == logits(load_path(scaled.path(), &exact()).model.as_mut()), "f32 needs none");
    let difference = |folder: &Path, ranks| {
        let (mut devices, _) = devices(ranks, true)?;
        let mut model: Box<dyn Model> = match ranks {
            1 => Box::new(on_device(devices.remove(0), folder, KvType::Fp8)),
            _ => Box::new(shared(folder, devices, KvType::Fp8)),
        };
        Some(relative(&logits(model.as_mut()), &want))
    };
    for ranks in [1, 2] {
        let Some(scaled) = difference(scaled.path(), ranks) else { return };
        assert!(scaled < 2.0 * BOUND, "{ranks} ranks: {scaled}");
    }
    let plain = difference(plain.path(), 1).unwrap();
    assert!(plain > 4.0 * BOUND, "without scales keys and values are cut off: {plain}");
}

#[test]
fn scales_that_make_no_sense_are_refused() {
    let error = |tensors: &Tensors| -> LoadError {
        let folder = write(tensors);
        let source = ModelSource::find(folder.path().to_str().unwrap(), None).unwrap();
        load(&source, &exact()).unwrap_err()
    };
    let zero = error(&with_scales(0.0)).to_string();
    assert!(zero.contains("`model.layers.0.self_attn.k_proj.k_scale`"), "{zero}");
    assert!(zero.contains("a scale is not above 0"), "{zero}");
    let mut many = tensors();
    let name = "model.layers.1.self_attn.v_proj.v_scale";
    many.insert(name.to_owned(), (Dtype::F32, vec![3], [1f32; 3].map(f32::to_le_bytes).concat()));
    let shape = error(&many).to_string();
    assert!(shape.contains(name) && shape.contains("has shape [3]"), "{shape}");
}
