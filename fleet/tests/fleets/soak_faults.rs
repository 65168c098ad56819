//! The short form of the soak with faults: one of three kinds each under a training on real Ray, with what
//! the soak checks in the end.

use crate::support::{TestResult, built, has_namespaces};
use anyhow::Context;
use gangline_fleet::recovery::Fault;
use gangline_fleet::slots;
use gangline_fleet::soak::faults::{self, Kind, Options};

#[tokio::test]
async fn a_training_goes_on_after_each_of_three_faults() -> TestResult {
    if !has_namespaces() {
        return Ok(());
    }
    let deck = vec![(Kind::Raylet, 1), (Kind::Agent, 1), (Kind::Cut, 1)];
    // A seed of short waits.
    let options = Options { seed: 58, faults: 3, trainings: 1, deck };
    let ground = faults::ground(built().await?, options.trainings).await?;
    let _slot = slots::heavy().await?;
    let report = faults::run(ground, options, |line| eprintln!("{line}")).await?;
    eprint!("{}", report.table());
    let mut kinds: Vec<Kind> = report.met.iter().map(|met| met.kind).collect();
    kinds.sort_unstable();
    assert_eq!(kinds, [Kind::Raylet, Kind::Agent, Kind::Cut]);
    let killed = report.met.iter().find(|met| met.kind == Kind::Raylet);
    let found = killed.and_then(|met| met.found.as_ref()).context("no verdict")?;
    assert!(found.verdict.starts_with(Fault::RayletKilled.category()), "{found:?}");
    assert!(found.done.starts_with("tried again"), "{found:?}");
    assert!(report.steps >= 15 && report.attempts >= 2, "{report:?}");
    Ok(())
}
