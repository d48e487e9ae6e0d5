//! The clients that the tests run, and the tests. Each client has a script in `scripts`, which
//! exercises what the client can do and prints a line for each capability.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::benchmarks;
use crate::document::{self, Row, UNCHANGED};
use crate::installed::{npm_packages, npm_version, python_with};
use crate::launched::Launched;
use crate::one_answer_model::{ANSWER, embedding_model, one_answer_model};

const QUICKSTART: &str = include_str!("../../../docs/quickstart/serve-a-gguf.md");

/// Client of another project.
struct Client {
    /// Name in the document.
    name: &'static str,
    /// Package that is installed, with the extras that it needs; several are separated by a space.
    package: &'static str,
    /// Version on the Python index; `None` for a package of npm, whose version `npm/package.json` has.
    version: Option<&'static str>,
    /// File name in `scripts`.
    script: &'static str,
    /// How the client is given the address of the server, in Markdown.
    setting: &'static str,
}

const OPENAI: Client = Client {
    name: "`openai` (Python)",
    package: "openai",
    version: Some("3.57.0"),
    script: "openai_package.py",
    setting: "`OpenAI(base_url=\"URL/v1\")`",
};

const ANTHROPIC: Client = Client {
    name: "`anthropic` (Python)",
    package: "anthropic",
    version: Some("2.14.0"),
    script: "anthropic_package.py",
    setting: "`Anthropic(base_url=\"URL\")`",
};

const AI_SDK: Client = Client {
    name: "AI SDK: `ai` and `@ai-sdk/openai` (npm)",
    package: "ai @ai-sdk/openai",
    version: None,
    script: "ai_sdk_package.mjs",
    setting: "`createOpenAI({ baseURL: \"URL/v1\" })`",
};

/// Clients that are run every week; those above are run for each change as well.
const OTHERS: [Client; 11] = [
    Client {
        name: "`openai` (npm)",
        package: "openai",
        version: None,
        script: "openai_package.mjs",
        setting: "`new OpenAI({ baseURL: \"URL/v1\" })`",
    },
    Client {
        name: "`langchain-openai`",
        package: "langchain-openai",
        version: Some("1.7.4"),
        script: "langchain_openai_package.py",
        setting: "`ChatOpenAI(base_url=\"URL/v1\")`",
    },
    Client {
        name: "`llama-index-llms-openai-like`",
        package: "llama-index-llms-openai-like",
        version: Some("0.8.1"),
        script: "llama_index_package.py",
        setting: "`OpenAILike(api_base=\"URL/v1\")`",
    },
    Client {
        name: "`pydantic-ai-slim`",
        package: "pydantic-ai-slim[openai]",
        version: Some("2.68.0"),
        script: "pydantic_ai_package.py",
        setting: "`OpenAIProvider(base_url=\"URL/v1\")`",
    },
    Client {
        name: "`openai-agents`",
        package: "openai-agents",
        version: Some("0.24.0"),
        script: "openai_agents_package.py",
        setting: "`AsyncOpenAI(base_url=\"URL/v1\")` as the `openai_client` of a model",
    },
    Client {
        name: "`instructor`",
        package: "instructor",
        version: Some("1.17.0"),
        script: "instructor_package.py",
        setting: "`instructor.from_openai(OpenAI(base_url=\"URL/v1\"))`",
    },
    Client {
        name: "`litellm`",
        package: "litellm",
        version: Some("1.110.2"),
        script: "litellm_package.py",
        setting: "`completion(model=\"openai/NAME\", api_base=\"URL/v1\")`",
    },
    Client {
        name: "`mistralai`",
        package: "mistralai",
        version: Some("3.7.0"),
        script: "mistralai_package.py",
        setting: "`Mistral(server_url=\"URL\")`",
    },
    Client {
        name: "`llm`",
        package: "llm",
        version: Some("0.36"),
        script: "llm_package.py",
        setting: "`api_base: URL/v1` in `extra-openai-models.yaml`",
    },
    Client {
        name: "`aider-chat`",
        package: "aider-chat",
        version: Some("0.86.2"),
        script: "aider_package.py",
        setting: "`--openai-api-base URL/v1`",
    },
    Client {
        name: "`lm-eval`",
        package: "lm-eval[api]",
        version: Some("0.4.13"),
        script: "lm_eval_package.py",
        setting: "`--model local-completions --model_args base_url=URL/v1/completions`",
    },
];

/// Serves the model to which the scripts' expectations belong.
fn serve(model: &Path) -> Launched {
    Launched::serve(model.to_str().unwrap(), &["--model-name", "tiny"])
}

