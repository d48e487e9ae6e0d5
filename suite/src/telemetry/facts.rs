//! Builds the telemetry section of a record from the samples of a run, and computes the energy per
//! token.

use schema::telemetry::{GpuTelemetry, Telemetry};

use super::Watch;
use super::series::float;

impl Watch<'_> {
    /// Telemetry section of the record of a run whose clock started at `start_ns`.
    pub fn facts(&self, start_ns: u64) -> Telemetry {
        let interval = self.pause.map(|pause| pause.as_micros());
        let gpus = self.gpu_facts();
        Telemetry {
            interval_us: interval.and_then(|us| u64::try_from(us).ok()),
            cost: self.cost.clone(),
            server: self.server_facts(start_ns),
            host: self.host_facts(start_ns),
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

/// Energy per output token in joules: the energy of all GPUs that worked, divided by `tokens`.
/// `None` where no driver reports it, and where the GPUs that worked are not exactly the server's.
pub fn joules_per_token(telemetry: &Telemetry, ranks: Ranks<'_>, tokens: u64) -> Option<f64> {
    let gpus = telemetry.gpus.as_deref()?;
    let is_here = telemetry.host.as_ref().is_some_and(|host| host.has_server);
    let worked: Vec<&GpuTelemetry> = gpus.iter().filter(|gpu| gpu.worked).collect();
    let server = ranks.gpus.map_or(worked.len(), |gpus| gpus as usize);
    let is_server = ranks.device.is_none_or(|device| device == "cuda");
    if !is_here || !is_server || tokens == 0 || worked.is_empty() || worked.len() != server {
        return None;
    }
    let energy: Option<u64> = worked.iter().map(|gpu| gpu.energy_mj).sum();
    Some(float(energy?) / 1000.0 / float(tokens))
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
        assert_eq!(per_token(true, &two, on(Some(2))), Some(2.0));
        assert_eq!(
            per_token(true, &two, Ranks::default()),
            Some(2.0),
            "one that does not say where"
        );
        for (has_server, gpus, ranks, why) in [
            (false, &two[..], on(Some(2)), "on another machine"),
            (true, &two, on(Some(1)), "2 GPUs worked, and the server runs on 1"),
            (true, &two[2..], Ranks::default(), "no GPU worked"),
            (true, &two, Ranks { device: Some("cpu"), gpus: None }, "on no GPU"),
            (true, &[(true, None)], on(Some(1)), "neither energy nor power"),
        ] {
            assert_eq!(per_token(has_server, gpus, ranks), None, "{why}");
        }
        assert_eq!(joules_per_token(&telemetry(true, &two), on(Some(2)), 0), None);
    }
}
