//! Pictures of values over time, in a terminal or as SVG: panels in a column that share a time axis.

pub mod svg;
pub mod terminal;

use crate::text;
use std::time::{Duration, UNIX_EPOCH};

/// A picture. Times are in seconds.
#[derive(Debug, Clone, Default)]
pub struct Picture {
    pub title: String,
    /// Lines of text above the panels.
    pub about: Vec<String>,
    pub panels: Vec<Panel>,
    /// Whether panels with the same title have the same scale, to compare them.
    pub is_comparison: bool,
}

/// One panel: bins of equal length.
#[derive(Debug, Clone)]
pub struct Panel {
    /// The quantity.
    pub title: &'static str,
    /// The subject, if there are several.
    pub of: String,
    /// The unit of the values, such as `units per second`.
    pub unit: String,
    pub time: Time,
    /// The layers, stacked.
    pub layers: Vec<Layer>,
    /// The limit and its label.
    pub line: Option<(f64, String)>,
}

impl Picture {
    /// The panels with at most `columns` bins over a common time, each with about `marks` axis marks.
    fn in_columns(&self, columns: usize, marks: usize) -> Vec<(Panel, Vec<f64>)> {
        let from = self.panels.iter().map(|panel| panel.time.from).fold(f64::INFINITY, f64::min);
        let to = self.panels.iter().map(|panel| panel.time.to).fold(f64::NEG_INFINITY, f64::max);
        let panels: Vec<Panel> = self.panels.iter().map(|panel| panel.in_columns(columns, from, to)).collect();
        let most = |panel: &Panel| {
            let same = panels.iter().filter(|other| self.is_comparison && other.title == panel.title);
            same.map(Panel::most).fold(panel.most(), f64::max)
        };
        let scales: Vec<Vec<f64>> = panels.iter().map(|panel| scale(most(panel), marks)).collect();
        panels.into_iter().zip(scales).collect()
    }
}

/// The time that the bins cover.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Time {
    pub from: f64,
    pub to: f64,
    /// Whether times count from 1970.
    pub is_wall: bool,
}

/// Times from this one on (in 2001) are wall clock times.
pub const WALL: f64 = 1e9;

