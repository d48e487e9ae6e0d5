//! Tests with damaged files, cut, doubled, shuffled or made up: each gives an answer, never a
//! crash, and none passes for the record that it was made from.

use judge::finding::Finding;
use samples::{Sample, campaign_id};
use schema::canonical::{to_canonical, to_file_text};
use schema::path::{of_event, of_run};
use serde_json::Value;
use store::storage::examine;

use crate::simulation::Random;

fn breaches(path: &str, bytes: &[u8]) -> Vec<Finding> {
    examine(path, bytes).1.into_iter().filter(|finding| finding.breach).collect()
}

fn sound() -> (String, String) {
    let record = Sample::default().record();
    let (path, text) = (of_run(&record).unwrap(), to_file_text(&record).unwrap());
    assert_eq!(breaches(&path, text.as_bytes()), []);
    (path, text)
}

#[test]
fn a_finding_repeats_little_of_a_text_of_any_length() {
    let (path, text) = sound();
    let long = "a".repeat(100_000);
    let status = text.replacen("\"status\": \"ok\"", &format!("\"status\": \"{long}\""), 1);
    let schema = text.replacen("run.v1", &long, 1);
    let event = of_event("01ARZ3NDEKTSV4RRFFQ69G5FAV").unwrap();
    let toml = format!("schema = \"event.v1\"\nkind = \"{long}\"\n");
    for (path, file) in [(&path, &status), (&path, &schema), (&event, &toml)] {
        assert_ne!(file, &text);
        let found = breaches(path, file.as_bytes());
        assert!(!found.is_empty());
        assert!(found.iter().all(|finding| finding.detail.len() < 1000), "{found:.2000?}");
    }
}

/// Damages a file in one of seven ways, chosen at random.
fn spoil(text: &[u8], chance: &mut Random) -> Vec<u8> {
    let mut bytes = text.to_vec();
    let at = chance.below(bytes.len());
    match chance.below(7) {
        0 => bytes.truncate(at),
        1 => bytes[at] ^= 1 << chance.below(8),
        2 => bytes[at] = u8::try_from(chance.below(256)).unwrap(),
        3 => {
            let end = (at + chance.below(200)).min(bytes.len());
            bytes.drain(at..end);
        }
        4 => {
            let end = (at + chance.below(200)).min(bytes.len());
            let doubled = bytes[at..end].to_vec();
            bytes.splice(at..at, doubled);
        }
        5 => {
            // Swaps two lines.
            let mut lines: Vec<Vec<u8>> = text.split(|b| *b == b'\n').map(<[u8]>::to_vec).collect();
            let (a, b) = (chance.below(lines.len()), chance.below(lines.len()));
            lines.swap(a, b);
            bytes = lines.join(&b'\n');
        }
        _ => {
            let number = ["1e999", "-0", "18446744073709551616", "null", "[]", "\"\\u0000\""];
            let number = number[chance.below(6)].as_bytes();
            let digits = bytes.iter().enumerate().filter(|(_, b)| b.is_ascii_digit());
            let places: Vec<usize> = digits.map(|(index, _)| index).collect();
            if let Some(&place) = places.get(chance.below(places.len())) {
                bytes.splice(place..=place, number.iter().copied());
            }
        }
    }
    bytes
}

/// Parses a JSON text; `None` where it is not valid.
fn meaning(bytes: &[u8]) -> Option<String> {
    to_canonical(&serde_json::from_slice::<Value>(bytes).ok()?).ok()
}

#[test]
fn a_spoilt_record_never_passes_for_another() {
    let (path, text) = sound();
    let said = meaning(text.as_bytes());
    let mut caught = 0;
    for seed in 0..4_000 {
        let mut chance = Random::new(seed);
        let mut bytes = text.as_bytes().to_vec();
        for _ in 0..=chance.below(3) {
            bytes = spoil(&bytes, &mut chance);
            if bytes.is_empty() {
                break;
            }
        }
        let found = breaches(&path, &bytes);
        if meaning(&bytes) != said {
            assert!(!found.is_empty(), "seed {seed} passed");
            caught += 1;
        }
    }
    assert!(caught > 3_000, "only {caught} files were spoilt");
}

#[test]
fn a_spoilt_event_is_an_answer() {
    let id = campaign_id(7);
    let path = of_event(&id).unwrap();
    let text = format!(
        "schema = \"event.v1\"\nid = \"{id}\"\nkind = \"waive\"\nat = \"2026-01-02T00:00:00Z\"\n\
         reason = \"Known.\"\ncell = \"redline/*/*/*/*\"\nmetric = \"tpot_us_p50\"\n\
         expires = \"2026-02-01T00:00:00Z\"\n"
    );
    assert_eq!(breaches(&path, text.as_bytes()), []);
    for seed in 0..2_000 {
        let mut chance = Random::new(seed);
        let bytes = spoil(text.as_bytes(), &mut chance);
        // Any answer is accepted, as long as the program does not crash.
        let _ = breaches(&path, &bytes);
    }
    for hostile in ["a = [[[[", "schema = 1", "a.b.c.d = 1\na.b = 2", "id = 99999999999999999999"] {
        assert!(!breaches(&path, hostile.as_bytes()).is_empty(), "{hostile}");
    }
    let deep = format!("a = {}1{}", "[".repeat(50_000), "]".repeat(50_000));
    assert!(!breaches(&path, deep.as_bytes()).is_empty());
}

#[test]
fn a_path_that_leads_elsewhere_is_no_place_for_a_record() {
    let (path, text) = sound();
    for hostile in [
        format!("runs/../{path}"),
        path.replace("balanced-lite@1", ".."),
        path.replace("redline", "red line"),
        path.replace("runs/", "runs//"),
    ] {
        assert!(!breaches(&hostile, text.as_bytes()).is_empty(), "{hostile}");
    }
}

#[test]
fn an_id_of_a_time_to_come_is_named() {
    let late = schema::id::ulid(4_000_000_000_000, 7);
    let found = store::storage::from_the_future("runs/x.json", &late, 1_767_225_600_000);
    let text = found.unwrap().to_string();
    assert!(text.contains("days from now"), "{text}");
    let soon = schema::id::ulid(1_767_225_600_000 + 3_600_000, 7);
    assert_eq!(store::storage::from_the_future("x", &soon, 1_767_225_600_000), None);
}
