//! The lives of a simulated controller: it begins a campaign, ends at a fault, and resumes it, until
//! the campaign is finished. After each life the journal, the staged results and the registry are
//! checked.

use std::cell::{Cell, RefCell};
use std::fs;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use schema::exit::Exit;
use tempfile::TempDir;

use super::campaigns::{Kind, prepared, world};
use super::cluster::Cluster;
use super::faults::{Fault, Random};
use super::files::copy_tree;
use super::machine::{Begin, End, Ended, Machine, install};
use super::outcome::{self, Outcome};
use super::time::Time;
use super::unsynced::Unsynced;
use crate::campaign::{go_on, latest_unfinished, write_down};
use crate::cli::Ingest;
use crate::clock::Clock;
use crate::executor::job;
use crate::executor::journal::{Journal, Reached};
use crate::lock::Lock;
use crate::places::Places;
use crate::publish::Registry;
use crate::publish::ingest;
use crate::stop::Stop;
use crate::world::{Ids, World};

/// Largest number of lives that end at a fault.
const FAULTS_MAX: u64 = 4;
/// One campaign of so many is also ingested into another clone.
const INGESTED: u64 = 4;
/// One round of all courses of so many loses jobs more often than they are retried.
const HARSH: u64 = 8;

thread_local! {
    static TIME: &'static Time = Box::leak(Box::new(Time::new()));
    /// Folder of a clone with an empty registry.
    static TEMPLATE: TempDir = template();
    /// Outcomes of campaigns that nothing disturbed, by the number of the course.
    static UNDISTURBED: RefCell<[Option<Rc<Outcome>>; COURSES.len()]> = RefCell::default();
}

/// Kinds of campaigns, each on this machine and on a scheduler.
const COURSES: [(Kind, bool); 8] = [
    (Kind::Single, true),
    (Kind::Single, false),
    (Kind::Paired, true),
    (Kind::Paired, false),
    (Kind::InTurns, true),
    (Kind::InTurns, false),
    (Kind::Gate, true),
    (Kind::Gate, false),
];

/// Returns a folder for files, in memory where the system has one.
fn folder() -> TempDir {
    let shared = Path::new("/dev/shm");
    let made = tempfile::tempdir_in(shared).or_else(|_| tempfile::tempdir());
    made.unwrap()
}

fn template() -> TempDir {
    let dir = folder();
    let git = |words: &[&str]| {
        let mut command = std::process::Command::new("git");
        command.args(["-c", "user.name=Ada", "-c", "user.email=ada@example.org"]).args(words);
        command.current_dir(dir.path()).env("GIT_CONFIG_GLOBAL", "/dev/null");
        assert!(command.status().unwrap().success(), "git {words:?}");
    };
    git(&["init", "--quiet", "--template=", "--initial-branch", "main"]);
    fs::write(dir.path().join(".gitignore"), "/target\n/tools\n").unwrap();
    fs::create_dir(dir.path().join("tools")).unwrap();
    for name in ["redline-bench", "redline-results", "redline-site"] {
        fs::write(dir.path().join("tools").join(name), "").unwrap();
    }
    git(&["add", "."]);
    git(&["commit", "--quiet", "--message", "First"]);
    dir
}

/// Work of a process; its exit code is not known where an earlier process has finished it.
type Work<'a> = dyn Fn(&World) -> Result<Option<Exit>, Stop> + 'a;

/// A simulated campaign.
pub struct Simulation {
    dir: TempDir,
    seed: u64,
    course: usize,
    machine: Rc<Machine>,
    cluster: Cluster,
    /// Changes of ended controllers that are not on the disk.
    unsynced: RefCell<Unsynced>,
    lives: Cell<u64>,
}

impl Simulation {
    pub fn new(seed: u64) -> Self {
        // Neighboring seeds have different courses, and the same course has different faults.
        let courses = COURSES.len() as u64;
        let course = usize::try_from(seed % courses).unwrap();
        Self::of(course, seed, seed / courses % HARSH == HARSH - 1)
    }

