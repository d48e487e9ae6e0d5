//! registry
fn main() {}
