//! Many processes by where they stand: those with the same stack together, and the odd ones named.
//!
//! In a hang, all ranks but one wait in the same collective, and the one that is elsewhere is why.

use std::collections::BTreeMap;
use std::fmt::Display;

/// One process and its stacks, as `py-spy dump` or the kernel prints them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process<'a, T> {
    /// Whose it is.
    pub owner: T,
    /// Its command line: only processes that do the same are compared.
    pub title: &'a str,
    pub text: &'a str,
}

/// Processes whose main threads stand at the same place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group<T> {
    /// What they are, from their titles.
    pub kind: String,
    /// Innermost first.
    pub frames: Vec<String>,
    pub owners: Vec<T>,
    /// Most processes of their kind, and at least two, are elsewhere, all at one place.
    pub odd: bool,
}

/// Processes by their kinds and places: only what differs is kept, however many there are.
#[derive(Debug, Clone)]
pub struct Groups<T> {
    kinds: BTreeMap<String, BTreeMap<Vec<String>, Vec<T>>>,
}

impl<T> Default for Groups<T> {
    fn default() -> Self {
        Groups { kinds: BTreeMap::new() }
    }
}

impl<T> Groups<T> {
    pub fn add(&mut self, process: Process<'_, T>) {
        let places = self.kinds.entry(kind(process.title)).or_default();
        places.entry(main_stack(process.text)).or_default().push(process.owner);
    }

    /// The largest first; odd ones at the end of their kind.
    #[must_use]
    pub fn finish(self) -> Vec<Group<T>> {
        let mut kinds: Vec<_> = self.kinds.into_iter().collect();
        let count = |places: &BTreeMap<Vec<String>, Vec<T>>| -> usize {
            places.values().map(Vec::len).sum()
        };
        kinds.sort_by_key(|(_, places)| std::cmp::Reverse(count(places)));
        let mut groups = Vec::new();
        for (kind, places) in kinds {
            let all = count(&places);
            let largest = places.values().map(Vec::len).max().unwrap_or(0);
            let agree = largest >= 2 && 2 * largest > all;
            let mut of_kind: Vec<Group<T>> = places
                .into_iter()
                .map(|(frames, owners)| {
                    let odd = agree && owners.len() < largest;
                    Group { kind: kind.clone(), frames, owners, odd }
                })
                .collect();
            of_kind.sort_by_key(|group| std::cmp::Reverse(group.owners.len()));
            groups.append(&mut of_kind);
        }
        groups
    }
}

/// Groups of processes, the largest first; odd ones at the end of their kind.
#[must_use]
pub fn group<'a, T>(processes: impl IntoIterator<Item = Process<'a, T>>) -> Vec<Group<T>> {
    let mut groups = Groups::default();
    processes.into_iter().for_each(|process| groups.add(process));
    groups.finish()
}

/// Most places apart that a sentence names, and most owners at each.
const PLACES: usize = 3;
const NAMED: usize = 4;
/// Longest place in a sentence, in characters.
const PLACE_CHARS: usize = 120;

/// What the groups say, in one sentence: who is not where the others of its kind are, or that none is
/// apart. `None` when nothing was seen.
#[must_use]
pub fn sentence<T: Display>(groups: &[Group<T>]) -> Option<String> {
    let largest = groups.first()?;
    let Some(odd) = groups.iter().find(|group| group.odd) else {
        return Some(match groups {
            [one] => format!("all {} processes are in {}", one.owners.len(), place(&one.frames)),
            _ => format!(
                "none stands apart: {} {} are in {}",
                largest.owners.len(),
                largest.kind,
                place(&largest.frames)
            ),
        });
    };
    let kind = |group: &&Group<T>| group.kind == odd.kind;
    let most = groups.iter().filter(kind).max_by_key(|group| group.owners.len())?;
    let apart: Vec<&Group<T>> = groups.iter().filter(kind).filter(|group| group.odd).collect();
    let said = apart.iter().take(PLACES).map(|group| {
        let mut named: Vec<String> = group.owners.iter().take(NAMED).map(T::to_string).collect();
        if group.owners.len() > NAMED {
            named.push(format!("{} more", group.owners.len() - NAMED));
        }
        format!("{} in {}", named.join(", "), place(&group.frames))
    });
    let said: Vec<String> = said.collect();
    let further: usize = apart.iter().skip(PLACES).map(|group| group.owners.len()).sum();
    let further = if further > 0 { format!(", {further} elsewhere") } else { String::new() };
    Some(format!(
        "{}{further}; the others are not there: {} in {}",
        said.join(", "),
        most.owners.len(),
        place(&most.frames)
    ))
}

