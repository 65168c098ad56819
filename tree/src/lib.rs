//! The code of a job as a *tree*: what the command line makes of a directory, the coordinator keeps
//! and the agents lay out again. All three check the same rules, which stand here and do no I/O.
//!
//! A tree is a sorted list of files and links; its name is the BLAKE3 of that list's bytes. The
//! content of files is cut into chunks, each named by its own BLAKE3, so that a tree that differs
//! from another in one file shares every chunk of the others with it.

pub mod batch;
mod chunker;
mod hash;
mod manifest;
mod rules;

pub use chunker::{Chunker, MAX_CHUNK_BYTES};
pub use hash::Hash;
pub use manifest::{ChunkRef, Entry, Kind, MAX_ENTRIES, MAX_MANIFEST_BYTES, MAX_TREE_BYTES, Tree};
pub use rules::{TreeError, check_path};
