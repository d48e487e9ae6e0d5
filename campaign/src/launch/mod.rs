//! How a server is launched: the specification that all stages pass on, and the command line that it
//! becomes, as a process or in a container.

mod command_line;
pub mod container;
mod spec;

pub use command_line::{
    CommandLine, Filling, LaunchError, LaunchSettings, command_line, container_line, image_name,
};
pub use spec::{BuiltVariant, Contained, LaunchSpec, ReadyCell, is_same};
