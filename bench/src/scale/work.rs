//! The commands that `scale-bench` times: those of the registry's tools and the site, as a user
//! would type them.

use std::path::PathBuf;
use std::process::Command;

use super::fabricate::PAIR;
use super::remove;
use campaign::process::{capture, children_us, describe};
use campaign::stop::Stop;
use campaign::world::World;

/// A command to be timed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Work {
    /// `check` without an index of the records.
    CheckFirst,
    /// `check` with an index of all records.
    CheckAgain,
    List,
    Diff,
    Site,
}

impl Work {
    /// All commands, in an order in which each finds the files that it needs.
    pub const ALL: [Self; 5] =
        [Self::CheckFirst, Self::CheckAgain, Self::List, Self::Diff, Self::Site];

    pub const fn title(self) -> &'static str {
        match self {
            Self::CheckFirst => "check, without an index",
            Self::CheckAgain => "check, again",
            Self::List => "list",
            Self::Diff => "diff of two releases",
            Self::Site => "the site",
        }
    }

    /// Required time in seconds.
    pub const fn wanted_s(self) -> f64 {
        match self {
            Self::CheckFirst | Self::CheckAgain => 20.0,
            Self::List => 1.0,
            Self::Diff => 3.0,
            Self::Site => 10.0,
        }
    }

    /// Exit codes that are no failure: a comparison of simulated releases may have any verdict.
    const fn codes(self) -> &'static [i32] {
        if matches!(self, Self::Diff) { &[0, 1, 3] } else { &[0] }
    }
}

/// Time that a command took.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Took {
    /// Wall time in seconds, to 10 ms, the interval of polling.
    pub wall_s: f64,
    /// User and system time in seconds, over all cores.
    pub cpu_s: f64,
}

/// Folders on which the commands work.
#[derive(Debug)]
pub struct Registries<'a> {
    pub world: &'a World,
    pub registry: PathBuf,
    pub site_registry: PathBuf,
    /// Folder in which the site is built.
    pub site: PathBuf,
}

impl Registries<'_> {
    /// Runs the command of `work` to its end and measures its time.
    ///
    /// # Errors
    /// It cannot be started, or fails.
    pub fn time(&self, work: Work) -> Result<Took, Stop> {
        let mut command = self.command(work)?;
        let clock = &self.world.clock;
        // Processor time is known only in sum over all ended children, hence the difference.
        let (before_us, started) = (children_us()?, clock.elapsed());
        let written = capture(&mut command, &self.world.interrupt)?;
        let took = Took {
            wall_s: (clock.elapsed() - started).as_secs_f64(),
            cpu_s: (children_us()? - before_us) / 1e6,
        };
        if written.status.code().is_some_and(|code| work.codes().contains(&code)) {
            return Ok(took);
        }
        let (title, how) = (work.title(), describe(written.status));
        let said = written.last_said().unwrap_or("silent");
        Err(Stop::environment(format!("`{title}` ended with {how}: {said}")))
    }

    /// Makes the command, and removes what an earlier command left that would speed it up.
    fn command(&self, work: Work) -> Result<Command, Stop> {
        let tools = &self.world.tools;
        if work == Work::Site {
            remove(&self.site)?;
            let mut build = tools.site("build");
            build.arg("--registry").arg(&self.site_registry).arg("--out").arg(&self.site);
            return Ok(build);
        }
        if work == Work::CheckFirst {
            // The folder contains only the index.
            remove(&self.registry.join("target"))?;
        }
        let mut results = match work {
            Work::List => tools.results("list"),
            Work::Diff => tools.results("diff"),
            _ => tools.results("check"),
        };
        if work == Work::Diff {
            results.args(PAIR);
        }
        results.arg("--registry").arg(&self.registry);
        Ok(results)
    }
}
