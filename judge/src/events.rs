//! Events of a registry: which records are retracted, which regressions are waived, and where
//! series break. Retracted records stay in the registry, and its readers leave them out by these
//! events.

use std::collections::BTreeMap;

use schema::event::{Event, EventKind};
use schema::verdict::Cell;

use crate::records::{Registry, Stored};

/// Retraction of a record or of an event: the event that declares it invalid, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Retraction {
    /// Id of the event that retracts the record or event.
    pub event: String,
    /// Reason for the retraction, in the words of its author.
    pub reason: String,
    /// Id of the record that replaces the retracted one; `None` where none does.
    pub replaced_by: Option<String>,
}

/// Point in time at which the series of some cells break.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Epoch<'a> {
    /// Start of the new series, in seconds since 1970: runs planned at this time or later belong to
    /// it.
    pub since_unix_s: i64,
    /// Event that declares the epoch, with its reason.
    pub event: &'a Event,
}

/// Returns the ids that `events` retract, with the reason for each. `named` lists id and path of
/// every record that can be retracted; events can be retracted as well.
pub fn retractions(
    events: &[Stored<Event>],
    named: &[(&str, &str)],
) -> BTreeMap<String, Retraction> {
    let mut retracted: BTreeMap<String, Retraction> = BTreeMap::new();
    let mut standing: Vec<&Event> = events.iter().map(|stored| &stored.record).collect();
    standing.retain(|event| event.kind == EventKind::Retract);
    // An event can only name earlier ones, so the latest always stands and no two retract each
    // other.
    standing.sort_by(|a, b| b.id.cmp(&a.id));
    for event in standing {
        // A retraction that was itself retracted has no effect.
        if retracted.contains_key(&event.id) {
            continue;
        }
        let earlier = events.iter().filter(|other| other.record.id < event.id);
        let earlier = earlier.map(|other| (other.record.id.as_str(), other.path.as_str()));
        let found = named.iter().copied().chain(earlier).filter(|(id, path)| event.names(id, path));
        for (id, _) in found {
            let (reason, replaced_by) = (event.reason.clone(), event.replaced_by.clone());
            let retraction = Retraction { event: event.id.clone(), reason, replaced_by };
            retracted.insert(id.to_owned(), retraction);
        }
    }
    retracted
}

impl Registry {
    /// Computes the field `retracted` of the registry from the events that were read.
    pub fn apply_events(&mut self) {
        let runs = self.runs.iter().map(|run| (run.record.id.as_str(), run.path.as_str()));
        let kernels = self.kernels.iter().map(|k| (k.record.id.as_str(), k.path.as_str()));
        let named: Vec<(&str, &str)> = runs.chain(kernels).collect();
        self.retracted = retractions(&self.events, &named);
    }

    /// Returns the events that are not retracted themselves, in the order of their paths.
    pub fn events_that_stand(&self) -> impl Iterator<Item = &Event> {
        let events = self.events.iter().map(|stored| &stored.record);
        events.filter(|event| !self.retracted.contains_key(&event.id))
    }

    /// Returns the waiver that accepts a regression of `metric` in `cell` by `release`; `None`
    /// where there is none. Waivers that expired before `unix_s` (seconds since 1970) are ignored,
    /// and of the others the one that lasts longest is returned.
    pub fn waiver(&self, cell: &Cell, metric: &str, release: &str, unix_s: i64) -> Option<&Event> {
        let waivers = self.events_that_stand().filter(|event| {
            event.kind == EventKind::Waive
                && event.metric.as_deref() == Some(metric)
                && event.release.as_deref().is_none_or(|named| named == release)
                && event.covers(cell)
                && !event.has_expired(unix_s)
        });
        waivers.max_by(|a, b| a.expires.cmp(&b.expires))
    }

    /// Returns the epochs at which the series of `cell` breaks, earliest first.
    pub fn epochs(&self, cell: &Cell) -> Vec<Epoch<'_>> {
        let epochs = self.events_that_stand().filter(|event| event.kind == EventKind::Epoch);
        let mut found: Vec<Epoch<'_>> = epochs
            .filter(|event| event.covers(cell))
            .filter_map(|event| Some(Epoch { since_unix_s: event.since_unix_s()?, event }))
            .collect();
        found.sort_by(|a, b| (a.since_unix_s, &a.event.id).cmp(&(b.since_unix_s, &b.event.id)));
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use samples::{Sample, campaign_id};
    use schema::event::unix_s_of;

