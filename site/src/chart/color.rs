//! Colors of engines: the one place that assigns them. An engine has the same color on every page,
//! whatever other engines appear beside it. No engine is red, which is left for what became worse.

/// Engines with a color of their own; the index is that of the style sheet's color: `--s0` for the
/// first.
const ENGINES: [&str; 6] = ["redline", "vllm", "lmdeploy", "sglang", "llama.cpp", "tensorrt-llm"];

/// Number of colors in the style sheet: `--s0` and so on.
pub const COLORS: usize = 8;

/// Returns the index of the color of `engine` in the style sheet. Engines without a color of their
/// own share the colors that are left, each by a hash of its name.
pub fn of_engine(engine: &str) -> usize {
    let known = ENGINES.iter().position(|name| *name == engine);
    known.unwrap_or_else(|| {
        // FNV-1a, because a color must not depend on the other engines of a page.
        let step = |hash: u32, byte: u8| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
        let hash = engine.bytes().fold(0x811c_9dc5, step);
        let left = u32::try_from(COLORS - ENGINES.len()).unwrap_or(1);
        ENGINES.len() + usize::try_from(hash % left).unwrap_or(0)
    })
}

/// Returns the name of the style sheet's variable that has the color of `engine`, for scripts.
pub fn variable(engine: &str) -> String {
    format!("--s{}", of_engine(engine))
}

#[cfg(test)]
mod tests {
    use super::*;

    const STYLE: &str = include_str!("../../static/site.css");

    /// Red, green and blue, each from 0 to 1.
    type Rgb = [f64; 3];

    /// Returns the colors of a variable of the style sheet, in the light and in the dark theme.
    fn colors(variable: &str) -> [Rgb; 2] {
        let start = format!("{variable}: light-dark(");
        let (_, rest) = STYLE.split_once(&start).unwrap_or_else(|| panic!("no `{variable}`"));
        let (both, _) = rest.split_once(')').expect("an end");
        let mut both = both.split(", ").map(|hex| {
            let part = |at| f64::from(u8::from_str_radix(&hex[at..at + 2], 16).expect("hex"));
            [1, 3, 5].map(|at| part(at) / 255.0)
        });
        [both.next().expect("light"), both.next().expect("dark")]
    }

    fn linear(color: Rgb) -> Rgb {
        color.map(
            |part| if part <= 0.04045 { part / 12.92 } else { ((part + 0.055) / 1.055).powf(2.4) },
        )
    }

    fn luminance(color: Rgb) -> f64 {
        let [r, g, b] = linear(color);
        0.2126 * r + 0.7152 * g + 0.0722 * b
    }

    /// Contrast ratio of WCAG 2.
    fn contrast(a: Rgb, b: Rgb) -> f64 {
        let (a, b) = (luminance(a), luminance(b));
        (a.max(b) + 0.05) / (a.min(b) + 0.05)
    }

    /// Returns hue in degrees and saturation (HSV) of a color.
    fn hue([r, g, b]: Rgb) -> (f64, f64) {
        let (high, low) = (r.max(g).max(b), r.min(g).min(b));
        let span = (high - low).max(f64::MIN_POSITIVE);
        let hue = match high {
            high if high <= r => (g - b) / span,
            high if high <= g => 2.0 + (b - r) / span,
            _ => 4.0 + (r - g) / span,
        };
        ((hue * 60.0).rem_euclid(360.0), (high - low) / high.max(f64::MIN_POSITIVE))
    }