/// The innermost frame. What a process says of itself is cut, and has no control characters.
fn place(frames: &[String]) -> String {
    let innermost = frames.first().map_or("nothing", String::as_str);
    innermost.chars().filter(|c| !c.is_control()).take(PLACE_CHARS).collect()
}

/// What a process is: the class of an actor of Ray's, or program and script.
fn kind(title: &str) -> String {
    let mut words = title.split_whitespace();
    let first = words.next().unwrap_or_default();
    if let Some(actor) = first.strip_prefix("ray::") {
        let class = actor.split('.').next().unwrap_or_default();
        return format!("ray::{class}");
    }
    let name = |path: &str| path.rsplit('/').next().unwrap_or_default().to_owned();
    let mut rest = words.skip_while(|word| word.starts_with('-') && !["-m", "-c"].contains(word));
    match (rest.next(), rest.next()) {
        (Some("-m"), Some(module)) => format!("{} -m {module}", name(first)),
        (Some("-c"), _) => format!("{} -c", name(first)),
        (Some(script), _) => format!("{} {}", name(first), name(script)),
        (None, _) => name(first),
    }
}

/// The frames of the main thread, innermost first; without any, what is said of the thread.
fn main_stack(text: &str) -> Vec<String> {
    let mut threads: Vec<(&str, Vec<String>)> = Vec::new();
    for line in text.lines() {
        if let Some(header) = line.strip_prefix("Thread ") {
            threads.push((header, Vec::new()));
        } else if let (true, Some((_, frames))) =
            (line.starts_with([' ', '\t']), threads.last_mut())
        {
            frames.push(line.trim().to_owned());
        }
    }
    let main = threads.iter().position(|(header, _)| header.contains("\"MainThread\""));
    match threads.into_iter().nth(main.unwrap_or(0)) {
        Some((_, frames)) if !frames.is_empty() => frames,
        // Its number says nothing of where it stands.
        Some((header, _)) => {
            vec![header.split_once(' ').map_or(header, |(_, rest)| rest).to_owned()]
        }
        None => vec![text.lines().next().unwrap_or("nothing").to_owned()],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dump(pid: u32, place: &str) -> String {
        format!(
            "Process {pid}: python train.py\nPython v3.11.7 (/usr/bin/python3.11)\n\n\
             Thread {} (idle): \"bg\"\n    run (threading.py:{pid})\n\
             Thread {pid} (active): \"MainThread\"\n    {place}\n    <module> (train.py:9)\n",
            pid + 1
        )
    }

    #[test]
    fn the_rank_that_is_elsewhere_is_odd() {
        let texts: Vec<String> = (0..8)
            .map(|rank| match rank {
                5 => dump(rank, "read (data.py:88)"),
                _ => dump(rank, "all_reduce (distributed.py:2501)"),
            })
            .collect();
        let process = |(rank, text)| Process {
            owner: rank,
            title: "/usr/bin/python3 -u train.py --rank",
            text,
        };
        let groups = group(texts.iter().map(String::as_str).enumerate().map(process));
        let [most, odd] = &groups[..] else { panic!("{groups:?}") };
        assert_eq!(most.owners, [0, 1, 2, 3, 4, 6, 7]);
        assert_eq!(most.frames, ["all_reduce (distributed.py:2501)", "<module> (train.py:9)"]);
        assert_eq!((odd.owners.as_slice(), odd.odd, most.odd), (&[5][..], true, false));
        assert_eq!(odd.kind, "python3 train.py");
    }

    #[test]
    fn processes_that_do_other_things_are_not_compared() {
        let (a, b) = (dump(1, "wait (a.py:1)"), dump(2, "loop (b.py:2)"));
        let process = |owner, title, text| Process { owner, title, text };
        let groups = group([
            process("driver", "python main.py", &b),
            process("w0", "ray::Worker.step", &a),
            process("w1", "ray::Worker.step", &a),
            process("w2", "ray::Worker.save", &a),
        ]);
        assert_eq!(groups[0].owners, ["w0", "w1", "w2"]);
        assert_eq!((groups[1].owners.as_slice(), groups[1].odd), (&["driver"][..], false));
    }

    #[test]
    fn two_that_differ_do_not_tell_which_is_odd() {
        let (a, b) = (dump(1, "wait (a.py:1)"), dump(2, "loop (b.py:2)"));
        let process = |owner, text| Process { owner, title: "ray::W", text };
        assert!(group([process(0, &a), process(1, &b)]).iter().all(|group| !group.odd));
        let two_of_each = [process(0, &a), process(1, &b), process(2, &a), process(3, &b)];
        assert!(group(two_of_each).iter().all(|group| !group.odd));
    }

    #[test]
    fn what_the_kernel_says_is_compared_without_numbers() {
        let thread = |pid: u32, wchan: &str| {
            format!("Thread {pid} (D (disk sleep)): \"python\" wchan {wchan}\n")
        };
        let texts = [thread(1, "nfs_wait"), thread(2, "futex_wait"), thread(3, "futex_wait")];
        let process = |(owner, text)| Process { owner, title: "python -m torch.run x", text };
        let groups = group(texts.iter().map(String::as_str).enumerate().map(process));
        assert_eq!(groups[0].frames, ["(D (disk sleep)): \"python\" wchan futex_wait"]);
        assert_eq!((groups[1].owners.as_slice(), groups[1].odd), (&[0][..], true));
        assert_eq!(groups[0].kind, "python -m torch.run");
    }

    #[test]
    fn one_sentence_names_who_is_apart() {
        let place = |rank: u32| match rank {
            5 => "read (data.py:88)",
            6 => "save (ckpt.py:9)\u{1b}[2J",
            _ => "all_reduce (distributed.py:2501)",
        };
        let texts: Vec<String> = (0..8).map(|rank| dump(rank, place(rank))).collect();
        let process = |(rank, text)| Process {
            owner: format!("rank {rank} on n{rank}"),
            title: "python train.py",
            text,
        };
        let all = || texts.iter().map(String::as_str).enumerate().map(process);
        assert_eq!(
            sentence(&group(all())).unwrap(),
            "rank 5 on n5 in read (data.py:88), rank 6 on n6 in save (ckpt.py:9)[2J; the others are \
             not there: 6 in all_reduce (distributed.py:2501)"
        );
        assert_eq!(
            sentence(&group(all().take(5))).unwrap(),
            "all 5 processes are in all_reduce (distributed.py:2501)"
        );
        let two = sentence(&group(all().skip(5).take(2))).unwrap();
        assert!(two.starts_with("none stands apart: 1 python train.py are in "), "{two}");
        let last = sentence(&group(all().skip(6).take(1))).unwrap();
        assert_eq!(last, "all 1 processes are in save (ckpt.py:9)[2J");
        assert_eq!(sentence::<u32>(&[]), None);
    }

    #[test]
    fn anything_has_a_place() {
        for text in ["", "\n\n", "Thread", "Thread \n", "   x\n", "py-spy: it failed"] {
            assert_eq!(main_stack(text).len(), 1, "{text:?}");
        }
        assert_eq!(kind(""), "");
    }
}
