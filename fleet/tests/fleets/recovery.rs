//! Real trainings that run into faults: what a person need not mend goes on by itself, and what a
//! person must mend is explained. `cargo recover` makes the whole table.

mod support;

use gangline_fleet::fleet::AgentOptions;
use gangline_fleet::recovery::{Fault, Recovered, recover};
use gangline_fleet::slots;
use support::{TestResult, ray_fleet};

async fn into(fault: Fault) -> anyhow::Result<Recovered> {
    let mut fleet = ray_fleet().await?;
    fleet.add_agent(AgentOptions::worker("c", 4)).await?;
    let _slot = slots::heavy().await?;
    let found = recover(&fleet, fault).await?;
    println!("{found:?}");
    fleet.assert_clean().await?;
    Ok(found)
}

#[tokio::test]
async fn a_training_goes_on_after_its_raylet_was_killed() -> TestResult {
    let found = into(Fault::RayletKilled).await?;
    assert!(found.verdict.starts_with(Fault::RayletKilled.category()), "{found:?}");
    assert!(found.resume.is_some() && found.done.starts_with("tried again"), "{found:?}");
    Ok(())
}

#[tokio::test]
async fn a_training_goes_on_elsewhere_after_an_xid() -> TestResult {
    let found = into(Fault::Xid).await?;
    assert!(found.resume.is_some() && found.verdict.contains("Xid 79"), "{found:?}");
    Ok(())
}

#[tokio::test]
async fn what_a_user_must_mend_is_explained_and_not_tried_again() -> TestResult {
    let found = into(Fault::MissingData).await?;
    assert!(found.verdict.starts_with(Fault::MissingData.category()), "{found:?}");
    assert_eq!((found.state.as_str(), found.start), ("FAILED", None), "{found:?}");
    assert!(found.done.starts_with("not tried again"), "{found:?}");
    Ok(())
}
