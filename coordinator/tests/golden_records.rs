//! The store is what these literal bytes say: bincode does not describe itself, so a reordered
//! field would be read as something else without a word. And what is not such bytes is refused.

mod records;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::sync::Arc;

use gangline_coordinator::core::credential::{ApiTokenRecord, Role};
use gangline_coordinator::core::effect::Write;
use gangline_coordinator::core::gang::{EndHow, Gang, GangState, Phase};
use gangline_coordinator::core::idle::IdlePolicy;
use gangline_coordinator::core::job::{Attempt, Job, JobState, Outcome};
use gangline_coordinator::core::node::{Lifecycle, Node};
use gangline_coordinator::core::projects::ProjectRecord;
use gangline_coordinator::store::record;
use proptest::prelude::*;
use records::{Golden, Value, values};

/// Layout and checksum come before the body.
const HEAD: usize = 5;
const TABLES: [&str; 16] = [
    "join_tokens",
    "api_tokens",
    "secrets",
    "projects",
    "usage",
    "pools",
    "webhooks",
    "deliveries",
    "idempotency",
    "nodes",
    "jobs",
    "attempts",
    "gangs",
    "accounts",
    "node_tests",
    "rule_trials",
];

/// Both byte strings around the first difference, for the failure message.
fn difference(golden: &[u8], now: &[u8]) -> String {
    let at = golden.iter().zip(now).skip(HEAD).take_while(|(a, b)| a == b).count() + HEAD;
    let window = |bytes: &[u8]| {
        let end = bytes.len().min(at + 16);
        data_encoding::HEXLOWER.encode(bytes.get(at..end).unwrap_or_default())
    };
    let mut text = String::new();
    let _ = writeln!(text, "first difference after the checksum at byte {at}");
    let _ = writeln!(text, "  golden: .. {} ({} bytes)", window(golden), golden.len());
    let _ = writeln!(text, "  now:    .. {} ({} bytes)", window(now), now.len());
    let _ = writeln!(text, "  whole:  {}", data_encoding::HEXLOWER.encode(now));
    text
}

/// A record of a layout with this body and a right checksum.
fn sealed(layout: u8, body: &[u8]) -> Vec<u8> {
    let mut bytes = vec![layout];
    bytes.extend_from_slice(&crc32fast::hash(body).to_le_bytes());
    bytes.extend_from_slice(body);
    bytes
}

fn refusal(golden: &Golden, bytes: &[u8]) -> String {
    match golden.value.decode_like(bytes) {
        Ok(value) => panic!("{} was accepted as {value:?}", golden.name),
        Err(reason) => reason,
    }
}

#[test]
fn records_are_their_golden_bytes() {
    for golden in records::all() {
        let name = golden.name;
        let stored = golden.stored();
        let now = golden.value.encode();
        assert!(now == stored, "encoding {name}: {}", difference(&stored, &now));
        let decoded = golden.value.decode_like(&stored);
        assert_eq!(decoded.as_ref(), Ok(&golden.value), "decoding {name}");
    }
}

/// What was written before there were expiries and more roles than two is still read.
#[test]
fn tokens_of_the_first_layout_are_read() {
    for (hex, name, role) in [
        (records::bytes::API_TOKEN_V1_ADMIN, "root", Role::Admin),
        (records::bytes::API_TOKEN_V1_MEMBER, "alice", Role::Member),
    ] {
        let value = values::api_token(name, role);
        let value = Write::ApiToken(ApiTokenRecord { expires_wall_ms: None, ..value });
        let old = Golden { name: "old", hex, value: Value::Row("api_tokens", value) };
        assert_eq!(old.value.decode_like(&old.stored()).as_ref(), Ok(&old.value));
    }
}

/// And what was written before projects said anything about idle GPUs.
#[test]
fn projects_of_the_first_layout_are_read() {
    let value = ProjectRecord { idle: IdlePolicy::default(), ..values::project() };
    let value = Value::Row("projects", Write::Project(value));
    let old = Golden { name: "old", hex: records::bytes::PROJECT_V1, value };
    assert_eq!(old.value.decode_like(&old.stored()).as_ref(), Ok(&old.value));
}

#[test]
fn every_table_has_a_golden() {
    let goldens = records::all();
    let tables: BTreeSet<&str> = goldens
        .iter()
        .filter_map(|golden| match golden.value {
            Value::Row(table, _) => Some(table),
            Value::Meta(..)
            | Value::Audit(_)
            | Value::Notice(_)
            | Value::Spent(_)
            | Value::Vacancy(_) => None,
        })
        .collect();
    assert_eq!(tables, BTreeSet::from(TABLES));
}

/// The only byte of the body in which two records differ, as (position, before, after).
fn one_byte(before: &[u8], after: &[u8]) -> (usize, u8, u8) {
    assert_eq!(before.len(), after.len());
    let mut differing =
        before.iter().zip(after).enumerate().skip(HEAD).filter(|(_, (a, b))| a != b);
    let (at, (a, b)) = differing.next().expect("a difference");
    assert_eq!(differing.next(), None);
    (at, *a, *b)
}

