//! Sound records of every kind, which the tests of the rules edit.

use schema::histogram::HdrHistogram;
use schema::run::{
    Gpu, GpuState, Histograms, Kind, Metrics, Platform, RunRecord, Slice, Summary, TokenSource,
    TtftParts,
};
use schema::scenario::Tier;
use schema::telemetry::{
    GpuTelemetry, HostTelemetry, Series, ServerTelemetry, Spread, Telemetry, Throttled,
};

use reports::read;
use samples::Sample;

/// Returns a sound measured run on a CPU.
pub fn sound() -> RunRecord {
    RunRecord { kind: Kind::Measured, ..Sample::default().record() }
}

/// Returns a sound measured run of a full scenario on a GPU, long enough and with enough samples.
pub fn sound_on_gpu() -> RunRecord {
    let mut record = sound();
    record.scenario.tier = Tier::Full;
    record.hardware.id = "h200-141g".into();
    record.hardware.gpu = Some(vec![Gpu {
        name: "H200".into(),
        memory_bytes: Some(141 << 30),
        driver: Some("570.1".into()),
        vbios: Some("96".into()),
        power_limit_mw: Some(700_000),
        clocks_locked: Some(false),
        state: Some(GpuState {
            power_limit_default_mw: Some(700_000),
            mig: Some(false),
            ..GpuState::default()
        }),
    }]);
    record.hardware.platform =
        Some(Platform { other_gpu_processes: Some(0), ..Platform::default() });
    for group in ["hardware.gpu.0.state", "hardware.platform"] {
        record.absent.insert(group.into(), "all but what rules ask for".into());
    }
    record.time.as_mut().unwrap().window_us = Some(301_000_000);
    for summary in summaries(&mut record) {
        (summary.p90, summary.p95, summary.p99) = (None, None, None);
    }
    for name in ["ttft_us", "tpot_us", "itl_chunk_us", "itl_token_us", "e2e_us"] {
        for figure in ["p90", "p95", "p99"] {
            record.absent.insert(format!("metrics.{name}.{figure}"), "too few samples".into());
        }
    }
    record
}

pub fn gpu_state(record: &mut RunRecord) -> &mut GpuState {
    record.hardware.gpu.as_mut().unwrap()[0].state.as_mut().unwrap()
}

pub fn summaries(record: &mut RunRecord) -> Vec<&mut Summary> {
    let metrics = record.metrics.as_mut().unwrap();
    let all = [
        metrics.ttft_us.as_mut(),
        metrics.tpot_us.as_mut(),
        metrics.itl_chunk_us.as_mut(),
        metrics.itl_token_us.as_mut(),
        metrics.e2e_us.as_mut(),
    ];
    all.into_iter().flatten().collect()
}

/// Returns a sound run with telemetry of server, host and GPUs.
pub fn seen() -> RunRecord {
    let mut record = sound();
    let tokens = record.counts.as_ref().unwrap().output_tokens_reported.unwrap();
    let level = |max| Some(Spread { mean: 4.0, p5: 1, p50: 4, p95: 6, max });
    let columns = [("output_tokens", vec![96, tokens - 96]), ("requests_running", vec![4, 4])];
    let columns = columns.map(|(name, points)| (name.to_owned(), points)).into();
    let series = Series { at_us: vec![1_000_000, 3_000_000], columns };
    let gpu = |worked, energy_mj| GpuTelemetry {
        worked,
        energy_mj: Some(energy_mj),
        throttled: Some(Throttled::default()),
        ecc_uncorrected: Some(0),
        ..GpuTelemetry::default()
    };
    record.metrics.as_mut().unwrap().joules_per_output_token = Some(0.5);
    record.telemetry = Some(Telemetry {
        server: Some(ServerTelemetry {
            requests_running: level(7),
            kv_pages_used: level(90),
            kv_pages: Some(100),
            output_tokens: Some(tokens),
            preemptions: Some(0),
            series: Some(series),
            ..ServerTelemetry::default()
        }),
        host: Some(HostTelemetry {
            cpu_user_share: Some(0.8),
            cpu_system_share: Some(0.08),
            cpu_steal_share: Some(0.01),
            ..HostTelemetry::default()
        }),
        gpus: Some(vec![gpu(true, 500 * tokens), gpu(false, 9)]),
        ..Telemetry::default()
    });
    record
}

/// Returns a sound run of a block with machine calibrations before and after it.
pub fn probed() -> RunRecord {
    let mut record = sound();
    let read = [
        ("gflops_before", 212.5),
        ("gflops_after", 211.0),
        ("memory_gbps_before", 31.0),
        ("memory_gbps_after", 31.2),
    ];
    let read = read.map(|(name, figure)| (name.to_owned(), figure.into()));
    record.absent.remove("calibration");
    record.calibration = Some(read.into());
    record
}

pub fn server(record: &mut RunRecord, edit: fn(&mut ServerTelemetry)) {
    edit(record.telemetry.as_mut().unwrap().server.as_mut().unwrap());
}

