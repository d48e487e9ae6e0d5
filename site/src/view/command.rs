//! Commands that a reader can paste. What a record hides because it differs from machine to machine
//! (model, address, port) is filled in with the names that a reader knows, and notes say so.

use minijinja::{Value, context};
use schema::engine::EngineFile;
use schema::run::{Kind, RunRecord, ServerFacts};
use schema::scenario::id_of;

use super::fact;
use crate::catalog::{Cell, ReleaseKey, Run, distinct};
use crate::outside;
use crate::questions::{self, Name};

/// Port of a server whose record hides its port.
const PORT: &str = "8000";
/// Engine that `release-bench` measures by default.
const OWN: &str = "redline";
/// Largest number of server commands that a page shows for one model.
const SERVE_MAX: usize = 4;

/// Command that starts a server, with notes on what differs from the record.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Serve {
    /// Command line with its environment variables, as a shell takes it.
    pub line: String,
    /// Sentences about what was filled in or added.
    pub notes: Vec<String>,
    /// Port that the server listens on, where it is known.
    port: Option<String>,
}

/// Returns the command that started the server of a run; `None` where it was not recorded.
pub fn serve(record: &RunRecord) -> Option<Serve> {
    let server = record.server.as_ref()?;
    let argv = server.argv.as_ref()?;
    let engine = questions::engine(&record.engine.name);
    let mut notes = Vec::new();
    let mut words = started(argv, record, engine.as_ref(), &mut notes);
    let is_hidden = words.iter().any(|word| word.contains("{model}"));
    let (model, note) = model(record);
    notes.extend(note.filter(|_| is_hidden));
    let default = || engine?.launch.settings.port?.default;
    let port = if argv.iter().any(|word| word.contains("{port}")) {
        Some(PORT.to_owned())
    } else {
        default()
    };
    for word in &mut words {
        *word = word.replace("{model}", &model).replace("{address}", "127.0.0.1");
        *word = word.replace("{port}", PORT);
    }
    // A `docker run` line that a report gives passes its variables on itself.
    let is_docker_run = argv.first().is_some_and(|word| word == "docker");
    let mut env = if is_docker_run { Vec::new() } else { environment(server) };
    let in_container =
        words.len() > argv.len() && words.first().is_some_and(|word| word == "docker");
    if in_container {
        // Variables before `docker` would not reach the server.
        let of = |(name, value)| ["--env".to_owned(), format!("{name}={value}")];
        words.splice(2..2, std::mem::take(&mut env).into_iter().flat_map(of));
    }
    let (line, left_out) = line(&env, &words);
    notes.extend(left_out);
    if line.contains("{path}") {
        notes.push("`{path}` stands for a path that the report hides.".to_owned());
    }
    Some(Serve { line, notes, port })
}

/// Returns the environment variables of a server, by name; empty where none are recorded.
pub fn environment(server: &ServerFacts) -> Vec<(&str, &str)> {
    let all = server.env.iter().flatten();
    all.map(|(name, value)| (name.as_str(), value.as_str())).collect()
}

/// Formats a command line with environment variables before it, as a shell takes both, and returns a
/// note for each variable that is left out because the shell would run other code by it.
pub fn line(env: &[(&str, &str)], argv: &[String]) -> (String, Vec<String>) {
    let (mut line, mut notes) = (String::new(), Vec::new());
    for (name, value) in env {
        match outside::assignment(name, value) {
            Some(set) => line += &set,
            None => notes.push(format!(
                "The record's variable `{}` is left out: it is no plain setting of the server.",
                outside::name(name)
            )),
        }
    }
    (line + &outside::command(argv), notes)
}

/// Returns the words of a command that begins with a program. A published report may give the
/// arguments of a container image, or flags alone.
fn started(
    argv: &[String],
    record: &RunRecord,
    engine: Option<&EngineFile>,
    notes: &mut Vec<String>,
) -> Vec<String> {
    let (first, rest) = match argv {
        [] => return Vec::new(),
        [first, rest @ ..] => (first.as_str(), rest),
    };
    let with = |start: &[&str], rest: &[String]| -> Vec<String> {
        start.iter().map(|word| (*word).to_owned()).chain(rest.iter().cloned()).collect()
    };
    if first.starts_with('-') {
        let Some(engine) = engine else { return argv.to_vec() };
        notes.push("The report gives the flags alone; program and model are added.".to_owned());
        let start: Vec<&str> = engine.launch.argv.iter().map(String::as_str).collect();
        return with(&start, argv);
    }
    if !first.starts_with('/') && first.contains('/') && first.contains(':') {
        notes.push(
            "The record keeps the report's image and its arguments. `docker run` and the flags before \
             the image are added; mounts such as `-v` and ports such as `-p` are not in the record."
                .to_owned(),
        );
        let run = ["docker", "run", "--rm", "--gpus", "all", "--network", "host", "--ipc", "host"];
        return with(&run, argv);
    }
    // Where Redline builds an engine, the record names the engine in place of its program.
    let source = engine.and_then(|engine| engine.source.as_ref());
    match source.and_then(|source| source.programs.first()) {
        Some(program) if first == record.engine.name => with(&[program], rest),
        _ => argv.to_vec(),
    }
}

