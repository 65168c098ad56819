//! Versions of what must be alike on the nodes of a gang.

use std::collections::BTreeMap;

/// What one node has; `None`: not there, or not to be found out.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Versions {
    pub driver: Option<String>,
    pub cuda: Option<String>,
    pub nccl: Option<String>,
    pub ofed: Option<String>,
}

/// One thing that differs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    pub what: &'static str,
    /// Version, and the nodes that have it. Nodes of which it is not known are left out.
    pub versions: Vec<(String, Vec<String>)>,
}

/// What differs among `nodes`; empty when all is alike as far as it is known.
pub fn differences(nodes: &[(&str, &Versions)]) -> Vec<Difference> {
    type Part = fn(&Versions) -> Option<&String>;
    let parts: [(&'static str, Part); 4] = [
        ("driver", |v| v.driver.as_ref()),
        ("CUDA", |v| v.cuda.as_ref()),
        ("NCCL", |v| v.nccl.as_ref()),
        ("OFED", |v| v.ofed.as_ref()),
    ];
    let mut differences = Vec::new();
    for (what, part) in parts {
        let mut versions: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (node, all) in nodes {
            if let Some(version) = part(all) {
                versions.entry(version.clone()).or_default().push((*node).to_owned());
            }
        }
        if versions.len() > 1 {
            differences.push(Difference { what, versions: versions.into_iter().collect() });
        }
    }
    differences
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_known_can_differ() {
        let driver = |version: Option<&str>| Versions {
            driver: version.map(str::to_owned),
            nccl: Some("2.28".to_owned()),
            ..Versions::default()
        };
        let (a, b, c) = (driver(Some("580.82")), driver(None), driver(Some("575.57")));
        assert_eq!(differences(&[("a", &a), ("b", &b)]), []);
        let found = differences(&[("a", &a), ("b", &b), ("c", &c)]);
        let of = |version: &str, node: &str| (version.to_owned(), vec![node.to_owned()]);
        let versions = vec![of("575.57", "c"), of("580.82", "a")];
        assert_eq!(found, [Difference { what: "driver", versions }]);
    }
}
