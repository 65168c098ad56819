//! Where a read of many files goes on, as a text: an offset for each file, so that nothing is lost or
//! repeated whatever is written meanwhile.

use std::collections::BTreeMap;

use gangline_common::ids::MemberId;

use super::is_file_name;
use crate::api::error::{ApiError, BAD_PARAMETER};

/// Files of one read: their offsets must fit into the address of the next request.
pub(super) const MAX_FILES: usize = 1024;

/// Offsets within the files of one attempt.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Cursor {
    pub attempt: u32,
    /// Files that are not here were not read yet.
    pub offsets: BTreeMap<(MemberId, String), u64>,
}

impl Cursor {
    /// Reads what [`Cursor::text`] wrote.
    pub fn parse(text: &str) -> Result<Cursor, ApiError> {
        let mut parts = text.split('*');
        let attempt = parts.next().and_then(|number| number.parse().ok());
        let entry = |part: &str| {
            let (member, rest) = part.split_once('.')?;
            let (file, offset) = rest.split_once('.')?;
            let file = Some(file).filter(|file| is_file_name(file))?;
            Some(((member.parse().ok()?, file.to_owned()), offset.parse().ok()?))
        };
        let offsets = parts.take(MAX_FILES + 1).map(entry).collect::<Option<BTreeMap<_, _>>>();
        match (attempt, offsets) {
            (Some(attempt), Some(offsets)) if offsets.len() <= MAX_FILES => {
                Ok(Cursor { attempt, offsets })
            }
            _ => Err(bad_cursor()),
        }
    }

    pub fn text(&self) -> String {
        let mut text = self.attempt.to_string();
        for ((member, file), offset) in &self.offsets {
            text.push_str(&format!("*{member}.{file}.{offset}"));
        }
        text
    }
}

pub(super) fn bad_cursor() -> ApiError {
    ApiError::new(BAD_PARAMETER, "the cursor is not one of an answer")
        .hint("begin again without it")
}

/// Where a search over many jobs goes on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    /// Sequence of the job, number of the attempt.
    pub job: u64,
    pub attempt: u32,
    /// The file to go on with, and where in it; `None`: with the first.
    pub file: Option<(MemberId, String, u64)>,
}

impl Place {
    /// Reads what [`Place::text`] wrote.
    pub fn parse(text: &str) -> Result<Place, ApiError> {
        let read = || {
            let parts: Vec<&str> = text.split('.').collect();
            let (head, rest) = parts.split_at_checked(2)?;
            let [job, attempt] = head else { return None };
            let file = match rest {
                [] => None,
                [member, file, offset] => {
                    Some((member.parse().ok()?, (*file).to_owned(), offset.parse().ok()?))
                }
                _ => return None,
            };
            Some(Place { job: job.parse().ok()?, attempt: attempt.parse().ok()?, file })
        };
        read().ok_or_else(bad_cursor)
    }

    pub fn text(&self) -> String {
        let Place { job, attempt, file } = self;
        match file {
            None => format!("{job}.{attempt}"),
            Some((member, file, offset)) => format!("{job}.{attempt}.{member}.{file}.{offset}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursors_come_back_as_they_were() {
        let mut cursor = Cursor { attempt: 3, ..Cursor::default() };
        assert_eq!(Cursor::parse(&cursor.text()).unwrap(), cursor);
        let file = |name: &str| (MemberId::Rank(2), name.to_owned());
        cursor.offsets.insert((MemberId::Head, "output".to_owned()), u64::MAX);
        cursor.offsets.insert(file("worker-12-ab_c-err"), 7);
        assert_eq!(Cursor::parse(&cursor.text()).unwrap(), cursor);
        let place = Place { job: 9, attempt: 1, file: None };
        assert_eq!(Place::parse(&place.text()).unwrap(), place);
        let place = Place { file: Some((MemberId::Rank(1), "driver-j-1".to_owned(), 5)), ..place };
        assert_eq!(Place::parse(&place.text()).unwrap(), place);
    }

    #[test]
    fn a_cursor_of_somebody_else_is_refused() {
        assert!(Cursor::parse("1*0.a.1").is_ok());
        let files: String = (0..=MAX_FILES).map(|n| format!("*{n}.output.1")).collect();
        for bad in
            ["", "x", "1*", "1*0.a", "1*0.a.b", "1*z.a.1", "1*0.../x.1", &format!("1{files}")]
        {
            assert!(Cursor::parse(bad).is_err(), "{bad}");
        }
        for bad in ["", "1", "1.2.3", "1.2.0.a", "1.2.0.a.b", "1.2.0.a.1.1"] {
            assert!(Place::parse(bad).is_err(), "{bad}");
        }
    }
}
