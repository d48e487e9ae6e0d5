//! Executor of a simulation: jobs wait, run and end as time passes. A job's node is the program's
//! own code, with made-up figures; it runs when the controller first learns that its time is over,
//! and it may be killed, lose its power, be interrupted, or find its disk full at any of its steps.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use schema::exit::Exit;

use super::campaigns::world;
use super::faults::{Fault, Random};
use super::figures::Figures;
use super::machine::{Begin, End, Machine, StepResult};
use super::unsynced::Unsynced;
use crate::clock::Clock;
use crate::executor::job::{Done, Job};
use crate::executor::{Executor, Handle, JobEnd, JobSpec, JobState};
use crate::node;
use crate::places::CampaignPlaces;
use crate::stop::{Stop, environment};

/// Number of polls after which a campaign counts as endless.
const POLLS_MAX: u32 = 20_000;
/// Number of steps of a node at which faults happen, about as many as a job has.
const NODE_STEPS: u64 = 40;
/// Longest time that a job waits for a node, in seconds.
const QUEUE_S: u64 = 300;
/// Longest time for which a network file system hides the final report of a job, in seconds. The
/// controller waits for it a little longer.
const LATE_S: u64 = 50;
/// Number of lost attempts at the runs of a job up to which they are retried.
const LOST_MAX: u32 = 2;

/// Jobs of all campaigns of a seed; they outlive the controller.
pub struct Cluster {
    machine: Rc<Machine>,
    root: PathBuf,
    /// True for jobs on the controller's own machine.
    is_here: bool,
    /// True where jobs may be lost more often than they are retried.
    is_harsh: bool,
    /// True where no node fails.
    is_calm: Cell<bool>,
    jobs: RefCell<Vec<Entry>>,
    polls: Cell<u32>,
    figures: Figures,
    /// Number of lost attempts by campaign, cell and stage.
    lost: RefCell<BTreeMap<String, u32>>,
    /// Number of executions of jobs that did not come to their end.
    cut_short: Cell<u32>,
}

/// A submitted job.
#[derive(Debug, Clone)]
struct Entry {
    spec: JobSpec,
    begins: Duration,
    ends: Duration,
    /// End of the job, once its node has run.
    ended: Option<JobEnd>,
    /// Where the final report is hidden, and until when.
    hidden: Option<(PathBuf, Duration)>,
    /// Number of polls that still answer as before the job's end.
    stale: u64,
}

impl Cluster {
    pub fn new(machine: &Rc<Machine>, root: PathBuf, is_here: bool, is_harsh: bool) -> Self {
        Self {
            machine: Rc::clone(machine),
            root,
            is_here,
            is_harsh,
            is_calm: Cell::new(false),
            jobs: RefCell::default(),
            polls: Cell::new(0),
            figures: Figures::default(),
            lost: RefCell::default(),
            cut_short: Cell::new(0),
        }
    }

    /// Has no node fail, and no report come late.
    pub fn never_fails(&self) {
        self.is_calm.set(true);
    }

    /// Begins the count of polls again, for the next process of the controller.
    pub fn begin(&self) {
        self.polls.set(0);
    }

    /// Number of runs that nodes have measured.
    pub fn measured(&self) -> u32 {
        self.figures.measured.get()
    }

    /// Number of executions of jobs that did not come to their end.
    pub fn cut_short(&self) -> u32 {
        self.cut_short.get()
    }

    /// Largest number of lost attempts at the runs of one job.
    pub fn lost_most(&self) -> u32 {
        self.lost.borrow().values().copied().max().unwrap_or(0)
    }

    /// Ends the jobs that run on this machine, which has lost its power; returns their changes that
    /// are not on the disk.
    pub fn lose_power(&self) -> Unsynced {
        let mut unsynced = Unsynced::default();
        let now = self.machine.time.steady();
        let count = self.jobs.borrow().len();
        for number in 0..count {
            let job = self.jobs.borrow()[number].clone();
            if !self.is_here || job.ended.is_some() {
                continue;
            }
            if job.begins <= now {
                let at = self.machine.random(|random| random.below(NODE_STEPS));
                let fault = (u32::try_from(at).unwrap(), Fault::PowerLost);
                unsynced.extend(self.carry_out(number, Some(fault)));
            }
            self.end_here(number);
        }
        unsynced
    }

