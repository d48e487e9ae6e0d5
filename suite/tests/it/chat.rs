//! Scenarios over the chat route: what is sent, what the record says, and which engines are refused.

use std::fs;

use schema::alternation::Alternation;
use schema::run::{PromptForm, ValidityVerdict};
use serde_json::{Value, json};
use suite::mock_server::script::{Answer, Route, Scripted, Shape, Steady, When};

use crate::harness::Exchange;
use crate::workspace::{REQUESTS, Workspace, script, server, stderr, url};

const ROUTE: &str = "/v1/chat/completions";

/// Scenario with chat and a tool that each answer must call.
fn scenario() -> String {
    let text = crate::workspace::scenario(REQUESTS, "{ kind = \"closed\", concurrency = 2 }");
    let chat = "output = { chat = true, ignore_eos = true, temperature = 0.0, extra_body = \
                { tool_choice = \"required\", tools = [{ type = \"function\", function = \
                { name = \"f\", parameters = { type = \"object\" } } }] } }\n";
    text.replace("output = { ignore_eos = true, temperature = 0.0 }\n", chat)
}

fn workspace() -> Workspace {
    let workspace = Workspace::new();
    workspace.write("short.toml", &scenario());
    workspace
}

fn run(workspace: &Workspace, exchange: &Exchange) -> schema::measurement::Measurement {
    workspace.run(exchange, &[]).1
}

/// Answers of the chat route, to requests whose bodies contain `body`.
fn on_chat(body: &str, answer: Answer) -> Answer {
    let when = When {
        path: Some(ROUTE.to_owned()),
        body_contains: Some(body.to_owned()),
        ..When::default()
    };
    Answer { when, times: 0, ..answer }
}

/// Answer that fails a request to any other route.
fn refusal() -> Answer {
    Answer { times: 0, status: 500, ..Answer::events(vec![Scripted::text(0, "{}")]) }
}

#[test]
fn a_chat_scenario_sends_messages_and_tools_and_its_record_names_the_route() {
    let calls = Answer::steady(Steady {
        shape: Shape::ToolCall,
        first_us: 10_000,
        gap_us: 2_000,
        ..Steady::default()
    });
    let messages = r#""messages":[{"role":"user","content":"w"#;
    let tools = r#""name":"f","parameters":{"type":"object"}},"type":"function"}]"#;
    let asked = [messages, tools]
        .map(|body| Exchange::playing(script(vec![on_chat(body, calls.clone()), refusal()])));
    for exchange in &asked {
        let workspace = workspace();
        let found = run(&workspace, exchange);
        assert_eq!(found.failure, None, "{:?}", found.validity);
        assert_ne!(found.validity.verdict, ValidityVerdict::Invalid, "{:?}", found.validity);
        let reasons = found.validity.reasons.join("\n");
        assert!(
            !reasons.contains("retokenized") && !reasons.contains("prompt-length"),
            "{reasons}"
        );
        let facts = &found.scenario;
        assert_eq!(facts.route.as_deref(), Some(ROUTE));
        assert_eq!(facts.prompt_form, Some(PromptForm::Text));
        let counts = found.counts.expect("counts");
        assert_eq!(counts.requests_ok, Some(REQUESTS));
        assert_eq!(counts.input_tokens, Some(8 * REQUESTS), "without the chat template");
        assert_eq!(counts.output_tokens_reported, counts.output_tokens_requested);
        assert_eq!(counts.output_tokens_retokenized, None, "the text is a part of the calls");
    }
}

#[test]
fn other_scenarios_stay_on_the_engines_route() {
    let found = Workspace::new().run(&server(Vec::new()), &[]).1;
    assert_eq!(found.scenario.route.as_deref(), Some("/v1/completions"));
    assert_eq!(found.scenario.prompt_form, Some(PromptForm::TokenIds));
}

#[test]
fn tokens_of_the_chat_template_may_come_from_the_prefix_cache() {
    let cached = |tokens: u64| {
        let data = |value: Value| format!("data: {value}\n\n");
        let text = |n: u64| json!({"choices": [{"index": 0, "delta": {"content": " t"}, "token_ids": [n]}]});
        let usage = json!({"choices": [], "usage": {
            "prompt_tokens": 308, "completion_tokens": 5,
            "prompt_tokens_details": {"cached_tokens": tokens},
        }});
        let mut events: Vec<Scripted> =
            (1..=5).map(|n| Scripted::text(n * 2_000, data(text(n)))).collect();
        events.push(Scripted::text(10_000, data(usage)));
        events.push(Scripted::text(10_000, "data: [DONE]\n\n"));
        let mut script = script(vec![on_chat("", Answer::events(events)), refusal()]);
        script.routes.insert("/metrics".into(), Route::of(200, json!("")));
        let found = run(&workspace(), &Exchange::playing(script));
        (found.cache.expect("known").expected_hit_tokens, found.validity.reasons.join("\n"))
    };
    let (expected, reasons) = cached(288);
    assert_eq!(expected, Some(300 * REQUESTS), "{reasons}");
    assert!(!reasons.contains("prefix cache"), "{reasons}");
    let (_, reasons) = cached(308);
    assert!(reasons.contains("prompt tokens came from the prefix cache"), "{reasons}");
}

#[test]
fn an_engine_without_a_chat_route_is_refused() {
    let workspace = workspace();
    let engine = fs::read_to_string(workspace.path("redline.toml")).expect("the engine file");
    let without = engine.replace(&format!("chat_route = \"{ROUTE}\"\n"), "");
    assert_ne!(without, engine);
    workspace.write("redline.toml", &without);
    let exchange = server(Vec::new());
    let mut command = workspace.run_flags(&url(&exchange));
    let output = command.output().expect("runs");
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("`redline.toml`") && said.contains("`request.chat_route`"), "{said}");
}

#[test]
fn a_saved_plan_of_a_chat_scenario_has_text_and_is_sent_to_the_chat_route() {
    let workspace = workspace();
    let mut command = workspace.bench();
    command.args(["plan", "--scenario", "short.toml", "--dataset", "rows.json"]);
    command.args(["--tokenizer", "tiny.json", "--out", "plan.json"]);
    let output = command.output().expect("runs");
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let exchange = Exchange::playing(script(vec![
        on_chat("\"tools\":[", Answer::steady(Steady { shape: Shape::Chat, ..Steady::default() })),
        refusal(),
    ]));
    let mut command = workspace.bench();
    command.args([
        "run",
        "--url",
        &url(&exchange),
        "--engine",
        "redline.toml",
        "--out",
        "out.json",
    ]);
    let output =
        command.args(["--plan", "plan.json", "--tokenizer", "tiny.json"]).output().expect("runs");
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let mut command = workspace.bench();
    command.args(["alternate", "--baseline-url", &url(&exchange), "--candidate-url"]);
    command.args([&*url(&exchange), "--baseline-engine", "redline.toml", "--candidate-engine"]);
    command.args(["redline.toml", "--scenario", "short.toml", "--dataset", "rows.json"]);
    command.args(["--tokenizer", "tiny.json", "--pairs", "2", "--out", "slices.json"]);
    let output = command.output().expect("runs");
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let text = fs::read(workspace.path("slices.json")).expect("slices");
    let found: Alternation = serde_json::from_slice(&text).expect("an alternation");
    assert_eq!(found.scenario.route.as_deref(), Some(ROUTE));
    assert!(found.slices.iter().all(|slice| slice.requests_failed == 0));
}
