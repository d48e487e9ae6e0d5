//! Tests of the configuration: defaults, flags and profiles, and the messages for invalid values.

use std::io::Write;

use clap::Parser;
use expect_test::{Expect, expect};

use super::*;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    flags: Flags,
}

fn resolve(line: &str) -> Result<Config> {
    resolve_on(&[], line)
}

fn resolve_on(gpus: &[&str], line: &str) -> Result<Config> {
    let flags = Line::parse_from(std::iter::once("redline").chain(line.split_whitespace())).flags;
    Config::resolve(&flags, &Machine { cores: 2, processor: "some processor", gpus })
}

fn check_refused(line: &str, expected: &Expect) {
    let config = resolve(line);
    let error = config.and_then(|config| config.addresses()).expect_err(line);
    expected.assert_eq(&error.to_string());
}

#[test]
fn defaults_are_those_of_the_contract() {
    let lines: String = resolve("")
        .unwrap()
        .effective()
        .iter()
        .map(|(flag, setting)| format!("{flag} {} {:?}\n", setting.value, setting.source))
        .collect();
    expect![[r#"
        allow-origin null Default
        api-key-file null Default
        cache-max-entry-count 0.8 Default
        device "auto" Default
        dtype "auto" Default
        host "127.0.0.1" Default
        insecure-bind false Default
        kv-dtype "auto" Default
        load-format "auto" Default
        log-format "text" Default
        max-batch-size 128 Default
        max-prefill-token-num 512 Default
        max-seq-len null Default
        model-name null Default
        no-prefix-cache false Default
        port 23333 Default
        profile null Default
        speculative-algorithm "none" Default
        threads 2 Default
        tp 1 Default
    "#]]
    .assert_eq(&lines);
}

#[test]
fn the_command_line_goes_before_the_profile() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    writeln!(file, "max-batch-size = 7\nthreads = 3\nsession-len = 99\nno-prefix-cache = true")
        .unwrap();
    let line = format!("--threads 5 --server-port 0 --profile {}", file.path().display());
    let config = resolve(&line).unwrap();
    let expected = [
        ("max-batch-size", Value::from(7), Source::Profile),
        ("max-seq-len", Value::from(99), Source::Profile),
        ("no-prefix-cache", Value::from(true), Source::Profile),
        ("port", Value::from(0), Source::Flag),
        ("profile", Value::from("set"), Source::Flag),
        ("threads", Value::from(5), Source::Flag),
        ("tp", Value::from(1), Source::Default),
    ];
    let effective = config.effective();
    for (flag, value, source) in expected {
        assert_eq!(effective[flag], Setting { value, source }, "{flag}");
    }
}

#[test]
fn a_profile_with_a_strange_line_is_refused() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    writeln!(file, "max-batch = 7").unwrap();
    let error = Flags::read_profile(file.path()).unwrap_err();
    assert!(error.to_string().ends_with("is not a TOML table of flags"), "{error}");
}

#[test]
fn what_a_release_cannot_do_is_refused_by_name() {
    check_refused(
        "--tp 65",
        &expect!["`--tp 65` is not supported by this release; supported: 1 to 64"],
    );
    check_refused(
        "--device cuda --dtype f32",
        &expect!["`--dtype f32` is not supported by this release; supported: auto, bf16 on a GPU"],
    );
    check_refused(
        "--dtype int4",
        &expect![
            "`--dtype int4` is not supported by this release; supported: auto, f32, bf16, int8"
        ],
    );
    check_refused(
        "--kv-dtype int8",
        &expect![
            "`--kv-dtype int8` is not supported by this release; supported: auto, f32, f16, bf16, fp8"
        ],
    );
    check_refused(
        "--device cpu --kv-dtype fp8",
        &expect![
            "`--kv-dtype fp8` is not supported by this release; supported: auto, f32, f16, bf16 on the CPU"
        ],
    );
    check_refused(
        "--device cuda --kv-dtype f16",
        &expect![
            "`--kv-dtype f16` is not supported by this release; supported: auto, bf16, fp8 on a GPU"
        ],
    );
}