/// Returns the increments of the server's counter of output tokens, one per point of its time
/// series.
pub fn points(server: &mut ServerTelemetry) -> &mut Vec<u64> {
    server.series.as_mut().unwrap().columns.get_mut("output_tokens").unwrap()
}

pub fn gpu(record: &mut RunRecord) -> &mut GpuTelemetry {
    &mut record.telemetry.as_mut().unwrap().gpus.as_mut().unwrap()[0]
}

/// Returns a sound run with the client figures that later revisions of the record added.
pub fn reported() -> RunRecord {
    let mut record = sound();
    record.client.as_mut().unwrap().late_read_share = Some(0.0);
    let counts = record.counts.as_mut().unwrap();
    counts.chunk_token_source = Some(TokenSource::UsagePerChunk);
    let slice = Slice {
        start_us: 0,
        length_us: record.time.as_ref().unwrap().wall_us.unwrap(),
        requests_sent: counts.requests_ok.unwrap(),
        requests_ended: counts.requests_ok.unwrap(),
        output_tokens: counts.output_tokens_reported.unwrap(),
        ttft_us_p50: None,
    };
    let metrics = record.metrics.as_mut().unwrap();
    metrics.slices = Some(vec![slice]);
    metrics.ttft_scheduled_us = metrics.ttft_us.clone();
    metrics.e2e_scheduled_us = metrics.e2e_us.clone();
    let none = Summary {
        std: Some(0),
        p50: Some(0),
        p90: Some(0),
        p95: Some(0),
        p99: Some(0),
        mean: Some(0),
        max: Some(0),
        ..Summary::default()
    };
    metrics.ttft_parts_us = Some(TtftParts {
        queue: none.clone(),
        schedule_lag: none.clone(),
        connect: none.clone(),
        tls: None,
        send: none.clone(),
        server: metrics.ttft_us.clone().unwrap(),
        parse: none,
    });
    record
}

pub fn slice(record: &mut RunRecord) -> &mut Slice {
    &mut record.metrics.as_mut().unwrap().slices.as_mut().unwrap()[0]
}

/// Returns an imported result as it is read from its report: 1,000 answers of 101 tokens, 10 ms
/// each after a TTFT of 0.4 s.
pub fn published() -> RunRecord {
    let text = include_str!("../../../../reports/src/tests/sound.txt");
    let mut record = read("sound.txt", text).records.remove(0);
    // Rules over imports judge lengths that differ as well.
    record.scenario.output_tokens = None;
    record
}

pub fn mean_tpot(record: &mut RunRecord, mean_us: u64) {
    record.metrics.as_mut().unwrap().tpot_us.as_mut().unwrap().mean = Some(mean_us);
}

pub fn chunk_gaps(record: &mut RunRecord, mean_us: u64) {
    record.metrics.as_mut().unwrap().itl_chunk_us.as_mut().unwrap().mean = Some(mean_us);
}

pub fn shift(record: &mut RunRecord, edit: fn(&mut Histograms, &mut Metrics)) {
    edit(record.histograms.as_mut().unwrap(), record.metrics.as_mut().unwrap());
}

/// Returns a run whose requests waited three seconds each before their first token.
pub fn queued() -> RunRecord {
    const WAIT_US: u64 = 3_000_000;
    let mut record = sound();
    let wall = record.time.as_ref().unwrap().wall_us.unwrap();
    let stretch = (wall + WAIT_US) as f64 / wall as f64;
    record.time.as_mut().unwrap().wall_us = Some(wall + WAIT_US);
    let histograms = record.histograms.as_mut().unwrap();
    for histogram in [&mut histograms.ttft_us, &mut histograms.e2e_us] {
        let bins = histogram.as_ref().unwrap().bins().unwrap();
        let later = bins
            .iter()
            .flat_map(|bin| vec![bin.high + WAIT_US; usize::try_from(bin.count).unwrap()]);
        *histogram = Some(HdrHistogram::from_samples(later).unwrap());
    }
    let metrics = record.metrics.as_mut().unwrap();
    for rate in [
        &mut metrics.requests_per_s,
        &mut metrics.input_tokens_per_s,
        &mut metrics.output_tokens_per_s,
        &mut metrics.total_tokens_per_s,
    ] {
        *rate = rate.map(|rate| rate / stretch);
    }
    for summary in [metrics.ttft_us.as_mut().unwrap(), metrics.e2e_us.as_mut().unwrap()] {
        for figure in [
            &mut summary.mean,
            &mut summary.p50,
            &mut summary.p90,
            &mut summary.p95,
            &mut summary.p99,
            &mut summary.max,
        ] {
            *figure = figure.map(|value| value + WAIT_US);
        }
    }
    let sum = metrics.e2e_us.as_ref().unwrap().mean.unwrap() * 32;
    metrics.concurrency_mean = Some(sum as f64 / (wall + WAIT_US) as f64);
    record
}
