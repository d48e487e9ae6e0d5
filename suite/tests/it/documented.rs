//! Command lines from the documentation of the tools that `redline-bench serving` replaces, word for
//! word; small numbers and local files follow them, in place of the page's.

use crate::command_lines::{planned, served};
use crate::workspace::{Workspace, server, stderr};

/// Command line of a tool's documentation, word for word.
#[derive(Clone, Copy)]
struct Documented {
    /// Page or help text.
    source: &'static str,
    line: &'static str,
    /// Flags that follow the line: smaller numbers, and local files in place of the page's.
    instead: &'static str,
    /// Number of answered requests.
    requests: u64,
    /// Number of output tokens that they ask for; `None` where lengths are drawn.
    tokens: Option<u64>,
}

const VLLM: &str = "vLLM, docs/benchmarking/cli.md";
const SGLANG: &str = "SGLang, docs/developer_guide/bench_serving.md";

const fn documented(
    source: &'static str,
    [line, instead]: [&'static str; 2],
    requests: u64,
    tokens: u64,
) -> Documented {
    Documented { source, line, instead, requests, tokens: Some(tokens) }
}

/// Lines of each tool that are served; the page's start of the command is left out.
const DOCUMENTED: &[Documented] = &[
    documented(
        VLLM,
        [
            "--backend vllm --model NousResearch/Hermes-3-Llama-3.1-8B --endpoint /v1/completions \
             --dataset-name sharegpt --dataset-path ShareGPT_V3_unfiltered_cleaned_split.json \
             --num-prompts 10",
            "--dataset-path rows.json",
        ],
        10,
        50,
    ),
    documented(
        VLLM,
        [
            "--port 9001 --save-result --save-detailed --backend vllm \
             --model meta-llama/Llama-3.1-8B-Instruct --endpoint /v1/completions \
             --dataset-name custom --dataset-path <path-to-your-data-jsonl> --skip-chat-template \
             --num-prompts 80 --max-concurrency 1 --temperature=0.3 --top-p=0.75 \
             --result-dir ./log/",
            "--dataset-path lines.jsonl --num-prompts 2",
        ],
        2,
        2 * 256,
    ),
    documented(
        VLLM,
        [
            "--model meta-llama/Meta-Llama-3-8B-Instruct --dataset-name hf \
             --dataset-path likaixin/InstructCoder --num-prompts 2048",
            "--num-prompts 2",
        ],
        2,
        2 * 200,
    ),
    documented(
        VLLM,
        [
            "--model Qwen/QwQ-32B --dataset-name hf --dataset-path philschmid/mt-bench \
             --num-prompts 80",
            "--num-prompts 2",
        ],
        2,
        2 * 256,
    ),
    documented(
        VLLM,
        [
            "--backend vllm --model NousResearch/Hermes-3-Llama-3.1-8B --endpoint /v1/completions \
             --dataset-name sharegpt --dataset-path ShareGPT_V3_unfiltered_cleaned_split.json \
             --top-k 10 --top-p 0.9 --temperature 0.5 --num-prompts 10",
            "--dataset-path rows.json",
        ],
        10,
        50,
    ),
    documented(
        SGLANG,
        [
            "--backend sglang --host 127.0.0.1 --port 30000 --num-prompts 1000 \
             --model meta-llama/Llama-3.1-8B-Instruct",
            "--dataset-path rows.json --num-prompts 10",
        ],
        10,
        50,
    ),
    Documented {
        source: SGLANG,
        line: "--backend sglang --dataset-name random --num-prompts 3000 --random-input 1024 \
               --random-output 1024 --random-range-ratio 0.5",
        instead: "--dataset-path rows.json --num-prompts 6 --random-input 9 --random-output 3",
        requests: 6,
        tokens: None,
    },
    Documented {
        source: SGLANG,
        line: "--backend sglang --host 127.0.0.1 --port 30000 \
               --model meta-llama/Llama-3.1-8B-Instruct --dataset-name random \
               --random-input-len 1024 --random-output-len 1024 --random-range-ratio 0.5 \
               --num-prompts 2000 --request-rate 100 --max-concurrency 512 \
               --output-file sglang_random.jsonl --output-details",
        instead: "--dataset-path rows.json --num-prompts 6 --random-input-len 9 \
                  --random-output-len 3",
        requests: 6,
        tokens: None,
    },
    // The page's line, with the flag that its refusal asks for.
    documented(
        SGLANG,
        [
            OF_TWO_TOOLS,
            "--tool sglang --dataset-path rows.json --num-prompts 4 --sharegpt-output-len 4",
        ],
        4,
        16,
    ),
    documented(
        SGLANG,
        [
            "--backend sglang --host 127.0.0.1 --port 30000 \
             --model meta-llama/Llama-3.1-8B-Instruct --dataset-name generated-shared-prefix \
             --gsp-num-groups 64 --gsp-prompts-per-group 16 --gsp-system-prompt-len 2048 \
             --gsp-question-len 128 --gsp-output-len 256 --num-prompts 1024",
            "--gsp-num-groups 2 --gsp-prompts-per-group 3 --gsp-system-prompt-len 6 \
             --gsp-question-len 3 --gsp-output-len 2",
        ],
        6,
        12,
    ),
    Documented {
        source: SGLANG,
        line: "--backend sglang --host 127.0.0.1 --port 30000 \
               --model meta-llama/Llama-3.1-8B-Instruct --dataset-name random --tokenize-prompt \
               --random-input-len 2048 --random-output-len 256 --random-range-ratio 0.2",
        instead: "--dataset-path rows.json --num-prompts 6 --random-input-len 9 \
                  --random-output-len 3",
        requests: 6,
        tokens: None,
    },
    // Prompts of `random` get no chat template, whatever the flags say.
    Documented {
        source: SGLANG,
        line: "--backend vllm-chat --base-url http://127.0.0.1:8000 \
               --model meta-llama/Llama-3.1-8B-Instruct --dataset-name random --num-prompts 500 \
               --apply-chat-template",
        instead: "--dataset-path rows.json --num-prompts 6 --random-input-len 9 \
                  --random-output-len 3",
        requests: 6,
        tokens: None,
    },
    documented(
        "LMDeploy, docs/en/benchmark/benchmark.md",
        [
            "--backend lmdeploy --num-prompts 5000 \
             --dataset-path ShareGPT_V3_unfiltered_cleaned_split.json",
            "--dataset-path rows.json --num-prompts 10",
        ],
        10,
        50,
    ),
];

/// SGLang's page has this line for vLLM's server, and vLLM's tool would take it too.
const OF_TWO_TOOLS: &str = "--backend vllm --base-url http://127.0.0.1:8000 \
    --model meta-llama/Llama-3.1-8B-Instruct --dataset-name sharegpt --num-prompts 1000 \
    --sharegpt-output-len 256";

/// Lines that are refused, with the flags that follow them and the error.
const REFUSED: &[(&str, &str, &str, &str)] = &[
    (SGLANG, OF_TWO_TOOLS, "", "hint: give `--tool vllm`, `--tool sglang` or `--tool lmdeploy`"),
    (
        SGLANG,
        "--backend vllm --base-url http://127.0.0.1:8000 --num-prompts 1000 \
         --model meta-llama/Llama-3.1-8B-Instruct",
        "",
        "hint: give `--tool vllm` or `--tool sglang`",
    ),
    (
        SGLANG,
        "--backend sglang --host 127.0.0.1 --port 30000 --num-prompts 1000 \
         --model meta-llama/Llama-3.1-8B-Instruct",
        "",
        "hint: `hf download --repo-type dataset anon8231489123/ShareGPT_Vicuna_unfiltered",
    ),
    (
        SGLANG,
        "--backend sglang --host 127.0.0.1 --port 30000 \
         --model meta-llama/Llama-3.1-8B-Instruct --profile --flush-cache",
        "",
        "`--profile` is not supported",
    ),
    (
        SGLANG,
        "--backend trt --base-url http://127.0.0.1:8000 --model your-trt-llm-model \
         --dataset-name random --num-prompts 100 --disable-ignore-eos",
        "",
        "`--backend trt` is not supported\nhint: ",
    ),
    (
        SGLANG,
        "--backend sglang-oai-chat --dataset-name image --num-prompts 500 --image-count 3 \
         --image-resolution 720p --random-input-len 512 --random-output-len 512",
        "",
        "`--dataset-name image` is not supported\nhint: only text is sent",
    ),
    (
        VLLM,
        "--backend vllm --model meta-llama/Llama-3.1-8B-Instruct --endpoint /v1/completions \
         --dataset-name sharegpt --dataset-path ShareGPT_V3_unfiltered_cleaned_split.json \
         --num-prompts 100 --plot-timeline --timeline-itl-thresholds 2,5 --plot-dataset-stats \
         --save-result",
        "",
        "`--plot-timeline` is not supported",
    ),
    (
        VLLM,
        "--model NousResearch/Hermes-3-Llama-3.1-8B --dataset-name hf --dataset-path openai/gsm8k \
         --num-prompts 80",
        "",
        "does not know the rows of `openai/gsm8k`",
    ),
];

/// Lines with flags of the tools' help texts, and of older pages.
const OTHERS: &[(&str, u64, u64)] = &[
    (
        "--backend openai --model m --dataset-name random --random-input-len 9 \
         --random-output-len 3 --num-prompts 6 --request-rate 500 --burstiness 0.5 \
         --max-concurrency 3",
        6,
        18,
    ),
    (
        "--backend openai --model m --dataset-name prefix_repetition --num-prompts 6 \
         --prefix-repetition-prefix-len 4 --prefix-repetition-suffix-len 4 \
         --prefix-repetition-num-prefixes 2 --prefix-repetition-output-len 3",
        6,
        18,
    ),
    ("--model m --random-input-len 9 --random-output-len 4 --num-prompts 5 --ignore-eos", 5, 20),
    (
        "--endpoint-type openai-comp --model m --endpoint /v1/completions --dataset-name sharegpt \
         --dataset-path rows.json --num-prompts 10",
        10,
        50,
    ),
    (
        "--backend vllm --model m --dataset-name custom --dataset-path lines.jsonl \
         --custom-skip-chat-template --num-prompts 2",
        2,
        2 * 256,
    ),
    (
        "--backend openai --model m --header x-additional-info=0.3.3 --dataset-name random \
         --random-input-len 9 --random-output-len 3 --num-prompts 5 --goodput ttft:5000 tpot:500 \
         --percentile-metrics ttft,tpot,itl,e2el --metric-percentiles 25,50,75",
        5,
        15,
    ),
    (
        "--backend vllm --model m --dataset-name sonnet --dataset-path sonnet.txt --num-prompts 6 \
         --sonnet-input-len 62 --sonnet-prefix-len 30 --sonnet-output-len 3",
        6,
        18,
    ),
    (
        "--backend openai --model m --dataset-name random --random-input-len 9 \
         --random-output-len 3 --num-prompts 6 --ramp-up-strategy linear --ramp-up-start-rps 100 \
         --ramp-up-end-rps 500 --max-concurrency 4 --save-result",
        6,
        18,
    ),
    (
        "--backend vllm --model m --dataset-name sharegpt --dataset-path rows.json \
         --num-prompts 10 --sharegpt-output-len 4 --apply-chat-template",
        10,
        40,
    ),
    (
        "--backend sglang --dataset-name random-ids --num-prompts 6 --random-input-len 9 \
         --random-output-len 3 --random-range-ratio 1 --output-file r.jsonl --output-details",
        6,
        18,
    ),
];

#[test]
fn documented_command_lines_send_what_their_tool_sends() {
    let exchange = server(Vec::new());
    let others = OTHERS.iter().map(|(line, requests, tokens)| {
        documented("flags of a help text", [line, ""], *requests, *tokens)
    });
    let all = DOCUMENTED.iter().copied().chain(others);
    for Documented { source, line, instead, requests, tokens } in all {
        let workspace = Workspace::new();
        let output = served(&workspace, &exchange, &format!("{line} {instead}"));
        assert_eq!(output.status.code(), Some(0), "{source}: {line}: {}", stderr(&output));
        let counts = planned(&workspace).counts.expect("counts");
        assert_eq!(counts.requests_ok, Some(requests), "{source}: {line}");
        if tokens.is_some() {
            assert_eq!(counts.output_tokens_requested, tokens, "{source}: {line}");
        }
    }
}

#[test]
fn documented_lines_that_would_measure_something_else_are_refused_with_a_way_out() {
    let exchange = server(Vec::new());
    for (source, line, instead, said) in REFUSED {
        let workspace = Workspace::new();
        let output = served(&workspace, &exchange, &format!("{line} {instead}"));
        assert_eq!(output.status.code(), Some(2), "{source}: {line}: {}", stderr(&output));
        assert!(stderr(&output).contains(said), "{source}: {line}: {}", stderr(&output));
    }
}
