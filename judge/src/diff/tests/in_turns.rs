//! Tests of comparisons of releases whose campaign also asked both servers in turns.

use samples::alternation::{InTurns, campaign};

use super::*;

/// Compares `runs` with a campaign record that has this alternating comparison of their cell.
fn with_turns(runs: Vec<RunRecord>, serial: u64, turns: &InTurns) -> Diff {
    let mut registry = registry(runs);
    let scenario = "balanced-lite@1".to_owned();
    let turns = InTurns { scenario, arrival: Arrival::AllAtOnce, ..turns.clone() };
    let record = campaign(&campaign_id(serial), vec![turns.comparison()]);
    registry.campaigns.push(Stored { path: "campaigns/x".to_owned(), root: 0, record });
    diff(&registry, "v0.9.1", "v0.9.2", &Filter::default()).unwrap()
}

fn slower() -> InTurns {
    InTurns { speed: 0.95, ..InTurns::default() }
}

#[test]
fn what_changed_is_decided_in_turns_and_figures_stay_those_of_the_runs() {
    for (runs, turns, kind, exit) in [
        // Runs that suspect or confirm nothing and turns that do, and the other way round.
        (interleaved(5, 1.0), slower(), VerdictKind::Regressed, Exit::Worse),
        (two_stages(0.9, 0.9), InTurns::default(), VerdictKind::Unchanged, Exit::Well),
    ] {
        let of_runs = compare_all(runs.clone());
        let diff = with_turns(runs, 9, &turns);
        let row = row_of(&diff, "output_tokens_per_s");
        let verdict = &row.verdict;
        assert_eq!((verdict.verdict, verdict.stage), (kind, Stage::Alternate));
        assert_eq!(diff.exit(), exit, "{:?}", diff.decision);
        assert!(verdict.alternation.is_some() && !verdict.suspected && verdict.p.is_none());
        let before = row_of(&of_runs, "output_tokens_per_s");
        assert_eq!((row.baseline, row.candidate), (before.baseline, before.candidate));
        assert_eq!(verdict.baseline, before.verdict.baseline);
        // A metric that the turns do not block on keeps the estimate of the runs.
        assert_eq!(row_of(&diff, "tpot_us_p50"), row_of(&of_runs, "tpot_us_p50"));
        let remarks = &diff.cells[0].remarks;
        assert!(remarks.iter().any(|remark| remark.starts_with("in turns: ")), "{remarks:?}");
    }
}

#[test]
fn turns_of_another_campaign_or_scenario_decide_nothing() {
    let runs = interleaved(5, 1.0);
    let other = with_turns(runs.clone(), 8, &slower());
    assert_eq!(row_of(&other, "output_tokens_per_s").verdict.alternation, None);
    let of_runs = compare_all(runs);
    assert_eq!(other.decision, of_runs.decision);
    assert_eq!(other.cells, of_runs.cells);
}

#[test]
fn turns_decide_nothing_where_the_configurations_differ() {
    let mut runs = interleaved(5, 1.0);
    for run in runs.iter_mut().filter(|run| run.engine.release == "v0.9.2") {
        let server = run.server.as_mut().unwrap();
        server.argv.as_mut().unwrap().push("--max_batch_size=256".into());
        server.config.as_mut().unwrap().insert("max-batch-size".into(), 256.into());
    }
    let diff = with_turns(runs.into_iter().map(reseal).collect(), 9, &slower());
    assert_eq!(diff.cells[0].changed[0].flag, "max-batch-size");
    let verdict = &row_of(&diff, "output_tokens_per_s").verdict;
    assert_eq!((verdict.verdict, verdict.alternation), (VerdictKind::ChangedConfig, None));
    assert!(!diff.cells[0].remarks.iter().any(|remark| remark.starts_with("in turns")));
}

#[test]
fn a_metric_that_no_run_has_gets_its_figures_from_the_turns() {
    let mut runs = interleaved(5, 1.0);
    for run in &mut runs {
        run.memory.as_mut().unwrap().rss_bytes_max = None;
    }
    let diff = with_turns(runs.into_iter().map(reseal).collect(), 9, &InTurns::default());
    let memory = row_of(&diff, "rss_bytes_max");
    assert_eq!(memory.baseline.map(|side| side.n), Some(30));
    assert_eq!(memory.verdict.verdict, VerdictKind::Unchanged);
}

#[test]
fn peak_memory_in_turns_stands_beside_that_of_whole_runs() {
    let mut runs = interleaved(5, 1.0);
    for run in runs.iter_mut().filter(|run| run.engine.release == "v0.9.2") {
        run.memory.as_mut().unwrap().rss_bytes_max = Some(300 << 20);
    }
    let diff = with_turns(runs.into_iter().map(reseal).collect(), 9, &InTurns::default());
    let rows = diff.cells[0].rows.iter().filter(|row| row.verdict.metric == "rss_bytes_max");
    let rows: Vec<&Row> = rows.collect();
    let [whole, turns] = &rows[..] else { panic!("{rows:?}") };
    assert_eq!((&*whole.title, whole.gates, whole.large), ("Peak memory", false, true));
    assert_eq!(whole.baseline.map(|side| side.mean), Some(f64::from(400 << 20)));
    assert_eq!(whole.verdict.verdict, VerdictKind::Inconclusive, "its change is an estimate");
    assert_eq!((&*turns.title, turns.gates), ("Peak memory in turns", true));
    assert_eq!(turns.verdict.verdict, VerdictKind::Unchanged);
    assert_eq!(turns.baseline.map(|side| (side.n, side.mean < 4.01e8)), Some((30, true)));
    assert_eq!(diff.decision.verdict, DecisionKind::Ship, "{:?}", diff.decision);
}

#[test]
fn several_scenarios_are_judged_together_where_the_campaign_compared_all_of_them_in_turns() {
    let scenarios = ["ladder-lite-c1", "ladder-lite-c4"];
    let of_scenario = |(index, id): (usize, &&str)| {
        let mut runs = blocks(10 * index as u32, 5, 1.0, None);
        runs.iter_mut().for_each(|run| run.scenario.id = (*id).to_owned());
        runs.into_iter().map(reseal).collect::<Vec<_>>()
    };
    let runs: Vec<RunRecord> = scenarios.iter().enumerate().flat_map(of_scenario).collect();
    let compare = |turns: &[&str]| {
        let mut registry = registry(runs.clone());
        let one = |id: &&str| InTurns { scenario: format!("{id}@1"), ..slower() }.comparison();
        let record = campaign(&campaign_id(9), turns.iter().map(one).collect());
        registry.campaigns.push(Stored { path: "campaigns/x".to_owned(), root: 0, record });
        diff(&registry, "v0.9.1", "v0.9.2", &Filter::default()).unwrap()
    };
    let both = compare(&scenarios);
    let pooled = both.pooled.iter().find(|row| row.verdict.metric == "output_tokens_per_s");
    let verdict = &pooled.unwrap().verdict;
    assert_eq!(verdict.verdict, VerdictKind::Regressed);
    assert_eq!(verdict.scenario(), "all 2 scenarios together");
    assert_eq!(verdict.alternation.map(|extent| extent.starts), Some(60));
    // A scenario whose runs are missing here would be judged together with the others otherwise.
    let others = [scenarios[0], scenarios[1], "ladder-lite-c16"];
    assert_eq!(compare(&others).pooled, []);
    assert_eq!(compare(&scenarios[..1]).pooled, []);
}
