//! Load generation loop: sends each request when it is due and time-stamps its answer. It has one
//! thread and one epoll instance; handling an event allocates nothing beyond the data that it
//! keeps.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use schema::scenario::{Arrival, Connections};

use super::channel::Broken;
use super::connection::Stamper;
use super::connection::{Connection, InFlight, Phase};
use super::load::{ClientLoad, PollPacing};
use super::orders::{AHEAD, FILES_SPARE, Pool, no_port, too_few_files};
pub use super::orders::{DriveError, Driven, Observer, Orders, Tally, Unobserved};
use super::sample::{FailureKind, Sample};
use super::schedule::{ALARM, Alarm, Due, Schedule};
use super::stream::{Standing, Stream};
use crate::clock::{monotonic_ns, sleep_until};

/// Maximum number of connections that are being opened at one time ahead of the run, below the
/// listen backlog of usual servers.
const OPENING_MAX: usize = 128;
/// Time without progress while opening connections ahead of the run, in nanoseconds, after which
/// the run starts without the rest.
const OPENING_LIMIT_NS: u64 = 10_000_000_000;
/// Maximum number of requests sent in a burst before the loop polls for answers, so that the burst
/// does not delay the time stamps of the first answers.
const SENDS_PER_TURN: usize = 32;
/// Time in nanoseconds for which an answer's HTTP body may stay open after its last event; then its
/// connection is closed.
const CLOSING_LIMIT_NS: u64 = 100_000_000;
/// Interval at which the loop checks conditions that no event signals, in nanoseconds.
const SWEEP_NS: u64 = 50_000_000;
/// Time before a due request during which the loop polls instead of sleeping, in nanoseconds,
/// because waking up takes about as long.
const AWAKE_NS: u64 = 60_000;
/// Timeout of the loop's wait for an event, in milliseconds, if nothing shortens it.
const WAIT_MAX_MS: u8 = 50;

/// Sends all requests of `orders`, waits until each is answered or has failed, and returns the
/// samples.
///
/// # Errors
/// A limit on open files or local ports is too low, a system call that the client needs fails, or
/// the stop flag of `orders` was set before the first request was sent; later, it ends the run. A
/// failed request is not an error but a sample.
pub fn drive(orders: &Orders<'_>, observer: &mut dyn Observer) -> Result<Driven, DriveError> {
    orders.prepare()?;
    let (slots, surely) = orders.connections_needed();
    // A cold connection is opened by its own request, within the measured time.
    let ahead = if orders.connections == Connections::Cold { 0 } else { surely };
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)
        .map_err(|source| DriveError::System { what: "an epoll instance", source })?;
    let alarm =
        Alarm::new(&epoll).map_err(|source| DriveError::System { what: "a timer", source })?;
    let mut driver = Driver {
        orders,
        observer,
        epoll,
        alarm,
        stamper: Stamper::new(orders.kernel_timestamps),
        connections: (0..slots).map(|_| Connection::default()).collect(),
        samples: vec![None; orders.payloads.len()],
        schedule: Schedule::new(orders.payloads),
        pool: orders.pool(),
        idle: (0..slots).collect(),
        opened: 0,
        load: ClientLoad::start(),
        pacing: PollPacing::default(),
        tally: Tally { planned: orders.payloads.len() as u64, ..Tally::default() },
        start_ns: 0,
        due_ns: 0,
        progress_ns: 0,
        polled_ns: 0,
        busy: 0,
        hung: false,
        interrupted: false,
    };
    driver.open_ahead(ahead)?;
    driver.run()?;
    Ok(driver.into_result())
}

struct Driver<'a> {
    orders: &'a Orders<'a>,
    observer: &'a mut dyn Observer,
    epoll: Epoll,
    alarm: Alarm,
    stamper: Stamper,
    connections: Vec<Connection>,
    samples: Vec<Option<Sample>>,
    schedule: Schedule,
    pool: Pool,
    /// Indexes of the connections without a request; the next one to use is first.
    idle: VecDeque<usize>,
    /// Number of connections that were opened ahead of need so far; they are the first ones in
    /// `connections`.
    opened: usize,
    load: ClientLoad,
    pacing: PollPacing,
    tally: Tally,
    start_ns: u64,
    /// Time at which the next request that has a free connection is due; `u64::MAX` where there is
    /// no such request, 0 where the time must be determined again. Nanoseconds of the monotonic
    /// clock.
    due_ns: u64,
    /// Time of the latest progress, in nanoseconds of the monotonic clock: the run's start, a
    /// response head or token from the server, the end of a request, or the first send after an idle
    /// period. Comments and other events that only keep a connection alive are none.
    progress_ns: u64,
    /// Lower bound of the arrival time of data that is read now, in nanoseconds of the monotonic
    /// clock.
    polled_ns: u64,
    /// Number of requests in flight on the loop's connections.
    busy: usize,
    hung: bool,
    interrupted: bool,
}

