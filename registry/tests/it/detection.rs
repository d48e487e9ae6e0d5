//! Study of tampered submissions: which kinds of tampering the check finds. It makes the table of
//! `docs/method/submissions.md`.

use std::fs;
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use registry::submission::verdict::{Verdict, check};
use ring::digest::{SHA512, digest};
use ring::signature::{Ed25519KeyPair, KeyPair};
use samples::reseal;
use samples::submission::{Machine, campaign};
use schema::canonical::{record_sha256, sha256_hex, to_file_text};
use schema::document;
use schema::path::{of_campaign, of_run};
use schema::random::SplitMix64;
use schema::submission::{
    MANIFEST_SCHEMA, ManifestEntry, NAMESPACE, SCHEMA, SubmissionBundle, SubmissionManifest,
    SubmittedFile,
};
use schema::telemetry::HostTelemetry;
use tempfile::TempDir;

use crate::scratch::write;
use crate::tampering::{Case, TAMPERINGS};

/// Environment variable that makes the full study write the table, when it is 1.
const RENEW: &str = "REDLINE_RENEW_SUBMISSIONS";
/// Command that the marker line of the table names.
const COMMAND: &str = "cargo nextest run -P extra -p registry extra_a_thousand";
/// Number of bundles of each kind of tampering that are signed again; as many are not.
const EACH: u64 = 20;
/// 2026-02-01, a month after the made-up campaigns.
const NOW: i64 = 1_769_904_000;

/// Numbers of bundles of one kind of tampering, by what the check says.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Tally {
    refused: u64,
    doubtful: u64,
    missed: u64,
    /// Number of bundles without a new signature that were refused.
    unsigned_refused: u64,
}

/// Registries of maintainers who know an earlier campaign of the machine, and the submitter's key.
struct Bench {
    registries: [(Machine, TempDir); 2],
    key: Ed25519KeyPair,
}

impl Bench {
    fn new() -> Self {
        let registries = [Machine::Cpu, Machine::Gpu].map(|machine| {
            let dir = tempfile::tempdir().unwrap();
            let (runs, record) = campaign(machine, 1);
            for file in files(&runs, &record) {
                write(&dir.path().join("results").join(&file.path), &file.text);
            }
            (machine, dir)
        });
        Self { registries, key: Ed25519KeyPair::from_seed_unchecked(&[7; 32]).unwrap() }
    }

    /// A sound campaign, in which one run has a reservation.
    fn case(&self, machine: Machine, seed: u64) -> Case {
        let serial = 2;
        let (mut runs, campaign) = campaign(machine, serial);
        let host = HostTelemetry { cpu_steal_share: Some(0.2), ..HostTelemetry::default() };
        runs[1].telemetry.as_mut().unwrap().host = Some(host);
        runs[1].validity = judge::validity::of_fresh(&runs[1], &judge::rule::Evidence::default());
        runs[1] = reseal(runs[1].clone());
        Case { machine, serial, runs, campaign, random: SplitMix64(seed) }
    }

    fn bundle(&self, case: &Case) -> SubmissionBundle {
        let mut files = files(&case.runs, &case.campaign);
        files.sort_by(|a, b| a.path.cmp(&b.path));
        let entry = |file: &SubmittedFile| ManifestEntry {
            path: file.path.clone(),
            bytes: file.text.len() as u64,
            sha256: sha256_hex(file.text.as_bytes()),
        };
        let manifest = SubmissionManifest {
            schema: MANIFEST_SCHEMA.to_owned(),
            submitter: "mallory".to_owned(),
            made_at: "2026-02-01T00:00:00Z".to_owned(),
            files: files.iter().map(entry).collect(),
            withheld: Vec::new(),
        };
        let manifest = to_file_text(&manifest).unwrap();
        let signature = signed(&self.key, manifest.as_bytes());
        SubmissionBundle { schema: SCHEMA.to_owned(), manifest, signature, files }
    }

    fn verdict(&self, machine: Machine, bundle: &SubmissionBundle) -> (Verdict, String) {
        let bytes = to_file_text(bundle).unwrap();
        let (_, dir) = self.registries.iter().find(|(of, _)| *of == machine).unwrap();
        let (checked, _) = check(bytes.as_bytes(), dir.path(), None, NOW).unwrap();
        (checked.verdict, checked.to_string())
    }

    /// Tampers `each` times in each way, with and without a new signature.
    fn study(&self, each: u64) -> Vec<Tally> {
        let mut tallies = Vec::new();
        for (kind, (name, tamper)) in TAMPERINGS.iter().enumerate() {
            let mut tally = Tally::default();
            for number in 0..each {
                let machine = [Machine::Cpu, Machine::Gpu][usize::from(number % 2 == 1)];
                let mut case = self.case(machine, 1_000 * (kind as u64 + 1) + number);
                let sound = self.bundle(&case);
                tamper(&mut case);
                case.runs.iter_mut().for_each(|run| *run = reseal(run.clone()));
                case.campaign.record_sha256 = record_sha256(&case.campaign).unwrap();
                let signed = self.bundle(&case);
                assert_ne!(signed.files, sound.files, "{name} {number} changes nothing");
                match self.verdict(machine, &signed).0 {
                    Verdict::Unsound => tally.refused += 1,
                    Verdict::Doubtful => tally.doubtful += 1,
                    Verdict::Sound => tally.missed += 1,
                }
                // The old manifest and signature do not fit the changed files.
                let unsigned = SubmissionBundle { files: signed.files, ..sound };
                let is_refused = self.verdict(machine, &unsigned).0 == Verdict::Unsound;
                tally.unsigned_refused += u64::from(is_refused);
            }
            tallies.push(tally);
        }
        tallies
    }
}

