//! Command lines of servers: the engine files yield, word by word, those on the published pages
//! that this suite replaces. The pages themselves are compared where they are available.

use std::fs;
use std::path::Path;

use campaign::server_spec::{CommandLine, Filling, ServerSettings, command_line, container_line};
use campaign::server_spec::{Contained, Container, Runtime, image_name};
use expect_test::expect;
use schema::engine::{EngineFile, parse};
use schema::target::Accelerator;
use shell_words::split as split_flags;

const VLLM: &str = "002_";
const SGLANG: &str = "004_";
const LMDEPLOY: &str = "000_";
const README: &str = "001_";
const LAB: &str = "003_";

/// A published command line: its page, and its first line, counted from 1.
struct Published {
    page: &'static str,
    line: usize,
    engine: &'static str,
    /// Release of the container image; `None` for a process.
    release: Option<&'static str>,
    model: &'static str,
    tp: u32,
    /// Environment variables that the engine file sets and the published command line does not.
    without: &'static [&'static str],
    flags: &'static [&'static str],
}

const fn of(page: &'static str, line: usize, model: &'static str, tp: u32) -> Published {
    Published { page, line, engine: "", release: None, model, tp, without: &[], flags: &[] }
}

const fn vllm(line: usize, model: &'static str, tp: u32) -> Published {
    Published { engine: "vllm", release: Some("v0.10.1"), ..of(VLLM, line, model, tp) }
}

const fn sglang(line: usize, model: &'static str, tp: u32) -> Published {
    Published { engine: "sglang", release: Some("v0.5.1"), ..of(SGLANG, line, model, tp) }
}

const fn lmdeploy(page: &'static str, line: usize, model: &'static str, tp: u32) -> Published {
    Published { engine: "lmdeploy", ..of(page, line, model, tp) }
}

const PUBLISHED: [Published; 18] = [
    vllm(45, "Qwen/Qwen3-8B", 1),
    vllm(249, "Qwen/Qwen3-32B", 2),
    Published { without: &["HF_HOME="], ..vllm(453, "Qwen/Qwen3-30B-A3B", 2) },
    vllm(656, "Qwen/Qwen3-235B-A22B", 8),
    vllm(860, "openai/gpt-oss-20b", 1),
    Published {
        without: &["HF_HOME=", "TRANSFORMERS_OFFLINE="],
        ..vllm(1064, "openai/gpt-oss-120b", 2)
    },
    sglang(39, "Qwen/Qwen3-8B", 1),
    sglang(241, "Qwen/Qwen3-32B", 2),
    sglang(443, "Qwen/Qwen3-30B-A3B", 2),
    sglang(645, "Qwen/Qwen3-235B-A22B", 8),
    sglang(847, "openai/gpt-oss-20b", 1),
    sglang(1051, "openai/gpt-oss-120b", 2),
    lmdeploy(LMDEPLOY, 32, "Qwen/Qwen3-8B", 1),
    lmdeploy(LMDEPLOY, 200, "Qwen/Qwen3-32B", 2),
    lmdeploy(LMDEPLOY, 368, "Qwen/Qwen3-30B-A3B", 2),
    lmdeploy(LMDEPLOY, 536, "Qwen/Qwen3-235B-A22B", 8),
    lmdeploy(README, 55, "Qwen/Qwen3-8B", 1),
    Published {
        engine: "vllm",
        flags: &[
            "--reasoning-parser=qwen3",
            "--performance-mode=throughput",
            "--max-model-len=32768",
            "--max-num-seqs=512",
        ],
        ..of(LAB, 1, "Qwen/Qwen3.5-9B", 1)
    },
];

fn engine(id: &str) -> EngineFile {
    let path = format!("{}/../suite/engines/{id}.toml", env!("CARGO_MANIFEST_DIR"));
    parse(&fs::read_to_string(path).unwrap()).unwrap()
}

