//! `redline chat`: a conversation with a model in the terminal. The engine runs in this process, as
//! `redline serve` would start it, without a listening socket.

use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;
use serde_json::{Map, Value, json};
use tokio::runtime::Runtime;

use crate::config::{DeviceChoice, DtypeChoice, Flags, KvDtypeChoice};
use crate::http::{ApiError, ErrorKind, LocalAnswer, LocalChat};
use crate::serve::{Prepare, Start};
use crate::server::{Rules, Server};
use crate::tokenize::SplitText;
use crate::worker::Finish;
use crate::{EnvironmentError, harmless, log};

/// Options of `redline chat`: the system message, sampling, and options of `redline serve` that one
/// conversation needs.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct ChatFlags {
    /// System message: how the model is to answer
    #[arg(long, value_name = "TEXT")]
    pub system: Option<String>,
    /// Sampling temperature; 0 always takes the most likely token [default: 1]
    #[arg(long, value_name = "T")]
    pub temperature: Option<f64>,
    /// Share of the probability from which tokens are sampled (nucleus sampling) [default: 1]
    #[arg(long, value_name = "P")]
    pub top_p: Option<f64>,
    /// Largest number of tokens of an answer [default: as many as fit]
    #[arg(long, value_name = "N")]
    pub max_tokens: Option<u64>,
    /// Number of tensor-parallel ranks, as for `serve` [default: 1]
    #[arg(long, value_name = "N")]
    pub tp: Option<usize>,
    /// Device to compute on [default: auto]
    #[arg(long, value_name = "DEVICE")]
    pub device: Option<DeviceChoice>,
    /// Longest conversation in tokens [default: the model's]
    #[arg(long, value_name = "N")]
    pub max_seq_len: Option<usize>,
    /// Type of the matrix multiplications [default: auto]
    #[arg(long, value_name = "TYPE")]
    pub dtype: Option<DtypeChoice>,
    /// Type of keys and values in the KV cache [default: auto]
    #[arg(long, value_name = "TYPE")]
    pub kv_dtype: Option<KvDtypeChoice>,
    /// Number of CPU compute threads [default: the machine's cores]
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
    /// TOML file with values for the flags of `serve`; the command line takes precedence
    #[arg(long, value_name = "FILE")]
    pub profile: Option<PathBuf>,
}

impl ChatFlags {
    /// Returns the flags of `redline serve` with which the model is loaded.
    pub fn serving(&self) -> Flags {
        Flags {
            tp: self.tp,
            device: self.device,
            max_seq_len: self.max_seq_len,
            dtype: self.dtype,
            kv_dtype: self.kv_dtype,
            threads: self.threads,
            profile: self.profile.clone(),
            // Nobody else asks.
            max_batch_size: Some(1),
            ..Flags::default()
        }
    }
}

/// Text that the line editor shows before each message.
const PROMPT: &str = "> ";

/// Commands that can be given instead of a message.
const HELP: &str = "\
/system TEXT   set the system message; without a text, remove it
/reset         forget the conversation
/help          show these commands
/quit          end, as does Ctrl-D
Ctrl-C stops an answer. A message that begins with a slash is sent if a space comes before it.
";

/// Loads the model and answers the lines of standard input until it ends, or `/quit` is read. Answers
/// go to standard output, everything else to standard error. On a terminal lines can be edited, and
/// reasoning is shown dimmed; elsewhere it is left out.
///
/// # Errors
/// The model cannot be loaded, has no chat template or no tokenizer, the engine fails, or standard
/// input or output cannot be used.
pub fn run(runtime: &Runtime, start: Start, flags: &ChatFlags, prepare: Prepare) -> Result<()> {
    engine_cpu::keep_large_blocks_apart();
    let clock = start.clock;
    let load = move |handle| prepare(&start, handle);
    let app = runtime
        .block_on(async { Server::start(load, Rules::of_this_process(), clock)?.loaded().await })?;
    let chat = LocalChat::new(app).map_err(failed)?;
    let mut conversation = Conversation::new(flags);
    let is_terminal = io::stdin().is_terminal() && io::stdout().is_terminal();
    let mut editor = DefaultEditor::new().context(EnvironmentError("cannot edit lines".into()))?;
    if is_terminal {
        log(format_args!("{}; /help shows the commands", chat.model_name()));
    }
    loop {
        let line = match editor.readline(if is_terminal { PROMPT } else { "" }) {
            Ok(line) => line,
            Err(ReadlineError::Eof) => return Ok(()),
            Err(ReadlineError::Interrupted) => {
                log(format_args!("Ctrl-D ends the conversation"));
                continue;
            }
            Err(error) => bail!(EnvironmentError(format!("cannot read a line: {error}"))),
        };
        if line.trim().is_empty() {
            continue;
        }
        // An editor without a history still edits lines.
        let _ = editor.add_history_entry(&line);
        match conversation.read(&line) {
            Input::Message => runtime.block_on(conversation.answer(&chat, is_terminal))?,
            Input::Said(text) => log::log_lines(&text),
            Input::Quit => return Ok(()),
        }
    }
}

