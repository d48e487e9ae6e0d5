//! Black-box harness for the binaries of this workspace.
