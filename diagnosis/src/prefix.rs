//! What stands before the message of a line: the names that Ray, launchers and loggers put there.

use regex::Regex;

use crate::pattern::Pattern;

/// Most prefixes of one line that are taken off.
const MAX_PREFIXES: usize = 10;

/// How serious the writer says a line is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Level {
    Info,
    Warning,
    Error,
}

/// A line without its prefixes, and what they said.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Message<'a> {
    pub(crate) text: &'a str,
    pub(crate) rank: Option<u32>,
    /// The process that wrote it, as its prefix names it.
    pub(crate) writer: Option<&'a str>,
    pub(crate) level: Option<Level>,
}

/// One prefix. Each alternative stands for one habit.
static PREFIX: Pattern = Pattern::new(|| {
    let clock =
        r"[0-2]?[0-9]:[0-5][0-9]:[0-6][0-9](?:[.,][0-9]{1,9})?(?:Z|[+-][0-9]{2}:?[0-9]{2})?";
    let date = format!(
        r"(?:(?:20[0-9]{{2}}[-/][01][0-9][-/][0-3][0-9][T ]|(?:[A-Z][a-z]{{2}} )?[A-Z][a-z]{{2}} {{1,2}}[0-9]{{1,2}} |[01][0-9]-[0-3][0-9] )?{clock}(?: 20[0-9]{{2}})?)"
    );
    let level = "DEBUG|INFO|NOTICE|WARN|WARNING|ERROR|CRITICAL|FATAL|SEVERE";
    let form = [
        // Ray and vLLM: (WorkerDict pid=42301, ip=10.200.109.9), (raylet), (autoscaler +34s).
        r"\((?P<writer>[^()\s]{1,80}(?: [A-Z]{2}[0-9]{1,4}){0,3} (?:pid|rank)=[^()]{1,80}|pid=[0-9]{1,10}(?:, [^()]{1,80})?|raylet(?:, [^()]{1,60})?|gcs_server|driver|autoscaler [^()]{1,20})\)".to_owned(),
        // Ranks: [rank3]:, rank3:, [default3]:, [Rank 3], [1,12]<stdout>:, srun -l.
        r"\[?(?:rank|default) ?(?P<rank>[0-9]{1,5})\]?:".to_owned(),
        r"\[[0-9]+,(?P<mpi>[0-9]{1,5})\]<std(?:out|err)>:".to_owned(),
        r"(?P<label>[0-9]{1,4}):(?: |$)".to_owned(),
        // Parts of a program, as launchers name them: [rollout-1], [trainer], server@host |.
        r"\[(?P<part>(?:trainer|driver|actor|critic|ref|rollout|worker|engine|server|learner|launcher|node|proc|agent|controller|scheduler|router|inference|policy|reward|master)(?:[-_ ]?[0-9]{1,4})?)\] ".to_owned(),
        r"(?P<at>[a-z][\w-]{1,30}@[\w.-]{1,40}) \| ?".to_owned(),
        // Containers, as kubectl and compose name them: [pod/ppo-0/main], worker-1  |.
        r"\[(?P<pod>pod/[a-z0-9./-]{1,120})\] ".to_owned(),
        r"(?P<container>[a-z][a-z0-9._-]{0,60}[-_][0-9]{1,4}) +\| ?".to_owned(),
        // A glog bracket: [E323 04:11:08.408271257 ProcessGroupNCCL.cpp:607], and without it.
        format!(r"\[?(?P<glog>[EWIF])(?:[0-9]{{3,4}} {clock})?(?: +[0-9]+)? [\w./-]+\.(?:cpp|cc|h|cu|py|c):[0-9]+\]"),
        // Times, in brackets with more, or bare.
        format!(r"\[{date}(?: (?P<ray>[DIWEFC]) [0-9]+(?: [0-9]+)?)?[^\[\]]{{0,60}}\]"),
        format!(r"{date}:?"),
        r"\[ *[0-9]{1,9}\.[0-9]{6}\]".to_owned(),
        r"std(?:out|err) [FP]".to_owned(),
        // Hosts, as pdsh and syslog name them.
        r"[a-z][a-z0-9.-]*[0-9][a-z0-9.-]*: ".to_owned(),
        r"(?:[\w.-]+ )?kernel:".to_owned(),
        // Levels, in the forms of logging, loguru and of Hugging Face.
        format!(r"\[(?P<boxed>{level})(?:\|[^\[\]]{{1,60}})?\]:?"),
        format!(r"(?P<bare>{level})(?::|\b)"),
        format!(r"\|\s*(?P<piped>{level})\s*\|"),
        format!(r"- (?:[\w.]+ - )?(?P<dashed>{level})(?: -|:)"),
        // Files: [core.py:708], worker_base.py:574], node_manager.cc:3069:
        r"\[?[\w./-]+\.(?:cpp|cc|h|cu|py|c):[0-9]+(?:\]:?|:)".to_owned(),
        r"[\w.]+:[\w<>]+:[0-9]+ - ".to_owned(),
        r"\((?:raylet|gcs_server)\)".to_owned(),
        r"(?:>>|--) ".to_owned(),
    ];
    Regex::new(&format!(r"^\s?(?:{})[ \t]?", form.join("|"))).ok()
});

