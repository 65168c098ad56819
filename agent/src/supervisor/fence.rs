//! What the shim of a member needs to know to stop it by itself.

use std::net::SocketAddr;

use gangline_common::ids::MemberId;
use gangline_common::wire::v1::{Launcher, OnDisconnect, Refusal};

use super::MemberPlan;
use super::command::{EPOCH_LABEL, GANG_LABEL, Places};
use super::member::RAY_GRACE;
use super::ports::{self, FixedPort};
use crate::shim::fence::{Fence, Sight};

/// `None` for a member that never stops by itself. A start without any contact is one whose time is
/// over.
///
/// Errors: [`Refusal::Impossible`] when the assignment names no head to look for.
pub fn of(
    plan: &MemberPlan,
    places: &Places,
    contact_ms: Option<u64>,
) -> Result<Option<Fence>, Refusal> {
    let assignment = &plan.assignment;
    let (after_ms, sight) = match assignment.on_disconnect {
        OnDisconnect::Keep => return Ok(None),
        OnDisconnect::StopAfter { after_ms } => (after_ms, None),
        OnDisconnect::Fence { after_ms } => (after_ms, Some(sight(plan, places)?)),
    };
    // Ray is not asked to end the job first: who could ask is not there.
    let grace_ms = match assignment.launcher {
        Launcher::Command => assignment.grace_ms,
        Launcher::Ray => assignment.grace_ms.min(RAY_GRACE.as_millis() as u64),
    };
    Ok(Some(Fence { after_ms, grace_ms, contact_ms: contact_ms.unwrap_or(0), sight }))
}

fn sight(plan: &MemberPlan, places: &Places) -> Result<Sight, Refusal> {
    let assignment = &plan.assignment;
    let port = |port| {
        ports::fixed(assignment.head_ports, port).ok_or_else(|| Refusal::Impossible {
            reason: "the head has no ports, so that nobody could see whether the gang is whole"
                .to_owned(),
        })
    };
    let on_node_of_head = plan.key.member == MemberId::Head
        || assignment.members.iter().any(|member| member.member == MemberId::Head);
    if !on_node_of_head {
        let address = SocketAddr::new(assignment.head_address, port(FixedPort::Gcs)?);
        return Ok(Sight::Gcs { address });
    }
    Ok(Sight::Nodes {
        dashboard_port: port(FixedPort::Dashboard)?,
        token: places.token.clone(),
        members: assignment.nnodes.saturating_add(1),
        labels: vec![
            (GANG_LABEL.to_owned(), plan.key.gang.to_string()),
            (EPOCH_LABEL.to_owned(), plan.key.epoch.to_string()),
        ],
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use gangline_common::wire::v1::Assignment;

    use super::*;
    use crate::supervisor::fixtures;
    use crate::supervisor::spool::Spool;

    fn fence(member: MemberId, change: impl FnOnce(&mut Assignment)) -> Option<Fence> {
        let (mut plan, config) = fixtures::ray_plan(member);
        change(Arc::make_mut(&mut plan.assignment));
        of(&plan, &Spool::of(&plan, &config).places, Some(7)).unwrap()
    }

    #[test]
    fn the_head_asks_ray_and_ranks_elsewhere_ask_for_the_head() {
        let rank = fence(MemberId::Rank(1), |_| {}).unwrap();
        let address = "127.0.0.2:20000".parse().unwrap();
        assert_eq!(rank.sight, Some(Sight::Gcs { address }));
        assert_eq!((rank.after_ms, rank.grace_ms, rank.contact_ms), (60_000, 5_000, 7));
        let head = fence(MemberId::Head, |_| {}).unwrap();
        let Some(Sight::Nodes { dashboard_port, members, labels, .. }) = &head.sight else {
            panic!("{head:?}");
        };
        assert_eq!((*dashboard_port, *members), (20_001, 3));
        assert_eq!(labels[1], ("gangline-epoch".to_owned(), "1.1".to_owned()));
        let beside = fence(MemberId::Rank(0), |assignment| {
            let (head, _) = fixtures::ray_plan(MemberId::Head);
            assignment.members = vec![head.member];
        });
        let Some(Sight::Nodes { dashboard_port, members, .. }) = beside.unwrap().sight else {
            panic!("all of the head's node see the same");
        };
        assert_eq!((dashboard_port, members), (20_001, 3));
    }

    #[test]
    fn other_policies_do_not_look() {
        let stop = |a: &mut Assignment| {
            a.on_disconnect = OnDisconnect::StopAfter { after_ms: 30_000 };
            a.launcher = Launcher::Command;
        };
        let fence_of = fence(MemberId::Rank(0), stop).unwrap();
        assert_eq!((fence_of.after_ms, fence_of.grace_ms), (30_000, 30_000));
        assert_eq!(fence_of.sight, None);
        assert_eq!(fence(MemberId::Rank(0), |a| a.on_disconnect = OnDisconnect::Keep), None);
    }
}
