//! Rates from counters that only grow.

/// A reading that comes sooner after another one says nothing of a rate, in milliseconds: the times are those of
/// whole samples, and one sample may read the slow part twice.
const LEAST_MS: u64 = 500;

/// One counter of data that links have carried.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Traffic {
    /// When it was read last, in milliseconds of the boot clock, and what it was, in KiB.
    last: Option<(u64, u64)>,
    /// What was carried between the last two readings.
    pub(super) mib_per_s: Option<f64>,
}

impl Traffic {
    /// With another reading: a counter that was not read, went back or is read for the first time gives no rate.
    pub(super) fn read(self, at_ms: u64, kib: Option<u64>) -> Self {
        let last = kib.map(|kib| (at_ms, kib));
        let (Some((before_ms, before)), Some(kib)) = (self.last, kib) else {
            return Self { last, mib_per_s: None };
        };
        let elapsed_ms = at_ms.saturating_sub(before_ms);
        if elapsed_ms < LEAST_MS {
            return self;
        }
        let seconds = elapsed_ms as f64 / 1000.0;
        let carried = kib.checked_sub(before);
        Self { last, mib_per_s: carried.map(|kib| kib as f64 / 1024.0 / seconds) }
    }
}

#[cfg(test)]
mod tests {
    use super::Traffic;

    #[test]
    fn a_rate_is_of_two_readings_of_a_counter_that_grows() {
        let mut traffic = Traffic::default();
        let mut rates = Vec::new();
        for (at_ms, kib) in [
            (1000, Some(5000)),
            (11_000, Some(5000 + 20 * 1024)),
            // Too soon: what is known holds, and the next one counts from the reading before.
            (11_000, Some(5000 + 21 * 1024)),
            (12_000, Some(5000 + 28 * 1024)),
            (22_000, Some(5000 + 28 * 1024)),
            // The driver was loaded anew.
            (32_000, Some(0)),
            (34_000, Some(512)),
            (44_000, None),
            (54_000, Some(1024)),
            (64_000, Some(11 * 1024)),
        ] {
            traffic = traffic.read(at_ms, kib);
            rates.push(traffic.mib_per_s);
        }
        let expected = [
            None,
            Some(2.0),
            Some(2.0),
            Some(8.0),
            Some(0.0),
            None,
            Some(0.25),
            None,
            None,
            Some(1.0),
        ];
        assert_eq!(rates, expected);
    }
}