/// Kind of a line of input.
#[derive(Debug, PartialEq, Eq)]
enum Input {
    /// Message, which is part of the conversation now.
    Message,
    /// Command that was carried out, or is not known, with what to tell the user.
    Said(String),
    Quit,
}

/// Messages so far, and the options of each request.
#[derive(Debug)]
struct Conversation {
    system: Option<String>,
    messages: Vec<Value>,
    /// Fields of each request besides `messages`.
    options: Map<String, Value>,
}

impl Conversation {
    fn new(flags: &ChatFlags) -> Self {
        let given = [
            ("temperature", flags.temperature.map(Value::from)),
            ("top_p", flags.top_p.map(Value::from)),
            ("max_tokens", flags.max_tokens.map(Value::from)),
        ];
        let given = given.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
        Self { system: flags.system.clone(), messages: Vec::new(), options: given.collect() }
    }

    /// Adds a message of the user, or carries out a command.
    fn read(&mut self, line: &str) -> Input {
        let Some(command) = line.strip_prefix('/') else {
            self.messages.push(json!({"role": "user", "content": line.trim()}));
            return Input::Message;
        };
        let (name, text) = command.split_once(char::is_whitespace).unwrap_or((command, ""));
        match name {
            "system" => {
                self.system = Some(text.trim().to_owned()).filter(|text| !text.is_empty());
                let done = if self.system.is_some() { "set" } else { "removed" };
                Input::Said(format!("system message {done}"))
            }
            "reset" => {
                self.messages.clear();
                Input::Said("conversation forgotten".into())
            }
            "help" => Input::Said(HELP.into()),
            "quit" | "exit" | "bye" => Input::Quit,
            _ => Input::Said(format!("no command `/{name}`; the commands are:\n{HELP}")),
        }
    }

    /// Returns the body of the request for the next answer.
    fn request(&self) -> Map<String, Value> {
        let system = self.system.iter().map(|text| json!({"role": "system", "content": text}));
        let messages = system.chain(self.messages.iter().cloned()).collect();
        let mut body = self.options.clone();
        body.insert("messages".into(), messages);
        body
    }

    /// Has the last message answered, and shows answer and speed. A message that cannot be answered,
    /// as in a conversation that has become too long, is taken back, and the error is shown.
    ///
    /// # Errors
    /// The engine has failed, or standard output cannot be written.
    async fn answer(&mut self, chat: &LocalChat, is_terminal: bool) -> Result<()> {
        let mut screen = Screen { out: io::stdout().lock(), is_terminal, dim: false, error: None };
        // Without a terminal the signal ends the process.
        let stop = async {
            match is_terminal {
                true => _ = tokio::signal::ctrl_c().await,
                false => std::future::pending().await,
            }
        };
        let answered = chat.answer(self.request(), stop, |parts| screen.show(parts)).await;
        screen.end()?;
        match answered {
            Ok(answer) => {
                log(format_args!("{}", speed(&answer)));
                self.messages.push(json!({"role": "assistant", "content": answer.text}));
                Ok(())
            }
            Err(error) if error.kind == ErrorKind::EngineFailed => Err(failed(error)),
            Err(error) => {
                self.messages.pop();
                let hint = match error.kind {
                    ErrorKind::ContextLengthExceeded => "; hint: /reset forgets the conversation",
                    _ => "",
                };
                log(format_args!("error: {}{hint}", error.message));
                Ok(())
            }
        }
    }
}

/// Returns an error of the engine as one of the command.
fn failed(error: ApiError) -> anyhow::Error {
    EnvironmentError(error.message).into()
}

/// Writes an answer to `out`, standard output.
struct Screen<W> {
    out: W,
    is_terminal: bool,
    /// True while dimmed text is written.
    dim: bool,
    /// First error of writing.
    error: Option<io::Error>,
}

