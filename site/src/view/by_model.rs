//! View of a model: on each hardware, the engines that serve it side by side.

use serde::Serialize;

use super::beside::Beside;
use super::fact::{self, Fact};
use super::release::{Related, extent};
use super::trends::{LINES_MAX, TrendLine};
use crate::catalog::{self, Catalog};
use crate::link::Target;
use crate::outside;

/// View of a model's page.
#[derive(Debug, Clone, Serialize)]
pub struct ByModel {
    pub model: String,
    pub extent: String,
    pub facts: Vec<Fact>,
    pub hardware: Vec<Beside>,
    pub related: Vec<Related>,
    /// Trends of release-blocking metrics of the model.
    pub trends: Vec<TrendLine>,
    pub more_trends: usize,
}

impl ByModel {
    /// Builds the view of `model`. `labs` are links to the labs about it.
    pub fn new(
        catalog: &Catalog,
        model: &str,
        mut trends: Vec<TrendLine>,
        labs: Vec<Related>,
    ) -> Self {
        let runs = catalog.runs_where(|record| record.model.id == model);
        let mut hardware: Vec<&str> =
            runs.iter().map(|run| run.record.hardware.id.as_str()).collect();
        hardware.sort_by(|a, b| crate::order::natural(a, b));
        hardware.dedup();
        let mut related = vec![Related {
            text: "Throughput against speed, and your price".to_owned(),
            target: Target::Frontier { model: model.to_owned() },
        }];
        related.extend(labs);
        let more_trends = trends.len().saturating_sub(LINES_MAX);
        trends.truncate(LINES_MAX);
        Self {
            model: outside::name(model),
            extent: extent(&runs, &catalog::cells(&runs)),
            facts: fact::model(&runs),
            hardware: hardware.iter().map(|id| Beside::new(catalog, model, id)).collect(),
            related,
            trends,
            more_trends,
        }
    }
}
