//! Tests of the job loop with an executor that ends jobs as a table says: which are retried, where
//! and how often, and what is recorded in the end.

use std::cell::RefCell;
use std::collections::VecDeque;

use schema::alternation::Start;
use schema::canonical::to_file_text;
use schema::exit::Exit;
use schema::run::{FailureClass, HardwareFacts, RunRecord, Status};

use super::*;
use crate::clock::Clock;
use crate::executor::JobSpec;
use crate::executor::job::{FileFact, Job, Progress, Step, record_path, start_path, write_json};
use crate::executor::journal::RecordedHardware;
use crate::files::{Lines, write_whole};
use crate::plan::{Plan, PlannedAlternation, Round, interleave};
use crate::simulation::campaigns;
use crate::world::Ids;

fn world(root: &Path) -> World {
    campaigns::world(root, Clock::start(), 7)
}

/// Returns a prepared campaign of two releases in two blocks of one cell, on one GPU each.
fn ready() -> PreparedCampaign {
    let (variants, cells) = (campaigns::VARIANTS.to_vec(), campaigns::CELLS[..1].to_vec());
    let mut ids = Ids::new(1_700_000_000_000, 1);
    let plan = Plan {
        campaign: ids.next_id(),
        variants: variants.iter().map(|variant| variant.built.variant.clone()).collect(),
        cells: cells.iter().map(|cell| cell.cell.clone()).collect(),
        runs: interleave(&Round::first(1, 2, 2), || ids.next_id()),
        random_order_seed: None,
    };
    let hardware = HardwareFacts { id: "h100-80g".to_owned(), ..HardwareFacts::default() };
    PreparedCampaign {
        command: Vec::new(),
        executor: "scripted".to_owned(),
        plan,
        variants,
        cells,
        inputs: vec![Vec::new()],
        hardware: RecordedHardware(hardware),
        on_gpu: true,
        registry: "registry".into(),
        each_us: vec![vec![0, 0]],
        ..PreparedCampaign::default()
    }
}

/// One attempt at a job: number of blocks that its node finishes, the node's final report (`None`
/// if it writes none), and the scheduler's answer about the job's end.
type Attempt = (usize, Option<NodeEnd>, JobEnd);

/// Executor that runs a job at once, with a scripted outcome for each attempt.
struct Scripted<'a> {
    world: &'a World,
    ready: &'a PreparedCampaign,
    attempts: RefCell<VecDeque<Attempt>>,
    submitted: RefCell<Vec<(JobSpec, JobEnd)>>,
}

impl Scripted<'_> {
    fn carry_out(&self, spec: &JobSpec, blocks: usize, end: Option<NodeEnd>) {
        let places = CampaignPlaces::at(&spec.dir);
        let job = Job::read(&places).unwrap();
        let (mut lines, held) = Lines::open::<Step>(&places.steps()).unwrap();
        if job.alternation.is_some() {
            let path = start_path(Progress::of(&held.lines).starts.len());
            write_json(&spec.dir.join(&path), &Start::default()).unwrap();
            let file = FileFact::of(&spec.dir, &path).unwrap();
            let wall_us = START_US;
            lines.append(&Step::StartEnded { file, said: Vec::new(), wall_us }).unwrap();
        }
        for block in job.blocks().into_iter().take(blocks) {
            lines.append(&Step::BlockBegun { block }).unwrap();
            let mut files = Vec::new();
            for run in job.runs.iter().filter(|run| run.block == block) {
                let scratch = tempfile::tempdir().unwrap();
                let failure = (FailureClass::Crash, "the server ended with exit code 1");
                record_unmeasured(self.world, self.ready, run, failure, scratch.path()).unwrap();
                let record = job::records(scratch.path()).unwrap().remove(0);
                let path = record_path(&run.run);
                let text = to_file_text(&record).unwrap();
                write_whole(&spec.dir.join(&path), text.as_bytes()).unwrap();
                files.push(FileFact::of(&spec.dir, &path).unwrap());
            }
            lines.append(&Step::BlockDone { block, files }).unwrap();
        }
        if let Some(end) = end {
            Done { end, files: Vec::new() }.write(&places).unwrap();
        }
    }
}

