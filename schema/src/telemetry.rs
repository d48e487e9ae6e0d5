//! Telemetry of a run: what server, machine and GPUs reported while the clock ran. Plain data; the
//! load generator does the polling.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Telemetry of a run, from just before the clock started to just after it stopped.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Telemetry {
    /// Planned time between two polls during the run, in microseconds; null where polls were made
    /// only before and after the run.
    pub interval_us: Option<u64>,
    /// Cost of the polling that collected the telemetry.
    pub cost: LookCost,
    /// Metrics of the server over the run; null where it does not report any.
    pub server: Option<ServerTelemetry>,
    /// CPU time, memory and load average of the machine that the load generator ran on; null where
    /// its kernel reports none.
    pub host: Option<HostTelemetry>,
    /// All GPUs of the machine that the load generator ran on, in the driver's order; null where
    /// they cannot be read.
    pub gpus: Option<Vec<GpuTelemetry>>,
    /// Time series of all GPUs that worked, combined: sum of power, lowest clock, highest
    /// temperature, mean utilization. Left out where no GPU worked or there are fewer than three
    /// polls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_series: Option<Series>,
}

impl Telemetry {
    /// Returns the sum, over the GPUs that worked, of each one's peak memory in use, in bytes, or
    /// `None` where no GPU worked or one does not report it.
    pub fn gpu_memory_used_bytes_max(&self) -> Option<u64> {
        let worked = self.gpus.iter().flatten().filter(|gpu| gpu.worked);
        let all: Option<Vec<u64>> = worked.map(|gpu| gpu.memory_used_bytes_max).collect();
        all.filter(|all| !all.is_empty()).map(|all| all.iter().sum())
    }
}

/// Cost of polling telemetry during a run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LookCost {
    /// Number of telemetry polls of the run, with those just before and just after it.
    pub looks: u64,
    /// Number of requests for the server's metrics, at polls or as retries of the last one, that
    /// failed.
    pub server_looks_failed: u64,
    /// CPU time of the thread that polls during the run, in microseconds; 0 without such a thread.
    pub cpu_us: u64,
    /// Time that the slowest request for the server's metrics took, in microseconds.
    pub server_look_us_max: u64,
}

/// Server metrics over a run, by the suite's names.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ServerTelemetry {
    /// Distribution, over the polls during the run, of the number of requests that the server was
    /// running; null where it was not reported at any of them.
    pub requests_running: Option<Spread>,
    /// Distribution, over the polls during the run, of the number of requests that waited in the
    /// server; null where it was not reported at any of them.
    pub requests_waiting: Option<Spread>,
    /// Distribution, over the polls during the run, of the number of KV cache pages in use; null
    /// where it was not reported at any of them.
    pub kv_pages_used: Option<Spread>,
    /// Total number of KV cache pages of the server; null where it is not reported.
    pub kv_pages: Option<u64>,
    /// Increase of the server's counter of prompt tokens over the run; null where it is not
    /// reported or decreased.
    pub prompt_tokens: Option<u64>,
    /// Increase of the server's counter of output tokens over the run; null where it is not
    /// reported or decreased.
    pub output_tokens: Option<u64>,
    /// Increase of the server's counter of prompt tokens looked up in the prefix cache over the
    /// run; null where it is not reported or decreased.
    pub prefix_query_tokens: Option<u64>,
    /// Increase of the server's counter of prompt tokens found in the prefix cache over the run;
    /// null where it is not reported or decreased.
    pub prefix_hit_tokens: Option<u64>,
    /// Increase of the server's counter of preemptions over the run; null where it is not reported
    /// or decreased.
    pub preemptions: Option<u64>,
    /// Increase of the server's counter of draft tokens (speculative decoding) over the run; left
    /// out where it is not reported or decreased.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub draft_tokens: Option<u64>,
    /// Increase of the server's counter of draft tokens that became output over the run; left out
    /// where it is not reported or decreased.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accepted_tokens: Option<u64>,
    /// Time series of the server metrics; left out where there are fewer than three polls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub series: Option<Series>,
}

/// CPU time, memory and load average of the machine that the load generator ran on.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct HostTelemetry {
    /// True when the server's address belongs to the load generator's machine.
    pub has_server: bool,
    /// Share of the time of all cores in user mode, from 0 to 1; null for a run shorter than a
    /// kernel tick. What the user, system, iowait and steal shares lack to 1 is idle time.
    pub cpu_user_share: Option<f64>,
    /// Share of the time of all cores in the kernel including interrupts, from 0 to 1; null for a
    /// run shorter than a kernel tick.
    pub cpu_system_share: Option<f64>,
    /// Share of the time of all cores idle while waiting for a disk, from 0 to 1; null for a run
    /// shorter than a kernel tick.
    pub cpu_iowait_share: Option<f64>,
    /// Share of the time of all cores that the hypervisor gave to other machines, from 0 to 1; null
    /// for a run shorter than a kernel tick.
    pub cpu_steal_share: Option<f64>,
    /// Peak memory in use on the machine, in bytes, by the poll with the largest value: total
    /// memory without what is available before swapping.
    pub memory_used_bytes_max: Option<u64>,
    /// Largest one-minute load average of the machine among the polls of the run.
    pub load_1m_max: Option<f64>,
    /// Pressure stall times; null where the system does not report them.
    pub pressure: Option<Pressure>,
    /// Time series of the machine's CPU shares and memory; left out where there are fewer than
    /// three polls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub series: Option<Series>,
}

/// Pressure stall information: time of the run in which some task waited for a resource.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Pressure {
    /// Time in which some task waited for a CPU core, in microseconds.
    pub cpu_us: u64,
    /// Time in which some task waited for memory, in microseconds.
    pub memory_us: u64,
    /// Time in which some task waited for a disk, in microseconds.
    pub io_us: u64,
}