#[test]
fn job_states_have_their_numbers() {
    use JobState::*;
    let states =
        [Pending, Starting, Running, Stopping, Held, Succeeded, Failed, Cancelled, Timeout];
    let encode = |state| record::encode_job(&Job { state, ..values::job_waiting() }).unwrap();
    let numbers = states.iter().skip(1).map(|state| one_byte(&encode(Pending), &encode(*state)));
    let numbers: Vec<(usize, u8, u8)> = numbers.collect();
    let at = numbers[0].0;
    assert_eq!(numbers, (1..9).map(|number| (at, 0, number)).collect::<Vec<_>>());
    for state in states {
        let job = Arc::new(Job { state, ..values::job_waiting() });
        assert_eq!(record::decode("jobs", &encode(state)), Ok(Write::Job(job)));
    }
}

#[test]
fn gang_states_have_their_numbers() {
    use GangState::*;
    let encode =
        |state| record::encode_gang(&Gang { state, ..values::gang_every_phase() }).unwrap();
    for (number, state) in (0..).zip([Starting, Ready, Stopping, Stopped]) {
        if state != Starting {
            let (_, before, after) = one_byte(&encode(Starting), &encode(state));
            assert_eq!((before, after), (0, number), "{state:?}");
        }
        let gang = Arc::new(Gang { state, ..values::gang_every_phase() });
        assert_eq!(record::decode("gangs", &encode(state)), Ok(Write::Gang(gang)));
    }
}

#[test]
fn lifecycles_have_their_numbers() {
    use Lifecycle::*;
    let encode =
        |lifecycle| record::encode_node(&Node { lifecycle, ..values::node_new() }).unwrap();
    for (number, lifecycle) in (0..).zip([Pending, Online, Draining, Offline]) {
        if lifecycle != Pending {
            let (_, before, after) = one_byte(&encode(Pending), &encode(lifecycle));
            assert_eq!((before, after), (0, number), "{lifecycle:?}");
        }
        let node = Arc::new(Node { lifecycle, ..values::node_new() });
        assert_eq!(record::decode("nodes", &encode(lifecycle)), Ok(Write::Node(node)));
    }
}

/// The matches have no wildcard: a new variant does not compile until it is named here, and the
/// test fails until a golden uses it.
#[test]
fn every_phase_and_outcome_is_in_a_golden() {
    let mut seen = BTreeSet::new();
    for golden in records::all() {
        let Value::Row(_, write) = golden.value else { continue };
        let outcome = match &write {
            Write::Job(job) => job.outcome.clone(),
            Write::Attempt(attempt) => attempt.outcome.clone(),
            _ => None,
        };
        seen.extend(outcome.map(|outcome| match outcome {
            Outcome::Succeeded => "Succeeded",
            Outcome::Failed { .. } => "Failed",
            Outcome::Cancelled { .. } => "Cancelled",
            Outcome::Preempted { .. } => "Preempted",
            Outcome::TimedOut { .. } => "TimedOut",
            Outcome::Retried { .. } => "Retried",
            Outcome::Evacuated { .. } => "Evacuated",
            Outcome::RolledBack { .. } => "RolledBack",
        }));
        let Write::Gang(gang) = write else { continue };
        seen.extend(gang.members.values().map(|member| match &member.phase {
            Phase::Assigned => "Assigned",
            Phase::Starting => "Starting",
            Phase::Running { .. } => "Running",
            Phase::Stopping => "Stopping",
            Phase::Ended(end) => match end.how {
                EndHow::Exited { .. } => "Ended, Exited",
                EndHow::Signalled { .. } => "Ended, Signalled",
                EndHow::Failed { .. } => "Ended, Failed",
                EndHow::Refused { .. } => "Ended, Refused",
                EndHow::Unfit { .. } => "Ended, Unfit",
                EndHow::GivenUp { .. } => "Ended, GivenUp",
            },
        }));
    }
    let expected = [
        "Assigned",
        "Cancelled",
        "Ended, Exited",
        "Ended, Failed",
        "Ended, GivenUp",
        "Ended, Refused",
        "Ended, Signalled",
        "Ended, Unfit",
        "Evacuated",
        "Failed",
        "Preempted",
        "Retried",
        "RolledBack",
        "Running",
        "Starting",
        "Stopping",
        "Succeeded",
        "TimedOut",
    ];
    assert_eq!(seen, BTreeSet::from(expected));
}

#[test]
fn a_record_that_is_cut_off_is_refused() {
    for golden in records::all() {
        let stored = golden.stored();
        for len in 0..stored.len() {
            let reason = refusal(&golden, &stored[..len]);
            let expected = if len < HEAD { "it is cut off" } else { "its checksum is wrong" };
            assert_eq!(reason, expected, "{} cut to {len}", golden.name);
        }
        // Even where the checksum was made for the shorter body.
        for len in HEAD..stored.len() {
            refusal(&golden, &sealed(stored[0], &stored[HEAD..len]));
        }
    }
}

