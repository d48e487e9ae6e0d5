//! Malformed files, sources and random weights.