/// Returns the name by which a reader gives the model of a run to a server, and a note where the
/// reader needs a file for it.
fn model(record: &RunRecord) -> (String, Option<String>) {
    let id = &record.model.id;
    match questions::model(id) {
        Some(Name::Hub(hub)) => (hub, None),
        Some(Name::File(file)) => {
            let note = format!(
                "`{file}` stands for the path of the model, which the record hides: \
                 `cargo xtask fetch {id}` downloads the file and prints its path."
            );
            (file, Some(note))
        }
        None => {
            let source = record.model.source.clone().filter(|source| source.contains('/'));
            let note = format!("`{id}` stands for the path of the model, which the record hides.");
            match source {
                Some(source) => (source, None),
                None => (id.clone(), Some(note)),
            }
        }
    }
}

/// Returns the command that builds a release of Redline from a clone, fetches the model and serves
/// it; `None` for other engines and for models that the suite does not have.
pub fn from_clone(record: &RunRecord) -> Option<String> {
    let RunRecord { engine, model, .. } = record;
    let is_known = engine.name == OWN && questions::model(&model.id).is_some();
    let words = ["cargo", "xtask", "serve", &engine.release, "--model", &model.id];
    is_known.then(|| outside::command(&words))
}

/// Returns the command that measures the release of `key` again on machines of its hardware, with the
/// further arguments `rest`. Engine and target are named where they are not those that the command
/// takes by itself.
pub fn release_bench(key: &ReleaseKey, rest: &[&str]) -> String {
    let mut words = vec!["cargo", "xtask", "release-bench", &key.release];
    if key.engine != OWN {
        words.extend(["--engine", &key.engine]);
    }
    if questions::is_target(&key.hardware) {
        words.extend(["--target", &key.hardware]);
    }
    words.extend(rest);
    outside::command(&words)
}

/// Builds the commands of one model: those that started the servers of `runs`, those that send the
/// requests of `cells`, to which the runs belong, and the one that measures them again.
pub fn of_model(model: &str, cells: &[Cell], runs: &[&Run]) -> Value {
    let mut serve = distinct(runs.iter().filter_map(|run| serve(run.record)));
    serve.truncate(SERVE_MAX);
    let first = runs.first().map(|run| ReleaseKey::of(run.record));
    let engine = first.as_ref().map(|key| key.engine.as_str()).unwrap_or_default();
    let published = runs.iter().any(|run| run.record.kind == Kind::Imported);
    let port = serve.iter().find_map(|serve| serve.port.clone());
    let (bench, files) = bench(model, cells, (engine, published), port.as_deref());
    let same_requests = published && runs.iter().any(|run| has_published_totals(run.record));
    let is_validation = !published && runs.iter().all(|run| run.is_validation);
    let again = match (published, is_validation) {
        (true, _) => Vec::new(),
        (false, true) => validate(model, cells, runs),
        (false, false) => first.iter().map(|key| measure_again(key, model, cells)).collect(),
    };
    context! {
        serve => serve.iter().map(shown).collect::<Value>(),
        // Reason for which there is no command of a server.
        serve_absent => fact::fact("", runs, "server.argv", |_| None).reason,
        bench,
        // True where some published results have the token totals of the suite's own sample.
        same_requests,
        // Files that the commands of the load generator read, which `cargo xtask fetch` downloads.
        files,
        // Commands that measure the same cells on another machine; none for figures published
        // elsewhere.
        again,
        // True where they pack a bundle for the machine with the GPU.
        is_validation,
    }
}