#[test]
fn a_changed_byte_is_refused() {
    for golden in records::all() {
        let stored = golden.stored();
        for at in 0..stored.len() {
            let mut bytes = stored.clone();
            bytes[at] ^= 0x10;
            let reason = refusal(&golden, &bytes);
            let expected = if at == 0 { "is not known to this build" } else { "checksum is wrong" };
            assert!(reason.contains(expected), "{} at {at}: {reason}", golden.name);
        }
    }
}

#[test]
fn every_other_layout_is_refused() {
    for golden in records::all() {
        let own = golden.stored()[0];
        for version in (0..=u8::MAX).filter(|version| *version != own) {
            let mut bytes = golden.stored();
            bytes[0] = version;
            let reason = refusal(&golden, &bytes);
            // An earlier layout of the same table is known; these bytes are not of it.
            if version > own || version == 0 {
                let expected = format!("record layout {version} is not known to this build");
                assert_eq!(reason, expected);
            }
        }
    }
}

#[test]
fn bytes_after_the_end_are_refused() {
    for golden in records::all() {
        for more in [&[0][..], &[1, 2, 3], &golden.stored()[HEAD..]] {
            let body = [&golden.stored()[HEAD..], more].concat();
            assert_eq!(
                refusal(&golden, &sealed(golden.stored()[0], &body)),
                "it has bytes after its end"
            );
        }
    }
}

/// Wherever a length may stand, a huge one is refused: nothing is allocated by what it says.
#[test]
fn lying_lengths_are_refused() {
    let huge = [&[0xfb, 0xff, 0xff][..], &[0xfc, 0xff, 0xff, 0xff, 0x7f], &[0xfd; 9]];
    for golden in records::all() {
        let stored = golden.stored();
        let body = &stored[HEAD..];
        for lie in huge {
            for at in 0..body.len() {
                let body = [&body[..at], lie, &body[at + 1..]].concat();
                // In the place of a plain number it is just another number.
                if let Ok(value) = golden.value.decode_like(&sealed(stored[0], &body)) {
                    assert_ne!(value, golden.value, "{} at {at}", golden.name);
                }
            }
        }
        // The first field of most records is a text.
        if matches!(golden.value, Value::Row(..)) {
            for lie in huge {
                refusal(&golden, &sealed(stored[0], &[lie, &body[1..]].concat()));
            }
        }
    }
}

#[test]
fn a_record_in_the_wrong_table_is_refused() {
    assert_eq!(
        record::decode("members", &record::encode_gang(&values::gang_every_phase()).unwrap()),
        Err("unknown table members".to_owned())
    );
    for golden in records::all() {
        let Value::Row(own, _) = golden.value else { continue };
        for table in TABLES.into_iter().filter(|table| *table != own) {
            assert!(record::decode(table, &golden.stored()).is_err(), "{} in {table}", golden.name);
        }
    }
}

#[test]
fn names_that_are_no_ids_are_refused() {
    let attempt = record::encode_attempt(&Attempt { ..values::attempt_running() }).unwrap();
    let name = b"j-7f3k2";
    let at = attempt.windows(name.len()).position(|window| window == name).unwrap();
    for bad in [b"j/7f3k2", b"j-7\x1b[2J", b"../..//"] {
        let mut bytes = attempt.clone();
        bytes[at..at + name.len()].copy_from_slice(bad);
        let reason = record::decode("attempts", &sealed(1, &bytes[HEAD..])).unwrap_err();
        assert!(reason.contains("is not a valid job id"), "{reason}");
    }
}

#[test]
fn a_spec_that_is_not_understood_is_refused() {
    let mut job = values::job_waiting();
    Arc::make_mut(&mut job.request).spec_json = r#"{"version":2}"#.to_owned();
    let reason = record::decode("jobs", &record::encode_job(&job).unwrap()).unwrap_err();
    assert!(reason.contains("version"), "{reason}");
}

proptest! {
    /// Arbitrary bytes are an error, never a panic; with a right head they reach the decoders.
    #[test]
    fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
        for table in TABLES {
            prop_assert!(record::decode(table, &bytes).is_err());
            let _ = record::decode(table, &sealed(1, &bytes));
            let _ = record::decode(table, &sealed(2, &bytes));
        }
        prop_assert!(record::decode_meta(&bytes).is_err());
        let _ = record::decode_meta(&sealed(1, &bytes));
    }

    /// Changed records with a right checksum: what is accepted is stored again as it was read,
    /// unless it holds a spec, which is stored in its canonical form.
    #[test]
    fn changed_records_never_panic(
        which in any::<prop::sample::Index>(),
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let goldens = records::all();
        let golden = which.get(&goldens);
        let layout = golden.stored()[0];
        let mut body = golden.stored().split_off(HEAD);
        for (at, byte) in changes {
            let at = at.index(body.len());
            body[at] = byte;
        }
        if let Ok(value) = golden.value.decode_like(&sealed(layout, &body)) {
            prop_assert_eq!(golden.value.decode_like(&value.encode()), Ok(value));
        }
    }
}
