//! One file per promise to a user.
