//! `client-bench` compares the load generator with the raw-socket client, keeps the figures and
//! writes them into the document. No figure is asserted, because this machine may be busy.

use serde_json::Value;
use tests::clone::Clone;

const ALONE: [&str; 6] =
    ["client-bench", "--skip", "sglang-bench", "--skip", "aiperf", "--repeats"];

#[test]
fn clients_are_measured_kept_and_written_into_the_method() {
    if std::thread::available_parallelism().map_or(1, usize::from) < 2 {
        return fixtures::skip("two cores", "the mock server and the client need one each");
    }
    let clone = Clone::of_this_repository(&[]);
    let words = [&ALONE[..], &["2", "--row", "spread", "--json"]].concat();
    let ended = clone.run("redline-peers", &words);
    assert!(matches!(ended.code, Some(0 | 1)), "{}", ended.stderr);
    let told: Value = serde_json::from_str(&ended.stdout).expect("JSON");
    let spread = &told["rows"]["spread"];
    for client in ["redline-bench", "floor"] {
        let values = spread["values"]["itl_spread_ms"][client].as_array().expect("values");
        assert_eq!(values.len(), 2, "{client} was measured twice");
    }
    assert_eq!(spread["absent"]["sglang-bench"], "left out");
    let kept = clone.root().join("target/client-bench/figures.json");
    let text = std::fs::read_to_string(kept).expect("it is kept");
    assert_eq!(serde_json::from_str::<Value>(&text).expect("JSON"), told);

    let ended = clone.run("redline-peers", &["client-bench", "--kept", "--document"]);
    assert!(matches!(ended.code, Some(0 | 1)), "{}", ended.stderr);
    let method =
        std::fs::read_to_string(clone.root().join("docs/method/client.md")).expect("readable");
    let line = ended.stdout.lines().find(|line| line.contains("ITL spread")).expect("a line");
    assert!(method.contains(line), "{line}");
    assert!(method.contains("## The missed target"), "the rest of the document is still there");
}

#[test]
fn a_core_that_is_not_there_is_refused() {
    let clone = Clone::of_this_repository(&[]);
    let words = [&ALONE[..], &["1", "--row", "spread", "--client-core", "1000"]].concat();
    clone.run("redline-peers", &words).expect_code(4).expect_said("core 1000");
}
