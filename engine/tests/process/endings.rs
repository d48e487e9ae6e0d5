//! Tests of exit codes and of the last message before the exit.

use std::net::TcpListener;

use engine_cpu::Isa;
use expect_test::{Expect, expect};

use fixtures::fixture;

use crate::launched::{Launched, command, end_of, tiny_model};

fn check_end(args: &[&str], code: i32, message: &Expect) {
    let (found, said) = end_of(args);
    assert_eq!(found, Some(code), "{args:?}: {said}");
    message.assert_eq(&said);
}

#[test]
fn wrong_flags_end_with_2() {
    check_end(
        &["serve", "x", "--tp", "65"],
        2,
        &expect!["error: `--tp 65` is not supported by this release; supported: 1 to 64"],
    );
    check_end(
        &["serve", "x", "--dtype", "int4"],
        2,
        &expect![
            "error: `--dtype int4` is not supported by this release; supported: auto, f32, \
                  bf16, int8"
        ],
    );
    check_end(
        &["serve", "x", "--kv-dtype", "int8"],
        2,
        &expect![
            "error: `--kv-dtype int8` is not supported by this release; supported: auto, f32, f16, bf16, fp8"
        ],
    );
    check_end(
        &["serve", "x", "--host", "0.0.0.0"],
        2,
        &expect![
            "error: `--host 0.0.0.0` is reachable from other machines; hint: give `--api-key-file`, or `--insecure-bind` to serve everyone"
        ],
    );
    check_end(
        &["serve", "x", "--profile", "nowhere.toml"],
        2,
        &expect!["error: failed to read `nowhere.toml`: No such file or directory (os error 2)"],
    );
    for args in
        [&["serve"][..], &["serve", "x", "--dtype", "int3"], &["sing"], &["serve", "x", "-q"]]
    {
        assert_eq!(end_of(args).0, Some(2), "{args:?}");
    }
}

#[test]
fn a_missing_model_ends_with_4() {
    check_end(
        &["serve", "nowhere", "--port", "0"],
        4,
        &expect![
            "error: failed to load the model: `nowhere` is neither a folder with a config.json, nor a .gguf file, nor a model in the hub cache `hub`; hint: give a path, or download the model into the cache first"
        ],
    );
}

#[test]
fn a_gpu_that_is_not_there_ends_with_4() {
    if !engine_cuda::usable().is_empty() {
        fixtures::skip("a machine without a GPU", "run it elsewhere");
        return;
    }
    for more in [&[][..], &["--tp", "2"]] {
        let args = ["serve", "nowhere", "--port", "0", "--device", "cuda"];
        check_end(
            &[&args[..], more].concat(),
            4,
            &expect![
                "error: `--device cuda` needs a GPU of compute capability 8.0 or later with its driver, and there is none; hint: `--device cpu`"
            ],
        );
    }
}

#[test]
fn a_taken_port_ends_with_4() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    let (code, said) = end_of(&["serve", "nowhere", "--port", &port]);
    assert_eq!(code, Some(4), "{said}");
    let expected = format!(
        "error: failed to listen on [127.0.0.1:{port}]: Address already in use (os error 98)"
    );
    assert_eq!(said, expected);
}

#[test]
fn a_truncated_model_ends_with_2() {
    let mut file = tempfile::Builder::new().suffix(".gguf").tempfile().unwrap();
    std::io::Write::write_all(&mut file, b"GGUF\x03\0\0\0\x01\0\0\0\0\0\0\0").unwrap();
    let path = file.path().to_str().unwrap();
    let (code, said) = end_of(&["serve", path, "--port", "0"]);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("is damaged"), "{said}");
}

#[test]
fn the_version_names_a_commit() {
    let output = command(&["--version"]).stdout(std::process::Stdio::piped()).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let start = format!("redline {} (", env!("CARGO_PKG_VERSION"));
    assert!(text.starts_with(&start), "{text}");
    assert!(output.status.success());
}

#[test]
fn sigterm_ends_with_0() {
    let model = fixture("conformance/llama-tied");
    let (code, said) = Launched::serve(model.to_str().unwrap(), &[]).terminate();
    assert_eq!(code, Some(0), "{said}");
    expect![[r#"
        draining: running requests may finish, new ones are refused
    "#]]
    .assert_eq(&said);
}

#[test]
fn a_launcher_that_stops_reading_does_no_harm() {
    let model = tiny_model();
    let mut server = Launched::serve(model.path().to_str().unwrap(), &[]);
    server.stop_listening();
    assert_eq!(server.terminate().0, Some(0));
}

#[tokio::test]
async fn bf16_by_name_is_what_is_computed_in_or_an_error() {
    let model = tiny_model();
    let args = ["serve", model.path().to_str().unwrap(), "--port", "0", "--dtype", "bf16"];
    if Isa::best().has_bf16() {
        let server = Launched::spawn(command(&args));
        let info = server.get("/server_info").await;
        assert_eq!(info["model"]["dtype"], "bf16", "{info}");
        assert_eq!(info["config"]["dtype"]["value"], "bf16", "{info}");
    } else {
        let (code, said) = end_of(&args);
        assert_eq!(code, Some(4), "{said}");
        assert!(said.contains("needs a processor with AVX-512 BF16"), "{said}");
    }
}
