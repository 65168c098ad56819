//! A disk in memory for the tests of the store: it records every I/O, fails on demand, and shows
//! what a crash may leave of them.

use std::io;
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use redb::{BackendError, StorageBackend};

/// What is written as a whole or not at all.
const SECTOR: usize = 512;

/// A repeatable source of chance (xorshift).
pub struct Chance(u64);

impl Chance {
    pub fn new(seed: u64) -> Self {
        let mut chance = Chance(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        for _ in 0..8 {
            chance.next();
        }
        chance
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// From 0 to one below `limit`.
    pub fn below(&mut self, limit: u64) -> u64 {
        (self.next() >> 11) % limit
    }
}

/// One change of the disk.
#[derive(Debug, Clone)]
pub enum Io {
    Write { offset: usize, data: Vec<u8> },
    SetLen(usize),
    Sync,
}

/// Which I/O is answered with an error. It has no effect then.
#[derive(Debug, Clone, Copy)]
pub enum Failure {
    Never,
    Once(usize),
    From(usize),
}

#[derive(Debug)]
struct State {
    bytes: Vec<u8>,
    log: Vec<Io>,
    failure: Failure,
    tried: usize,
}

/// Clones are the same disk.
#[derive(Debug, Clone)]
pub struct Disk(Arc<Mutex<State>>);

impl Disk {
    pub fn new(bytes: Vec<u8>) -> Self {
        let (log, failure, tried) = (Vec::new(), Failure::Never, 0);
        Disk(Arc::new(Mutex::new(State { bytes, log, failure, tried })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn bytes(&self) -> Vec<u8> {
        self.state().bytes.clone()
    }

    /// Every change so far that had an effect.
    pub fn log(&self) -> Vec<Io> {
        self.state().log.clone()
    }

    /// Counts from the next I/O on.
    pub fn fail(&self, failure: Failure) {
        let mut state = self.state();
        (state.failure, state.tried) = (failure, 0);
    }

    fn change(&self, io: Io) -> io::Result<()> {
        let mut state = self.state();
        let at = state.tried;
        state.tried += 1;
        let fails = match state.failure {
            Failure::Never => false,
            Failure::Once(failing) => at == failing,
            Failure::From(failing) => at >= failing,
        };
        if fails {
            return Err(io::Error::other("the disk fails"));
        }
        apply(&mut state.bytes, &io);
        state.log.push(io);
        Ok(())
    }
}

fn apply(bytes: &mut Vec<u8>, io: &Io) {
    match io {
        Io::Write { offset, data } => {
            let end = offset + data.len();
            if bytes.len() < end {
                bytes.resize(end, 0);
            }
            bytes[*offset..end].copy_from_slice(data);
        }
        Io::SetLen(length) => bytes.resize(*length, 0),
        Io::Sync => {}
    }
}

/// The disk after all of these.
pub fn whole(before: &[u8], log: &[Io]) -> Vec<u8> {
    let mut bytes = before.to_vec();
    log.iter().for_each(|io| apply(&mut bytes, io));
    bytes
}

/// The disk when the power went off after these: what was synced, and of each later change nothing,
/// all, or some sectors.
pub fn lossy(before: &[u8], log: &[Io], chance: &mut Chance) -> Vec<u8> {
    let synced = log.iter().rposition(|io| matches!(io, Io::Sync)).map_or(0, |at| at + 1);
    let mut bytes = whole(before, &log[..synced]);
    for io in &log[synced..] {
        match (chance.below(3), io) {
            (0, _) => {}
            (1, Io::Write { offset, data }) => tear(&mut bytes, *offset, data, chance),
            (_, io) => apply(&mut bytes, io),
        }
    }
    bytes
}

fn tear(bytes: &mut Vec<u8>, offset: usize, data: &[u8], chance: &mut Chance) {
    let mut at = 0;
    while at < data.len() {
        let sector = SECTOR - (offset + at) % SECTOR;
        let end = data.len().min(at + sector);
        if chance.below(2) == 0 {
            apply(bytes, &Io::Write { offset: offset + at, data: data[at..end].to_vec() });
        }
        at = end;
    }
}

impl StorageBackend for Disk {
    fn len(&self) -> io::Result<u64> {
        Ok(self.state().bytes.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let state = self.state();
        let start = offset as usize;
        match state.bytes.get(start..start + out.len()) {
            Some(part) => out.copy_from_slice(part),
            None => return Err(io::ErrorKind::UnexpectedEof.into()),
        }
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.change(Io::SetLen(len as usize))
    }

    fn sync_data(&self) -> io::Result<()> {
        self.change(Io::Sync)
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.change(Io::Write { offset: offset as usize, data: data.to_vec() })
    }

    fn try_lock_range(&self, _: Bound<u64>, _: Bound<u64>) -> Result<bool, BackendError> {
        Ok(true)
    }

    fn unlock_range(&self, _: Bound<u64>, _: Bound<u64>) -> Result<(), BackendError> {
        Ok(())
    }
}
