//! Removes from the text of a published report what names somebody's machine or is a secret; a word
//! in braces stands in its place.

use schema::run::PrintedRow;

/// Substrings by which a path on somebody's machine is recognized; a word of a serving command that
/// contains one is published as `{path}`.
const PRIVATE_PLACES: &[&str] =
    &["/home/", "/Users/", "/root/", "/tmp/", "/mnt/", "/var/", "/nvme"];
/// Names of settings whose value is an address of somebody's machine, each with the word that
/// stands for it.
const ADDRESSES: &[(&str, &str)] = &[("host", "{host}"), ("base_url", "{url}"), ("url", "{url}")];
/// Addresses that name no machine.
const ANYWHERE: &[&str] = &["None", "''", "'0.0.0.0'", "'127.0.0.1'", "'localhost'"];
/// Words in the name of a setting or an environment variable whose value is a secret.
const SECRET_WORDS: &[&str] = &["token", "secret", "password", "key", "apikey", "credentials"];

/// Values of settings that hide nothing, in Python and in JSON; numbers hide nothing either.
const OPEN: &[&str] = &["True", "False", "null", "true", "false"];

/// Returns `word`, or a placeholder where it contains a path of somebody's machine.
pub fn public(word: &str) -> String {
    if PRIVATE_PLACES.iter().any(|place| word.contains(place)) {
        "{path}".to_owned()
    } else {
        word.to_owned()
    }
}

/// Returns `text` with a placeholder for each word that contains a path of somebody's machine.
pub fn public_text(text: &str) -> String {
    let word = |word: &str| {
        let bare = word.trim_start_matches(['\'', '"']);
        let is_path = bare.len() > 1 && (bare.starts_with('/') || bare.starts_with("~/"));
        if is_path { "{path}".to_owned() } else { public(word) }
    };
    text.split(' ').map(word).collect::<Vec<_>>().join(" ")
}

/// True for an address without a path of somebody's machine and without a secret among the settings
/// that it gives.
pub fn is_public_address(address: &str) -> bool {
    let settings = address.split_once('?').map_or("", |(_, settings)| settings);
    let mut settings = settings.split(['&', '#']).filter_map(|part| part.split_once('='));
    public(address) == address && !settings.any(|(name, value)| is_secret(name, value))
}

/// Returns the value of an environment variable, without what names a machine or is a secret.
pub fn variable(name: &str, value: &str) -> String {
    if is_secret(name, value) { "{secret}".to_owned() } else { setting(name, value).text }
}

/// Returns the row of a setting or a figure, without what names a machine or is a secret. Numbers are
/// no secrets here: `total_token_throughput` is a figure.
pub fn setting(name: &str, value: &str) -> PrintedRow {
    let address = ADDRESSES.iter().find(|(known, _)| *known == name);
    let is_open = value.parse::<f64>().is_ok() || OPEN.contains(&value);
    let text = match address {
        _ if is_secret(name, value) && !is_open => "{secret}".to_owned(),
        Some((_, word)) if !ANYWHERE.contains(&value) => (*word).to_owned(),
        _ => public_text(value),
    };
    PrintedRow { section: None, label: name.to_owned(), text }
}

/// True for the name of a setting or an environment variable that holds a secret, by whole words.
fn is_secret(name: &str, value: &str) -> bool {
    let name = name.to_lowercase();
    let mut words = name.split(|c: char| !c.is_ascii_alphanumeric());
    !["", "None", "''"].contains(&value) && words.any(|word| SECRET_WORDS.contains(&word))
}
