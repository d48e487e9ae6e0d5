//! Reference pages that programs print: the help text of every program and of each of its commands
//! (`docs/reference/cli/*.md`), and the findings (`docs/reference/findings.md`).

use std::fmt::Write as _;
use std::fs;

use anyhow::{Context, Result};

use crate::build;
use crate::shell::Shell;

/// Folder of the reference pages, below the workspace's root.
const FOLDER: &str = "docs/reference/cli";

/// Reference page of findings, below the workspace's root.
const FINDINGS: &str = "docs/reference/findings.md";

/// Programs that have a reference page.
const PROGRAMS: &[&str] = &[
    "redline",
    "redline-bench",
    "redline-campaign",
    "redline-peers",
    "redline-results",
    "redline-site",
];

/// Writes all files that are generated from the code, or with `check` prints which of them are stale.
/// Returns the worst exit code: not 0 if one is stale.
///
/// # Errors
/// A program does not build, cannot be started or fails, or a page cannot be written.
pub fn generated_files(shell: &Shell, check: bool) -> Result<u8> {
    let code = build::generated_files(shell, check)?;
    Ok(code.max(run(shell, check)?))
}

/// Writes the reference pages of the programs and of findings, or with `check` prints which of them are stale. Returns
/// 0, or 2 if one is stale.
///
/// # Errors
/// A program does not build or cannot print its help, or a page cannot be written.
fn run(shell: &Shell, check: bool) -> Result<u8> {
    build::build(shell, PROGRAMS)?;
    let folder = shell.root.join(FOLDER);
    if !check {
        fs::create_dir_all(&folder).with_context(|| format!("`{FOLDER}`"))?;
    }
    let rules = shell.read(&shell.built("redline-results"), &["rules", "--format", "md"])?;
    let mut pages = vec![(shell.root.join(FINDINGS), rules)];
    for program in PROGRAMS {
        let mut text = format!(
            "# `{program}`\n\nHelp texts of the program and its commands, written by `cargo xtask \
             codegen`.\n"
        );
        add(&mut text, shell, program, &mut Vec::new())?;
        pages.push((folder.join(format!("{program}.md")), text));
    }
    let mut code = 0;
    for (path, text) in pages {
        // A page without a file is stale as well.
        if fs::read_to_string(&path).unwrap_or_default() == text {
            continue;
        }
        if check {
            eprintln!("{}: stale; run `cargo xtask codegen`", path.display());
            code = 2;
        } else {
            fs::write(&path, text).with_context(|| format!("`{}`", path.display()))?;
        }
    }
    Ok(code)
}

/// Adds the help text of a command, given by the words after the program's name, and those of the
/// commands that it lists.
fn add(text: &mut String, shell: &Shell, program: &str, words: &mut Vec<String>) -> Result<()> {
    let asked = [&words[..], &["--help".to_owned()]].concat();
    let help = shell.read(&shell.built(program), &asked)?;
    let name = [&[program.to_owned()], &words[..]].concat().join(" ");
    let _ = write!(text, "\n## `{name}`\n\n```text\n{}\n```\n", help.trim_end());
    for command in commands(&help) {
        words.push(command.to_owned());
        add(text, shell, program, words)?;
        words.pop();
    }
    Ok(())
}

/// Returns the commands that a help text lists, without `help`.
fn commands(help: &str) -> Vec<&str> {
    let listed = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    // The list ends with an empty line; the second line of a description is indented further.
    let listed = listed.take_while(|line| !line.is_empty());
    let entries = listed.filter_map(|line| line.strip_prefix("  "));
    let names = entries.filter(|entry| !entry.starts_with(' '));
    names.filter_map(|entry| entry.split(' ').next()).filter(|name| *name != "help").collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_those_of_the_list() {
        let help = "Tool\n\nUsage: tool <COMMAND>\n\nCommands:\n  run    Run it\n         twice\n  \
                    stop-all  Stop\n  help   Print this\n\nOptions:\n  -h, --help  Print help\n";
        assert_eq!(commands(help), ["run", "stop-all"]);
        assert_eq!(commands("Usage: tool\n"), [""; 0]);
    }
}