impl<W: Write> Screen<W> {
    fn show(&mut self, parts: &SplitText) {
        let mut text = String::new();
        if self.is_terminal && !parts.reasoning.is_empty() {
            if !std::mem::replace(&mut self.dim, true) {
                text += "\x1b[2m";
            }
            text += &harmless(&parts.reasoning);
        }
        if !parts.content.is_empty() {
            if std::mem::take(&mut self.dim) {
                text += "\x1b[0m\n";
            }
            text += &harmless(&parts.content);
        }
        self.write(&text);
    }

    /// Ends the answer's line.
    fn end(mut self) -> Result<()> {
        let end = if self.dim { "\x1b[0m\n" } else { "\n" };
        self.write(end);
        match self.error {
            None => Ok(()),
            Some(error) => {
                bail!(EnvironmentError(format!("cannot write to standard output: {error}")))
            }
        }
    }

    fn write(&mut self, text: &str) {
        if self.error.is_none() {
            let written = self.out.write_all(text.as_bytes()).and_then(|()| self.out.flush());
            self.error = written.err();
        }
    }
}

/// Describes the size and speed of an answer.
fn speed(answer: &LocalAnswer) -> String {
    let mut said = format!("[{} tokens", answer.output_tokens);
    if answer.output_tokens > 0 {
        let _ = write!(said, ", the first after {:.2} s", answer.first_us as f64 / 1e6);
    }
    // The first token comes with the prompt; the others are decoded.
    if answer.output_tokens > 1 && answer.decode_us > 0 {
        let per_second = (answer.output_tokens - 1) as f64 * 1e6 / answer.decode_us as f64;
        let _ = write!(said, ", {per_second:.1} tokens/s");
    }
    let _ = write!(said, "; {} prompt tokens", answer.prompt_tokens);
    if answer.cached_tokens > 0 {
        let _ = write!(said, ", {} of them cached", answer.cached_tokens);
    }
    said += match answer.finish {
        None => "; stopped",
        Some(Finish::Length) => "; cut off at the length limit",
        Some(_) => "",
    };
    said + "]"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_change_the_conversation_and_other_lines_are_messages() {
        let flags = ChatFlags { temperature: Some(0.0), ..ChatFlags::default() };
        let mut conversation = Conversation::new(&flags);
        let said = |input: Input| match input {
            Input::Said(text) => text,
            other => panic!("{other:?}"),
        };
        assert_eq!(said(conversation.read("/system  Be brief. ")), "system message set");
        assert_eq!(conversation.read("Hello"), Input::Message);
        let system = json!({"role": "system", "content": "Be brief."});
        let hello = json!({"role": "user", "content": "Hello"});
        let body = Value::Object(conversation.request());
        assert_eq!(body, json!({"messages": [system, hello], "temperature": 0.0}));
        assert_eq!(said(conversation.read("/system")), "system message removed");
        assert_eq!(conversation.request()["messages"], json!([hello]));
        assert_eq!(said(conversation.read("/reset")), "conversation forgotten");
        assert!(said(conversation.read("/resets")).starts_with("no command `/resets`"));
        assert_eq!(conversation.read(" /etc/hosts is what?"), Input::Message);
        let path = json!({"role": "user", "content": "/etc/hosts is what?"});
        assert_eq!(conversation.request()["messages"], json!([path]));
        assert_eq!(conversation.read("/quit"), Input::Quit);
    }

    #[test]
    fn a_model_cannot_control_the_terminal() {
        let mut screen = Screen { out: Vec::new(), is_terminal: true, dim: false, error: None };
        let (reasoning, content) = ("\u{9b}2J".into(), "a\x1b[31mb\n\u{202e}c".into());
        screen.show(&SplitText { reasoning, content, ..SplitText::default() });
        let shown = String::from_utf8(screen.out).unwrap();
        assert_eq!(shown, "\x1b[2m\\u{9b}2J\x1b[0m\na\\u{1b}[31mb\n\\u{202e}c");
    }

    #[test]
    fn the_speed_is_that_of_the_decoded_tokens() {
        let answer = LocalAnswer {
            finish: Some(Finish::EndToken),
            prompt_tokens: 30,
            cached_tokens: 16,
            output_tokens: 11,
            first_us: 250_000,
            decode_us: 500_000,
            ..LocalAnswer::default()
        };
        assert_eq!(
            speed(&answer),
            "[11 tokens, the first after 0.25 s, 20.0 tokens/s; 30 prompt tokens, 16 of them cached]"
        );
        let stopped = LocalAnswer { prompt_tokens: 3, ..LocalAnswer::default() };
        assert_eq!(speed(&stopped), "[0 tokens; 3 prompt tokens; stopped]");
    }
}