    fn of(course: usize, seed: u64, is_harsh: bool) -> Self {
        let dir = folder();
        TEMPLATE.with(|template| {
            copy_tree(template.path(), &dir.path().join("all/clone"));
            copy_tree(template.path(), &dir.path().join("all/other"));
        });
        let time = TIME.with(|time| *time);
        time.reset();
        let aside = dir.path().join("aside");
        fs::create_dir(&aside).unwrap();
        let machine = Rc::new(Machine::new(&aside, time, Random::new(seed)));
        let clone = dir.path().join("all/clone");
        let cluster = Cluster::new(&machine, clone, COURSES[course].1, is_harsh);
        install(Some(Rc::clone(&machine)));
        let (unsynced, lives) = (RefCell::default(), Cell::new(0));
        Self { dir, seed, course, machine, cluster, unsynced, lives }
    }

    pub fn log(&self) -> String {
        self.machine.log()
    }

    /// Ends the simulation: other code of this thread has the system's files again.
    pub fn end(self) {
        install(None);
    }

    fn own_clone(&self) -> PathBuf {
        self.dir.path().join("all/clone")
    }

    fn other_clone(&self) -> PathBuf {
        self.dir.path().join("all/other")
    }

    /// Carries out the campaign and compares its records with those of one that nothing disturbed.
    pub fn carry_out(&self) {
        let undisturbed = undisturbed(self.course);
        // The reference has used the thread's machine and its time.
        install(Some(Rc::clone(&self.machine)));
        self.machine.time.reset();
        let exit = self.lives(undisturbed.steps, &self.own_clone(), &|world| self.campaign(world));
        let outcome = Outcome::of(&self.own_clone(), exit);
        outcome.expect_all();
        outcome.expect(&undisturbed, self.cluster.lost_most());
        let repeated = self.cluster.measured().saturating_sub(undisturbed.measured);
        let most = undisturbed.measured * self.cluster.cut_short();
        assert!(repeated <= most, "{repeated} finished runs were measured again");
        let may_be_ingested =
            COURSES[self.course].0 != Kind::Gate && !outcome.of_nodes().is_empty();
        if may_be_ingested && self.draw(INGESTED) == 0 {
            // A later power failure may lose the last line of its journal, if that was not flushed.
            let id = outcome::campaign(&self.own_clone()).expect("a finished campaign");
            let ingested = |world: &World| self.ingest(world, &id);
            let exit = self.lives(undisturbed.steps / 2, &self.other_clone(), &ingested);
            let ingested = Outcome::of(&self.other_clone(), exit);
            assert_eq!(ingested.records, outcome.of_nodes(), "the records that were ingested");
            assert_eq!(ingested.starts, outcome.starts, "the starts that were ingested");
        }
    }

    fn draw(&self, end: u64) -> u64 {
        self.machine.random(|random| random.below(end))
    }

    /// Has processes carry out `work` until one succeeds: the first ones each with a fault within
    /// so many steps, the last two without.
    fn lives(&self, steps: u32, clone: &Path, work: &Work<'_>) -> Option<Exit> {
        let faults = 1 + self.draw(FAULTS_MAX);
        for life in 0..=faults + 1 {
            if life == faults {
                self.cluster.never_fails();
            }
            let fault = self.machine.random(|random| {
                let at = u32::try_from(random.below(steps.into())).unwrap();
                (life < faults).then(|| (at, Fault::draw(random)))
            });
            let (result, ended) = self.live(fault, work);
            self.check(clone, &result, &ended);
            if let (Ok(exit), None) = (&result, ended.end) {
                return *exit;
            }
            // The first one without a fault may report a job that has failed before.
            assert!(life <= faults, "nothing failed, and yet: {:?}", result.err());
        }
        unreachable!("the last life succeeds or fails the test")
    }