    /// Notes the end of a job on this machine, whose process is gone.
    fn end_here(&self, number: usize) {
        let spec = self.jobs.borrow()[number].spec.clone();
        let end = match CampaignPlaces::at(&spec.dir).done().exists() {
            true => JobEnd::Well,
            false => {
                self.count_lost(&spec);
                JobEnd::LostNode { said: "its process is gone".to_owned() }
            }
        };
        self.jobs.borrow_mut()[number].ended = Some(end);
    }

    fn count_lost(&self, spec: &JobSpec) {
        *self.lost.borrow_mut().entry(chain(spec)).or_default() += 1;
    }

    fn add(&self, spec: &JobSpec) {
        let now = self.machine.time.steady();
        let (wait, run, stale) = self.machine.random(|random| {
            let wait = if self.is_here { 0 } else { random.below(QUEUE_S) };
            (wait, 10 + random.below(60), random.below(3))
        });
        let begins = now + Duration::from_secs(wait);
        let ends = begins + Duration::from_secs(run);
        let entry = Entry { spec: spec.clone(), begins, ends, ended: None, hidden: None, stale };
        self.jobs.borrow_mut().push(entry);
    }

    /// Calls the scheduler; `effect` is what the call does.
    fn call(&self, what: &str, mut effect: impl FnMut()) -> Result<(), Stop> {
        match self.machine.call(what, &mut effect) {
            StepResult::Go => Ok(()),
            StepResult::Fails { .. } | StepResult::Gone { .. } => {
                Err(environment!("no answer to {what}"))
            }
        }
    }

    /// Runs the node of a job whose time is over, and notes how it ended.
    fn settle(&self, number: usize) {
        let fault = self.draw_fault(number);
        let unsynced = self.carry_out(number, fault);
        if self.is_here {
            self.machine.add_unsynced(unsynced);
        }
        let job = self.jobs.borrow()[number].clone();
        let places = CampaignPlaces::at(&job.spec.dir);
        let done = Done::read(&places).expect("a final report is written whole");
        let lost = || JobEnd::LostNode { said: "it does not answer".to_owned() };
        let end = match &done {
            Some(done) if self.is_here || done.end.stop().is_none() => JobEnd::Well,
            Some(done) => {
                let exit = done.end.stop().map_or(Exit::Well, |stop| stop.exit());
                JobEnd::Failed { said: format!("exit code {}", exit.code()) }
            }
            None if self.is_here || self.machine.random(|random| random.one_in(2)) => lost(),
            None => JobEnd::Preempted,
        };
        if done.is_none_or(|done| done.end.stop().is_some()) {
            self.count_lost(&job.spec);
        } else if !self.is_here && self.machine.random(|random| random.one_in(4)) {
            self.hide(number);
        }
        self.jobs.borrow_mut()[number].ended = Some(end);
    }

    /// Hides the final report of a job for a while.
    fn hide(&self, number: usize) {
        let mut jobs = self.jobs.borrow_mut();
        let hidden = self.root.with_extension("hidden").join(number.to_string());
        fs::create_dir_all(hidden.parent().unwrap()).unwrap();
        fs::rename(CampaignPlaces::at(&jobs[number].spec.dir).done(), &hidden).unwrap();
        let seconds = self.machine.random(|random| random.below(LATE_S));
        let until = self.machine.time.steady() + Duration::from_secs(seconds);
        jobs[number].hidden = Some((hidden, until));
    }

    /// Shows the final report of a job once its time is over.
    fn show(&self, number: usize) {
        let mut jobs = self.jobs.borrow_mut();
        let now = self.machine.time.steady();
        let job = &mut jobs[number];
        if let Some((hidden, _)) = job.hidden.take_if(|(_, until)| *until <= now) {
            fs::rename(hidden, CampaignPlaces::at(&job.spec.dir).done()).unwrap();
        }
    }

