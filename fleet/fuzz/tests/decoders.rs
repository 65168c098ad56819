//! The short form: some hundred inputs for every decoder. `cargo soak --fuzz` goes on for longer.

use gangline_fuzz::run::{Until, feed, quiet_panics, watch};
use gangline_fuzz::targets;

const INPUTS: u64 = 600;

#[test]
fn every_decoder_answers_or_refuses() {
    let scratch = gangline_fuzz::scratch().unwrap();
    let mut targets = targets::all(scratch.path()).unwrap();
    quiet_panics();
    watch();
    let mut bad = Vec::new();
    for target in &mut targets {
        match feed(target, 1, Until::Inputs(INPUTS)) {
            // Mutations that are all refused reach nothing.
            Ok(tally) if tally.taken > target.seeds.len() as u64 => {}
            Ok(tally) => bad.push(format!("{}: {tally:?}", target.name)),
            Err(found) => bad.push(found.to_string()),
        }
    }
    // Panics are for people again.
    drop(std::panic::take_hook());
    assert!(bad.is_empty(), "\n{}", bad.join("\n"));
    assert!(targets.len() > 30, "{} decoders", targets.len());
}
