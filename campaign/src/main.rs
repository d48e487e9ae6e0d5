//! campaign
fn main() {}
