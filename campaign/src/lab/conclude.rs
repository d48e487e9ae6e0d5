//! Conclusion of a lab: prints what was found, and the command that starts the recommended server.

use judge::lab::{Next, text};
use schema::exit::Exit;
use schema::lab::{Candidate, flag_name};
use schema::run::RunRecord;
use toml::{Table, Value};

use super::explore::{lab_of, next};
use super::spec::PreparedLab;
use crate::build::variants::REDLINE;
use crate::executor::journal::{Journal, PreparedCampaign};
use crate::files::write_whole;
use crate::launch::{Filling, command_line};
use crate::plan::Variant;
use crate::publish::finish::{print_paths, publish};
use crate::stop::Stop;
use crate::world::World;

/// File name of the recommended flags, in the campaign's folder.
const PROFILE: &str = "recommended.toml";

/// Prints the lab's conclusion and the recommended command. The exit code tells if a configuration
/// is recommended or none meets the limits.
///
/// # Errors
/// The registry's tool fails, or the campaign's folder is not writable.
pub fn finish(
    world: &World,
    ready: &PreparedCampaign,
    records: &[RunRecord],
    journal: &mut Journal,
) -> Result<Exit, Stop> {
    let published = publish(world, ready, records, None, journal)?;
    let exit = report(world, ready, journal)?;
    print_paths(world, ready, published.commit.as_deref());
    Ok(exit)
}

fn report(world: &World, ready: &PreparedCampaign, journal: &Journal) -> Result<Exit, Stop> {
    let lab = lab_of(ready);
    let next = next(world, ready, &journal.places().staged())?;
    world.console.answer(&format!("\n{}\n", text::text(&lab.asked.file, &next)));
    let recommended = match next {
        Next::Conclusion(found) => found.recommended,
        Next::Round(_) => {
            world.console.note("the lab is not finished: nothing is recommended yet");
            return Ok(Exit::Inconclusive);
        }
    };
    // No configuration runs within the limits: a result, reported by exit code 1.
    let Some(candidate) = recommended else { return Ok(Exit::Worse) };
    let variant = lab.variant(&candidate, &ready.plan.variants[candidate.engine]);
    world.console.answer(&format!("serve    {}", serve(ready, lab, &candidate, &variant)?));
    if let Some(text) = (variant.engine == REDLINE).then(|| profile(&variant.flags)).flatten() {
        let path = journal.places().dir().join(PROFILE);
        write_whole(&path, text.as_bytes())?;
        let shown = world.places.shown(&path);
        world.console.answer(&format!("profile  {shown}, for `redline serve MODEL --profile`"));
    }
    Ok(Exit::Well)
}

/// Returns the command that starts the recommended server.
fn serve(
    ready: &PreparedCampaign,
    lab: &PreparedLab,
    candidate: &Candidate,
    variant: &Variant,
) -> Result<String, Stop> {
    let model = &lab.asked.file.model;
    let spec = ready.variants[candidate.engine].with_variant(variant.clone());
    if variant.engine == REDLINE {
        let flags = quoted(&variant.flags);
        let more = if flags.is_empty() { String::new() } else { format!(" -- {flags}") };
        return Ok(format!("cargo xtask serve {} --model {model}{more}", variant.release));
    }
    let cell = ready.plan.cells.first();
    let filling = Filling {
        tp: cell.map_or(1, |cell| cell.tp),
        host: None,
        port: None,
        observed: false,
        ..spec.filling(model, 0)
    };
    Ok(quoted(&command_line(&spec.engine.file, filling)?.recorded))
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