#[test]
fn defaults_are_those_of_the_device_that_computes() {
    let on = |gpus: usize, line: &str| {
        let config = resolve_on(&["NVIDIA H100 80GB HBM3"; 2][..gpus], line).unwrap();
        (config.max_prefill_token_num, config.max_batch_size)
    };
    let defaults = |line: &str| on(1, line);
    assert_eq!(on(2, "--tp 2"), (8192, 1024));
    assert_eq!(on(0, ""), (512, 128));
    assert_eq!(defaults(""), (8192, 1024));
    assert_eq!(defaults("--device cuda --kv-dtype fp8"), (8192, 1024));
    for of_cpu in ["--device cpu", "--tp 2", "--dtype f32", "--kv-dtype f16"] {
        assert_eq!(defaults(of_cpu), (512, 128), "{of_cpu}");
    }
    assert_eq!(defaults("--max-prefill-token-num 100").0, 100);
}

#[test]
fn what_makes_no_sense_is_refused() {
    check_refused(
        "--max-batch-size 0",
        &expect!["`--max-batch-size 0` is invalid: it must be at least 1"],
    );
    check_refused(
        "--max-batch-size 65537",
        &expect!["`--max-batch-size 65537` is invalid: it must be at most 65536"],
    );
    check_refused(
        "--threads 4097",
        &expect!["`--threads 4097` is invalid: it must be at most 4096"],
    );
    check_refused(
        "--cache-max-entry-count 0",
        &expect![
            "`--cache-max-entry-count 0` is invalid: it must be a share above 0 and up to 1, or a whole number of KV pages"
        ],
    );
    check_refused(
        "--cache-max-entry-count nan",
        &expect![
            "`--cache-max-entry-count NaN` is invalid: it must be a share above 0 and up to 1, or a whole number of KV pages"
        ],
    );
    check_refused(
        "--host 0.0.0.0",
        &expect![
            "`--host 0.0.0.0` is reachable from other machines; hint: give `--api-key-file`, or `--insecure-bind` to serve everyone"
        ],
    );
    assert!(resolve("--host 0.0.0.0 --insecure-bind").unwrap().addresses().is_ok());
    assert!(resolve("--host ::1").unwrap().addresses().is_ok());
}

#[test]
fn the_hash_minds_what_is_computed_and_not_where() {
    let hash = |line| config_sha256(&resolve(line).unwrap().effective());
    assert_eq!(hash(""), hash("--port 1 --model-name x --tp 1"));
    assert_eq!(hash("--cache-max-entry-count 64"), hash("--cache-max-entry-count 64.0"));
    assert_ne!(hash(""), hash("--max-batch-size 64"));
    assert_ne!(hash(""), hash("--no-prefix-cache"));
    assert_ne!(hash(""), hash("--speculative-algorithm ngram"));
    assert_eq!(hash(""), hash("--speculative-algorithm none"));
    expect!["e7888bd436c3d5252b67b287fecc7e7ab92e29d0054f51d202f41c48b156e16c"]
        .assert_eq(&hash(""));
}

#[test]
fn the_hash_names_what_was_asked_for_and_not_what_the_machine_has() {
    let mut effective = resolve("").unwrap().effective();
    let hash = config_sha256(&effective);
    let library = Setting { value: "cuBLASLt 130101".into(), source: Source::Machine };
    effective.insert("gemm-library".to_owned(), library);
    assert_eq!(config_sha256(&effective), hash);
}

#[test]
fn the_longest_matching_name_decides_the_batch() {
    for (device, expected) in [
        ("NVIDIA A100-SXM4-80GB", 512),
        ("NVIDIA A800 80GB PCIe", 512),
        ("NVIDIA H100 80GB HBM3", 1024),
        ("NVIDIA H800", 1024),
        ("NVIDIA H200", 1280),
        ("NVIDIA H20", 1024),
        ("some processor", 128),
    ] {
        assert_eq!(default_max_batch_size(device), expected, "{device}");
    }
}