/// Builds the command line as the page shows it, without settings that the page leaves to the
/// engine.
fn line(published: &Published, runtime: Runtime) -> Vec<String> {
    let mut file = engine(published.engine);
    let flags: Vec<String> = published.flags.iter().map(|flag| (*flag).to_owned()).collect();
    let filling = Filling {
        tp: published.tp,
        host: published.release.and(Some("0.0.0.0")),
        port: None,
        observed: false,
        flags: &flags,
        ..Filling::measured(published.engine, Path::new(published.engine), published.model, 0)
    };
    let Some(release) = published.release else {
        return command_line(&file, filling).unwrap().argv;
    };
    if let Some(image) = &mut file.launch.image {
        let left_out =
            |variable: &String| published.without.iter().any(|w| variable.starts_with(w));
        image.env.retain(|variable| !left_out(variable));
    }
    let image = file.launch.image.as_ref().unwrap().name_of(release);
    let contained = Contained { runtime, image, file: None, accelerator: Accelerator::Cuda };
    let container = Container {
        contained: &contained,
        name: published.engine,
        hub: "$HF_HOME",
        hub_cache: None,
        model: None,
        env: &[],
        gpus: true,
    };
    container_line(&file, filling, &container).unwrap().argv
}

/// Words of the command that begins in `line` of a page; a line that ends in `\` continues on the
/// next.
fn words_at(page: &str, line: usize) -> Vec<String> {
    let first = page.lines().nth(line - 1).unwrap();
    // One page has lost its line breaks: the command stands between other words.
    if let Some((_, rest)) = first.split_once("```bash vllm serve ") {
        let (command, _) = rest.split_once(" ```").unwrap();
        return split_flags(&format!("vllm serve {command}").replace('\\', "")).unwrap();
    }
    let mut text = String::new();
    for line in page.lines().skip(line - 1) {
        text += line.trim_end_matches('\\');
        if !line.ends_with('\\') {
            break;
        }
    }
    split_flags(&text).unwrap()
}

/// Text of the page whose file name begins with `number`; reports a skip and returns `None` without
/// the pages.
fn page_of(number: &str) -> Option<String> {
    Some(fs::read_to_string(fixtures::published_page(number)?).unwrap())
}

#[test]
fn every_published_launch_comes_out_of_its_engine_file() {
    for published in &PUBLISHED {
        let Some(page) = page_of(published.page) else { return };
        let expected = words_at(&page, published.line);
        assert_eq!(
            line(published, Runtime::Docker),
            expected,
            "{}:{}",
            published.page,
            published.line
        );
    }
}

/// A line with shell variables is a template, not a command line of a server.
#[test]
fn no_launch_of_a_page_is_forgotten() {
    for name in [VLLM, SGLANG, LMDEPLOY, README] {
        let Some(page) = page_of(name) else { return };
        let begins =
            |text: &str| text.starts_with("docker run") || text.starts_with("lmdeploy serve");
        let lines = page.lines().enumerate().filter(|(_, text)| begins(text));
        let found: Vec<usize> = lines
            .map(|(index, _)| index + 1)
            .filter(|line| !words_at(&page, *line).iter().any(|word| word.contains("${")))
            .collect();
        let known: Vec<usize> =
            PUBLISHED.iter().filter(|p| p.page == name).map(|p| p.line).collect();
        assert_eq!(found, known, "{name}");
    }
}

