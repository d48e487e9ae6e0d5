//! Reading with a time: the one place where bytes get their stamp.
//!
//! The kernel notes when a segment arrived (`SO_TIMESTAMPNS`), which stays right however busy
//! this program is. TCP gives one stamp a read, that of the last segment in it; when the kernel
//! gives none, or one that cannot be (its clock is the wall clock, which may jump), the time after
//! the read is taken.

use std::io::IoSliceMut;
use std::os::fd::{AsRawFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg, setsockopt, sockopt};
use nix::sys::time::TimeSpec;

use crate::clock::{monotonic_ns, realtime_ns};

/// How far a stamp may seem to lie outside its bounds before it is called wrong: what relating
/// two clocks to each other may cost.
const SLACK_NS: u64 = 200_000;
/// Two readings of the clocks this close together are taken as one moment.
const ADJACENT_NS: u64 = 5_000;

/// What one read brought.
#[derive(Clone, Copy, Debug)]
pub struct Read {
    /// Zero at the end of the connection.
    pub bytes: usize,
    /// When they came.
    pub moment: Moment,
    /// From the kernel's stamp to this program, where there is a credible stamp.
    pub kernel_to_user_ns: Option<u64>,
}

/// When bytes came, by two clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// When they arrived: the kernel's stamp where there is a credible one.
    pub at_ns: u64,
    /// When this program had them.
    pub user_ns: u64,
}

impl Moment {
    /// A moment that only this program knows of.
    #[must_use]
    pub fn at(user_ns: u64) -> Self {
        Self { at_ns: user_ns, user_ns }
    }

    /// From the one clock to the other, at most four seconds.
    #[must_use]
    pub fn lag_ns(&self) -> u32 {
        u32::try_from(self.user_ns.saturating_sub(self.at_ns)).unwrap_or(u32::MAX)
    }
}

/// Reads and stamps.
#[derive(Debug)]
pub struct Stamper {
    control: Vec<u8>,
    /// Wall clock minus monotonic clock.
    offset_ns: u64,
    kernel: bool,
}

impl Stamper {
    /// `kernel`: ask the kernel for stamps.
    #[must_use]
    pub fn new(kernel: bool) -> Self {
        let control = nix::cmsg_space!(TimeSpec);
        let mut stamper = Self { control, offset_ns: 0, kernel };
        stamper.offset_ns = realtime_ns().saturating_sub(monotonic_ns());
        stamper.relate_clocks();
        stamper
    }

    /// Relates the wall clock to the monotonic one again. Call it often: either may be adjusted.
    pub fn relate_clocks(&mut self) {
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

    /// Asks the kernel to stamp what `socket` receives; it goes on without where it will not.
    pub fn prepare(&mut self, socket: &OwnedFd) {
        if self.kernel && setsockopt(socket, sockopt::ReceiveTimestampns, &true).is_err() {
            self.kernel = false;
        }
    }

    /// True where the kernel stamps, so that it does not matter when a socket is read.
    #[must_use]
    pub fn is_kernels(&self) -> bool {
        self.kernel
    }

    /// Reads into `buffer` what `socket` has. `since_ns` is when it last had nothing: what is
    /// read now arrived later.
    ///
    /// # Errors
    /// As `recvmsg`; `EAGAIN` where there is nothing.
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
        // What a busy client does: it comes late.
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
            return eprintln!("skipped: this kernel does not stamp what it receives");
        };
        let Moment { at_ns, user_ns } = read.moment;
        assert_eq!(user_ns - at_ns, lag);
        assert!(user_ns - sent >= 20_000_000, "the reader came late");
        assert!(at_ns - sent < 10_000_000, "the stamp is the arrival's, not the reader's");
    }

    #[test]
    fn a_stamp_that_cannot_be_is_replaced_by_the_readers_own_time() {
        let mut stamper = Stamper::new(true);
        // As if the wall clock had been set back by a minute since the clocks were related.
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
