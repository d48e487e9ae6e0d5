//! Chat template of a model: the Jinja program that writes roles and special tokens around a
//! message. A client renders it only in place of a benchmark tool that does; otherwise servers do.
//!
//! It shares no code with any engine. A template may come from anywhere, so that its length and its
//! work are limited.

use std::fmt;
use std::io::ErrorKind;
use std::panic::resume_unwind;
use std::path::Path;
use std::thread;

use anyhow::{Context, anyhow, ensure};
use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, context};
use serde_json::Value;
use whole_file::DATA_MAX;

/// File with nothing but the chat template in the folder of a model checkpoint.
const TEMPLATE_FILE: &str = "chat_template.jinja";
/// File with the special tokens, and in older checkpoints also the chat template.
const CONFIG_FILE: &str = "tokenizer_config.json";
/// Name of the template in its environment.
const NAME: &str = "chat";
/// Longest accepted chat template, in bytes; those of published models have up to 30 KB.
const SOURCE_MAX: usize = 128 << 10;
/// Largest number of template instructions for one message; a usual template takes some hundred.
const FUEL: u64 = 1_000_000;
/// Size of the stack on which a template is compiled, which takes memory only where it is used:
/// enough for as many levels as the length allows.
const STACK_BYTES: usize = 256 << 20;

/// Text of a chat template, and of the special tokens that it may print; a token is empty where the
/// model has none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Source {
    /// Jinja program of the template.
    pub template: String,
    /// Text of the beginning-of-sequence token.
    pub bos: String,
    /// Text of the end-of-sequence token.
    pub eos: String,
}

impl Source {
    /// Reads the chat template in the folder of a model checkpoint; `None` if there is none.
    ///
    /// # Errors
    /// A file cannot be read, or the configuration of the tokenizer is not JSON.
    pub fn of_folder(folder: &Path) -> anyhow::Result<Option<Self>> {
        let path = folder.join(CONFIG_FILE);
        let config: Value = match read(&path)? {
            Some(text) => serde_json::from_str(&text)
                .with_context(|| format!("`{}` is not JSON", path.display()))?,
            None => Value::Null,
        };
        let own = read(&folder.join(TEMPLATE_FILE))?;
        let of_config = || Some(template_of(&config)?.to_owned());
        let token = |key: &str| {
            // A token is a text, or an object with the text and how it is found.
            let token = &config[key];
            token.as_str().or(token["content"].as_str()).unwrap_or_default().to_owned()
        };
        let source = |template| Self { template, bos: token("bos_token"), eos: token("eos_token") };
        Ok(own.or_else(of_config).map(source))
    }
}

/// Returns the template in the configuration of a tokenizer: a text, or that of the name `default`
/// in a list.
fn template_of(config: &Value) -> Option<&str> {
    let found = &config["chat_template"];
    let mut named = found.as_array().into_iter().flatten();
    let default = named.find(|template| template["name"] == "default");
    default.map_or(found, |default| &default["template"]).as_str()
}

/// Reads a text file; `None` if it does not exist.
fn read(path: &Path) -> anyhow::Result<Option<String>> {
    match whole_file::read_text(path, "chat template", DATA_MAX) {
        Err(error) if error.system() == Some(ErrorKind::NotFound) => Ok(None),
        text => Ok(Some(text?)),
    }
}

/// Compiled chat template of a model.
pub struct ChatTemplate {
    environment: Environment<'static>,
    bos: String,
    eos: String,
}

impl fmt::Debug for ChatTemplate {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("ChatTemplate").finish_non_exhaustive()
    }
}

