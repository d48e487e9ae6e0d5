//! GPU telemetry of a run (power, energy, clocks, temperature, throttling), computed from the
//! samples. Readers of GPUs implement a trait, so that tests can replace the driver. GPUs of NVIDIA
//! are read through NVML, NVIDIA's management library. It comes with the driver and is loaded at run
//! time, so machines without a driver simply have no GPU readings. The submodule reads GPUs of AMD.

mod amdgpu;

use std::fmt;

use nvml_wrapper::Nvml;
use nvml_wrapper::bitmasks::device::ThrottleReasons;
use nvml_wrapper::device::Device;
use nvml_wrapper::enum_wrappers::device::{Clock, EccCounter, MemoryError, TemperatureSensor};
use nvml_wrapper::enums::device::SampleValue;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::structs::device::FieldId;
use nvml_wrapper::sys_exports::field_id::NVML_FI_DEV_MEMORY_TEMP;
use schema::telemetry::{EnergySource, GpuTelemetry, Series, Throttled};

use super::{Column, Poll, Together, Watch, counted, series, share, spread};
use crate::measure::summary::float;

/// Source of GPU readings, such as NVML or a test's script.
pub trait Gpus: fmt::Debug + Send + Sync {
    /// Reads the current state of all GPUs of the machine, always in the same order.
    fn poll(&self) -> Vec<GpuReading>;
}

/// Reader of the GPUs of the machine that the load generator runs on; `None` where they cannot be
/// read.
pub type Meter = Option<Box<dyn Gpus>>;

/// Readings of one GPU at one moment. A value is `None` if the driver does not report it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct GpuReading {
    /// Power that the GPU draws at the moment, in milliwatts; `None` if the driver does not report
    /// it.
    pub power_mw: Option<u64>,
    /// Energy that the GPU has used since the driver was loaded, in millijoules; `None` if the
    /// driver does not report it.
    pub energy_mj: Option<u64>,
    /// Clock frequency of the GPU's streaming multiprocessors, in MHz; `None` if the driver does
    /// not report it.
    pub sm_mhz: Option<u64>,
    /// Clock frequency of the GPU's memory, in MHz; `None` if the driver does not report it.
    pub memory_mhz: Option<u64>,
    /// Temperature of the GPU chip, in degrees Celsius; `None` if the driver does not report it.
    pub gpu_c: Option<u64>,
    /// Temperature of the GPU memory, in degrees Celsius; `None` if the driver does not report it.
    pub memory_c: Option<u64>,
    /// Percentage of the driver's last sampling period in which a kernel ran on the GPU; `None` if
    /// the driver does not report it.
    pub util_percent: Option<u64>,
    /// Memory of the GPU that all processes use, in bytes; `None` if the driver does not report it.
    pub memory_used_bytes: Option<u64>,
    /// Causes that currently keep the GPU's clocks low; `None` if the driver does not report it.
    pub throttle: Option<Throttle>,
    /// Number of uncorrected ECC errors of the GPU since the driver was loaded; `None` if the
    /// driver does not report it.
    pub ecc_uncorrected: Option<u64>,
    /// Number of PCIe replays (repeated transfers) since the GPU was reset; `None` if the driver
    /// does not report it.
    pub pcie_replays: Option<u64>,
}

/// Causes that keep a GPU's clocks low (throttling) at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Throttle {
    /// True when the power limit keeps the GPU's clocks low.
    pub power: bool,
    /// True when heat keeps the GPU's clocks low.
    pub thermal: bool,
    /// True when the board's power supply or its power brake keeps the GPU's clocks low.
    pub hardware: bool,
    /// True when the GPU's clocks are low because its group of GPUs is set to run at the same
    /// clock.
    pub sync: bool,
}

/// Readings of one GPU over a run, each with its monotonic time in nanoseconds.
type Readings = Vec<(u64, GpuReading)>;

