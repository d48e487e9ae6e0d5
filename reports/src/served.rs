//! Finds out which server produced a published result: engine, version, model and number of ranks,
//! from the serving command above the result and from the page's own text. Facts that neither
//! states stay unknown.

use std::collections::BTreeMap;

use super::redact::{public, public_text, variable};

/// Facts about the server behind a published result; `None` where the page does not state one.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Served {
    pub engine: Option<String>,
    /// Version of the engine that served, such as `v0.10.1`; `None` if not stated.
    pub release: Option<String>,
    /// Model as the serving command or the page names it, such as `Qwen/Qwen3-8B`; `None` if
    /// neither names one.
    pub model: Option<String>,
    pub tp: Option<u32>,
    /// Words of the serving command, or only its flags where the page gives no more; `None` if it
    /// gives neither.
    pub argv: Option<Vec<String>>,
    /// Environment variables that the serving command sets, without paths and secrets; `None` if it
    /// sets none.
    pub env: Option<BTreeMap<String, String>>,
    /// GPU as the page names it, such as `NVIDIA H100 80GB HBM3`; `None` if not stated.
    pub gpu: Option<String>,
}

/// Names of the engines whose serving commands are recognized in published pages.
const ENGINES: [&str; 3] = ["lmdeploy", "sglang", "vllm"];

/// Texts with which a serving command begins, each with the engine that it starts.
const COMMANDS: &[(&str, &str)] = &[
    ("lmdeploy serve api_server ", "lmdeploy"),
    ("vllm serve ", "vllm"),
    ("vllm.entrypoints.openai.api_server ", "vllm"),
    ("vllm/vllm-openai:", "vllm"),
    ("sglang.launch_server ", "sglang"),
    ("lmsysorg/sglang:", "sglang"),
];

/// Flags that only one engine has, each with that engine; they identify the engine of a list of
/// flags.
const OWN_FLAGS: &[(&str, &str)] = &[
    ("--max-model-len", "vllm"),
    ("--context-length", "sglang"),
    ("--session-len", "lmdeploy"),
    ("--cache-max-entry-count", "lmdeploy"),
];

/// Heading in published pages above a list of the server's flags that stands in place of the whole
/// command.
const PARAMETERS: &str = "Backend Parameters:";

/// Limit on the length of a variant's name, in bytes; a longer text is prose.
const NAME_BYTES_MAX: usize = 60;
/// Limit on the length, in bytes, of a serving command: a longer text is not taken for one.
const COMMAND_BYTES_MAX: usize = 4_000;

/// Words with which the name of a GPU begins.
const GPU_VENDORS: &[&str] = &["NVIDIA ", "AMD ", "Intel "];
/// Limit on the length of a GPU's name, in bytes; a longer text is prose.
const GPU_BYTES_MAX: usize = 80;
/// Flags with the number of tensor-parallel ranks.
const RANKS: &[&str] = &["--tp", "--tensor-parallel-size", "--tp-size", "-tp"];

/// Finds out which server produced a result in the page `text`. `before` is the text above the
/// result, `between` the part of that text after the previous result, and `model` the model that
/// the result's own log names, if any.
pub fn served(text: &str, before: &str, between: &str, model: Option<&str>) -> Served {
    let mut served = match parameters(between) {
        // Flags alone may leave out one that stands elsewhere: no flag says nothing about ranks.
        Some(flags) => Served {
            engine: owner(&flags),
            tp: value_of(&flags, RANKS).and_then(|value| value.parse().ok()),
            argv: Some(flags),
            ..Served::default()
        },
        None => command_above(before).unwrap_or_default().unless_of_another(model),
    };
    if served.model.is_none() {
        served.model = stated_model(text);
    }
    if served.release.is_none() {
        served.release = served.engine.as_deref().and_then(|engine| stated_release(text, engine));
    }
    served.gpu = stated_gpu(text);
    served
}

impl Served {
    /// Drops all facts except the engine if the serving command does not name the result's `model`.
    /// The result's own command is then missing from the page, and the found one belongs to another
    /// section, which has the same engine.
    fn unless_of_another(self, model: Option<&str>) -> Self {
        let name = |text: &str| text.rsplit(['/', '=']).next().unwrap_or_default().to_lowercase();
        let words = self.argv.as_deref().unwrap_or_default();
        // A path that was hidden may be that of any model.
        let is_named =
            |model: &str| words.iter().any(|word| word == "{path}" || name(word) == name(model));
        if model.is_none_or(is_named) {
            return self;
        }
        Self { engine: self.engine, ..Self::default() }
    }
}

