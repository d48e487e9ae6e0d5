//! Tests of malformed checkpoint files, model lookup and random weights.

use std::fs;
use std::path::PathBuf;

use half::bf16;
use proptest::prelude::*;
use tempfile::TempDir;

use super::gguf::Value;
use super::*;
use tiny_gguf::{Writer, tiny_llama_gguf};

#[path = "../tests/tiny_gguf/mod.rs"]
mod tiny_gguf;

/// Returns the message of an error followed by those of all its causes, joined by colons.
fn chain(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(source) => format!("{error}: {}", chain(source)),
        None => error.to_string(),
    }
}

fn open(path: &Path) -> Result<Checkpoint, CheckpointError> {
    ModelSource::find(path.to_str().unwrap(), None)
        .and_then(|source| Checkpoint::open(&source.files, None))
}

/// Returns the writer of a small valid GGUF file with two metadata values and two tensors.
fn small() -> Writer {
    let mut file = Writer::default();
    file.value("general.architecture", Value::Text("llama".to_owned()))
        .value("numbers", Value::Integers(vec![1, 2, 3]))
        .tensor("a", &[2, 3], WeightType::F32, vec![1; 24])
        .tensor("b", &[32], WeightType::Q8_0, vec![2; 34]);
    file
}

/// Replaces the only occurrence of `from` in `bytes` by `to`, which may have another length.
fn replaced(bytes: &[u8], from: &[u8], to: &[u8]) -> Vec<u8> {
    let found: Vec<usize> =
        (0..=bytes.len() - from.len()).filter(|at| bytes[*at..].starts_with(from)).collect();
    let [at] = found[..] else { panic!("{from:?} occurs {} times", found.len()) };
    [&bytes[..at], to, &bytes[at + from.len()..]].concat()
}

/// Returns the bytes of a GGUF tensor-table entry with this tensor name, dimensions, type and
/// offset.
fn entry(name: &str, dimensions: &[u64], type_id: u32, offset: u64) -> Vec<u8> {
    let mut out = (name.len() as u64).to_le_bytes().to_vec();
    out.extend(name.as_bytes());
    out.extend((dimensions.len() as u32).to_le_bytes());
    dimensions.iter().for_each(|n| out.extend(n.to_le_bytes()));
    out.extend(type_id.to_le_bytes());
    out.extend(offset.to_le_bytes());
    out
}

#[test]
fn a_sound_gguf_gives_its_tensors() {
    let header = gguf::parse(Path::new("x"), &small().bytes()).unwrap();
    assert_eq!(header.metadata.integers("numbers").unwrap(), [1, 2, 3]);
    let shapes: Vec<_> =
        header.tensors.iter().map(|(name, t)| (name.as_str(), &*t.shape)).collect();
    assert_eq!(shapes, [("a", &[2, 3][..]), ("b", &[32][..])]);
}