#[test]
fn launches_read_as_on_the_pages() {
    let shown = |index: usize, runtime| line(&PUBLISHED[index], runtime).join(" ");
    expect!["docker run --runtime nvidia --gpus all -v $HF_HOME:/root/.cache/huggingface_hub --env HF_HOME=/root/.cache/huggingface_hub --env VLLM_LOGGING_LEVEL=ERROR --env TRANSFORMERS_OFFLINE=1 -p 8000:8000 --net host --ipc=host --rm --name vllm vllm/vllm-openai:v0.10.1 --model Qwen/Qwen3-8B --tensor-parallel-size 1 --host 0.0.0.0"]
        .assert_eq(&shown(0, Runtime::Docker));
    expect!["docker run --runtime nvidia --gpus all -v $HF_HOME:/root/.cache/huggingface_hub --env HF_HOME=/root/.cache/huggingface_hub --env TRANSFORMERS_OFFLINE=1 -p 30000:30000 --net host --ipc=host --rm --name sglang lmsysorg/sglang:v0.5.1-cu126 python3 -m sglang.launch_server --model-path Qwen/Qwen3-235B-A22B --tp 8 --host 0.0.0.0"]
        .assert_eq(&shown(9, Runtime::Docker));
    expect!["podman run --device nvidia.com/gpu=all -v $HF_HOME:/root/.cache/huggingface_hub --env HF_HOME=/root/.cache/huggingface_hub --env VLLM_LOGGING_LEVEL=ERROR --env TRANSFORMERS_OFFLINE=1 -p 8000:8000 --net host --ipc=host --rm --name vllm vllm/vllm-openai:v0.10.1 --model Qwen/Qwen3-8B --tensor-parallel-size 1 --host 0.0.0.0"]
        .assert_eq(&shown(0, Runtime::Podman));
    expect!["apptainer run --nv --bind $HF_HOME:/root/.cache/huggingface_hub --env HF_HOME=/root/.cache/huggingface_hub --env VLLM_LOGGING_LEVEL=ERROR --env TRANSFORMERS_OFFLINE=1 docker://vllm/vllm-openai:v0.10.1 --model Qwen/Qwen3-8B --tensor-parallel-size 1 --host 0.0.0.0"]
        .assert_eq(&shown(0, Runtime::Apptainer));
    expect!["lmdeploy serve api_server Qwen/Qwen3-8B"].assert_eq(&shown(12, Runtime::Docker));
    expect!["lmdeploy serve api_server Qwen/Qwen3-32B --tp 2"]
        .assert_eq(&shown(13, Runtime::Docker));
    expect!["vllm serve Qwen/Qwen3.5-9B --reasoning-parser=qwen3 --performance-mode=throughput --max-model-len=32768 --max-num-seqs=512"]
        .assert_eq(&shown(17, Runtime::Docker));
}

/// Command line in an engine's own documentation.
struct Documented {
    engine: &'static str,
    /// True for the words after the name of the container image.
    in_image: bool,
    line: &'static str,
    /// Page of the documentation, or file of the engine's repository.
    source: &'static str,
}

const DOCUMENTED: [Documented; 11] = [
    Documented {
        engine: "lmdeploy",
        in_image: false,
        line: "lmdeploy serve api_server internlm/internlm2_5-7b-chat --server-port 23333",
        source: "docs/en/llm/api_server.md",
    },
    Documented {
        engine: "lmdeploy",
        in_image: true,
        line: "lmdeploy serve api_server internlm/internlm2_5-7b-chat",
        source: "docs/en/llm/api_server.md",
    },
    Documented {
        engine: "sglang",
        in_image: false,
        line: "python3 -m sglang.launch_server --model-path meta-llama/Llama-3.1-8B-Instruct \
               --host 0.0.0.0 --port 30000",
        source: "docs.sglang.io, quickstart",
    },
    Documented {
        engine: "sglang",
        in_image: true,
        line: "python3 -m sglang.launch_server --model-path meta-llama/Llama-3.1-8B-Instruct \
               --host 0.0.0.0 --port 30000",
        source: "docs.sglang.io, quickstart",
    },
    Documented {
        engine: "vllm",
        in_image: false,
        line: "vllm serve NousResearch/Hermes-3-Llama-3.1-8B",
        source: "docs/benchmarking/cli.md",
    },
    Documented {
        engine: "llama.cpp",
        in_image: false,
        line: "./llama-server -m models/7B/ggml-model.gguf -c 2048",
        source: "tools/server/README.md",
    },
    Documented {
        engine: "vllm",
        in_image: true,
        line: "--model Qwen/Qwen3-0.6B",
        source: "docs/deployment/docker.md",
    },
    Documented {
        engine: "tensorrt-llm",
        in_image: false,
        line: "trtllm-serve TinyLlama/TinyLlama-1.1B-Chat-v1.0",
        source: "docs/source/quick-start-guide.md",
    },
    Documented {
        engine: "mistralrs",
        in_image: false,
        line: "mistralrs serve -m Qwen/Qwen3-4B",
        source: "docs/CLI.md",
    },
    Documented {
        engine: "mistralrs",
        in_image: true,
        line: "serve -m Qwen/Qwen3-4B",
        source: "docs/src/content/docs/guides/deploy/docker.md",
    },
    Documented {
        engine: "openvino",
        in_image: true,
        line: "--rest_port 8000 --model_path /models/Qwen/Qwen3-8B --model_name Qwen/Qwen3-8B",
        source: "demos/continuous_batching",
    },
];

