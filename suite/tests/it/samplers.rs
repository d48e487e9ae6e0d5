//! Samplers compared with the tools' own algorithms, which `tests/golden/packs.py` runs with the
//! generators of CPython and NumPy; and promises of samplers that follow no tool.

use std::fmt::Write;
use std::path::Path;

use expect_test::{Expect, expect};
use fixtures::all_conversations;
use schema::canonical::sha256_hex;
use schema::manifest::ManifestRequest;
use schema::run::PromptForm;
use schema::scenario::Scenario;
use serde_json::{Value, json};
use suite::workload::dataset::Dataset;
use suite::workload::sampler::{Plan, plan};
use suite::workload::tokenizer::Tokenizer;
use tempfile::TempDir;

use crate::inputs::{CONVERSATIONS, QWEN3_TOKENIZER, cached};
use crate::workspace::{self, Workspace};

const AT_ONCE: &str = "{ kind = \"all-at-once\" }";

/// Cases of the script in its order: sampler, and the workload's other parameters.
const CASES: [(&str, &str); 11] = [
    ("sharegpt@lmdeploy", "dataset = 'd', requests = 12, seed = 1"),
    ("sharegpt@vllm", "dataset = 'd', requests = 24, seed = 0"),
    ("sharegpt@sglang", "dataset = 'd', requests = 12, seed = 1"),
    (
        "random@lmdeploy",
        "dataset = 'd', requests = 12, seed = 1, input_tokens = 300, output_tokens = 50, range_ratio = 0.25",
    ),
    (
        "random@sglang",
        "dataset = 'd', requests = 12, seed = 1, input_tokens = 300, output_tokens = 50, range_ratio = 0.25",
    ),
    (
        "random@vllm",
        "requests = 20, seed = 0, input_tokens = 300, output_tokens = 50, range_ratio = 0.25",
    ),
    (
        "random@vllm",
        "requests = 20, seed = 3, input_tokens = 100, output_tokens = 20, range_ratio = 0.0, prefix_tokens = 64",
    ),
    (
        "random@inferencex",
        "requests = 20, seed = 0, input_tokens = 300, output_tokens = 50, range_ratio = 0.8",
    ),
    (
        "random@inferencex",
        "requests = 20, seed = 5, input_tokens = 100, output_tokens = 20, range_ratio = 1.0, prefix_tokens = 32",
    ),
    (
        "prefix-groups@sglang",
        "requests = 20, seed = 1, groups = 4, prefix_tokens = 128, input_tokens = 32, output_tokens = 16, range_ratio = 0.5",
    ),
    (
        "prefix-repetition@vllm",
        "requests = 20, seed = 0, groups = 4, prefix_tokens = 64, input_tokens = 32, output_tokens = 16",
    ),
];

fn scenario(pack: &str, workload: &str, warmup: u64, arrival: &str) -> Scenario {
    let text = format!(
        "question = \"?\"\nrev = 1\ntier = \"lite\"\n\
         workload = {{ pack = \"{pack}\", {workload} }}\n\
         warmup = {{ requests = {warmup}, from = \"disjoint\" }}\narrival = {arrival}\n\
         output = {{ ignore_eos = true, temperature = 0.0 }}\n"
    );
    Scenario::parse(&text).unwrap_or_else(|error| panic!("{pack}: {error}"))
}

/// Line in the format that the script prints.
fn line(pack: &str, requests: &[ManifestRequest]) -> String {
    let rows: Vec<_> =
        requests.iter().map(|request| (&request.prompt, request.output_tokens)).collect();
    let digest = sha256_hex(json!(rows).to_string().as_bytes());
    let input: usize = requests.iter().map(|request| request.prompt.len()).sum();
    let output: u64 = requests.iter().map(|request| request.output_tokens).sum();
    format!("{pack} {} {input} {output} {digest}\n", requests.len())
}

fn drawn(tokenizer: &Path, conversations: &Path, expected: &Expect) {
    let tokenizer = Tokenizer::open(tokenizer).expect("a tokenizer");
    let dataset = Dataset::open(conversations).expect("conversations");
    let mut found = String::new();
    for (pack, workload) in CASES {
        let scenario = scenario(pack, workload, 0, AT_ONCE);
        let plan = plan("x", &scenario, Some(&dataset), Some(&tokenizer), PromptForm::TokenIds);
        let plan = plan.unwrap_or_else(|error| panic!("{pack}: {error}"));
        write!(found, "{}", line(pack, &plan.manifest.requests)).expect("a string");
    }
    expected.assert_eq(&found);
}

