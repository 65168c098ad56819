//! README's code map against the tree: each top-level file and folder of a crate once, and nothing
//! that is not there.
//!
//! A line of the map begins with one or more paths. Below a line that is not indented, such as
//! `spec/src/`, indented paths are relative to it.

use std::collections::{BTreeMap, BTreeSet};

/// The crates whose modules the map must list.
const CRATES: [&str; 14] = [
    "common",
    "spec",
    "tree",
    "coordinator/core",
    "coordinator",
    "simulate",
    "health",
    "diagnosis",
    "agent/core",
    "agent",
    "cli",
    "fleet/simulation",
    "fleet/fuzz",
    "fleet",
];
/// Not modules of a crate but its roots; the map may name them.
const ROOTS: [&str; 3] = ["lib.rs", "main.rs", "tests.rs"];

/// What is wrong with the map in `readme`; `files` are all files, relative to the root.
pub fn problems(readme: &str, files: &[String]) -> Vec<String> {
    let Some(map) = fenced_block(readme) else {
        return vec!["README.md has no fenced block below a heading `Code map`".to_owned()];
    };
    let mut listed: BTreeMap<String, usize> = BTreeMap::new();
    for path in listed_paths(map) {
        *listed.entry(path).or_default() += 1;
    }
    let there: BTreeSet<String> = files.iter().flat_map(|file| with_folders(file)).collect();
    let gone = listed.keys().filter(|path| !there.contains(*path));
    let mut problems: Vec<String> =
        gone.map(|path| format!("listed but not there: {path}")).collect();
    for path in there.iter().filter(|path| is_module(path)) {
        match listed.get(path) {
            Some(1) => {}
            None => problems.push(format!("not listed: {path}")),
            Some(times) => problems.push(format!("listed {times} times: {path}")),
        }
    }
    problems
}

/// Every path of the map, from the root.
fn listed_paths(map: &str) -> Vec<String> {
    let mut paths = Vec::new();
    let mut base = "";
    for line in map.lines() {
        let words = line.split_whitespace();
        let names: Vec<&str> =
            words.take_while(|word| word.ends_with(".rs") || word.ends_with('/')).collect();
        let indented = line.starts_with(' ');
        let below = if indented { base } else { "" };
        paths.extend(names.iter().map(|name| format!("{below}{name}")));
        if !indented {
            base = names.first().copied().unwrap_or_default();
        }
    }
    paths
}

/// A file and the folders that it lies in; folders end with a slash.
fn with_folders(file: &str) -> impl Iterator<Item = String> {
    let folders = file.match_indices('/').map(|(at, _)| file[..=at].to_owned());
    folders.chain([file.to_owned()])
}

/// Whether the path is a file or folder right below a crate's `src`.
fn is_module(path: &str) -> bool {
    let Some((name, top)) = path.split_once("/src/") else { return false };
    let right_below = !top.trim_end_matches('/').contains('/');
    let kind = top.ends_with(".rs") || (top.ends_with('/') && top.len() > 1);
    CRATES.contains(&name) && right_below && kind && !ROOTS.contains(&top)
}

/// The first fenced block below the heading `Code map` and above the next heading.
fn fenced_block(readme: &str) -> Option<&str> {
    let heading = readme.lines().find(|line| {
        let title = line.trim_start_matches('#').trim();
        line.starts_with('#') && title.eq_ignore_ascii_case("code map")
    })?;
    let after = &readme[readme.find(heading)? + heading.len()..];
    let open = after.find("```")?;
    let body = after[open..].split_once('\n')?.1;
    let text = &body[..body.find("```")?];
    (!after[..open].contains("\n#")).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILES: [&str; 8] = [
        "common/src/lib.rs",
        "common/src/ids.rs",
        "common/src/time.rs",
        "common/src/wire/mod.rs",
        "agent/src/doctor.rs",
        "agent/src/doctor/gpu.rs",
        "agent/nvml-sim/src/sim.rs",
        "docs/guide.md",
    ];

    fn of(map: &str) -> Vec<String> {
        let readme = format!("# x\n\n## Code map\n\nWords.\n\n```text\n{map}\n```\n\n## Next\n");
        problems(&readme, &FILES.map(str::to_owned))
    }

    const GOOD: &str = "common/src/  shared\n  ids.rs time.rs  names; now\n  wire/ frames\n\
                        agent/src/\n  doctor.rs doctor/  checks\nagent/nvml-sim/";

    #[test]
    fn a_right_map_has_no_problems() {
        assert_eq!(of(GOOD), [""; 0]);
    }

    #[test]
    fn a_map_that_rots_is_found() {
        assert_eq!(of(&GOOD.replace("wire/", "-")), ["not listed: common/src/wire/"]);
        assert_eq!(of(&GOOD.replace(" doctor/", "")), ["not listed: agent/src/doctor/"]);
        let twice = format!("{GOOD}\nagent/src/doctor.rs");
        assert_eq!(of(&twice), ["listed 2 times: agent/src/doctor.rs"]);
        let more = format!("{GOOD}\nold/\ncommon/src/\n  gone.rs");
        let gone = ["listed but not there: common/src/gone.rs", "listed but not there: old/"];
        assert_eq!(of(&more), gone);
    }

    #[test]
    fn a_map_that_is_missing_is_found() {
        for readme in ["", "# Code map\n\n## Next\n```\nagent/\n```", "## Code map\nno block"] {
            assert_eq!(problems(readme, &[]).len(), 1, "{readme}");
        }
    }
}
