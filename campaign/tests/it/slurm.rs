//! Slurm executor on a real Slurm: each way in which a job ends is reported correctly, and no job
//! is lost or submitted twice. Without Slurm these tests report that and pass.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use campaign::clock::Clock;
use campaign::executor::slurm::{Slurm, client_environment};
use campaign::executor::{Executor, Handle, JobEnd, JobSpec, JobState};
use campaign::process::Interrupt;
use schema::exit::Exit;
use tests::program::until;
use tests::slurm::{Cluster, NODES};

/// State of a job that neither the controller nor accounting knows.
fn forgotten() -> JobState {
    let said = "the scheduler no longer knows the job".to_owned();
    JobState::Ended { end: JobEnd::LostNode { said }, node: None }
}

/// Slurm's side of a campaign: jobs whose program is a line of shell.
struct Jobs<'a> {
    cluster: &'a Cluster,
    slurm: Slurm,
}

impl<'a> Jobs<'a> {
    fn on(cluster: &'a Cluster) -> Self {
        Self { cluster, slurm: executor(environment(cluster), &[]) }
    }

    fn spec(&self, key: &str, script: &str) -> JobSpec {
        let dir = self.cluster.root().join("jobs").join(key);
        fs::create_dir_all(&dir).unwrap();
        JobSpec {
            key: key.to_owned(),
            dir,
            argv: ["/bin/sh", "-c", script].map(str::to_owned).into(),
            env: BTreeMap::new(),
            wall_max: Duration::from_secs(600),
            gpus: 0,
            excluded_nodes: Vec::new(),
        }
    }

    #[track_caller]
    fn submit(&self, job: &JobSpec) -> Handle {
        self.slurm.submit(job).unwrap_or_else(|stop| panic!("{stop}"))
    }

    #[track_caller]
    fn state(&self, handle: &Handle) -> JobState {
        self.slurm.poll(handle).unwrap_or_else(|stop| panic!("{stop}"))
    }

    /// Waits for a job's end; returns how it ended and on which node.
    #[track_caller]
    fn end(&self, handle: &Handle) -> (JobEnd, Option<String>) {
        until("a job's end", || match self.state(handle) {
            JobState::Ended { end, node } => Some((end, node)),
            _ => None,
        })
    }

    /// The node that a job runs on.
    #[track_caller]
    fn node(&self, handle: &Handle) -> &'static str {
        let name = until("a running job", || match self.state(handle) {
            JobState::Running { node } => Some(node),
            JobState::Queued { .. } => None,
            other => panic!("{other:?}"),
        });
        NODES.into_iter().find(|node| *node == name).expect("a node of this cluster")
    }

    /// Waits for a file that a job writes into its folder.
    #[track_caller]
    fn wrote(&self, job: &JobSpec, name: &str) -> String {
        until(name, || fs::read_to_string(job.dir.join(name)).ok().filter(|t| t.ends_with('\n')))
    }
}

fn environment(cluster: &Cluster) -> BTreeMap<String, String> {
    let mut env = client_environment(std::env::vars());
    env.insert("SLURM_CONF".to_owned(), cluster.conf().display().to_string());
    env
}

fn executor(env: BTreeMap<String, String>, options: &[&str]) -> Slurm {
    let options: Vec<String> = options.iter().map(|option| (*option).to_owned()).collect();
    Slurm::new(&options, env, Interrupt::new(Clock::start()))
        .unwrap_or_else(|stop| panic!("{stop}"))
}

/// A folder for the front of the path, where `name` is this script.
fn in_front(folder: &Path, name: &str, script: &str) -> PathBuf {
    let programs = folder.join("in-front");
    fs::create_dir_all(&programs).unwrap();
    let program = programs.join(name);
    fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    programs
}

