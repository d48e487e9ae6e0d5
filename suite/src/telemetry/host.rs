//! Telemetry of the machine that the load generator runs on, from the kernel's counters in `/proc`.

use std::net::IpAddr;

use nix::ifaddrs::getifaddrs;
use procfs::{CpuPressure, IoPressure, MemoryPressure};
use procfs::{Current, CurrentSI, KernelStats, LoadAverage, Meminfo};
use schema::telemetry::{HostTelemetry, Pressure};

use super::{Poll, Together, Watch, series, share};
use crate::measure::summary::float;

/// CPU time, memory, load and pressure of the machine that the load generator runs on, at one
/// moment.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct HostReading {
    pub cpu: CpuTicks,
    /// Memory in use, in bytes: total memory less what the kernel calls available; `None` if the
    /// kernel does not report it.
    pub memory_used_bytes: Option<u64>,
    /// Load average of the machine over one minute; `None` if the kernel does not report it.
    pub load_1m: Option<f64>,
    /// Times since boot, in microseconds, that tasks were stalled for lack of CPU, of memory and of
    /// I/O, one value for each; `None` if the kernel does not account for them.
    pub pressure: Option<Pressure>,
}

/// CPU time of all cores since boot, by kind, in kernel ticks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuTicks {
    pub user: u64,
    pub system: u64,
    pub iowait: u64,
    pub steal: u64,
    pub idle: u64,
}

impl CpuTicks {
    fn since(self, before: Self) -> Self {
        Self {
            user: self.user.saturating_sub(before.user),
            system: self.system.saturating_sub(before.system),
            // The kernel documents that `iowait` may decrease.
            iowait: self.iowait.saturating_sub(before.iowait),
            steal: self.steal.saturating_sub(before.steal),
            idle: self.idle.saturating_sub(before.idle),
        }
    }

    fn all(self) -> u64 {
        self.user + self.system + self.iowait + self.steal + self.idle
    }
}

/// Reads the machine's CPU time, memory, load and pressure from the kernel; `None` if the kernel
/// does not report CPU time.
pub fn read() -> Option<HostReading> {
    let cpu = KernelStats::current().ok()?.total;
    let rest = |ticks: Option<u64>| ticks.unwrap_or(0);
    // Available memory instead of free memory: the kernel can reclaim its page cache.
    let used = |memory: Meminfo| memory.mem_total.checked_sub(memory.mem_available?);
    Some(HostReading {
        cpu: CpuTicks {
            user: cpu.user + cpu.nice,
            system: cpu.system + rest(cpu.irq) + rest(cpu.softirq),
            iowait: rest(cpu.iowait),
            steal: rest(cpu.steal),
            idle: cpu.idle,
        },
        memory_used_bytes: Meminfo::current().ok().and_then(used),
        load_1m: LoadAverage::current().ok().map(|load| f64::from(load.one)),
        pressure: pressure(),
    })
}

/// Returns the time since boot in which the hypervisor ran something else although a core of this
/// machine had work, summed over cores, in microseconds; `None` if the kernel does not report it.
pub fn steal_us() -> Option<u64> {
    let ticks = KernelStats::current().ok()?.total.steal?;
    Some(ticks * 1_000_000 / procfs::ticks_per_second().max(1))
}

fn pressure() -> Option<Pressure> {
    Some(Pressure {
        cpu_us: CpuPressure::current().ok()?.some.total,
        memory_us: MemoryPressure::current().ok()?.some.total,
        io_us: IoPressure::current().ok()?.some.total,
    })
}

/// True when `address` belongs to the machine that the load generator runs on.
pub fn is_here(address: IpAddr) -> bool {
    if address.is_loopback() || address.is_unspecified() {
        return true;
    }
    let own = |address: nix::ifaddrs::InterfaceAddress| {
        let storage = address.address?;
        let v4 = storage.as_sockaddr_in().map(|v4| IpAddr::from(v4.ip()));
        v4.or_else(|| storage.as_sockaddr_in6().map(|v6| IpAddr::from(v6.ip())))
    };
    getifaddrs().is_ok_and(|mut all| all.any(|interface| own(interface) == Some(address)))
}

impl Watch<'_> {
    /// Computes the telemetry of the load generator's machine over the run, whose clock started at
    /// `start_ns`; `None` if the kernel reports no CPU time.
    pub(super) fn host_facts(&self, start_ns: u64) -> Option<HostTelemetry> {
        let has_server = is_here(self.server.address.ip());
        facts(&self.polls, start_ns, has_server)
    }
}