impl Watch<'_> {
    /// Computes the telemetry of every GPU over the run; `None` if GPUs cannot be read.
    pub(super) fn gpu_facts(&self) -> Option<Vec<GpuTelemetry>> {
        self.meter.as_ref().map(|_| facts(&self.polls))
    }

    /// Builds one time series over the run, combined from all GPUs that ran a kernel according to a
    /// sample of their utilization; `None` if no GPU did, or there are fewer than three samples.
    pub(super) fn gpu_series(&self, gpus: &[GpuTelemetry], start_ns: u64) -> Option<Series> {
        let all = by_gpu(&self.polls);
        let worked = all.into_iter().zip(gpus).filter(|(_, gpu)| gpu.worked);
        together(&worked.map(|(readings, _)| readings).collect::<Vec<_>>(), start_ns)
    }
}

fn by_gpu(polls: &[Poll]) -> Vec<Readings> {
    let count = polls.first().map_or(0, |poll| poll.gpus.len());
    let of = |index: usize| {
        let seen = polls.iter().filter_map(|poll| Some((poll.at_ns, *poll.gpus.get(index)?)));
        seen.collect()
    };
    (0..count).map(of).collect()
}

fn facts(polls: &[Poll]) -> Vec<GpuTelemetry> {
    by_gpu(polls).iter().map(one).collect()
}

fn one(readings: &Readings) -> GpuTelemetry {
    // The first and the last sample lie outside the timed run, when the GPU may be idle.
    let during =
        readings.get(1..readings.len().saturating_sub(1)).filter(|during| !during.is_empty());
    let during = during.unwrap_or(readings);
    let seen = |read: fn(&GpuReading) -> Option<u64>| {
        during.iter().filter_map(move |(_, reading)| read(reading))
    };
    let most = |read: fn(&GpuReading) -> Option<u64>| {
        readings.iter().filter_map(|(_, reading)| read(reading)).max()
    };
    let counted = |read: fn(&GpuReading) -> Option<u64>| grown(readings, read);
    let energy = energy(readings);
    let throttles: Vec<Throttle> =
        during.iter().filter_map(|(_, reading)| reading.throttle).collect();
    GpuTelemetry {
        // The server does not report which GPUs are its own, so every GPU with utilization counts.
        worked: readings.iter().any(|(_, reading)| reading.util_percent > Some(0)),
        power_mw: spread(seen(|r| r.power_mw)),
        energy_mj: energy.map(|energy| energy.0),
        energy_source: energy.map(|e| e.1),
        sm_mhz: spread(seen(|r| r.sm_mhz)),
        memory_mhz: spread(seen(|r| r.memory_mhz)),
        gpu_c_max: most(|r| r.gpu_c),
        memory_c_max: most(|r| r.memory_c),
        util_percent: spread(seen(|r| r.util_percent)),
        memory_used_bytes_max: most(|r| r.memory_used_bytes),
        throttled: throttled(&throttles),
        ecc_uncorrected: counted(|r| r.ecc_uncorrected),
        pcie_replays: counted(|r| r.pcie_replays),
    }
}

/// Returns the growth of a GPU's counter from the run's first sample to the last; `None` if it was
/// not reported or was reset in between.
fn grown(readings: &Readings, read: fn(&GpuReading) -> Option<u64>) -> Option<u64> {
    let (first, last) = (&readings.first()?.1, &readings.last()?.1);
    read(last)?.checked_sub(read(first)?)
}

/// Returns the energy that a GPU used over the run in millijoules, and its source: the GPU's energy
/// counter if it has one, else its power samples, integrated by the trapezoidal rule. `None` if it
/// reports neither.
fn energy(readings: &Readings) -> Option<(u64, EnergySource)> {
    if let Some(grown) = grown(readings, |reading| reading.energy_mj) {
        return Some((grown, EnergySource::Counter));
    }
    let power: Option<Vec<(u64, u64)>> =
        readings.iter().map(|(at_ns, reading)| Some((*at_ns, reading.power_mw?))).collect();
    let area = |pair: &[(u64, u64)]| {
        let seconds = float(pair[1].0 - pair[0].0) / 1e9;
        seconds * (float(pair[0].1) + float(pair[1].1)) / 2.0
    };
    let power = power.filter(|power| power.len() > 1)?;
    counted(power.windows(2).map(area).sum()).map(|mj| (mj, EnergySource::Power))
}