#[test]
fn a_machine_without_slurm_is_told_what_is_missing() {
    let nowhere = BTreeMap::from([("PATH".to_owned(), "/nowhere".to_owned())]);
    let stop = executor(nowhere, &[]).preflight().unwrap_err();
    assert_eq!(stop.exit(), Exit::Environment);
    let said = stop.to_string();
    assert!(said.contains("cannot start `sbatch`"), "{said}");
    assert!(said.contains("hint: install `sbatch`, or put it on the PATH"), "{said}");
}

#[test]
fn extra_a_job_sees_its_own_variables_its_gpus_and_nothing_of_the_submitters() {
    let Some(cluster) = Cluster::without_accounting() else { return };
    let mut env = environment(&cluster);
    // As if the user had set the variable and a wrapper had passed it on.
    env.insert("SBATCH_PARTITION".to_owned(), "batch".to_owned());
    let jobs = Jobs { cluster: &cluster, slurm: executor(env, &["--comment=a b|c"]) };
    jobs.slurm.preflight().unwrap_or_else(|stop| panic!("{stop}"));
    let mut job = jobs.spec("redline-0000-1", "env > seen; pwd; echo done >> seen");
    job.env.insert("REDLINE_CACHE".to_owned(), "/a, b's \"cache\"".to_owned());
    job.gpus = 2;
    let handle = jobs.submit(&job);
    assert_eq!(jobs.slurm.find(&job.key).unwrap(), Some(handle.clone()));
    assert_eq!(jobs.slurm.find("redline-0000-2").unwrap(), None, "never submitted");
    let (end, node) = jobs.end(&handle);
    assert_eq!(end, JobEnd::Well);
    assert!(node.is_some_and(|node| NODES.contains(&node.as_str())));
    assert_eq!(jobs.slurm.find(&job.key).unwrap(), Some(handle.clone()), "also once it is over");
    let seen = jobs.wrote(&job, "seen");
    assert!(seen.contains("REDLINE_CACHE=/a, b's \"cache\"\n"), "{seen}");
    assert!(seen.contains("CUDA_VISIBLE_DEVICES=0,1\n"), "{seen}");
    for foreign in ["NEXTEST", "CARGO", "SLURM_GET_USER_ENV"] {
        assert!(!seen.contains(foreign), "{foreign} in\n{seen}");
    }
    let log = fs::read_to_string(job.dir.join("node.log")).unwrap();
    assert_eq!(log.trim(), job.dir.display().to_string());
}

#[test]
fn extra_how_a_job_ended_is_told_as_it_was() {
    let Some(cluster) = Cluster::without_accounting() else { return };
    let jobs = Jobs::on(&cluster);
    let failed = jobs.submit(&jobs.spec("redline-failed-1", "exit 7"));
    let killed = jobs.submit(&jobs.spec("redline-killed-1", "kill -9 $$"));
    let traps = "trap 'echo told > told; exit 0' TERM; echo up > up; while :; do sleep 0.1; done";
    let cancelled = jobs.spec("redline-cancelled-1", traps);
    let handle = jobs.submit(&cancelled);
    jobs.wrote(&cancelled, "up");
    jobs.slurm.cancel(&handle).unwrap();
    assert_eq!(jobs.end(&handle).0, JobEnd::Cancelled);
    assert_eq!(jobs.wrote(&cancelled, "told"), "told\n", "the program itself is told to end");
    let said = |said: &str| JobEnd::Failed { said: said.to_owned() };
    assert_eq!(jobs.end(&failed).0, said("exit code 7"));
    assert_eq!(jobs.end(&killed).0, said("signal 9 (SIGKILL)"));
    // Cancelling a finished job changes nothing.
    jobs.slurm.cancel(&failed).unwrap();
    assert_eq!(jobs.end(&failed).0, said("exit code 7"));
    assert_eq!(jobs.state(&Handle("999999".to_owned())), forgotten());
    let stop = jobs.slurm.poll(&Handle("a job".to_owned())).unwrap_err();
    assert!(stop.to_string().contains("`a job`, where a job id was expected"), "{stop}");
}

