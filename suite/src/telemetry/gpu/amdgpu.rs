//! Reader of AMD's GPUs, from the files of the Linux driver `amdgpu` in sysfs. A sample reads a few
//! files of one line, and starts no program such as `amd-smi` beside the measurement.
//!
//! Source of names and units: the comments `hwmon`, `gpu_busy_percent`, `mem_info_vram_used` and
//! `pcie_replay_count` of the driver, which are the kernel's page "GPU Power/Thermal Controls and
//! Monitoring". Energy and throttling are in a binary file alone, whose layout differs by GPU; they are
//! not read.

use std::fs;
use std::path::{Path, PathBuf};

use super::{GpuReading, Gpus, Meter};

/// Folder with a link to each device of the driver, named after the device's PCI address.
const DRIVER: &str = "/sys/bus/pci/drivers/amdgpu";

/// PCI class of GPUs that drive displays, as the beginning of the file `class`. Their utilization says
/// nothing about a server, and most of them are parts of processors.
const DISPLAY: &str = "0x0300";

/// AMD GPUs of a machine, in the order of their PCI addresses.
#[derive(Debug)]
struct Driver {
    devices: Vec<Device>,
}

/// Folders with the files of one GPU.
#[derive(Debug)]
struct Device {
    folder: PathBuf,
    /// Folder of the sensors; `None` where the driver has none, as in some virtual machines.
    sensors: Option<PathBuf>,
}

/// Returns a reader of this machine's AMD GPUs; `None` without any.
pub fn open() -> Meter {
    open_in(Path::new(DRIVER))
}

fn open_in(driver: &Path) -> Meter {
    let mut folders: Vec<PathBuf> = entries(driver);
    folders.retain(|folder| folder.join("mem_info_vram_total").is_file() && !is_display(folder));
    if folders.is_empty() {
        return None;
    }
    let device = |folder: PathBuf| {
        let sensors = entries(&folder.join("hwmon")).into_iter().next();
        Device { folder, sensors }
    };
    Some(Box::new(Driver { devices: folders.into_iter().map(device).collect() }))
}

/// Lists the paths in a folder, sorted; none if it cannot be read.
fn entries(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten();
    let mut paths: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    paths.sort();
    paths
}

fn is_display(device: &Path) -> bool {
    fs::read_to_string(device.join("class")).is_ok_and(|class| class.starts_with(DISPLAY))
}

impl Gpus for Driver {
    fn poll(&self) -> Vec<GpuReading> {
        self.devices.iter().map(Device::read).collect()
    }
}

impl Device {
    fn read(&self) -> GpuReading {
        let of_device = |name: &str| number(&self.folder.join(name));
        let sensor = |name: &str| number(&self.sensors.as_ref()?.join(name));
        // Where the driver knows no average, the power is that of the moment.
        let power_uw = sensor("power1_average").or_else(|| sensor("power1_input"));
        // The hottest spot of the chip, which a GPU of a data center has instead of its edge.
        let chip_mc = sensor("temp2_input").or_else(|| sensor("temp1_input"));
        GpuReading {
            power_mw: power_uw.map(|uw| uw / 1000),
            energy_mj: None,
            sm_mhz: sensor("freq1_input").map(|hz| hz / 1_000_000),
            memory_mhz: sensor("freq2_input").map(|hz| hz / 1_000_000),
            gpu_c: chip_mc.map(|mc| mc / 1000),
            memory_c: sensor("temp3_input").map(|mc| mc / 1000),
            util_percent: of_device("gpu_busy_percent"),
            memory_used_bytes: of_device("mem_info_vram_used"),
            throttle: None,
            ecc_uncorrected: None,
            pcie_replays: of_device("pcie_replay_count"),
        }
    }
}

/// Reads a file with one number; `None` if there is none.
fn number(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;

    /// Writes files with one line each below a folder.
    fn write(folder: &Path, files: &[(&str, &str)]) {
        for (name, line) in files {
            let path = folder.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, format!("{line}\n")).unwrap();
        }
    }

    /// Folder of a driver with a GPU of a data center, one that drives a display, and one in a virtual
    /// machine, which has few files.
    fn driver() -> TempDir {
        let driver = tempfile::tempdir().unwrap();
        write(
            &driver.path().join("0000:c1:00.0"),
            &[
                ("class", "0x120000"),
                ("mem_info_vram_total", "206141652992"),
                ("mem_info_vram_used", "297795584"),
                ("gpu_busy_percent", "87"),
                ("pcie_replay_count", "2"),
                ("hwmon/hwmon4/power1_input", "542000000"),
                ("hwmon/hwmon4/temp2_input", "71000"),
                ("hwmon/hwmon4/temp3_input", "58000"),
                ("hwmon/hwmon4/freq1_input", "2100000000"),
                ("hwmon/hwmon4/freq2_input", "1300000000"),
            ],
        );
        write(
            &driver.path().join("0000:0a:00.0"),
            &[("class", "0x030000"), ("mem_info_vram_total", "536870912")],
        );
        write(
            &driver.path().join("0000:b1:00.0"),
            &[("class", "0x120000"), ("mem_info_vram_total", "206141652992")],
        );
        write(driver.path(), &[("new_id", "")]);
        driver
    }

    #[test]
    fn a_gpu_of_amd_is_read_from_the_files_of_its_driver() {
        let driver = driver();
        let readings = open_in(driver.path()).unwrap().poll();
        assert_eq!(readings.len(), 2, "in the order of their addresses: {readings:?}");
        assert_eq!(readings[0], GpuReading::default(), "it has no sensors");
        let expected = GpuReading {
            power_mw: Some(542_000),
            sm_mhz: Some(2100),
            memory_mhz: Some(1300),
            gpu_c: Some(71),
            memory_c: Some(58),
            util_percent: Some(87),
            memory_used_bytes: Some(297_795_584),
            pcie_replays: Some(2),
            ..GpuReading::default()
        };
        assert_eq!(readings[1], expected);
        let card = driver.path().join("0000:c1:00.0/hwmon/hwmon4");
        write(&card, &[("power1_average", "530000000"), ("temp1_input", "52000")]);
        fs::remove_file(card.join("temp2_input")).unwrap();
        let reading = open_in(driver.path()).unwrap().poll()[1];
        assert_eq!((reading.power_mw, reading.gpu_c), (Some(530_000), Some(52)));
    }

    #[test]
    fn without_the_driver_there_is_no_reader() {
        let driver = driver();
        assert!(open_in(&driver.path().join("none")).is_none());
        for name in ["0000:c1:00.0", "0000:b1:00.0"] {
            fs::remove_dir_all(driver.path().join(name)).unwrap();
        }
        assert!(open_in(driver.path()).is_none(), "a display is no accelerator");
    }
}