impl Executor for Scripted<'_> {
    fn name(&self) -> &'static str {
        "scripted"
    }

    fn pause(&self) -> Duration {
        Duration::ZERO
    }

    fn preflight(&self) -> Result<(), Stop> {
        Ok(())
    }

    fn submit(&self, spec: &JobSpec) -> Result<Handle, Stop> {
        let (blocks, report, end) = self.attempts.borrow_mut().pop_front().expect("an attempt");
        self.carry_out(spec, blocks, report);
        let mut submitted = self.submitted.borrow_mut();
        submitted.push((spec.clone(), end));
        Ok(Handle((submitted.len() - 1).to_string()))
    }

    fn find(&self, _: &str) -> Result<Option<Handle>, Stop> {
        Ok(None)
    }

    fn poll(&self, handle: &Handle) -> Result<JobState, Stop> {
        let number: usize = handle.0.parse().unwrap();
        let end = self.submitted.borrow()[number].1.clone();
        Ok(JobState::Ended { end, node: Some(format!("node-{number}")) })
    }

    fn cancel(&self, _: &Handle) -> Result<(), Stop> {
        Ok(())
    }
}

/// Outcome of a campaign whose jobs had scripted outcomes.
struct Came {
    stop: Option<Stop>,
    records: Vec<RunRecord>,
    /// Names of the nodes that each attempt at the job excludes.
    excluded: Vec<Vec<String>>,
    /// Number of runs in each attempt at the job.
    runs: Vec<usize>,
}

impl Came {
    fn classes(&self) -> Vec<FailureClass> {
        self.records.iter().filter_map(|run| Some(run.failure.as_ref()?.class)).collect()
    }
}

fn came_of(attempts: &[Attempt]) -> Came {
    let dir = tempfile::tempdir().unwrap();
    let (world, ready) = (world(dir.path()), ready());
    let places = world.places.campaign(&ready.plan.campaign);
    let mut journal = Journal::new(places.clone());
    let jobs = jobs_of(&ready.plan.campaign, &ready.plan.runs);
    assert_eq!(jobs.len(), 1, "one cell is one job");
    journal.note(Line::Planned { stage: None, jobs }).unwrap();
    let executor = Scripted {
        world: &world,
        ready: &ready,
        attempts: RefCell::new(attempts.iter().cloned().collect()),
        submitted: RefCell::default(),
    };
    let stop = Drive::new(&world, &executor, &ready, &mut journal).carry_out(None).err();
    assert!(executor.attempts.borrow().is_empty(), "an attempt was not made");
    let records = job::records(&places.staged()).unwrap();
    assert!(records.iter().all(|record| record.status == Status::Failed));
    let submitted = executor.submitted.into_inner();
    let runs = submitted
        .iter()
        .map(|(spec, _)| Job::read(&CampaignPlaces::at(&spec.dir)).unwrap().runs.len());
    Came {
        stop,
        records,
        excluded: submitted.iter().map(|(spec, _)| spec.excluded_nodes.clone()).collect(),
        runs: runs.collect(),
    }
}

fn lost() -> Attempt {
    (0, None, JobEnd::LostNode { said: "it does not answer".to_owned() })
}

/// Time of a start of an alternating comparison, in microseconds.
const START_US: u64 = 30_000_000;

fn well(blocks: usize) -> Attempt {
    (blocks, Some(NodeEnd::Well), JobEnd::Well)
}

#[test]
fn what_is_of_the_infrastructure_is_tried_twice_more_on_other_nodes_and_then_recorded() {
    let full = || NodeEnd::Broke { said: "no space left on device".to_owned(), hint: None };
    let unfit = || NodeEnd::Unfit { said: "2 other processes are on the GPUs".to_owned() };
    let failed = || JobEnd::Failed { said: "exit code 4".to_owned() };
    for (attempt, class, message) in [
        (lost(), FailureClass::Infrastructure, "the node was lost: it does not answer"),
        ((0, None, JobEnd::Preempted), FailureClass::Preempted, "for another job"),
        ((0, Some(full()), failed()), FailureClass::Infrastructure, "no space left on device"),
        ((0, Some(unfit()), failed()), FailureClass::Infrastructure, "on the GPUs"),
        ((0, None, failed()), FailureClass::Infrastructure, "the job ended: exit code 4"),
    ] {
        let came = came_of(&[attempt.clone(), attempt.clone(), attempt.clone()]);
        assert!(came.stop.is_none(), "{attempt:?}");
        assert_eq!(came.classes(), [class; 4], "{attempt:?}");
        let said = &came.records[0].failure.as_ref().unwrap().message;
        assert!(said.contains(message) && said.ends_with("on each of 3 attempts"), "{said}");
        let nodes: [&[&str]; 3] = [&[], &["node-0"], &["node-0", "node-1"]];
        assert_eq!(came.excluded, nodes);

        let came = came_of(&[attempt, well(2)]);
        assert_eq!(came.classes(), [FailureClass::Crash; 4], "the second node did all");
        assert_eq!(came.excluded.len(), 2);
    }
}

