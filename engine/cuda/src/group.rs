//! Group of GPUs that share a model (tensor parallel): all-reduce of short vectors by one kernel
//! that reads the other ranks' memory, all other collectives by NCCL, and an exchange between the
//! host threads where ranks must agree on what to do.
//!
//! It implements [`Collective`] over any driver and knows no model.

use std::sync::Arc;

use super::buffer::DType;
use super::driver::{Address, Arguments, Communicator, Driver, Member, Memory, Operation, Signal};
use super::launch::{Launch, PeersArgument, RANKS_MAX, all_reduce_capacity, exchange_bytes};
use super::stream::{GrowableBuffer, Stream};
use crate::{Result, failed};
use engine_core::collective::{ANOTHER_ENDED, InProcess};
use engine_core::{Collective, Rank};

/// Operand of a collective operation: elements in device memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Operand {
    /// Device address of the first element of a collective operation's operand.
    pub at: Address,
    /// Number of elements of a collective operation's operand.
    pub count: usize,
    /// Element type (DType) of a collective operation's operand.
    pub dtype: DType,
}

/// One rank of a tensor-parallel group of GPUs.
#[derive(Debug)]
pub struct Group {
    driver: Arc<dyn Driver>,
    /// NCCL communicator of this rank.
    communicator: Box<dyn Communicator>,
    /// Connection between the host thread of this rank and those of the other ranks.
    host: InProcess,
    /// Flag that a rank raises when it ends, so that kernels of the other ranks stop waiting.
    ended: Arc<Signal>,
    /// Memory for the one-kernel all-reduce; `None` where the GPUs cannot use it.
    exchange: Option<Exchange>,
    /// Buffer for the result of an all-gather before its columns are interleaved: the ranks' parts
    /// in the order of the ranks.
    parts: GrowableBuffer,
}

/// Memory of all ranks for the one-kernel all-reduce.
#[derive(Debug, Clone)]
struct Exchange {
    /// Exchange memory of each rank, which the other ranks read and write. Shared, so that it is
    /// released only when the last rank ends.
    peers: Arc<Vec<Memory>>,
    /// Largest number of elements that one launch of the all-reduce kernel can sum.
    capacity: usize,
}

impl Group {
    /// Creates the ranks of a tensor-parallel group from its members, in their order.
    ///
    /// # Errors
    /// Memory cannot be allocated, or a device reports an error.
    pub fn of(members: Vec<Member>) -> Result<Vec<Self>> {
        let Some(first) = members.first() else { return Ok(Vec::new()) };
        let ended = Arc::new(Signal::new(&first.driver)?);
        let exchange = Exchange::among(&members)?;
        let hosts = InProcess::group(members.len());
        let ranks = members.into_iter().zip(hosts).map(|(member, host)| Self {
            driver: member.driver,
            communicator: member.communicator,
            host,
            ended: Arc::clone(&ended),
            exchange: exchange.clone(),
            parts: GrowableBuffer::default(),
        });
        Ok(ranks.collect())
    }

    /// Returns the minimum of `x` over all ranks, by communication between the host threads.
    ///
    /// # Errors
    /// Another rank has ended.
    pub fn least(&mut self, x: f32) -> Result<f32> {
        self.host.least(x)
    }

    /// Checks that no other rank has ended, since the results of collective operations are
    /// undefined then.
    ///
    /// # Errors
    /// Another rank has ended.
    pub fn check(&self) -> Result<()> {
        if self.ended.is_raised() {
            return Err(failed("a collective operation", ANOTHER_ENDED));
        }
        Ok(())
    }

    /// Allocates device memory for the result of an all-gather, `bytes` bytes for all ranks
    /// together.
    ///
    /// # Errors
    /// The device does not have enough memory or reports an error, or a CUDA graph capture is in
    /// progress.
    pub fn make_room(&mut self, stream: &mut Stream, bytes: usize) -> Result<()> {
        stream.grow(&mut self.parts, bytes).map(|_| ())
    }