fn throttled(polls: &[Throttle]) -> Option<Throttled> {
    let of = |read: fn(&Throttle) -> bool| {
        share(polls.iter().filter(|poll| read(poll)).count() as u64, polls.len() as u64)
    };
    (!polls.is_empty()).then(|| Throttled {
        power_share: of(|poll| poll.power),
        thermal_share: of(|poll| poll.thermal),
        hardware_share: of(|poll| poll.hardware),
        sync_share: of(|poll| poll.sync),
    })
}

/// Builds one time series of several GPUs, from the second sample on: power is summed, the clock is
/// the lowest, the temperature the highest, utilization the mean. A quantity that a GPU does not
/// report in every sample is left out.
fn together(gpus: &[Readings], start_ns: u64) -> Option<Series> {
    let polls = gpus.iter().map(Vec::len).min()?;
    let at_us: Vec<u64> =
        (1..polls).map(|poll| gpus[0][poll].0.saturating_sub(start_ns) / 1000).collect();
    let column = |name, read: fn(&GpuReading) -> Option<u64>, join: fn(&[u64]) -> u64| {
        let at = |poll: usize| -> Option<f64> {
            let values = gpus.iter().map(|readings| read(&readings[poll].1));
            Some(float(join(&values.collect::<Option<Vec<u64>>>()?)))
        };
        let values: Option<Vec<f64>> = (1..polls).map(at).collect();
        values.map(|values| (name, Together::Mean, values))
    };
    let columns: Vec<Column> = [
        column("power_mw", |r| r.power_mw, |all| all.iter().sum()),
        // The slowest GPU holds up all tensor-parallel ranks, so the minimum is shown.
        column("sm_mhz", |r| r.sm_mhz, |all| all.iter().min().copied().unwrap_or(0)),
        column("gpu_c", |r| r.gpu_c, |all| all.iter().max().copied().unwrap_or(0)),
        column(
            "util_percent",
            |r| r.util_percent,
            |all| all.iter().sum::<u64>() / all.len().max(1) as u64,
        ),
    ]
    .into_iter()
    .flatten()
    .collect();
    series(&at_us, columns)
}

#[derive(Debug)]
struct Library(Nvml);

/// Returns a reader of this machine's GPUs of NVIDIA or, without any, of AMD; `None` without a driver,
/// or without access to it.
pub fn open() -> Meter {
    open_nvml().or_else(amdgpu::open)
}

/// Loads NVML and returns a reader of this machine's GPUs; `None` without a driver, or without
/// access to it.
fn open_nvml() -> Meter {
    match Nvml::init() {
        Ok(nvml) => Some(Box::new(Library(nvml))),
        Err(
            NvmlError::LibloadingError(_) | NvmlError::LibraryNotFound | NvmlError::DriverNotLoaded,
        ) => None,
        Err(error) => {
            eprintln!("warning: no telemetry of GPUs: the NVIDIA driver gives no access: {error}");
            None
        }
    }
}

impl Gpus for Library {
    fn poll(&self) -> Vec<GpuReading> {
        let count = self.0.device_count().unwrap_or(0);
        let reading =
            |index| self.0.device_by_index(index).as_ref().map(read_device).unwrap_or_default();
        (0..count).map(reading).collect()
    }
}

