//! README's code map against the tree: each top-level module once, and nothing that is not there.

use std::collections::BTreeMap;

/// The crates whose modules the map must list.
const CRATES: [&str; 6] = ["common", "spec", "coordinator", "agent", "cli", "fleet"];
/// Not modules of a crate but its roots; the map may name them.
const ROOTS: [&str; 3] = ["lib", "main", "tests"];

/// What is wrong with the map in `readme`; `files` are all files, relative to the root.
pub fn problems(readme: &str, files: &[String]) -> Vec<String> {
    let Some(map) = fenced_block(readme) else {
        return vec!["README.md has no fenced block below a heading `Code map`".to_owned()];
    };
    let mut problems = Vec::new();
    let mut listed: BTreeMap<(String, String), usize> = BTreeMap::new();
    for path in map.lines().filter_map(path_of) {
        let exists = match path.strip_suffix('/') {
            Some(_) => files.iter().any(|file| file.starts_with(path)),
            None => files.iter().any(|file| file == path),
        };
        if !exists {
            problems.push(format!("listed but not there: {path}"));
        }
        if let Some(module) = module_of(path) {
            *listed.entry(module).or_default() += 1;
        }
    }
    let modules = files.iter().filter_map(|file| {
        let (name, source) = file.split_once("/src/")?;
        let (top, below) = match source.split_once('/') {
            Some((folder, _)) => (folder, "/"),
            None => (source.strip_suffix(".rs")?, ".rs"),
        };
        module_of(&format!("{name}/src/{top}{below}"))
    });
    let modules: std::collections::BTreeSet<_> = modules.collect();
    for module in modules {
        let (name, top) = &module;
        match listed.get(&module) {
            Some(1) => {}
            None => problems.push(format!("not listed: {name}/src/{top}")),
            Some(times) => problems.push(format!("listed {times} times: {name}/src/{top}")),
        }
    }
    problems
}

/// (crate, module) of a top-level file or folder; `None` for every other path. A module that has
/// a file and a folder is one.
fn module_of(path: &str) -> Option<(String, String)> {
    let (name, source) = path.split_once("/src/")?;
    let top = source.strip_suffix(".rs").or(source.strip_suffix('/'))?;
    let counts = CRATES.contains(&name) && !top.contains('/') && !ROOTS.contains(&top);
    (counts && !top.is_empty()).then(|| (name.to_owned(), top.to_owned()))
}

/// The path that a line begins with.
fn path_of(line: &str) -> Option<&str> {
    let word = line.split_whitespace().next()?;
    (word.ends_with(".rs") || word.ends_with('/')).then_some(word)
}

/// The first fenced block below the heading `Code map` and above the next heading.
fn fenced_block(readme: &str) -> Option<&str> {
    let heading = readme.lines().find(|line| {
        line.starts_with('#')
            && line.trim_start_matches('#').trim().eq_ignore_ascii_case("code map")
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

    const FILES: [&str; 7] = [
        "common/src/lib.rs",
        "common/src/ids.rs",
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

    const GOOD: &str = "common/  shared\n  common/src/ids.rs  names\n  common/src/wire/ frames\n\
                        agent/src/doctor.rs  checks\n    agent/src/doctor/gpu.rs\nagent/nvml-sim/";

    #[test]
    fn a_right_map_has_no_problems() {
        assert_eq!(of(GOOD), [""; 0]);
    }

    #[test]
    fn a_map_that_rots_is_found() {
        assert_eq!(of(&GOOD.replace("common/src/wire/", "-")), ["not listed: common/src/wire"]);
        let twice = format!("{GOOD}\nagent/src/doctor/");
        assert_eq!(of(&twice), ["listed 2 times: agent/src/doctor"]);
        let more = format!("{GOOD}\ncommon/src/gone.rs\nold/");
        assert_eq!(
            of(&more),
            ["listed but not there: common/src/gone.rs", "listed but not there: old/"]
        );
    }

    #[test]
    fn a_map_that_is_missing_is_found() {
        for readme in ["", "# Code map\n\n## Next\n```\nagent/\n```", "## Code map\nno block"] {
            assert_eq!(problems(readme, &[]).len(), 1, "{readme}");
        }
    }
}
