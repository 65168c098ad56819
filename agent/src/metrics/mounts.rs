//! Which mount a directory is on, as `mountinfo` of this container says.

use std::path::{Path, PathBuf};

/// What is beyond is not looked at: an entry for each container of a host, in the worst case.
const MOST: usize = 4096;

/// The mounts in the order of the file.
#[derive(Debug, Default)]
pub(super) struct Mounts(Vec<Mount>);

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Mount {
    pub point: PathBuf,
    pub kind: String,
    pub device: String,
}

impl Mounts {
    /// Lines that are not whole are left out.
    pub(super) fn parse(text: &str) -> Self {
        Mounts(text.lines().take(MOST).filter_map(mount).collect())
    }

    /// The mount of a directory, by its name: no link is followed, which could wait for a server.
    pub(super) fn of(&self, directory: &Path) -> Option<&Mount> {
        let around = self.0.iter().filter(|mount| directory.starts_with(&mount.point));
        // Of two on one point the later one covers the other.
        around.max_by_key(|mount| mount.point.components().count())
    }
}

/// `36 35 98:0 /root /point options optional... - kind device options`.
fn mount(line: &str) -> Option<Mount> {
    let (place, what) = line.split_once(" - ")?;
    let point = place.split(' ').nth(4)?;
    let (kind, rest) = what.split_once(' ')?;
    let device = rest.split(' ').next()?;
    Some(Mount { point: plain(point).into(), kind: plain(kind), device: plain(device) })
}

/// Blanks and backslashes are three octal digits there.
fn plain(text: &str) -> String {
    let mut parts = text.split('\\');
    let mut whole = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let code = part.get(..3).and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match code {
            Some(code) => {
                whole.push(char::from(code));
                whole.push_str(part.get(3..).unwrap_or_default());
            }
            None => {
                whole.push('\\');
                whole.push_str(part);
            }
        }
    }
    whole
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_on_the_innermost_mount() {
        let mounts = Mounts::parse(
            "700 650 0:52 / / rw,relatime - overlay overlay rw,lowerdir=/x\n\
             701 700 259:2 /data /data rw shared:1 master:2 - ext4 /dev/nvme0n1p2 rw\n\
             702 700 0:60 / /data/my\\040share rw - nfs4 server:/a\\134b rw\n\
             703 700 0:61 / /data rw - xfs /dev/mapper/data rw\n\
             garbage\n\n704 700 0:62 / /half\n",
        );
        let of = |path: &str| {
            let mount = mounts.of(Path::new(path)).unwrap();
            (mount.point.to_str().unwrap(), mount.kind.as_str(), mount.device.as_str())
        };
        assert_eq!(of("/"), ("/", "overlay", "overlay"));
        assert_eq!(of("/var/lib/gangline"), ("/", "overlay", "overlay"));
        assert_eq!(of("/database"), ("/", "overlay", "overlay"));
        assert_eq!(of("/data/run"), ("/data", "xfs", "/dev/mapper/data"));
        assert_eq!(of("/data/my share/x"), ("/data/my share", "nfs4", "server:/a\\b"));
        assert_eq!(Mounts::default().of(Path::new("/")), None);
    }
}
