//! Chat template: the checkpoint's Jinja program that turns messages into a prompt.
//!
//! Settings and extra functions are those of Hugging Face's `apply_chat_template`. A checkpoint may
//! come from anywhere, so the template's output, executed instructions and recursion depth are
//! limited.

use std::fmt;
use std::io::{self, Write};
use std::panic::resume_unwind;
use std::thread;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Rest, Serde, StringInput, ValueOrKwargs};
use minijinja::{Environment, Error, ErrorKind, State, Value, filters};
use minijinja_contrib::pycompat::unknown_method_callback;
use serde::Serialize;
use time::OffsetDateTime;

use crate::guide::TextError;
use crate::tools;

/// Limit on the output of a chat template, in bytes; rendering fails beyond it.
const OUTPUT_BYTES_MAX: usize = 16 << 20;
/// Limit on the nesting depth of calls, includes and macros in a chat template; rendering fails
/// beyond it.
const RECURSION_MAX: usize = 100;
/// Limit on the number of template instructions that one rendering of a chat template executes,
/// about one second of work; rendering fails beyond it. A conversation of a thousand messages needs
/// a twentieth of it.
const FUEL: u64 = 20_000_000;
/// Limit on the length of a chat template in bytes; those of published models have up to 30 KB.
const SOURCE_BYTES_MAX: usize = 128 << 10;
/// Limit on the number of entries, lists or columns that a template requests from a filter. The
/// template engine has the same limit for `range`.
const COUNT_MAX: usize = 100_000;
/// Size of the stack on which a chat template is compiled: enough for as many levels as its length
/// allows. The system gives memory only for what is used.
const STACK_BYTES: usize = 256 << 20;
const NAME: &str = "chat";

/// Compiled chat template, with the texts of the BOS and EOS tokens, which templates may print.
pub(crate) struct ChatTemplate {
    environment: Environment<'static>,
    /// True if the template names the role `developer`, which newer clients give to system messages.
    knows_developer: bool,
    /// True if the template shows no tools to the model, so that the system message has to.
    wants_instructions: bool,
    bos_token: String,
    eos_token: String,
}

impl fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChatTemplate").finish_non_exhaustive()
    }
}

/// Conversation to render with a chat template.
#[derive(Debug, Clone, Copy)]
pub struct Chat<'a> {
    /// Messages of the conversation: a JSON array of objects with `role` and `content`.
    pub messages: &'a serde_json::Value,
    /// True to end the rendered prompt with the header of the model's next answer.
    pub add_generation_prompt: bool,
    /// Tools that the model may call: a JSON array in OpenAI's format; `None` for no tools.
    pub tools: Option<&'a serde_json::Value>,
    /// Further variables of the template as a JSON object, such as `enable_thinking`; `None` for no
    /// further ones.
    pub variables: Option<&'a serde_json::Value>,
    /// Current time in seconds since 1970, for templates that print the date.
    pub now_unix_s: u64,
}

/// Error that a chat template itself raised by calling `raise_exception`, with its message.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Raised(String);

/// Error: a checkpoint's chat template cannot be compiled.
#[derive(Debug)]
pub(crate) enum TemplateError {
    /// The template is wrong.
    Wrong(Error),
    /// The system denied the thread that compiles it.
    NoThread(io::Error),
}

impl From<Error> for TemplateError {
    fn from(error: Error) -> Self {
        Self::Wrong(error)
    }
}

impl ChatTemplate {
    /// Compiles the template `source`.
    ///
    /// # Errors
    /// The template is wrong or too long, or the system denies a thread.
    pub(crate) fn new(
        source: String,
        bos_token: Option<String>,
        eos_token: Option<String>,
    ) -> Result<Self, TemplateError> {
        let mut environment = Environment::new();
        // Hugging Face compiles templates with these settings.
        environment
            .set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
        environment.set_recursion_limit(RECURSION_MAX);
        environment.set_fuel(Some(FUEL));
        // Templates call Python's methods of strings and dictionaries.
        environment.set_unknown_method_callback(|state, value, method, args| {
            if let (Some(format), "format") = (value.as_str(), method) {
                check_widths(format)?;
            }
            unknown_method_callback(state, value, method, args)
        });
        environment.add_function("raise_exception", |message: String| -> Result<Value, Error> {
            let error = Error::new(ErrorKind::InvalidOperation, "raised by the template");
            Err(error.with_source(Raised(message)))
        });
        environment.add_filter("tojson", to_json);
        add_limited(&mut environment);
        if source.len() > SOURCE_BYTES_MAX {
            let message = format!("it has more than {SOURCE_BYTES_MAX} bytes");
            return Err(Error::new(ErrorKind::BadSerialization, message).into());
        }
        let knows_developer = source.contains("developer");
        let wants_instructions = tools::wants_instructions(&source);
        // The parser descends once for each level of an expression, such as `a.b.c`.
        thread::scope(|scope| {
            let thread = thread::Builder::new().name("template".into()).stack_size(STACK_BYTES);
            let compile = || environment.add_template_owned(NAME, source);
            let started = thread.spawn_scoped(scope, compile).map_err(TemplateError::NoThread)?;
            Ok::<_, TemplateError>(started.join().unwrap_or_else(|panic| resume_unwind(panic))?)
        })?;
        let (bos_token, eos_token) = (bos_token.unwrap_or_default(), eos_token.unwrap_or_default());
        Ok(Self { environment, knows_developer, wants_instructions, bos_token, eos_token })
    }