impl ChatTemplate {
    /// Compiles a chat template.
    ///
    /// # Errors
    /// The template is wrong or too long, or the system denies a thread.
    pub fn compile(source: Source) -> anyhow::Result<Self> {
        let Source { template, bos, eos } = source;
        let bytes = template.len();
        ensure!(bytes <= SOURCE_MAX, "the chat template has {bytes} bytes, above {SOURCE_MAX}");
        let mut environment = Environment::new();
        // Hugging Face's `apply_chat_template` compiles templates with these settings, and templates
        // call methods of Python's strings.
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?;
        environment.set_syntax(syntax);
        environment.set_fuel(Some(FUEL));
        environment
            .set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        // The parser descends once for each level of an expression.
        thread::scope(|scope| {
            let compile = || environment.add_template_owned(NAME, template);
            let thread = thread::Builder::new().stack_size(STACK_BYTES);
            let thread = thread.spawn_scoped(scope, compile).context("no thread")?;
            let compiled = thread.join().unwrap_or_else(|panic| resume_unwind(panic));
            compiled.context("the chat template is wrong")
        })?;
        Ok(Self { environment, bos, eos })
    }

    /// Returns the prompt of a conversation of one message by the user, up to where the answer
    /// begins. The date is not known to the template, so that a prompt is the same on every day.
    ///
    /// # Errors
    /// The template refuses the message, needs what it is not given, or takes too long.
    pub fn render(&self, message: &str) -> anyhow::Result<String> {
        let rendered = self.environment.get_template(NAME).and_then(|template| {
            template.render(context! {
                messages => vec![context! { role => "user", content => message }],
                add_generation_prompt => true,
                bos_token => self.bos.as_str(),
                eos_token => self.eos.as_str(),
            })
        });
        rendered.map_err(|error| {
            anyhow!(
                "the chat template cannot be rendered: {error}\nhint: send chat messages, to which \
                 the server applies its template: `--backend openai-chat` or `output.chat`"
            )
        })
    }

    /// Returns the text of the beginning-of-sequence token; empty where the model has none.
    pub fn bos(&self) -> &str {
        &self.bos
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rendered(template: &str) -> anyhow::Result<String> {
        let source = Source { template: template.into(), bos: "<s>".into(), eos: "</s>".into() };
        ChatTemplate::compile(source)?.render("hi ")
    }

    #[test]
    fn a_message_is_rendered_as_python_renders_it() {
        let template = "{{ bos_token }}\n{% for message in messages %}\n    \
                        <{{ message['role'] }}>{{ message.content.strip() }}{{ eos_token }}\n\
                        {% endfor %}\n{% if add_generation_prompt %}\n<model>\n{% endif %}";
        assert_eq!(rendered(template).unwrap(), "<s>\n    <user>hi</s>\n<model>\n");
        assert_eq!(rendered("{% if tools %}x{% endif %}y").unwrap(), "y");
    }

    #[test]
    fn a_template_that_asks_for_more_is_an_error_with_a_way_out() {
        let said = rendered("{{ strftime_now('%d') }}").unwrap_err().to_string();
        assert!(said.contains("strftime_now") && said.contains("hint: "), "{said}");
        let loops = "{% for i in range(2000) %}".repeat(2) + &"{% endfor %}".repeat(2);
        assert!(rendered(&loops).unwrap_err().to_string().contains("cannot be rendered"));
        assert!(rendered("{{ ").unwrap_err().to_string().contains("template is wrong"));
    }

    #[test]
    fn a_template_is_found_in_its_own_file_or_in_the_configuration() {
        let folder = tempfile::tempdir().unwrap();
        let found = || Source::of_folder(folder.path()).unwrap();
        assert_eq!(found(), None);
        let write =
            |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
        let list = r#"{"chat_template": [{"name": "rag", "template": "r"},
            {"name": "default", "template": "d"}], "bos_token": {"content": "<s>"}}"#;
        write(CONFIG_FILE, list);
        let source = |template: &str, bos: &str| Source {
            template: template.into(),
            bos: bos.into(),
            eos: String::new(),
        };
        assert_eq!(found(), Some(source("d", "<s>")));
        write(CONFIG_FILE, r#"{"chat_template": "c", "bos_token": null}"#);
        assert_eq!(found(), Some(source("c", "")));
        write(TEMPLATE_FILE, "own");
        assert_eq!(found(), Some(source("own", "")));
        write(CONFIG_FILE, "{");
        assert!(Source::of_folder(folder.path()).unwrap_err().to_string().contains("is not JSON"));
    }
}
