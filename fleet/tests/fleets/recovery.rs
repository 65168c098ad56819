//! Real trainings that run into faults: what a person need not mend goes on by itself, and what a
//! person must mend is explained. `cargo recover` makes the whole table; `soak_faults.rs` has more of the first kind.

use crate::support::{TestResult, built};
use gangline_fleet::recovery::{Fault, Recovered, Stage, recover};
use gangline_fleet::slots;

async fn into(fault: Fault) -> anyhow::Result<Recovered> {
    let stage = Stage::new(fault, built().await?).await?;
    let _slot = slots::heavy().await?;
    let found = recover(&stage, fault).await?;
    println!("{found:?}");
    stage.assert_clean().await?;
    Ok(found)
}

#[tokio::test]
async fn a_training_goes_on_elsewhere_after_an_xid() -> TestResult {
    let Recovered { found, times, .. } = into(Fault::Xid).await?;
    assert!(times.resume.is_some() && found.verdict == "gpu_hardware (xid)", "{found:?}");
    assert!(found.done.starts_with("goes on"), "{found:?}");
    Ok(())
}

#[tokio::test]
async fn what_a_user_must_mend_is_explained_and_not_tried_again() -> TestResult {
    let Recovered { found, times, state, .. } = into(Fault::MissingData).await?;
    assert!(found.verdict.starts_with(Fault::MissingData.category()), "{found:?}");
    assert_eq!((state.as_str(), times.start), ("FAILED", None), "{found:?}");
    assert!(found.done.starts_with("not tried again"), "{found:?}");
    Ok(())
}