    /// Returns a color as people without red or green cones see it (Machado and others, 2009), in
    /// OKLab, where distances are those that people see.
    fn seen(color: Rgb, cones: [[f64; 3]; 3]) -> Rgb {
        let times =
            |m: [[f64; 3]; 3], v: Rgb| m.map(|row| row[0] * v[0] + row[1] * v[1] + row[2] * v[2]);
        let lms = times(
            [
                [0.412_221_5, 0.536_332_5, 0.051_446_0],
                [0.211_903_5, 0.680_699_5, 0.107_397_0],
                [0.088_302_5, 0.281_718_8, 0.629_978_7],
            ],
            times(cones, linear(color)).map(|part| part.clamp(0.0, 1.0)),
        );
        times(
            [
                [0.210_454_3, 0.793_617_8, -0.004_072_0],
                [1.977_998_5, -2.428_592_2, 0.450_593_7],
                [0.025_904_0, 0.782_771_8, -0.808_675_8],
            ],
            lms.map(f64::cbrt),
        )
    }

    const DEUTERANOPIA: [[f64; 3]; 3] = [
        [0.367_322, 0.860_646, -0.227_968],
        [0.280_085, 0.672_501, 0.047_413],
        [-0.011_820, 0.042_940, 0.968_881],
    ];
    const PROTANOPIA: [[f64; 3]; 3] = [
        [0.152_286, 1.052_583, -0.204_868],
        [0.114_503, 0.786_281, 0.099_216],
        [-0.003_882, -0.048_116, 1.051_998],
    ];

    #[test]
    fn an_engine_keeps_its_color_and_shares_none_with_the_known_ones() {
        let known: Vec<usize> = ENGINES.iter().map(|name| of_engine(name)).collect();
        assert_eq!(known, (0..ENGINES.len()).collect::<Vec<_>>());
        for other in ["mlc-llm", "ollama", "", "an engine of tomorrow"] {
            let color = of_engine(other);
            assert!((ENGINES.len()..COLORS).contains(&color), "{other} has {color}");
            assert_eq!(color, of_engine(other));
        }
        assert_eq!(variable("redline"), "--s0");
    }

    #[test]
    fn every_color_is_seen_on_the_paper_of_both_themes_and_none_is_red() {
        let paper = colors("--paper");
        for slot in 0..COLORS {
            let of_slot = colors(&format!("--s{slot}"));
            for (color, paper) in of_slot.into_iter().zip(paper) {
                let ratio = contrast(color, paper);
                assert!(ratio >= 3.0, "--s{slot} has a contrast of {ratio:.2}");
                let (hue, saturation) = hue(color);
                let is_red = saturation > 0.4 && !(28.0..335.0).contains(&hue);
                assert!(!is_red, "--s{slot} is red: hue {hue:.0}");
            }
        }
        for worse in colors("--worse") {
            let (hue, saturation) = hue(worse);
            assert!(saturation > 0.4 && !(28.0..335.0).contains(&hue), "--worse is not red");
        }
    }

    #[test]
    fn red_is_for_what_became_worse_or_failed() {
        let red = STYLE.lines().filter(|line| line.contains("var(--worse)"));
        let mut rules = 0;
        for line in red {
            // The last is the name of the project, under which a red line stands.
            let allowed = [".worse", ".bad", ".badge.loud", "border-bottom: 2px solid"];
            assert!(allowed.iter().any(|part| line.contains(part)), "red: {line}");
            rules += 1;
        }
        assert!(rules > 5, "{rules} rules use it");
    }

    #[test]
    fn engines_with_a_color_of_their_own_differ_for_people_who_do_not_see_red_and_green_apart() {
        for (a, b) in (0..ENGINES.len()).flat_map(|a| (0..a).map(move |b| (a, b))) {
            let (of_a, of_b) = (colors(&format!("--s{a}")), colors(&format!("--s{b}")));
            for (theme, (a_color, b_color)) in of_a.into_iter().zip(of_b).enumerate() {
                for cones in [DEUTERANOPIA, PROTANOPIA] {
                    let (x, y) = (seen(a_color, cones), seen(b_color, cones));
                    let square: f64 = x.iter().zip(y).map(|(x, y)| (x - y).powi(2)).sum();
                    assert!(square.sqrt() > 0.06, "--s{a} and --s{b}, theme {theme}: {square:?}");
                }
            }
        }
    }
}
