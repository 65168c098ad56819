//! Text of models and users inside a log: prompts, answers, samples of data. It may speak of
//! errors, and none of them has happened.

use regex::Regex;

use crate::pattern::Pattern;

/// Most lines of a block whose end is waited for.
const MAX_BLOCK_LINES: usize = 400;
/// Longest line that can begin or end a block, in bytes.
const MAX_MARK_BYTES: usize = 4000;

/// A field of a record, or a heading, with text of a model or a user behind it.
static FIELD: Pattern = Pattern::new(|| {
    Regex::new(
        r#"(?i)(?:['"](?:prompts?|responses?|completions?|content|generated_text|outputs?|questions?|answers?|solution|messages|role|instruction|samples?|input_text|output_text|solution_str|ground_truth|chosen|rejected)['"]\s*:\s*['"\[{]|^\s*[("'\[]*(?:prompts?|responses?|completions?|generated(?: text)?|model (?:output|response|answer)|questions?|answers?|solution|user|assistant|human|sample(?: \w+)?|example(?: output)?|output)\s*(?:#?[0-9]+\s*)?[:>]\s*\S|(?:^|[\s\]])(?:tool (?:call|answer|output|result|python|bash)|reply|question|answer|prompt|chosen|rejected|verdict|completion)\s*:\s*\S|^[QA](?: \([^)]{1,20}\))?:\s|\b(?:stderr|stdout|observation|output)\s?[=:]?\s?["“]|\b(?:sample|prompt|completion|response|generation|episode)\s\S{1,40}(?: \S{1,40}){0,3}\s?:\s?["“]|<\|im_start\|>\w|^\s*>\s)"#,
    ).ok()
});

static OPENS: Pattern = Pattern::new(|| {
    Regex::new(
        r"(?i)^\s*(?:>>> ?(?:generated|response|completion|answer|sample|code|output)|\[(?:prompts?|responses?|completions?|outputs?|generation|sequence|solution|model_output)\]|```|<\|?(?:im_start|user|assistant|think|answer)\|?>|-{2,}\s*(?:begin |start )?(?:prompt|response|completion|sample|generation|output|model output|generated text)\b.{0,20}-{2,})",
    ).ok()
});

static CLOSES: Pattern = Pattern::new(|| {
    Regex::new(
        r"(?i)(?:^\s*(?:>>> |\[(?:ground_truth|score|reward|len|label)\]|```\s*$|-{2,}\s*end\b.{0,30}-{2,})|</(?:think|answer)>|<\|(?:im_end|eot_id|endoftext|end)\|>)",
    ).ok()
});

/// Whether the line carries quoted text by itself.
pub(crate) fn is_quote(text: &str) -> bool {
    FIELD.fits(text)
}

/// Blocks of quoted text in one source. What is found inside a block waits until its end is seen;
/// a block without an end was none.
#[derive(Debug, Default)]
pub(crate) struct Blocks {
    open: Option<usize>,
}

/// What a line is to the block around it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Outside,
    /// Perhaps in a block.
    Inside,
    /// The block is over, and it was one.
    Closes,
    /// Its end never came: what was found inside counts.
    GivenUp,
}

impl Blocks {
    /// Where the next line stands.
    pub(crate) fn next(&mut self, text: &str) -> Place {
        let fits = |pattern: &Pattern| text.len() <= MAX_MARK_BYTES && pattern.fits(text);
        match self.open {
            // `<think>…</think>` on one line is a block of its own.
            None if fits(&OPENS) && text.contains("</") => Place::Closes,
            None if fits(&OPENS) => {
                self.open = Some(0);
                Place::Inside
            }
            None => Place::Outside,
            Some(_) if fits(&CLOSES) => {
                // The next block may begin on the same line.
                self.open = fits(&OPENS).then_some(0);
                Place::Closes
            }
            Some(lines) if lines >= MAX_BLOCK_LINES => {
                self.open = None;
                Place::GivenUp
            }
            Some(lines) => {
                self.open = Some(lines + 1);
                Place::Inside
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_carry_quotes() {
        for text in [
            r#"{"prompt": "Fix this: CUDA out of memory", "response": "Use a smaller batch"}"#,
            "Response: RuntimeError: CUDA out of memory means that",
            "> OSError: [Errno 28] No space left on device",
            "{'role': 'user', 'content': 'Traceback'}",
            r#"(sandbox) exit=1 stderr="RuntimeError: CUDA error: out of memory""#,
            r#"episode 3: command exited 1, output "OSError: [Errno 28] No space left on device""#,
            r#"sample 5 of prompt 8821: "the connection timed out, so""#,
            r#"sample generation @20: "... RuntimeError: CUDA out of memory happens when""#,
            "(\"Prompt: <|im_start|>user\\nan illegal memory access was encountered",
        ] {
            assert!(is_quote(text), "{text}");
        }
        for text in ["KeyError: 'content'", "RuntimeError: x", "Output directory: /data"] {
            assert!(!is_quote(text), "{text}");
        }
    }

    #[test]
    fn a_block_has_an_end() {
        let mut blocks = Blocks::default();
        let lines = ["x", "[response] Traceback", "KeyError: 1", "[ground_truth] 3", "y"];
        let places = lines.map(|line| blocks.next(line));
        let expected =
            [Place::Outside, Place::Inside, Place::Inside, Place::Closes, Place::Outside];
        assert_eq!(places, expected);
        blocks.next("```");
        let places: Vec<Place> = (0..MAX_BLOCK_LINES + 1).map(|_| blocks.next("x")).collect();
        assert_eq!(places.last(), Some(&Place::GivenUp));
    }
}