/// Returns the command that measures `cells` of a model again. It names their scenarios where the
/// command does not measure all of them by itself.
fn measure_again(key: &ReleaseKey, model: &str, cells: &[Cell]) -> String {
    let hardware = key.hardware.as_str();
    let target = if questions::is_target(hardware) { hardware } else { questions::CPU };
    let known = questions::target(target).map(|target| target.scenarios).unwrap_or_default();
    let ids = distinct(cells.iter().map(|cell| id_of(&cell.key.scenario)));
    let mut rest = vec!["--model", model];
    if ids.iter().any(|id| !known.iter().any(|own| own == id)) {
        rest.extend(ids.iter().flat_map(|id| ["--scenario", *id]));
    }
    release_bench(key, &rest)
}

/// True when the requests of a published result are those that the suite draws: `suite/published.toml`
/// has the token totals of its sample.
fn has_published_totals(record: &RunRecord) -> bool {
    let Some(counts) = &record.counts else { return false };
    let totals = (counts.requests_planned, counts.input_tokens, counts.output_tokens_requested);
    let (Some(requests), Some(input), Some(output)) = totals else { return false };
    questions::is_published_sample(requests, input, output)
}

/// Returns the commands that measure `cells` of a GPU validation again: pack the release, unpack the
/// bundle on the machine with the GPU, run the stages of the cells there, and collect the results.
fn validate(model: &str, cells: &[Cell], runs: &[&Run]) -> Vec<String> {
    let Some(record) = runs.first().map(|run| run.record) else { return Vec::new() };
    let ids: Vec<&str> = cells.iter().map(|cell| id_of(&cell.key.scenario)).collect();
    let hardware = record.hardware.id.as_str();
    let known = ids.iter().find_map(|id| questions::validation_of(model, id, hardware));
    // Stages are named so in `schema::gpu_validation`.
    let stages = distinct(ids.iter().map(|id| format!("{id}-{model}")));
    of_bundle(&record.engine.release, known.unwrap_or(hardware), &stages)
}

/// Returns the commands that pack a bundle of a GPU validation, unpack it on the machine with the GPU,
/// run `stages` there (all of them where none are named), and collect the results.
pub fn of_bundle(release: &str, validation: &str, stages: &[String]) -> Vec<String> {
    let archive = format!("target/validations/{validation}/bundle.tar.xz");
    let only = stages.iter().flat_map(|stage| ["--only", stage.as_str()]);
    let step = ["cargo", "xtask", "gpu-validation"];
    let commands = [
        [&step[..], &["pack", release, "--validation", validation]].concat(),
        vec!["tar", "-xf", &archive],
        ["bundle/validate"].into_iter().chain(only).collect(),
        [&step[..], &["collect", "validation-results"]].concat(),
    ];
    commands.iter().map(|words| outside::command(words)).collect()
}

/// Builds the view of a server's command.
pub fn shown(serve: &Serve) -> Value {
    let notes = serve.notes.iter().map(|note| outside::message(note));
    context! { line => serve.line.as_str(), notes => notes.collect::<Value>() }
}

/// Returns the commands of the load generator for the scenarios of `cells`, against a running
/// server, and the ids of the files that they read.
fn bench(
    model: &str,
    cells: &[Cell],
    (engine, published): (&str, bool),
    port: Option<&str>,
) -> (Vec<String>, Vec<String>) {
    let mut files = Vec::new();
    let mut tokenizer = None;
    match questions::tokenizer_of(model) {
        Some((id, file)) => {
            files.push(id);
            tokenizer = Some(file);
        }
        None => {
            if let Some(Name::File(file)) = questions::model(model) {
                files.push(model.to_owned());
                tokenizer = Some(file);
            }
        }
    }
    let mut line = |cell: &Cell| {
        let stem = questions::stem_of(&cell.key.scenario);
        let url = format!("http://127.0.0.1:{}", port.unwrap_or(PORT));
        let mut words = vec!["redline-bench".to_owned(), "run".to_owned(), "--url".to_owned(), url];
        let mut flag = |name: &str, value: String| words.extend([name.to_owned(), value]);
        flag("--engine", format!("suite/engines/{engine}.toml"));
        flag("--scenario", format!("suite/scenarios/{stem}.toml"));
        if let Some((dataset, file)) = questions::dataset_of(stem) {
            files.push(dataset);
            flag("--dataset", file);
        }
        if let Some(file) = &tokenizer {
            flag("--tokenizer", file.clone());
        }
        outside::command(&words)
    };
    // The requests behind published figures are not known one by one; a scenario of the same name
    // is the nearest that can be sent.
    let sent = |cell: &&Cell| !published || questions::is_known(&cell.key.scenario);
    let lines = distinct(cells.iter().filter(sent).map(&mut line));
    (lines, distinct(files))
}