#[test]
fn extra_what_could_never_run_and_what_is_refused_are_told_apart() {
    let Some(cluster) = Cluster::without_accounting() else { return };
    let jobs = Jobs::on(&cluster);
    let mut greedy = jobs.spec("redline-greedy-1", "true");
    greedy.gpus = 9;
    let mut nowhere = jobs.spec("redline-nowhere-1", "true");
    nowhere.excluded_nodes = NODES.map(str::to_owned).into();
    for job in [greedy, nowhere] {
        let (end, node) = jobs.end(&jobs.submit(&job));
        assert_eq!(end, JobEnd::Impossible { said: "BadConstraints".to_owned() }, "{}", job.key);
        assert_eq!(node, None);
    }
    let lost = Jobs { slurm: executor(environment(&cluster), &["--partition=gone"]), ..jobs };
    let stop = lost.slurm.submit(&lost.spec("redline-lost-1", "true")).unwrap_err();
    assert_eq!(stop.exit(), Exit::Unsound);
    assert!(stop.to_string().contains("invalid partition specified: gone"), "{stop}");
    assert_eq!(lost.slurm.find("redline-lost-1").unwrap(), None);
}

#[test]
fn extra_a_lost_answer_loses_no_job_and_makes_no_second_one() {
    let Some(cluster) = Cluster::without_accounting() else { return };
    let mut env = environment(&cluster);
    let path = env["PATH"].clone();
    let loses = format!("PATH='{path}' sbatch \"$@\" > /dev/null; echo timed out >&2; exit 1");
    let front = in_front(cluster.root(), "sbatch", &loses);
    env.insert("PATH".to_owned(), format!("{}:{path}", front.display()));
    let jobs = Jobs { cluster: &cluster, slurm: executor(env, &[]) };
    let job = jobs.spec("redline-once-1", "echo ran >> ran");
    let handle = jobs.submit(&job);
    assert_eq!(jobs.slurm.find(&job.key).unwrap(), Some(handle.clone()));
    assert_eq!(jobs.end(&handle).0, JobEnd::Well);
    assert_eq!(jobs.wrote(&job, "ran"), "ran\n");
    let listed = cluster.run_tool("squeue", &["--noheader", "--states=all", "--format=%i"]);
    assert_eq!(listed.stdout.lines().count(), 1, "{}", listed.stdout);
}

#[test]
fn extra_a_node_that_dies_under_a_job_is_told_and_the_next_attempt_avoids_it() {
    let Some(mut cluster) = Cluster::without_accounting() else { return };
    let first = Jobs::on(&cluster).spec("redline-node-1", "echo up > up; sleep 300; echo no > up");
    let handle = Jobs::on(&cluster).submit(&first);
    let node = Jobs::on(&cluster).node(&handle);
    Jobs::on(&cluster).wrote(&first, "up");
    cluster.kill_node(node);
    let jobs = Jobs::on(&cluster);
    let (end, on) = jobs.end(&handle);
    assert_eq!(end, JobEnd::LostNode { said: "NodeDown".to_owned() });
    assert_eq!(on.as_deref(), Some(node));
    let mut second = jobs.spec("redline-node-2", "echo up > up; sleep 300");
    second.excluded_nodes = vec![node.to_owned()];
    let handle = jobs.submit(&second);
    cluster.start_node(node);
    let jobs = Jobs::on(&cluster);
    assert_ne!(jobs.node(&handle), node);
    assert_eq!(jobs.wrote(&first, "up"), "up\n", "Slurm itself did not start it again");
    jobs.slurm.cancel(&handle).unwrap();
}

