//! Ids against llama.cpp's, streams against wholes, templates against what they should print.