#[derive(Debug, Clone)]
pub struct Layer {
    pub name: &'static str,
    pub tone: Tone,
    /// One value for each bin.
    pub values: Vec<f64>,
    /// The way in which bins are merged.
    pub merged: Merged,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tone {
    Started,
    Denied,
    Waiting,
    Used,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Merged {
    Mean,
    Most,
}

impl Layer {
    /// The merged value of a part of the time. `from` and `to` are fractions from 0 to 1.
    fn between(&self, from: f64, to: f64) -> f64 {
        let count = self.values.len() as f64;
        let (from, to) = (from * count, to * count);
        let last = (to.ceil() as usize).min(self.values.len());
        let bins = (from.floor() as usize).min(last)..last;
        match self.merged {
            Merged::Most => bins.map(|i| self.values[i]).fold(0.0, f64::max),
            Merged::Mean => {
                let part = |i: usize| (to.min(i as f64 + 1.0) - from.max(i as f64)).max(0.0);
                let (sum, parts) =
                    bins.fold((0.0, 0.0), |(sum, parts), i| (sum + self.values[i] * part(i), parts + part(i)));
                if parts > 0.0 { sum / parts } else { 0.0 }
            }
        }
    }

    /// A part of the time in `count` columns. Columns outside the layer's time are 0.
    fn in_columns(&self, count: usize, (from, to): (f64, f64)) -> Layer {
        let part = |i: usize| (from + (to - from) * i as f64 / count as f64).clamp(0.0, 1.0);
        Layer { values: (0..count).map(|i| self.between(part(i), part(i + 1))).collect(), ..self.clone() }
    }
}

impl Panel {
    fn in_columns(&self, most: usize, from: f64, to: f64) -> Panel {
        let length = self.time.to - self.time.from;
        let bins = self.layers.iter().map(|layer| layer.values.len()).max().unwrap_or(0) as f64;
        let count = ((bins * (to - from) / length).round() as usize).min(most);
        let parts = ((from - self.time.from) / length, (to - self.time.from) / length);
        let layers = self.layers.iter().map(|layer| layer.in_columns(count, parts)).collect();
        Panel { layers, time: Time { from, to, ..self.time }, ..self.clone() }
    }

    /// The highest value in the panel.
    fn most(&self) -> f64 {
        let bins = self.layers.iter().map(|layer| layer.values.len()).max().unwrap_or(0);
        let sum = |i: usize| self.layers.iter().filter_map(|layer| layer.values.get(i)).sum();
        let most = (0..bins).map(sum).fold(0.0, f64::max);
        self.line.as_ref().map_or(most, |(line, _)| most.max(*line))
    }

    fn heading(&self) -> String {
        if self.of.is_empty() { self.title.to_owned() } else { format!("{}: {}", self.of, self.title) }
    }
}

/// The marks of an axis from 0 to at least `most`. The last mark is the end of the axis.
fn scale(most: f64, at_most: usize) -> Vec<f64> {
    let most = if most > 0.0 { most } else { 1.0 };
    let decade = 10f64.powf((most / at_most as f64).log10().floor());
    let steps = [1.0, 2.0, 2.5, 5.0, 10.0].map(|step| step * decade);
    // Counts are whole numbers: no step has a fraction, unless values are small or steps are large.
    let is_good = |step: &f64| most / step <= at_most as f64 && (*step >= 10.0 || step.fract() == 0.0 || most < 2.0);
    let step = steps.into_iter().find(is_good).unwrap_or(10.0 * decade);
    (0..=(most / step - 1e-9).ceil() as usize).map(|i| i as f64 * step).collect()
}

/// A value on an axis: `0.5`, `20`, `1.5k`, `3M`.
pub fn value(value: f64) -> String {
    let (scaled, unit) = match value {
        v if v >= 1e9 => (v / 1e9, "G"),
        v if v >= 1e6 => (v / 1e6, "M"),
        v if v >= 1e4 => (v / 1e3, "k"),
        v => (v, ""),
    };
    let digits = format!("{scaled:.2}");
    let digits = digits.trim_end_matches('0').trim_end_matches('.');
    format!("{digits}{unit}")
}

/// The distances of marks on a time axis, in seconds.
const STEPS: [f64; 34] = [
    0.001,
    0.002,
    0.005,
    0.01,
    0.02,
    0.05,
    0.1,
    0.2,
    0.5,
    1.0,
    2.0,
    5.0,
    10.0,
    15.0,
    30.0,
    60.0,
    120.0,
    300.0,
    600.0,
    900.0,
    1_800.0,
    3_600.0,
    7_200.0,
    10_800.0,
    21_600.0,
    43_200.0,
    86_400.0,
    172_800.0,
    432_000.0,
    864_000.0,
    2_592_000.0,
    8_640_000.0,
    31_536_000.0,
    315_360_000.0,
];

impl Time {
    pub fn new(from: f64, to: f64) -> Time {
        Time { from, to: to.max(from + 0.001), is_wall: from >= WALL }
    }

    /// The marks of the time axis: their positions from 0 to 1, and their labels.
    pub fn marks(&self, at_most: usize) -> Vec<(f64, String)> {
        let length = self.to - self.from;
        let origin = if self.is_wall { 0.0 } else { self.from };
        let step = STEPS.into_iter().find(|step| length / step <= at_most as f64).unwrap_or(STEPS[STEPS.len() - 1]);
        let first = ((self.from - origin) / step - 1e-9).ceil();
        let mut marks = Vec::new();
        for i in 0..=at_most {
            let since = (first + i as f64) * step;
            let at = (origin + since - self.from) / length;
            if at > 1.0 + 1e-9 {
                break;
            }
            let text = if self.is_wall { wall(since, step, i == 0) } else { elapsed(since) };
            marks.push((at, text));
        }
        marks
    }

    /// The caption of the axis.
    pub fn caption(&self) -> String {
        match self.is_wall {
            true => format!(
                "UTC, from {}",
                text::utc(UNIX_EPOCH + Duration::from_secs_f64(self.from)).trim_end_matches('Z')
            ),
            false => "since the first request".to_owned(),
        }
    }
}

/// The time of day, or the date at midnight.
fn wall(at: f64, step: f64, is_first: bool) -> String {
    // Rounded up slightly, so that rounding errors do not show the second before.
    let text = text::utc(UNIX_EPOCH + Duration::from_secs_f64(at.max(0.0) + 1e-6));
    let is_midnight = text.get(11..19) == Some("00:00:00");
    let part = |from: usize, to: usize| text.get(from..to).unwrap_or_default().to_owned();
    match step {
        _ if step >= 86_400.0 || is_midnight && !is_first => part(5, 10),
        _ if step >= 60.0 => part(11, 16),
        _ if step >= 1.0 => part(11, 19),
        _ => format!("{:06.3}s", at % 60.0),
    }
}

/// `0s`, `1m30s`, `2d`, `0.05s`.
pub fn elapsed(seconds: f64) -> String {
    let whole = seconds.round() as u64;
    if (seconds - whole as f64).abs() > 1e-6 {
        return format!("{}s", value(seconds));
    }
    let units = [(86_400, "d"), (3_600, "h"), (60, "m"), (1, "s")];
    let mut left = whole;
    let mut text = String::new();
    for (size, unit) in units {
        if left >= size {
            text += &format!("{}{unit}", left / size);
            left %= size;
        }
    }
    if text.is_empty() { "0s".to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn value_marks_are_round_and_cover_the_highest_value() {
        assert_eq!(scale(7.0, 4), [0.0, 2.0, 4.0, 6.0, 8.0]);
        assert_eq!(scale(100.0, 4), [0.0, 25.0, 50.0, 75.0, 100.0]);
        assert_eq!(scale(0.0, 4).last(), Some(&1.0));
        for most in [0.003, 0.9, 1.0, 3.0, 11.0, 99.0, 12_345.0, 7e9] {
            let marks = scale(most, 4);
            assert!(marks.len() <= 6 && *marks.last().unwrap() >= most * 0.999, "{most}: {marks:?}");
        }
        assert_eq!([0.5, 20.0, 2_500.0, 15_000.0, 3e6].map(value), ["0.5", "20", "2500", "15k", "3M"]);
    }

    #[test]
    fn time_marks_are_round_and_show_the_date_at_midnight() {
        let shown = |from, to| Time::new(from, to).marks(6).into_iter().map(|(_, text)| text).collect::<Vec<_>>();
        assert_eq!(shown(0.0, 60.0), ["0s", "10s", "20s", "30s", "40s", "50s", "1m"]);
        assert_eq!(shown(5.0, 5.25), ["0s", "0.05s", "0.1s", "0.15s", "0.2s", "0.25s"]);
        let midnight = 1_764_028_800.0;
        assert_eq!(
            shown(midnight - 3_600.0, midnight + 7_200.0),
            ["23:00", "23:30", "11-25", "00:30", "01:00", "01:30", "02:00"]
        );
    }

    #[test]
    fn panels_have_a_common_scale_only_to_compare_them() {
        let panel = |most| Panel {
            title: "in use",
            of: String::new(),
            unit: "units".to_owned(),
            time: Time::new(0.0, 1.0),
            layers: Vec::new(),
            line: Some((most, String::new())),
        };
        let mut picture = Picture { panels: vec![panel(5.0), panel(20.0)], ..Picture::default() };
        let highest = |picture: &Picture| {
            let panels = picture.in_columns(10, 4);
            panels.into_iter().map(|(_, scale)| *scale.last().unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(highest(&picture), [6.0, 20.0]);
        picture.is_comparison = true;
        assert_eq!(highest(&picture), [20.0, 20.0]);
    }

    #[test]
    fn bins_are_merged_by_mean_or_maximum() {
        let values = vec![1.0, 3.0, 5.0, 7.0];
        let mut layer = Layer { name: "started", tone: Tone::Started, values, merged: Merged::Mean };
        assert_eq!(layer.in_columns(2, (0.0, 1.0)).values, [2.0, 6.0]);
        assert_eq!(layer.in_columns(8, (0.0, 1.0)).values[..4], [1.0, 1.0, 3.0, 3.0]);
        assert_eq!(layer.in_columns(8, (-0.5, 1.5)).values, [0.0, 0.0, 1.0, 3.0, 5.0, 7.0, 0.0, 0.0]);
        layer.merged = Merged::Most;
        assert_eq!(layer.in_columns(2, (0.0, 1.0)).values, [3.0, 7.0]);
    }
}
