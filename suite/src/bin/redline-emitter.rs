//! emitter
fn main() {}
