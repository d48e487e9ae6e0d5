//! Kernels against the reference, on every instruction set.
