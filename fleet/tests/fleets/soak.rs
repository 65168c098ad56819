//! The soak's short form: twenty kills under a running queue, with the check of the history.

use crate::support::{TestResult, built};
use gangline_fleet::soak::kills::{self, Options, Victim};

/// No acknowledged job lost, none doubled, every rank ran once, nothing left behind.
#[tokio::test]
async fn twenty_kills_under_a_running_queue() -> TestResult {
    let options = Options { seed: 1, cycles: 9, both: 2, agents: 2, clients: 3 };
    let mut fleet = kills::fleet(built().await?, options.agents).await?;
    let report = kills::run(&mut fleet, options, &mut |text| eprintln!("{text}")).await?;
    // Without these the soak shows nothing.
    let kills = |victim| report.kills.get(&victim).map_or(0, |tally| tally.kills);
    assert_eq!([Victim::Coordinator, Victim::Agent, Victim::Both].map(kills), [9, 9, 2]);
    assert_eq!(report.looks, 2);
    assert!(report.jobs > 40 && report.cancelled > 0, "{report:?}");
    assert!(report.queue > 4, "jobs waited at the kills: {report:?}");
    Ok(())
}
