//! site
fn main() {}
