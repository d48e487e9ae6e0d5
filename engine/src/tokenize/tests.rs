//! Tests of tokenizers, detokenizers and chat templates.

use std::path::Path;

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::tiny_gguf::{Writer, tiny_llama_gguf};
use engine_weights::gguf::Value as Meta;
use engine_weights::{Checkpoint, ModelSource};

fn from_gguf(bytes: &[u8]) -> Result<Option<Tokenizer>, TokenizerError> {
    let header = engine_weights::gguf::parse(Path::new("tiny.gguf"), bytes).unwrap();
    Tokenizer::load(&ConfigSource::Gguf(header.metadata))
}

fn tiny() -> Tokenizer {
    from_gguf(&tiny_llama_gguf(1)).unwrap().unwrap()
}

/// Builds a GGUF file with the metadata of a byte-level tokenizer: the pre-tokenizer `pre`, these
/// tokens and merges, and the entries `more`.
fn metadata(pre: &str, tokens: &[&str], merges: &[&str], more: &[(&str, Meta)]) -> Vec<u8> {
    let texts = |texts: &[&str]| Meta::Texts(texts.iter().map(|t| (*t).to_owned()).collect());
    let mut file = Writer::default();
    file.value("tokenizer.ggml.model", Meta::Text("gpt2".to_owned()))
        .value("tokenizer.ggml.pre", Meta::Text(pre.to_owned()))
        .value("tokenizer.ggml.tokens", texts(tokens))
        .value("tokenizer.ggml.merges", texts(merges));
    for (key, value) in more {
        file.value(*key, value.clone());
    }
    file.bytes()
}

#[test]
fn special_tokens_in_a_text_are_one_id_each() {
    let tokenizer = tiny();
    let ids = tokenizer.encode("<|im_start|>the<|im_end|>", true).unwrap();
    assert_eq!((ids[0], ids.len(), *ids.last().unwrap()), (1, 3, 2));
    assert_eq!(tokenizer.pieces.decode(&ids, false), "<|im_start|>the<|im_end|>");
    assert_eq!(tokenizer.decode(&ids), "the");
    assert_eq!(tokenizer.end_tokens(), [2]);
    assert_eq!(tokenizer.decode(&[1_000_000]), "");
}

#[test]
fn pre_tokenizers_cut_numbers_and_words_as_named() {
    let tokens = ["1", "2", "3", "4", "12", "123", "1234", "Ġ", "a", "Ġa", "!", "'", "S", "'S"];
    let merges = ["1 2", "12 3", "123 4", "Ġ a", "' S"];
    for (pre, text, want) in [
        ("gpt-2", "1234", vec!["1234"]),
        ("default", "1234", vec!["123", "4"]),
        ("smollm", "1234 a", vec!["1", "2", "3", "4", "Ġa"]),
        ("qwen2", "1234", vec!["1", "2", "3", "4"]),
        ("llama-bpe", "1234", vec!["123", "4"]),
        ("gpt-2", "a'S", vec!["a", "'", "S"]),
        ("qwen2", "a'S", vec!["a", "'S"]),
        ("qwen35", "a'S", vec!["a", "'S"]),
    ] {
        let tokenizer = from_gguf(&metadata(pre, &tokens, &merges, &[])).unwrap().unwrap();
        let ids = tokenizer.encode(text, true).unwrap();
        let got: Vec<&str> = ids.iter().map(|id| tokens[*id as usize]).collect();
        assert_eq!(got, want, "{pre}: {text}");
    }
}

#[test]
fn text_begins_with_bos_where_the_checkpoint_says_so() {
    let tokens = ["<s>", "a", "</s>"];
    let bos = ("tokenizer.ggml.bos_token_id", Meta::Unsigned(0));
    let eos = ("tokenizer.ggml.eos_token_id", Meta::Unsigned(2));
    let flag = |key, value| (key, Meta::Bool(value));
    let (add_bos, add_eos) = ("tokenizer.ggml.add_bos_token", "tokenizer.ggml.add_eos_token");
    let cases: [(&str, Vec<_>, &[u32]); 5] = [
        ("gpt-2", vec![bos.clone()], &[1]),
        ("gpt-2", vec![bos.clone(), flag(add_bos, true)], &[0, 1]),
        ("llama-bpe", vec![bos.clone()], &[0, 1]),
        ("llama-bpe", vec![bos.clone(), flag(add_bos, false)], &[1]),
        ("gpt-2", vec![bos, eos, flag(add_bos, true), flag(add_eos, true)], &[0, 1, 2]),
    ];
    for (pre, more, want) in cases {
        let tokenizer = from_gguf(&metadata(pre, &tokens, &[], &more)).unwrap().unwrap();
        assert_eq!(tokenizer.encode("a", true).unwrap(), want, "{pre} {more:?}");
        assert_eq!(tokenizer.encode("a", false).unwrap(), [1], "{pre} {more:?}");
    }
}