#[test]
fn damaged_gguf_files_say_what_is_wrong() {
    let sound = small().bytes();
    let a = entry("a", &[3, 2], 0, 0);
    let change_a = |entry: Vec<u8>| replaced(&sound, &a, &entry);
    let with = |key: &str, value: Value| {
        let mut file = small();
        file.value(key, value);
        file.bytes()
    };
    let at = |offset: usize, bytes: &[u8]| {
        let mut out = sound.clone();
        out[offset..offset + bytes.len()].copy_from_slice(bytes);
        out
    };
    let mut nested = Value::Integers(vec![1]);
    for _ in 0..9 {
        nested = Value::Array(vec![nested]);
    }
    // The array occurs twice: only both together exceed the limit.
    let many = Value::Array(vec![Value::Array(vec![Value::Bool(true); (1 << 23) + 1]); 2]);
    let huge = u64::MAX.to_le_bytes();
    let cases: Vec<(Vec<u8>, &str)> = vec![
        (b"GGUX".to_vec(), "it does not begin with `GGUF`"),
        (b"GG".to_vec(), "it ends within the magic number: 4 bytes are needed"),
        (at(4, &[1, 0, 0, 0]), "GGUF version 1 is not 2 or 3"),
        (at(4, &[0, 0, 0, 3]), "it is big endian"),
        (at(8, &huge), "it claims 18446744073709551615 tensors"),
        (at(16, &huge), "it claims 18446744073709551615 metadata entries"),
        (at(24, &huge), "bytes of a metadata key"),
        (replaced(&sound, b"llama", b"\xff\xfe\xff\xfe\xff"), "is not UTF-8"),
        (replaced(&sound, b"numbers\x09", b"numbers\x63"), "`numbers` has unknown type 99"),
        (replaced(&sound, b"numbers\x09\0\0\0\x0b", b"numbers\x09\0\0\0\x63"), "element type 99"),
        (with("numbers", Value::Bool(true)), "metadata key `numbers` occurs twice"),
        (with("deep", nested), "nested too deeply"),
        (with("many", many), "more than 16777216 elements up to the array `many`"),
        (with("general.alignment", Value::Unsigned(3)), "3 is not a power of two"),
        (with("general.alignment", Value::Unsigned(64)), "offset 32, not a multiple of 64"),
        (change_a(entry("b", &[3, 2], 0, 0)), "tensor `b` occurs twice"),
        (change_a(entry("a", &[3, 2], 0, 32)), "tensors `a` and `b` overlap"),
        (change_a(entry("a", &[3, 2], 0, 33)), "offset 33, not a multiple of 32"),
        (change_a(entry("a", &[3, 2], 0, 1 << 62)), "tensor `a` ends at byte 4611"),
        (change_a(entry("a", &[3, 2], 0, u64::MAX - 31)), "2^64 or more"),
        (change_a(entry("a", &[u64::MAX, u64::MAX], 0, 0)), "2^64 or more"),
        (change_a(entry("a", &[1 << 40, 2], 0, 0)), "tensor `a` ends at byte"),
        (change_a(entry("a", &[3, 2], 3, 0)), "rows of 3 elements, Q4_1 needs a multiple of 32"),
        (change_a(entry("a", &[3, 2], 77, 0)), "tensor `a` has unknown type 77"),
        (change_a(entry("a", &[1; 5], 0, 0)), "tensor `a` has 5 dimensions"),
    ];
    for (bytes, want) in cases {
        let path = Path::new("some/model.gguf");
        let message = chain(&gguf::parse(path, &bytes).expect_err(want));
        assert!(message.contains(want), "{message} should say: {want}");
        assert!(message.contains("some/model.gguf"), "{message} should name the file");
    }
}