    /// Launches the one-kernel all-reduce of `x` through the ranks' exchange memory.
    fn sum_at_once(&self, exchange: &Exchange, x: &Operand) -> Result<()> {
        let Rank { index, count } = self.host.rank();
        let arguments = Arguments::of([x.at, x.at]).value(exchange.argument());
        // Passed as a plain value: the flag is in host memory, not in an allocation of the device.
        let arguments = arguments.value(self.ended.address().0);
        let arguments = arguments.sizes([index, count, x.count, exchange.capacity]);
        self.driver.launch("all_reduce", Launch::all_reduce(x.count), &arguments)
    }
}

impl Collective<Operand> for Group {
    fn rank(&self) -> Rank {
        self.host.rank()
    }

    fn all_reduce_sum(&mut self, x: &mut Operand) -> Result<()> {
        match &self.exchange {
            // No rank waits for this one, since the count is the same on every rank.
            _ if x.count == 0 => Ok(()),
            Some(exchange) if x.dtype == DType::Bf16 && x.count <= exchange.capacity => {
                self.sum_at_once(exchange, x)
            }
            _ => self.communicator.start(Operation::AllReduce, [x.at, x.at], x.count, x.dtype),
        }
    }

    /// Gathers f32 columns, of which each rank has the share that [`Rank::share`] gives it, and
    /// interleaves them to whole rows.
    fn all_gather(&mut self, x: &Operand, rows: usize, out: &mut Operand) -> Result<()> {
        assert_eq!((x.dtype, out.dtype), (DType::F32, DType::F32), "logits are gathered");
        if rows == 0 {
            return Ok(());
        }
        let (ranks, cols) = (self.rank().count, out.count / rows);
        let share = |index| Rank { index, count: ranks }.share(cols);
        let parts = self.parts.address();
        // NCCL gathers only parts of equal size; others are broadcast one by one.
        if cols.is_multiple_of(ranks) {
            self.communicator.start(Operation::AllGather, [x.at, parts], x.count, x.dtype)?;
        } else {
            for root in 0..ranks {
                let own = share(root);
                let to = parts.plus(rows * own.start * x.dtype.bytes());
                let (operation, count) = (Operation::Broadcast { root }, rows * own.len());
                self.communicator.start(operation, [x.at, to], count, x.dtype)?;
            }
        }
        // The parts are whole ranks one after another; the kernel interleaves their columns.
        let arguments = Arguments::of([out.at, parts]).sizes([rows, cols, ranks]);
        self.driver.launch("side_by_side", Launch::scalars(rows, cols), &arguments)
    }
}

impl Drop for Group {
    /// Ends the rank: releases every rank that waits for it, then waits until its own device's work
    /// has ended.
    fn drop(&mut self) {
        self.ended.raise();
        self.communicator.abandon();
        // Kernels may still read the flag, so it is released only after they have ended.
        let _failed = self.driver.wait_all();
    }
}

impl Exchange {
    /// Allocates the exchange memory of the ranks. Returns `None` where a member cannot reach the
    /// others' memory, or where the number of members is not supported.
    fn among(members: &[Member]) -> Result<Option<Self>> {
        let capacity = all_reduce_capacity(members.len());
        if capacity == 0 || !members.iter().all(|member| member.reaches_others) {
            return Ok(None);
        }
        let bytes = exchange_bytes(capacity);
        let peers: Vec<Memory> = members
            .iter()
            .map(|member| Memory::new(&member.driver, bytes))
            .collect::<Result<_, _>>()?;
        for (member, memory) in members.iter().zip(&peers) {
            member.driver.zero(memory.address(), bytes)?;
            // Another rank may write here from its first launch on, so the zeros must be complete.
            member.driver.wait_all()?;
        }
        Ok(Some(Self { peers: Arc::new(peers), capacity }))
    }

    /// Returns the addresses of the ranks' exchange memory as the all-reduce kernel reads them.
    fn argument(&self) -> PeersArgument {
        let mut exchanges = [0; RANKS_MAX];
        for (memory, out) in self.peers.iter().zip(&mut exchanges) {
            *out = memory.address().0;
        }
        PeersArgument { exchanges }
    }
}