/// Takes the prefixes off `line`; the indentation behind them stays.
pub(crate) fn message(line: &str) -> Message<'_> {
    let mut message = Message { text: line, rank: None, writer: None, level: None };
    for _ in 0..MAX_PREFIXES {
        let Some(found) = PREFIX.captures(message.text) else { break };
        let text = |name: &str| found.name(name).map(|group| group.as_str());
        let rank = text("rank").or_else(|| text("mpi")).or_else(|| text("label"));
        let rank = rank.and_then(|number| number.parse().ok());
        let level = ["glog", "ray", "boxed", "bare", "piped", "dashed"].into_iter().find_map(text);
        let writer = ["writer", "part", "at", "pod", "container"].into_iter().find_map(text);
        let end = found.get(0).map_or(0, |whole| whole.end());
        message.rank = message.rank.or(rank);
        message.writer = message.writer.or(writer);
        message.level = message.level.or(level.map(level_of));
        message.text = message.text.get(end..).unwrap_or_default();
    }
    message
}

pub(crate) fn level_of(word: &str) -> Level {
    match word {
        "DEBUG" | "INFO" | "NOTICE" | "I" | "D" => Level::Info,
        "WARN" | "WARNING" | "W" => Level::Warning,
        _ => Level::Error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_go_and_the_message_stays() {
        let cases = [
            ("(WorkerDict pid=42301, ip=10.200.109.9) OSError: x", "OSError: x"),
            ("(pid=42301, ip=10.200.109.9) OSError: x", "OSError: x"),
            ("(pid=42301) OSError: x", "OSError: x"),
            ("[rank3]:   File \"a.py\", line 1, in f", "  File \"a.py\", line 1, in f"),
            ("[rank0]:[E323 04:11:08.408 ProcessGroupNCCL.cpp:607] [Rank 0] W", "[Rank 0] W"),
            (
                "(EngineCore_DP0 pid=4) ERROR 10-27 09:14:02 [core.py:708] ValueError: x",
                "ValueError: x",
            ),
            ("ERROR 04-16 02:10:11 worker_base.py:574]   File \"a\"", "  File \"a\""),
            ("[2023-04-21 11:42:07,118 E 412 412] (raylet) node_manager.cc:3069: 13 W", "13 W"),
            ("2025-07-15 10:15:34,582\tSUCC scripts", "SUCC scripts"),
            ("[2059101.402231] oom-kill:constraint", "oom-kill:constraint"),
            ("Nov 22 10:11:12 gpu-3 kernel: NVRM: Xid", "NVRM: Xid"),
            ("2019-06-04T08:13:44.884Z: [1,12]<stdout>:c:815:864 [0] t", "c:815:864 [0] t"),
            ("2024-01-01 10:00:00,123 - my.log - ERROR - text", "text"),
            ("2024-01-01 10:00:00.123 | ERROR    | a.b:func:12 - text", "text"),
            ("3: KeyError: 'x'", "KeyError: 'x'"),
            ("gpu-07: KeyError: 'x'", "KeyError: 'x'"),
            ("[INFO|trainer.py:2926] 2023-10-20 09:48:54,430 >> Saving", "Saving"),
            ("[rollout-1] ERROR 07-21 03:06:21 [core.py:588] ValueError: x", "ValueError: x"),
            ("sglang@t4-09 | [2025-12-11 01:17:11 TP0] watchdog timeout", "watchdog timeout"),
            ("[pod/ppo-worker-1/main] [rank9]: KeyError: 'x'", "KeyError: 'x'"),
            ("trainer-0  | KeyError: 'x'", "KeyError: 'x'"),
            ("(VllmWorker TP5 pid=289) ERROR 09-02 06:14:29 [a.py:559] KeyError: x", "KeyError: x"),
            ("ValueError: at line 3", "ValueError: at line 3"),
            ("train.py: error: unrecognized", "train.py: error: unrecognized"),
            ("", ""),
        ];
        for (line, text) in cases {
            assert_eq!(message(line).text, text, "{line}");
        }
    }

    #[test]
    fn prefixes_are_understood() {
        let read = message("(Worker pid=7) [rank12]:[W323 04:11:08.4 a.cpp:1] text");
        assert_eq!((read.rank, read.level), (Some(12), Some(Level::Warning)));
        assert_eq!(read.writer, Some("Worker pid=7"));
        let ray = message("[2026-11-22 11:39:45,747 I 5488 5533] actor_manager.cc:236: text");
        assert_eq!((ray.level, ray.text), (Some(Level::Info), "text"));
        assert_eq!(message("ERROR: x").level, Some(Level::Error));
        assert_eq!(message("x").level, None);
    }
}
