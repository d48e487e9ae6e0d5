//! Tests of exit codes and of the last message before the exit.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Stdio;

use engine_cpu::Isa;
use expect_test::{Expect, expect};
use nix::sys::signal::Signal;
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use serde_json::json;

use fixtures::fixture;

use crate::launched::{Launched, command, end_of, end_of_command, limited, tiny_model};

fn check_end(args: &[&str], code: i32, message: &Expect) {
    let (found, said) = end_of(args);
    assert_eq!(found, Some(code), "{args:?}: {said}");
    message.assert_eq(&said);
}

#[test]
fn a_full_standard_output_is_an_error_and_a_closed_one_is_not() {
    let to = |stdout: Stdio| end_of_command(command(&["completions", "bash"]).stdout(stdout));
    let said = "error: cannot write to standard output: No space left on device (os error 28)";
    let full = to(File::create("/dev/full").unwrap().into());
    assert_eq!(full, (Some(4), said.to_owned()));
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    assert_eq!(to(writer.into()), (Some(0), String::new()));
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
        &expect![
            "error: the profile cannot be used: failed to read `nowhere.toml`: No such file or directory (os error 2)"
        ],
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
        "error: failed to listen on [127.0.0.1:{port}]: Address already in use (os error 98); hint: \
         another program listens there; `--port N` takes another port, `--port 0` a free one"
    );
    assert_eq!(said, expected);
}

#[test]
fn a_truncated_model_ends_with_2() {
    let mut file = tempfile::Builder::new().suffix(".gguf").tempfile().unwrap();
    Write::write_all(&mut file, b"GGUF\x03\0\0\0\x01\0\0\0\0\0\0\0").unwrap();
    let path = file.path().to_str().unwrap();
    let (code, said) = end_of(&["serve", path, "--port", "0"]);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("is damaged"), "{said}");
}

