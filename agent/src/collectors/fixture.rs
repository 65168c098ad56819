//! A directory tree made by a test in place of `/proc`, `/sys` and `/dev`, removed at the end of the test.

use std::path::PathBuf;

use super::host::Roots;

/// The tree; its files live as long as it does.
pub(crate) struct Tree(tempfile::TempDir);

impl Tree {
    /// An empty tree.
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().expect("temporary directory"))
    }

    /// The tree with one more file.
    pub(crate) fn file(self, path: &str, text: &str) -> Self {
        std::fs::write(self.made(path), text).expect("file");
        self
    }

    /// The tree with one more symbolic link, which need not lead anywhere.
    pub(crate) fn link(self, path: &str, target: &str) -> Self {
        std::os::unix::fs::symlink(target, self.made(path)).expect("link");
        self
    }

    /// A path below the tree.
    pub(crate) fn path(&self, path: &str) -> PathBuf {
        self.0.path().join(path)
    }

    /// A path below the tree whose directory exists.
    fn made(&self, path: &str) -> PathBuf {
        let path = self.path(path);
        std::fs::create_dir_all(path.parent().expect("relative path")).expect("directory");
        path
    }
}

/// The kernel's files as they lie in the tree: `proc`, `sys`, `cgroup` and `dev`.
pub(crate) fn roots(tree: &Tree) -> Roots {
    Roots {
        proc: tree.path("proc"),
        sys: tree.path("sys"),
        cgroup: tree.path("cgroup"),
        dev: tree.path("dev"),
    }
}
