//! Whether what the attempts of one training have logged can be: no step lost, none done again beyond
//! what a fault may cost, and each line stored once.

/// What the attempts of a training have logged, in their order, and what it has done.
#[derive(Debug, Default)]
pub struct Story {
    /// Steps in the log of each attempt, as the coordinator has stored it; none for an attempt that
    /// did not come to a step.
    pub attempts: Vec<Vec<u32>>,
    /// Steps in the training's own file, over all attempts. It writes a step there right after it
    /// has logged it.
    pub done: Vec<u32>,
    /// Steps between two training checkpoints.
    pub interval: u32,
}

impl Story {
    /// How many steps were done more than once.
    ///
    /// # Errors
    /// What cannot be.
    pub fn judge(&self) -> Result<u32, String> {
        let mut done = self.done.iter().copied().peekable();
        let (mut last, mut repeated) = (0, 0);
        let numbered = (1..).zip(&self.attempts).filter(|(_, steps)| !steps.is_empty());
        for (number, steps) in numbered {
            let first = steps.first().copied().unwrap_or_default();
            if let Some(pair) = steps.windows(2).find(|pair| pair[1] != pair[0] + 1) {
                return Err(format!("attempt {number} logs step {} after {}", pair[1], pair[0]));
            }
            if first > last + 1 {
                return Err(format!("attempt {number} begins at {first} after step {last}"));
            }
            if self.interval == 0 || first % self.interval != 1 % self.interval {
                return Err(format!("attempt {number} begins at {first}, after no checkpoint"));
            }
            let again = last + 1 - first;
            if again > self.interval {
                return Err(format!("attempt {number} does {again} steps again, from {first}"));
            }
            repeated += again;
            let shorter = steps.split_last().map(|(_, rest)| rest).unwrap_or_default();
            for step in shorter {
                if done.next() != Some(*step) {
                    return Err(format!("attempt {number} logs {step}, which was not done"));
                }
            }
            last = steps.last().copied().unwrap_or_default();
            // It may have been killed between its log and its file.
            done.next_if_eq(&last);
        }
        match done.next() {
            Some(step) => Err(format!("step {step} was done, and no log has it")),
            None => Ok(repeated),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn story(attempts: &[&[u32]], done: &[u32]) -> Result<u32, String> {
        let attempts = attempts.iter().map(|steps| steps.to_vec()).collect();
        Story { attempts, done: done.to_vec(), interval: 3 }.judge()
    }

    #[test]
    fn steps_since_the_last_checkpoint_may_come_again() {
        assert_eq!(story(&[&[1, 2, 3, 4]], &[1, 2, 3, 4]), Ok(0));
        assert_eq!(story(&[&[1, 2, 3, 4], &[], &[4, 5]], &[1, 2, 3, 4, 4, 5]), Ok(1));
        // Killed before it noted step 5; step 6 was done, its checkpoint was not.
        assert_eq!(story(&[&[1, 2, 3, 4, 5], &[4, 5]], &[1, 2, 3, 4, 4, 5]), Ok(2));
        assert_eq!(story(&[&[1, 2, 3], &[1, 2]], &[1, 2, 3, 1, 2]), Ok(3));
    }

    #[test]
    fn what_cannot_be_is_said() {
        let wrong = |attempts: &[&[u32]], done: &[u32], word: &str| {
            let said = story(attempts, done).unwrap_err();
            assert!(said.contains(word), "{said}");
        };
        wrong(&[&[1, 2, 4]], &[1, 2, 3, 4], "logs step 4 after 2");
        wrong(&[&[1, 2, 2]], &[1, 2, 2], "logs step 2 after 2");
        wrong(&[&[1, 2], &[4]], &[1, 2, 4], "begins at 4 after step 2");
        wrong(&[&[1, 2, 3, 4], &[3]], &[1, 2, 3, 4, 3], "after no checkpoint");
        wrong(&[&[1, 2, 3, 4], &[1]], &[1, 2, 3, 4, 1], "does 4 steps again");
        wrong(&[&[1, 2]], &[1, 2, 3], "step 3 was done, and no log has it");
        wrong(&[&[1, 2], &[1, 2]], &[1, 2, 2], "attempt 2 logs 1");
        wrong(&[&[]], &[1], "step 1 was done");
    }
}
