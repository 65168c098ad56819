//! Which paths a Rust file names, and which of them a core must not name.

use super::is_word;

/// Where a file stands: `["core", "job"]` for `src/core/job.rs`, and for `core/src/job.rs`, where the
/// core is a crate of its own.
pub struct Module {
    root: Vec<String>,
    place: Vec<String>,
}

impl Module {
    /// The module of a file below a crate's `src`.
    pub fn of(path: &str) -> Module {
        let (folder, inside) = path.split_once("/src/").unwrap_or(("", path));
        let is_core = folder.ends_with("/core") || folder == "health";
        let own_crate = is_core.then(|| "core".to_owned());
        let root = Vec::from_iter(own_crate);
        let inside = inside.trim_end_matches(".rs").trim_end_matches("/mod");
        let below = inside.split('/').filter(|name| *name != "lib").map(str::to_owned);
        Module { place: root.iter().cloned().chain(below).collect(), root }
    }

    /// The path from the root of the crate, when it begins with `crate`, `self` or `super`.
    fn resolve(&self, path: &str) -> Option<Vec<String>> {
        let mut place = match path.split("::").next()? {
            "crate" => self.root.clone(),
            "self" | "super" => self.place.clone(),
            _ => return None,
        };
        for segment in path.split("::") {
            match segment {
                "crate" | "self" => {}
                // Above the root there is nothing; the result is then no path of a core either.
                "super" => drop(place.pop()),
                name => place.push(name.to_owned()),
            }
        }
        Some(place)
    }
}

/// The paths in `code` that a core must not name: anything but `std`, the core itself, and the
/// ids and the time of the common crate. `dependencies` are the crates that it could reach.
pub fn foreign_paths(code: &str, module: &Module, dependencies: &[String]) -> Vec<String> {
    let outside = |path: &String| {
        if let Some(place) = module.resolve(path) {
            return place.first().map(String::as_str) != Some("core");
        }
        let mut segments = path.split("::");
        let first = segments.next().unwrap_or_default();
        match (first, segments.next()) {
            ("gangline_common", second) => !matches!(second, Some("ids" | "time")),
            _ => dependencies.iter().any(|dependency| dependency == first),
        }
    };
    paths_in(code).into_iter().filter(outside).collect()
}

/// Every path of two or more parts in `code`, with the braces of `use` written out, and every
/// crate that is used whole.
pub fn paths_in(code: &str) -> Vec<String> {
    let mut paths = Vec::new();
    let mut rest = code;
    while let Some((before, after)) = split_at_use(rest) {
        inline(before, &mut paths);
        let end = after.find(';').unwrap_or(after.len());
        let tree: String = after[..end].split_whitespace().collect::<Vec<_>>().join(" ");
        expand("", &tree, &mut paths);
        rest = &after[end..];
    }
    inline(rest, &mut paths);
    paths
}

/// The code before the next `use`, and what follows the word.
fn split_at_use(code: &str) -> Option<(&str, &str)> {
    let bytes = code.as_bytes();
    let at = code.match_indices("use").map(|(at, _)| at).find(|at| {
        let before = at.checked_sub(1).map(|before| bytes[before]);
        let after = bytes.get(at + 3);
        // `+ use<>` of a type is no import.
        before.is_none_or(|byte| !is_word(byte) && byte != b'#')
            && after.is_some_and(u8::is_ascii_whitespace)
    })?;
    Some((&code[..at], &code[at + 3..]))
}

/// Writes out a tree such as `a::{b, c::{d, e}}` below `prefix`.
fn expand(prefix: &str, tree: &str, paths: &mut Vec<String>) {
    let tree = tree.trim().trim_start_matches("::");
    let Some((head, body)) = tree.split_once('{') else {
        let name = tree.split(" as ").next().unwrap_or_default().trim();
        if !name.is_empty() {
            paths.push(format!("{prefix}{name}"));
        }
        return;
    };
    let prefix = format!("{prefix}{}", head.trim());
    let body = body.trim_end().strip_suffix('}').unwrap_or(body);
    let mut depth = 0_usize;
    let mut from = 0;
    for (at, c) in body.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                expand(&prefix, &body[from..at], paths);
                from = at + 1;
            }
            _ => {}
        }
    }
    expand(&prefix, &body[from..], paths);
}

/// The paths that stand in code itself.
fn inline(code: &str, paths: &mut Vec<String>) {
    let separators = |c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == ':');
    for word in code.split(separators).filter(|word| word.contains("::")) {
        // A turbofish leaves colons at the end of a plain name.
        let path = word.trim_matches(':');
        if path.contains("::") {
            paths.push(path.to_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn foreign(code: &str) -> Vec<String> {
        let dependencies = ["tokio", "tracing", "gangline_common"].map(str::to_owned);
        foreign_paths(code, &Module::of("agent/src/core/job.rs"), &dependencies)
    }

    #[test]
    fn a_core_may_name_itself() {
        let code = "use std::{sync::Arc, fmt}; use super::gang::{Gang, Phase as P};
            use crate::core::effect::{self, Write}; pub use self::inner::X;
            use gangline_common::{ids::{JobId, GangId}, time::Timestamp};
            fn f(x: super::node::Node) -> Vec<u8> { JobState::Held; std::mem::take(x) }";
        assert_eq!(foreign(code), [""; 0]);
    }

    #[test]
    fn in_a_crate_of_its_own_the_root_is_the_core() {
        let module = Module::of("coordinator/core/src/job.rs");
        let code = "use crate::effect::Write; use super::gang::Gang; use super::super::api::View;";
        assert_eq!(foreign_paths(code, &module, &[]), ["super::super::api::View"]);
    }

    #[test]
    fn anything_else_is_found() {
        let found = |code: &str, path: &str| assert_eq!(foreign(code), [path], "{code}");
        found("use crate::store::Store;", "crate::store::Store");
        found("use crate::{core::job::Job, store};", "crate::store");
        found("use super::super::api::{View};", "super::super::api::View");
        found("use gangline_common::{\n ids::{JobId},\n tls,\n};", "gangline_common::tls");
        found("use gangline_common::*;", "gangline_common::*");
        found("use tokio as runtime;", "tokio");
        found("fn f() { tracing::info!(x) }", "tracing::info");
        found("pub(crate) use crate::driver;", "crate::driver");
        found("use {std::fmt, tokio::sync::mpsc::{self}};", "tokio::sync::mpsc::self");
    }

    #[test]
    fn above_the_core_is_outside() {
        for path in ["agent/src/core/mod.rs", "coordinator/core/src/lib.rs"] {
            let module = Module::of(path);
            assert_eq!(foreign_paths("use super::ledger::Ledger;", &module, &[]).len(), 1);
            assert_eq!(foreign_paths("use self::event::Event;", &module, &[]), [""; 0]);
        }
    }
}