/// Returns the version that the tag of an engine's own container image states, such as `v0.10.1` of
/// `vllm/vllm-openai:v0.10.1`; `None` for other images, and for tags that name no version.
pub fn release_of_image(image: &str) -> Option<String> {
    let (repository, tag) = image.rsplit_once(':')?;
    let version = tag.split('-').next().unwrap_or(tag);
    let version = match repository {
        "vllm/vllm-openai"
        | "vllm/vllm-openai-rocm"
        | "lmsysorg/sglang"
        | "lmsysorg/sglang-rocm" => version.to_owned(),
        // Tags of NVIDIA's image have no `v`.
        _ if repository.ends_with("nvidia/tensorrt-llm/release") => format!("v{version}"),
        _ => return None,
    };
    is_version(&version).then_some(version)
}

/// Returns the flags in the code fence after the last heading `Backend Parameters:` in the text;
/// `None` without such a list.
fn parameters(between: &str) -> Option<Vec<String>> {
    let after = &between[between.rfind(PARAMETERS)? + PARAMETERS.len()..];
    let fence = after.trim_start().strip_prefix("```")?.split("```").next()?;
    let mut words: Vec<String> = fence.split_whitespace().map(public).collect();
    // The first word after the fence may be its language.
    if words.first().is_some_and(|word| !word.starts_with('-')) {
        words.remove(0);
    }
    Some(words)
}

/// Returns the name of a variant in front of the last list of server flags in `between`, such as
/// `Baseline` of `- Baseline Backend Parameters:`; `None` without one.
pub fn variant(between: &str) -> Option<String> {
    let line = between[..between.rfind(PARAMETERS)?].rsplit('\n').next()?;
    let name = line.rsplit("- ").next()?.trim();
    (!name.is_empty() && name.len() < NAME_BYTES_MAX).then(|| public_text(name))
}

/// Returns the engine of the first flag, in the order of `OWN_FLAGS`, that is among `words` and
/// that only one engine has; `None` if no word is such a flag.
fn owner(words: &[String]) -> Option<String> {
    let name = |word: &String| word.split('=').next().unwrap_or_default().to_owned();
    let names: Vec<String> = words.iter().map(name).collect();
    let of = |(flag, engine): &(&str, &str)| {
        names.iter().any(|name| name == flag).then(|| (*engine).to_owned())
    };
    OWN_FLAGS.iter().find_map(of)
}

/// Returns the facts in the last serving command of the text `before` a result; `None` if there is
/// none, or if it stands in another section of the page than the result.
fn command_above(before: &str) -> Option<Served> {
    let find = |(words, engine): &(&str, &'static str)| {
        before
            .rmatch_indices(words)
            .map(|(at, _)| at)
            .find(|at| is_command(before, *at))
            .map(|at| (at, *engine))
    };
    // The line that names the image also names the program: the earlier of the two is the command.
    let last = COMMANDS.iter().filter_map(find).max_by_key(|(at, _)| *at)?;
    let (start, end) = extent(before, last.0)?;
    if !same_section(before, start) {
        return None;
    }
    // Words before the command, such as `docker run` and its mounts, concern the machine only.
    let first = COMMANDS.iter().filter_map(|(words, _)| before[start..end].find(words)).min()?;
    // A backslash only joins two lines of the command.
    let words: Vec<&str> =
        before[start + first..end].split_whitespace().filter(|word| *word != "\\").collect();
    let flag = |names: &[&str]| value_of(&words, names);
    let env = environment(&before[start..start + first]);
    let tag = words.first().and_then(|word| word.split_once(':')).map(|(_, tag)| tag);
    // A tag such as `latest` names no version, and a suffix names a build of one.
    let release = tag.map(|tag| tag.split('-').next().unwrap_or(tag)).filter(|tag| is_version(tag));
    let positional = words.iter().position(|word| ["serve", "api_server"].contains(word));
    let positional = positional.map(|at| match words.get(at + 1) {
        // Two words come before the model in `lmdeploy serve api_server MODEL`.
        Some(&"api_server") => at + 2,
        _ => at + 1,
    });
    let model = flag(&["--model", "--model-path"])
        .or_else(|| positional.and_then(|at| words.get(at).copied()))
        // Where a flag follows at once, the command does not name its model.
        .filter(|word| !word.starts_with('-'));
    let tp = flag(RANKS);
    Some(Served {
        engine: Some(last.1.to_owned()),
        release: release.map(str::to_owned),
        model: model.map(public),
        // A command without a flag for tensor parallelism serves on one rank.
        tp: tp.map_or(Some(1), |value| value.parse().ok()),
        argv: Some(words.iter().copied().map(public).collect()),
        env: (!env.is_empty()).then_some(env),
        gpu: None,
    })
}

