//! `trend.v1`: one metric of one cell over releases and days, with its changes of level. Plain
//! data: `registry` finds the changes.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::metric::{Better, Unit};
use crate::verdict::Cell;

/// Schema name of a trend.
pub const SCHEMA: &str = "trend.v1";

/// Trend of one metric in one cell: a series of points, divided into segments of constant level.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Trend {
    /// Name of this schema, always `trend.v1`.
    pub schema: String,
    /// Cell that the trend belongs to.
    pub cell: Cell,
    /// Name of the metric that the trend shows.
    pub metric: String,
    /// Title of the metric as pages show it.
    pub title: String,
    /// Unit of the trend's values and levels.
    pub unit: Unit,
    /// Direction in which the metric improves.
    pub better: Better,
    /// Minimum effect of the metric in percent: a part of the series whose level differs by less
    /// from the level before it begins no segment of its own.
    pub floor_pct: f64,
    /// Points of the series, ordered by epoch, release and campaign.
    pub points: Vec<Point>,
    /// Segments of constant level, which together cover all points in order.
    pub segments: Vec<Segment>,
    /// Changes of level between neighboring segments of one epoch of the trend, in order.
    pub changes: Vec<Change>,
}

/// Point of a trend: the runs of one release in one campaign, within one epoch.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Point {
    /// Release that the point's runs measured.
    pub release: String,
    /// Id of the campaign of the point's runs; null for runs without a campaign.
    pub campaign: Option<String>,
    /// Id of the first run of the point, whose ULID tells when it was planned.
    pub run: String,
    /// Number of runs from which the point's value is computed.
    pub launches: usize,
    /// Median of the metric's values over the point's runs, in the metric's unit.
    pub value: f64,
}

/// Segment of a trend: consecutive points of one level.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Segment {
    /// Index in the trend's points of the segment's first point, from 0.
    pub first: usize,
    /// Index in the trend's points of the segment's last point, from 0.
    pub last: usize,
    /// Level of the segment: median of the values of its points, in the metric's unit.
    pub level: f64,
    /// Reason of the epoch event at which the segment begins; null where it begins at none. Levels
    /// before and after an epoch are not compared.
    pub epoch: Option<String>,
}

/// Change of level between two segments of one epoch.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Change {
    /// Index in the trend's points of the first point at the new level, from 0.
    pub point: usize,
    /// Release of the first point at the new level.
    pub release: String,
    /// Release of the last point at the old level.
    pub after: String,
    /// New level / old level, minus one, in percent.
    pub step_pct: f64,
    /// True when the new level is worse for the metric than the old one.
    pub worse: bool,
}
