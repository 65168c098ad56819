//! Versions of what should be alike on the nodes of a gang. A gang whose nodes differ starts all the
//! same: many differences do no harm, and a person is told of all of them.

use std::collections::BTreeMap;
use std::sync::Arc;

use gangline_common::ids::{JobId, NodeId};
use gangline_common::time::Timestamp;

use super::Core;
use super::effect::{Effects, Write};
use super::job::{Job, Launcher};
use super::notices::{About, REASON_LIMIT};

/// What is compared for every gang: by the names that agents say, and as people read them.
const OF_ALL: [(&str, &str); 4] =
    [("driver", "driver"), ("cuda", "CUDA"), ("nccl", "NCCL"), ("ofed", "OFED")];
/// And for one that Ray runs.
const OF_RAY: [(&str, &str); 2] = [("ray", "Ray"), ("python", "Python")];
/// Nodes that a text names of each version.
const NAMED: usize = 4;

/// A node's name, and what it says of its versions.
pub type Versions<'a> = (&'a str, &'a [(String, String)]);

/// What differs among `nodes`, as people read it; `None` when all is alike as far as it is known.
pub fn differences(nodes: &[Versions<'_>], with_ray: bool) -> Option<String> {
    let ray = if with_ray { OF_RAY.as_slice() } else { &[] };
    let parts = OF_ALL.iter().chain(ray).filter_map(|(name, shown)| {
        let known = || nodes.iter().filter_map(|(node, has)| Some((*node, version(has, name)?)));
        let (_, first) = known().next()?;
        if known().all(|(_, other)| other == first) {
            return None;
        }
        let mut by_version: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for (node, version) in known() {
            by_version.entry(version).or_default().push(node);
        }
        let groups = by_version.into_iter().map(|(version, nodes)| {
            let more = match nodes.len().saturating_sub(NAMED) {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            let nodes: Vec<&str> = nodes.into_iter().take(NAMED).collect();
            format!("{version} on {}{more}", nodes.join(", "))
        });
        Some(format!("{shown} {}", groups.collect::<Vec<_>>().join(" and ")))
    });
    let parts: Vec<String> = parts.collect();
    (!parts.is_empty()).then(|| parts.join("; "))
}

fn version<'a>(has: &'a [(String, String)], name: &str) -> Option<&'a str> {
    let of_name = has.iter().find(|(known, _)| known == name);
    of_name.map(|(_, version)| version.as_str()).filter(|version| !version.is_empty())
}

impl Core {
    /// Tells of differences among the nodes that a gang was just given.
    pub(super) fn warn_of_versions(
        &mut self,
        job: &JobId,
        nodes: &[NodeId],
        now: Timestamp,
        out: &mut Effects,
    ) {
        let Some(job) = self.jobs.get(job).filter(|_| nodes.len() > 1).cloned() else { return };
        let known = nodes.iter().filter_map(|id| {
            let node = self.nodes.get(id)?;
            Some((node.name.as_str(), node.inventory.as_ref()?.versions.as_slice()))
        });
        let known: Vec<Versions<'_>> = known.collect();
        let with_ray = job.request.launcher == Launcher::Ray;
        let Some(found) = differences(&known, with_ray) else { return };
        // Agents say it, and it stays in the job's record.
        let text = format!("warning: its nodes differ: {found}");
        let text: String = text.chars().take(REASON_LIMIT).collect();
        let mut noted = Job::clone(&job);
        noted.note(now, "gangline", text.clone());
        self.put(Write::Job(Arc::new(noted)), out);
        self.tell("job.versions_differ", About::Job(&job), &text, now, out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn has(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|(name, version)| ((*name).to_owned(), (*version).to_owned())).collect()
    }

    #[test]
    fn only_what_is_known_can_differ() {
        let (a, b) = (has(&[("driver", "580.82"), ("nccl", "2.28")]), has(&[("nccl", "2.28")]));
        assert_eq!(differences(&[("a", &a), ("b", &b)], true), None);
        let c = has(&[("driver", "575.57"), ("ray", "2.60.0"), ("kernel", "6.1")]);
        let d = has(&[("driver", "580.82"), ("ray", "2.56.0"), ("kernel", "5.4")]);
        let nodes: [Versions<'_>; 4] = [("a", &a), ("b", &b), ("c", &c), ("d", &d)];
        let of_all = "driver 575.57 on c and 580.82 on a, d";
        assert_eq!(differences(&nodes, false).as_deref(), Some(of_all));
        let with_ray = format!("{of_all}; Ray 2.56.0 on d and 2.60.0 on c");
        assert_eq!(differences(&nodes, true), Some(with_ray));
    }

    #[test]
    fn of_many_nodes_a_few_are_named() {
        let (old, new) = (has(&[("cuda", "12.4")]), has(&[("cuda", "13.0")]));
        let names: Vec<String> = (0..9).map(|n| format!("w{n}")).collect();
        let nodes: Vec<Versions<'_>> = names
            .iter()
            .enumerate()
            .map(|(n, name)| (name.as_str(), if n == 0 { old.as_slice() } else { &new }))
            .collect();
        let expected = "CUDA 12.4 on w0 and 13.0 on w1, w2, w3, w4 and 4 more";
        assert_eq!(differences(&nodes, false).as_deref(), Some(expected));
    }
}