#[test]
fn packs_draw_what_their_tools_draw_of_a_tiny_vocabulary() {
    let folder = TempDir::new().expect("a folder");
    let (tokenizer, rows) = (folder.path().join("tiny.json"), folder.path().join("rows.json"));
    std::fs::write(&tokenizer, workspace::tokenizer().to_string()).expect("writable");
    std::fs::write(&rows, workspace::rows().to_string()).expect("writable");
    drawn(
        &tokenizer,
        &rows,
        &expect![[r#"
            sharegpt@lmdeploy 12 96 60 f13ec3afc8c454393ef000624064b92966ce136c1ddc113f63908d7b7f3e8b4e
            sharegpt@vllm 24 192 120 94f1b609944adf4f59a3139bbd03cb89bda1d43187a3bc9918c3a0ee714406b7
            sharegpt@sglang 12 96 60 f13ec3afc8c454393ef000624064b92966ce136c1ddc113f63908d7b7f3e8b4e
            random@lmdeploy 12 2441 379 613918f75d7add59e611e8647e95714617fadcef90dc809b9b332d4f7026215f
            random@sglang 12 2441 379 613918f75d7add59e611e8647e95714617fadcef90dc809b9b332d4f7026215f
            random@vllm 20 13590 971 81a2ac4567fc9efa9596959b5d50fb3db28f31ef3e770adf442a63d2dbe02c65
            random@vllm 20 9000 400 9f120bd7dfa7b5cd2b15b386a892a1eba2ca244e623db8e4b99b9a16bb2643ce
            random@inferencex 20 12633 892 559a9fe9a0724e4c33c8734685776dcf9180d115a85d048631346ef9ef6fa38d
            random@inferencex 20 3466 400 362d4e83672e4258e3ab4059794654904d87bf472929e389ad0212ba4d368e03
            prefix-groups@sglang 20 2095 235 4f420752b43dbb7fce7f8a2dac31881888dda92c8bf6db77204fa15b3b3bd9a1
            prefix-repetition@vllm 20 2066 320 9c01b96b98d6074cefdf40bc69c9ca8b69a48c768a4125eb490d769d6b2da15a
        "#]],
    );
}

#[test]
fn packs_draw_what_their_tools_draw_of_real_conversations() {
    let (Some(tokenizer), Some(conversations)) = (cached(QWEN3_TOKENIZER), cached(CONVERSATIONS))
    else {
        return;
    };
    drawn(
        &tokenizer,
        &conversations,
        &expect![[r#"
            sharegpt@lmdeploy 12 2572 2588 1ee2a6754c8fbb090f1646f0431140d9f6000c9b5fad3411f815e47ac44100d0
            sharegpt@vllm 24 4626 5493 3d424b45ba7ada0756d94db2464ba2d670535a9f4194c1b832ed0c71e334caf2
            sharegpt@sglang 12 3611 2943 115a8837060ae232cbb3fa8fd51fb6c268a3e9217d95ccbbfb1a0de9357c6c94
            random@lmdeploy 12 2441 379 4796343b26635a69ecb78f6c6bfa95de88b6096a04236eb4f69989414a70a005
            random@sglang 12 2441 379 d83f5fd5a728f933d956986e60fb5d9cc411aa73ecf9bfea52f085a55c0a91b7
            random@vllm 20 6114 971 dee538c7476a1648e9f2019bcf7c542c16af060900b0b11a91592d4f43152474
            random@vllm 20 3280 400 1728586be13ddf8bdb6b311fea610a22e444510692f0f1abd108a6548c0b3d74
            random@inferencex 20 5331 892 73a77f3a5927ecc0d69781555c951ed73da160bd33be670bb45daae162888a20
            random@inferencex 20 2640 400 87230289c3276086be19c1c18385c44408053ae516a97de002f64f7f9101dcb8
            prefix-groups@sglang 20 2298 235 544c523eb2b0d8632cc19b2f38c396e611660d9d16a83d26e553aeff8e16fdaf
            prefix-repetition@vllm 20 1920 320 aceaf7b6eaaff5c5d96e733d2c34b6667a9452870919e1dd5d04e3339af388f0
        "#]],
    );
}

/// Plan from a dataset with this text and the tiny tokenizer.
fn planned(
    pack: &str,
    workload: &str,
    warmup: u64,
    arrival: &str,
    text: &str,
    form: PromptForm,
) -> anyhow::Result<Plan> {
    let folder = TempDir::new().expect("a folder");
    let (tokenizer, data) = (folder.path().join("tiny.json"), folder.path().join("data"));
    std::fs::write(&tokenizer, workspace::tokenizer().to_string()).expect("writable");
    std::fs::write(&data, text).expect("writable");
    let tokenizer = Tokenizer::open(&tokenizer).expect("a tokenizer");
    let dataset = Dataset::open(&data).expect("a data set");
    let dataset = Some(&dataset).filter(|_| workload.contains("dataset"));
    // The tiny tokenizer knows no English word.
    let tokenizer = Some(&tokenizer).filter(|_| pack != "words");
    plan("x", &scenario(pack, workload, warmup, arrival), dataset, tokenizer, form)
}

const IDS: PromptForm = PromptForm::TokenIds;

#[test]
fn a_conversation_goes_on_from_the_very_ids_of_its_last_turn() {
    let turns: Vec<_> = (0..7).map(|i| json!({"value": format!("w{i} w{i} w{i}")})).collect();
    let rows: Vec<_> = (0..3).map(|_| json!({"conversations": turns})).collect();
    let workload = "dataset = 'd', requests = 5, seed = 1, think_us = 700";
    let plan = planned("multi-turn", workload, 0, AT_ONCE, &json!(rows).to_string(), IDS);
    let requests = plan.expect("a plan").manifest.requests;
    let shape: Vec<_> = requests
        .iter()
        .map(|request| {
            (request.prompt.len(), request.output_tokens, request.after, request.send_us)
        })
        .collect();
    // A conversation has three exchanges; its seventh turn has no answer.
    assert_eq!(
        shape,
        [
            (3, 3, None, 0),
            (9, 3, Some(0), 700),
            (15, 3, Some(1), 700),
            (3, 3, None, 0),
            (9, 3, Some(3), 700)
        ]
    );
    assert!(requests[2].prompt.starts_with(&requests[1].prompt));
    let workload = "dataset = 'd', requests = 4, seed = 1, turns_max = 2";
    let plan =
        planned("multi-turn", workload, 0, AT_ONCE, &json!(rows).to_string(), PromptForm::Text);
    let requests = plan.expect("a plan").manifest.requests;
    assert_eq!(requests[1].text.as_deref(), Some("w0 w0 w0\n\nw1 w1 w1\n\nw2 w2 w2"));
    assert_eq!(requests[2].after, None, "two turns and no more");
}

#[test]
fn a_trace_keeps_its_times_lengths_and_shared_blocks() {
    let text = "{\"timestamp\": 2500, \"input_length\": 700, \"output_length\": 9, \"hash_ids\": [4, 5]}\n\
                {\"timestamp\": 1000, \"input_length\": 600, \"output_length\": 3, \"hash_ids\": [4, 6]}\n";
    let arrival = "{ kind = \"trace\", speed = 2.0 }";
    let workload = "dataset = 'd', requests = 2, seed = 1";
    let plan = planned("trace@mooncake", workload, 1, arrival, text, IDS).expect("a plan");
    let requests = &plan.manifest.requests;
    let shape: Vec<_> = requests
        .iter()
        .map(|request| (request.send_us, request.prompt.len(), request.output_tokens))
        .collect();
    assert_eq!(shape, [(0, 600, 3), (750_000, 700, 9)]);
    assert_eq!(requests[0].prompt[..512], requests[1].prompt[..512], "block 4");
    assert_ne!(requests[0].prompt[512..600], requests[1].prompt[512..600]);
    assert_ne!(plan.warmup[0].prompt[..16], requests[0].prompt[..16], "another seed");
    let short = text.replace("[4, 5]", "[4]");
    let error = planned("trace@mooncake", workload, 0, arrival, &short, IDS).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "line 1 of data set `{}` is not a request: its 1 blocks cover 512 of 700 tokens",
            error.to_string().split('`').nth(1).unwrap_or_default()
        )
    );
}

#[test]
fn a_users_own_requests_are_taken_as_they_are() {
    let text = "{\"prompt\": \"w1 w2\", \"output_tokens\": 4, \"send_us\": 10}\n\
                {\"prompt\": [7, 8, 9], \"send_us\": 20, \"note\": \"ignored\"}\n\
                {\"prompt\": \"w3\", \"send_us\": 30}\n";
    let workload = "dataset = 'd', requests = 2, seed = 1, output_tokens = 6";
    let plan = planned("jsonl", workload, 1, "{ kind = \"trace\" }", text, IDS).expect("a plan");
    let shape: Vec<_> = plan
        .manifest
        .requests
        .iter()
        .map(|request| (request.send_us, request.prompt.clone(), request.output_tokens))
        .collect();
    assert_eq!(shape, [(10, vec![3, 4], 4), (20, vec![7, 8, 9], 6)]);
    assert_eq!((plan.warmup[0].prompt.as_slice(), plan.warmup[0].send_us), ([5].as_slice(), 0));
    let bare = "dataset = 'd', requests = 2, seed = 1";
    let untimed = text.replace(", \"send_us\": 20", "");
    for (workload, text, expected) in [
        (bare, text, "line 2 of data set"),
        (bare, "[]", "line 1 of data set"),
        (workload, untimed.as_str(), "it has no `send_us`, and `arrival.kind` is `trace`"),
    ] {
        let error = planned("jsonl", workload, 0, "{ kind = \"trace\" }", text, IDS).unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
    }
}

#[test]
fn a_warm_up_prompt_that_begins_like_a_measured_one_is_drawn_again() {
    let made_up = "requests = 4000, seed = 1, input_tokens = 20, output_tokens = 5";
    let text = PromptForm::Text;
    let plan = planned("words", made_up, 200, AT_ONCE, "", text).expect("enough unlike prompts");
    assert_eq!(plan.warmup.len(), 200);
    // Every prompt of one word is a measured one.
    let words = made_up.replace("input_tokens = 20", "input_tokens = 1");
    let error = planned("words", &words, 2, AT_ONCE, "", text).unwrap_err().to_string();
    assert!(error.contains("only 0 of 2 warm-up requests"), "{error}");
}

#[test]
fn what_cannot_be_drawn_is_said() {
    let made_up = "requests = 4, seed = 1, input_tokens = 20, output_tokens = 5, range_ratio = 0.0";
    let none = planned("random@vllm", made_up, 2, AT_ONCE, "", IDS).expect("no data set is needed");
    assert_eq!((none.manifest.dataset_sha256, none.warmup.len()), (None, 2));
    let cases = [
        ("random@inferencex", made_up, "request 3 would have an answer without tokens"),
        (
            "random@vllm",
            "requests = 4, seed = 5000000000, input_tokens = 20, output_tokens = 5, range_ratio = 0.0",
            "beyond the 32 bits",
        ),
    ];
    for (pack, workload, expected) in cases {
        let error = planned(pack, workload, 0, AT_ONCE, "", IDS).unwrap_err().to_string();
        assert!(error.contains(expected), "{pack}: {error}");
    }
}

/// Writes a table that states numbers of requests, input and output tokens for the dataset
/// `rows.json` of the folder.
fn publish(workspace: &Workspace, [requests, input_tokens, output_tokens]: [u64; 3]) {
    let sha256 = |name: &str| sha256_hex(&std::fs::read(workspace.path(name)).expect("readable"));
    workspace.write(
        "published.toml",
        &format!(
            "[dataset]\nname = \"rows\"\nsha256 = \"{}\"\n[[totals]]\npack = \"sharegpt@lmdeploy\"\n\
             requests = {requests}\nseed = 1\ntokenizer = \"tiny\"\ntokenizer_sha256 = \"{}\"\n\
             input_tokens = {input_tokens}\noutput_tokens = {output_tokens}\n",
            sha256("rows.json"),
            sha256("tiny.json")
        ),
    );
}

/// Runs `verify-manifest` with a table that states these totals for the twelve conversations of the
/// folder.
fn verified(extra: &[&str], input_tokens: u64) -> (Option<i32>, String, String) {
    let workspace = Workspace::new();
    publish(&workspace, [12, input_tokens, 60]);
    let mut command = workspace.bench();
    command.args(["verify-manifest", "--published", "published.toml"]).args(extra);
    let output = command.output().expect("runs");
    let shown = String::from_utf8_lossy(&output.stdout).into_owned();
    (output.status.code(), shown, workspace::stderr(&output))
}

#[test]
fn published_totals_are_drawn_again_or_what_is_missing_is_said() {
    let given = ["--dataset", "rows.json", "--tokenizer", "tiny.json"];
    let (code, shown, _) = verified(&given, 96);
    expect![[r#"
        sharegpt@lmdeploy, 12 requests, seed 1, tiny
          drawn      96 in, 60 out
          published  96 in, 60 out
          equal
    "#]]
    .assert_eq(&shown);
    assert_eq!(code, Some(0));
    let (code, shown, _) = verified(&given, 97);
    assert_eq!((code, shown.contains("DIFFERENT")), (Some(1), true), "{shown}");
    let (code, _, said) = verified(&[], 96);
    assert_eq!(code, Some(4));
    assert!(said.contains("the conversations are missing: `rows`, SHA-256"), "{said}");
    assert!(said.contains("a tokenizer is missing: tiny, SHA-256"), "{said}");
    let (code, _, said) = verified(&["--dataset", "tiny.json", "--tokenizer", "tiny.json"], 96);
    assert_eq!(code, Some(2));
    assert!(
        said.contains("`tiny.json` is not the file that the totals were published for"),
        "{said}"
    );
    let (code, _, said) = verified(&["--dataset", "rows.json", "--tokenizer", "short.toml"], 96);
    assert_eq!(code, Some(2), "{said}");
}

/// Returns conversations in the shape of the file that published pages use, with entries of every
/// kind that a sample drops, and the numbers of entries, input and output tokens that are left.
fn conversations_of_every_kind() -> (Value, [u64; 3]) {
    let words = |count: u64, first: u64| {
        let words: Vec<String> = (0..count).map(|i| format!("w{}", (first + i) % 160)).collect();
        words.join(" ")
    };
    let (mut rows, mut kept) = (Vec::new(), [0; 3]);
    for entry in 0..160 {
        // Lengths of the first two turns in tokens, beside the bounds of 4, 1,024 and 2,048.
        let (prompt, answer) = match entry % 8 {
            0 => (3, 50),
            1 => (50, 3),
            2 => (1025, 10),
            3 => (1000, 1049),
            _ => (4 + entry * 7 % 1021, 4 + entry * 11 % 1021),
        };
        let mut turns = vec![
            json!({"from": "human", "value": words(prompt, entry)}),
            json!({"from": "gpt", "value": words(answer, entry)}),
            json!({"from": "human", "value": "t"}),
        ];
        match entry % 8 {
            4 => turns.truncate(1),
            5 => turns.clear(),
            // A conversation may begin with the answer to something that was left out.
            6 => turns[0]["from"] = json!("gpt"),
            _ => {}
        }
        if entry % 8 > 5 {
            kept = [kept[0] + 1, kept[1] + prompt, kept[2] + answer];
        }
        rows.push(json!({"id": format!("QWJhYvA_{entry}"), "conversations": turns}));
    }
    (rows.into(), kept)
}

#[test]
fn the_totals_are_those_of_the_conversations_within_the_bounds() {
    let workspace = Workspace::new();
    let (rows, totals) = conversations_of_every_kind();
    workspace.write("rows.json", &serde_json::to_string_pretty(&rows).expect("JSON"));
    // As many requests as are left, so that their order does not matter.
    publish(&workspace, totals);
    let mut command = workspace.bench();
    command.args(["verify-manifest", "--published", "published.toml"]);
    let output = command.args(["--dataset", "rows.json", "--tokenizer", "tiny.json"]).output();
    let output = output.expect("runs");
    let shown = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{shown}{}", workspace::stderr(&output));
    assert!(shown.contains(&format!("drawn      {} in, {} out", totals[1], totals[2])), "{shown}");
}

#[test]
fn the_published_totals_are_drawn_of_all_conversations() {
    let (Some(tokenizer), Some(conversations)) = (cached(QWEN3_TOKENIZER), all_conversations())
    else {
        return;
    };
    let workspace = Workspace::new();
    let mut command = workspace.bench();
    command.arg("verify-manifest").arg("--dataset").arg(conversations);
    let output = command.arg("--tokenizer").arg(tokenizer).output().expect("runs");
    let shown = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{shown}{}", workspace::stderr(&output));
    assert!(shown.contains("drawn      2258583 in, 1992177 out"), "{shown}");
}