/// Returns the environment variables that the words in front of a serving command set: `NAME=value`
/// alone, or after `--env` or `-e` of a container's command.
fn environment(prefix: &str) -> BTreeMap<String, String> {
    let mut env = BTreeMap::new();
    for word in shell_words(prefix) {
        let word = word.strip_prefix("--env=").unwrap_or(&word);
        let Some((name, value)) = word.split_once('=') else { continue };
        let fits = |byte: u8| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_';
        if !name.is_empty() && name.bytes().all(fits) {
            env.insert(name.to_owned(), variable(name, value));
        }
    }
    env
}

/// Splits a command into words as a shell does, without the quotes around a word or a part of it.
fn shell_words(text: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut quote = None;
    for c in text.chars() {
        match quote {
            Some(open) if open == c => quote = None,
            None if c == '\'' || c == '"' => quote = Some(c),
            None if c.is_whitespace() => words.push(String::new()),
            _ => words.last_mut().into_iter().for_each(|word| word.push(c)),
        }
    }
    words
}

/// True if the serving command at the byte offset `at` is a real one; a template such as `--model
/// ${MODEL}` is not.
fn is_command(text: &str, at: usize) -> bool {
    extent(text, at).is_some_and(|(start, end)| !text[start..end].contains("${"))
}

/// Returns the byte range of the command around the offset `at`: the line that contains it, and the
/// neighbouring lines that backslashes at line ends join to that. `None` if the range is too long
/// for a command.
fn extent(text: &str, at: usize) -> Option<(usize, usize)> {
    let line_start = |at: usize| text[..at].rfind('\n').map_or(0, |end| end + 1);
    let line_end = |at: usize| text[at..].find('\n').map_or(text.len(), |end| at + end);
    let mut start = line_start(at);
    while start > 0 && text[..start - 1].ends_with('\\') {
        start = line_start(start - 1);
    }
    let mut end = line_end(at);
    while text[..end].ends_with('\\') && end < text.len() {
        end = line_end(end + 1);
    }
    (end - start <= COMMAND_BYTES_MAX).then_some((start, end))
}

/// True where no Markdown heading between the offset `at` and the end of `text` has the same or a
/// higher level than the heading of the section that contains `at`.
fn same_section(text: &str, at: usize) -> bool {
    let mut level = 0;
    let mut fenced = false;
    let mut offset = 0;
    for line in text.split_inclusive('\n') {
        let hashes = line.bytes().take_while(|byte| *byte == b'#').count();
        // A line with `#` in a fence is a comment of a script and no heading.
        if line.starts_with("```") {
            fenced = !fenced;
        } else if !fenced && (1..=6).contains(&hashes) && line[hashes..].starts_with(' ') {
            if offset < at {
                level = hashes;
            } else if hashes <= level {
                return false;
            }
        }
        offset += line.len();
    }
    true
}

/// Returns the value of the first flag in `words` that is one of `names`: the next word, or the
/// part after `=`.
pub fn value_of<'a>(words: &'a [impl AsRef<str>], names: &[&str]) -> Option<&'a str> {
    words.iter().enumerate().find_map(|(at, word)| match word.as_ref().split_once('=') {
        Some((name, value)) if names.contains(&name) => Some(value),
        None if names.contains(&word.as_ref()) => words.get(at + 1).map(AsRef::as_ref),
        _ => None,
    })
}