#[test]
fn tokenizers_that_cannot_be_used_are_named() {
    let eos = [("tokenizer.ggml.eos_token_id", Meta::Unsigned(9))];
    let template = [("tokenizer.chat_template", Meta::Text("{% if %}".to_owned()))];
    for (bytes, want) in [
        (metadata("klingon", &["a"], &[], &[]), "pre-tokenizer `klingon` is not supported"),
        (metadata("gpt-2", &["a"], &["ab"], &[]), "merge `ab` is not two tokens"),
        (metadata("gpt-2", &["a"], &["a b"], &[]), "failed to read the tokenizer"),
        (
            metadata("gpt-2", &["a"], &[], &eos),
            "`tokenizer.ggml.eos_token_id` is 9, but ids are below 1",
        ),
        (metadata("gpt-2", &["a"], &[], &template), "its chat template is wrong"),
    ] {
        let message = from_gguf(&bytes).expect_err(want).to_string();
        assert!(message.contains(want), "{message} should say: {want}");
    }
    assert!(from_gguf(&Writer::default().bytes()).unwrap().is_none(), "no tokenizer is no error");
}

#[test]
fn a_folder_with_the_rebuilt_tokenizer_has_the_same_ids_and_digest() {
    let bytes = tiny_llama_gguf(1);
    let header = engine_weights::gguf::parse(Path::new("tiny.gguf"), &bytes).unwrap();
    let parts = gguf::parts(&header.metadata).unwrap().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let write =
        |name: &str, content: &[u8]| std::fs::write(folder.path().join(name), content).unwrap();
    write("tokenizer.json", &parts.json);
    write("generation_config.json", br#"{"eos_token_id": [2, 0]}"#);
    write("chat_template.jinja", b"{{ bos_token }}{{ messages[0].content }}");
    write("tokenizer_config.json", br#"{"bos_token": {"content": "<B>"}, "chat_template": "no"}"#);
    let config = ConfigSource::Json {
        path: folder.path().join("config.json"),
        json: json!({"bos_token_id": 1, "eos_token_id": 2}),
    };
    let other = Tokenizer::load(&config).unwrap().unwrap();
    let tokenizer = tiny();
    let text = "The then, 42 naïve\n\n 機械";
    assert_eq!(other.encode(text, true).unwrap(), tokenizer.encode(text, true).unwrap());
    assert_eq!(other.sha256, tokenizer.sha256);
    assert_eq!((other.end_tokens(), other.bos_id), (&[0, 2][..], Some(1)));
    assert_eq!(render(&other, json!([{"role": "user", "content": "x"}])).unwrap(), "<B>x");
}

fn render(tokenizer: &Tokenizer, messages: Value) -> Result<String, TextError> {
    let input = Chat {
        messages: &messages,
        add_generation_prompt: true,
        tools: None,
        variables: Some(&json!({
            "enable_thinking": false, "definitions": [{"name": "f", "args": {"a": 1}}],
        })),
        now_unix_s: 951_782_400,
    };
    tokenizer.render_chat(&input)
}

#[test]
fn templates_print_what_hugging_face_prints() {
    for (template, want) in [
        (
            "{% for m in messages %}\n  {% if m.role %}\n{{ m.role }}\n  {% endif %}\n{% endfor %}",
            "user\n",
        ),
        ("{{ definitions | tojson }}", r#"[{"name": "f", "args": {"a": 1}}]"#),
        ("{{ messages[0].content | tojson }}", "\"<a> & 'ß'\""),
        ("{{ {'a': [1]} | tojson(indent=2) }}", "{\n  \"a\": [\n    1\n  ]\n}"),
        ("{{ strftime_now('%d %b %Y') }}", "29 Feb 2000"),
        ("{{ messages[0].content.strip().split(' ')[0].upper() }}", "<A>"),
        ("{{ enable_thinking }}{{ absent }}|{{ messages[0].get('name', 'none') }}", "False|none"),
        (
            "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}",
            "1",
        ),
        ("{% for i in range(5) %}{% if i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}", "012"),
        ("{% generation %}{{ messages[0].content }}{% endgeneration %}", ""),
    ] {
        let more = [("tokenizer.chat_template", Meta::Text(template.to_owned()))];
        let Ok(tokenizer) = from_gguf(&metadata("gpt-2", &["a"], &[], &more)) else {
            assert!(want.is_empty(), "{template} does not compile");
            continue;
        };
        let messages = json!([{"role": "user", "content": "<a> & 'ß'"}]);
        assert_eq!(render(&tokenizer.unwrap(), messages).unwrap(), want, "{template}");
    }
}

#[test]
fn developers_are_system_to_templates_that_do_not_know_them() {
    let role = |template: &str| {
        let more = [("tokenizer.chat_template", Meta::Text(template.to_owned()))];
        let tokenizer = from_gguf(&metadata("gpt-2", &["a"], &[], &more)).unwrap().unwrap();
        render(&tokenizer, json!([{"role": "developer", "content": "x"}])).unwrap()
    };
    assert_eq!(role("{{ messages[0].role }}"), "system");
    assert_eq!(role("{% if messages[0].role == 'developer' %}yes{% endif %}"), "yes");
}

#[test]
fn filters_of_templates_that_take_a_size_still_do_what_they_say() {
    let template = "{{ [1, 2, 3] | batch(2, 0) | list }} {{ [1, 2, 3] | slice(2) | list }} \
                    {{ 'a\nb' | indent(width=2, first=true) }} {{ 'a\nb' | indent(1) }} \
                    {{ '%3d %s 2024' | format(5, 'x') }} {{ '{:>3} {}'.format(5, 2024) }} \
                    {{ 6 is divisibleby 3 }}";
    let more = [("tokenizer.chat_template", Meta::Text(template.to_owned()))];
    let tokenizer = from_gguf(&metadata("gpt-2", &["a"], &[], &more)).unwrap().unwrap();
    let rendered = render(&tokenizer, json!([{"role": "user", "content": "x"}])).unwrap();
    assert_eq!(rendered, "[[1, 2], [3, 0]] [[1, 2], [3]]   a\n  b a\n b   5 x 2024   5 2024 True");
}

#[test]
fn a_template_may_refuse_and_may_not_write_without_end() {
    let with = |template: &str| {
        let more = [("tokenizer.chat_template", Meta::Text(template.to_owned()))];
        let tokenizer = from_gguf(&metadata("gpt-2", &["a"], &[], &more)).unwrap().unwrap();
        render(&tokenizer, json!([{"role": "user", "content": "x"}]))
    };
    let refused =
        with("{% if messages %}{{ raise_exception('no ' + messages[0].role) }}{% endif %}");
    assert_eq!(refused.unwrap_err().to_string(), "the chat template refused the messages: no user");
    for endless in [
        "{% for a in range(9999) %}{% for b in range(999) %}{{ 'xxxxxxxx' * 99 }}{% endfor %}{% endfor %}",
        "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}",
        "{% set ns = namespace(n='x') %}{% for a in range(99) %}{% set ns.n = ns.n * 9 %}{% endfor %}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{{ messages.absent.more }}",
        "{{ [1] | batch(10**9, 0) | list | length }}",
        "{{ [1] | slice(10**9) | list | length }}",
        "{{ 'a\nb' | indent(10**9) | length }}",
        "{{ 'a\nb' | indent(width=10**9) | length }}",
        "{{ '%999999999d' | format(1) | length }}",
        "{{ '{:999999999}'.format(1) | length }}",
        "{{ 1 is divisibleby 0 }}",
    ] {
        let error = with(endless).unwrap_err().to_string();
        assert!(error.starts_with("failed to render the chat template: "), "{endless}: {error}");
    }
}

#[test]
fn expressions_of_any_depth_are_compiled_or_refused() {
    let load = |template: String| {
        let more = [("tokenizer.chat_template", Meta::Text(template))];
        from_gguf(&metadata("gpt-2", &["a"], &[], &more)).map(|_| ())
    };
    for (start, part, end) in [
        ("", "1+", "1"),
        ("", "not ", "1"),
        ("messages", ".a", ""),
        ("'a'", "|upper", ""),
        ("", "(", ""),
    ] {
        let parts = part.repeat(120_000 / part.len());
        let ended = load(format!("{{{{ {start}{parts}{end} }}}}"));
        assert!(
            ended.is_ok() || ended.unwrap_err().to_string().contains("chat template"),
            "{part}"
        );
    }
    let long = load("x".repeat(200_000)).unwrap_err().to_string();
    assert!(long.contains("it has more than 131072 bytes"), "{long}");
}

#[test]
fn a_tokenizer_on_which_its_library_panics_is_refused() {
    let model = json!({
        "type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"],
        "continuing_subword_prefix": "##",
    });
    let json = json!({"version": "1.0", "added_tokens": [], "model": model}).to_string();
    let parts = Parts {
        json: json.into_bytes(),
        template: None,
        bos_id: None,
        bos_token: None,
        eos_token: None,
        end_ids: vec![0],
    };
    let error = Tokenizer::new(Path::new("tokenizer.json"), parts).unwrap_err().to_string();
    assert!(error.contains("the tokenizer library panicked on it"), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_stream_gives_what_the_whole_gives(ids in prop::collection::vec(0u32..267, 0..60)) {
        let tokenizer = tiny();
        let mut stream = tokenizer.detokenizer(false);
        let mut text: String = ids.iter().map(|id| stream.push(*id)).collect();
        text += &stream.finish();
        prop_assert_eq!(text, tokenizer.decode(&ids));
    }

    #[test]
    fn no_text_has_fewer_tokens_than_the_bound(text in "(\\PC{0,40}|[a-e ]{0,40}|<\\|im_end\\|>){0,3}") {
        let tokenizer = tiny();
        let ids = tokenizer.encode(&text, false).unwrap();
        prop_assert!(tokenizer.fewest_tokens(&text, usize::MAX) <= ids.len(), "{:?}", text);
    }

    #[test]
    fn text_survives_a_round_trip_and_a_stream_never_splits_a_character(text in "\\PC{0,40}") {
        let tokenizer = tiny();
        let ids = tokenizer.encode(&text, false).unwrap();
        prop_assert_eq!(&tokenizer.pieces.decode(&ids, false), &text);
        let mut stream = tokenizer.detokenizer(true);
        let mut streamed = String::new();
        for id in ids {
            streamed += &stream.push(id);
            prop_assert!(text.starts_with(&streamed), "{:?} of {:?}", streamed, text);
        }
        prop_assert_eq!(streamed, text);
    }
}

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

#[test]
fn smollm2_prompts_have_the_ids_of_llama_cpp() {
    let Some(path) = fixtures::cached(fixtures::MODEL) else { return };
    let golden = std::fs::read(fixtures::fixture("golden/smollm2-llama-cpp.json")).unwrap();
    let golden: Value = serde_json::from_slice(&golden).unwrap();
    let source = ModelSource::find(path.to_str().unwrap(), None).unwrap();
    let checkpoint = Checkpoint::open(&source.files, None).unwrap();
    let tokenizer = Tokenizer::load(&checkpoint.config).unwrap().unwrap();
    for case in golden["cases"].as_array().unwrap() {
        let text = match case.get("chat") {
            None => case["text"].as_str().unwrap().to_owned(),
            Some(chat) => {
                let messages = serde_json::json!([{"role": "user", "content": chat}]);
                let input = Chat {
                    messages: &messages,
                    add_generation_prompt: true,
                    tools: None,
                    variables: None,
                    now_unix_s: 0,
                };
                let rendered = tokenizer.render_chat(&input).unwrap();
                assert_eq!(rendered, case["rendered"].as_str().unwrap());
                rendered
            }
        };
        let got = tokenizer.encode(&text, true).unwrap();
        assert_eq!(got, ids(&case["prompt"]), "{text:?}");
        assert_eq!(tokenizer.pieces.decode(&got, false), text);
    }
}
