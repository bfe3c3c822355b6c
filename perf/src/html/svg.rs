//! Two kinds of charts as SVG: bars with a label above each, and lines. Widths of texts are guessed, on the safe side: nothing is
//! measured before a browser does.

use std::fmt::Write;

/// Of the drawing; the page shows it wider or narrower.
const WIDTH: f64 = 360.0;
/// Of a letter of 11 pixels, in a wide font.
const LETTER: f64 = 6.9;
const LINE: f64 = 14.0;
/// The longest bar; behind it stands its value.
const BAR_MAX: f64 = 262.0;
const LEFT: f64 = 66.0;
const RIGHT: f64 = 14.0;
const PLOT_HEIGHT: f64 = 170.0;
const TOP: f64 = 10.0;
/// Kinds of lines and colours in the style sheet.
pub const SERIES: usize = 8;

/// Text that may stand anywhere in HTML or SVG.
pub fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            // No HTML has them.
            control if control.is_control() && !matches!(control, '\n' | '\t') => {
                safe.push('\u{fffd}');
            }
            other => safe.push(other),
        }
    }
    safe
}

/// One bar.
#[derive(Clone, Debug)]
pub struct Bar {
    /// Above it.
    pub label: String,
    /// Its length.
    pub value: f64,
    /// From where to where values were.
    pub spread: Option<(f64, f64)>,
    /// The value in words, a short one.
    pub shown: String,
    /// Its colour.
    pub series: usize,
}

/// Bars below each other.
#[derive(Clone, Debug)]
pub struct Bars {
    /// What is shown, for who cannot see it.
    pub title: String,
    /// From top to bottom.
    pub bars: Vec<Bar>,
    /// A line across all, and its name.
    pub mark: Option<(f64, &'static str)>,
}

/// One line.
#[derive(Clone, Debug)]
pub struct Line {
    /// What tells it from others.
    pub name: String,
    /// A value at each place, with the least and the most.
    pub points: Vec<Option<(f64, f64, f64)>>,
    /// Not measured: what would be.
    pub is_ideal: bool,
}

/// Lines over places that are named.
#[derive(Clone, Debug)]
pub struct Lines {
    /// What is shown, for who cannot see it.
    pub title: String,
    /// Along the bottom.
    pub places: Vec<String>,
    /// What the places are.
    pub along: String,
    /// On top of each other.
    pub lines: Vec<Line>,
    /// Each ten times as high.
    pub logarithmic: bool,
    /// How a height is written, short.
    pub shown: fn(f64) -> String,
}

/// A text's lines, none longer than what fits into `width`.
fn wrapped(text: &str, width: f64) -> Vec<String> {
    let most = (width / LETTER).floor().max(1.0) as usize;
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let mut letters: Vec<char> = word.chars().collect();
        let used = lines.last().map_or(0, |line| line.chars().count());
        if used > 0 && used + 1 + letters.len() > most {
            lines.push(String::new());
        } else if used > 0 {
            lines.last_mut().into_iter().for_each(|line| line.push(' '));
        }
        while letters.len() > most {
            let rest = letters.split_off(most);
            lines
                .last_mut()
                .into_iter()
                .for_each(|line| line.extend(&letters));
            lines.push(String::new());
            letters = rest;
        }
        lines
            .last_mut()
            .into_iter()
            .for_each(|line| line.extend(&letters));
    }
    lines
}

/// Round numbers from nothing to at least `most`, four to six of them.
fn ticks(most: f64) -> Vec<f64> {
    if !(most.is_finite() && most > 0.0) {
        return vec![0.0, 1.0];
    }
    let rough = most / 4.0;
    let power = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 2.5, 5.0, 10.0]
        .map(|factor| factor * power)
        .into_iter()
        .find(|step| *step >= rough * 0.999)
        .unwrap_or(rough);
    let count = (most / step - 1e-9).ceil().max(1.0) as usize;
    (0..=count).map(|n| n as f64 * step).collect()
}

