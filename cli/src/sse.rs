//! Server-sent events: from the bytes of a stream to events.

/// Longest line of a stream, in bytes.
pub const MAX_LINE_BYTES: usize = 4 * 1024 * 1024;
/// Most bytes in the data of one event.
pub const MAX_EVENT_BYTES: usize = 8 * 1024 * 1024;

/// One event of a stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SseEvent {
    /// `event:`; empty when the stream gives none.
    pub name: String,
    /// `id:` of this event.
    pub id: Option<String>,
    /// `data:`, its lines joined.
    pub data: String,
}

/// A line or an event is longer than any that a coordinator sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLong;

/// Splits a stream into events; pings and other comments are left out.
#[derive(Debug, Default)]
pub struct SseParser {
    line: Vec<u8>,
    /// The last byte was a carriage return: a line feed that follows belongs to it.
    after_return: bool,
    event: SseEvent,
    has_data: bool,
}

impl SseParser {
    /// The events that are complete after `bytes`.
    ///
    /// # Errors
    /// [`TooLong`]: the stream cannot be read on.
    pub fn push(&mut self, bytes: &[u8]) -> Result<Vec<SseEvent>, TooLong> {
        let mut events = Vec::new();
        for byte in bytes {
            let after_return = std::mem::replace(&mut self.after_return, *byte == b'\r');
            match byte {
                b'\n' if after_return => {}
                b'\n' | b'\r' => {
                    let line = std::mem::take(&mut self.line);
                    events.extend(self.end_line(&line)?);
                }
                byte => {
                    if self.line.len() >= MAX_LINE_BYTES {
                        return Err(TooLong);
                    }
                    self.line.push(*byte);
                }
            }
        }
        Ok(events)
    }

    fn end_line(&mut self, line: &[u8]) -> Result<Option<SseEvent>, TooLong> {
        if line.is_empty() {
            let event = std::mem::take(&mut self.event);
            let complete = std::mem::take(&mut self.has_data) || !event.name.is_empty();
            return Ok(complete.then_some(event));
        }
        let line = String::from_utf8_lossy(line);
        let (field, value) = line.split_once(':').unwrap_or((&line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "event" => self.event.name = value.to_owned(),
            "id" => self.event.id = Some(value.to_owned()),
            "data" => {
                if self.event.data.len() + value.len() >= MAX_EVENT_BYTES {
                    return Err(TooLong);
                }
                if self.has_data {
                    self.event.data.push('\n');
                }
                self.has_data = true;
                self.event.data.push_str(value);
            }
            // A comment has an empty field name; other fields mean nothing here.
            _ => {}
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_the_same_however_the_stream_is_cut() {
        let stream = ": ping\r\n\r\nevent: log\nid: 12\ndata: {\"a\":1}\n\ndata:x\rdata: y\r\r: c\n\nevent: end\n\nevent: cut\ndata: no";
        let event = |name: &str, id: Option<&str>, data: &str| SseEvent {
            name: name.to_owned(),
            id: id.map(str::to_owned),
            data: data.to_owned(),
        };
        let expected = [
            event("log", Some("12"), "{\"a\":1}"),
            event("", None, "x\ny"),
            event("end", None, ""),
        ];
        for cut in 0..=stream.len() {
            let (first, second) = stream.as_bytes().split_at(cut);
            let mut parser = SseParser::default();
            let mut events = parser.push(first).unwrap();
            events.extend(parser.push(second).unwrap());
            assert_eq!(events, expected, "cut at {cut}");
        }
    }

    #[test]
    fn memory_has_a_bound() {
        let mut parser = SseParser::default();
        assert_eq!(parser.push(&vec![b'a'; MAX_LINE_BYTES + 1]), Err(TooLong));
        let mut parser = SseParser::default();
        let mut line = b"data: ".to_vec();
        line.resize(MAX_LINE_BYTES, b'b');
        line.push(b'\n');
        assert_eq!(parser.push(&line), Ok(Vec::new()));
        assert_eq!(parser.push(&line).and_then(|_| parser.push(&line)), Err(TooLong));
    }
}
