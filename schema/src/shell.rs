//! Command lines for a POSIX shell, built from words of others: a line that is pasted starts its
//! first word as a program and passes the other words on as they are, whatever they hold.

/// Words that a shell does not take for a program's name.
const RESERVED: &[&str] = &[
    "case", "coproc", "do", "done", "elif", "else", "esac", "fi", "for", "function", "if", "in",
    "select", "then", "time", "until", "while", "{", "}",
];

/// Names of variables by which the shell, the loader or Python runs other code than the program that
/// the line names. Python starts the program in `BROWSER` for a certain value of `PYTHONWARNINGS`.
const OTHER_CODE: &[&str] = &[
    "BASH_ENV",
    "BROWSER",
    "ENV",
    "IFS",
    "PATH",
    "PYTHONHOME",
    "PYTHONPATH",
    "PYTHONSTARTUP",
    "PYTHONWARNINGS",
    "SHELLOPTS",
];
/// Beginnings of names of variables by which the loader runs other code.
const OTHER_CODE_BEGINS: &[&str] = &["DYLD_", "LD_"];

/// Returns `word` as a shell takes it for one argument, in quotes where it needs them.
pub fn word(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,@%+{}".contains(c);
    // Bash expands `{a,b}` and `{1..9}` to several words, and zsh `=name` to a path.
    let expands = word.contains('{') && (word.contains(',') || word.contains(".."));
    if !word.is_empty() && word.chars().all(plain) && !expands && !word.starts_with('=') {
        return word.to_owned();
    }
    quoted(word)
}

/// Returns a command line that starts the first of `words` with the others as arguments.
pub fn line(words: &[impl AsRef<str>]) -> String {
    let mut line = String::new();
    for (index, part) in words.iter().map(AsRef::as_ref).enumerate() {
        if index > 0 {
            line.push(' ');
        }
        // Unquoted, the shell would take the first word for an assignment or for its own syntax.
        let is_assignment = part
            .split_once('=')
            .is_some_and(|(name, _)| is_variable(name.strip_suffix('+').unwrap_or(name)));
        let is_syntax = is_assignment || RESERVED.contains(&part);
        line += &if index == 0 && is_syntax { quoted(part) } else { word(part) };
    }
    line
}

/// Returns the beginning of a command line that sets the variable `name` to `value` for its program
/// alone: `NAME=VALUE `. `None` where `name` is no name of a variable, or one by which other code
/// than the program would run, such as `PATH` and `LD_PRELOAD`.
pub fn assignment(name: &str, value: &str) -> Option<String> {
    let runs_other_code =
        OTHER_CODE.contains(&name) || OTHER_CODE_BEGINS.iter().any(|begin| name.starts_with(begin));
    (is_variable(name) && !runs_other_code).then(|| format!("{name}={} ", word(value)))
}

/// True where `name` is the name of a shell variable: letters, digits and underscores, no digit
/// first.
pub fn is_variable(name: &str) -> bool {
    let letters = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    letters && !name.is_empty() && !name.starts_with(|c: char| c.is_ascii_digit())
}

fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_one_argument_whatever_it_holds() {
        for (text, expected) in [
            ("--tp=2", "--tp=2"),
            ("{model}", "{model}"),
            ("{path}/x.gguf", "{path}/x.gguf"),
            ("", "''"),
            ("it's", r"'it'\''s'"),
            ("$(x)`y`;z", "'$(x)`y`;z'"),
            ("a\nb", "'a\nb'"),
            ("{a,b}", "'{a,b}'"),
            ("{1..9}", "'{1..9}'"),
            ("=ls", "'=ls'"),
            ("é", "'é'"),
        ] {
            assert_eq!(word(text), expected, "{text:?}");
        }
    }

    #[test]
    fn the_first_word_is_a_program() {
        assert_eq!(line(&["vllm", "serve", "a b"]), "vllm serve 'a b'");
        assert_eq!(line(&["A=1", "A=1"]), "'A=1' A=1");
        assert_eq!(line(&["A+=1"]), "'A+=1'");
        assert_eq!(line(&["--tp=2", "--x"]), "--tp=2 --x");
        assert_eq!(line(&["while", "while"]), "'while' while");
        assert_eq!(line(&[""; 0]), "");
    }

    #[test]
    fn a_variable_has_a_name_and_changes_no_program() {
        assert_eq!(assignment("HF_HOME", "{path}").as_deref(), Some("HF_HOME={path} "));
        assert_eq!(assignment("A", "$(x)").as_deref(), Some("A='$(x)' "));
        for name in ["", "A B", "1A", "A;x", "$(x)", "É", "PATH", "LD_PRELOAD", "BASH_ENV"] {
            assert_eq!(assignment(name, "x"), None, "{name:?}");
        }
    }
}