fn read_device(device: &Device<'_>) -> GpuReading {
    GpuReading {
        power_mw: device.power_usage().ok().map(u64::from),
        energy_mj: device.total_energy_consumption().ok(),
        sm_mhz: device.clock_info(Clock::SM).ok().map(u64::from),
        memory_mhz: device.clock_info(Clock::Memory).ok().map(u64::from),
        gpu_c: device.temperature(TemperatureSensor::Gpu).ok().map(u64::from),
        memory_c: memory_c(device),
        util_percent: device.utilization_rates().ok().map(|rates| u64::from(rates.gpu)),
        memory_used_bytes: device.memory_info().ok().map(|memory| memory.used),
        throttle: device.current_throttle_reasons().ok().map(throttle),
        ecc_uncorrected: device
            .total_ecc_errors(MemoryError::Uncorrected, EccCounter::Volatile)
            .ok(),
        pcie_replays: device.pcie_replay_counter().ok().map(u64::from),
    }
}

/// Returns the temperature of the GPU memory in degrees Celsius; `None` if the driver does not know
/// it.
fn memory_c(device: &Device<'_>) -> Option<u64> {
    let mut fields = device.field_values_for(&[FieldId(NVML_FI_DEV_MEMORY_TEMP)]).ok()?;
    match fields.pop()?.ok()?.value.ok()? {
        // The driver returns zero if it does not know the temperature.
        SampleValue::U32(celsius) if celsius > 0 => Some(u64::from(celsius)),
        _ => None,
    }
}