#[test]
fn every_truncation_of_a_gguf_is_an_error() {
    let sound = small().bytes();
    // The file ends with padding after the last tensor; losing it does no harm.
    for len in 0..sound.len() - 30 {
        assert!(gguf::parse(Path::new("x"), &sound[..len]).is_err(), "{len} bytes");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_bytes_make_the_parser_panic(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
    ) {
        let mut bytes = small().bytes();
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if let Ok(header) = gguf::parse(Path::new("x"), &bytes) {
            for tensor in header.tensors.values() {
                prop_assert!(tensor.range.end <= bytes.len());
            }
        }
    }

    #[test]
    fn no_safetensors_header_makes_the_parser_panic(header in "\\PC{0,80}", len in 0u64..200) {
        let folder = tempfile::tempdir().unwrap();
        let mut bytes = len.to_le_bytes().to_vec();
        bytes.extend(header.as_bytes());
        let path = folder.path().join("m.safetensors");
        fs::write(&path, bytes).unwrap();
        let map = Map::open(&path).unwrap();
        let mut tensors = BTreeMap::new();
        if safetensors::parse(&path, &map, 0, &mut tensors).is_ok() {
            prop_assert!(tensors.values().all(|tensor| tensor.range.end <= map.len()));
        }
    }
}

/// Returns how many KiB of the memory-mapped file `path` are resident in this process.
#[cfg(target_os = "linux")]
fn resident_kib(path: &Path) -> u64 {
    let maps = fs::read_to_string("/proc/self/smaps").unwrap();
    let own = maps.lines().skip_while(|line| !line.ends_with(path.to_str().unwrap()));
    let line = own.skip(1).find(|line| line.starts_with("Rss:")).expect("the file is mapped");
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
#[cfg(target_os = "linux")]
fn what_was_read_of_a_file_is_given_back_and_can_be_read_again() {
    const BYTES: usize = 1 << 20;
    let content: Vec<u8> = (0..BYTES).map(|at| (at / 4096) as u8).collect();
    let folder = folder(&[("weights", &content)]);
    let path = folder.path().join("weights");
    let map = Map::open(&path).unwrap();
    assert!(map[..] == content[..]);
    assert_eq!(resident_kib(&path), BYTES as u64 / 1024);
    map.release();
    assert_eq!(resident_kib(&path), 0);
    assert!(map[..] == content[..]);
}

/// File of a checkpoint under test: name and content.
type File<'a> = (&'a str, &'a [u8]);

/// Creates a temporary folder with the given files.
fn folder(files: &[File]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, content) in files {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
    folder
}

/// Tensor of a safetensors file under test: name, type, shape and bytes.
type Tensor<'a> = (&'a str, &'a str, Vec<usize>, Vec<u8>);

fn safetensors_of(tensors: &[Tensor]) -> Vec<u8> {
    let (mut header, mut data) = (serde_json::Map::new(), Vec::<u8>::new());
    for (name, dtype, shape, bytes) in tensors {
        let start = data.len();
        data.extend(bytes);
        let entry = serde_json::json!({
            "dtype": dtype, "shape": shape, "data_offsets": [start, data.len()],
        });
        header.insert((*name).to_owned(), entry);
    }
    let header = serde_json::Value::Object(header).to_string();
    let mut out = (header.len() as u64).to_le_bytes().to_vec();
    out.extend(header.as_bytes());
    out.extend(data);
    out
}

/// Returns the bytes of a safetensors file of f32 zeros; each tensor is given by its name and its
/// number of elements.
fn safetensors_file(tensors: &[(&str, usize)]) -> Vec<u8> {
    let tensors: Vec<Tensor> =
        tensors.iter().map(|(name, n)| (*name, "F32", vec![*n], vec![0; 4 * n])).collect();
    safetensors_of(&tensors)
}

#[test]
fn fp8_matrices_are_multiplied_by_the_scales_of_their_blocks() {
    // Bytes 0x38 are 1, and the grid is 2 x 3 of 2 x 32 blocks, the last ones cut short.
    let scales = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0f32].map(bf16::from_f32);
    let scales: Vec<u8> = scales.iter().flat_map(|x| x.to_le_bytes()).collect();
    for (cols, weight_type) in [(96, WeightType::F8E4M3), (70, WeightType::F32)] {
        let file = safetensors_of(&[
            ("w", "F8_E4M3", vec![3, cols], vec![0x38; 3 * cols]),
            ("w_scale_inv", "BF16", vec![2, 3], scales.clone()),
            ("plain", "F8_E4M3", vec![2], vec![0x38, 0xb8]),
        ]);
        let config = br#"{"quantization_config":
            {"quant_method": "fp8", "weight_block_size": [2, 32], "activation_scheme": "dynamic"}}"#;
        let folder = folder(&[("config.json", config), ("model.safetensors", &file)]);
        let checkpoint = open(folder.path()).unwrap();
        let tensor = checkpoint.tensor("w", &[3, cols]).unwrap();
        assert_eq!(tensor.weight_type, weight_type);
        let mut values = vec![0.0; 3 * cols];
        format::dequantize(tensor.weight_type, &tensor.bytes, &mut values);
        for (n, row) in values.chunks_exact(cols).enumerate() {
            for (k, x) in row.iter().enumerate() {
                assert_eq!(*x, (n / 2 * 3 + k / 32 + 1) as f32, "row {n}, column {k} of {cols}");
            }
        }
        assert_eq!(checkpoint.values("plain", &[2]).unwrap(), [1.0, -1.0]);
    }
}

