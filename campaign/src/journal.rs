//! How far a campaign has come, so that an early end can say what is left behind.

use crate::places::{CampaignPlaces, Places};
use crate::process::Interrupt;
use crate::stop::Stop;

/// The state of one campaign.
#[derive(Debug)]
pub struct Journal {
    places: CampaignPlaces,
    /// Records that lie in the overlay.
    pub runs_written: usize,
    /// Set once the records are in the registry.
    pub committed: bool,
}

impl Journal {
    #[must_use]
    pub fn new(places: CampaignPlaces) -> Self {
        Self { places, runs_written: 0, committed: false }
    }

    #[must_use]
    pub fn places(&self) -> &CampaignPlaces {
        &self.places
    }

    /// Adds to a premature end what became of the records.
    #[must_use]
    pub fn ended_early(&self, stop: Stop, places: &Places, interrupt: &Interrupt) -> Stop {
        let overlay = places.shown(&self.places.overlay());
        let left = match (self.committed, self.runs_written) {
            (true, _) => "the records are committed; what came after is not done".to_owned(),
            (false, 0) => "nothing was recorded".to_owned(),
            (false, count) => {
                let records = if count == 1 { "record lies" } else { "records lie" };
                format!("nothing was committed; {count} finished {records} in `{overlay}`")
            }
        };
        if interrupt.raised() {
            Stop::environment("interrupted").with_hint(left)
        } else {
            stop.also(&left)
        }
    }
}