    /// Draws the fault of a node; none where the attempts at the job were lost too often.
    fn draw_fault(&self, number: usize) -> Option<(u32, Fault)> {
        let chain = chain(&self.jobs.borrow()[number].spec);
        let lost = self.lost.borrow().get(&chain).copied().unwrap_or(0);
        let is_lost = |random: &mut Random| match self.is_harsh {
            true => random.one_in(2),
            false => lost < LOST_MAX && random.one_in(4),
        };
        if self.is_calm.get() {
            return None;
        }
        self.machine.random(|random| {
            let fault = is_lost(random).then(|| match random.below(4) {
                0 | 1 => Fault::Killed,
                2 => Fault::PowerLost,
                _ => Fault::refused(random),
            })?;
            Some((u32::try_from(random.below(NODE_STEPS)).unwrap(), fault))
        })
    }

    /// Runs the program of a job on its node.
    fn carry_out(&self, number: usize, fault: Option<(u32, Fault)>) -> Unsynced {
        let spec = self.jobs.borrow()[number].spec.clone();
        let clock = Clock::simulated(self.machine.time);
        let world = world(&self.root, clock, 0);
        let interrupt = world.interrupt.clone();
        let unsynced = Unsynced::default();
        self.machine.begin(Begin { dir: &spec.dir, interrupt, fault, unsynced });
        let places = CampaignPlaces::at(&spec.dir);
        // A node that fails has written why, or has ended.
        let _ = node::carry_out(&world, &places, &self.figures);
        let mut ended = self.machine.finish();
        // The node of a cluster loses its own power, and not the controller's.
        if ended.end == Some(End::PowerLost) && !self.is_here {
            self.machine.random(|random| ended.unsynced.lose(random));
        }
        let done = Done::read(&places).expect("a final report is written whole");
        if done.is_none_or(|done| done.end.stop().is_some()) {
            self.cut_short.set(self.cut_short.get() + 1);
        }
        ended.unsynced
    }
}

/// Names the campaign, the cell and the stage of a job, whose attempts are counted together.
fn chain(spec: &JobSpec) -> String {
    match Job::read(&CampaignPlaces::at(&spec.dir)) {
        Ok(job) => format!("{} {} {:?}", job.campaign, job.runs[0].cell, job.runs[0].stage),
        Err(_) => spec.key.clone(),
    }
}

impl Executor for Cluster {
    fn name(&self) -> &'static str {
        "simulated"
    }

    fn is_here(&self) -> bool {
        self.is_here
    }

    fn pause(&self) -> Duration {
        Duration::from_secs(20)
    }

    fn preflight(&self) -> Result<(), Stop> {
        Ok(())
    }

    fn submit(&self, spec: &JobSpec) -> Result<Handle, Stop> {
        self.call("submit", || self.add(spec))?;
        Ok(Handle((self.jobs.borrow().len() - 1).to_string()))
    }

    fn find(&self, key: &str) -> Result<Option<Handle>, Stop> {
        self.call("find", || {})?;
        let jobs = self.jobs.borrow();
        let found = jobs.iter().rposition(|job| job.spec.key == key);
        Ok(found.map(|number| Handle(number.to_string())))
    }

    fn poll(&self, handle: &Handle) -> Result<JobState, Stop> {
        self.polls.set(self.polls.get() + 1);
        assert!(self.polls.get() < POLLS_MAX, "the campaign does not end");
        self.call("poll", || {})?;
        let number: usize = handle.0.parse().unwrap();
        self.show(number);
        let job = self.jobs.borrow()[number].clone();
        let now = self.machine.time.steady();
        let node = format!("node-{number}");
        if let Some(end) = job.ended {
            return Ok(JobState::Ended { end, node: (!self.is_here).then_some(node) });
        }
        if now < job.begins {
            return Ok(JobState::Queued { reason: "Resources".to_owned() });
        }
        if now < job.ends || job.stale > 0 {
            let stale = job.stale.saturating_sub(u64::from(now >= job.ends));
            self.jobs.borrow_mut()[number].stale = stale;
            return Ok(JobState::Running { node });
        }
        self.settle(number);
        self.poll(handle)
    }

    fn cancel(&self, handle: &Handle) -> Result<(), Stop> {
        let number: usize = handle.0.parse().unwrap();
        self.call("cancel", || {
            if self.jobs.borrow()[number].ended.is_some() {
                return;
            }
            let at = self.machine.random(|random| random.below(NODE_STEPS));
            let fault = (u32::try_from(at).unwrap(), Fault::Interrupted);
            let unsynced = self.carry_out(number, Some(fault));
            self.machine.add_unsynced(unsynced);
            self.end_here(number);
        })
    }
}
