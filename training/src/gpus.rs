//! Whether the GPUs of a gang do anything: a training that goes on draws a pattern of power and
//! utilisation, one that hangs draws a flat line, be it at nothing or at all of it (ranks that wait in
//! a collective count as busy).

/// Readings that say something about a GPU at least.
const LEAST: usize = 3;
/// A line is flat when it stays within this: percent of utilisation, watts, and share of the power.
const UTILIZATION_BAND: f64 = 10.0;
const POWER_BAND_W: f64 = 15.0;
const POWER_BAND_SHARE: f64 = 0.05;
/// Tensor cores that work do so above this share, and never quite evenly.
const TENSOR_WORKS: f64 = 0.05;
const TENSOR_BAND: f64 = 0.01;
/// Above this many bytes a second the ranks of a gang talk to each other.
const RDMA_WORKS: f64 = 1_000_000.0;

/// What the readings of the last minutes say together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pattern {
    /// Some GPU was not read, or there is none.
    Unknown,
    Works,
    Flat,
}

/// Readings of one GPU over the last minutes, oldest first.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Gpu {
    /// Percent.
    pub utilization: Vec<f64>,
    pub power_w: Vec<f64>,
    /// 0 to 1; empty where it cannot be read.
    pub tensor: Vec<f64>,
}

impl Gpu {
    fn pattern(&self) -> Pattern {
        let spread = |values: &[f64]| {
            let low = values.iter().copied().fold(f64::INFINITY, f64::min);
            let high = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            (values.len() >= LEAST).then_some((high - low, high))
        };
        let tensor = spread(&self.tensor)
            .is_some_and(|(spread, high)| high > TENSOR_WORKS && spread > TENSOR_BAND);
        let (utilization, power) = (spread(&self.utilization), spread(&self.power_w));
        let busy = utilization.is_some_and(|(spread, _)| spread > UTILIZATION_BAND);
        let power_works =
            power.is_some_and(|(spread, high)| spread > POWER_BAND_W.max(high * POWER_BAND_SHARE));
        if tensor || busy || power_works {
            return Pattern::Works;
        }
        if utilization.is_none() && power.is_none() { Pattern::Unknown } else { Pattern::Flat }
    }
}

/// The pattern of a gang: one GPU that works is enough for all. `rdma` has the bytes a second of the
/// nodes that are the gang's alone.
pub fn pattern(gpus: &[Gpu], rdma: &[Vec<f64>]) -> Pattern {
    let talks = |values: &Vec<f64>| {
        let mean = values.iter().sum::<f64>() / values.len().max(1) as f64;
        mean > RDMA_WORKS
    };
    if rdma.iter().any(talks) {
        return Pattern::Works;
    }
    let mut all = if gpus.is_empty() { Pattern::Unknown } else { Pattern::Flat };
    for gpu in gpus {
        match gpu.pattern() {
            Pattern::Works => return Pattern::Works,
            Pattern::Unknown => all = Pattern::Unknown,
            Pattern::Flat => {}
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(utilization: &[f64], power_w: &[f64], tensor: &[f64]) -> Gpu {
        let [utilization, power_w, tensor] = [utilization, power_w, tensor].map(<[f64]>::to_vec);
        Gpu { utilization, power_w, tensor }
    }

    #[test]
    fn flat_lines_at_any_height() {
        let idle = gpu(&[0.0, 0.0, 0.0], &[71.0, 70.5, 71.2], &[]);
        let waits = gpu(&[100.0, 100.0, 99.0], &[182.0, 185.0, 183.0], &[0.0, 0.0, 0.01]);
        assert_eq!(pattern(&[idle.clone(), waits.clone()], &[]), Pattern::Flat);
        // One rank that works, by any of its signs.
        for works in [
            gpu(&[40.0, 90.0, 70.0], &[300.0, 305.0, 302.0], &[]),
            gpu(&[100.0, 100.0, 100.0], &[420.0, 690.0, 700.0], &[]),
            gpu(&[100.0, 100.0, 100.0], &[690.0, 690.0, 690.0], &[0.40, 0.43, 0.41]),
        ] {
            assert_eq!(pattern(&[idle.clone(), works], &[]), Pattern::Works);
        }
        assert_eq!(pattern(std::slice::from_ref(&waits), &[vec![2e9; 3]]), Pattern::Works);
        assert_eq!(pattern(&[waits], &[vec![10.0; 3]]), Pattern::Flat);
    }

    #[test]
    fn what_was_not_read_is_not_known() {
        let flat = gpu(&[0.0; 3], &[70.0; 3], &[]);
        assert_eq!(pattern(&[], &[]), Pattern::Unknown);
        assert_eq!(pattern(&[flat.clone(), Gpu::default()], &[]), Pattern::Unknown);
        assert_eq!(pattern(&[gpu(&[0.0; 2], &[70.0; 2], &[])], &[]), Pattern::Unknown);
        assert_eq!(pattern(&[flat], &[Vec::new()]), Pattern::Flat);
    }
}
