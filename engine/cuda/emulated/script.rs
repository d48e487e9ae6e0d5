//! Scripted properties of an emulated GPU: the times that it reports, and its faults.

use engine_core::DeviceError;
use engine_cuda::Result;

/// Scripted properties of an emulated GPU: its GEMM library and the times that it reports.
#[derive(Debug, Clone, Copy)]
pub struct Script {
    /// Number of algorithms of the emulated GEMM library; 0 means that no library is installed.
    pub algorithms: u64,
    /// Function that returns the nanoseconds that the emulated GPU reports for work of a name: the
    /// name of a kernel; for a matrix multiplication by the GEMM library, a text such as `algorithm
    /// 2 of 16 rows`; for a collective operation, the name of NCCL's function.
    pub ns: fn(&str) -> f64,
    /// Fault of the emulated GPU; `None` for one that works.
    pub fault: Option<Fault>,
    /// True for a GPU of compute capability 9.0 with the kernels for it, else 8.0.
    pub has_warpgroups: bool,
    /// Number of registers of a multiprocessor.
    pub registers: usize,
}

impl Default for Script {
    fn default() -> Self {
        let (algorithms, fault, has_warpgroups) = (0, None, false);
        Self { algorithms, ns: |_| 1000.0, fault, has_warpgroups, registers: 1 << 16 }
    }
}

/// Fault of an emulated GPU: what goes wrong at each launch of one kernel.
#[derive(Debug, Clone, Copy)]
pub struct Fault {
    /// Name of the kernel.
    pub entry: &'static str,
    /// Index of the element, of two bytes, of the kernel's first argument that becomes wrong.
    pub element: usize,
    /// What goes wrong.
    pub kind: FaultKind,
}

/// What goes wrong at a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultKind {
    /// The element has the wrong sign.
    Wrong,
    /// The element has the wrong sign at every other launch.
    Unstable,
    /// The element keeps the bits of memory that nobody wrote.
    Unwritten,
    /// The launch is refused with an error, and the next work succeeds.
    Refused,
    /// The launch and all later work fail, as after an access to memory that is not allocated.
    Lost,
}

impl Fault {
    /// Returns the error of a launch of the kernel `entry`, if the fault refuses it. `is_lost` is
    /// true once all work fails.
    pub fn refuse(&self, entry: &str, is_lost: &mut bool) -> Result<()> {
        *is_lost |= self.kind == FaultKind::Lost && self.entry == entry;
        let message = match self.kind {
            FaultKind::Refused if self.entry == entry => "invalid argument",
            _ if *is_lost => "illegal address",
            _ => return Ok(()),
        };
        Err(DeviceError { operation: "launch", message: message.to_owned() })
    }

    /// Changes the first argument of the kernel after its launch `number`.
    pub fn apply(&self, number: u64, first: *mut u16) {
        // SAFETY: the caller passes the first argument of a kernel that has written the element.
        let element = unsafe { &mut *first.add(self.element) };
        match self.kind {
            FaultKind::Unstable if number.is_multiple_of(2) => {}
            FaultKind::Wrong | FaultKind::Unstable => *element ^= 0x8000,
            FaultKind::Unwritten => *element = u16::MAX,
            FaultKind::Refused | FaultKind::Lost => {}
        }
    }
}
