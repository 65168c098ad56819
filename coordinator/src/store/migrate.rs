//! Older layouts of the whole store, brought up step by step in one transaction.
//!
//! | layout | what changed |
//! |---|---|
//! | 1 | the first |
//! | 2 | the header record says which build wrote it |

use redb::{ReadableTable, WriteTransaction};

use super::record::{self, Layout};
use super::{META, STORE_VERSION};

/// Brings a store of layout `from` up to [`STORE_VERSION`].
///
/// # Errors
/// The layout was never made, or a record of it cannot be read. Nothing may be committed then.
pub fn migrate(transaction: &WriteTransaction, from: u32) -> Result<(), String> {
    for layout in from..STORE_VERSION {
        match layout {
            1 => say_who_writes(transaction)?,
            other => return Err(format!("there was never a layout {other}")),
        }
    }
    Ok(())
}

/// 1 -> 2.
fn say_who_writes(transaction: &WriteTransaction) -> Result<(), String> {
    let mut table = transaction.open_table(META).map_err(|e| e.to_string())?;
    let meta = {
        let row = table.get("meta").map_err(|e| e.to_string())?;
        record::decode_meta(row.ok_or("it has no header record")?.value())?.1
    };
    let bytes = record::encode_meta(&Layout { version: 2, ..Layout::current() }, &meta);
    table.insert("meta", bytes.as_slice()).map_err(|e| e.to_string())?;
    Ok(())
}
