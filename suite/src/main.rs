//! suite
fn main() {}
