//! Scales from values to coordinates, and their ticks. Plain arithmetic: the same values give the
//! same bytes on every machine.

/// Linear or logarithmic scale from `domain` (values) to `range` (coordinates).
#[derive(Debug, Clone, Copy)]
pub struct Scale {
    domain: (f64, f64),
    range: (f64, f64),
    log: bool,
}

/// Tick of an axis: its value and its label.
#[derive(Debug, Clone, PartialEq)]
pub struct Tick {
    pub value: f64,
    pub label: String,
}

impl Scale {
    /// Creates a linear scale. A domain whose end is not above its start becomes one unit wide.
    pub fn linear(domain: (f64, f64), range: (f64, f64)) -> Self {
        let domain = if domain.1 > domain.0 { domain } else { (domain.0, domain.0 + 1.0) };
        Self { domain, range, log: false }
    }

    /// Creates a logarithmic scale over the whole decades that contain `domain`. Values outside of
    /// it are drawn at its edge.
    pub fn log(domain: (f64, f64), range: (f64, f64)) -> Self {
        let low = domain.0.max(f64::MIN_POSITIVE).log10().floor();
        let high = domain.1.max(f64::MIN_POSITIVE).log10().ceil().max(low + 1.0);
        Self { domain: (low, high), range, log: true }
    }

    /// Returns the coordinate of `value`, clamped to the range.
    pub fn at(&self, value: f64) -> f64 {
        let value = if self.log { value.max(f64::MIN_POSITIVE).log10() } else { value };
        let share = (value - self.domain.0) / (self.domain.1 - self.domain.0);
        self.range.0 + share.clamp(0.0, 1.0) * (self.range.1 - self.range.0)
    }

    /// Returns about `wanted` ticks at round numbers: 1, 2 or 5 times a power of ten. On a
    /// logarithmic scale the ticks are powers of ten, fewer where there are more than `wanted`, and
    /// twice and five times these where there are few.
    pub fn ticks(&self, wanted: u32) -> Vec<Tick> {
        if self.log {
            return self.decades(wanted);
        }
        let step = round_step((self.domain.1 - self.domain.0) / f64::from(wanted.max(1)));
        // Rounding errors must not drop a tick at an end of the domain.
        let first = (self.domain.0 / step - 1e-9).ceil();
        let last = (self.domain.1 / step + 1e-9).floor();
        counted(first, last)
            .map(|index| {
                let value = index * step;
                Tick { value, label: tick_label(value, step) }
            })
            .collect()
    }

    fn decades(&self, wanted: u32) -> Vec<Tick> {
        let (low, high) = self.domain;
        let stride = ((high - low + 1.0) / f64::from(wanted.max(1))).ceil().max(1.0);
        let factors: &[f64] = if high - low <= 2.0 { &[1.0, 2.0, 5.0] } else { &[1.0] };
        let last = 10_f64.powf(high) * (1.0 + 1e-9);
        counted(0.0, ((high - low) / stride).floor())
            .flat_map(|index| factors.iter().map(move |factor| (index, *factor)))
            .map(|(index, factor)| factor * 10_f64.powf(low + index * stride))
            .filter(|value| *value <= last)
            .map(|value| Tick { value, label: tick_label(value, value.min(1.0)) })
            .collect()
    }
}

/// Rounds `value` up to a round number, for the end of an axis that begins at zero; 1 for a value
/// that is not positive.
pub fn round_up(value: f64) -> f64 {
    if value <= 0.0 {
        return 1.0;
    }
    let step = round_step(value / 5.0);
    (value / step - 1e-9).ceil() * step
}

fn counted(first: f64, last: f64) -> impl Iterator<Item = f64> {
    // An axis has few ticks; the bound stops an endless loop if a step were wrong.
    (0_u32..64).map(move |index| first + f64::from(index)).take_while(move |index| *index <= last)
}

fn round_step(rough: f64) -> f64 {
    let power = 10_f64.powf(rough.max(f64::MIN_POSITIVE).log10().floor());
    let factor = match rough / power {
        share if share <= 1.0 + 1e-9 => 1.0,
        share if share <= 2.0 + 1e-9 => 2.0,
        share if share <= 5.0 + 1e-9 => 5.0,
        _ => 10.0,
    };
    factor * power
}

/// Formats the label of a tick: numbers below 10,000 as they are, with at most six decimals, and
/// larger ones as `10k`, `2.5M`. A value within half of `step` of zero is `0`.
fn tick_label(value: f64, step: f64) -> String {
    for (limit, divisor, suffix) in
        [(1e12, 1e12, "T"), (1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k")]
    {
        if value.abs() >= limit {
            return format!("{}{suffix}", trimmed(value / divisor));
        }
    }
    if value.abs() < step / 2.0 {
        return "0".to_owned();
    }
    trimmed(value).replace('-', "\u{2212}")
}

fn trimmed(value: f64) -> String {
    let text = format!("{value:.6}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(scale: Scale, wanted: u32) -> String {
        let ticks: Vec<String> = scale.ticks(wanted).into_iter().map(|tick| tick.label).collect();
        ticks.join(" ")
    }

    #[test]
    fn ticks_stand_on_round_numbers() {
        for (domain, expected) in [
            ((0.0, 1.0), "0 0.2 0.4 0.6 0.8 1"),
            ((0.0, 4300.0), "0 1000 2000 3000 4000"),
            ((-3.0, 3.0), "\u{2212}2 0 2"),
            ((0.0, 1e12), "0 200G 400G 600G 800G 1T"),
            ((0.0, 0.0), "0 0.2 0.4 0.6 0.8 1"),
        ] {
            assert_eq!(labels(Scale::linear(domain, (0.0, 100.0)), 5), expected, "{domain:?}");
        }
        assert_eq!(labels(Scale::log((0.3, 900.0), (0.0, 100.0)), 5), "0.1 1 10 100 1000");
        assert_eq!(labels(Scale::log((1.0, 1.0), (0.0, 100.0)), 5), "1 2 5 10");
    }

    #[test]
    fn values_beyond_the_scale_stay_on_its_edge() {
        let scale = Scale::linear((0.0, 10.0), (20.0, 120.0));
        assert!((scale.at(5.0) - 70.0).abs() < 1e-9);
        assert!((scale.at(99.0) - 120.0).abs() < 1e-9);
        let log = Scale::log((1.0, 1000.0), (0.0, 300.0));
        assert!((log.at(10.0) - 100.0).abs() < 1e-9);
        assert!(log.at(0.0).abs() < 1e-9);
    }

    #[test]
    fn the_end_of_an_axis_is_round() {
        for (value, expected) in [(0.0, 1.0), (987.0, 1000.0), (1001.0, 1500.0), (0.013, 0.015)] {
            assert!((round_up(value) - expected).abs() < expected * 1e-9, "{value}");
        }
    }
}
