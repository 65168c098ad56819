//! The record of a declared pool.

use serde::{Deserialize, Serialize};

use super::{TimeV1, seal};
use crate::core::pools::PoolRecord;

#[derive(Serialize, Deserialize)]
pub(super) struct PoolV1 {
    name: String,
    description: String,
    set_by: String,
    set: TimeV1,
}

pub fn encode_pool(record: &PoolRecord) -> Result<Vec<u8>, String> {
    seal(&PoolV1 {
        name: record.name.clone(),
        description: record.description.clone(),
        set_by: record.set_by.clone(),
        set: record.set.into(),
    })
}

impl From<PoolV1> for PoolRecord {
    fn from(record: PoolV1) -> Self {
        PoolRecord {
            name: record.name,
            description: record.description,
            set_by: record.set_by,
            set: record.set.into(),
        }
    }
}