fn files(
    runs: &[schema::run::RunRecord],
    campaign: &schema::campaign::CampaignRecord,
) -> Vec<SubmittedFile> {
    let run = |run: &schema::run::RunRecord| SubmittedFile {
        path: of_run(run).unwrap(),
        text: to_file_text(run).unwrap(),
    };
    let mut files: Vec<SubmittedFile> = runs.iter().map(run).collect();
    let (path, text) = (of_campaign(campaign).unwrap(), to_file_text(campaign).unwrap());
    files.push(SubmittedFile { path, text });
    files
}

/// Signs as `ssh-keygen -Y sign` does. The tests of the commands sign with that program.
fn signed(key: &Ed25519KeyPair, message: &[u8]) -> String {
    let text = |bytes: &[u8]| {
        let length = u32::try_from(bytes.len()).unwrap().to_be_bytes();
        [&length[..], bytes].concat()
    };
    let of_kind = |bytes: &[u8]| text(&[text(b"ssh-ed25519"), text(bytes)].concat());
    let head = [text(NAMESPACE.as_bytes()), text(b""), text(b"sha512")].concat();
    let hash = text(digest(&SHA512, message).as_ref());
    let signature = key.sign(&[b"SSHSIG", &head[..], &hash].concat());
    let public = of_kind(key.public_key().as_ref());
    let version = 1_u32.to_be_bytes();
    let blob = [b"SSHSIG", &version[..], &public, &head, &of_kind(signature.as_ref())].concat();
    let blob = STANDARD.encode(blob);
    format!("-----BEGIN SSH SIGNATURE-----\n{blob}\n-----END SSH SIGNATURE-----\n")
}

fn table(tallies: &[Tally], each: u64) -> String {
    let mut text = String::from(
        "| tampering | signed again: refused | doubtful | not found | not signed again: refused \
         |\n|---|--:|--:|--:|--:|\n",
    );
    let mut sum = Tally::default();
    let row = |name: &str, tally: &Tally, of: u64| {
        let Tally { refused, doubtful, missed, unsigned_refused } = tally;
        format!("| {name} | {refused} | {doubtful} | {missed} | {unsigned_refused} of {of} |\n")
    };
    for ((name, _), tally) in TAMPERINGS.iter().zip(tallies) {
        text.push_str(&row(name, tally, each));
        sum.refused += tally.refused;
        sum.doubtful += tally.doubtful;
        sum.missed += tally.missed;
        sum.unsigned_refused += tally.unsigned_refused;
    }
    text + &row("**all**", &sum, each * TAMPERINGS.len() as u64)
}

fn page() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/method/submissions.md")
}

/// Returns the names of those tamperings that the check misses at times, by the page's table.
fn missed_by_page() -> Vec<String> {
    let page = fs::read_to_string(page()).unwrap();
    let rows = page.lines().filter_map(|line| {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let (name, missed) = (cells.get(1)?, cells.get(4)?.parse::<u64>().ok()?);
        (missed > 0).then(|| (*name).to_owned())
    });
    rows.collect()
}

#[test]
fn a_sound_campaign_is_sound_for_a_maintainer_who_knows_an_earlier_one() {
    let bench = Bench::new();
    for machine in [Machine::Cpu, Machine::Gpu] {
        let bundle = bench.bundle(&bench.case(machine, 1));
        let (verdict, text) = bench.verdict(machine, &bundle);
        assert_eq!(verdict, Verdict::Sound, "{text}");
    }
}

#[test]
fn two_bundles_of_each_tampering_are_found_where_the_page_says_so() {
    let missed = missed_by_page();
    for ((name, _), tally) in TAMPERINGS.iter().zip(Bench::new().study(2)) {
        assert_eq!(tally.unsigned_refused, 2, "{name}");
        assert!(tally.missed == 0 || missed.contains(&(*name).to_owned()), "{name}: {tally:?}");
    }
}

#[test]
fn extra_a_thousand_tampered_bundles_give_the_table_of_the_page() {
    let table = table(&Bench::new().study(EACH), EACH);
    let document = fs::read_to_string(page()).unwrap();
    let renewed = document::insert(&document, COMMAND, &table).unwrap();
    if std::env::var(RENEW).is_ok_and(|value| value == "1") {
        fs::write(page(), renewed).unwrap();
        return;
    }
    assert_eq!(document, renewed, "hint: {RENEW}=1 {COMMAND} writes the table");
}
