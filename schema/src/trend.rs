//! `trend.v1`: one metric of one cell over releases and days, with the points at which its level
//! changed. How those are found is decided in `registry`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::metric::{Better, Unit};
use crate::verdict::Cell;

/// The schema name that a trend carries.
pub const SCHEMA: &str = "trend.v1";

/// A series of points, cut into stretches of one level.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Trend {
    /// Always `trend.v1`.
    pub schema: String,
    /// Where.
    pub cell: Cell,
    /// Its name.
    pub metric: String,
    /// As pages write it.
    pub title: String,
    /// Of values and levels.
    pub unit: Unit,
    /// Which way.
    pub better: Better,
    /// Smallest step in percent that is called a change.
    pub floor_pct: f64,
    /// In order: by epoch, then by release, then by campaign.
    pub points: Vec<Point>,
    /// They cover all points, one after the other.
    pub segments: Vec<Segment>,
    /// In order.
    pub changes: Vec<Change>,
}

/// The launches of one release in one campaign.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Point {
    /// Which.
    pub release: String,
    /// None for runs that belong to no campaign.
    pub campaign: Option<String>,
    /// Id of the first of its runs, which tells when it was planned.
    pub run: String,
    /// How many.
    pub launches: usize,
    /// Median over the launches, in the metric's unit.
    pub value: f64,
}

/// A stretch of one level.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Segment {
    /// Index of its first point.
    pub first: usize,
    /// Index of its last point.
    pub last: usize,
    /// Median of its points, in the metric's unit.
    pub level: f64,
    /// Why the series breaks before it: the reason of an epoch. Levels on the two sides of an epoch
    /// are not compared.
    pub epoch: Option<String>,
}

/// A change of level within an epoch.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Change {
    /// Index of the first point of the new level.
    pub point: usize,
    /// The first at the new level.
    pub release: String,
    /// The release of the point before it.
    pub after: String,
    /// New level over old, minus one, in percent.
    pub step_pct: f64,
    /// True where the new level is the worse one.
    pub worse: bool,
}
