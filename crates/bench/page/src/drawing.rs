//! Drawings: scales with round ticks, axes, lines, labels that do not overlap. Everything is text.
//!
//! Colours and fonts come from the page's style sheet by class, so that a drawing follows light and dark mode.

use std::fmt::Write;

use crate::text::escape;

/// Scale of a drawing in a narrow card, and in a wide one.
const SHRINKS_TO: f64 = 0.8;
const GROWS_TO: f64 = 1.25;
/// Distance between the labels of lines.
const LABELS_APART: f64 = 15.0;

/// Maps values to positions along one axis.
#[derive(Debug, Clone, Copy)]
pub struct Scale {
    /// Value at the start of the axis.
    pub least: f64,
    /// Value at its end.
    pub most: f64,
    /// Position of the start, in drawing units.
    pub from: f64,
    /// Position of the end.
    pub to: f64,
    /// Whether the scale is logarithmic.
    pub logarithmic: bool,
}

impl Scale {
    /// The position of `value`, limited to the axis.
    pub fn at(&self, value: f64) -> f64 {
        let part = if self.logarithmic {
            (value.max(f64::MIN_POSITIVE) / self.least).ln() / (self.most / self.least).ln()
        } else {
            (value - self.least) / (self.most - self.least)
        };
        let part = if part.is_finite() {
            part.clamp(0.0, 1.0)
        } else {
            0.0
        };
        self.from + part * (self.to - self.from)
    }
}

/// A round step that divides 0 to `most` into at most `parts` parts.
pub fn round_step(most: f64, parts: u32) -> f64 {
    let rough = (most / f64::from(parts)).max(f64::MIN_POSITIVE);
    let power = 10f64.powf(rough.log10().floor());
    let factor = [1.0, 2.0, 2.5, 5.0, 10.0]
        .into_iter()
        .find(|factor| factor * power >= rough * (1.0 - 1e-9));
    factor.unwrap_or(10.0) * power
}

/// A tick's value without trailing zeros, and without the digits that arithmetic adds at the end.
#[must_use]
pub fn plain(value: f64) -> String {
    let text = format!("{value:.6}");
    match text.trim_end_matches('0').trim_end_matches('.') {
        "-0" => "0".to_owned(),
        plain => plain.to_owned(),
    }
}

/// Multiples of `step` from 0 up to `most`.
pub fn ticks(most: f64, step: f64) -> Vec<f64> {
    let count = (most / step * (1.0 + 1e-9)).floor() as u32;
    (0..=count).map(|tick| f64::from(tick) * step).collect()
}

/// A drawing under construction.
#[derive(Debug)]
pub struct Drawing {
    body: String,
    width: f64,
    height: f64,
    description: String,
}

impl Drawing {
    /// An empty drawing; `description` is for screen readers.
    pub fn new(width: f64, height: f64, description: &str) -> Self {
        Self {
            body: String::new(),
            width,
            height,
            description: description.to_owned(),
        }
    }

    /// Its width in its own units, which are about pixels.
    #[must_use]
    pub fn width(&self) -> f64 {
        self.width
    }

    /// The drawing as an `svg` element.
    #[must_use]
    pub fn finish(self) -> String {
        self.markup()
    }

    /// The drawing so far, as an `svg` element. In a narrow card it scrolls instead of becoming too small to read.
    #[must_use]
    pub fn markup(&self) -> String {
        format!(
            "<svg viewBox=\"0 0 {} {}\" style=\"min-width:{:.0}px;max-width:{:.0}px\" role=\"img\" aria-label=\"{}\" \
             xmlns=\"http://www.w3.org/2000/svg\">\n{}</svg>\n",
            self.width,
            self.height,
            self.width * SHRINKS_TO,
            self.width * GROWS_TO,
            escape(&self.description),
            self.body
        )
    }

    /// The drawing as a separate file, in light colours, on paper; `styles` are those of the page.
    #[must_use]
    pub fn file(&self, styles: &[&str]) -> String {
        format!(
            "<svg width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} {1}\" role=\"img\" aria-label=\"{2}\" \
             xmlns=\"http://www.w3.org/2000/svg\">\n<style>\n{3}</style>\n\
             <rect class=\"paper\" width=\"{0}\" height=\"{1}\"/>\n{4}</svg>\n",
            self.width,
            self.height,
            escape(&self.description),
            file_style(styles),
            self.body
        )
    }

