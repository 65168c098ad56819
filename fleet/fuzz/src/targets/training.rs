//! What jobs write and Gangline reads of its own accord: the files of trackers, lines of a training, and
//! logs that are diagnosed.

use std::rc::Rc;

use gangline_diagnosis::{Case, Category, Rules, Source};
use gangline_training::{
    Feed, MAX_NAME_BYTES, MAX_VALUES, Reading, Scanned, scan as scan_events, scan_run,
};

use super::{Memory, Target, Verdict, bytes_of};

/// A record's values, and what a reader holds of one record.
const RECORD: Memory = Memory { fixed: 256 << 10, per_byte: 64 };
/// Of all expressions of the rules.
const LOG: Memory = Memory { fixed: 64 << 20, per_byte: 256 };

/// The history of a run as W&B writes it, of which the first record is behind the head.
const RUN: &[u8] = include_bytes!("../../../../training/src/runs/run-sample.wandb");
const HEAD: usize = 7;

pub fn targets() -> anyhow::Result<Vec<Target>> {
    Ok(vec![event(), event_file(), run(), run_file(), lines(), log()?])
}

/// What a reader may find; nothing at all is a refusal.
#[derive(Default)]
struct Found {
    readings: usize,
    broken: Option<String>,
}

impl Found {
    fn note(&mut self, reading: &Reading) {
        self.readings += 1;
        let longest = reading.values.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
        if reading.values.len() > MAX_VALUES || longest > MAX_NAME_BYTES {
            self.broken = Some(format!("{} values, a name of {longest}", reading.values.len()));
        }
    }

    /// Of what a reader made of `input`.
    fn by(input: &[u8], read: impl FnOnce(&mut dyn FnMut(Reading)) -> Scanned) -> Verdict {
        let mut found = Found::default();
        let scanned = read(&mut |reading| found.note(&reading));
        found.verdict(scanned, input)
    }

    fn verdict(self, scanned: Scanned, input: &[u8]) -> Verdict {
        if scanned.used > input.len() as u64 {
            return Verdict::Broken(format!("{scanned:?} of {} bytes", input.len()));
        }
        match (self.broken, self.readings) {
            (Some(broken), _) => Verdict::Broken(broken),
            (None, 0) => Verdict::Refused,
            (None, _) => Verdict::Taken,
        }
    }
}

// ---------------------------------------------------------------- TensorBoard

/// `Event { step: 7, summary: { value: { tag: "loss", simple_value: 0.5 } } }`, and the same as a tensor.
const EVENTS: [&[u8]; 2] = [
    b"\x10\x07\x2a\x0d\x0a\x0b\x0a\x04loss\x15\x00\x00\x00\x3f",
    b"\x10\x07\x2a\x12\x0a\x10\x0a\x04loss\x42\x08\x08\x01\x22\x04\x00\x00\x00\x3f",
];
const OF_PROTOBUF: &[&[u8]] =
    &[b"\x0a\x04loss", b"\x42\x02\x08\x01", b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", b"\x2a"];

fn event() -> Target {
    Target {
        name: "TensorBoard's events",
        seeds: EVENTS.map(<[u8]>::to_vec).to_vec(),
        words: OF_PROTOBUF,
        limit: 16 << 10,
        memory: RECORD,
        feed: Box::new(|input| of_events(&event_record(input))),
    }
}

fn event_file() -> Target {
    Target {
        name: "TensorBoard's files",
        seeds: vec![EVENTS.map(event_record).concat()],
        words: &[b"\0\0\0\0\0\0\0\0", b"\x15"],
        limit: 16 << 10,
        memory: RECORD,
        feed: Box::new(of_events),
    }
}

fn of_events(input: &[u8]) -> Verdict {
    Found::by(input, |each| scan_events(input, each))
}

fn event_record(body: &[u8]) -> Vec<u8> {
    let length = (body.len() as u64).to_le_bytes();
    [&length[..], &check(&length), body, &check(body)].concat()
}

/// CRC-32C in the form of TensorFlow's records, bit by bit.
fn check(bytes: &[u8]) -> [u8; 4] {
    let mut crc = u32::MAX;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = if crc & 1 == 1 { (crc >> 1) ^ 0x82f6_3b78 } else { crc >> 1 };
        }
    }
    (!crc).rotate_right(15).wrapping_add(0xa282_ead8).to_le_bytes()
}

// ---------------------------------------------------------------- W&B

