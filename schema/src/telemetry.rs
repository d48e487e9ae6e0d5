//! Telemetry of a run: what the server, the machine and its GPUs told while the clock ran. Plain
//! data; who looked, and how, is the load generator's.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What was seen beside the load, from just before the clock started to just after it stopped.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Telemetry {
    /// Between two looks; null where only before and after were looked at.
    pub interval_us: Option<u64>,
    /// What looking took from the run.
    pub cost: LookCost,
    /// The server's own counters; null where it does not tell them.
    pub server: Option<ServerTelemetry>,
    /// The machine that the load generator ran on.
    pub host: Option<HostTelemetry>,
    /// Every GPU of the machine that the load generator ran on.
    pub gpus: Option<Vec<GpuTelemetry>>,
    /// All GPUs that worked, together: power is summed, of clocks the lowest is kept, of
    /// temperatures the highest, and utilisation is averaged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_series: Option<Series>,
}

impl Telemetry {
    /// Most memory in use on the GPUs that worked, together; none where none did, or one does not
    /// tell.
    #[must_use]
    pub fn gpu_memory_used_bytes_max(&self) -> Option<u64> {
        let worked = self.gpus.iter().flatten().filter(|gpu| gpu.worked);
        let all: Option<Vec<u64>> = worked.map(|gpu| gpu.memory_used_bytes_max).collect();
        all.filter(|all| !all.is_empty()).map(|all| all.iter().sum())
    }
}

/// What looking cost.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LookCost {
    /// How many.
    pub looks: u64,
    /// Looks at which the server's counters were asked for in vain.
    pub server_looks_failed: u64,
    /// Processor time of the thread that looked.
    pub cpu_us: u64,
    /// Longest wait for the server's counters.
    pub server_look_us_max: u64,
}

/// The server's own counters, in the suite's words.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ServerTelemetry {
    /// Requests in its steps.
    pub requests_running: Option<Spread>,
    /// Requests that wait for a place in one.
    pub requests_waiting: Option<Spread>,
    /// Pages of the KV cache that hold something.
    pub kv_pages_used: Option<Spread>,
    /// Pages that there are.
    pub kv_pages: Option<u64>,
    /// Counters: what they grew by over the run.
    pub prompt_tokens: Option<u64>,
    /// See `prompt_tokens`.
    pub output_tokens: Option<u64>,
    /// See `prompt_tokens`.
    pub prefix_query_tokens: Option<u64>,
    /// See `prompt_tokens`.
    pub prefix_hit_tokens: Option<u64>,
    /// See `prompt_tokens`.
    pub preemptions: Option<u64>,
    /// The same over time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub series: Option<Series>,
}

/// The machine that the load generator ran on.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct HostTelemetry {
    /// The server's address is one of this machine.
    pub has_server: bool,
    /// Shares of the time of all cores over the run; the rest is idle.
    pub cpu_user_share: Option<f64>,
    /// With interrupts.
    pub cpu_system_share: Option<f64>,
    /// Idle, for want of a disk.
    pub cpu_iowait_share: Option<f64>,
    /// Taken by the hypervisor for others.
    pub cpu_steal_share: Option<f64>,
    /// Memory that could not be had without swapping.
    pub memory_used_bytes_max: Option<u64>,
    /// The system's load average over one minute, at most.
    pub load_1m_max: Option<f64>,
    /// What tasks waited for; null where the system does not tell.
    pub pressure: Option<Pressure>,
    /// The same over time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub series: Option<Series>,
}

/// Pressure stall information: for how long of the run some task waited for a resource.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Pressure {
    /// A core.
    pub cpu_us: u64,
    /// Memory.
    pub memory_us: u64,
    /// A disk.
    pub io_us: u64,
}

/// One GPU, in the driver's order.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct GpuTelemetry {
    /// It was at work at one look or more.
    pub worked: bool,
    /// Drawn.
    pub power_mw: Option<Spread>,
    /// From just before the clock started to just after it stopped.
    pub energy_mj: Option<u64>,
    /// Where that comes from.
    pub energy_source: Option<EnergySource>,
    /// Clock of the processors.
    pub sm_mhz: Option<Spread>,
    /// Clock of the memory.
    pub memory_mhz: Option<Spread>,
    /// Temperature of the chip, degrees Celsius.
    pub gpu_c_max: Option<u64>,
    /// Temperature of the memory, degrees Celsius.
    pub memory_c_max: Option<u64>,
    /// Share of time in which a kernel ran.
    pub util_percent: Option<Spread>,
    /// Of all processes.
    pub memory_used_bytes_max: Option<u64>,
    /// What held its clocks down.
    pub throttled: Option<Throttled>,
    /// Errors of its memory that could not be corrected, from just before the clock started to
    /// just after it stopped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ecc_uncorrected: Option<u64>,
    /// Packets that had to be sent again between it and the processor, over the same time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pcie_replays: Option<u64>,
}

/// Where the energy of a GPU comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum EnergySource {
    /// The GPU's own counter.
    Counter,
    /// The power at each look, integrated: older cards have no counter.
    Power,
}

/// Shares of the looks at which clocks were held down, by what held them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Throttled {
    /// The power limit.
    pub power_share: f64,
    /// Heat, by the driver or by the hardware.
    pub thermal_share: f64,
    /// The hardware: an external power brake, or its emergency slow-down.
    pub hardware_share: f64,
    /// Another GPU of a group with common clocks.
    pub sync_share: f64,
}

/// Values of one quantity over all looks. The unit is that of the field.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Spread {
    /// Of all looks.
    pub mean: f64,
    /// 5th percentile.
    pub p5: u64,
    /// The median.
    pub p50: u64,
    /// 95th percentile.
    pub p95: u64,
    /// The largest.
    pub max: u64,
}

/// Values over time, few enough for a record: neighbouring looks share a point.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Series {
    /// When the last look of each point was, from the start of the clock.
    pub at_us: Vec<u64>,
    /// As many values as there are points, by name. A counter's is what it grew by since the point
    /// before, any other's is the mean over its looks. One that was zero all along is left out.
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