#[test]
fn extra_a_controller_that_is_away_is_no_answer_and_a_job_outlives_its_crash() {
    let Some(mut cluster) = Cluster::without_accounting() else { return };
    let script = "echo up > up; while [ ! -e end ]; do sleep 0.1; done; echo ran >> ran";
    let job = Jobs::on(&cluster).spec("redline-crash-1", script);
    let handle = Jobs::on(&cluster).submit(&job);
    Jobs::on(&cluster).wrote(&job, "up");
    Jobs::on(&cluster).node(&handle);
    // A controller that has not saved the job's start forgets it when killed, and would end the job
    // as unknown. An update of the job makes it save its state.
    let running = std::time::SystemTime::now();
    let changed = format!("JobId={}", handle.0);
    cluster.run_tool("scontrol", &["update", &changed, "Comment=to be saved"]);
    until("the controller's memory", || {
        let saved = fs::metadata(cluster.root().join("state/job_state")).ok()?;
        (saved.modified().ok()? > running).then_some(())
    });
    cluster.kill_controller();
    let jobs = Jobs::on(&cluster);
    for asked in [
        jobs.slurm.poll(&handle).map(|_| ()),
        jobs.slurm.find(&job.key).map(|_| ()),
        jobs.slurm.submit(&jobs.spec("redline-crash-2", "true")).map(|_| ()),
        jobs.slurm.preflight(),
    ] {
        let stop = asked.unwrap_err();
        assert_eq!(stop.exit(), Exit::Environment);
        assert!(stop.to_string().contains("Unable to contact slurm controller"), "{stop}");
    }
    cluster.start_controller();
    let jobs = Jobs::on(&cluster);
    assert_eq!(jobs.slurm.find(&job.key).unwrap(), Some(handle.clone()));
    fs::write(job.dir.join("end"), "").unwrap();
    assert_eq!(jobs.end(&handle).0, JobEnd::Well);
    assert_eq!(jobs.wrote(&job, "ran"), "ran\n", "once");
    assert_eq!(jobs.slurm.find("redline-crash-2").unwrap(), None, "it never came");
}

#[test]
fn extra_a_node_whose_check_fails_is_the_infrastructures_fault() {
    let Some(cluster) = Cluster::without_accounting() else { return };
    let check = in_front(cluster.root(), "check", "exit 1").join("check");
    cluster.configure(&format!("Prolog={}", check.display()));
    let jobs = Jobs::on(&cluster);
    let (end, node) = jobs.end(&jobs.submit(&jobs.spec("redline-check-1", "true")));
    assert_eq!(end, JobEnd::LostNode { said: "Prolog error".to_owned() });
    assert!(node.is_some_and(|node| NODES.contains(&node.as_str())));
}

#[test]
fn extra_a_job_that_takes_longer_than_it_may_has_timed_out() {
    let Some(cluster) = Cluster::without_accounting() else { return };
    let jobs = Jobs::on(&cluster);
    let mut job = jobs.spec("redline-long-1", "sleep 300");
    job.wall_max = Duration::from_secs(1);
    assert_eq!(jobs.end(&jobs.submit(&job)).0, JobEnd::TimedOut);
}

#[test]
fn extra_what_the_controller_has_forgotten_is_known_to_accounting() {
    let Some(cluster) = Cluster::with_accounting() else { return };
    let jobs = Jobs::on(&cluster);
    let job = jobs.spec("redline-kept-1", "exit 7");
    let handle = jobs.submit(&job);
    let end = jobs.end(&handle);
    assert_eq!(end.0, JobEnd::Failed { said: "exit code 7".to_owned() });
    let unknown = ["--oneliner", "show", "job", &handle.0];
    until("the controller to forget the job", || {
        let shown = tests::program::run(&mut cluster.tool("scontrol", &unknown));
        (shown.code != Some(0)).then_some(())
    });
    assert_eq!(jobs.end(&handle), end, "by accounting as by the controller");
    assert_eq!(jobs.slurm.find(&job.key).unwrap(), Some(handle));
    assert_eq!(jobs.slurm.find("redline-kept-2").unwrap(), None);
    assert_eq!(jobs.state(&Handle("999999".to_owned())), forgotten());
}