    fn push(&mut self, element: std::fmt::Arguments<'_>) {
        // Writing to a String does not fail.
        let _ = writeln!(self.body, "{element}");
    }

    /// A straight line.
    pub fn line(&mut self, class: &str, (x1, y1): (f64, f64), (x2, y2): (f64, f64)) {
        self.push(format_args!(
            "<line class=\"{class}\" x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\"/>"
        ));
    }

    /// A rectangle; `title` appears on hover.
    pub fn rectangle(&mut self, class: &str, (x, y): (f64, f64), (width, height): (f64, f64), title: &str) {
        self.push(format_args!(
            "<rect class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{height:.1}\"><title>{}</title></rect>",
            width.max(0.0),
            escape(title)
        ));
    }

    /// Text; `anchor` is `start`, `middle` or `end`.
    pub fn text(&mut self, class: &str, anchor: &str, (x, y): (f64, f64), text: &str) {
        self.push(format_args!(
            "<text class=\"{class}\" text-anchor=\"{anchor}\" x=\"{x:.1}\" y=\"{y:.1}\">{}</text>",
            escape(text)
        ));
    }

    /// Text that reads upwards; `anchor` is `start`, `middle` or `end`.
    pub fn upright_text(&mut self, class: &str, anchor: &str, (x, y): (f64, f64), text: &str) {
        self.push(format_args!(
            "<text class=\"{class}\" text-anchor=\"{anchor}\" transform=\"translate({x:.1} {y:.1}) rotate(-90)\">{}</text>",
            escape(text)
        ));
    }

    /// A line through `points`; a single point is a dot.
    pub fn path(&mut self, class: &str, points: &[(f64, f64)]) {
        if points.is_empty() {
            return;
        }
        let mut data = String::with_capacity(points.len() * 14);
        for (position, (x, y)) in points.iter().enumerate() {
            let _ = write!(data, "{}{x:.1} {y:.1}", if position == 0 { "M" } else { "L" });
        }
        if points.len() == 1 {
            // A line without length has its round caps.
            data.push_str("h0");
        }
        self.push(format_args!("<path class=\"{class}\" d=\"{data}\"/>"));
    }

    /// A dot; `title` appears on hover.
    pub fn dot(&mut self, class: &str, (x, y): (f64, f64), radius: f64, title: &str) {
        self.push(format_args!(
            "<circle class=\"{class}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{radius}\"><title>{}</title></circle>",
            escape(title)
        ));
    }

    /// A closed shape through `points`; `title` appears on hover.
    pub fn polygon(&mut self, class: &str, points: &[(f64, f64)], title: &str) {
        let points: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        self.push(format_args!(
            "<polygon class=\"{class}\" points=\"{}\"><title>{}</title></polygon>",
            points.join(" "),
            escape(title)
        ));
    }

    /// A whisker from `top` to `bottom` at `x`, with ends of `half_width` on either side.
    pub fn whisker(&mut self, class: &str, x: f64, (top, bottom): (f64, f64), half_width: f64) {
        self.push(format_args!(
            "<path class=\"{class}\" d=\"M{0:.1} {top:.1}H{1:.1}M{x:.1} {top:.1}V{bottom:.1}M{0:.1} {bottom:.1}H{1:.1}\"/>",
            x - half_width,
            x + half_width
        ));
    }

    /// An invisible spot that shows `title` on hover.
    pub fn spot(&mut self, class: &str, (x, y): (f64, f64), title: &str) {
        self.push(format_args!(
            "<circle class=\"spot {class}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"5\"><title>{}</title></circle>",
            escape(title)
        ));
    }

    /// Horizontal grid lines with numbers at the left, and the axis title.
    pub fn y_axis(&mut self, x: Scale, y: Scale, ticks: &[(f64, String)], title: Option<&str>) {
        let base = y.least.max(0.0);
        for (value, label) in ticks {
            let place = y.at(*value);
            let class = if *value == base { "axis" } else { "grid" };
            self.line(class, (x.from, place), (x.to, place));
            if !label.is_empty() {
                self.text("tick", "end", (x.from - 7.0, place + 4.0), label);
            }
        }
        if let Some(title) = title {
            self.upright_text("axis-title", "middle", (12.0, (y.from + y.to) / 2.0), title);
        }
    }

