//! What the bench programs share: series of measurements, the table they print, and the floors
//! that their figures stand beside.

pub mod floor;
pub mod measure;
pub mod nodes;
pub mod program;
pub mod stamps;
pub mod table;