/// Round numbers around `least` and `most` that are each some times the one before.
fn decades(least: f64, most: f64) -> Vec<f64> {
    let (low, high) = (least.log10().floor() as i32, most.log10().ceil() as i32);
    let high = high.max(low + 1);
    let fine: &[f64] = match high - low {
        ..=2 => &[1.0, 2.0, 5.0],
        _ => &[1.0],
    };
    let step = ((high - low) as usize).div_ceil(7).max(1);
    let all = (low..=high).step_by(step);
    let mut all: Vec<f64> = all
        .flat_map(|power| fine.iter().map(move |factor| factor * 10f64.powi(power)))
        .collect();
    while all.last().is_some_and(|last| *last < most) {
        all.push(10f64.powi((all[all.len() - 1].log10() + 1e-9).floor() as i32 + step as i32));
    }
    // No more than one beyond each end.
    let from = all.iter().rposition(|tick| *tick <= least).unwrap_or(0);
    let to = all.iter().position(|tick| *tick >= most);
    all[from..=to.unwrap_or(all.len() - 1).max(from + 1).min(all.len() - 1)].to_vec()
}

/// A tick of an axis without needless digits.
fn plain(value: f64) -> String {
    let text = format!("{value:.3}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    text.to_owned()
}

fn open(height: f64, title: &str) -> String {
    format!(
        "<svg class=\"chart\" viewBox=\"0 0 {WIDTH} {height:.0}\" role=\"img\" aria-label=\"{}\">\n",
        escaped(title)
    )
}

fn text(svg: &mut String, class: &str, (x, y): (f64, f64), words: &str) {
    let words = escaped(words);
    let _ = writeln!(
        svg,
        "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\">{words}</text>"
    );
}

fn stroke(svg: &mut String, class: &str, from: (f64, f64), to: (f64, f64)) {
    let ((x1, y1), (x2, y2)) = (from, to);
    let _ = writeln!(
        svg,
        "<line class=\"{class}\" x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\"/>"
    );
}

impl Bars {
    /// The drawing.
    pub fn draw(&self) -> String {
        let ends = self.bars.iter().flat_map(|bar| {
            let (low, high) = bar.spread.unwrap_or((bar.value, bar.value));
            [bar.value, low, high]
        });
        let ends = ends.chain(self.mark.map(|(at, _)| at));
        let ticks = ticks(ends.filter(|end| end.is_finite()).fold(0.0, f64::max));
        let most = ticks[ticks.len() - 1];
        let x = |value: f64| 1.0 + (value / most).clamp(0.0, 1.0) * BAR_MAX;
        let labels: Vec<Vec<String>> = self
            .bars
            .iter()
            .map(|bar| wrapped(&bar.label, WIDTH - 4.0))
            .collect();
        let top = match self.mark {
            Some(_) => LINE + 2.0,
            None => 2.0,
        };
        let rows: f64 = labels
            .iter()
            .map(|lines| lines.len() as f64 * LINE + 24.0)
            .sum();
        let bottom = top + rows;
        let mut svg = open(bottom + 20.0, &self.title);
        for tick in &ticks {
            stroke(&mut svg, "grid", (x(*tick), top), (x(*tick), bottom));
            let class = match *tick {
                0.0 => "tick",
                _ => "tick middle",
            };
            text(&mut svg, class, (x(*tick), bottom + 14.0), &plain(*tick));
        }
        let mut y = top;
        for (bar, lines) in self.bars.iter().zip(&labels) {
            for line in lines {
                y += LINE;
                text(&mut svg, "label", (1.0, y - 3.0), line);
            }
            bar.draw(&mut svg, &x, y, self.mark.map(|(at, _)| x(at)));
            y += 24.0;
        }
        if let Some((at, name)) = self.mark {
            let half = name.chars().count() as f64 * LETTER / 2.0;
            let middle = x(at).clamp(half, WIDTH - half);
            text(&mut svg, "tick middle", (middle, LINE - 3.0), name);
        }
        svg + "</svg>\n"
    }
}

impl Bar {
    fn draw(&self, svg: &mut String, x: &dyn Fn(f64) -> f64, y: f64, mark: Option<f64>) {
        let series = self.series % SERIES;
        let (low, high) = self.spread.unwrap_or((self.value, self.value));
        let width = (x(self.value) - x(0.0)).max(0.5);
        let _ = writeln!(
            svg,
            "<rect class=\"fill s{series}\" x=\"{:.1}\" y=\"{:.1}\" width=\"{width:.1}\" height=\"14\"><title>{}: {}</title></rect>",
            x(0.0),
            y + 2.0,
            escaped(&self.label),
            escaped(&self.shown)
        );
        // Over the bar, and not through words.
        if let Some(at) = mark {
            stroke(svg, "mark", (at, y), (at, y + 18.0));
        }
        if high > low {
            let middle = y + 9.0;
            stroke(svg, "whisker", (x(low), middle), (x(high), middle));
            for end in [low, high] {
                stroke(
                    svg,
                    "whisker",
                    (x(end), middle - 4.0),
                    (x(end), middle + 4.0),
                );
            }
        }
        let behind = x(self.value.max(high)) + 6.0;
        text(svg, "value", (behind, y + 13.0), &self.shown);
    }
}

impl Lines {
    /// Heights of the axis, from below.
    fn heights(&self) -> Vec<f64> {
        let points = self
            .lines
            .iter()
            .flat_map(|line| line.points.iter().flatten());
        let ends = points.flat_map(|(value, low, high)| [*value, *low, *high]);
        let ends: Vec<f64> = ends.filter(|end| end.is_finite()).collect();
        let most = ends.iter().copied().fold(0.0, f64::max);
        let above = ends.into_iter().filter(|end| *end > 0.0);
        let least = above.fold(f64::INFINITY, f64::min);
        match self.logarithmic && least.is_finite() {
            true => decades(least, most),
            false => ticks(most),
        }
    }

    /// The drawing.
    pub fn draw(&self) -> String {
        let heights = self.heights();
        let (least, most) = (heights[0], heights[heights.len() - 1]);
        let bottom = TOP + PLOT_HEIGHT;
        let logarithmic = self.logarithmic && least > 0.0;
        let y = |value: f64| {
            let share = match logarithmic {
                true => (value.max(least) / least).ln() / (most / least).ln(),
                false => value / most,
            };
            bottom - share.clamp(0.0, 1.0) * PLOT_HEIGHT
        };
        let slot = (WIDTH - LEFT - RIGHT) / self.places.len().max(1) as f64;
        let x = |place: usize| LEFT + (place as f64 + 0.5) * slot;
        let mut svg = open(bottom + 38.0, &self.title);
        let mut free = f64::INFINITY;
        for height in &heights {
            stroke(
                &mut svg,
                "grid",
                (LEFT, y(*height)),
                (WIDTH - RIGHT, y(*height)),
            );
            // Lines may be closer than words.
            if free - y(*height) >= LINE {
                free = y(*height);
                let words = (self.shown)(*height);
                text(&mut svg, "tick end", (LEFT - 5.0, y(*height) + 4.0), &words);
            }
        }
        self.name_places(&mut svg, &x, slot, bottom);
        for (number, line) in self.lines.iter().enumerate() {
            line.draw(&mut svg, number, &x, &y);
        }
        svg + "</svg>\n"
    }

    /// As many names along the bottom as fit.
    fn name_places(&self, svg: &mut String, x: &dyn Fn(usize) -> f64, slot: f64, bottom: f64) {
        let mut free = 0.0;
        let letters = |text: &str| text.chars().count() as f64 * LETTER;
        for (number, place) in self.places.iter().enumerate() {
            let fits = ((WIDTH / LETTER) as usize).min(24);
            let short: String = place.chars().take(fits).collect();
            let half = letters(&short) / 2.0;
            let middle = x(number).clamp(half, (WIDTH - half).max(half));
            if middle - half < free {
                continue;
            }
            free = middle + half + slot.min(2.0);
            text(svg, "tick middle", (middle, bottom + 15.0), &short);
        }
        let along: String = self.along.chars().take((WIDTH / LETTER) as usize).collect();
        let half = letters(&along) / 2.0;
        let middle = (LEFT + (WIDTH - LEFT - RIGHT) / 2.0)
            .min(WIDTH - half)
            .max(half);
        text(svg, "label middle", (middle, bottom + 32.0), &along);
    }
}

impl Line {
    fn draw(
        &self,
        svg: &mut String,
        number: usize,
        x: &dyn Fn(usize) -> f64,
        y: &dyn Fn(f64) -> f64,
    ) {
        let class = match self.is_ideal {
            true => "ideal".to_owned(),
            false => format!("path s{}", number % SERIES),
        };
        let mut path = String::new();
        let mut pen_is_down = false;
        for (place, point) in self.points.iter().enumerate() {
            // A gap where nothing was measured.
            let Some((value, _, _)) = point else {
                pen_is_down = false;
                continue;
            };
            let letter = if pen_is_down { 'L' } else { 'M' };
            let _ = write!(path, "{letter}{:.1} {:.1}", x(place), y(*value));
            pen_is_down = true;
        }
        let _ = writeln!(svg, "<path class=\"{class}\" d=\"{path}\"/>");
        if self.is_ideal {
            return;
        }
        for (place, point) in self.points.iter().enumerate() {
            let Some((value, low, high)) = point else {
                continue;
            };
            if high > low {
                stroke(svg, "whisker", (x(place), y(*low)), (x(place), y(*high)));
            }
            let _ = writeln!(
                svg,
                "<circle class=\"fill s{}\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"3.2\"/>",
                number % SERIES,
                x(place),
                y(*value)
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_cannot_leave_its_place() {
        assert_eq!(
            escaped("</text><script>\"'&\u{1}"),
            "&lt;/text&gt;&lt;script&gt;&quot;&#39;&amp;\u{fffd}"
        );
    }

    #[test]
    fn long_labels_are_cut_into_lines_that_fit() {
        let lines = wrapped(
            "a fairly long name of a scenario withoutanyplacetocutitwhatsoever x",
            80.0,
        );
        assert!(
            lines.len() > 3 && lines.iter().all(|line| line.chars().count() <= 11),
            "{lines:?}"
        );
        let whole: String = lines.concat().split_whitespace().collect();
        assert_eq!(
            whole,
            "afairlylongnameofascenariowithoutanyplacetocutitwhatsoeverx"
        );
        assert_eq!(wrapped("", 80.0), [""]);
    }

    #[test]
    fn axes_have_round_numbers_that_hold_all_values() {
        for most in [0.003, 0.9, 1.0, 7.0, 11.2, 99.0, 1234.0, 5e9] {
            let ticks = ticks(most);
            assert!((3..=7).contains(&ticks.len()), "{most}: {ticks:?}");
            assert!(
                ticks[0] == 0.0 && ticks[ticks.len() - 1] >= most * 0.999,
                "{most}: {ticks:?}"
            );
        }
        assert_eq!(ticks(8.0), [0.0, 2.0, 4.0, 6.0, 8.0]);
        assert_eq!(
            [ticks(0.0), ticks(f64::NAN), ticks(-1.0)],
            [[0.0, 1.0], [0.0, 1.0], [0.0, 1.0]]
        );
        for (least, most) in [
            (1.0, 1.0),
            (3.0, 900.0),
            (0.2, 2e7),
            (5.0, 5.1),
            (100.0, 1000.0),
        ] {
            let ticks = decades(least, most);
            assert!((2..=9).contains(&ticks.len()), "{least} {most}: {ticks:?}");
            assert!(
                ticks[0] <= least && ticks[ticks.len() - 1] >= most,
                "{least} {most}: {ticks:?}"
            );
        }
    }

    #[test]
    fn what_was_not_measured_is_a_gap() {
        let lines = Lines {
            title: "t".to_owned(),
            places: ["1", "2", "4"].map(str::to_owned).to_vec(),
            along: "depth".to_owned(),
            lines: vec![Line {
                name: "Forebay".to_owned(),
                points: vec![Some((1.0, 0.9, 1.1)), None, Some((3.0, 3.0, 3.0))],
                is_ideal: false,
            }],
            logarithmic: false,
            shown: plain,
        };
        let svg = lines.draw();
        assert_eq!(svg.matches("<circle").count(), 2, "{svg}");
        assert_eq!(svg.matches("class=\"whisker\"").count(), 1, "{svg}");
        let path = svg.split("d=\"").nth(1).expect("there is a line");
        assert_eq!(
            path.split('"').next().map(|path| path.matches('M').count()),
            Some(2)
        );
    }
}
