//! Messages in the wire format of protobuf, field by field, without their schema.

/// What a field of a message holds.
#[derive(Debug, Clone, Copy)]
pub enum Field<'a> {
    Number(u64),
    Fixed64([u8; 8]),
    Bytes(&'a [u8]),
    Fixed32([u8; 4]),
}

/// The fields of a message, up to the first that is none.
pub struct Fields<'a>(pub &'a [u8]);

impl<'a> Fields<'a> {
    /// A number of variable length.
    pub fn number(&mut self) -> Option<u64> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let (byte, rest) = self.0.split_first()?;
            self.0 = rest;
            value |= u64::from(byte & 0x7f).checked_shl(shift)?;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = (u64, Field<'a>);

    fn next(&mut self) -> Option<Self::Item> {
        let key = self.number()?;
        let field = match key & 7 {
            0 => Field::Number(self.number()?),
            1 => Field::Fixed64(self.take(8)?.try_into().ok()?),
            2 => {
                let length = usize::try_from(self.number()?).ok()?;
                Field::Bytes(self.take(length)?)
            }
            5 => Field::Fixed32(self.take(4)?.try_into().ok()?),
            _ => return None,
        };
        Some((key >> 3, field))
    }
}

/// Messages for the tests of their readers.
#[cfg(test)]
pub mod written {
    pub fn varint(mut value: u64) -> Vec<u8> {
        let mut out = Vec::new();
        while value >= 0x80 {
            out.push(value as u8 | 0x80);
            value >>= 7;
        }
        out.push(value as u8);
        out
    }

    pub fn bytes_field(number: u64, bytes: &[u8]) -> Vec<u8> {
        [varint(number << 3 | 2), varint(bytes.len() as u64), bytes.to_vec()].concat()
    }
}