/// Telemetry of one GPU; GPUs are in the driver's order.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct GpuTelemetry {
    /// True when the GPU was busy at one or more polls.
    pub worked: bool,
    /// Distribution, over the polls during the run, of the power draw of the GPU, in milliwatts;
    /// null where the driver does not report it.
    pub power_mw: Option<Spread>,
    /// Energy that the GPU used from just before the clock started to just after it stopped, in
    /// millijoules; null where the driver reports neither energy nor power.
    pub energy_mj: Option<u64>,
    /// Source of the value of `energy_mj`; null where the energy is not known.
    pub energy_source: Option<EnergySource>,
    /// Distribution, over the polls during the run, of the clock of the GPU's processors, in MHz;
    /// null where the driver does not report it.
    pub sm_mhz: Option<Spread>,
    /// Distribution, over the polls during the run, of the clock of the GPU's memory, in MHz; null
    /// where the driver does not report it.
    pub memory_mhz: Option<Spread>,
    /// Peak temperature of the GPU chip, in degrees Celsius; null where the driver does not report
    /// it.
    pub gpu_c_max: Option<u64>,
    /// Peak temperature of the GPU memory, in degrees Celsius; null where the driver does not
    /// report it.
    pub memory_c_max: Option<u64>,
    /// Distribution, over the polls during the run, of the share of time in which a kernel ran on
    /// the GPU, in percent; null where the driver does not report it.
    pub util_percent: Option<Spread>,
    /// Peak memory in use on the GPU by all processes, in bytes; null where the driver does not
    /// report it.
    pub memory_used_bytes_max: Option<u64>,
    /// Shares of the polls during the run at which the GPU's clocks were throttled, by cause; null
    /// where the driver does not report it.
    pub throttled: Option<Throttled>,
    /// Number of uncorrectable memory errors of the GPU from just before the clock started to just
    /// after it stopped; left out where the driver does not report it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ecc_uncorrected: Option<u64>,
    /// Number of PCIe packets that the GPU sent again from just before the clock started to just
    /// after it stopped; left out where the driver does not report it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pcie_replays: Option<u64>,
}

/// Source of the value of a GPU's energy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum EnergySource {
    /// Counter: the increase of the GPU's own energy counter.
    Counter,
    /// Power: the power draw at each poll, integrated over time, for cards without an energy
    /// counter.
    Power,
}

/// Shares of the polls during a run at which a GPU's clocks were throttled, by cause, each from 0
/// to 1.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Throttled {
    /// Share of the polls during a run at which the power limit kept the GPU's clocks low, from 0
    /// to 1.
    pub power_share: f64,
    /// Share of the polls during a run at which software or hardware kept the GPU's clocks low
    /// because of its temperature, from 0 to 1.
    pub thermal_share: f64,
    /// Share of the polls during a run at which an external power brake or an emergency slowdown of
    /// the hardware kept the GPU's clocks low, from 0 to 1.
    pub hardware_share: f64,
    /// Share of the polls during a run at which another GPU of a group with synchronized clocks
    /// kept the GPU's clocks low, from 0 to 1.
    pub sync_share: f64,
}

/// Distribution of one polled quantity over the polls during a run, in the unit of the field that
/// holds it; where a run has none, a GPU's values are those of the polls just before and after it.
/// Percentiles are by nearest rank.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Spread {
    /// Mean of the polled quantity over the polls during the run.
    pub mean: f64,
    /// 5th percentile of the polled quantity over the polls during the run.
    pub p5: u64,
    /// Median of the polled quantity over the polls during the run.
    pub p50: u64,
    /// 95th percentile of the polled quantity over the polls during the run.
    pub p95: u64,
    /// Largest value of the polled quantity over the polls during the run.
    pub max: u64,
}

/// Time series of polled values, thinned to fit in a record: several neighboring polls make one
/// point.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Series {
    /// Time of the last poll of each point, in microseconds from the start of the clock.
    pub at_us: Vec<u64>,
    /// Values by name, one for each point. A counter's value is its increase since the previous
    /// point; any other value is a mean over the point's polls. A column of zeros is left out.
    pub columns: BTreeMap<String, Vec<u64>>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_that_of_the_gpus_that_worked() {
        let gpu = |worked, bytes| GpuTelemetry {
            worked,
            memory_used_bytes_max: bytes,
            ..GpuTelemetry::default()
        };
        let of = |gpus: Vec<GpuTelemetry>| {
            let telemetry = Telemetry { gpus: Some(gpus), ..Telemetry::default() };
            telemetry.gpu_memory_used_bytes_max()
        };
        let three = vec![gpu(true, Some(7)), gpu(false, Some(100)), gpu(true, Some(5))];
        assert_eq!(of(three), Some(12));
        assert_eq!(of(vec![gpu(true, None), gpu(true, Some(5))]), None);
        assert_eq!(of(vec![gpu(false, Some(5))]), None);
        assert_eq!(Telemetry::default().gpu_memory_used_bytes_max(), None);
    }

    #[test]
    fn records_from_before_telemetry_read_and_write_as_they_were() {
        let record = serde_json::to_value(crate::run::RunRecord::default()).expect("JSON");
        assert!(record["telemetry"].is_null());
        let read: crate::run::RunRecord = serde_json::from_value(record.clone()).expect("readable");
        assert_eq!(serde_json::to_value(read).expect("JSON"), record);
        let client = serde_json::to_value(crate::run::ClientFacts::default()).expect("JSON");
        assert!(client.get("tls").is_none(), "left out where connections are plain");
    }
}
