//! Builds the telemetry section of a record from the samples of a run, and computes the energy per
//! token.

use schema::telemetry::{GpuTelemetry, Telemetry};

use super::Watch;
use super::series::float;
use crate::measure::Reasons;

impl Watch<'_> {
    /// Telemetry section of the record of a run whose clock started at `start_ns`.
    pub fn facts(&self, start_ns: u64, reasons: &mut Reasons) -> Telemetry {
        let interval = self.pause.map(|pause| pause.as_micros());
        let gpus = self.gpu_facts(reasons);
        Telemetry {
            interval_us: reasons.explain(
                "telemetry.interval_us",
                interval.and_then(|us| u64::try_from(us).ok()),
                "nothing was looked at while the clock ran, as was asked",
            ),
            cost: self.cost.clone(),
            server: self.server_facts(start_ns, reasons),
            host: self.host_facts(start_ns, reasons),
            gpu_series: gpus.as_deref().and_then(|gpus| self.gpu_series(gpus, start_ns)),
            gpus,
        }
    }
}

/// Device and GPUs that the server computes on, as far as known.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ranks<'a> {
    /// Device name that the server reports: `cpu` or `cuda`.
    pub device: Option<&'a str>,
    /// Number of GPUs that the server uses (its tensor-parallel ranks).
    pub gpus: Option<u32>,
}

/// Energy per output token in joules: the energy of all GPUs that worked, divided by `tokens`. The
/// GPUs that worked must be exactly the server's.
///
/// # Errors
/// The reason why the energy per token is not known, as the record states it.
pub fn joules_per_token(
    telemetry: &Telemetry,
    ranks: Ranks<'_>,
    tokens: u64,
) -> Result<f64, String> {
    let gpus = telemetry.gpus.as_deref().ok_or("no GPU is read")?;
    if !telemetry.host.as_ref().is_some_and(|host| host.has_server) {
        return Err("the server runs on another machine than the load generator".to_owned());
    }
    if ranks.device.is_some_and(|device| device != "cuda") {
        return Err("the server runs on no GPU".to_owned());
    }
    let worked: Vec<&GpuTelemetry> = gpus.iter().filter(|gpu| gpu.worked).collect();
    let server = ranks.gpus.map_or(worked.len(), |gpus| gpus as usize);
    if worked.is_empty() || worked.len() != server {
        return Err(format!("{} GPUs worked, and the server runs on {server}", worked.len()));
    }
    let energy: Option<u64> = worked.iter().map(|gpu| gpu.energy_mj).sum();
    let energy = energy.ok_or("the driver tells neither energy nor power")?;
    if tokens == 0 {
        return Err("no request was answered".to_owned());
    }
    Ok(float(energy) / 1000.0 / float(tokens))
}

#[cfg(test)]
mod tests {
    use super::*;
    use schema::telemetry::HostTelemetry;

    fn telemetry(has_server: bool, gpus: &[(bool, Option<u64>)]) -> Telemetry {
        let gpu = |(worked, energy_mj): &(bool, Option<u64>)| GpuTelemetry {
            worked: *worked,
            energy_mj: *energy_mj,
            ..GpuTelemetry::default()
        };
        Telemetry {
            host: Some(HostTelemetry { has_server, ..HostTelemetry::default() }),
            gpus: Some(gpus.iter().map(gpu).collect()),
            ..Telemetry::default()
        }
    }

    #[test]
    fn energy_is_spread_over_tokens_only_where_it_is_the_servers() {
        let two = [(true, Some(3_000_000)), (true, Some(1_000_000)), (false, Some(500_000))];
        let on = |gpus| Ranks { device: Some("cuda"), gpus };
        let per_token = |has_server, gpus: &[_], ranks| {
            joules_per_token(&telemetry(has_server, gpus), ranks, 2000)
        };
        assert_eq!(per_token(true, &two, on(Some(2))), Ok(2.0));
        assert_eq!(per_token(true, &two, Ranks::default()), Ok(2.0), "one that does not say where");
        for (has_server, gpus, ranks, expected) in [
            (false, &two[..], on(Some(2)), "another machine"),
            (true, &two, on(Some(1)), "2 GPUs worked, and the server runs on 1"),
            (true, &two[2..], Ranks::default(), "0 GPUs worked"),
            (true, &two, Ranks { device: Some("cpu"), gpus: None }, "on no GPU"),
            (true, &[(true, None)], on(Some(1)), "neither energy nor power"),
        ] {
            let why = per_token(has_server, gpus, ranks).unwrap_err();
            assert!(why.contains(expected), "{why}");
        }
        assert!(joules_per_token(&telemetry(true, &two), on(Some(2)), 0).is_err());
    }
}
