//! What the nodes of a gang should have in common. A preference, never a condition: no gang waits for
//! it.

/// A domain of the network or of the room. Nodes say by a label which one they are in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Topology {
    Rack,
    Rail,
    Leaf,
    NvlDomain,
}

impl Topology {
    /// Key of the label that names a node's domain.
    pub fn label(self) -> &'static str {
        match self {
            Topology::Rack => "rack",
            Topology::Rail => "rail",
            Topology::Leaf => "leaf",
            Topology::NvlDomain => "nvl-domain",
        }
    }
}

/// The labels that say how close nodes are, in the order in which a gang looks at them: first what it
/// wants, then the closest.
pub fn labels(wanted: Option<Topology>) -> Vec<&'static str> {
    const CLOSEST_FIRST: [Topology; 4] =
        [Topology::NvlDomain, Topology::Rack, Topology::Leaf, Topology::Rail];
    let others = CLOSEST_FIRST.into_iter().filter(|other| Some(*other) != wanted);
    wanted.into_iter().chain(others).map(Topology::label).collect()
}