/// Short forms of options in the same pages, each with the long one that an engine file has.
const SHORT: [(&str, &str); 2] = [("-m", "--model"), ("-c", "--ctx-size")];

/// Words before the first option or placeholder: the program and its verbs.
fn verbs<'a>(words: impl Iterator<Item = &'a String>) -> Vec<&'a String> {
    words.take_while(|word| !word.starts_with("--") && !word.contains(['{', '/'])).collect()
}

#[test]
fn documented_command_lines_have_the_words_of_the_engine_files() {
    for Documented { engine: id, in_image, line, source } in &DOCUMENTED {
        let file = engine(id);
        let launch = &file.launch;
        let argv = if *in_image { &launch.image.as_ref().unwrap().argv } else { &launch.argv };
        // An engine that is built here runs under the name of its first program.
        let program = file.source.as_ref().and_then(|source| source.programs.first());
        let program = program.map_or("{binary}", String::as_str);
        let argv: Vec<String> = argv.iter().map(|word| word.replace("{binary}", program)).collect();
        let documented = split_flags(line.trim_start_matches("./")).unwrap();
        let begins = verbs(argv.iter());
        // Options without a fixed place may follow in the documentation.
        assert!(verbs(documented.iter()).starts_with(&begins), "{source}: {line}");
        let settings = &launch.settings;
        let settings = [&settings.tp, &settings.host, &settings.port].into_iter().flatten();
        let settings = settings.flat_map(|one| &one.flags).chain(&launch.load);
        let known: Vec<&str> = argv.iter().chain(settings).map(String::as_str).collect();
        for option in documented.iter().filter(|word| word.starts_with('-')) {
            let long = SHORT.iter().find(|(short, _)| short == option).map(|(_, long)| *long);
            let is_known =
                known.contains(&option.as_str()) || long.is_some_and(|long| known.contains(&long));
            assert!(is_known, "`{option}` of {source} is not in {id}.toml");
        }
    }
}

/// Command line of an engine with every setting that a campaign may request.
fn measured_line(id: &str) -> CommandLine {
    let settings =
        ServerSettings { seed: None, context_tokens: Some(8192), memory_percent: Some(85) };
    let flags = ["--extra".to_owned()];
    let filling = Filling {
        tp: 2,
        random_weights: true,
        settings: &settings,
        flags: &flags,
        ..Filling::measured(id, Path::new("/opt/bin/x"), "/home/a/m", 4711)
    };
    command_line(&engine(id), filling).unwrap()
}

