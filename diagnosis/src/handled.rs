//! What a line says about an error besides the error itself: that it was dealt with, or that it is only one of
//! several that may have happened.

use std::borrow::Cow;

use regex::Regex;

use crate::pattern::Pattern;

/// The error was caught, or there is another way.
static HANDLED: Pattern = Pattern::new(|| {
    Regex::new(
        r"(?ix)
        \b(?: skipp(?:ed|ing) | handled | ignor(?:ed|ing) | recovered | simulated
            | falling\ back | fall\ back | fallback | opened\ again | reconnected
            | will\ (?:continue|skip|use|fall|reconnect|start)
            | entering\ retry\ loop | still\ waiting | resum(?:ing|ed)\ normal | resolved\ after
            | starting\ (?:fresh|from\ (?:scratch|step\ 0)) | training\ from\ scratch
            | continuing | went\ on | goes\ on | not\ fatal | non-fatal | harmless
            | replac(?:ed|ing)\ (?:by|with|it) | (?:sample|example|row|item|image|batch)\ dropped
            | (?:will\ be|were|was)\ dropped | substitut(?:ed|ing) | accepting\ this
            | trying\ [0-9]+ | (?:score|reward)(?:\ is|\ set\ to|\s?[:=])?\s?-?[0-9.]+ | counted\ as\ (?:wrong|failed|0)
            | (?:given|returned|passed|passing\ [a-z]+)\ (?:back\ )?to\ (?:the\ )?(?:policy|model|agent)
            | as\ (?:an\ )?observation | fits
            | thrown\ while\ requesting | can\ be\ (?:safely\ )?ignored | using\ (?:the\ |a\ )?(?:default|local|cached|older|previous) | will\ not\ be\ used )\b
        | \bcaught(?:\s*$ | \s*[,.(] | \ (?:as|and|by)\b)
        | \.\.\.\ ok$ | ,\ ok$ | ->\ ok\b | \breward\ -?[0-9]
        ",
    )
    .ok()
});

/// The program tries the same again.
static AGAIN: Pattern = Pattern::new(|| {
    Regex::new(r"(?i)\b(?:retrying|trying again|will (?:be )?(?:retr(?:y|ied)|try))\b").ok()
});

/// It was tried for the last time, or what it falls back to is no way on for a training.
static GIVEN_UP: Pattern = Pattern::new(|| {
    Regex::new(
        r"(?i)giv(?:ing|en|e) up|gave up|exhausted|not retrying|no more (?:retries|attempts)|max(?:imum)? (?:number of )?(?:retries|attempts)|failed after|after [0-9]+ (?:retries|attempts|tries)|Max retries exceeded|fall(?:ing|s)? back to (?:the )?cpu",
    )
    .ok()
});

/// The n-th attempt of several.
static ATTEMPT: Pattern = Pattern::new(|| {
    Regex::new(
        r"(?i)\b(?:attempt|retry|try|trial)\b[ :#(]*([0-9]+) ?(?:of|/|out of) ?([0-9]+)|\bretrying \(([0-9]+)/([0-9]+)\)|\(([0-9]+)/([0-9]+)\)\.?$",
    )
    .ok()
});

/// What the same writer says right after an error that it has dealt with.
static DEALT_WITH: Pattern = Pattern::new(|| {
    Regex::new(
        r"(?ix)
        \b(?: fell\ back | reconnected | restored | recovered | succeeded\ (?:on|after)
            | (?:attempt|retry|try)\ [0-9]+(?:/[0-9]+)?:?\ (?:ok|succeeded|worked)
            | ok\ (?:on|after)\ (?:attempt|retry|try) | fits\b.{0,60}\busing | works\ now
            | is\ back | back\ (?:up|online) )\b
        ",
    )
    .ok()
});

/// An exception or an error, by how its line begins.
static ERROR: Pattern = Pattern::new(|| {
    Regex::new(
        r"^(?:\w+\.)*[A-Za-z]\w*(?:Error|Exception|Failure|Died|Exit)\b|(?i:^\S{0,40} ?(?:error|fatal|failed|exception)\b ?:)|(?i:\berror: )",
    )
    .ok()
});

/// Before a list of what may have happened.
const GUESSES: [&str; 6] = [
    "There are some potential root causes",
    "Possible reasons include",
    "Some common causes include",
    "Possible causes",
    "This is most likely caused by",
    "Additionally, this can be caused by",
];

/// Whether the line says that the program lives on with its error.
pub(crate) fn is_handled(text: &str) -> bool {
    if GIVEN_UP.fits(text) {
        return false;
    }
    if HANDLED.fits(text) {
        return true;
    }
    let again = AGAIN.fits(text);
    let Some(found) = ATTEMPT.captures(text) else { return again };
    let number = |group: usize| found.get(group).and_then(|n| n.as_str().parse::<u64>().ok());
    let count = |first: usize| number(first).zip(number(first + 1));
    // The last of several is tried, and nothing follows when it fails.
    if let Some((this, last)) = count(1).or_else(|| count(3)) {
        return this < last;
    }
    again || count(5).is_some_and(|(this, last)| this < last)
}

/// Whether the line says that an error that its writer has just reported is over.
pub(crate) fn deals_with(text: &str) -> bool {
    is_handled(text) || DEALT_WITH.fits(text) && !GIVEN_UP.fits(text)
}

/// Whether the line reports an error, and does not only speak of one.
pub(crate) fn is_error(text: &str) -> bool {
    ERROR.fits(text)
}

/// The line without what it only guesses.
pub(crate) fn known(text: &str) -> Cow<'_, str> {
    for guess in GUESSES {
        if let Some((before, _)) = text.split_once(guess) {
            return Cow::Owned(before.to_owned());
        }
    }
    Cow::Borrowed(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_that_were_dealt_with() {
        for text in [
            "OSError: bad sample 17, skipped",
            "Failed to connect to GCS at address 10.0.0.1:6379, trying again (1/5)",
            "Server disconnected, attempt 1 of 5",
            "sample 10 was dropped (10/10)",
            "cannot identify image file a.jpg, try 3/3, replaced by blank image",
            "Failed to download shard (attempt 3/3), skipping it",
            "retrying 3 of 3 shards after Connection timed out",
            "connect returned No route to host, retrying (33/34) after sleep for 3300 msec",
            "KeyError caught as expected",
            "cannot identify image file <_io.BytesIO object> -- sample dropped (1 so far)",
            "UnidentifiedImageError('x') id=7, replaced by blank image",
            "sandbox: exit=1 RuntimeError: CUDA error: out of memory -> score 0.0",
            "port 15000 is in use, trying 15001",
        ] {
            assert!(is_handled(text), "{text}");
        }
        for text in [
            "Server disconnected, attempt 5 of 5",
            "connect returned No route to host, retrying (34/34) after sleep for 3400 msec",
            "transport retry counter exceeded",
            "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB",
            "1/3 clients joined",
            "[Rank 0] Watchdog caught collective operation timeout: WorkNCCL",
            "upload failed after 3 attempts, retrying does not help",
            "Unhandled exception: N3c1016DistBackendErrorE",
        ] {
            assert!(!is_handled(text), "{text}");
        }
    }

    #[test]
    fn what_is_said_after_an_error_that_is_over() {
        for text in ["micro-batch 10 fits (peak 71 GiB); using 10", "tool call ok on retry 2"] {
            assert!(deals_with(text), "{text}");
        }
        for text in ["NCCL INFO Using network IB", "Exception raised from checkTimeout"] {
            assert!(!deals_with(text), "{text}");
        }
    }

    #[test]
    fn reports_of_errors() {
        for text in ["a.b.ConfigError: x", "ValueError: x", "train.py: error: x", "Error: x"] {
            assert!(is_error(text), "{text}");
        }
        for text in ["Flash Attention 2.0 only supports torch.float16", "error rate 0.0"] {
            assert!(!is_error(text), "{text}");
        }
    }

    #[test]
    fn guesses_are_left_out() {
        let text = "Worker exits. Some common causes include: (1) the OOM killer, (2) SIGSEGV";
        assert_eq!(known(text), "Worker exits. ");
        assert_eq!(known("plain"), "plain");
    }
}
