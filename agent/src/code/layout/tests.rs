//! What is written, and what is not: trees that lie, links in the way, and nodes that race.

use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

use gangline_tree::ChunkRef;

use super::*;

/// A shared root, which goes with all that nobody may write into.
struct Root(tempfile::TempDir);

impl Root {
    fn new() -> Root {
        Root(tempfile::tempdir().unwrap())
    }

    fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for Root {
    fn drop(&mut self) {
        let _ = picture::remove_tree(self.path());
    }
}

fn file(path: &str, executable: bool, content: &str) -> Entry {
    let chunk = ChunkRef { hash: Hash::of(content.as_bytes()), bytes: content.len() as u32 };
    let chunks = if content.is_empty() { Vec::new() } else { vec![chunk] };
    Entry { path: path.to_owned(), kind: Kind::File { executable, chunks } }
}

fn link(path: &str, target: &str) -> Entry {
    Entry { path: path.to_owned(), kind: Kind::Symlink { target: target.to_owned() } }
}

/// What a coordinator sends of a tree whose files have these contents, in order.
fn stream(tree: &Tree, contents: &[&str]) -> Vec<u8> {
    let list = tree.to_bytes();
    let mut bytes = (list.len() as u32).to_be_bytes().to_vec();
    bytes.extend_from_slice(&list);
    contents.iter().for_each(|content| bytes.extend_from_slice(content.as_bytes()));
    bytes
}

fn sample() -> (Tree, Vec<u8>) {
    let entries = vec![
        file("a.py", false, "print(1)"),
        file("pkg/b/c.py", false, "print(2)"),
        file("pkg/empty", false, ""),
        link("pkg/l", "../a.py"),
        file("run.sh", true, "#!/bin/sh"),
    ];
    let tree = Tree::new(entries).unwrap();
    let bytes = stream(&tree, &["print(1)", "print(2)", "#!/bin/sh"]);
    (tree, bytes)
}

fn order(root: &Path, tree: &Tree) -> Order {
    let below = ["users", "alice", "code"].map(str::to_owned).to_vec();
    Order { run_as: None, root: root.to_owned(), below, tree: tree.name().hex() }
}

/// All but the talk with the agent.
fn write(root: &Path, tree: &Tree, mut bytes: &[u8]) -> Result<PathBuf, LayoutError> {
    let order = order(root, tree);
    let shelf = open_shelf(&order)?;
    let unfinished = unfinished_name(&order.tree)?;
    let written = lay_out(&mut bytes, &shelf, &unfinished, tree.name())
        .and_then(|()| give_name(&shelf, &unfinished, &order.tree));
    if written.is_err() {
        discard(&shelf, &unfinished);
    }
    written.map(|()| root.join("users/alice/code").join(&order.tree))
}

fn names(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}

fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

/// Does something in a directory of a tree, as root does it without asking.
fn within(directory: &Path, act: impl FnOnce()) {
    set_mode(directory, 0o755);
    act();
    set_mode(directory, 0o555);
}

#[test]
fn a_tree_is_laid_out_for_reading() {
    let root = Root::new();
    let (tree, bytes) = sample();
    let at = write(root.path(), &tree, &bytes).unwrap();
    assert_eq!(std::fs::read_to_string(at.join("pkg/b/c.py")).unwrap(), "print(2)");
    assert_eq!(std::fs::read_to_string(at.join("pkg/l")).unwrap(), "print(1)");
    let mode = |path: &str| std::fs::metadata(at.join(path)).unwrap().mode() & 0o7777;
    assert_eq!((mode("a.py"), mode("run.sh"), mode("pkg/empty")), (0o444, 0o555, 0o444));
    assert_eq!((mode(""), mode("pkg"), mode("pkg/b")), (0o555, 0o555, 0o555));
    let time = |path: &str| std::fs::metadata(at.join(path)).unwrap().modified().unwrap();
    assert_eq!(time("a.py"), time("pkg/b/c.py"));
    // Another node writes the same at the same time: one of both stays, whole.
    assert_eq!(write(root.path(), &tree, &bytes).unwrap(), at);
    let hex = tree.name().hex();
    assert_eq!(names(at.parent().unwrap()), [list_name(&hex), hex]);
}

/// What a job can do to the code when it is root, or the user whose the code is.
type Change = fn(&Path);

#[test]
fn code_that_a_job_changed_is_put_aside_and_written_anew() {
    let (tree, bytes) = sample();
    let hex = tree.name().hex();
    let changes: [(&str, Change); 9] = [
        ("a.py", |at| {
            set_mode(&at.join("a.py"), 0o644);
            std::fs::write(at.join("a.py"), "print(9)").unwrap();
            set_mode(&at.join("a.py"), 0o444);
        }),
        ("run.sh", |at| set_mode(&at.join("run.sh"), 0o755)),
        ("pkg", |at| set_mode(&at.join("pkg"), 0o755)),
        (".", |at| set_mode(at, 0o755)),
        ("pkg/b/evil.py", |at| {
            within(&at.join("pkg/b"), || std::fs::write(at.join("pkg/b/evil.py"), "9").unwrap());
        }),
        ("pkg/__pycache__", |at| {
            within(&at.join("pkg"), || std::fs::create_dir(at.join("pkg/__pycache__")).unwrap());
        }),
        ("its end", |at| within(at, || std::fs::remove_file(at.join("run.sh")).unwrap())),
        ("pkg/l", |at| {
            within(&at.join("pkg"), || {
                std::fs::remove_file(at.join("pkg/l")).unwrap();
                symlink("../run.sh", at.join("pkg/l")).unwrap();
            });
        }),
        ("nothing says", |at| {
            let hex = at.file_name().unwrap().to_str().unwrap();
            std::fs::remove_file(at.with_file_name(list_name(hex))).unwrap();
        }),
    ];
    for (place, change) in changes {
        let root = Root::new();
        let at = write(root.path(), &tree, &bytes).unwrap();
        let shelf = open_shelf(&order(root.path(), &tree)).unwrap();
        assert_eq!(look(&shelf, &hex).unwrap(), Found::Whole);
        change(&at);
        match look(&shelf, &hex).unwrap() {
            Found::Changed(how) => assert!(how.starts_with(place), "{place}: {how}"),
            found => panic!("{place}: {found:?}"),
        }
        // A job runs in it, and finds its directory after that too.
        let inside = File::open(&at).unwrap();
        assert_eq!(write(root.path(), &tree, &bytes).unwrap(), at);
        assert_eq!(look(&shelf, &hex).unwrap(), Found::Whole, "{place}");
        assert_eq!(std::fs::read_to_string(at.join("pkg/l")).unwrap(), "print(1)");
        let beside = names(at.parent().unwrap());
        let [aside, list, whole] = &beside[..] else { panic!("{place}: {beside:?}") };
        assert!(aside.starts_with(&format!(".{hex}.changed-")), "{place}: {aside}");
        assert_eq!((list, whole), (&list_name(&hex), &hex));
        let aside = std::fs::metadata(at.with_file_name(aside)).unwrap();
        assert_eq!(aside.ino(), inside.metadata().unwrap().ino());
        assert_ne!(aside.ino(), std::fs::metadata(&at).unwrap().ino());
    }
}

#[test]
fn what_a_job_wrote_into_the_code_is_kept() {
    let root = Root::new();
    let (tree, bytes) = sample();
    let at = write(root.path(), &tree, &bytes).unwrap();
    for number in 0..2 {
        let result = at.join("pkg/result.txt");
        within(&at.join("pkg"), || std::fs::write(&result, number.to_string()).unwrap());
        write(root.path(), &tree, &bytes).unwrap();
        assert!(!result.exists());
    }
    let shelf = at.parent().unwrap();
    let aside = names(shelf).into_iter().filter(|name| name.contains(".changed-"));
    let kept = aside.map(|name| shelf.join(name).join("pkg/result.txt"));
    let mut kept: Vec<String> = kept.map(|path| std::fs::read_to_string(path).unwrap()).collect();
    kept.sort();
    assert_eq!(kept, ["0", "1"]);
}

#[test]
fn a36_what_is_not_the_tree_leaves_nothing() {
    let root = Root::new();
    let (tree, bytes) = sample();
    let other = Tree::new(vec![file("evil.py", false, "print(9)")]).unwrap();
    let mut changed = bytes.clone();
    *changed.last_mut().unwrap() ^= 1;
    let more = [bytes.as_slice(), b"x"].concat();
    for lie in [stream(&other, &["print(9)"]), changed, more, vec![0xff; 64], Vec::new()] {
        assert!(write(root.path(), &tree, &lie).is_err());
    }
    for end in 0..bytes.len() {
        let error = write(root.path(), &tree, &bytes[..end]).unwrap_err();
        assert!(matches!(error, LayoutError::Cut), "cut at {end}: {error}");
    }
    assert_eq!(names(&root.path().join("users/alice/code")), [""; 0]);
}

#[test]
fn a29_links_in_the_way_are_not_followed() {
    let (tree, bytes) = sample();
    let elsewhere = tempfile::tempdir().unwrap();
    for place in ["users", "users/alice", "users/alice/code"] {
        let root = Root::new();
        let place = root.path().join(place);
        std::fs::create_dir_all(place.parent().unwrap()).unwrap();
        symlink(elsewhere.path(), &place).unwrap();
        let error = write(root.path(), &tree, &bytes).unwrap_err();
        assert!(matches!(error, LayoutError::Io { doing: "open", .. }), "{error}");
    }
    // A link in the place of the tree is not taken for it.
    let root = Root::new();
    let order = order(root.path(), &tree);
    let shelf = open_shelf(&order).unwrap();
    let place = root.path().join("users/alice/code").join(&order.tree);
    symlink(elsewhere.path(), &place).unwrap();
    assert!(exists(&shelf, &order.tree).is_err());
    assert_eq!(names(elsewhere.path()), [""; 0]);
}

#[test]
fn one_node_at_a_time_and_what_a_dead_one_left_goes() {
    let root = Root::new();
    let (tree, _) = sample();
    let order = order(root.path(), &tree);
    let shelf = open_shelf(&order).unwrap();
    let lock = wait_for_lock(&shelf, &order.tree, true).unwrap();
    assert!(lock.is_some());
    // Who waits for the lock goes on as soon as the tree is there, whoever holds it.
    let at = root.path().join("users/alice/code").join(&order.tree);
    std::fs::create_dir(&at).unwrap();
    std::fs::write(at.with_file_name(list_name(&order.tree)), "").unwrap();
    assert!(wait_for_lock(&shelf, &order.tree, true).unwrap().is_none());
    drop(lock);
    assert!(wait_for_lock(&shelf, &order.tree, true).unwrap().is_some());

    let left = unfinished_name(&order.tree).unwrap();
    std::fs::create_dir_all(at.with_file_name(&left).join("pkg")).unwrap();
    std::fs::write(at.with_file_name(unfinished_list(&left)), "").unwrap();
    let unfinished_other = at.with_file_name(".another.new-1");
    std::fs::create_dir(&unfinished_other).unwrap();
    remove_abandoned(&shelf, &order.tree);
    assert!(!at.with_file_name(&left).exists() && unfinished_other.exists() && at.exists());
    assert!(!at.with_file_name(unfinished_list(&left)).exists());
}
