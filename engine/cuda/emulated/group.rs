//! Emulated tensor-parallel group: GPUs as threads of the test process, and the NCCL operations
//! between them.
//!
//! As NCCL documents: all ranks call the same operation with the same counts and types, an
//! operation ends when every rank has called it, and the order of summation is unspecified.

#![expect(unsafe_code, reason = "memory of the device is read and written by its address")]

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytemuck::AnyBitPattern;
use half::bf16;

use super::{Emulated, Work};
use engine_core::collective::{ANOTHER_ENDED, InProcess};
use engine_core::{Collective, DeviceError};
use engine_cuda::DType;
use engine_cuda::Result;
use engine_cuda::driver::{Address, Communicator, Member, Operation};

/// Connection of an emulated rank to the other ranks; `None` after the group was aborted.
type Way = Arc<Mutex<Option<InProcess>>>;

/// Emulated NCCL communicator of one rank.
#[derive(Debug)]
struct InThreads {
    gpu: Arc<Emulated>,
    way: Way,
}

/// One collective operation of an emulated group as one rank calls it.
#[derive(Debug, Clone)]
pub struct Meeting {
    way: Way,
    operation: Operation,
    x: Address,
    out: Address,
    count: usize,
    dtype: DType,
}

impl Emulated {
    /// Creates `count` emulated GPUs of `total` bytes each in one tensor-parallel group. With
    /// `reaches_others` their kernels can read one another's memory. Returns `None` where
    /// [`Emulated::new`] does.
    pub fn group(
        count: usize,
        total: u64,
        reaches_others: bool,
    ) -> Option<(Vec<Arc<Self>>, Vec<Member>)> {
        let gpus: Vec<Arc<Self>> = (0..count).map_while(|_| Self::new(total)).collect();
        let ways = InProcess::group(count);
        let member = |(gpu, way): (&Arc<Self>, InProcess)| {
            let (gpu, way) = (Arc::clone(gpu), Arc::new(Mutex::new(Some(way))));
            let driver = Arc::clone(&gpu) as _;
            let communicator = Box::new(InThreads { gpu, way });
            Member { driver, communicator, reaches_others }
        };
        let members = gpus.iter().zip(ways).map(member).collect();
        (gpus.len() == count).then_some((gpus, members))
    }
}

impl Communicator for InThreads {
    fn start(
        &self,
        operation: Operation,
        [x, out]: [Address; 2],
        count: usize,
        dtype: DType,
    ) -> Result<()> {
        let way = Arc::clone(&self.way);
        self.gpu.begin(Work::Meeting(Meeting { way, operation, x, out, count, dtype }))
    }

    fn abandon(&self) {
        *locked(&self.way) = None;
    }
}

fn locked(way: &Way) -> MutexGuard<'_, Option<InProcess>> {
    way.lock().unwrap_or_else(PoisonError::into_inner)
}

impl fmt::Display for Meeting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} of {} {:?}", self.operation, self.count, self.dtype)
    }
}

impl Meeting {
    pub fn name(&self) -> &'static str {
        self.operation.name()
    }

    pub fn addresses(&self) -> [Address; 2] {
        [self.x, self.out]
    }

    /// Waits for the other ranks, computes the collective operation and writes this rank's result.
    pub fn run(&self) -> Result<()> {
        let mut way = locked(&self.way);
        let Some(way) = way.as_mut() else {
            let message = ANOTHER_ENDED.to_owned();
            return Err(DeviceError { operation: self.name(), message });
        };
        let read = || read(self.x, self.count, self.dtype);
        let out = match self.operation {
            Operation::AllReduce => {
                let mut x = read();
                way.all_reduce_sum(&mut x)?;
                x
            }
            Operation::AllGather => {
                let mut out = vec![0.0; way.rank().count * self.count];
                way.all_gather(&read(), 1, &mut out)?;
                out
            }
            Operation::Broadcast { root } => {
                // The address that the other ranks pass is ignored, as NCCL does.
                let x = if way.rank().index == root { read() } else { Vec::new() };
                let mut out = vec![0.0; self.count];
                way.all_gather(&x, 1, &mut out)?;
                out
            }
        };
        write(self.out, &out, self.dtype);
        Ok(())
    }
}

/// Reads `count` elements of type `dtype` from emulated device memory and converts them to f32.
fn read(at: Address, count: usize, dtype: DType) -> Vec<f32> {
    match dtype {
        DType::F32 => numbers(at, count),
        DType::Bf16 => {
            numbers::<u16>(at, count).iter().map(|x| bf16::from_bits(*x).into()).collect()
        }
    }
}

fn numbers<T: AnyBitPattern>(at: Address, count: usize) -> Vec<T> {
    // SAFETY: the caller of the operation guarantees that the elements are in one allocation, and
    // any bits are a valid element.
    (0..count).map(|i| unsafe { (at.0 as *const T).add(i).read_unaligned() }).collect()
}

fn write(at: Address, values: &[f32], dtype: DType) {
    for (i, x) in values.iter().enumerate() {
        // SAFETY: as for `numbers`.
        unsafe {
            match dtype {
                DType::F32 => (at.0 as *mut f32).add(i).write_unaligned(*x),
                DType::Bf16 => (at.0 as *mut bf16).add(i).write_unaligned(bf16::from_f32(*x)),
            }
        }
    }
}