    /// Renders the prompt for `chat`. It contains the special tokens already, so it must be
    /// tokenized without adding any.
    ///
    /// # Errors
    /// The template refuses the messages, is faulty, or exceeds a limit.
    pub(crate) fn render(&self, chat: &Chat<'_>) -> Result<String, TextError> {
        let template = self.environment.get_template(NAME).map_err(refused)?;
        let mut variables = match chat.variables {
            Some(serde_json::Value::Object(variables)) => variables.clone(),
            _ => serde_json::Map::new(),
        };
        let mut messages = chat.messages.clone();
        if !self.knows_developer {
            developers_to_system(&mut messages);
        }
        let mut tools = chat.tools.cloned().unwrap_or_default();
        if self.wants_instructions && !tools.is_null() {
            messages = tools::instructed(&messages, &tools.take());
        }
        variables.insert("messages".into(), messages);
        variables.insert("tools".into(), tools);
        variables.insert("add_generation_prompt".into(), chat.add_generation_prompt.into());
        variables.insert("bos_token".into(), self.bos_token.clone().into());
        variables.insert("eos_token".into(), self.eos_token.clone().into());
        let now = chat.now_unix_s;
        let strftime_now = Value::from_function(move |format: String| strftime(&format, now));
        let context = minijinja::context! {
            strftime_now => strftime_now,
            ..Value::from(Serde(&variables))
        };
        let mut out = Limited(Vec::new());
        template.render_captured_to(context, &mut out).map_err(refused)?;
        Ok(String::from_utf8_lossy(&out.0).into_owned())
    }
}

/// Gives messages with the role `developer` the role `system`, which is the older name for it.
fn developers_to_system(messages: &mut serde_json::Value) {
    for message in messages.as_array_mut().into_iter().flatten() {
        if message["role"] == "developer" {
            message["role"] = "system".into();
        }
    }
}

/// Converts an error of a chat template to one for clients. It includes the error's causes, because
/// a client does not see the log.
fn refused(error: Error) -> TextError {
    let error = anyhow::Error::new(error);
    // Raised by the template itself: the messages are wrong, not the template.
    if let Some(Raised(message)) = error.chain().find_map(|cause| cause.downcast_ref()) {
        return TextError(format!("the chat template refused the messages: {message}"));
    }
    TextError(format!("failed to render the chat template: {error:#}"))
}

/// Output buffer of a chat template; a write that would make it larger than 16 MiB
/// (`OUTPUT_BYTES_MAX`) fails.
struct Limited(Vec<u8>);

