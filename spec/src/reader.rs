//! Reading a mapping with a fixed set of fields: what is unknown or not built is reported once, here.

use crate::cell::Cell;
use crate::error::{Code, Problems, quoted};
use crate::fields::{Section, Status};
use crate::tree::{Entry, Node, join};
use crate::validate::dotted;

/// A mapping whose unknown and unbuilt fields have been reported.
pub(crate) struct Reader<'a> {
    entries: &'a [Entry],
    pointer: String,
    section: &'static Section,
}

impl<'a> Reader<'a> {
    pub(crate) fn open(
        node: &'a Node,
        section: &'static Section,
        pointer: &str,
        out: &mut Problems,
    ) -> Option<Self> {
        let entries = Cell::new(node, pointer.to_owned()).entries(out)?;
        for entry in entries {
            report_field(entry, section, &join(pointer, &entry.key), out);
        }
        Some(Self { entries, pointer: pointer.to_owned(), section })
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.entries.iter().any(|entry| entry.key == name)
    }

    /// The value of a field that is read in this version; one that is refused gives `None`.
    pub(crate) fn get(&self, name: &str) -> Option<Cell<'a>> {
        self.section.field(name).filter(|field| field.status.is_read())?;
        let entry = self.entries.iter().find(|entry| entry.key == name)?;
        Some(Cell::new(&entry.node, join(&self.pointer, name)))
    }

    /// The value of a field that must be there.
    pub(crate) fn required(&self, name: &str, out: &mut Problems) -> Option<Cell<'a>> {
        let cell = self.get(name);
        if cell.is_none() {
            let pointer = self.pointer(name);
            let message = format!("`{}` is missing", dotted(&pointer));
            out.key(Code::MISSING, &pointer, message, None);
        }
        cell
    }

    /// The mapping `name` with its own fields.
    pub(crate) fn section(
        &self,
        name: &str,
        section: &'static Section,
        out: &mut Problems,
    ) -> Option<Self> {
        let cell = self.get(name)?;
        Reader::open(cell.node, section, &cell.pointer, out)
    }

    pub(crate) fn pointer(&self, name: &str) -> String {
        join(&self.pointer, name)
    }
}

fn report_field(entry: &Entry, section: &Section, pointer: &str, out: &mut Problems) {
    match section.field(&entry.key).map(|field| field.status) {
        Some(Status::Built) => {}
        Some(Status::NotYet(hint)) => out.key(
            Code::NOT_YET,
            pointer,
            format!("`{}` is not built yet", dotted(pointer)),
            Some(hint.unwrap_or("leave it out: it would do nothing").to_owned()),
        ),
        None => {
            let place = match section.name {
                "" => String::new(),
                name => format!(" in {name}"),
            };
            let hint = match section.suggest(&entry.key) {
                Some(known) if known == entry.key => {
                    format!("`{known}` stands at the top level, not{place}")
                }
                Some(known) => format!("did you mean `{known}`?"),
                None => format!("known here: {}", section.read_names()),
            };
            let message = format!("unknown field {}{place}", quoted(&entry.key));
            out.key(Code::UNKNOWN_FIELD, pointer, message, Some(hint));
        }
    }
}