    /// Vertical marks with numbers below, and the axis title.
    pub fn x_axis(&mut self, x: Scale, y: Scale, ticks: &[(f64, String)], title: &str) {
        for (value, label) in ticks {
            let place = x.at(*value);
            self.line(
                if label.is_empty() { "grid faint" } else { "grid" },
                (place, y.from),
                (place, y.to),
            );
            self.text("tick", "middle", (place, y.from + 17.0), label);
        }
        self.text(
            "axis-title",
            "middle",
            ((x.from + x.to) / 2.0, y.from + 36.0),
            title,
        );
    }

    /// Labels at the right of lines, each with its place, class and text, moved apart as little as possible if they
    /// would touch.
    pub fn labels(&mut self, x: f64, labels: Vec<(f64, String, String)>, limits: (f64, f64)) {
        for (y, class, text) in apart(labels, limits) {
            self.text(&format!("line-label {class}"), "start", (x, y + 4.0), &text);
        }
    }

    /// Likewise, each with a piece of its line before the text.
    pub fn labels_with_lines(&mut self, x: f64, labels: Vec<(f64, String, String)>, limits: (f64, f64)) {
        for (y, class, text) in apart(labels, limits) {
            self.line(&format!("line {class}"), (x, y), (x + 20.0, y));
            self.text(
                &format!("line-label {class}"),
                "start",
                (x + 27.0, y + 4.0),
                &text,
            );
        }
    }
}

/// Height that so many labels need.
#[must_use]
pub fn labels_height(count: usize) -> f64 {
    LABELS_APART * count as f64
}

/// Moves labels apart, from the top of the limits and from the bottom.
fn apart(mut labels: Vec<(f64, String, String)>, limits: (f64, f64)) -> Vec<(f64, String, String)> {
    labels.sort_by(|left, right| left.0.total_cmp(&right.0));
    let mut least = limits.0;
    for label in &mut labels {
        label.0 = label.0.max(least);
        least = label.0 + LABELS_APART;
    }
    let mut most = limits.1;
    for label in labels.iter_mut().rev() {
        label.0 = label.0.min(most);
        most = label.0 - LABELS_APART;
    }
    labels
}

