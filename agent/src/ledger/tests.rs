//! The ledger gives back what was written, or refuses.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use gangline_common::ids::{GpuId, MemberId};

use super::*;
use crate::core::assignment::Refusal;
use crate::sample::{assignment, epoch, gang, generation};

/// A listed gang that runs, an unlisted one that still runs, a stop, and a refused member.
fn content() -> Content {
    let mut content = Content::default();
    let durable = &mut content.durable;
    durable.held = generation(7);
    for (name, n) in [("listed", 2), ("unlisted", 1)] {
        content.assignments.insert((gang(name), epoch(n)), Arc::new(assignment(name)));
        let key = MemberKey { gang: gang(name), epoch: epoch(n), member: MemberId::Head };
        let gpus = vec![GpuId(format!("GPU-{name}"))];
        let row = MemberRow { gpus, grace: Duration::from_secs(9), refused: None };
        durable.members.insert(key.clone(), row.clone());
        durable.members.insert(MemberKey { member: MemberId::Rank(1), ..key }, row);
        let seen = Seen { epoch: epoch(n), closed: n == 1, listed: generation(3) };
        durable.seen.insert(gang(name), seen);
    }
    let run = v1::DesiredGang {
        gang: gang("listed"),
        epoch: epoch(2),
        order: v1::Order::Run(Box::new(assignment("listed"))),
    };
    let stop = v1::DesiredGang {
        gang: gang("stop"),
        epoch: epoch(5),
        order: v1::Order::Stop { keep_scene: false },
    };
    for wire in [run, stop] {
        durable.desired.insert(wire.gang.clone(), gang_order(&wire).unwrap());
    }
    let refused = MemberKey { gang: gang("stop"), epoch: epoch(1), member: MemberId::Head };
    let row = MemberRow {
        gpus: vec![],
        grace: Duration::ZERO,
        refused: Some(Refusal::StaleEpoch { highest: epoch(5) }),
    };
    durable.members.insert(refused, row);
    content
}

#[test]
fn a_first_start_is_empty() {
    let directory = tempfile::tempdir().unwrap();
    let (_, read) = Ledger::open(directory.path()).unwrap();
    assert_eq!(read, Content::default());
}

#[test]
fn everything_comes_back_and_is_private() {
    use std::os::unix::fs::PermissionsExt;

    let directory = tempfile::tempdir().unwrap();
    let (ledger, _) = Ledger::open(directory.path()).unwrap();
    let written = content();
    ledger.write(&written.durable, &written.assignments).unwrap();
    let (_, read) = Ledger::open(directory.path()).unwrap();
    assert_eq!(read, written);
    // It holds Ray's token.
    let mode = fs::metadata(ledger.path()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn assignments_that_nobody_needs_are_left_out() {
    let directory = tempfile::tempdir().unwrap();
    let (ledger, _) = Ledger::open(directory.path()).unwrap();
    let mut written = content();
    let stale = (gang("gone"), epoch(1));
    written.assignments.insert(stale.clone(), Arc::new(assignment("gone")));
    ledger.write(&written.durable, &written.assignments).unwrap();
    let (_, read) = Ledger::open(directory.path()).unwrap();
    assert!(!read.assignments.contains_key(&stale));
    assert_eq!(read.assignments.len(), 2);
}

#[test]
fn an_assignment_that_is_missing_is_not_written_around() {
    let directory = tempfile::tempdir().unwrap();
    let (ledger, _) = Ledger::open(directory.path()).unwrap();
    let error = ledger.write(&content().durable, &Assignments::new()).unwrap_err();
    assert!(matches!(error, LedgerError::MissingAssignment { .. }), "{error}");
    assert!(!ledger.path().exists());
}

/// A ledger that was written twice: what is in it before and after the second write.
fn written_twice(directory: &Path) -> (Content, Content) {
    let (ledger, _) = Ledger::open(directory).unwrap();
    let before = Content::default();
    ledger.write(&before.durable, &before.assignments).unwrap();
    let after = content();
    ledger.write(&after.durable, &after.assignments).unwrap();
    (before, after)
}

#[test]
fn a_write_that_was_torn_anywhere_leaves_the_state_before_it() {
    let directory = tempfile::tempdir().unwrap();
    let (before, after) = written_twice(directory.path());
    let path = directory.path().join("ledger/state");
    let good = fs::read(&path).unwrap();
    assert_eq!(slots::newest(&path), (1, good.len() / 2));
    let slot = good.len() / 2;
    let end = good.iter().rposition(|&byte| byte != 0).unwrap() + 1;
    for at in slot..end {
        let mut torn = good.clone();
        torn[at..end].fill(0);
        fs::write(&path, &torn).unwrap();
        let (_, read) = Ledger::open(directory.path()).unwrap();
        // A last byte that is zero may be missing without a difference.
        assert!(read == before || torn == good, "torn at {}", at - slot);
        let mut flipped = good.clone();
        flipped[at] ^= 0x10;
        fs::write(&path, &flipped).unwrap();
        assert_eq!(Ledger::open(directory.path()).unwrap().1, before, "flipped at {}", at - slot);
    }
    fs::write(&path, &good).unwrap();
    assert_eq!(Ledger::open(directory.path()).unwrap().1, after);
}

#[test]
fn a_ledger_without_a_sound_slot_is_refused_by_name() {
    let directory = tempfile::tempdir().unwrap();
    written_twice(directory.path());
    let path = directory.path().join("ledger/state");
    let good = fs::read(&path).unwrap();
    let refuse = |bytes: &[u8], what: &str| {
        fs::write(&path, bytes).unwrap();
        match Ledger::open(directory.path()) {
            Err(error @ LedgerError::Damaged { .. }) => {
                assert!(error.to_string().contains("ledger/state"), "{error}");
            }
            other => panic!("{what}: {other:?}"),
        }
    };
    let slot = good.len() / 2;
    for at in 0..28 {
        let mut bytes = good.clone();
        bytes[at] ^= 0x10;
        bytes[slot + at] ^= 0x10;
        refuse(&bytes, &format!("both flipped at {at}"));
    }
    for length in [0, 1, 4096, slot - 1, slot, slot + 1, good.len() - 1] {
        refuse(&good[..length], &format!("cut to {length}"));
    }
    refuse(&vec![0; good.len()], "zeros");
    refuse(&[good[..slot].to_vec(), good[..slot].to_vec()].concat(), "one slot twice");
    refuse(&[good.clone(), vec![0]].concat(), "longer");
}

#[test]
fn the_file_grows_and_the_last_write_counts() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("state");
    let (mut file, none) = Slots::open(path.clone()).unwrap();
    assert_eq!(none, None);
    for round in 0..40_u8 {
        // Up and down, across the limits of slots of 64, 128 and 256 KiB.
        let body = vec![round; usize::from(round % 7) * 30_000];
        file.write(&body).unwrap();
        let (again, read) = Slots::open(path.clone()).unwrap();
        assert_eq!(read.as_deref(), Some(body.as_slice()), "round {round}");
        if round % 3 == 0 {
            file = again;
        }
    }
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
}

#[test]
fn a_crash_before_the_rename_leaves_the_old_state() {
    let directory = tempfile::tempdir().unwrap();
    let (_, written) = written_twice(directory.path());
    fs::write(directory.path().join("ledger/state.new"), b"half a ledg").unwrap();
    let (ledger, read) = Ledger::open(directory.path()).unwrap();
    assert_eq!(read, written);
    ledger.write(&Durable::default(), &Assignments::new()).unwrap();
    assert_eq!(Ledger::open(directory.path()).unwrap().1, Content::default());
}
