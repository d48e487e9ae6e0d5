//! Tests of the server from outside, over real sockets, with a model whose results are known.

#[cfg(test)]
mod answers;
#[cfg(test)]
mod blocks;
#[cfg(test)]
mod browsers;
#[cfg(test)]
mod calls;
#[cfg(test)]
mod clients;
#[cfg(test)]
mod connections;
#[cfg(test)]
mod echoes;
#[cfg(test)]
mod embeddings;
#[cfg(test)]
mod fake;
#[cfg(test)]
mod harness;
#[cfg(test)]
mod life;
#[cfg(test)]
mod refusals;
#[cfg(test)]
mod shapes;
#[cfg(test)]
mod simulation;
#[cfg(test)]
mod thoughts;