impl Client {
    /// Command that runs the client's language on the client's script; `None` with a message that the
    /// test is skipped if the client cannot be installed.
    fn command(&self) -> Option<Command> {
        let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients/scripts");
        let Some(version) = self.version else {
            let folder = npm_packages()?;
            // Packages are found from the folder of the script.
            for script in [self.script, "report.mjs"] {
                std::fs::copy(scripts.join(script), folder.join(script)).unwrap();
            }
            let mut command = Command::new("node");
            command.arg(folder.join(self.script));
            return Some(command);
        };
        let mut command = Command::new(python_with(&format!("{}=={version}", self.package))?);
        // The folder of the scripts is part of the sources, and stays as it is.
        command.arg("-B").arg(scripts.join(self.script));
        Some(command)
    }

    /// Runs the client against two servers of its own: one generates text, the other embeds. Returns
    /// `None` if the client cannot be installed.
    fn run(&self) -> Option<Row> {
        let mut command = self.command()?;
        let (model, embedding_model) = (one_answer_model(), embedding_model());
        let (server, embedder) = (serve(model.path()), serve(embedding_model.path()));
        let results = results(&said(command.args([&server.url, &embedder.url])));
        let of_npm = || self.package.split(' ').map(npm_version).collect::<Vec<_>>().join(" and ");
        let version = self.version.map_or_else(of_npm, str::to_owned);
        Some(Row { client: self.name, version, setting: self.setting, results })
    }
}

/// Output of a command, which must succeed.
pub fn said(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}:\n{text}{errors}");
    text
}

/// Capabilities and results in the output of a script.
fn results(text: &str) -> Vec<(String, String)> {
    let result = |line: &str| {
        let value: Value = serde_json::from_str(line).unwrap_or_else(|_| panic!("{text}"));
        let [capability, result] = ["capability", "result"]
            .map(|key| value[key].as_str().unwrap_or_else(|| panic!("{line}")).to_owned());
        let is_known = result == UNCHANGED || result.starts_with("refused: ");
        assert!(is_known, "{line}");
        (capability, result)
    };
    let results: Vec<_> = text.lines().map(result).collect();
    assert!(!results.is_empty(), "the script has exercised nothing");
    results
}

/// Runs a client and compares its row with the document.
fn check(client: &Client) {
    if let Some(row) = client.run() {
        document::compare(&row);
    }
}

#[test]
fn extra_the_openai_package_works_as_the_document_says() {
    check(&OPENAI);
}

#[test]
fn extra_the_anthropic_package_works_as_the_document_says() {
    check(&ANTHROPIC);
}

#[test]
fn extra_the_ai_sdk_works_as_the_document_says() {
    check(&AI_SDK);
}

#[test]
fn extra_the_script_of_the_quickstart_streams_an_answer() {
    let package = format!("{}=={}", OPENAI.package, OPENAI.version.unwrap());
    let Some(python) = python_with(&package) else { return };
    let model = one_answer_model();
    let server = serve(model.path());
    let (_, script) = QUICKSTART.split_once("```python\n").expect("a script in Python");
    let (script, _) = script.split_once("```").expect("the script ends");
    let script = script.replace("http://127.0.0.1:23333", &server.url);
    assert!(script.contains(&server.url), "the script names the server's address");
    assert_eq!(said(Command::new(python).arg("-c").arg(script)), ANSWER);
}

/// Runs every client, and compares the document with what it finds, or writes it. It takes minutes and
/// several gigabytes of packages, so a workflow of its own runs it every week.
#[test]
fn weekly_every_client_works_as_the_document_says() {
    let mut rows = Vec::new();
    for client in [OPENAI, ANTHROPIC, AI_SDK].iter().chain(&OTHERS) {
        let Some(row) = client.run() else { return };
        println!("{}", row.line());
        rows.push(row);
    }
    for benchmark in [benchmarks::sglang, benchmarks::aiperf] {
        let Some(row) = benchmark() else { return };
        rows.push(row);
    }
    document::renew_or_compare(&rows);
}

#[test]
fn every_script_belongs_to_a_client() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients/scripts");
    let clients = [OPENAI, ANTHROPIC, AI_SDK];
    let names: Vec<&str> = clients.iter().chain(&OTHERS).map(|client| client.script).collect();
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let is_script = |path: &PathBuf| path.file_stem().is_some_and(|stem| stem != "report");
    let mut found: Vec<PathBuf> = files.filter(is_script).collect();
    found.retain(|path| !names.contains(&path.file_name().unwrap().to_str().unwrap()));
    assert_eq!(found, Vec::<PathBuf>::new(), "scripts that no client runs");
}