/// Returns the version that a page states for an engine: `vLLM v0.10.1`, or the package
/// `lmdeploy==0.9.2`. `None` where it states no version, or two.
fn stated_release(text: &str, engine: &str) -> Option<String> {
    debug_assert!(ENGINES.contains(&engine), "commands and flags name known engines");
    let words: Vec<&str> = text.split_whitespace().collect();
    let named = words.windows(2).filter(|two| two[0].eq_ignore_ascii_case(engine));
    let named = named.map(|two| two[1]).filter(|word| is_version(word)).map(str::to_owned);
    let pinned = words.iter().filter_map(|word| {
        let (name, version) = word.split_once("==")?;
        let version = format!("v{version}");
        (name.eq_ignore_ascii_case(engine) && is_version(&version)).then_some(version)
    });
    let mut stated: Vec<String> = named.chain(pinned).collect();
    stated.sort();
    stated.dedup();
    // A page that states two versions does not say which one a result has.
    if stated.len() == 1 { stated.pop() } else { None }
}

/// Returns the model named under a heading `Model` of a page; `None` without such a heading, or
/// where several name different models.
fn stated_model(text: &str) -> Option<String> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let headed = words.windows(3).filter(|three| three[0].ends_with('#') && three[1] == "Model");
    // Names on the Hugging Face hub contain a slash; other words are prose.
    let mut models = headed.map(|three| three[2]).filter(|word| word.contains('/'));
    let first = models.next()?;
    models.all(|other| other == first).then(|| first.to_owned())
}

/// Returns the GPU named under a heading `Hardware` of a page; `None` without such a heading, where
/// it does not name a GPU by its vendor, or where several name different ones.
fn stated_gpu(text: &str) -> Option<String> {
    let headed = text.match_indices("# Hardware").filter_map(|(at, heading)| {
        let after = text[at + heading.len()..].strip_prefix([' ', '\n'])?.trim_start();
        let end = after.find(" #").into_iter().chain(after.find('\n')).min();
        let name = after[..end.unwrap_or(after.len())].trim();
        let vendor = GPU_VENDORS.iter().any(|vendor| name.starts_with(vendor));
        (vendor && name.len() < GPU_BYTES_MAX).then_some(name)
    });
    let mut named: Vec<&str> = headed.collect();
    named.dedup();
    if let [name] = named[..] { Some(name.to_owned()) } else { None }
}

