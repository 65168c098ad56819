//! Charts of one line: `▁▂▅█`.

const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// `values` in `width` characters, the newest last, from 0 to `top`. Values that share a character are
/// averaged; where there is none, there is a space.
pub fn sparkline(values: &[Option<f64>], width: usize, top: f64) -> String {
    let cells = values.len().min(width);
    let cell = |index: usize| {
        let from = index * values.len() / cells;
        let to = (index + 1) * values.len() / cells;
        let there = values.get(from..to).unwrap_or_default().iter().flatten();
        match mean(there.copied()) {
            None => ' ',
            Some(mean) => bar(mean, top),
        }
    };
    (0..cells).map(cell).collect()
}

fn bar(value: f64, top: f64) -> char {
    let share = if top > 0.0 { (value / top).clamp(0.0, 1.0) } else { 0.0 };
    // Between 0 and 7, so the cast and the index hold.
    let step = (share * 7.0).round() as usize;
    BARS.get(step).copied().unwrap_or(' ')
}

/// The mean; none of nothing.
pub fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, count) = values.fold((0.0, 0_u32), |(sum, count), value| (sum + value, count + 1));
    (count > 0).then(|| sum / f64::from(count))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_goes_from_nothing_to_the_top() {
        let rising: Vec<Option<f64>> = (0..8).map(|n| Some(f64::from(n))).collect();
        assert_eq!(sparkline(&rising, 60, 7.0), "▁▂▃▄▅▆▇█");
        assert_eq!(sparkline(&rising, 4, 7.0), "▂▄▆█");
        assert_eq!(sparkline(&[Some(5.0), None, Some(50.0)], 60, 10.0), "▅ █");
        assert_eq!(sparkline(&[], 60, 10.0), "");
        assert_eq!(sparkline(&[Some(0.0), Some(0.0)], 60, 0.0), "▁▁");
    }

    #[test]
    fn nothing_has_no_mean() {
        assert_eq!(mean([1.0, 2.0].into_iter()), Some(1.5));
        assert_eq!(mean(std::iter::empty()), None);
    }
}
