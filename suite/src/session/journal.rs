//! Writes samples to disk while requests complete, so that a run that is cut short keeps them.
//!
//! A line is formatted when its request ends and written by a separate thread: a slow disk must not
//! delay the client's event loop.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::mpsc::{Sender, channel};
use std::thread::{self, JoinHandle};

use schema::run::Status;
use schema::samples::{End, Failure, Head, Line, Sample as SampleLine};

use crate::client::sample::Sample;
use crate::clock::monotonic_ns;

/// Samples file (`.samples.jsonl`) that is being written.
#[derive(Debug)]
pub struct Journal {
    /// Time of the monotonic clock, in nanoseconds, to which all times in the samples file are
    /// relative.
    origin_ns: u64,
    /// True when the file gets the texts of the answers, which may be long.
    keeps_text: bool,
    /// Lines of the samples file that are formatted but not yet passed to the writer thread.
    pending: Vec<u8>,
    lines: Sender<Vec<u8>>,
    writer: JoinHandle<std::io::Result<()>>,
    /// Number of samples written to the file so far, pending ones included.
    samples: u64,
    failures: BTreeMap<String, u64>,
}

impl Journal {
    /// Creates the samples file at `path`, replacing an older one, and writes its head. The texts of
    /// the answers are left out unless `keeps_text` is true.
    ///
    /// # Errors
    /// The file cannot be created or written, or the system refuses to start the writer thread.
    pub fn create(path: &Path, head: Head, keeps_text: bool) -> std::io::Result<Self> {
        let origin_ns = monotonic_ns();
        let mut file = File::create(path)?;
        file.write_all(&text(&Line::Head(Head { origin_ns: Some(origin_ns), ..head })))?;
        let (lines, received) = channel::<Vec<u8>>();
        // The thread ends when `finish` drops the sender.
        let write = move || received.iter().try_for_each(|lines| file.write_all(&lines));
        let writer = thread::Builder::new().name("samples".to_owned()).spawn(write)?;
        Ok(Self {
            origin_ns,
            keeps_text,
            pending: Vec::new(),
            lines,
            writer,
            samples: 0,
            failures: BTreeMap::new(),
        })
    }

    /// Formats the sample of the request at position `index` of the plan as a line of the samples
    /// file; `flush` passes the line to the writer thread.
    pub fn sample(&mut self, index: usize, sample: &Sample) {
        self.samples += 1;
        if let Some(failure) = &sample.failure {
            *self.failures.entry(failure.kind.to_string()).or_insert(0) += 1;
        }
        self.pending.extend(text(&Line::Sample(Box::new(line(
            index,
            sample,
            self.origin_ns,
            self.keeps_text,
        )))));
    }

    /// Passes the pending lines of the samples file to the writer thread, without waiting for the
    /// disk.
    pub fn flush(&mut self) {
        if !self.pending.is_empty() {
            // `send` fails only if the writer thread ended with an error, which `finish` returns.
            let _ = self.lines.send(std::mem::take(&mut self.pending));
        }
    }

    /// Writes the samples file's end line with the run's status and the number of failures, and
    /// waits for the writer thread.
    ///
    /// # Errors
    /// A line could not be written, now or earlier, or the writer thread panicked.
    pub fn finish(mut self, status: Status) -> std::io::Result<()> {
        let failures = std::mem::take(&mut self.failures);
        self.pending.extend(text(&Line::End(End { status, samples: self.samples, failures })));
        self.flush();
        drop(self.lines);
        self.writer.join().unwrap_or_else(|_| Err(std::io::Error::other("the writer panicked")))
    }
}

fn text(line: &Line) -> Vec<u8> {
    // Serialization cannot fail: every field has a JSON form.
    let mut text = serde_json::to_vec(line).unwrap_or_default();
    text.push(b'\n');
    text
}

fn line(index: usize, sample: &Sample, origin_ns: u64, keeps_text: bool) -> SampleLine {
    let at = |ns: u64| ns.saturating_sub(origin_ns);
    let chunks = &sample.chunks;
    let gaps = chunks.windows(2).map(|pair| pair[1].at_ns.saturating_sub(pair[0].at_ns));
    SampleLine {
        request: index as u64,
        scheduled_at_ns: at(sample.scheduled_ns),
        queue_ns: sample.queue_ns,
        taken_at_ns: sample.taken_ns.map(at),
        sent_at_ns: sample.sent_ns.map(at),
        written_at_ns: sample.written_ns.map(at),
        connect_ns: sample.connect_ns,
        tls_ns: sample.tls_ns,
        first_event_at_ns: sample.first_event_ns.map(at),
        first_content_at_ns: sample.first_content_ns.map(at),
        parsed_at_ns: sample.parsed_ns.map(at),
        end_at_ns: at(sample.end_ns),
        first_chunk_at_ns: chunks.first().map(|chunk| at(chunk.at_ns)),
        gaps_ns: gaps.collect(),
        lags_ns: chunks.iter().map(|chunk| chunk.lag_ns).collect(),
        chunk_tokens: chunks.iter().map(|chunk| chunk.tokens).collect(),
        empty_chunks_at_ns: sample.empty_ns.iter().map(|ns| at(*ns)).collect(),
        prompt_tokens: sample.usage.map(|usage| usage.prompt_tokens),
        completion_tokens: sample.usage.map(|usage| usage.completion_tokens),
        cached_tokens: sample.usage.and_then(|usage| usage.cached_tokens),
        finish_reason: sample.finish_reason.clone(),
        text: keeps_text.then(|| sample.text.clone()),
        failure: sample.failure.as_ref().map(|failure| Failure {
            kind: failure.kind.to_string(),
            message: failure.message.clone(),
        }),
    }
}
