//! Comparison of releases as a JUnit report, which CI systems read.

use quick_junit::{NonSuccessKind, Report, SerializeError, TestCase, TestCaseStatus, TestSuite};
use schema::comparison::{Diff, Row};
use schema::verdict::VerdictKind;

use super::words;

/// Formats a comparison as a JUnit report: a suite for scenarios of a model together and one for each
/// cell, a case per release-blocking metric. A case fails if its verdict would fail a release and
/// is not waived, is skipped if the comparison was inconclusive or the configuration changed, and
/// else passes.
///
/// # Errors
/// The report cannot be written as XML.
pub fn junit(diff: &Diff) -> Result<String, SerializeError> {
    let mut report = Report::new(format!("{} to {}", diff.baseline, diff.candidate));
    let pooled = words::together(&diff.pooled.iter().collect::<Vec<_>>());
    let of_cells = diff.cells.iter().map(|cell| cell.rows.iter().collect());
    for rows in pooled.into_iter().chain(of_cells) {
        let Some(first) = rows.first() else { continue };
        let name = words::title_of_part(first);
        let mut suite = TestSuite::new(name.as_str());
        for row in rows.iter().filter(|row| row.gates) {
            let mut case = TestCase::new(row.verdict.metric.as_str(), case_status(row));
            case.set_classname(name.as_str());
            suite.add_test_case(case);
        }
        report.add_test_suite(suite);
    }
    report.to_string()
}

fn case_status(row: &Row) -> TestCaseStatus {
    let mut status = match row.verdict.verdict {
        _ if row.verdict.fails() => TestCaseStatus::non_success(NonSuccessKind::Failure),
        _ if words::is_not_worse(row) => TestCaseStatus::success(),
        VerdictKind::Inconclusive | VerdictKind::ChangedConfig => TestCaseStatus::skipped(),
        _ => TestCaseStatus::success(),
    };
    let [_, before, after, effect, interval, word] = words::cells(row);
    let figures = format!("{word}: {before} became {after}, {effect} (95 % interval {interval})");
    status.set_type(row.verdict.verdict.name());
    status.set_message(figures);
    status
}
