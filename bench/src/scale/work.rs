//! What is timed: commands of the registry's tools and of the site, as a user would type them.

use std::path::PathBuf;
use std::process::Command;

use super::fabricate::PAIR;
use super::remove;
use campaign::process::{capture, children_us, describe};
use campaign::stop::Stop;
use campaign::world::World;

/// One command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Work {
    /// Nothing is known of the records.
    CheckFirst,
    /// The index knows them all.
    CheckAgain,
    List,
    Diff,
    Site,
}

impl Work {
    /// In an order in which each finds what it needs.
    pub const ALL: [Self; 5] =
        [Self::CheckFirst, Self::CheckAgain, Self::List, Self::Diff, Self::Site];

    #[must_use]
    pub const fn title(self) -> &'static str {
        match self {
            Self::CheckFirst => "check, without an index",
            Self::CheckAgain => "check, again",
            Self::List => "list",
            Self::Diff => "diff of two releases",
            Self::Site => "the site",
        }
    }

    /// How many seconds it may take.
    #[must_use]
    pub const fn wanted_s(self) -> f64 {
        match self {
            Self::CheckFirst | Self::CheckAgain => 20.0,
            Self::List => 1.0,
            Self::Diff => 3.0,
            Self::Site => 10.0,
        }
    }

    /// The exit codes that are no failure: a comparison of made-up releases may say anything.
    const fn codes(self) -> &'static [i32] {
        if matches!(self, Self::Diff) { &[0, 1, 3] } else { &[0] }
    }
}

/// How long a command took.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Took {
    /// To 10 ms, which is how often it is looked at.
    pub wall_s: f64,
    /// User and system time of all cores.
    pub cpu_s: f64,
}

/// What the commands work on.
#[derive(Debug)]
pub struct Registries<'a> {
    pub world: &'a World,
    pub registry: PathBuf,
    pub site_registry: PathBuf,
    /// Where the site is made.
    pub site: PathBuf,
}

impl Registries<'_> {
    /// Runs the command of `work` to its end.
    ///
    /// # Errors
    /// It cannot be started, or fails.
    pub fn time(&self, work: Work) -> Result<Took, Stop> {
        let mut command = self.command(work)?;
        let clock = &self.world.clock;
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

    /// The command, with what it must not find out of its way.
    fn command(&self, work: Work) -> Result<Command, Stop> {
        let tools = &self.world.tools;
        if work == Work::Site {
            remove(&self.site)?;
            let mut build = tools.site("build");
            build.arg("--registry").arg(&self.site_registry).arg("--out").arg(&self.site);
            return Ok(build);
        }
        if work == Work::CheckFirst {
            // The index lies there, and nothing else does.
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
