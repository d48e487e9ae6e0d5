//! Tests of a release's page where a model was served by two backends of an engine: the default, and a
//! variant with flags, as LMDeploy's PyTorch backend is measured beside TurboMind.

use samples::registry::registry;
use samples::{Sample, campaign_id, reseal};
use schema::run::RunRecord;
use site::{Catalog, Renderer, pages};

/// Three runs of each backend in the blocks of one campaign; PyTorch is half as fast.
fn runs() -> Vec<RunRecord> {
    let mut runs = Vec::new();
    for block in 0..3_u32 {
        for (position, variant, speed) in [(0, None, 1.0), (1, Some("pytorch"), 0.5)] {
            let argv = variant.map(|name: &str| vec!["--backend".to_owned(), name.to_owned()]);
            let sample = Sample {
                engine: "lmdeploy".to_owned(),
                release: "v0.10.0".to_owned(),
                scenario: "sharegpt-lite".to_owned(),
                serial: 1 + u64::from(2 * block + position),
                campaign: (campaign_id(1), block, position),
                repeat: block + 1,
                speed,
                argv: argv.unwrap_or_default(),
                ..Sample::default()
            };
            let mut run = sample.record();
            run.server.as_mut().expect("a server").variant = variant.map(str::to_owned);
            runs.push(reseal(run));
        }
    }
    runs
}

/// Number of output tokens per second in a row of the page's table, without its range.
fn throughput(row: &str) -> f64 {
    let cell = row.split('|').nth(4).expect("a cell of output tokens/s").trim();
    let number = cell.split(' ').next().expect("a number").replace(',', "");
    number.parse().unwrap_or_else(|_| panic!("`{cell}` of {row}"))
}

#[test]
fn both_backends_have_rows_commands_and_a_configuration_of_their_own() {
    let registry = registry(runs());
    let renderer = Renderer::new().expect("templates compile");
    let pages = pages::render(&Catalog::of(&registry), &renderer, false).expect("renders");
    let is_release = |path: &&String| path.contains("/lmdeploy/v0.10.0/cpu-example");
    let page = &pages[pages.keys().find(is_release).expect("a page of the release")];
    let rows: Vec<&str> =
        page.lines().filter(|line| line.contains("| sharegpt-lite@1 (")).collect();
    let [turbomind, pytorch] = rows[..] else { panic!("two rows: {rows:?}\n{page}") };
    assert!(pytorch.contains("cpu-f32-tp1-pytorch") && !turbomind.contains("pytorch"), "{rows:?}");
    assert!(rows.iter().all(|row| row.contains("| 3 |")), "runs are not pooled: {rows:?}");
    let ratio = throughput(pytorch) / throughput(turbomind);
    assert!((0.45..0.55).contains(&ratio), "{ratio}: {rows:?}");
    let section = |heading: &str| {
        let (_, rest) = page.split_once(heading).unwrap_or_else(|| panic!("{heading}:\n{page}"));
        rest.split("\n## ").next().unwrap_or(rest).to_owned()
    };
    let model = "\n## smollm2-135m-instruct-q4_1, cpu-f32-tp1";
    assert!(!section(&format!("{model}\n")).contains("--backend"), "the default");
    let own = section(&format!("{model}-pytorch\n"));
    assert!(own.contains("--port 8000 --backend pytorch\n"), "{own}");
}