#[test]
fn quantizations_that_cannot_be_read_say_why() {
    let codes: Tensor = ("w", "F8_E4M3", vec![4, 32], vec![0x38; 128]);
    let scales = |dtype: &'static str, shape: [usize; 2], bytes: usize| -> Tensor {
        ("w_scale_inv", dtype, shape.to_vec(), vec![0; bytes])
    };
    let fp8 = r#"{"quant_method": "fp8", "weight_block_size": [2, 32]}"#;
    let cases: Vec<(&str, Vec<Tensor>, &str)> = vec![
        (r#"{"quant_method": "gptq", "bits": 4}"#, vec![], "quantization `gptq` is not supported"),
        (r#"{"bits": 4}"#, vec![], "`quantization_config.quant_method`: it names none"),
        (
            r#"{"quant_method": "fp8"}"#,
            vec![],
            "`quantization_config.weight_block_size`: it is not",
        ),
        (
            r#"{"quant_method": "fp8", "weight_block_size": [128, 0]}"#,
            vec![],
            "it is not two sizes",
        ),
        (fp8, vec![codes.clone()], "has no tensor `w_scale_inv`"),
        (fp8, vec![codes.clone(), scales("F32", [1, 1], 4)], "asks for [2, 1]"),
        (fp8, vec![codes.clone(), scales("F8_E4M3", [2, 1], 2)], "is stored as f8_e4m3; supported"),
        (fp8, vec![codes, scales("U8", [2, 1], 2)], "`w_scale_inv` of"),
        (fp8, vec![("w", "I8", vec![4, 32], vec![0; 128])], "`w` of"),
    ];
    for (quantization, tensors, want) in cases {
        let config = format!(r#"{{"quantization_config": {quantization}}}"#);
        let file = safetensors_of(&tensors);
        let folder = folder(&[("config.json", config.as_bytes()), ("model.safetensors", &file)]);
        let opened = open(folder.path());
        let failed = opened.and_then(|checkpoint| checkpoint.tensor("w", &[4, 32]).map(|_| ()));
        let message = chain(&failed.expect_err(want));
        assert!(message.contains(want), "{message} should say: {want}");
    }
}

#[test]
fn damaged_safetensors_folders_say_what_is_wrong() {
    let one = safetensors_file(&[("a", 4)]);
    let config: (&str, &[u8]) = ("config.json", b"{}");
    let index = |target: &str| format!(r#"{{"weight_map": {{"a": "{target}"}}}}"#);
    let (outside, absolute) = (index("../secret"), index("/etc/passwd"));
    let (missing, listed) = (index("gone.safetensors"), r#"{"weight_map": {"a": "x", "b": "y"}}"#);
    let name = "model.safetensors.index.json";
    let cases: Vec<(Vec<File>, &str)> = vec![
        (vec![config], "it has neither model.safetensors nor"),
        (vec![("config.json", b"{")], "it is not JSON"),
        (vec![config, ("model.safetensors", b"")], "the file is empty"),
        (vec![config, ("model.safetensors", b"abc")], "its safetensors header is wrong"),
        (vec![config, ("model.safetensors", &[255; 64])], "its safetensors header is wrong"),
        (vec![config, ("model.safetensors", &one[..one.len() - 1])], "header is wrong"),
        (vec![config, (name, b"[]")], "it has no object `weight_map`"),
        (vec![config, (name, br#"{"weight_map": {}}"#)], "`weight_map` is empty"),
        (vec![config, (name, outside.as_bytes())], "to `../secret`, not a file name"),
        (vec![config, (name, absolute.as_bytes())], "to `/etc/passwd`, not a file name"),
        (vec![config, (name, missing.as_bytes())], "failed to read"),
        (
            vec![config, (name, listed.as_bytes()), ("x", &one), ("y", &one)],
            "tensor `a` occurs in two files",
        ),
    ];
    for (files, want) in cases {
        let folder = folder(&files);
        let message = chain(&open(folder.path()).expect_err(want));
        assert!(message.contains(want), "{message} should say: {want}");
        assert!(
            message.contains(folder.path().to_str().unwrap()),
            "{message} should name the file"
        );
    }
}

#[test]
fn shards_are_read_as_one_checkpoint_with_a_digest_over_both() {
    let (x, y) = (safetensors_file(&[("a", 4)]), safetensors_file(&[("b", 2)]));
    let index = br#"{"weight_map": {"a": "x.safetensors", "b": "y.safetensors"}}"#;
    let folder = folder(&[
        ("config.json", b"{}"),
        ("model.safetensors.index.json", index),
        ("x.safetensors", &x),
        ("y.safetensors", &y),
    ]);
    let checkpoint = open(folder.path()).unwrap();
    assert_eq!(checkpoint.values("a", &[4]).unwrap(), [0.0; 4]);
    assert_eq!(checkpoint.values("b", &[2]).unwrap(), [0.0; 2]);
    let wrong_shape = chain(&checkpoint.values("b", &[3]).unwrap_err());
    assert!(wrong_shape.contains("tensor `b`") && wrong_shape.contains("[2]"), "{wrong_shape}");
    let missing = chain(&checkpoint.values("c", &[3]).unwrap_err());
    assert!(missing.ends_with("has no tensor `c`"), "{missing}");
    let sha256 = |bytes: &[u8]| hex(<sha2::Sha256 as sha2::Digest>::digest(bytes).as_ref());
    let list = format!("{}  x.safetensors\n{}  y.safetensors\n", sha256(&x), sha256(&y));
    assert_eq!(checkpoint.digest.wait().unwrap(), sha256(list.as_bytes()));
}

#[test]
fn models_are_found_by_path_and_by_hub_id() {
    let cache = folder(&[
        ("models--org--name/refs/main", b"abc123\n"),
        ("models--org--name/snapshots/abc123/config.json", b"{}"),
        ("models--org--name/snapshots/older/model.gguf", b"GGUF"),
        ("models--org--two/refs/main", b"r"),
        ("models--org--two/snapshots/r/a.gguf", b"GGUF"),
        ("models--org--two/snapshots/r/b.gguf", b"GGUF"),
        ("plain/config.json", b"{}"),
        ("models--org--evil/refs/main", b"../../../plain"),
    ]);
    let root = cache.path();
    let find = |name: &str| ModelSource::find(name, Some(root));
    let snapshots = root.join("models--org--name/snapshots");
    let found = find("org/name").unwrap();
    assert_eq!(found.revision.as_deref(), Some("abc123"));
    assert_eq!(found.files, ModelFiles::Folder(snapshots.join("abc123")));
    let older = find("org/name@older").unwrap();
    assert_eq!((older.id.as_str(), older.revision.as_deref()), ("org/name", Some("older")));
    assert_eq!(older.files, ModelFiles::Gguf(snapshots.join("older/model.gguf")));
    let plain = find(root.join("plain").to_str().unwrap()).unwrap();
    assert_eq!((plain.id.as_str(), plain.revision), ("plain", None));
    assert!(find("org/two").unwrap_err().to_string().contains("it holds 2 .gguf files"));
    for name in ["org/absent", "absent", "org/evil", "org/name@../older", "../name", "a/b/c", ""] {
        assert!(matches!(find(name), Err(CheckpointError::NotFound { .. })), "{name}");
    }
}

#[test]
fn the_hub_cache_is_where_the_environment_says() {
    type Variables<'a> = &'a [(&'a str, &'a str)];
    let cases: [(Variables, Option<&str>); 5] = [
        (&[("HF_HUB_CACHE", "/a"), ("HF_HOME", "/b")], Some("/a")),
        (&[("HF_HUB_CACHE", ""), ("HF_HOME", "/b"), ("HOME", "/c")], Some("/b/hub")),
        (&[("XDG_CACHE_HOME", "/x"), ("HOME", "/c")], Some("/x/huggingface/hub")),
        (&[("HOME", "/c")], Some("/c/.cache/huggingface/hub")),
        (&[], None),
    ];
    for (variables, want) in cases {
        let lookup = |name: &str| {
            variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
        };
        assert_eq!(hub_cache(lookup), want.map(PathBuf::from), "{variables:?}");
    }
}

#[test]
fn random_weights_depend_on_seed_and_name_alone() {
    let folder = folder(&[("m.gguf", &tiny_llama_gguf(1)), ("c/config.json", b"{}")]);
    for files in [
        ModelFiles::Gguf(folder.path().join("m.gguf")),
        ModelFiles::Folder(folder.path().join("c")),
    ] {
        let bytes = |seed: u64, name: &str| {
            let checkpoint = Checkpoint::open(&files, Some(seed)).unwrap();
            assert!(checkpoint.is_random());
            checkpoint.tensor(name, &[64, 64]).unwrap().bytes.into_owned()
        };
        let (query, output) = ("blk.0.attn_q.weight", "blk.0.attn_output.weight");
        assert_eq!(bytes(7, query), bytes(7, query));
        assert_ne!(bytes(7, query), bytes(8, query));
        assert_ne!(bytes(7, query), bytes(7, output));
    }
}

#[test]
fn random_weights_have_the_types_of_checkpoints_with_their_configuration() {
    let fp8 =
        br#"{"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}"#;
    let folder = folder(&[("fp8/config.json", fp8), ("plain/config.json", b"{}")]);
    let weight_type = |config: &str, name: &str, shape: &[usize]| {
        let files = ModelFiles::Folder(folder.path().join(config));
        let checkpoint = Checkpoint::open(&files, Some(1)).unwrap();
        let tensor = checkpoint.tensor(name, shape).unwrap();
        assert_eq!(checkpoint.cut_unit(name, shape), tensor.weight_type.block());
        tensor.weight_type
    };
    let projection = "model.layers.0.mlp.gate_proj.weight";
    assert_eq!(weight_type("plain", projection, &[8, 64]), WeightType::Bf16);
    assert_eq!(weight_type("fp8", projection, &[8, 64]), WeightType::F8E4M3);
    for (name, shape) in [
        (projection, &[8, 40][..]),
        ("model.layers.0.input_layernorm.weight", &[64]),
        ("model.layers.0.mlp.gate.weight", &[8, 64]),
        ("model.embed_tokens.weight", &[8, 64]),
        ("lm_head.weight", &[8, 64]),
    ] {
        assert_eq!(weight_type("fp8", name, shape), WeightType::Bf16, "{name} {shape:?}");
    }
}

#[test]
fn random_weights_have_the_deviation_that_configurations_state() {
    for weight_type in WeightType::ALL {
        let tensor = random::tensor(3, "w", weight_type, &[64, 256]);
        let mut values = vec![0.0; 64 * 256];
        format::dequantize(weight_type, &tensor.bytes, &mut values);
        let mean = values.iter().sum::<f32>() / values.len() as f32;
        let variance = values.iter().map(|x| (x - mean).powi(2)).sum::<f32>() / values.len() as f32;
        let name = weight_type.name();
        assert!(mean.abs() < 1e-3, "{name}: mean {mean}");
        assert!((variance.sqrt() - 0.02).abs() < 3e-3, "{name}: deviation {}", variance.sqrt());
    }
}

#[test]
fn the_tiny_fixture_is_the_same_for_the_same_seed() {
    assert_eq!(tiny_llama_gguf(1), tiny_llama_gguf(1));
    assert_ne!(tiny_llama_gguf(1), tiny_llama_gguf(2));
    assert!(tiny_llama_gguf(1).len() < 200_000, "{}", tiny_llama_gguf(1).len());
}

#[test]
fn a_random_tensor_that_no_machine_holds_is_an_error() {
    let folder = folder(&[("config.json", b"{}")]);
    let files = ModelFiles::Folder(folder.path().to_owned());
    let checkpoint = Checkpoint::open(&files, Some(1)).unwrap();
    for shape in [[1 << 24, 1 << 24], [usize::MAX, 2]] {
        let message = chain(&checkpoint.tensor("w", &shape).unwrap_err());
        assert!(message.contains("larger than this machine's memory"), "{message}");
    }
}