impl Driver<'_> {
    /// Opens the first `ahead` connections before the clock starts. A connection that fails is
    /// opened again when a request needs it, and only then counts as a failure.
    fn open_ahead(&mut self, ahead: usize) -> Result<(), DriveError> {
        let mut opening = 0;
        let mut events = vec![EpollEvent::empty(); 256];
        let mut last_ns = monotonic_ns();
        while self.opened < ahead || opening > 0 {
            if self.is_stopped() {
                return Err(DriveError::Interrupted);
            }
            while opening < OPENING_MAX && self.opened < ahead {
                opening += usize::from(self.open(self.opened)?);
                self.opened += 1;
            }
            let count = self.wait(&mut events, 100)?;
            for event in &events[..count] {
                let slot = slot_of(event);
                if matches!(self.connections[slot].phase, Phase::Connecting { .. }) {
                    last_ns = monotonic_ns();
                    match self.connections[slot].conclude_opening(&self.epoll, event.data()) {
                        Ok(false) => continue,
                        Ok(true) => {}
                        Err(_) => self.connections[slot].close(),
                    }
                    opening -= 1;
                }
            }
            // The remaining connections are opened when requests need them.
            if monotonic_ns() - last_ns > OPENING_LIMIT_NS {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Starts to open the connection with index `slot`. Returns false when that fails at once;
    /// where no file or local port is left for it, returns an error.
    fn open(&mut self, slot: usize) -> Result<bool, DriveError> {
        let key = slot as u64;
        let (address, tls) = (self.orders.address, self.orders.tls);
        match self.connections[slot].open(address, tls, &self.epoll, key, &mut self.stamper) {
            Ok(()) => Ok(true),
            Err(Errno::EMFILE | Errno::ENFILE) => {
                Err(too_few_files(self.connections.len() as u64 + FILES_SPARE, slot as u64))
            }
            Err(Errno::EADDRNOTAVAIL) => Err(no_port(address)),
            Err(_) => Ok(false),
        }
    }

    fn run(&mut self) -> Result<(), DriveError> {
        let mut events = vec![EpollEvent::empty(); 256];
        let mut buffer = vec![0; 256 << 10];
        // Opening connections ahead of the run is not part of the measured load.
        self.load = ClientLoad::start();
        self.start_ns = monotonic_ns();
        (self.progress_ns, self.polled_ns) = (self.start_ns, self.start_ns);
        self.schedule.start_ns = self.start_ns;
        let (mut sweep_ns, mut woken_ns, mut count) = (self.start_ns, self.start_ns, 0);
        let mut entered_ns = self.start_ns;
        while self.busy > 0 || !self.schedule.is_empty() {
            let timeout_ms = self.send_due()?;
            if timeout_ms > 0 {
                self.rest();
            }
            // Bytes that the next poll finds arrived after the previous poll began, unless the
            // previous one returned a full list and left some out. The time of an arrival during a
            // sleep is not known.
            if count < events.len() {
                self.polled_ns = entered_ns;
            }
            entered_ns = monotonic_ns();
            self.load.turn(entered_ns - woken_ns);
            count = self.wait(&mut events, timeout_ms)?;
            woken_ns = monotonic_ns();
            self.pacing.at(woken_ns, count);
            for event in events[..count].iter().filter(|event| event.data() != ALARM) {
                self.handle(event, &mut buffer)?;
                // Handling many answers must not delay a request that becomes due meanwhile.
                if self.due_ns < u64::MAX && self.due_ns <= monotonic_ns() {
                    self.send_next()?;
                }
            }
            if woken_ns - sweep_ns >= SWEEP_NS {
                sweep_ns = woken_ns;
                self.sweep(woken_ns);
                self.observer.stands(&self.tally);
            }
        }
        self.load.finish();
        self.tally.elapsed_ns = monotonic_ns() - self.start_ns;
        self.tally.in_flight = 0;
        self.observer.stands(&self.tally);
        Ok(())
    }

    /// Pauses polling while chunks arrive densely, at most until the next request is due.
    fn rest(&self) {
        // Without kernel time stamps, a pause would delay the time stamps themselves.
        if let Some(until_ns) = self.pacing.rest_until_ns(self.busy)
            && self.stamper.kernel
        {
            sleep_until(until_ns.min(self.due_ns.saturating_sub(AWAKE_NS)));
        }
    }

    fn wait(&self, events: &mut [EpollEvent], timeout_ms: u8) -> Result<usize, DriveError> {
        match self.epoll.wait(events, EpollTimeout::from(timeout_ms)) {
            Ok(count) => Ok(count),
            Err(Errno::EINTR) => Ok(0),
            Err(source) => Err(DriveError::System { what: "to wait for events", source }),
        }
    }

    fn is_stopped(&self) -> bool {
        self.orders.stop.load(Ordering::Relaxed)
    }

    /// Sends due requests on free connections. Returns the longest time that the loop may then
    /// wait, in milliseconds.
    fn send_due(&mut self) -> Result<u8, DriveError> {
        if self.due_ns == u64::MAX {
            // The last attempt found nothing to send, and no request has ended since.
            return Ok(WAIT_MAX_MS);
        }
        for _ in 0..SENDS_PER_TURN {
            if !self.send_next()? {
                return self.wait_for_next();
            }
        }
        Ok(0)
    }

    /// Sends one request if one is due and a connection is free. Returns true if it sent one.
    fn send_next(&mut self) -> Result<bool, DriveError> {
        let now_ns = monotonic_ns();
        let (Some(due), Some(&slot)) = (self.schedule.next(now_ns), self.idle.front()) else {
            self.due_ns = u64::MAX;
            return Ok(false);
        };
        self.due_ns = due.at_ns;
        if due.at_ns > now_ns {
            return Ok(false);
        }
        self.schedule.take(due);
        self.idle.pop_front();
        self.send(due, slot)?;
        self.open_spare()?;
        Ok(true)
    }

    /// Sets the alarm to just before the next request is due. Returns the longest time that the
    /// loop may wait, in milliseconds.
    fn wait_for_next(&mut self) -> Result<u8, DriveError> {
        if self.due_ns == u64::MAX {
            return Ok(WAIT_MAX_MS);
        }
        if self.due_ns <= monotonic_ns() + AWAKE_NS {
            return Ok(0);
        }
        let set = self.alarm.set(self.due_ns - AWAKE_NS);
        set.map_err(|source| DriveError::System { what: "to set a timer", source })?;
        Ok(WAIT_MAX_MS)
    }

    /// Creates the sample of a request on a connection that became free at `freed_ns`. In a closed
    /// loop the scheduled send is that moment, or the request's own time if that is later;
    /// otherwise it is the request's own time, and the wait for the concurrency limit is recorded
    /// separately.
    fn sample(&self, due: Due, freed_ns: u64) -> Sample {
        let (scheduled_ns, queue_ns) = match self.orders.arrival {
            Arrival::Closed { .. } => (due.at_ns.max(freed_ns), None),
            other => {
                let waited_ns = freed_ns.saturating_sub(due.at_ns);
                (due.at_ns, other.concurrency_max().map(|_| waited_ns))
            }
        };
        let taken_ns = Some(monotonic_ns());
        Sample { scheduled_ns, queue_ns, taken_ns, end_ns: scheduled_ns, ..Sample::default() }
    }

    /// Starts to open connections ahead of need, until the number opened is `AHEAD` above the
    /// number in use, so that the front of `idle` is usually open. Does nothing for a fixed pool or
    /// cold connections.
    fn open_spare(&mut self) -> Result<(), DriveError> {
        if self.pool == Pool::Fixed || self.orders.connections == Connections::Cold {
            return Ok(());
        }
        while self.opened < self.connections.len() && self.opened < self.busy + AHEAD {
            // A refused connection is opened again when a request needs it.
            self.open(self.opened)?;
            self.opened += 1;
        }
        Ok(())
    }

    fn send(&mut self, due: Due, slot: usize) -> Result<(), DriveError> {
        let sample = self.sample(due, self.connections[slot].freed_ns);
        let asked = self.orders.payloads[due.index].output_tokens;
        self.connections[slot].request = Some(InFlight {
            index: due.index,
            stream: Stream::new(sample, self.orders.dialect, asked),
            written: 0,
            reopened: false,
            closing_since_ns: None,
        });
        if self.busy == 0 {
            // While no request was in flight, silence was not the server's fault.
            self.progress_ns = monotonic_ns();
        }
        self.busy += 1;
        self.load.streams_max = self.load.streams_max.max(self.busy as u64);
        match self.connections[slot].phase {
            Phase::Open => self.write(slot),
            Phase::Connecting { .. } => Ok(()),
            Phase::Closed => self.open_for_request(slot),
        }
    }

    fn open_for_request(&mut self, slot: usize) -> Result<(), DriveError> {
        if !self.open(slot)? {
            self.fail(slot, FailureKind::Connect, "the server refuses connections");
        }
        Ok(())
    }

    fn write(&mut self, slot: usize) -> Result<(), DriveError> {
        let connection = &mut self.connections[slot];
        let Some(request) = &connection.request else { return Ok(()) };
        let payload = &self.orders.payloads[request.index].bytes;
        if connection.write(payload, &self.epoll, slot as u64).is_err() {
            if connection.may_reopen() {
                return self.reopen(slot);
            }
            // The server may have sent its answer before it stopped reading: go on reading.
            connection.stop_writing(&self.epoll, slot as u64);
        }
        Ok(())
    }

    /// Sends a request again on a fresh connection, once, while its measured time goes on. A server
    /// may close a kept-alive connection at any time, even while the next request is being written.
    fn reopen(&mut self, slot: usize) -> Result<(), DriveError> {
        if let Some(request) = &mut self.connections[slot].request {
            request.written = 0;
            request.reopened = true;
        }
        self.open_for_request(slot)
    }

    fn handle(&mut self, event: &EpollEvent, buffer: &mut [u8]) -> Result<(), DriveError> {
        let slot = slot_of(event);
        let connection = &mut self.connections[slot];
        if matches!(connection.phase, Phase::Connecting { .. }) {
            return match connection.conclude_opening(&self.epoll, event.data()) {
                Ok(true) => self.write(slot),
                Ok(false) => Ok(()),
                Err(error) => {
                    connection.close();
                    self.fail(slot, FailureKind::Connect, &error.to_string());
                    Ok(())
                }
            };
        }
        if event.events().contains(EpollFlags::EPOLLOUT) {
            self.write(slot)?;
        }
        let readable = EpollFlags::EPOLLIN | EpollFlags::EPOLLHUP | EpollFlags::EPOLLERR;
        if event.events().intersects(readable) { self.read(slot, buffer) } else { Ok(()) }
    }

    fn read(&mut self, slot: usize, buffer: &mut [u8]) -> Result<(), DriveError> {
        let connection = &mut self.connections[slot];
        let read = match connection.read(&mut self.stamper, buffer, self.polled_ns) {
            Ok(read) if read.bytes > 0 => read,
            Ok(_) => return self.ended(slot, None),
            // `ENOTCONN`: an earlier event of the same poll closed the socket.
            Err(Broken::System(Errno::EAGAIN | Errno::EINTR | Errno::ENOTCONN)) => return Ok(()),
            Err(error) => return self.ended(slot, Some(error.to_string())),
        };
        let over = connection.over;
        let Some(request) = &mut connection.request else {
            // Bytes that answer no request: the connection cannot be trusted any more.
            connection.close();
            return Ok(());
        };
        let (standing, brought) = request.stream.take(&buffer[..read.bytes], read.moment);
        if brought.first {
            request.stream.sample.parsed_ns = Some(monotonic_ns());
        }
        let user_ns = read.moment.user_ns;
        self.load.read(read.kernel_to_user_ns, brought.chunks);
        self.tally.tokens += brought.tokens;
        if brought.chunks > 0 || brought.head {
            self.progress_ns = user_ns;
        }
        match standing {
            // After a TLS close notice nothing more arrives, though the socket is open.
            Standing::Open | Standing::Closing if over => return self.ended(slot, None),
            Standing::Open => {}
            Standing::Closing => {
                request.closing_since_ns.get_or_insert(user_ns);
            }
            Standing::Ended { reusable } => self.finish(slot, reusable),
        }
        Ok(())
    }

    /// Handles the end of the connection with index `slot`, which the server closed or which broke
    /// with `error`.
    fn ended(&mut self, slot: usize, error: Option<String>) -> Result<(), DriveError> {
        let connection = &mut self.connections[slot];
        if connection.may_reopen() {
            return self.reopen(slot);
        }
        match &mut connection.request {
            Some(request) => {
                request.stream.close(monotonic_ns(), error);
                self.finish(slot, false);
            }
            None => connection.close(),
        }
        Ok(())
    }

    fn fail(&mut self, slot: usize, kind: FailureKind, message: &str) {
        if let Some(request) = &mut self.connections[slot].request {
            request.stream.sample.end_ns = monotonic_ns();
            request.stream.sample.fail(kind, message);
            self.finish(slot, false);
        }
    }

    /// Ends the request on the connection with index `slot`: stores its sample and frees the
    /// connection for another request.
    fn finish(&mut self, slot: usize, reusable: bool) {
        let connection = &mut self.connections[slot];
        let Some(request) = connection.request.take() else { return };
        let whole = request.written == self.orders.payloads[request.index].bytes.len();
        if reusable && whole && self.orders.connections == Connections::Warm {
            connection.served += 1;
        } else {
            connection.close();
        }
        connection.freed_ns = monotonic_ns();
        self.progress_ns = connection.freed_ns;
        self.tally.done += 1;
        self.tally.failed += u64::from(!request.stream.sample.is_ok());
        let mut sample = request.stream.sample;
        sample.idle_ns = connection.freed_ns.saturating_sub(sample.end_ns);
        if let Some(failure) = &mut sample.failure {
            failure.message = self.orders.payloads[request.index].masked(&failure.message);
        }
        self.observer.ended(request.index, &sample);
        sample.shrink();
        self.samples[request.index] = Some(sample);
        self.schedule.ended(request.index, connection.freed_ns);
        // A connection is free, and a request that waited for this answer may be due.
        self.due_ns = 0;
        self.busy -= 1;
        match self.pool {
            Pool::Fixed => self.idle.push_back(slot),
            // The most recently used connection first, so that the front of `idle` is open.
            Pool::Growing => self.idle.push_front(slot),
        }
    }

    /// Checks conditions that no event signals, such as bodies that never end, a server without
    /// progress and the stop flag, and updates the clocks' offset, the load of the client and the
    /// tally.
    fn sweep(&mut self, now_ns: u64) {
        self.stamper.relate_clocks();
        self.load.slice(now_ns);
        self.tally.elapsed_ns = now_ns - self.start_ns;
        self.tally.in_flight = self.busy as u64;
        for slot in 0..self.connections.len() {
            let Some(request) = &mut self.connections[slot].request else { continue };
            let since_ns = request.closing_since_ns.unwrap_or(now_ns);
            if now_ns.saturating_sub(since_ns) > CLOSING_LIMIT_NS {
                request.stream.conclude();
                self.finish(slot, false);
            }
        }
        if self.is_stopped() {
            self.interrupted = true;
            self.give_up(FailureKind::Interrupted, "the run was stopped");
        } else if now_ns.saturating_sub(self.progress_ns) > self.orders.no_progress_ns
            && self.busy > 0
        {
            self.hung = true;
            let limit_s = self.orders.no_progress_ns / 1_000_000_000;
            let message =
                format!("no progress on any connection for {limit_s} s; `--timeout-s` allows more");
            self.give_up(FailureKind::Stall, &message);
        }
    }

    /// Ends the run early: requests in flight fail with `kind` and `message`, and those that were not
    /// sent fail too.
    fn give_up(&mut self, kind: FailureKind, message: &str) {
        for slot in 0..self.connections.len() {
            self.fail(slot, kind, message);
        }
        let now_ns = monotonic_ns();
        for index in self.schedule.give_up() {
            let mut sample = Sample { scheduled_ns: now_ns, end_ns: now_ns, ..Sample::default() };
            sample.fail(FailureKind::NotSent, "the run was given up before");
            self.observer.ended(index, &sample);
            self.samples[index] = Some(sample);
            self.tally.done += 1;
            self.tally.failed += 1;
        }
    }

    fn into_result(self) -> Driven {
        let Self { samples, tally, start_ns, load, hung, interrupted, .. } = self;
        let samples = samples.into_iter().flatten().collect();
        Driven { samples, start_ns, elapsed_ns: tally.elapsed_ns, load, hung, interrupted }
    }
}

fn slot_of(event: &EpollEvent) -> usize {
    // The key was made from a `usize`, so it fits.
    usize::try_from(event.data()).unwrap_or(usize::MAX)
}