fn facts(polls: &[Poll], start_ns: u64, has_server: bool) -> Option<HostTelemetry> {
    let told: Vec<(u64, HostReading)> =
        polls.iter().filter_map(|poll| Some((poll.at_ns, poll.host?))).collect();
    let (first, last) = (told.first()?.1, told.last()?.1);
    let cpu = last.cpu.since(first.cpu);
    // In a run shorter than the kernel's tick no core has any time.
    let of_all = |ticks: u64| (cpu.all() > 0).then(|| share(ticks, cpu.all()));
    let used = told.iter().filter_map(|(_, reading)| reading.memory_used_bytes).max();
    let load = told.iter().filter_map(|(_, reading)| reading.load_1m);
    let load = load.map(|load| (load * 100.0).round() / 100.0).reduce(f64::max);
    let pressure = first.pressure.zip(last.pressure).map(|(first, last)| Pressure {
        cpu_us: last.cpu_us.saturating_sub(first.cpu_us),
        memory_us: last.memory_us.saturating_sub(first.memory_us),
        io_us: last.io_us.saturating_sub(first.io_us),
    });
    Some(HostTelemetry {
        has_server,
        cpu_user_share: of_all(cpu.user),
        cpu_system_share: of_all(cpu.system),
        cpu_iowait_share: of_all(cpu.iowait),
        cpu_steal_share: of_all(cpu.steal),
        memory_used_bytes_max: used,
        load_1m_max: load,
        pressure,
        series: over_time(&told, start_ns),
    })
}

/// Builds the time series of the machine from the second sample on: CPU shares since the previous
/// sample, in thousandths, and memory in use at the sample, in MiB. `None` for fewer than three
/// samples.
fn over_time(told: &[(u64, HostReading)], start_ns: u64) -> Option<schema::telemetry::Series> {
    let later = told.get(1..)?;
    let at_us: Vec<u64> =
        later.iter().map(|(at_ns, _)| at_ns.saturating_sub(start_ns) / 1000).collect();
    let per_mille = |read: fn(CpuTicks) -> u64| -> Vec<f64> {
        let pairs = told.windows(2).map(|pair| pair[1].1.cpu.since(pair[0].1.cpu));
        pairs.map(|cpu| 1000.0 * share(read(cpu), cpu.all())).collect()
    };
    let memory: Option<Vec<f64>> =
        later.iter().map(|(_, reading)| Some(float(reading.memory_used_bytes? >> 20))).collect();
    let mut columns = vec![
        ("cpu_user_per_mille", Together::Mean, per_mille(|cpu| cpu.user)),
        ("cpu_system_per_mille", Together::Mean, per_mille(|cpu| cpu.system)),
        ("cpu_steal_per_mille", Together::Mean, per_mille(|cpu| cpu.steal)),
    ];
    columns.extend(memory.map(|memory| ("memory_used_mib", Together::Mean, memory)));
    series(&at_us, columns)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn poll(second: u64, ticks: [u64; 5]) -> Poll {
        let [user, system, iowait, steal, idle] = ticks;
        let host = HostReading {
            cpu: CpuTicks { user, system, iowait, steal, idle },
            memory_used_bytes: Some((100 + second) << 20),
            load_1m: Some(1.5),
            pressure: Some(Pressure { cpu_us: 1000 * second, memory_us: 0, io_us: 7 }),
        };
        Poll { at_ns: second * 1_000_000_000, host: Some(host), ..Poll::default() }
    }

    #[test]
    fn shares_are_of_all_cores_time_between_the_first_look_and_the_last() {
        let polls = [
            poll(1, [1000, 500, 10, 5, 9000]),
            poll(2, [1100, 550, 10, 5, 9050]),
            poll(3, [1280, 580, 8, 21, 9092]),
        ];
        let found = facts(&polls, 1_000_000_000, true).unwrap();
        assert_eq!(
            [found.cpu_user_share, found.cpu_system_share, found.cpu_steal_share],
            [Some(0.5983), Some(0.1709), Some(0.0342)],
        );
        assert_eq!(found.cpu_iowait_share, Some(0.0), "a count that ran backwards is none");
        assert_eq!(found.memory_used_bytes_max, Some(103 << 20));
        assert_eq!(found.pressure, Some(Pressure { cpu_us: 2000, memory_us: 0, io_us: 0 }));
        let series = found.series.unwrap();
        assert_eq!(series.at_us, [1_000_000, 2_000_000], "from the start of the clock");
        assert_eq!(series.columns["cpu_user_per_mille"], [500, 672]);
        assert_eq!(series.columns["cpu_steal_per_mille"], [0, 60]);
    }

    #[test]
    fn what_the_kernel_does_not_account_for_is_unknown() {
        let mut polls = [poll(1, [1, 0, 0, 0, 1]), poll(1, [1, 0, 0, 0, 1])];
        for poll in &mut polls {
            poll.host = poll.host.map(|host| HostReading { pressure: None, ..host });
        }
        let found = facts(&polls, 0, false).unwrap();
        assert_eq!((found.pressure, found.cpu_user_share), (None, None));
        assert_eq!(found.cpu_steal_share, None, "the run is shorter than a tick");
        assert_eq!(facts(&[Poll::default()], 0, false), None);
    }

    #[test]
    fn this_machine_knows_its_own_addresses() {
        assert!(is_here([127, 0, 0, 1].into()));
        // An address reserved for documentation (RFC 5737), so no machine has it.
        assert!(!is_here([192, 0, 2, 1].into()));
    }
}
