//! What the bench programs share: series of measurements, the table they print, and the floors
//! that their figures stand beside.

pub mod agents;
pub mod driven;
pub mod floor;
pub mod load;
pub mod measure;
pub mod nodes;
pub mod program;
pub mod sample;
pub mod script;
pub mod slurm;
pub mod stamps;
pub mod table;
pub mod watcher;

/// That of the coordinator, for what is measured without its process.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;
