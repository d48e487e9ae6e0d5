//! Tests of the reading of tables that guidellm and AIPerf print to the terminal. The figures of
//! both texts are made up.

use schema::run::{RunRecord, Summary};

use super::{Reading, broken, read};

const GUIDELLM: &str = include_str!("guidellm.txt");
const AIPERF: &str = include_str!("aiperf.txt");

/// Returns the tool, the model and the lines of a result.
fn named(record: &RunRecord) -> (&str, &str, (u64, u64)) {
    let source = record.source.as_ref().unwrap();
    (&source.tool, &record.model.id, (source.line_first, source.line_last))
}

/// Returns the mean, the median and the p95 of a latency in microseconds.
fn figures(summary: Option<&Summary>) -> [Option<u64>; 3] {
    summary.map_or([None; 3], |summary| [summary.mean, summary.p50, summary.p95])
}

#[test]
fn each_row_of_guidellms_tables_is_a_result() {
    let Reading { records, unread } = read("log.txt", GUIDELLM);
    assert_eq!((records.len(), unread), (2, Vec::new()));
    for (record, wall_us, tokens, ttft, itl) in [
        (&records[0], 30_000_000, (2_000, 1_100), (100_500, 130_000), (10_000, 11_000)),
        (&records[1], 10_000_000, (20_000, 11_000), (400_000, 620_500), (110_000, 151_000)),
    ] {
        assert_eq!(named(record), ("guidellm", "example/Model-1B", (7, 59)));
        assert_eq!(record.time.as_ref().unwrap().wall_us, Some(wall_us));
        let counts = record.counts.as_ref().unwrap();
        assert_eq!(counts.input_tokens.zip(counts.output_tokens_reported), Some(tokens));
        // The tables have no number of requests.
        assert_eq!(counts.requests_ok, None);
        let metrics = record.metrics.as_ref().unwrap();
        assert_eq!(figures(metrics.ttft_us.as_ref()), [None, Some(ttft.0), Some(ttft.1)]);
        let gaps =
            [&metrics.itl_chunk_us, &metrics.itl_token_us].map(|gaps| figures(gaps.as_ref()));
        assert!(gaps.contains(&[None, Some(itl.0), Some(itl.1)]), "{gaps:?}");
        // Neither has the precision or the meaning of a record's figure.
        assert_eq!((&metrics.e2e_us, &metrics.tpot_us), (&None, &None));
        let wrong = judge::findings(record).into_iter().filter(|check| !check.ok);
        assert_eq!(wrong.count(), 0);
        let printed = &record.source.as_ref().unwrap().printed.as_ref().unwrap().rows;
        let latency = printed.iter().find(|row| row.label == "Request Latency Sec Mdn");
        let section = latency.unwrap().section.as_deref();
        assert_eq!(section, Some("Request Latency Statistics (Completed Requests)"));
    }
}

#[test]
fn a_result_of_guidellm_without_its_totals_is_named() {
    let cases = [
        (GUIDELLM.replace("| Dur ", "| Not "), "a result without `duration`"),
        (GUIDELLM.replace("| 30.0 |", "| long |"), "`Timings Dur Sec` of benchmark 1: `long`"),
    ];
    for (text, why) in cases {
        let unread = read("log.txt", &text).unread;
        assert!(unread[0].line == 7 && unread[0].why.contains(why), "{unread:?}: {why}");
    }
}

#[test]
fn the_table_of_aiperf_is_a_result() {
    assert_eq!(broken(AIPERF), Vec::<String>::new());
    let record = &read("log.txt", AIPERF).records[0];
    assert_eq!(named(record), ("aiperf", "example/Model-1B", (1, 20)));
    assert_eq!(record.time.as_ref().unwrap().wall_us, Some(2_000_000));
    assert_eq!(record.counts.as_ref().unwrap().requests_ok, Some(1_000));
    let metrics = record.metrics.as_ref().unwrap();
    assert_eq!(metrics.requests_per_s.zip(metrics.output_tokens_per_s), Some((500.0, 5_500.0)));
    let e2e = metrics.e2e_us.as_ref().unwrap();
    assert_eq!((e2e.mean, e2e.max), (Some(200_000), Some(1_290_500)));
    // The label of a row that is printed on two lines is whole.
    let printed = &record.source.as_ref().unwrap().printed.as_ref().unwrap().rows;
    let whole = "Output Token Throughput Per User (tokens/sec/user)";
    assert!(printed.iter().any(|row| row.section.as_deref() == Some(whole)), "{printed:?}");
}

#[test]
fn a_value_of_aiperf_that_is_cut_off_or_in_another_unit_is_named() {
    for (from, to, why) in [
        ("│   200.00 │", "│   200.… │", "`avg` of `Request Latency (ms)`: `200.…` is cut off"),
        ("     Request Latency (ms)", "    Request Latency (sec)", "it is in `sec`, not in ms"),
        ("Request Count", "Request Sound", "without `completed`"),
    ] {
        let unread = read("log.txt", &AIPERF.replace(from, to)).unread;
        let [place] = &unread[..] else { panic!("{why}: {unread:?}") };
        assert!(place.line == 1 && place.why.contains(why), "{place:?}: {why}");
    }
}

#[test]
fn results_stand_anywhere_in_a_log() {
    let log = format!("first\n{AIPERF}\nthen\n{GUIDELLM}");
    let records = read("log.txt", &log).records;
    let tools: Vec<&str> =
        records.iter().map(|record| &*record.source.as_ref().unwrap().tool).collect();
    assert_eq!(tools, ["guidellm", "guidellm", "aiperf"]);
}
