//! The GPUs that share a model: short sums in one launch over each other's memory, all else by NCCL,
//! and one meeting of the host's threads where ranks have to agree on what they do.
//!
//! Knows no operation but those of [`Collective`], and no driver.

use std::sync::Arc;

use super::buffer::Number;
use super::driver::{Address, Arguments, Communicator, Driver, Member, Memory, Signal};
use super::launch::Launch;
use super::launch::all_reduce::{PeersArgument, RANKS_MAX, capacity, exchange_bytes};
use super::stream::{Room, Stream};
use engine_core::collective::{ANOTHER_ENDED, InProcess};
use engine_core::{Collective, DeviceError, Rank};

/// Numbers in the memory of a rank's device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Numbers {
    pub at: Address,
    pub count: usize,
    pub number: Number,
}

/// One rank's place among the GPUs that share a model.
#[derive(Debug)]
pub struct Group {
    driver: Arc<dyn Driver>,
    communicator: Box<dyn Communicator>,
    host: InProcess,
    /// Raised when a rank has ended.
    ended: Arc<Signal>,
    exchange: Option<Exchange>,
    /// What was gathered, rank after rank.
    parts: Room,
}

/// Memory for sums in one launch.
#[derive(Debug, Clone)]
struct Exchange {
    /// What the others read and write: it stays until no rank is left.
    peers: Arc<Vec<Memory>>,
    /// Numbers of a sum at most.
    capacity: usize,
}

impl Group {
    /// The ranks of a group of `members`, in their order.
    ///
    /// # Errors
    /// A device is full.
    pub fn of(members: Vec<Member>) -> Result<Vec<Self>, DeviceError> {
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
            parts: Room::default(),
        });
        Ok(ranks.collect())
    }

    /// The smallest of what the ranks have to say, which the host learns at once.
    ///
    /// # Errors
    /// Another rank has ended.
    pub fn least(&mut self, x: f32) -> Result<f32, DeviceError> {
        self.host.least(x)
    }

    /// Whether what the device computed is worth anything.
    ///
    /// # Errors
    /// Another rank has ended.
    pub fn check(&self) -> Result<(), DeviceError> {
        if self.ended.is_raised() {
            let message = ANOTHER_ENDED.to_owned();
            return Err(DeviceError { operation: "a collective operation", message });
        }
        Ok(())
    }

    /// Makes room to gather `bytes` bytes.
    ///
    /// # Errors
    /// The device is full.
    pub fn make_room(&mut self, stream: &mut Stream, bytes: usize) -> Result<(), DeviceError> {
        stream.room(&mut self.parts, bytes).map(|_| ())
    }

    /// One launch that sums `x` over the ranks.
    fn sum_at_once(&self, exchange: &Exchange, x: &Numbers) -> Result<(), DeviceError> {
        let Rank { index, count } = self.host.rank();
        let arguments = Arguments::new().address(x.at).address(x.at).value(exchange.argument());
        // The host's memory is none of the device's.
        let arguments = arguments.value(self.ended.address().0);
        let numbers = [index, count, x.count, exchange.capacity].map(|size| size as u32);
        let arguments = numbers.into_iter().fold(arguments, Arguments::value);
        self.driver.launch("all_reduce", Launch::all_reduce(x.count), &arguments)
    }
}

impl Collective<Numbers> for Group {
    fn rank(&self) -> Rank {
        self.host.rank()
    }

    fn all_reduce_sum(&mut self, x: &mut Numbers) -> Result<(), DeviceError> {
        match &self.exchange {
            _ if x.count == 0 => Ok(()),
            Some(exchange) if x.number == Number::Bf16 && x.count <= exchange.capacity => {
                self.sum_at_once(exchange, x)
            }
            _ => self.communicator.all_reduce(x.at, x.count, x.number),
        }
    }

    /// Of f32, in columns as [`Rank::share`] divides them.
    fn all_gather(
        &mut self,
        x: &Numbers,
        rows: usize,
        out: &mut Numbers,
    ) -> Result<(), DeviceError> {
        assert_eq!((x.number, out.number), (Number::F32, Number::F32), "logits are gathered");
        if rows == 0 {
            return Ok(());
        }
        let (ranks, cols) = (self.rank().count, out.count / rows);
        let share = |index| Rank { index, count: ranks }.share(cols);
        let parts = self.parts.address();
        if cols.is_multiple_of(ranks) {
            self.communicator.all_gather(x.at, parts, x.count, x.number)?;
        } else {
            for root in 0..ranks {
                let own = share(root);
                let to = parts.plus(rows * own.start * x.number.bytes());
                self.communicator.broadcast(x.at, to, rows * own.len(), x.number, root)?;
            }
        }
        let arguments = Arguments::new().address(out.at).address(parts);
        let sizes = [rows, cols, ranks].map(|size| size as u32);
        let arguments = sizes.into_iter().fold(arguments, Arguments::value);
        self.driver.launch("side_by_side", Launch::numbers(rows, cols), &arguments)
    }
}

impl Drop for Group {
    /// Nobody waits for a rank that has gone, not even its own device.
    fn drop(&mut self) {
        self.ended.raise();
        self.communicator.abandon();
        // Kernels that look at the signal have ended before it goes.
        let _failed = self.driver.wait_all();
    }
}

impl Exchange {
    /// None where not all of `members` reach the others' memory, or they are too many.
    fn among(members: &[Member]) -> Result<Option<Self>, DeviceError> {
        let capacity = capacity(members.len());
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
            member.driver.wait_all()?;
        }
        Ok(Some(Self { peers: Arc::new(peers), capacity }))
    }

    fn argument(&self) -> PeersArgument {
        let mut exchanges = [0; RANKS_MAX];
        for (memory, out) in self.peers.iter().zip(&mut exchanges) {
            *out = memory.address().0;
        }
        PeersArgument { exchanges }
    }
}
