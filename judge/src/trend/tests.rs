//! Tests of trends on series of made-up releases, whose steps and epoch are known.

use expect_test::expect;
use samples::{Sample, campaign_id};
use schema::event::{Event, EventKind};

use super::*;
use crate::records::Stored;

/// Returns a registry of releases with these speeds: three runs of each, one campaign and one day
/// after another.
fn registry(speeds: &[f64]) -> Registry {
    let mut registry = Registry::default();
    for (index, speed) in speeds.iter().enumerate() {
        for launch in 0..3_u32 {
            let serial = 86_400 * (index as u64 + 1) + u64::from(launch);
            let record = Sample {
                release: format!("v0.{index}.0"),
                serial,
                seed: serial,
                campaign: (campaign_id(86_400 * (index as u64 + 1)), launch, 0),
                speed: speed * (1.0 + 0.002 * f64::from(launch)),
                ..Sample::default()
            };
            let record = record.record();
            registry.runs.push(Stored { path: record.id.clone(), root: 0, record });
        }
    }
    registry
}

/// Returns an epoch event that begins on the day of release number `index`.
fn epoch(index: u64) -> Stored<Event> {
    let text = format!(
        "schema = \"event.v1\"\nid = \"{}\"\nkind = \"epoch\"\nat = \"2026-03-01T00:00:00Z\"\n\
         cell = \"*/*/*/*/*\"\nsince = \"2026-01-{:02}T00:00:00Z\"\nreason = \"A new kernel.\"\n",
        campaign_id(9_000_000),
        index + 2
    );
    let record = schema::event::parse(&text).unwrap();
    assert_eq!((record.kind, record.problems()), (EventKind::Epoch, Vec::new()));
    Stored { path: "events/x".into(), root: 0, record }
}

fn throughput(registry: &Registry) -> Trend {
    let filter = Filter { metric: Some("output_tokens_per_s".into()), ..Filter::default() };
    trends(registry, &filter).unwrap().remove(0)
}

const STEP: [f64; 8] = [1.0, 1.003, 0.998, 1.001, 0.9, 0.899, 0.903, 0.901];

#[test]
fn a_step_is_found_at_its_release() {
    let trend = throughput(&registry(&STEP));
    assert_eq!((trend.points.len(), trend.segments.len()), (8, 2));
    assert_eq!(trend.points[0].launches, 3);
    let [change] = &trend.changes[..] else { panic!("{:?}", trend.changes) };
    assert_eq!((change.point, &*change.release, &*change.after), (4, "v0.4.0", "v0.3.0"));
    assert!(change.worse && (change.step_pct + 10.0).abs() < 0.6, "{change:?}");
}

#[test]
fn levels_on_the_two_sides_of_an_epoch_are_not_compared() {
    let mut registry = registry(&STEP);
    registry.events.push(epoch(4));
    let trend = throughput(&registry);
    assert_eq!(trend.changes, []);
    let firsts: Vec<usize> = trend.segments.iter().map(|segment| segment.first).collect();
    assert_eq!(firsts, [0, 4]);
    assert_eq!(trend.segments[1].epoch.as_deref(), Some("A new kernel."));
    // Within one epoch the same step is a change of level.
    let mut within = self::registry(&[&[0.5, 0.5][..], &STEP].concat());
    within.events.push(epoch(2));
    assert_eq!(throughput(&within).changes.len(), 1);
}

#[test]
fn a_step_below_the_floor_is_no_change() {
    let small = [1.0, 1.0, 1.0, 1.0, 0.99, 0.99, 0.99, 0.99];
    assert_eq!(throughput(&registry(&small)).changes, []);
}

#[test]
fn only_what_gates_is_shown_unless_asked_and_retracted_runs_are_left_out() {
    let mut registry = registry(&STEP);
    let metrics = |registry: &Registry| -> Vec<String> {
        let all = trends(registry, &Filter::default()).unwrap();
        all.into_iter().map(|trend| trend.metric).collect()
    };
    assert_eq!(metrics(&registry), ["output_tokens_per_s", "rss_bytes_max"]);
    let unknown = Filter { metric: Some("speed".into()), ..Filter::default() };
    let error = trends(&registry, &unknown).unwrap_err().to_string();
    assert!(error.starts_with("no metric is called `speed`\nhint: there are requests_per_s,"));
    let other = Filter { scenario: Some("thinking-lite".into()), ..Filter::default() };
    assert_eq!(trends(&registry, &other), Ok(Vec::new()));

    for run in &registry.runs[..3] {
        let why =
            crate::records::Retraction { event: "E".into(), reason: "R".into(), replaced_by: None };
        registry.retracted.insert(run.record.id.clone(), why);
    }
    assert_eq!(throughput(&registry).points[0].release, "v0.1.0");
}

#[test]
fn the_text_marks_what_changed() {
    let mut registry = registry(&[1.0, 1.0, 1.0, 0.9, 0.9, 0.9]);
    registry.events.push(epoch(5));
    let filter = Filter { metric: Some("output_tokens_per_s".into()), ..Filter::default() };
    expect![[r#"
        redline on cpu-example-simulated-f6m1s1-2c: smollm2-135m-instruct-q4_1, cpu-f32-tp1, balanced-lite@1
          Output tokens
            release  campaign                    launches  median
            v0.0.0   01KDY021000000000000002MC0  3         1317.2/s
            v0.1.0   01KE0JER0000000000000058R0  3         1316.9/s
            v0.2.0   01KE34VF000000000000007X40  3         1318.0/s
            v0.3.0   01KE5Q8600000000000000AHG0  3         1187.2/s  a new level, -9.9 %, worse
            v0.4.0   01KE89MX00000000000000D5W0  3         1186.3/s
            v0.5.0   01KEAW1M00000000000000FT80  3         1183.6/s  a new epoch: A new kernel.

        Medians over the launches of a release in a campaign. Points of different campaigns were not measured side by side: a change of level says where to look, and is no verdict.
    "#]].assert_eq(&text::text(&trends(&registry, &filter).unwrap()));
}

#[test]
fn a_series_goes_on_where_a_release_moved_a_default() {
    let mut registry = registry(&STEP);
    for run in &mut registry.runs {
        if run.record.engine.release.as_str() >= "v0.4.0" {
            run.record.model.dtype = Some("int8".into());
        }
    }
    let trend = throughput(&registry);
    assert_eq!((trend.points.len(), &*trend.cell.config), (8, "cpu-int8-tp1"));
    assert_eq!(trend.changes[0].release, "v0.4.0");
}