#[test]
fn blocks_that_were_done_before_the_node_was_lost_are_kept() {
    let (_, report, end) = lost();
    let came = came_of(&[(1, report, end), well(1)]);
    assert_eq!(came.runs, [4, 2], "one block of two runs was left");
    assert_eq!(came.classes(), [FailureClass::Crash; 4]);
}

#[test]
fn what_the_job_was_not_given_enough_of_is_recorded_at_once() {
    for (end, class) in
        [(JobEnd::TimedOut, FailureClass::Timeout), (JobEnd::OutOfMemory, FailureClass::Oom)]
    {
        let came = came_of(&[(1, None, end)]);
        let [done, left] = [FailureClass::Crash, class];
        assert_eq!(came.classes(), [done, done, left, left]);
    }
}

#[test]
fn an_engines_own_failure_is_never_tried_again() {
    let came = came_of(&[well(2)]);
    assert_eq!((came.classes(), came.runs), (vec![FailureClass::Crash; 4], vec![4]));
}

#[test]
fn what_no_node_can_do_stops_the_campaign_with_what_is_done() {
    let refused = NodeEnd::Refused { said: "no conversation".to_owned(), hint: None };
    for (attempt, exit, message) in [
        ((1, Some(refused), JobEnd::Well), Exit::Unsound, "error: no conversation"),
        ((1, None, JobEnd::Cancelled), Exit::Environment, "error: a job was cancelled"),
        (
            (1, None, JobEnd::Impossible { said: "no such partition".to_owned() }),
            Exit::Environment,
            "error: no node can run a job: no such partition",
        ),
    ] {
        let came = came_of(&[attempt]);
        let stop = came.stop.expect("a stop");
        assert_eq!((stop.exit(), stop.to_string().as_str()), (exit, message));
        assert_eq!(came.records.len(), 2, "what was done is taken");
    }
}

#[test]
fn a_comparison_in_turns_has_time_for_its_budget_and_its_starts_outlive_lost_nodes() {
    let dir = tempfile::tempdir().unwrap();
    let (world, mut ready) = (world(dir.path()), ready());
    let planned =
        PlannedAlternation { budget_us: 600_000_000, family: 4, memory_percent: Some(45) };
    ready.alternation = Some(planned);
    let mut ids = Ids::new(1_700_000_000_000, 2);
    let stage = Some(Stage::Alternate);
    let round = Round { cells: vec![0], variants: 2, repeats: 1, block: 2, stage };
    let jobs = jobs_of(&ready.plan.campaign, &interleave(&round, || ids.next_id()));
    let places = world.places.campaign(&ready.plan.campaign);
    let mut journal = Journal::new(places.clone());
    journal.note(Line::Planned { stage, jobs }).unwrap();
    let executor = Scripted {
        world: &world,
        ready: &ready,
        attempts: RefCell::new([lost(), lost(), lost()].into()),
        submitted: RefCell::default(),
    };
    let stop = Drive::new(&world, &executor, &ready, &mut journal).carry_out(stage).unwrap_err();
    let said = "the comparison in turns was not finished: the node was lost";
    assert!(stop.to_string().contains(said), "{stop}");
    assert!(job::records(&places.staged()).unwrap().is_empty(), "it has no records of runs");
    let submitted = executor.submitted.into_inner();
    for (attempt, (spec, _)) in submitted.iter().enumerate() {
        let job = Job::read(&CampaignPlaces::at(&spec.dir)).unwrap();
        assert_eq!(job.alternation, Some(planned), "its own earlier starts count to its budget");
        assert_eq!(job.cells[&0].ready.cell.settings.memory_percent, Some(45));
        let starting = job.variants.iter().map(|of| of.engine.file.launch.timeout_s).sum();
        let least = Duration::from_micros(planned.budget_us) + Duration::from_secs(starting);
        assert!(spec.wall_max > least, "{:?}", spec.wall_max);
        let progress = Progress::of(&read_steps(&CampaignPlaces::at(&spec.dir)).unwrap());
        assert_eq!(progress.starts.len(), attempt + 1, "those of earlier attempts are taken over");
        assert_eq!(progress.wall_us, START_US, "and their time counts once");
        assert!(progress.starts.iter().all(|start| spec.dir.join(&start.path).is_file()));
    }
    assert_eq!(submitted.len(), 3);
}