#[test]
fn a_measured_launch_says_where_it_listens_and_what_was_asked_for() {
    for (id, expected) in [
        (
            "vllm",
            expect![
                "vllm serve {model} --tensor-parallel-size 2 --host 127.0.0.1 --port {port} --max-model-len 8192 --gpu-memory-utilization 0.85 --load-format dummy --extra"
            ],
        ),
        (
            "sglang",
            expect![
                "python3 -m sglang.launch_server --model-path {model} --tp 2 --port {port} --context-length 8192 --mem-fraction-static 0.85 --load-format dummy --enable-metrics --enable-cache-report --extra"
            ],
        ),
        (
            "lmdeploy",
            expect![
                "lmdeploy serve api_server {model} --tp 2 --server-name 127.0.0.1 --server-port {port} --session-len 8192 --cache-max-entry-count 0.85 --enable-metrics --extra"
            ],
        ),
        (
            "tensorrt-llm",
            expect![
                "trtllm-serve {model} --tp_size 2 --host 127.0.0.1 --port {port} --max_seq_len 8192 --kv_cache_free_gpu_memory_fraction 0.85 --extra"
            ],
        ),
    ] {
        let line = measured_line(id);
        expected.assert_eq(&line.recorded.join(" "));
        assert_eq!(
            line.argv.join(" ").replace("/home/a/m", "{model}").replace("4711", "{port}"),
            line.recorded.join(" ")
        );
    }
}

#[test]
fn no_path_and_no_port_enters_the_recorded_command_line() {
    let file = engine("redline");
    let flags = ["--threads".to_owned(), "2".to_owned()];
    let with = Filling {
        tp: 2,
        flags: &flags,
        ..Filling::measured("redline", Path::new("/home/a/bin/redline"), "/home/a/m.gguf", 4711)
    };
    let line = command_line(&file, with).unwrap();
    assert_eq!(
        line.argv.join(" "),
        "/home/a/bin/redline serve /home/a/m.gguf --tp 2 --port 4711 --threads 2"
    );
    assert_eq!(line.recorded.join(" "), "redline serve {model} --tp 2 --port {port} --threads 2");
    let line = command_line(&file, Filling { random_weights: true, ..with }).unwrap();
    assert_eq!(
        line.recorded.join(" "),
        "redline serve {model} --tp 2 --port {port} --load-format random --threads 2"
    );
}

#[test]
fn a_model_file_is_given_by_folder_and_name() {
    let model = "/home/a/m.gguf";
    let filling = Filling::measured("mistralrs", Path::new("mistralrs"), model, 4711);
    let line = command_line(&engine("mistralrs"), filling).unwrap();
    expect!["mistralrs serve --format gguf -m /home/a -f m.gguf --host 127.0.0.1 --port 4711"]
        .assert_eq(&line.argv.join(" "));
    expect!["mistralrs serve --format gguf -m {folder} -f {file} --host 127.0.0.1 --port {port}"]
        .assert_eq(&line.recorded.join(" "));
}

#[test]
fn a_container_is_recorded_without_its_name_and_its_folders() {
    let file = engine("vllm");
    let filling = Filling::measured("vllm", Path::new("vllm"), "/home/a/m", 4711);
    let image = "vllm/vllm-openai:v0.10.1".to_owned();
    let (runtime, accelerator) = (Runtime::Docker, Accelerator::Cuda);
    let contained = Contained { runtime, image, file: None, accelerator };
    let container = Container {
        contained: &contained,
        name: "redline-01jd",
        hub: "/home/a/.cache/huggingface",
        hub_cache: Some("/data/hub"),
        model: Some("/home/a/m"),
        env: &[],
        gpus: false,
    };
    let line = container_line(&file, filling, &container).unwrap();
    let argv = line.argv.join(" ");
    assert!(argv.contains("-v /home/a/m:/home/a/m:ro") && argv.contains("--name redline-01jd"));
    assert!(argv.contains("-p 4711:4711") && argv.contains("--port 4711"), "{argv}");
    let mounts = "-v /home/a/.cache/huggingface:/root/.cache/huggingface_hub \
                  -v /data/hub:/root/.cache/huggingface_hub/hub ";
    assert!(argv.contains(mounts), "{argv}");
    let recorded = line.recorded.join(" ");
    assert!(!["home", "data", "01jd"].iter().any(|word| recorded.contains(word)), "{recorded}");
    assert_eq!(container.removal().unwrap().join(" "), "docker rm --force redline-01jd");
    let file = Some("/home/a/.cache/redline/images/vllm.sqsh".into());
    let contained = Contained { runtime: Runtime::Enroot, file, ..contained.clone() };
    let container = Container { contained: &contained, hub_cache: None, gpus: true, ..container };
    let line = container_line(&engine("vllm"), filling, &container).unwrap();
    let mounts = "--mount /home/a/.cache/huggingface:/root/.cache/huggingface_hub:none:x-create=auto,bind \
                  --mount /home/a/m:/home/a/m:none:x-create=auto,bind,ro";
    assert!(line.argv.join(" ").contains(mounts), "{:?}", line.argv);
    expect!["enroot start --rw --env NVIDIA_VISIBLE_DEVICES=all --mount {hub}:/root/.cache/huggingface_hub:none:x-create=auto,bind --env HF_HOME=/root/.cache/huggingface_hub --env VLLM_LOGGING_LEVEL=ERROR --env TRANSFORMERS_OFFLINE=1 docker://vllm/vllm-openai:v0.10.1 --model {model} --tensor-parallel-size 1 --host 127.0.0.1 --port {port}"]
        .assert_eq(&line.recorded.join(" "));
    assert!(container.removal().is_none(), "it ends with its process");
}

