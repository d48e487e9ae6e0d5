//! Formats a comparison of releases as a JUnit report: a suite per cell, a case per
//! release-blocking metric. A verdict that would fail a release is a failure; one that could not
//! be reached is skipped. Display only.

use quick_junit::{NonSuccessKind, Report, TestCase, TestCaseStatus, TestSuite};
use schema::comparison::{Diff, Row};
use schema::verdict::VerdictKind;

use judge::diff::words::{cells, title, word};

/// Formats the comparison as JUnit XML.
///
/// # Errors
///
/// Never for records of a registry: characters that XML cannot represent are left out.
pub fn junit(diff: &Diff) -> Result<String, quick_junit::SerializeError> {
    let mut report = Report::new(format!("{} to {}", diff.baseline, diff.candidate));
    for cell in &diff.cells {
        let name = title(&cell.cell);
        let mut suite = TestSuite::new(name.as_str());
        for row in cell.rows.iter().filter(|row| row.gates) {
            let mut case = TestCase::new(row.verdict.metric.as_str(), status(row));
            case.set_classname(name.as_str());
            suite.add_test_case(case);
        }
        report.add_test_suite(suite);
    }
    report.to_string()
}

fn status(row: &Row) -> TestCaseStatus {
    let mut status = match row.verdict.verdict {
        _ if row.verdict.fails() => TestCaseStatus::non_success(NonSuccessKind::Failure),
        VerdictKind::Inconclusive | VerdictKind::ChangedConfig => TestCaseStatus::skipped(),
        _ => TestCaseStatus::success(),
    };
    let [_, before, after, effect, interval, delta, sees, _] = cells(row);
    let figures = format!(
        "{}: {before} became {after}, {effect} (95 % interval {interval}, delta {delta}, sees {sees})",
        word(row)
    );
    status.set_type(row.verdict.verdict.name());
    status.set_message(figures);
    status
}