    fn event(serial: u64, kind: EventKind, targets: &[&str]) -> Event {
        Event {
            id: campaign_id(serial),
            at: "2026-01-02T00:00:00Z".into(),
            targets: targets.iter().map(|&target| target.to_owned()).collect(),
            ..Event::draft(kind, &format!("Reason {serial}."), &[])
        }
    }

    fn registry(events: Vec<Event>) -> Registry {
        let mut registry = Registry::default();
        for serial in 1..=3 {
            let record = Sample { serial, ..Sample::default() }.record();
            let path = schema::path::of_run(&record).unwrap();
            registry.runs.push(Stored { path, root: 0, record });
        }
        let stored = |event: Event| {
            let path = schema::path::of_event(&event.id).unwrap();
            Stored { path, root: 0, record: event }
        };
        registry.events = events.into_iter().map(stored).collect();
        registry.apply_events();
        registry
    }

    #[test]
    fn a_retraction_that_was_retracted_no_longer_counts() {
        let id = |serial| Sample { serial, ..Sample::default() }.record().id;
        let (first, second) = (event(100, EventKind::Retract, &[&id(1)]), campaign_id(100));
        let undo = event(200, EventKind::Retract, &[&second]);
        assert_eq!(registry(vec![first.clone()]).standing().count(), 2);
        let undone = registry(vec![first.clone(), undo.clone()]);
        assert_eq!(undone.standing().count(), 3);
        assert_eq!(undone.retracted[&second].reason, "Reason 200.");
        // An event cannot name a later one.
        let early = event(50, EventKind::Retract, &[&campaign_id(200)]);
        assert_eq!(registry(vec![first, undo, early]).standing().count(), 3);
    }

    #[test]
    fn a_folder_retracts_what_was_planned_before() {
        let folder = "runs/redline/v0.9.1/";
        assert_eq!(registry(vec![event(100, EventKind::Retract, &[folder])]).standing().count(), 0);
        assert_eq!(registry(vec![event(2, EventKind::Retract, &[folder])]).standing().count(), 1);
        let other = registry(vec![event(100, EventKind::Retract, &["runs/redline/v0.9.2/"])]);
        assert_eq!(other.standing().count(), 3);
    }

    #[test]
    fn waivers_and_epochs_are_found_by_cell_and_time() {
        let mut short = event(100, EventKind::Waive, &[]);
        short.cell = Some("redline/*/*/*/*".into());
        short.metric = Some("tpot_us_p50".into());
        short.expires = Some("2026-02-01T00:00:00Z".into());
        let mut long = short.clone();
        long.id = campaign_id(101);
        long.release = Some("v0.9.2".into());
        long.expires = Some("2026-03-01T00:00:00Z".into());
        let mut epoch = event(102, EventKind::Epoch, &[]);
        epoch.cell = Some("*/cpu-x/*/*/*".into());
        epoch.since = Some("2025-12-31T00:00:00Z".into());
        let remark = event(103, EventKind::Annotate, &["runs/redline/v0.9.1/"]);
        let registry = registry(vec![short, long, epoch, remark]);
        let cell = Cell { engine: "redline".into(), hardware: "cpu-x".into(), ..Cell::default() };
        let at = |text| unix_s_of(text).unwrap();
        let waiver = |metric, release, at| registry.waiver(&cell, metric, release, at);
        let (january, february) = (at("2026-01-15T00:00:00Z"), at("2026-02-01T00:00:00Z"));
        assert_eq!(waiver("tpot_us_p50", "v0.9.2", january).unwrap().id, campaign_id(101));
        assert_eq!(waiver("tpot_us_p50", "v0.9.3", january).unwrap().id, campaign_id(100));
        assert_eq!(waiver("tpot_us_p50", "v0.9.3", february), None);
        assert_eq!(waiver("ttft_us_p50", "v0.9.2", january), None);
        let epochs = registry.epochs(&cell);
        assert_eq!(epochs.len(), 1);
        assert_eq!(epochs[0].since_unix_s, at("2025-12-31T00:00:00Z"));
        assert_eq!(registry.epochs(&Cell::default()), []);
    }
}
