//! Integration tests of the suite against its mock server and the pinned inputs; one file per
//! promise.

mod alternate;
mod api_formats;
mod arrival;
mod audit;
mod bench;
mod client;
mod client_error;
mod command_lines;
mod export;
mod first_answer;
mod given;
mod harness;
mod hostile;
mod inputs;
mod kept;
mod paced;
mod places;
mod real_tools;
mod samplers;
mod serving;
mod telemetry;
mod tls;
mod url;
mod verdicts;
mod workspace;
