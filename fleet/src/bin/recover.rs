//! `cargo recover`: one real training after another runs into a fault; the table says what was
//! found, what was done, and where the time went. With words: only the faults that they name.

use anyhow::Context;
use gangline_fleet::build::binaries;
use gangline_fleet::recovery::{Fault, Stage, recover};

fn main() -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    runtime.context("runtime")?.block_on(table())
}

async fn table() -> anyhow::Result<()> {
    let binaries = binaries(false).await?;
    println!(
        "| fault | verdict | action | done | state | detect s | stop s | Ray start s | to a step s | all s |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|");
    let words: Vec<String> = std::env::args().skip(1).collect();
    let wanted = |fault: &Fault| {
        words.is_empty() || words.iter().any(|word| fault.name().contains(word.as_str()))
    };
    for fault in Fault::ALL.into_iter().filter(wanted) {
        if let Some(missing) = Stage::missing(fault) {
            println!("| {} | skipped: {missing} | | | | | | | | |", fault.name());
            continue;
        }
        // A fleet each, so that nothing of one fault is left for the next.
        let stage = Stage::new(fault, binaries.clone()).await?;
        let recovered = recover(&stage, fault).await.with_context(|| fault.name())?;
        let (found, times) = (&recovered.found, &recovered.times);
        let seconds = |time: Option<std::time::Duration>| {
            time.map_or_else(|| "-".to_owned(), |time| format!("{:.1}", time.as_secs_f64()))
        };
        let parts = [Some(times.detect), Some(times.stop), times.start, times.resume];
        let all = parts.into_iter().flatten().sum();
        println!(
            "| {} | {} | {} | {} | {} | {} | {} |",
            fault.name(),
            found.verdict,
            found.action,
            found.done,
            recovered.state,
            parts.map(seconds).join(" | "),
            seconds(Some(all))
        );
        stage.assert_clean().await?;
    }
    Ok(())
}
