//! Reads GPUs through NVML, NVIDIA's management library. It comes with the driver and is loaded at
//! run time, so machines without a driver simply have no GPU readings.

use nvml_wrapper::Nvml;
use nvml_wrapper::bitmasks::device::ThrottleReasons;
use nvml_wrapper::device::Device;
use nvml_wrapper::enum_wrappers::device::{Clock, EccCounter, MemoryError, TemperatureSensor};
use nvml_wrapper::enums::device::SampleValue;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::structs::device::FieldId;
use nvml_wrapper::sys_exports::field_id::NVML_FI_DEV_MEMORY_TEMP;

use super::gpu::{GpuReading, Gpus, Meter, Throttle};

#[derive(Debug)]
struct Library(Nvml);

/// Loads NVML and returns a reader of this machine's GPUs; `None` without a driver, or without
/// access to it.
pub fn open() -> Meter {
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
    fn look(&self) -> Vec<GpuReading> {
        let count = self.0.device_count().unwrap_or(0);
        let reading = |index| self.0.device_by_index(index).as_ref().map(read).unwrap_or_default();
        (0..count).map(reading).collect()
    }
}

fn read(device: &Device<'_>) -> GpuReading {
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

/// Temperature of the GPU memory in degrees Celsius; `None` if the driver does not know it.
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
            assert_eq!(meter.look().len(), meter.look().len());
        }
    }
}
