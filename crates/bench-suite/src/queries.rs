//! [`answer_queries`]: runs on demand of another program, as a load generator.

use std::io::{BufRead, Write};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::channel;

use crate::Subject;
use crate::clock::now_ns;

/// Runs a query for each line of `input` until it ends. When its query is complete, writes the line to `output` with a tab and
/// the nanoseconds that the run took, so that the other program can tell them from those of the way to it. Subjects take queries in the order of the lines, each in a thread of its own. Returns the number of queries.
///
/// # Errors
/// A run that fails, which ends the others even if `input` has not ended; an output that is closed; a thread that the
/// system does not start.
pub fn answer_queries(
    subjects: &mut [Box<dyn Subject>],
    input: impl BufRead + Send + 'static,
    output: impl Write + Send,
) -> Result<u64, String> {
    // `None` ends one thread.
    let (sender, receiver) = channel::<Option<String>>();
    let (threads, from_input) = (subjects.len(), sender.clone());
    // Not joined: after a failure it may wait for a line.
    let reader = std::thread::Builder::new().spawn(move || {
        let lines = input.lines().map_while(Result::ok).map(Some);
        // The receiver ends before the input after a failure only.
        lines.chain((0..threads).map(|_| None)).try_for_each(|message| from_input.send(message))
    });
    reader.map_err(no_thread)?;
    let (receiver, output, count) = (Mutex::new(receiver), Mutex::new(output), AtomicU64::new(0));
    let (failure, failed) = (Mutex::new(None), AtomicBool::new(false));
    let work = |subject: &mut dyn Subject| {
        let next = || receiver.lock().expect("no holder of this lock panics").recv().ok().flatten();
        while let Some(line) = next() {
            if failed.load(Ordering::Relaxed) {
                return;
            }
            match answer(subject, &line, &output) {
                Ok(()) => _ = count.fetch_add(1, Ordering::Relaxed),
                Err(reason) => {
                    failed.store(true, Ordering::Relaxed);
                    failure.lock().expect("no holder of this lock panics").get_or_insert(reason);
                    (0..threads).for_each(|_| sender.send(None).expect("the receiver is alive"));
                    return;
                }
            }
        }
    };
    std::thread::scope(|scope| {
        for subject in subjects {
            let started = std::thread::Builder::new().spawn_scoped(scope, || work(&mut **subject));
            if let Err(error) = started {
                failed.store(true, Ordering::Relaxed);
                failure.lock().expect("no holder of this lock panics").get_or_insert(no_thread(error));
                (0..threads).for_each(|_| sender.send(None).expect("the receiver is alive"));
                return;
            }
        }
    });
    match failure.lock().expect("no holder of this lock panics").take() {
        Some(reason) => Err(reason),
        None => Ok(count.load(Ordering::Relaxed)),
    }
}

fn no_thread(error: std::io::Error) -> String {
    format!("cannot start a thread: {error}")
}

fn answer(subject: &mut dyn Subject, line: &str, output: &Mutex<impl Write>) -> Result<(), String> {
    let start = now_ns();
    subject.run()?;
    let took = now_ns() - start;
    let mut output = output.lock().expect("no holder of this lock panics");
    writeln!(output, "{line}\t{took}")
        .and_then(|()| output.flush())
        .map_err(|error| format!("cannot answer a query: {error}"))
}
