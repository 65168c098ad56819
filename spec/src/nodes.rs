//! Which nodes a gang gets: how many, and inside what they should lie together.

/// What the nodes of a gang should have in common, as far as that costs no waiting. Nodes say it by
/// a label of the same name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Topology {
    /// One rack.
    Rack,
    /// One rail of the network.
    Rail,
    /// One leaf switch.
    Leaf,
    /// One NVLink domain.
    NvlDomain,
}

impl Topology {
    /// All of them, in the order of the words after `none`.
    pub const ALL: [Self; 4] = [Self::Rack, Self::Rail, Self::Leaf, Self::NvlDomain];
    /// The words of the spec; the first is that of no preference.
    pub const WORDS: [&'static str; 5] = ["none", "rack", "rail", "leaf", "nvl-domain"];

    /// The word of the spec, and the key of the label.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Rack => "rack",
            Self::Rail => "rail",
            Self::Leaf => "leaf",
            Self::NvlDomain => "nvl-domain",
        }
    }
}

/// The two texts around the dots of `2..4`, or around the colon of torchrun's `2:4`.
pub(crate) fn range_ends(text: &str) -> Option<(&str, &str)> {
    let digits = |part: &str| !part.is_empty() && part.chars().all(|c| c.is_ascii_digit());
    let (least, most) = text.split_once("..").or_else(|| text.split_once(':'))?;
    (digits(least) && digits(most)).then_some((least, most))
}
