//! View models: the content of pages in display terms. Text from records is cleaned here
//! ([`crate::outside`]); nothing is judged here.

use minijinja::value::{Serde, Value};

use crate::chart::{Chart, Forest, Heat};
use crate::link::{Link, Target};

pub mod caveat;
pub mod charts;
pub mod command;
pub mod corrections;
pub mod diff;
pub mod explore;
pub mod fact;
pub mod figure;
pub mod finding;
pub mod hardware;
pub mod health;
pub mod imports;
pub mod kernels;
pub mod lab;
pub mod measured;
pub mod method;
pub mod model;
pub mod overview;
pub mod pareto_frontier;
pub mod pick;
pub mod printed;
pub mod published;
pub mod release;
pub mod run;
pub mod side_by_side;
pub mod subjects;
pub mod table;
pub mod tip;
pub mod trends;
pub mod words;

/// Implements for plain types the conversion to the form in which templates read them: a map of
/// their fields.
macro_rules! readable {
    ($($kind:ty),* $(,)?) => {$(
        impl From<$kind> for Value {
            fn from(plain: $kind) -> Self {
                Self::from(Serde(plain))
            }
        }
    )*};
}

readable![
    Chart,
    Forest,
    Heat,
    Link,
    Target,
    fact::Fact,
    fact::FactGroup,
    figure::Figure,
    figure::Head,
    finding::Finding,
    finding::RuleFindings,
    finding::Tone,
    lab::Place,
    model::ModelView,
];