/// The style rules that a drawing needs in a separate file: those that begin with `svg `, one per line. Colour names
/// are replaced by the light colours, because not every program supports names.
fn file_style(styles: &[&str]) -> String {
    let mut style = "svg { font-family: \"Liberation Sans\", \"DejaVu Sans\", Arial, sans-serif; }\n\
                     svg .paper { fill: var(--paper); }\n"
        .to_owned();
    let mut colours: Vec<(&str, &str)> = Vec::new();
    for sheet in styles {
        let light = sheet
            .split_once(":root {")
            .and_then(|(_, rest)| rest.split_once('}'))
            .map_or("", |(light, _)| light);
        colours.extend(light.split(';').filter_map(|definition| {
            let (name, value) = definition.split_once(':')?;
            Some((name.trim(), value.trim()))
        }));
        for rule in sheet
            .lines()
            .filter(|line| line.starts_with("svg .") || line.starts_with("svg text"))
        {
            style.push_str(&rule.replace("font-family: inherit; ", ""));
            style.push('\n');
        }
    }
    for (name, value) in colours {
        style = style.replace(&format!("var({name})"), value);
    }
    style
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_round_and_cover_the_axis() {
        assert_eq!(round_step(100.0, 5), 20.0);
        assert_eq!(round_step(330.0, 5), 100.0);
        assert_eq!(round_step(12.0, 6), 2.0);
        assert_eq!(round_step(64.0, 8), 10.0);
        assert_eq!(ticks(1.0, 0.25).len(), 5);
        assert!(round_step(0.0, 5) > 0.0);
    }

    #[test]
    fn ticks_have_no_digits_of_arithmetic() {
        let texts: Vec<String> = ticks(0.3, 0.05).into_iter().map(plain).collect();
        assert_eq!(texts, ["0", "0.05", "0.1", "0.15", "0.2", "0.25", "0.3"]);
        assert_eq!(
            [plain(-0.0), plain(-2.5), plain(1250.0), plain(100.0)],
            ["0", "-2.5", "1250", "100"]
        );
    }

    #[test]
    fn a_line_of_one_point_is_visible() {
        let mut drawing = Drawing::new(100.0, 50.0, "");
        drawing.path("line", &[(3.0, 4.0)]);
        assert!(drawing.finish().contains("d=\"M3.0 4.0h0\""));
    }

    #[test]
    fn the_axis_is_at_zero_if_values_are_negative() {
        let scale = |least, most| Scale {
            least,
            most,
            from: 100.0,
            to: 0.0,
            logarithmic: false,
        };
        let x = scale(0.0, 1.0);
        for (y, base) in [(scale(-10.0, 10.0), 50.0), (scale(40.0, 60.0), 100.0)] {
            let mut drawing = Drawing::new(100.0, 100.0, "");
            let ticks = [y.least, (y.least + y.most) / 2.0, y.most].map(|tick| (tick, plain(tick)));
            drawing.y_axis(x, y, &ticks, None);
            let body = drawing.finish();
            assert_eq!(body.matches("\"axis\"").count(), 1, "{body}");
            assert!(
                body.contains(&format!("\"axis\" x1=\"100.0\" y1=\"{base:.1}\"")),
                "{body}"
            );
        }
    }

    #[test]
    fn scales_map_ends_to_ends_and_limit_other_values() {
        let linear = Scale {
            least: 0.0,
            most: 10.0,
            from: 100.0,
            to: 0.0,
            logarithmic: false,
        };
        assert_eq!(
            (linear.at(0.0), linear.at(10.0), linear.at(5.0), linear.at(99.0)),
            (100.0, 0.0, 50.0, 0.0)
        );
        let log = Scale {
            least: 10.0,
            most: 1000.0,
            from: 0.0,
            to: 200.0,
            logarithmic: true,
        };
        assert!((log.at(100.0) - 100.0).abs() < 1e-9);
        assert_eq!(log.at(0.0), 0.0);
        let empty = Scale {
            least: 0.0,
            most: 0.0,
            from: 3.0,
            to: 9.0,
            logarithmic: false,
        };
        assert_eq!(empty.at(0.0), 3.0);
    }

    #[test]
    fn a_separate_file_has_colours_without_variables() {
        let mut drawing = Drawing::new(100.0, 50.0, "a & b");
        drawing.text("tick", "end", (1.0, 2.0), "x");
        let own = ":root { --mine: #123456; }\nsvg .own { fill: var(--mine); }\np { color: red; }\n";
        let file = drawing.file(&[crate::BASE_STYLE, own]);
        for part in [
            "width=\"100\"",
            "svg .own { fill: #123456; }",
            "svg .paper { fill: #ffffff; }",
            "a &amp; b",
        ] {
            assert!(file.contains(part), "no {part} in {file}");
        }
        for part in ["var(", "@media", "color: red", "100%"] {
            assert!(!file.contains(part), "{part} in {file}");
        }
    }

    #[test]
    fn labels_do_not_overlap_and_stay_inside() {
        let mut drawing = Drawing::new(100.0, 100.0, "");
        let label = |y, text: &str| (y, "c0".to_owned(), text.to_owned());
        drawing.labels(
            0.0,
            vec![label(90.0, "a"), label(91.0, "b"), label(20.0, "c")],
            (10.0, 90.0),
        );
        let body = drawing.finish();
        let y_of = |text: &str| {
            let line = body
                .lines()
                .find(|line| line.contains(&format!(">{text}<")))
                .expect("the label");
            let (_, rest) = line.split_once(" y=\"").expect("a place");
            rest.split('"')
                .next()
                .and_then(|number| number.parse::<f64>().ok())
                .expect("a number")
        };
        assert_eq!((y_of("c"), y_of("a"), y_of("b")), (24.0, 79.0, 94.0));
    }
}