    /// Has a process do the work, and returns what it returned and how it was ended.
    fn live(
        &self,
        fault: Option<(u32, Fault)>,
        work: &Work<'_>,
    ) -> (Result<Option<Exit>, Stop>, Ended) {
        let number = self.lives.get() + 1;
        self.lives.set(number);
        self.cluster.begin();
        let all = self.dir.path().join("all");
        let random = u128::from(self.seed) << 32 | u128::from(number) << 16;
        let world = world(&self.own_clone(), Clock::simulated(self.machine.time), random);
        let unsynced = std::mem::take(&mut *self.unsynced.borrow_mut());
        let interrupt = world.interrupt.clone();
        self.machine.begin(Begin { dir: &all, interrupt, fault, unsynced });
        let result = work(&world);
        if let Err(stop) = &result {
            self.machine.say(|| stop.to_string());
        }
        let mut ended = self.machine.finish();
        let mut unsynced = std::mem::take(&mut ended.unsynced);
        if ended.end == Some(End::PowerLost) {
            unsynced.extend(self.cluster.lose_power());
            self.machine.random(|random| unsynced.lose(random));
        }
        self.unsynced.replace(unsynced);
        // The user comes back later.
        self.machine.time.pass(Duration::from_secs(self.draw(3_600)));
        (result, ended)
    }

    /// Begins the campaign, or resumes it.
    fn campaign(&self, world: &World) -> Result<Option<Exit>, Stop> {
        if outcome::campaign(&self.own_clone()).is_some() {
            return Ok(None);
        }
        let _lock = Lock::take(&world.places.lock(), world.pid)?;
        if let Some(id) = latest_unfinished(world, |_| true)? {
            let (mut journal, _) = Journal::open(world.places.campaign(&id))?;
            let ready = journal.prepared().clone();
            return go_on(world, &self.cluster, ready, &mut journal).map(Some);
        }
        let mut ids = Ids::new(world.clock.unix_ms(), world.random);
        let mut ready = prepared(COURSES[self.course].0, &world.places.root, &mut ids);
        if ready.commits {
            Registry::new(world, &ready.registry).preflight()?;
        }
        let mut journal = Journal::new(world.places.campaign(&ready.plan.campaign));
        write_down(&mut ready, &mut journal)?;
        go_on(world, &self.cluster, ready, &mut journal).map(Some)
    }

    /// Ingests the finished campaign into the other clone.
    fn ingest(&self, world: &World, id: &str) -> Result<Option<Exit>, Stop> {
        if outcome::campaign(&self.other_clone()).is_some() {
            return Ok(None);
        }
        let other = World { places: Places::new(&self.other_clone(), None), ..world.clone() };
        let flags = Ingest { dir: world.places.campaign(id).dir, registry: None };
        ingest::run(&other, &flags).map(Some)
    }

    /// Checks what a life has left in a clone.
    fn check(&self, clone: &Path, result: &Result<Option<Exit>, Stop>, ended: &Ended) {
        if let (Err(stop), None) = (result, ended.end) {
            assert_eq!(stop.exit(), Exit::Environment, "a failure of the environment: {stop}");
        }
        for id in outcome::campaigns(clone) {
            let places = Places::new(clone, None).campaign(&id);
            let state = Journal::read(&places).expect("the journal can be read");
            for entry in state.jobs.iter().filter(|job| job.reached >= Reached::Collected) {
                let checked = job::check(&places.staged(), &entry.runs);
                checked.expect("the records of a job that was collected");
            }
        }
        outcome::expect_sound(clone, self.machine.time);
    }
}

/// Returns the outcome of a course that nothing disturbs.
fn undisturbed(course: usize) -> Rc<Outcome> {
    if let Some(known) = UNDISTURBED.with_borrow(|known| known[course].clone()) {
        return known;
    }
    let simulation = Simulation::of(course, 0, false);
    simulation.cluster.never_fails();
    let (result, ended) = simulation.live(None, &|world| simulation.campaign(world));
    simulation.check(&simulation.own_clone(), &result, &ended);
    let exit = result.expect("a campaign that nothing disturbs");
    let (steps, measured) = (ended.steps, simulation.cluster.measured());
    let mut outcome = Outcome::of(&simulation.own_clone(), exit);
    (outcome.steps, outcome.measured) = (steps, measured);
    let outcome = Rc::new(outcome);
    UNDISTURBED.with_borrow_mut(|known| known[course] = Some(Rc::clone(&outcome)));
    outcome
}