/// True for a version such as `v0.10.1` or `v0.9.2.post1`.
fn is_version(word: &str) -> bool {
    let Some(rest) = word.strip_prefix('v') else { return false };
    rest.contains('.') && rest.split('.').next().is_some_and(|major| major.parse::<u32>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(page: &str) -> Served {
        let block = page.find("====").unwrap();
        served(page, &page[..block], &page[..block], None)
    }

    #[test]
    fn a_command_in_the_same_section_says_what_was_served() {
        let page = "# LMDeploy v0.9.2\n\n## Qwen3-32B\n\n```shell\nlmdeploy serve api_server \
                    Qwen/Qwen3-32B --tp 2\n```\n\n### ShareGPT\n\n```{text}\n# log\n====";
        let served = of(page);
        assert_eq!(served.engine.as_deref(), Some("lmdeploy"));
        assert_eq!(served.release.as_deref(), Some("v0.9.2"));
        assert_eq!(served.model.as_deref(), Some("Qwen/Qwen3-32B"));
        assert_eq!(served.tp, Some(2));
        // A section without a command of its own does not inherit the previous section's.
        let next = page.replace("### ShareGPT", "## Qwen3-235B");
        assert_eq!(of(&next), Served::default());
    }

    fn above(page: &str) -> &str {
        page.split("====").next().unwrap()
    }

    #[test]
    fn a_command_for_another_model_is_not_the_blocks_own() {
        let page = "# LMDeploy v0.9.2\n\nlmdeploy serve api_server Qwen/Qwen3-32B --tp 2\n====";
        let of = |model| served(page, above(page), above(page), Some(model));
        assert_eq!(of("qwen3-32b").tp, Some(2));
        let other = of("Qwen/Qwen3-8B");
        assert_eq!((other.tp, other.argv, other.model), (None, None, None));
        assert_eq!(
            (other.engine.as_deref(), other.release.as_deref()),
            (Some("lmdeploy"), Some("v0.9.2"))
        );
        let alias = page.replace("--tp 2", "--tp 2 --model-name=mine");
        assert_eq!(served(&alias, above(&alias), above(&alias), Some("mine")).tp, Some(2));
    }

    #[test]
    fn an_image_says_the_version_and_the_machine_stays_private() {
        let page = "# SGLang v0.10.1\n\n## M\n```shell\ndocker run --gpus all \\\n    \
                    -v $HF_HOME:/root/.cache \\\n    lmsysorg/sglang:v0.5.1-cu126 \\\n    \
                    python3 -m sglang.launch_server --model-path org/M --log /home/ada/x\n```\n====";
        let served = of(page);
        assert_eq!(served.engine.as_deref(), Some("sglang"));
        assert_eq!(served.release.as_deref(), Some("v0.5.1"), "what ran, not what the title says");
        assert_eq!((served.model.as_deref(), served.tp), (Some("org/M"), Some(1)));
        let argv = served.argv.unwrap().join(" ");
        assert!(argv.starts_with("lmsysorg/sglang:") && argv.ends_with("--log {path}"), "{argv}");
        assert_eq!(served.env, None);
        let template = page.replace("org/M", "${MODEL}");
        assert_eq!(of(&template).engine, None);
    }

    #[test]
    fn variables_of_the_command_are_kept_without_paths_and_secrets() {
        let page = "# vLLM v0.10.1\n```shell\nA=1 docker run --ipc=host -v $HF_HOME:/root/.cache \\\n                     --env \"HF_HOME=/root/.cache\" -e 'ROUTE=a b' -e PIN_KEY=1234 --env=HF_TOKEN=hf_abc \\\n                     vllm/vllm-openai:v0.10.1 --model org/M\n```\n====";
        let env = of(page).env.unwrap();
        let env: Vec<String> = env.into_iter().map(|(name, value)| name + "=" + &value).collect();
        assert_eq!(
            env,
            ["A=1", "HF_HOME={path}", "HF_TOKEN={secret}", "PIN_KEY={secret}", "ROUTE=a b"]
        );
    }

    #[test]
    fn a_page_that_names_one_gpu_states_it() {
        let gpu = |page: &str| of(&format!("{page}\n====")).gpu;
        let one = "# P ### Hardware NVIDIA H100 80GB HBM3 ### Engine";
        assert_eq!(gpu(one).as_deref(), Some("NVIDIA H100 80GB HBM3"));
        let lines = "# P\n\n## Hardware\n\nNVIDIA A100 80GB\n\n## Engine";
        assert_eq!(gpu(lines).as_deref(), Some("NVIDIA A100 80GB"));
        assert_eq!(gpu(&one.replace("NVIDIA", "We used an")), None);
        assert_eq!(gpu(&format!("{one} {}", one.replace("H100", "H200"))), None);
    }

    #[test]
    fn ranks_are_unknown_only_where_flags_stand_without_a_command() {
        let page = "# P - Backend Parameters: ```bash --max-model-len=32768 ``` ====";
        assert_eq!(of(page).tp, None);
        assert_eq!(of(&page.replace("--max", "--tp 4 --max")).tp, Some(4));
        let command = "# P\n```shell\nvllm serve org/M\n```\n====";
        assert_eq!(of(command).tp, Some(1));
    }

    #[test]
    fn flags_alone_name_the_engine_that_has_them() {
        let page = "# P ### Model org/M-9B ### Engine Version - vLLM v0.17.1 - SGLang v0.5.9 \
                    - Backend Parameters: ```bash --x=1 --max-model-len=32768 ``` ====";
        let served = of(page);
        assert_eq!(served.engine.as_deref(), Some("vllm"));
        assert_eq!(served.release.as_deref(), Some("v0.17.1"));
        assert_eq!((served.model.as_deref(), served.tp), (Some("org/M-9B"), None));
        assert_eq!(served.argv.unwrap(), ["--x=1", "--max-model-len=32768"]);
        let unknown = page.replace("--max-model-len=32768", "--y");
        assert_eq!((of(&unknown).engine, of(&unknown).release), (None, None));
        let two = page.replace("SGLang v0.5.9", "vLLM v0.16.0");
        assert_eq!(of(&two).release, None, "two versions are stated");
    }
}