#[test]
fn the_version_names_a_commit() {
    let output = command(&["--version"]).stdout(Stdio::piped()).output().unwrap();
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
fn a_second_signal_ends_at_once_with_4() {
    let config = json!({
        "architectures": ["LlamaForCausalLM"], "hidden_size": 512, "num_hidden_layers": 8,
        "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64,
        "intermediate_size": 2048, "vocab_size": 4096, "max_position_embeddings": 65_536,
        "rope_theta": 10_000.0,
    });
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    let flags = ["--load-format", "random", "--max-batch-size", "1"];
    let mut server = Launched::serve(folder.path().to_str().unwrap(), &flags);
    // An answer that takes longer than draining lasts.
    let body = json!({"prompt": [5], "max_tokens": 60_000, "ignore_eos": true, "stream": true});
    let body = body.to_string();
    let mut client = TcpStream::connect(server.address()).unwrap();
    let head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json";
    let request = format!("{head}\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    client.write_all(request.as_bytes()).unwrap();
    client.read_exact(&mut [0; 500]).unwrap();
    server.signal(Signal::SIGTERM);
    assert!(server.next_line().starts_with("draining: "));
    server.signal(Signal::SIGINT);
    let mut streamed = String::new();
    client.read_to_string(&mut streamed).unwrap();
    let last = streamed.rsplit("data: ").next().unwrap();
    assert!(last.contains(r#""code":"draining""#), "{last}");
    let (code, said) = server.wait();
    assert_eq!(code, Some(4), "{said}");
    assert_eq!(said, "error: interrupted while draining, with 1 sequences open\n");
}

#[test]
fn too_little_address_space_ends_with_4_and_the_numbers() {
    let model = tiny_model();
    let serve = ["serve", model.path().to_str().unwrap(), "--port", "0", "--device", "cpu"];
    for kib in [150_000, 250_000, 350_000] {
        let (code, said) = end_of_command(&mut limited(&format!("ulimit -v {kib}"), &serve));
        assert_eq!(code, Some(4), "{kib} KiB: {said}");
        let beginning = "error: failed to load the model: too little address space: loading takes ";
        assert!(said.starts_with(beginning), "{kib} KiB: {said}");
    }
    // Where it starts, it also serves.
    let server = Launched::spawn(limited("ulimit -v 2000000", &serve));
    assert_eq!(server.terminate().0, Some(0));
}

#[test]
fn too_few_open_files_end_with_4_and_the_numbers() {
    let model = tiny_model();
    let serve = ["serve", model.path().to_str().unwrap(), "--port", "0", "--device", "cpu"];
    for files in [6, 7, 31] {
        let (code, said) = end_of_command(&mut limited(&format!("ulimit -n {files}"), &serve));
        assert_eq!(code, Some(4), "{files}: {said}");
        let expected = format!("error: this process may open {files} files, and a server needs 32");
        assert!(said.starts_with(&expected), "{said}");
    }
    // Where it starts, it also serves.
    let server = Launched::spawn(limited("ulimit -n 32", &serve));
    assert_eq!(server.terminate().0, Some(0));
}

#[test]
fn an_error_repeats_little_of_a_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let config = json!({"architectures": ["x".repeat(1 << 20)], "hidden_size": 1});
    std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    let serve = ["serve", folder.path().to_str().unwrap(), "--load-format", "random"];
    let (code, said) = end_of(&serve);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.len() < 5000, "{} bytes", said.len());
}

#[test]
fn a_key_file_that_is_no_short_text_ends_with_2() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    mkfifo(&at("pipe"), Mode::S_IRWXU).unwrap();
    std::fs::write(at("long"), "x".repeat(65_537)).unwrap();
    std::fs::write(at("empty"), "\n").unwrap();
    std::fs::write(at("binary"), b"\xff").unwrap();
    std::fs::write(at("control"), "se\0same\n").unwrap();
    std::fs::write(at("comment"), "# nobody yet\n").unwrap();
    for (name, end) in [("word", "many"), ("zero", "0"), ("two", "1 2"), ("huge", "9999999999")] {
        std::fs::write(at(name), format!("# keys\n\nopen 4\nsesame {end}\n")).unwrap();
    }
    let check = |path: &Path, expected: &str| {
        let path = path.to_str().unwrap();
        let (code, said) = end_of(&["serve", "x", "--port", "0", "--api-key-file", path]);
        assert_eq!(code, Some(2), "{said}");
        assert!(said.starts_with("error: ") && said.contains(expected), "{said}");
    };
    check(&at("pipe"), "is not a regular file");
    check(Path::new("/dev/zero"), "`/dev/zero` is not a regular file");
    check(folder.path(), "is not a regular file");
    check(&at("long"), "has 65537 bytes, more than the limit of 65536 bytes");
    check(&at("empty"), "is empty");
    check(&at("binary"), "is not UTF-8");
    check(&at("control"), "is no key: it has a control character");
    check(&at("comment"), "is empty");
    for name in ["word", "zero", "two", "huge"] {
        check(&at(name), "is no key: after a key only a number of open requests may follow");
        let (_, said) = end_of(&["serve", "x", "--api-key-file", at(name).to_str().unwrap()]);
        assert!(said.contains("line 4 ") && !said.contains("sesame"), "{said}");
    }
    check(&at("missing"), "failed to read");
}

#[test]
fn a_profile_or_text_that_is_no_regular_file_ends_with_2() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    mkfifo(&pipe, Mode::S_IRWXU).unwrap();
    let long = folder.path().join("long.toml");
    std::fs::write(&long, "#".repeat((1 << 20) + 1)).unwrap();
    for path in [pipe.to_str().unwrap(), "/dev/zero", "/dev/null", "/"] {
        for args in [&["serve", "x", "--profile", path][..], &["perplexity", "x", path]] {
            let (code, said) = end_of(args);
            assert_eq!(code, Some(2), "{said}");
            assert!(said.ends_with("is not a regular file"), "{said}");
        }
    }
    let (code, said) = end_of(&["serve", "x", "--profile", long.to_str().unwrap()]);
    assert_eq!(code, Some(2), "{said}");
    let want = "has 1048577 bytes, more than the limit of 1048576 bytes";
    assert!(said.ends_with(want), "{said}");
}

#[test]
fn what_is_wrong_on_the_command_line_is_quoted_as_one_line() {
    let hostile = "\u{9b}31mx\u{202e}\nready http://evil";
    let output = command(&["serve", "x", "--dtype", hostile]).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains(r"'\u{9b}31mx\u{202e}\nready http://evil' for '--dtype"), "{said}");
    let profile = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&profile, "port = 1\npassword sesame\n").unwrap();
    let (code, said) = end_of(&["serve", "x", "--profile", profile.path().to_str().unwrap()]);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("is not a TOML table of flags: line 2: "), "{said}");
    assert!(!said.contains("sesame"), "{said}");
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