fn throttle(reasons: ThrottleReasons) -> Throttle {
    let any = |held: ThrottleReasons| reasons.intersects(held);
    let heat = ThrottleReasons::SW_THERMAL_SLOWDOWN | ThrottleReasons::HW_THERMAL_SLOWDOWN;
    // The driver also reports the hardware slowdown when heat is the cause; it then counts as heat
    // only.
    let slowed = any(ThrottleReasons::HW_SLOWDOWN) && !any(heat);
    Throttle {
        power: any(ThrottleReasons::SW_POWER_CAP),
        thermal: any(heat),
        hardware: slowed || any(ThrottleReasons::HW_POWER_BRAKE_SLOWDOWN),
        sync: any(ThrottleReasons::SYNC_BOOST),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use schema::telemetry::Spread;

    /// Test helper: returns telemetry samples, one a second, in which the first GPU has the given
    /// readings and a second GPU is idle.
    fn polls(readings: &[GpuReading]) -> Vec<Poll> {
        let idle =
            GpuReading { power_mw: Some(60_000), util_percent: Some(0), ..Default::default() };
        let poll = |(second, reading): (usize, &GpuReading)| Poll {
            at_ns: second as u64 * 1_000_000_000,
            gpus: vec![*reading, idle],
            ..Poll::default()
        };
        readings.iter().enumerate().map(poll).collect()
    }

    fn at_work(power_w: u64, energy_j: Option<u64>) -> GpuReading {
        GpuReading {
            power_mw: Some(power_w * 1000),
            energy_mj: energy_j.map(|joules| joules * 1000),
            sm_mhz: Some(1980),
            memory_mhz: Some(2619),
            gpu_c: Some(61),
            memory_c: None,
            util_percent: Some(98),
            memory_used_bytes: Some(70 << 30),
            throttle: Some(Throttle::default()),
            ..GpuReading::default()
        }
    }

    #[test]
    fn energy_is_the_counters_where_there_is_one() {
        let polls =
            polls(&[at_work(100, Some(5000)), at_work(700, Some(5400)), at_work(100, Some(6100))]);
        let gpus = facts(&polls);
        assert_eq!(
            (gpus[0].energy_mj, gpus[0].energy_source),
            (Some(1_100_000), Some(EnergySource::Counter))
        );
        let power = Spread { mean: 7e5, p5: 700_000, p50: 700_000, p95: 700_000, max: 700_000 };
        assert_eq!(gpus[0].power_mw, Some(power), "of polls while the clock ran");
        assert_eq!(gpus[0].memory_c_max, None, "the driver does not report it");
        assert_eq!((gpus[0].worked, gpus[1].worked), (true, false));
    }

    #[test]
    fn an_old_card_without_a_counter_has_its_power_integrated() {
        let seen = polls(&[at_work(100, None), at_work(700, None), at_work(300, None)]);
        let gpus = facts(&seen);
        assert_eq!(
            (gpus[0].energy_mj, gpus[0].energy_source),
            (Some(900_000), Some(EnergySource::Power)),
            "400 W for a second and 500 W for another"
        );
        let blind = [GpuReading { power_mw: None, ..at_work(0, None) }; 2];
        let gpus = facts(&polls(&blind));
        assert_eq!((gpus[0].energy_mj, gpus[0].power_mw), (None, None));
    }

    #[test]
    fn a_throttled_share_is_of_the_looks_while_the_clock_ran() {
        let held = |power, thermal| GpuReading {
            throttle: Some(Throttle { power, thermal, ..Throttle::default() }),
            ..at_work(500, Some(0))
        };
        let free = at_work(500, Some(0));
        let polls =
            polls(&[held(true, true), held(true, false), held(true, true), free, free, free]);
        let gpus = facts(&polls);
        let throttled = gpus[0].throttled.unwrap();
        assert_eq!((throttled.power_share, throttled.thermal_share), (0.5, 0.25));
        assert_eq!((throttled.hardware_share, throttled.sync_share), (0.0, 0.0));
        assert_eq!(gpus[1].throttled, None);
    }

    #[test]
    fn errors_are_those_of_the_run_and_unknown_without_counters() {
        let counting = |errors, replays| GpuReading {
            ecc_uncorrected: Some(errors),
            pcie_replays: Some(replays),
            ..at_work(500, None)
        };
        let polls = polls(&[counting(3, 9), counting(3, 9), counting(5, 4)]);
        let gpus = facts(&polls);
        assert_eq!((gpus[0].ecc_uncorrected, gpus[0].pcie_replays), (Some(2), None));
        assert_eq!(gpus[1].ecc_uncorrected, None);
    }

    #[test]
    fn the_series_is_of_those_that_worked() {
        let all = by_gpu(&polls(&[at_work(100, None), at_work(700, None), at_work(300, None)]));
        let one = together(&all[..1], 0).unwrap();
        assert_eq!(
            (one.at_us.as_slice(), one.columns["power_mw"].as_slice()),
            (&[1_000_000, 2_000_000][..], &[700_000, 300_000][..])
        );
        let both = together(&all, 0).unwrap();
        assert_eq!(both.columns["power_mw"], [760_000, 360_000]);
        assert_eq!(both.columns["util_percent"], [49, 49]);
        assert!(!both.columns.contains_key("sm_mhz"), "the idle one does not tell its clock");
        assert_eq!(together(&[], 0), None);
    }
}

#[cfg(test)]
mod nvml_tests {
    use super::*;

    #[test]
    fn what_holds_clocks_down_is_told_apart() {
        let none = Throttle::default();
        for (bits, expected) in [
            (ThrottleReasons::GPU_IDLE, none),
            (ThrottleReasons::APPLICATIONS_CLOCKS_SETTING, none),
            (ThrottleReasons::SW_POWER_CAP, Throttle { power: true, ..none }),
            (ThrottleReasons::HW_SLOWDOWN, Throttle { hardware: true, ..none }),
            (ThrottleReasons::HW_POWER_BRAKE_SLOWDOWN, Throttle { hardware: true, ..none }),
            (
                ThrottleReasons::HW_SLOWDOWN | ThrottleReasons::HW_THERMAL_SLOWDOWN,
                Throttle { thermal: true, ..none },
            ),
            (ThrottleReasons::SYNC_BOOST, Throttle { sync: true, ..none }),
        ] {
            assert_eq!(throttle(bits), expected, "{bits:?}");
        }
    }

    #[test]
    fn every_reading_has_as_many_gpus() {
        if let Some(meter) = open() {
            assert_eq!(meter.poll().len(), meter.poll().len());
        }
    }
}