#[cfg(test)]
mod tests {
    use schema::run::ServerFacts;

    use super::*;
    use crate::catalog::CellKey;

    fn command(engine: &str, model: &str, argv: &[&str]) -> Serve {
        let mut record = RunRecord::default();
        (record.engine.name, record.model.id) = (engine.to_owned(), model.to_owned());
        let argv = argv.iter().map(|word| (*word).to_owned()).collect();
        record.server = Some(ServerFacts { argv: Some(argv), ..ServerFacts::default() });
        serve(&record).expect("a command")
    }

    #[test]
    fn what_a_record_hides_is_filled_in_and_said() {
        let smollm = "smollm2-135m-instruct-q4_1";
        let found =
            command("redline", smollm, &["redline", "serve", "{model}", "--port", "{port}"]);
        assert_eq!(found.line, "redline serve SmolLM2-135M-Instruct.Q4_1.gguf --port 8000");
        assert!(found.notes[0].contains("cargo xtask fetch smollm2"), "{found:?}");
        let found = command("llama.cpp", smollm, &["llama.cpp", "--host", "{address}"]);
        assert_eq!((found.line.as_str(), found.notes.len()), ("llama-server --host 127.0.0.1", 0));
        let found = command("vllm", "qwen3-8b", &["vllm", "serve", "{model}"]);
        assert_eq!(found.line, "vllm serve Qwen/Qwen3-8B");
        assert_eq!(found.port.as_deref(), Some("8000"), "the engine's default");
    }

    #[test]
    fn a_release_is_measured_again_with_its_engine_on_its_target() {
        let command = |engine, hardware| {
            release_bench(&ReleaseKey::new(engine, "v0.10.0", hardware), &["--baseline", "v0.9.2"])
        };
        let start = "cargo xtask release-bench v0.10.0";
        assert_eq!(
            command("lmdeploy", "a100-80g"),
            format!("{start} --engine lmdeploy --target a100-80g --baseline v0.9.2")
        );
        assert_eq!(
            command("redline", "cpu-amd-epyc-f26m2s1-2c"),
            format!("{start} --baseline v0.9.2")
        );
    }

    #[test]
    fn scenarios_that_the_target_does_not_measure_by_itself_are_named() {
        let cell = |scenario: &str| Cell {
            key: CellKey {
                model: "m".to_owned(),
                config: String::new(),
                scenario: format!("{scenario}@1"),
                text_prompts: false,
                kind: "measured",
                block: None,
            },
            runs: Vec::new(),
        };
        let key = ReleaseKey::new("redline", "v0.11.0", "cpu-amd-epyc-f25m1s1-2c");
        let again = |scenarios: &[&str]| {
            measure_again(&key, "m", &scenarios.iter().map(|id| cell(id)).collect::<Vec<_>>())
        };
        let start = "cargo xtask release-bench v0.11.0 --model m";
        assert_eq!(again(&["sharegpt-lite", "balanced-lite"]), start);
        let named = format!("{start} --scenario sharegpt-lite --scenario tools-lite");
        assert_eq!(again(&["sharegpt-lite", "tools-lite"]), named);
    }

    #[test]
    fn flags_and_images_of_a_report_become_commands() {
        let found = command("vllm", "qwen3.5-9b", &["--max-model-len=32768"]);
        assert_eq!(found.line, "vllm serve Qwen/Qwen3.5-9B --max-model-len=32768");
        assert!(found.notes[0].starts_with("The report gives the flags alone"), "{found:?}");
        let image = ["vllm/vllm-openai:v0.10.1", "--model", "Qwen/Qwen3-8B"];
        let found = command("vllm", "qwen3-8b", &image);
        assert!(found.line.starts_with("docker run --rm --gpus all --network host"), "{found:?}");
        assert!(found.line.ends_with(&image.join(" ")) && found.notes.len() == 1, "{found:?}");
        let run =
            ["docker", "run", "-v", "/models:/m", "-p", "8000:8000", image[0], "--model", "m"];
        let found = command("vllm", "qwen3-8b", &run);
        assert_eq!(
            (found.line, found.notes.len()),
            (run.join(" "), 0),
            "kept as the report gives it"
        );
        let found = command("other", "x", &["/usr/bin/a:b", "{model}"]);
        assert_eq!(found.line, "/usr/bin/a:b x");
    }
}
