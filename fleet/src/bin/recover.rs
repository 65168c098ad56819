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
        "| fault | verdict | action | done | state | detect s | stop s | fence s | deliver s | Ray start s | \
         to a step s | all s |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|---|");
    let (mut delivered, mut without_ray) = (Vec::new(), Vec::new());
    let words: Vec<String> = std::env::args().skip(1).collect();
    let wanted = |fault: &Fault| {
        words.is_empty() || words.iter().any(|word| fault.name().contains(word.as_str()))
    };
    for fault in Fault::ALL.into_iter().filter(wanted) {
        if let Some(missing) = Stage::missing(fault) {
            println!("| {} | skipped: {missing} | | | | | | | | | | |", fault.name());
            continue;
        }
        // A fleet each, so that nothing of one fault is left for the next.
        let stage = Stage::new(fault, binaries.clone()).await?;
        let recovered = recover(&stage, fault).await.with_context(|| fault.name())?;
        let (found, times) = (&recovered.found, &recovered.times);
        let seconds = |time: Option<std::time::Duration>| {
            time.map_or_else(|| "-".to_owned(), |time| format!("{:.1}", time.as_secs_f64()))
        };
        // What is delivered is assigned a moment before: that moment is a part of the fence.
        let parts =
            [Some(times.detect), Some(times.stop), Some(times.fence), times.start, times.resume];
        let all = parts.into_iter().flatten().sum();
        delivered.extend(times.deliver);
        without_ray.extend(
            times.all().zip(times.start).filter(|_| fault.is_death()).map(|(all, ray)| all - ray),
        );
        let [detect, stop, fence, start, resume] = parts.map(seconds);
        let deliver = times
            .deliver
            .map_or_else(|| "-".to_owned(), |time| format!("{:.2}", time.as_secs_f64()));
        println!(
            "| {} | {} | {} | {} | {} | {} | {} |",
            fault.name(),
            found.verdict,
            found.action,
            found.done,
            recovered.state,
            [detect, stop, fence, deliver, start, resume].join(" | "),
            seconds(Some(all))
        );
        stage.assert_clean().await?;
    }
    println!(
        "\nDeaths of processes and Xids, without Ray's own start: {} s (median of {}). From the last \
         thing that was waited for to every node of the next attempt: {} s (median of {}).",
        median(&mut without_ray),
        without_ray.len(),
        median(&mut delivered),
        delivered.len()
    );
    Ok(())
}

fn median(times: &mut [std::time::Duration]) -> String {
    times.sort_unstable();
    let middle = times.get(times.len() / 2);
    middle.map_or_else(|| "-".to_owned(), |time| format!("{:.2}", time.as_secs_f64()))
}