#[test]
fn starts_that_a_killed_controller_took_over_in_part_are_all_taken_over() {
    let dir = tempfile::tempdir().unwrap();
    let (world, ready) = (world(dir.path()), ready());
    let mut ids = Ids::new(1_700_000_000_000, 2);
    let stage = Some(Stage::Alternate);
    let round = Round { cells: vec![0], variants: 2, repeats: 1, block: 2, stage };
    let first = jobs_of(&ready.plan.campaign, &interleave(&round, || ids.next_id())).remove(0);
    let second = PlannedJob { key: "second".to_owned(), attempt: 2, ..first.clone() };
    let mut journal = Journal::new(world.places.campaign(&ready.plan.campaign));
    journal.note(Line::Planned { stage, jobs: vec![first.clone(), second.clone()] }).unwrap();
    let places = |job: &PlannedJob| job::places(&world, &ready, &job.key);
    let end = |job: &PlannedJob, number| {
        let (dir, path) = (places(job).dir, start_path(number));
        write_json(&dir.join(&path), &Start::default()).unwrap();
        let file = FileFact::of(&dir, &path).unwrap();
        let (mut lines, _) = Lines::open::<Step>(&places(job).steps()).unwrap();
        lines.append(&Step::StartEnded { file, said: Vec::new(), wall_us: START_US }).unwrap();
    };
    end(&first, 0);
    end(&first, 1);
    end(&second, 0);
    for _ in 0..2 {
        let entry = &journal.state.jobs[1];
        in_turns::take_over(&world, &ready, &journal.state, entry).unwrap();
        let progress = Progress::of(&read_steps(&places(&second)).unwrap());
        let paths: Vec<&str> = progress.starts.iter().map(|start| start.path.as_str()).collect();
        assert_eq!(paths, [start_path(0), start_path(1)]);
    }
}

#[test]
fn jobs_that_run_at_once_share_the_hours_that_are_left() {
    let dir = tempfile::tempdir().unwrap();
    let (world, mut ready) = (world(dir.path()), ready());
    let second = ready.cells[0].clone();
    ready.cells.push(second);
    ready.inputs.push(Vec::new());
    const HOUR_US: u64 = 3_600_000_000;
    ready.each_us = vec![vec![HOUR_US, HOUR_US], vec![3 * HOUR_US, 3 * HOUR_US]];
    ready.max_gpu_hours = Some(20.0);
    let mut ids = Ids::new(1_700_000_000_000, 1);
    let runs = interleave(&Round::first(2, 2, 1), || ids.next_id());
    let jobs = jobs_of(&ready.plan.campaign, &runs);
    let mut journal = Journal::new(world.places.campaign(&ready.plan.campaign));
    journal.note(Line::Planned { stage: None, jobs: jobs.clone() }).unwrap();
    let executor = Scripted {
        world: &world,
        ready: &ready,
        attempts: RefCell::default(),
        submitted: RefCell::default(),
    };
    let share = |journal: &Journal, job: &PlannedJob| {
        job::budget(&world, &ready, &journal.state, (job, &executor)).unwrap()
    };
    assert_eq!(share(&journal, &jobs[0]), Some(5.0), "2 of 8 expected hours");
    assert_eq!(share(&journal, &jobs[1]), Some(15.0));
    let first = job::describe_job(&ready, &jobs[0], &executor, (Some(5.0), false), None);
    first.write(&job::places(&world, &ready, &first.key)).unwrap();
    let submitted = Line::Submitted { job: first.key.clone(), handle: Handle("0".to_owned()) };
    journal.note(submitted).unwrap();
    assert_eq!(share(&journal, &jobs[1]), Some(15.0), "5 are another job's");
    let (job, runs) = (first.key, Vec::new());
    journal.note(Line::Collected { job, runs, wall_us: HOUR_US, again: None }).unwrap();
    assert_eq!(share(&journal, &jobs[1]), Some(19.0), "and it has used one of them");
}
