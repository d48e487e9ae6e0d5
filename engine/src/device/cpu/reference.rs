//! The operations in plain loops, one sum at a time: what the kernels are tested against.
