//! The ledger gives back what was written, or refuses.

use std::fs;
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
    let stop = v1::DesiredGang { gang: gang("stop"), epoch: epoch(5), order: v1::Order::Stop };
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

#[test]
fn every_cut_and_every_flipped_byte_is_refused_by_name() {
    let directory = tempfile::tempdir().unwrap();
    let (ledger, _) = Ledger::open(directory.path()).unwrap();
    let written = content();
    ledger.write(&written.durable, &written.assignments).unwrap();
    let good = fs::read(ledger.path()).unwrap();

    let refuse = |bytes: &[u8], what: &str| {
        fs::write(ledger.path(), bytes).unwrap();
        match Ledger::open(directory.path()) {
            Err(error @ LedgerError::Damaged { .. }) => {
                assert!(error.to_string().contains("ledger/state"), "{error}");
            }
            other => panic!("{what}: {other:?}"),
        }
    };
    for length in 0..good.len() {
        refuse(&good[..length], &format!("cut to {length}"));
    }
    for at in 0..good.len() {
        let mut bytes = good.clone();
        bytes[at] ^= 0x10;
        refuse(&bytes, &format!("flipped at {at}"));
    }
    let mut longer = good.clone();
    longer.push(0);
    refuse(&longer, "longer");
}

#[test]
fn a_crash_before_the_rename_leaves_the_old_state() {
    let directory = tempfile::tempdir().unwrap();
    let (ledger, _) = Ledger::open(directory.path()).unwrap();
    let written = content();
    ledger.write(&written.durable, &written.assignments).unwrap();
    fs::write(directory.path().join("ledger/state.new"), b"half a ledg").unwrap();
    let (ledger, read) = Ledger::open(directory.path()).unwrap();
    assert_eq!(read, written);
    ledger.write(&Durable::default(), &Assignments::new()).unwrap();
    assert_eq!(Ledger::open(directory.path()).unwrap().1, Content::default());
}