#[test]
fn on_gpus_of_amd_the_image_for_them_gets_their_devices() {
    let shown = |id: &str, runtime| {
        let image = image_name(&engine(id), (id, "v0.15.1"), Accelerator::Rocm).unwrap();
        let contained = Contained { runtime, image, file: None, accelerator: Accelerator::Rocm };
        let container = Container {
            contained: &contained,
            name: "redline-01jd",
            hub: "/hub",
            hub_cache: None,
            model: None,
            env: &[],
            gpus: true,
        };
        let filling = Filling::measured(id, Path::new(id), "Qwen/Qwen3-8B", 4711);
        container_line(&engine(id), filling, &container).unwrap().recorded.join(" ")
    };
    expect!["docker run --device /dev/kfd --device /dev/dri --group-add video --cap-add SYS_PTRACE --security-opt seccomp=unconfined -v {hub}:/root/.cache/huggingface_hub --env HF_HOME=/root/.cache/huggingface_hub --env VLLM_LOGGING_LEVEL=ERROR --env TRANSFORMERS_OFFLINE=1 -p {port}:{port} --net host --ipc=host --rm --name vllm vllm/vllm-openai-rocm:v0.15.1 --model {model} --tensor-parallel-size 1 --host 127.0.0.1 --port {port}"]
        .assert_eq(&shown("vllm", Runtime::Docker));
    let podman = shown("vllm", Runtime::Podman);
    assert!(podman.starts_with("podman run --device /dev/kfd --device /dev/dri"), "{podman}");
    assert!(podman.contains(" --group-add keep-groups "), "{podman}");
    let apptainer = shown("sglang", Runtime::Apptainer);
    assert!(apptainer.starts_with("apptainer run --rocm --bind "), "{apptainer}");
    assert!(apptainer.contains(" docker://lmsysorg/sglang:v0.15.1-rocm700-mi30x "), "{apptainer}");
    let none = image_name(&engine("lmdeploy"), ("lmdeploy", "v0.10.0"), Accelerator::Rocm);
    let said = none.unwrap_err().to_string();
    assert!(said.contains("names no container image for GPUs of AMD"), "{said}");
}

#[test]
fn what_an_engine_has_no_flag_for_is_refused_by_name() {
    let settings = ServerSettings { seed: Some(1), ..ServerSettings::default() };
    let filling = Filling::measured("lmdeploy", Path::new("lmdeploy"), "m", 1);
    let error =
        command_line(&engine("lmdeploy"), Filling { settings: &settings, ..filling }).unwrap_err();
    assert_eq!(error.cause().0, "`suite/engines/lmdeploy.toml` has no flag for a seed");
}
