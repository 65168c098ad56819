//! Which lists are trees, and that a tree has one name.

use gangline_tree::{ChunkRef, Entry, Hash, Kind, MAX_CHUNK_BYTES, MAX_ENTRIES, Tree, TreeError};
use proptest::prelude::*;

fn file(path: &str) -> Entry {
    let chunks = vec![ChunkRef { hash: Hash::of(path.as_bytes()), bytes: 3 }];
    Entry { path: path.to_owned(), kind: Kind::File { executable: false, chunks } }
}

fn link(path: &str, target: &str) -> Entry {
    Entry { path: path.to_owned(), kind: Kind::Symlink { target: target.to_owned() } }
}

#[test]
fn a_tree_has_one_name_whatever_the_order() {
    let run = Entry { kind: Kind::File { executable: true, chunks: vec![] }, ..file("run.sh") };
    let one = [file("b/c.py"), file("a.py"), run.clone(), link("b/x", "../a.py")];
    let other = [run, link("b/x", "../a.py"), file("a.py"), file("b/c.py")];
    let (one, other) = (Tree::new(one.to_vec()).unwrap(), Tree::new(other.to_vec()).unwrap());
    assert_eq!(one.name(), other.name());
    assert_eq!(Tree::from_bytes(&one.to_bytes()).unwrap(), one);
    assert_eq!((one.bytes(), one.top_names()), (6, vec!["a.py", "b", "run.sh"]));
    assert_ne!(Tree::new(vec![file("a.py")]).unwrap().name(), one.name());
    // Pinned: a tree must be found again by every later version.
    let pinned = Tree::new(vec![link("x", "y")]).unwrap().name();
    assert_eq!(pinned, Hash::of(b"gangline tree 1\nl\0\x01x\0\x01y"));
}

#[test]
fn a35_no_entry_reaches_outside() {
    let long = "x".repeat(256);
    let deep = "x/".repeat(600) + "x";
    for path in [
        "",
        "/etc/passwd",
        "..",
        "../x",
        "a/../../x",
        "a/..",
        ".",
        "a/./b",
        "a//b",
        "a/",
        "a\0b",
        "a\nb",
        "a\u{1b}[2J",
        &long,
        &deep,
    ] {
        let error = Tree::new(vec![file(path)]).unwrap_err();
        assert!(matches!(error, TreeError::Path { .. }), "{path:?}: {error}");
    }
    for (path, target) in [
        ("l", "/etc/passwd"),
        ("l", ".."),
        ("l", "../x"),
        ("a/l", "../../x"),
        ("l", ""),
        ("l", "a\0b"),
        // Each alone stays inside; through the first one, the second would not.
        ("l", "a/b/deep/../../../x"),
    ] {
        let error = Tree::new(vec![link(path, target)]).unwrap_err();
        assert!(matches!(error, TreeError::Link { .. }), "{path} -> {target}: {error}");
    }
    assert!(Tree::new(vec![link("a/b/l", "../../x/./y"), link("k", "a/b")]).is_ok());
}

#[test]
fn a35_nothing_lies_below_a_link_and_nothing_is_twice() {
    for below in [[link("a", "b"), file("a/x")], [file("a"), file("a/b/c")]] {
        let error = Tree::new(below.to_vec()).unwrap_err();
        assert!(error.to_string().contains("below something"), "{error}");
    }
    // `a-b` comes between `a` and `a/x` in the order of bytes.
    let apart = vec![link("a", "b"), file("a-b"), file("a/x")];
    assert!(Tree::new(apart).unwrap_err().to_string().contains("below something"));
    let twice = Tree::new(vec![file("a"), file("a")]).unwrap_err();
    assert!(twice.to_string().contains("twice"), "{twice}");
    let mut unordered = b"gangline tree 1\n".to_vec();
    unordered.extend_from_slice(b"l\0\x01b\0\x01xl\0\x01a\0\x01x");
    assert!(Tree::from_bytes(&unordered).unwrap_err().to_string().contains("order"));
}

#[test]
fn a35_sizes_and_counts_are_bounded() {
    let many = (0..=MAX_ENTRIES).map(|n| file(&n.to_string())).collect();
    assert_eq!(Tree::new(many), Err(TreeError::TooManyEntries));
    let chunk = |bytes: usize| ChunkRef { hash: Hash::of(b""), bytes: bytes as u32 };
    let of = |chunks| {
        Tree::new(vec![Entry { kind: Kind::File { executable: false, chunks }, ..file("a") }])
    };
    assert!(matches!(of(vec![chunk(0)]), Err(TreeError::Chunk { .. })));
    assert!(matches!(of(vec![chunk(MAX_CHUNK_BYTES + 1)]), Err(TreeError::Chunk { .. })));
    assert_eq!(of(vec![chunk(MAX_CHUNK_BYTES); (8 << 10) + 1]), Err(TreeError::TooLarge));
    // A count that no list could hold sets nothing aside.
    let mut liar = b"gangline tree 1\nf\0\x01a".to_vec();
    liar.extend_from_slice(&u32::MAX.to_be_bytes());
    assert!(matches!(Tree::from_bytes(&liar), Err(TreeError::Malformed(_))));
}

proptest! {
    #[test]
    fn whatever_is_read_is_written_the_same(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let mut list = b"gangline tree 1\n".to_vec();
        list.extend_from_slice(&bytes);
        for bytes in [&bytes, &list] {
            if let Ok(tree) = Tree::from_bytes(bytes) {
                prop_assert_eq!(&tree.to_bytes(), bytes);
            }
        }
    }

    #[test]
    fn a_cut_or_changed_list_is_another_tree_or_none(at in 0usize..200, bit in 0u8..8) {
        let tree = Tree::new(vec![file("a/b.py"), file("c"), link("l", "a")]).unwrap();
        let mut bytes = tree.to_bytes();
        let at = at % bytes.len();
        let cut = Tree::from_bytes(&bytes[..at]);
        prop_assert!(cut.is_err() || cut != Ok(tree.clone()));
        bytes[at] ^= 1 << bit;
        if let Ok(other) = Tree::from_bytes(&bytes) {
            prop_assert_ne!(other.name(), tree.name());
        }
    }
}