impl Write for Limited {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.len() + bytes.len() > OUTPUT_BYTES_MAX {
            return Err(io::Error::other("the template writes more than 16 MiB"));
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Adds the filters that would take as much memory as a number in the template says, with limits,
/// and a test that would end in a panic.
fn add_limited(environment: &mut Environment<'_>) {
    type Filled = Option<Value>;
    // The template engine itself panics where the divisor is 0.
    environment.add_test("divisibleby", |value: Value, divisor: Value| {
        if divisor.is_true() {
            return Ok(minijinja::tests::is_divisibleby(&value, &divisor));
        }
        Err(Error::new(ErrorKind::InvalidOperation, "`divisibleby` has the divisor 0"))
    });
    environment.add_filter("batch", |state: &State, value: Value, count: usize, fill: Filled| {
        within("batch", count, COUNT_MAX)?;
        filters::batch(state, value, count, fill)
    });
    environment.add_filter("slice", |state: &State, value: Value, count: usize, fill: Filled| {
        within("slice", count, COUNT_MAX)?;
        filters::slice(state, value, count, fill)
    });
    environment.add_filter("indent", indent);
    environment.add_filter(
        "format",
        |state: &mut State, format: Value, values: Rest<ValueOrKwargs>| {
            format.as_str().map_or(Ok(()), check_widths)?;
            filters::format(state, &format, values)
        },
    );
}

/// Filter `indent` of the template engine, whose spaces take at most as much as a whole prompt may.
fn indent(
    text: StringInput<'_>,
    width: Option<usize>,
    first: Option<bool>,
    blank: Option<bool>,
    options: Kwargs,
) -> Result<Value, Error> {
    let asked = match width {
        Some(width) => width,
        None => options.get::<Option<usize>>("width")?.unwrap_or(4),
    };
    let lines = 1 + text.as_str().matches('\n').count();
    within("indent", asked.saturating_mul(lines), OUTPUT_BYTES_MAX)?;
    filters::indent(text, width, first, blank, options)
}

/// Refuses a format string with a number that is too large for a width or precision.
fn check_widths(format: &str) -> Result<(), Error> {
    let mut numbers =
        format.split(|c: char| !c.is_ascii_digit()).filter(|digits| !digits.is_empty());
    numbers.try_for_each(|digits| within("format", digits.parse().unwrap_or(usize::MAX), COUNT_MAX))
}

/// Refuses a number that a template gives to `filter`, and that is above a limit.
fn within(filter: &str, count: usize, max: usize) -> Result<(), Error> {
    if count <= max {
        return Ok(());
    }
    let message = format!("`{filter}` has a size of {count}, more than the limit of {max}");
    Err(Error::new(ErrorKind::InvalidOperation, message))
}

/// Filter `tojson` of chat templates: Python's `json.dumps(value, ensure_ascii=False,
/// indent=indent)`, for which templates were written, with an indent of at most 16. The template
/// engine's own filter escapes for HTML instead.
fn to_json(value: &Value, options: Kwargs) -> Result<Value, Error> {
    let indent: Option<usize> = options.get("indent")?;
    let wrong = |err: serde_json::Error| {
        Error::new(ErrorKind::BadSerialization, "cannot be written as JSON").with_source(err)
    };
    let mut out = Vec::new();
    // Without a limit on the indent a template could fill the memory.
    match indent.map(|width| " ".repeat(width.min(16))) {
        Some(indent) => {
            let formatter = serde_json::ser::PrettyFormatter::with_indent(indent.as_bytes());
            let mut serializer = serde_json::Serializer::with_formatter(&mut out, formatter);
            value.serialize(&mut serializer).map_err(wrong)?;
        }
        None => {
            let mut serializer = serde_json::Serializer::with_formatter(&mut out, Spaced);
            value.serialize(&mut serializer).map_err(wrong)?;
        }
    }
    Ok(Value::from_safe_string(String::from_utf8_lossy(&out).into_owned()))
}

/// JSON formatter with the separators of Python's `json.dumps`: a space after each comma and colon.
struct Spaced;

impl serde_json::ser::Formatter for Spaced {
    fn begin_array_value<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { out.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { out.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        out.write_all(b": ")
    }
}

/// Formats a time, in seconds since 1970, in UTC, with the conversions of `strftime` that chat
/// templates use; other conversions stay as they are.
pub(crate) fn strftime(format: &str, unix_s: u64) -> String {
    let now = OffsetDateTime::from_unix_timestamp(unix_s as i64);
    let now = now.unwrap_or(OffsetDateTime::UNIX_EPOCH);
    let (month, weekday) = (now.month().to_string(), now.weekday().to_string());
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        out += &match chars.next() {
            Some('Y') => format!("{:04}", now.year()),
            Some('y') => format!("{:02}", now.year() % 100),
            Some('m') => format!("{:02}", u8::from(now.month())),
            Some('d') => format!("{:02}", now.day()),
            Some('B') => month.clone(),
            Some('b') => month[..3].to_owned(),
            Some('A') => weekday.clone(),
            Some('a') => weekday[..3].to_owned(),
            Some('H') => format!("{:02}", now.hour()),
            Some('M') => format!("{:02}", now.minute()),
            Some('S') => format!("{:02}", now.second()),
            None | Some('%') => "%".to_owned(),
            // An unknown conversion stays as it is.
            Some(other) => format!("%{other}"),
        };
    }
    out
}

#[cfg(test)]
mod tests {
    use super::strftime;

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (seconds, want) in [
            (0, "Thursday 01 January 1970 00:00:00"),
            (951_782_399, "Monday 28 February 2000 23:59:59"),
            (951_782_400, "Tuesday 29 February 2000 00:00:00"),
            (4_107_542_400, "Monday 01 March 2100 00:00:00"),
        ] {
            assert_eq!(strftime("%A %d %B %Y %H:%M:%S", seconds), want);
        }
        assert_eq!(strftime("%d %b %y 100%% %q %", 0), "01 Jan 70 100% %q %");
    }
}
