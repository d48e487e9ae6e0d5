//! Conclusion of a lab: prints what was found, and the command that starts the recommended server.

use std::path::PathBuf;

use schema::exit::Exit;
use schema::lab::{Candidate, flag_name};
use toml::{Table, Value};

use super::asked::ReadyLab;
use super::question::{self, Next};
use crate::build::sides::REDLINE;
use crate::executor::journal::Journal;
use crate::executor::ready::Ready;
use crate::files::write_whole;
use crate::plan::Side;
use crate::plan::launch::{Filling, command_line};
use crate::publish::Registry;
use crate::stop::Stop;
use crate::world::World;

/// File name of the recommended flags, in the campaign's folder.
const PROFILE: &str = "recommended.toml";

/// Prints the lab's conclusion and the recommended command. The exit code tells if a configuration
/// is recommended or none meets the limits.
///
/// # Errors
/// The registry's tool fails, or the campaign's folder is not writable.
pub fn tell(
    world: &World,
    (ready, lab): (&Ready, &ReadyLab),
    registry: &Registry<'_>,
    journal: &Journal,
) -> Result<Exit, Stop> {
    let overlay = journal.places().overlay();
    let of = (ready.plan.campaign.as_str(), overlay.as_path());
    world.console.answer("");
    let answer = question::next(registry, lab, of)?;
    world.console.answer(&answer.text);
    world.console.answer("");
    let recommended = match answer.next {
        Next::Conclusion(found) => found.recommended,
        Next::Round(_) => {
            world.console.note("the lab is not finished: nothing is recommended yet");
            return Ok(Exit::Inconclusive);
        }
    };
    // No configuration runs within the limits: a result, reported by exit code 1.
    let Some(candidate) = recommended else { return Ok(Exit::Worse) };
    let side = lab.side(&candidate, &ready.plan.sides[candidate.engine]);
    world.console.answer(&format!("serve    {}", serve(ready, lab, &candidate, &side)?));
    if let Some(text) = (side.engine == REDLINE).then(|| profile(&side.flags)).flatten() {
        let path = journal.places().dir().join(PROFILE);
        write_whole(&path, text.as_bytes())?;
        let shown = world.places.shown(&path);
        world.console.answer(&format!("profile  {shown}, for `redline serve MODEL --profile`"));
    }
    Ok(Exit::Well)
}

/// Returns the command that starts the recommended server.
fn serve(
    ready: &Ready,
    lab: &ReadyLab,
    candidate: &Candidate,
    side: &Side,
) -> Result<String, Stop> {
    let (file, model) = (&ready.sides[candidate.engine].engine.file, &lab.asked.file.model);
    if side.engine == REDLINE {
        let flags = quoted(&side.flags);
        let more = if flags.is_empty() { String::new() } else { format!(" -- {flags}") };
        return Ok(format!("cargo xtask serve {} --model {model}{more}", side.release));
    }
    let binary = PathBuf::from(&side.engine);
    let cell = ready.plan.cells.first();
    let filling = Filling {
        tp: cell.map_or(1, |cell| cell.tp),
        host: None,
        port: None,
        observed: false,
        flags: &side.flags,
        ..Filling::measured(&side.engine, &binary, model, 0)
    };
    Ok(quoted(&command_line(file, filling)?.recorded))
}

/// Joins words into a command line for the shell, quoted where needed.
fn quoted(words: &[String]) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,@%+{}".contains(c);
    let quote = |word: &String| match !word.is_empty() && word.chars().all(plain) {
        true => word.clone(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    };
    words.iter().map(quote).collect::<Vec<_>>().join(" ")
}

/// Returns the flags as the text of a file for `redline serve --profile`; `None` without flags.
fn profile(flags: &[String]) -> Option<String> {
    let mut table = Table::new();
    let mut name = None;
    for word in flags {
        match (flag_name(word), &name) {
            (Some(flag), _) => {
                let key = flag.trim_start_matches('-').to_owned();
                let value = word.split_once('=').map(|(_, value)| typed(value));
                table.insert(key.clone(), value.unwrap_or(Value::Boolean(true)));
                name = Some(key);
            }
            (None, Some(key)) => {
                table.insert(key.clone(), typed(word));
            }
            (None, None) => {}
        }
    }
    (!table.is_empty()).then(|| table.to_string())
}

/// Converts a flag's value to a TOML number if it is one, else to a string.
fn typed(value: &str) -> Value {
    let whole = value.parse().map(Value::Integer);
    let real = value.parse().map(Value::Float);
    whole.or(real).unwrap_or_else(|_| Value::String(value.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    fn words(text: &str) -> Vec<String> {
        text.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn recommended_flags_are_a_profile() {
        let flags = "--threads 1 --no-prefix-cache --kv-dtype f16 --cache-max-entry-count=0.5";
        expect![[r#"
            cache-max-entry-count = 0.5
            kv-dtype = "f16"
            no-prefix-cache = true
            threads = 1
        "#]]
        .assert_eq(&profile(&words(flags)).unwrap());
        assert_eq!(profile(&[]), None);
    }

    #[test]
    fn a_command_can_be_pasted() {
        let line = [words("serve --threads 1"), vec!["{\"a\": 1}".to_owned(), "it's".to_owned()]];
        assert_eq!(quoted(&line.concat()), r#"serve --threads 1 '{"a": 1}' 'it'\''s'"#);
    }
}
