//! `redline` with a model that panics in its fourth step, to test a panic from outside the process.
//! The server itself has no way to cause one.

use std::process::ExitCode;

use clap::Parser;
use engine::cli::{Cli, Surroundings};
use engine::serve::{self, Start};
use engine::server::Loaded;
use engine::worker::Handle;
use engine_core::clock::Clock;
use engine_core::{DeviceError, StepBatch, StepOutput};
use engine_cuda::driver::Cubins;
use engine_model::{Model, ModelInfo};

/// Number of steps that the model computes before it panics.
const STEPS: usize = 3;

#[derive(Debug)]
struct Panicking {
    model: Box<dyn Model>,
    steps: usize,
}

impl Model for Panicking {
    fn info(&self) -> &ModelInfo {
        self.model.info()
    }

    fn allocate_kv(&mut self, pages: usize, page_tokens: usize) -> Result<(), DeviceError> {
        self.model.allocate_kv(pages, page_tokens)
    }

    fn submit(&mut self, batch: &StepBatch) -> Result<(), DeviceError> {
        assert!(self.steps < STEPS, "a step too many");
        self.steps += 1;
        self.model.submit(batch)
    }

    fn complete(&mut self) -> Result<StepOutput<'_>, DeviceError> {
        self.model.complete()
    }
}

fn prepare(start: &Start, handle: Handle) -> anyhow::Result<Loaded> {
    let (model, ready) = serve::prepare(start, handle)?;
    Ok((Box::new(Panicking { model, steps: 0 }), ready))
}

fn main() -> ExitCode {
    let surroundings = Surroundings {
        clock: Clock::start(),
        cores: 1,
        hub_cache: None,
        cubins: Cubins::default(),
    };
    Cli::parse().run(surroundings, prepare)
}
