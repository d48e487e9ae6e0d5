//! Tests of `redline chat`: lines from a pipe, and a terminal.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Command, Stdio};

use crate::launched::{command, end_of, tiny_model};

/// Flags with which the tiny model answers the same each time.
const FLAGS: [&str; 8] =
    ["--device", "cpu", "--threads", "1", "--temperature", "0", "--max-tokens", "12"];

/// Standard output and standard error of a chat that reads `input`.
fn chat(input: &str, flags: &[&str]) -> (String, String) {
    let model = tiny_model();
    let args = [&["chat", model.path().to_str().unwrap()], &FLAGS[..], flags].concat();
    let mut command = command(&args);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let [said, told] = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
    assert!(output.status.success(), "{said}{told}");
    (said, told)
}

/// Lines about the speed of each answer.
fn speeds(told: &str) -> Vec<&str> {
    told.lines().filter(|line| line.starts_with('[')).collect()
}

#[test]
fn each_line_of_a_pipe_is_answered_in_one_conversation() {
    let (said, told) = chat("the rain\n\n/reset\nthe rain\nthe rain\n/quit\nthe rain\n", &[]);
    let speeds = speeds(&told);
    assert_eq!(speeds.len(), 3, "{told}");
    for speed in &speeds {
        assert!(speed.contains(" tokens, the first after "), "{told}");
    }
    let prompt = |index: usize| -> usize {
        let (_, rest) = speeds[index].split_once("; ").unwrap();
        rest.split_once(" prompt tokens").unwrap().0.parse().unwrap()
    };
    assert_eq!(prompt(0), prompt(1), "the conversation was forgotten");
    assert!(prompt(2) > 2 * prompt(1), "the conversation goes on: {told}");
    let (once, _) = chat("the rain\n", &[]);
    assert!(said.starts_with(&once.repeat(2)), "{said:?} {once:?}");
    // A system message is part of the prompt, by flag and by command.
    let (_, by_flag) = chat("hi\n", &["--system", "the"]);
    let (_, by_command) = chat("/system the\nhi\n", &[]);
    let size = |told: &str| told.lines().last().unwrap().split("; ").nth(1).unwrap().to_owned();
    assert_eq!(size(&by_flag), size(&by_command));
}

#[test]
fn a_message_that_cannot_be_answered_is_taken_back() {
    let long = "the ".repeat(2000);
    let (said, told) = chat(&format!("{long}\nthe rain\n"), &[]);
    assert!(told.contains("maximum context length is 1024 tokens"), "{told}");
    assert!(told.contains("hint: /reset"), "{told}");
    let (once, _) = chat("the rain\n", &[]);
    assert_eq!(said.trim_start(), once.trim_start());
    let (code, end) = end_of(&["chat", "nowhere"]);
    assert_eq!(code, Some(4), "{end}");
    assert!(end.starts_with("error: failed to load the model: `nowhere`"), "{end}");
}

#[test]
fn a_terminal_shows_a_prompt_and_edits_lines() {
    let model = tiny_model();
    let line = format!(
        "{} chat {} {}",
        env!("CARGO_BIN_EXE_redline"),
        model.path().display(),
        FLAGS.join(" ")
    );
    // `script` of util-linux gives the program a terminal.
    let mut script = Command::new("script");
    script.args(["--quiet", "--return", "--flush", "--command", &line, "/dev/null"]);
    script.env("TERM", "xterm").stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = script.spawn().unwrap();
    let mut keys = child.stdin.take().unwrap();
    let mut screen = BufReader::new(child.stdout.take().unwrap());
    let mut shown = String::new();
    // Reads until `wanted` is shown, after what was waited for before. The prompt is no whole line.
    let mut until = |wanted: &str| {
        while !shown.contains(wanted) {
            let bytes = screen.fill_buf().unwrap();
            assert!(!bytes.is_empty(), "{shown}");
            shown += &String::from_utf8_lossy(bytes);
            let length = bytes.len();
            screen.consume(length);
        }
        shown = shown.split_once(wanted).unwrap().1.to_owned();
    };
    until("> ");
    // Backspace takes the last letter back.
    keys.write_all(b"/helpp\x7f\r").unwrap();
    until("/reset");
    until("> ");
    keys.write_all(b"the rain\r").unwrap();
    until("prompt tokens");
    // Keys that come before a prompt are dropped.
    until("> ");
    // Ctrl-D ends the conversation.
    keys.write_all(b"\x04").unwrap();
    let mut rest = Vec::new();
    screen.read_to_end(&mut rest).unwrap();
    assert!(child.wait().unwrap().success(), "{}", String::from_utf8_lossy(&rest));
}
