//! Reads from sockets with receive time stamps; no other code stamps received bytes.
//!
//! The kernel records when a segment arrived (`SO_TIMESTAMPNS`), which stays right however busy
//! this program is. TCP gives one stamp per read, that of the last segment. Where the kernel gives
//! no stamp or an impossible one (it uses the wall clock, which may jump), the time after the read
//! is used.

use std::io::IoSliceMut;
use std::os::fd::{AsRawFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg, setsockopt, sockopt};
use nix::sys::time::TimeSpec;

use crate::clock::{monotonic_ns, realtime_ns};

/// Tolerance in nanoseconds by which a stamp may lie outside its bounds: the error of relating the
/// wall clock to the monotonic clock.
const SLACK_NS: u64 = 200_000;
/// Longest time between two clock readings that count as simultaneous, in nanoseconds.
const ADJACENT_NS: u64 = 5_000;

/// Result of one read from a socket.
#[derive(Clone, Copy, Debug)]
pub struct Read {
    /// Number of bytes; zero at the end of the connection.
    pub bytes: usize,
    /// Arrival time of the bytes.
    pub moment: Moment,
    /// Delay from the kernel's time stamp to this program's read in nanoseconds; `None` without a
    /// credible stamp.
    pub kernel_to_user_ns: Option<u64>,
}

/// Arrival time of bytes, by the kernel's and by this program's clock, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// Arrival by the kernel's time stamp where it is credible, otherwise the time of the read.
    pub at_ns: u64,
    /// Time at which this program had the bytes.
    pub user_ns: u64,
}

impl Moment {
    /// Creates a moment without a kernel time stamp.
    pub fn at(user_ns: u64) -> Self {
        Self { at_ns: user_ns, user_ns }
    }

    /// Returns the delay between arrival and read in nanoseconds, at most four seconds.
    pub fn lag_ns(&self) -> u32 {
        u32::try_from(self.user_ns.saturating_sub(self.at_ns)).unwrap_or(u32::MAX)
    }
}

/// Reader of sockets that provides receive time stamps.
#[derive(Debug)]
pub struct Stamper {
    control: Vec<u8>,
    /// Wall clock minus monotonic clock, in nanoseconds.
    offset_ns: u64,
    /// True when the kernel provides the time stamps, so that they do not depend on when a socket is
    /// read.
    pub kernel: bool,
}

impl Stamper {
    /// Creates a stamper; `kernel` requests the kernel's time stamps.
    pub fn new(kernel: bool) -> Self {
        let control = nix::cmsg_space!(TimeSpec);
        let mut stamper = Self { control, offset_ns: 0, kernel };
        // First estimate, in case `relate_clocks` finds no undisturbed moment.
        stamper.offset_ns = realtime_ns().saturating_sub(monotonic_ns());
        stamper.relate_clocks();
        stamper
    }

    /// Measures the offset of the wall clock to the monotonic clock again. To be called often,
    /// since either clock may be adjusted.
    pub fn relate_clocks(&mut self) {
        // Try again where the thread was interrupted between the readings.
        for _ in 0..4 {
            let before = monotonic_ns();
            let real = realtime_ns();
            let after = monotonic_ns();
            if after - before < ADJACENT_NS {
                self.offset_ns = real.saturating_sub(before + (after - before) / 2);
                return;
            }
        }
    }

    /// Requests kernel time stamps for `socket`; where the kernel refuses, this program's clock is
    /// used.
    pub fn prepare(&mut self, socket: &OwnedFd) {
        if self.kernel && setsockopt(socket, sockopt::ReceiveTimestampns, &true).is_err() {
            self.kernel = false;
        }
    }

    /// Reads available data from `socket` into `buffer`. `since_ns` is the time at which the socket
    /// last had none, a lower bound of the arrival.
    ///
    /// # Errors
    /// The error of `recvmsg`; `EAGAIN` where there is no data.
    pub fn read(
        &mut self,
        socket: &OwnedFd,
        buffer: &mut [u8],
        since_ns: u64,
    ) -> Result<Read, Errno> {
        let control = self.kernel.then_some(self.control.as_mut_slice());
        let mut slices = [IoSliceMut::new(buffer)];
        let message =
            recvmsg::<()>(socket.as_raw_fd(), &mut slices, control, MsgFlags::MSG_DONTWAIT)?;
        let user_ns = monotonic_ns();
        let stamp = message.cmsgs().ok().and_then(|mut parts| {
            parts.find_map(|part| match part {
                ControlMessageOwned::ScmTimestampns(time) => nanoseconds(time),
                _ => None,
            })
        });
        // A stamp slightly out of bounds is clamped; one that is far off is not credible.
        let arrived_ns = stamp
            .and_then(|stamp| stamp.checked_sub(self.offset_ns))
            .filter(|at| (since_ns.saturating_sub(SLACK_NS)..=user_ns + SLACK_NS).contains(at))
            .map(|at| at.clamp(since_ns.min(user_ns), user_ns));
        Ok(Read {
            bytes: message.bytes,
            moment: Moment { at_ns: arrived_ns.unwrap_or(user_ns), user_ns },
            kernel_to_user_ns: arrived_ns.map(|at| user_ns - at),
        })
    }
}

fn nanoseconds(time: TimeSpec) -> Option<u64> {
    let seconds = u64::try_from(time.tv_sec()).ok()?;
    Some(seconds * 1_000_000_000 + u64::try_from(time.tv_nsec()).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};

    fn pair() -> (TcpStream, OwnedFd) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let writer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (writer, listener.accept().unwrap().0.into())
    }

    fn read_after_waiting(stamper: &mut Stamper, since_ns: u64) -> (u64, Read) {
        let (mut writer, socket) = pair();
        stamper.prepare(&socket);
        let before = monotonic_ns();
        writer.write_all(b"x").unwrap();
        // A busy client reads late.
        while monotonic_ns() < before + 20_000_000 {
            std::hint::spin_loop();
        }
        let since = if since_ns == 0 { before } else { since_ns };
        (before, stamper.read(&socket, &mut [0; 8], since).unwrap())
    }

    #[test]
    fn a_late_reader_still_learns_when_the_bytes_came() {
        let mut stamper = Stamper::new(true);
        let (sent, read) = read_after_waiting(&mut stamper, 0);
        assert_eq!(read.bytes, 1);
        let Some(lag) = read.kernel_to_user_ns else {
            return fixtures::skip("the kernel's receive stamps", "run it on Linux");
        };
        let Moment { at_ns, user_ns } = read.moment;
        assert_eq!(user_ns - at_ns, lag);
        assert!(user_ns - sent >= 20_000_000, "the reader came late");
        assert!(at_ns - sent < 10_000_000, "the stamp is the arrival's, not the reader's");
    }

    #[test]
    fn a_stamp_that_cannot_be_is_replaced_by_the_readers_own_time() {
        let mut stamper = Stamper::new(true);
        // Simulates a wall clock that was set back by a minute after the clocks were related.
        stamper.offset_ns += 60_000_000_000;
        let (_, read) = read_after_waiting(&mut stamper, 0);
        assert_eq!((read.moment.at_ns, read.kernel_to_user_ns), (read.moment.user_ns, None));
    }

    #[test]
    fn without_kernel_stamps_the_readers_time_is_taken() {
        let (_, read) = read_after_waiting(&mut Stamper::new(false), 0);
        assert_eq!((read.moment.at_ns, read.kernel_to_user_ns), (read.moment.user_ns, None));
    }
}