/// Beginning with the records of [`RUN`] that have numbers.
fn run() -> Target {
    let has_numbers = |record: &Vec<u8>| of_run(&run_of(record)) == Verdict::Taken;
    Target {
        name: "W&B's records",
        seeds: records(RUN).into_iter().filter(has_numbers).collect(),
        words: &[b"\x82\x01\x03NaN", b"\x12\x04loss", b"\x12\x05_type", b"\xff\xff\xff\xff\x0f"],
        limit: 16 << 10,
        memory: RECORD,
        feed: Box::new(|input| of_run(&run_of(input))),
    }
}

fn run_file() -> Target {
    Target {
        name: "W&B's files",
        seeds: vec![RUN.to_vec()],
        words: &[b":W&B\xe1\xbe", b"\x01", b"\0\0\0\0\0\0\0"],
        limit: 64 << 10,
        memory: RECORD,
        feed: Box::new(of_run),
    }
}

fn of_run(input: &[u8]) -> Verdict {
    Found::by(input, |each| scan_run(input, 0, each))
}

/// What is in the chunks of a file that has one block.
fn records(file: &[u8]) -> Vec<Vec<u8>> {
    let mut records = Vec::new();
    let mut rest = file.get(HEAD..).unwrap_or_default();
    while let Some((head, after)) = rest.split_at_checked(HEAD) {
        let length = head.get(4..6).and_then(|length| length.try_into().ok());
        let length = usize::from(u16::from_le_bytes(length.unwrap_or_default()));
        let Some((body, after)) = after.split_at_checked(length) else { break };
        records.push(body.to_vec());
        rest = after;
    }
    records
}

/// A file of one whole record.
fn run_of(record: &[u8]) -> Vec<u8> {
    const WHOLE: u8 = 1;
    let checked = [&[WHOLE], record].concat();
    let sum = crc32fast::hash(&checked).to_le_bytes();
    let length = u16::try_from(record.len()).unwrap_or(u16::MAX).to_le_bytes();
    let head = RUN.get(..HEAD).unwrap_or_default();
    [head, &sum, &length, &checked].concat()
}

// ---------------------------------------------------------------- text

fn lines() -> Target {
    let good = [
        "step:4 - actor/pg_loss:0.5 - critic/score/mean:nan\n",
        "{'loss': 0.5, 'grad_norm': 1.25, 'epoch': 0.1}\n 10%|#  | 3/30 [00:01<00:09, 2.00it/s]\n",
        " iteration  5426/ 250000 | lm loss: 2.1E+00 | grad norm: 0.4 |\n",
    ];
    Target {
        name: "lines of a training",
        seeds: bytes_of(&good),
        words: &[b"\r", b"\n", b"step:", b"1e309", b" - ", b"|", b"\xff", b"nan"],
        limit: 16 << 10,
        // The expressions' own memory is made by the first lines.
        memory: Memory { fixed: 2 << 20, per_byte: 64 },
        feed: Box::new(|input| {
            Found::by(input, |each| {
                Feed::default().take(input, each);
                Scanned::default()
            })
        }),
    }
}

fn log() -> anyhow::Result<Target> {
    let rules = Rc::new(Rules::built_in()?);
    let good = [
        "Traceback (most recent call last):\n  File \"/w/t.py\", line 3, in <module>\nKeyError: 'x'\n",
        "[rank3]:[E323 04:09:11.250257 ProcessGroupNCCL.cpp:607] Watchdog caught collective \
         operation timeout: WorkNCCL(SeqNum=1, Timeout(ms)=600000)\n",
        "{\"log\":\"torch.OutOfMemoryError: CUDA out of memory\",\"rank\":3}\n",
        "step 3 loss: 0.1\nNVRM: Xid (PCI:0000:61:00): 79, GPU has fallen off the bus.\n",
    ];
    Ok(Target {
        name: "logs, diagnosed",
        seeds: bytes_of(&good),
        words: &[
            b"Traceback (most recent call last):\n",
            b"During handling of the above exception, another exception occurred:\n",
            b"\n\n",
            b"\x1b[31m",
            b"[rank9]: ",
            b"2025-03-23T04:09:11.250Z ",
            b"(Worker pid=3) ",
            b"\"\"\"",
            b"retrying",
        ],
        limit: 16 << 10,
        memory: LOG,
        feed: Box::new(move |input| {
            let mut case = Case::new(&rules);
            case.read(&Source::whole("log", input));
            let answer = case.conclude();
            if !(0.0..=1.0).contains(&answer.confidence) || answer.certain {
                return Verdict::Broken(format!("{answer:?}"));
            }
            match answer.category {
                Category::Unknown => Verdict::Refused,
                _ => Verdict::Taken,
            }
        }),
    })
}
