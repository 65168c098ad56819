//! Lines of GPU time that is of no allocation, in the order in which they ended. Only ever added to,
//! but for the oldest when there are more than [`books::KEPT`]: ten pools for half a year.

use std::sync::Arc;

use redb::Database;

use super::books::{self, BooksError};
use super::{VACANCIES, record};
use crate::core::vacancy::Vacancy;

/// Cheap to clone; reads what was committed last.
#[derive(Clone)]
pub struct VacancyLog {
    database: Arc<Database>,
}

/// Keys are in the order of the ends.
pub(super) fn key(line: &Vacancy) -> String {
    format!("{:020}/{}", line.until_wall_ms, line.pool)
}

impl VacancyLog {
    pub(super) fn new(database: Arc<Database>) -> Self {
        VacancyLog { database }
    }

    /// Shows every line that ended at or after a moment. Blocks for the disk.
    ///
    /// # Errors
    /// The disk fails, or a line is damaged.
    pub fn since(&self, wall_ms: u64, show: impl FnMut(Vacancy)) -> Result<(), BooksError> {
        books::lines_since(&self.database, VACANCIES, wall_ms, record::decode_vacancy, show)
    }

    /// Since when every line is there, in wall-clock milliseconds; `None` where none has gone. Blocks
    /// for the disk.
    ///
    /// # Errors
    /// The disk fails.
    pub fn full_since(&self) -> Result<Option<u64>, BooksError> {
        books::full_since(&self.database, VACANCIES, books::KEPT)
    }
}
