//! `prestow-store URL`: reads objects for prestow's data sets, in a process of its own.
//!
//! The data sets of prestow are read by threads that wait; object stores need an asynchronous runtime, HTTP and TLS. This
//! program has all of these, so that neither `prestow` nor an executable has them. `crates/data/src/store.rs` is its client.
//!
//! URL is an object or a prefix: `s3://`, `gs://`, `az://`, `http://` and `https://` (with WebDAV for lists). Credentials and
//! endpoints come from the variables `AWS_*`, `GOOGLE_*` and `AZURE_*` of the environment.
//!
//! Requests are lines of standard input, NAME relative to URL and empty for URL itself:
//!
//! ```text
//! list ID                       the objects below URL, a line SIZE<TAB>NAME each, sorted by name
//! size ID NAME                  the size of an object as a decimal number
//! read ID OFFSET LENGTH NAME    bytes of an object
//! ```
//!
//! Standard output begins with `ready`. A response is `ok ID BYTES` or `error ID BYTES` as a line, then as many bytes: the
//! result, or a reason. Requests run at the same time; responses are in the order of their ends. A response of `read` has
//! exactly LENGTH bytes: a connection that ends before is tried again from there, and an object that changes is an error.

use std::collections::BTreeMap;
use std::error::Error;
use std::io::{BufRead, Write};
use std::ops::Range;
use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::TryStreamExt;
use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::http::HttpBuilder;
use object_store::path::Path;
use object_store::{
    BackoffConfig, ClientOptions, GetOptions, GetRange, ObjectMeta, ObjectStore, ObjectStoreExt, ObjectStoreScheme,
    RetryConfig,
};
use url::Url;

/// The most bytes of one response, so that a client's mistake cannot exhaust memory.
const READ_MAX: u64 = 1 << 30;

/// Attempts at a body that ends early. The library itself also tries again, but it needs an entity tag to continue a body.
const BODY_ATTEMPTS: u32 = 5;

fn main() -> ExitCode {
    // A response above the limit of file sizes, to a standard output that is a file, is an error and no signal. It fails only
    // where the system refuses handlers, which leaves the signal.
    let _ = signal_hook::flag::register(signal_hook::consts::SIGXFSZ, Arc::default());
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [url] = &words[..] else {
        eprintln!("usage: prestow-store URL");
        return ExitCode::from(2);
    };
    match serve(url) {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("error: {reason}");
            ExitCode::from(2)
        }
    }
}

/// Answers requests until standard input ends.
fn serve(url: &str) -> Result<(), String> {
    // It fails only if a provider is installed.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let url = Url::parse(url).map_err(|error| format!("`{url}` must be a URL: {error}"))?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.map_err(|error| format!("cannot start threads: {error}"))?;
    let objects = Arc::new(Objects::new(&url)?);
    let output = Arc::new(Mutex::new(std::io::stdout()));
    say(&output, b"ready\n")?;
    for line in std::io::stdin().lock().lines() {
        let line = line.map_err(|error| format!("cannot read requests: {error}"))?;
        let request = Request::parse(&line).ok_or_else(|| format!("`{line}` is not a request"))?;
        let (objects, output) = (objects.clone(), output.clone());
        runtime.spawn(async move {
            let (word, body) = match objects.answer(&request.verb).await {
                Ok(body) => ("ok", body),
                Err(reason) => ("error", reason.into_bytes()),
            };
            let mut frame = format!("{word} {} {}\n", request.id, body.len()).into_bytes();
            frame.extend_from_slice(&body);
            // A client that has ended needs no answer.
            let _ = say(&output, &frame);
        });
    }
    Ok(())
}

fn say(output: &Mutex<std::io::Stdout>, bytes: &[u8]) -> Result<(), String> {
    let mut output = output.lock().expect("no holder of this lock panics");
    output.write_all(bytes).and_then(|()| output.flush()).map_err(|error| format!("cannot answer: {error}"))
}

/// A line of standard input.
#[derive(Debug, PartialEq)]
struct Request {
    id: u64,
    verb: Verb,
}

#[derive(Debug, PartialEq)]
enum Verb {
    List,
    Size { name: String },
    Read { range: Range<u64>, name: String },
}

impl Request {
    fn parse(line: &str) -> Option<Request> {
        let (verb, rest) = line.split_once(' ')?;
        let number = |text: &str| text.parse::<u64>().ok();
        let (id, verb) = match verb {
            "list" => (number(rest)?, Verb::List),
            "size" => {
                let (id, name) = rest.split_once(' ')?;
                (number(id)?, Verb::Size { name: name.into() })
            }
            "read" => {
                let mut parts = rest.splitn(4, ' ');
                let mut next = || parts.next();
                let (id, offset, length) = (number(next()?)?, number(next()?)?, number(next()?)?);
                let range = offset..offset.checked_add(length).filter(|_| (1..=READ_MAX).contains(&length))?;
                (id, Verb::Read { range, name: next()?.into() })
            }
            _ => return None,
        };
        Some(Request { id, verb })
    }
}

/// The objects below a URL.
struct Objects {
    store: Box<dyn ObjectStore>,
    base: Path,
    /// Size and entity tag of each object as first seen: later reads must find the same.
    seen: Mutex<BTreeMap<String, ObjectMeta>>,
}

impl Objects {
    fn new(url: &Url) -> Result<Objects, String> {
        let refused = |error: object_store::Error| format!("`{url}`: {error}");
        let (scheme, base) = ObjectStoreScheme::parse(url).map_err(|error| format!("`{url}`: {error}"))?;
        let backoff = BackoffConfig { max_backoff: Duration::from_secs(5), ..BackoffConfig::default() };
        let retry = RetryConfig { backoff, max_retries: 6, retry_timeout: Duration::from_secs(120) };
        #[expect(clippy::disallowed_methods, reason = "a program reads its environment at its edge")]
        let plain = |name: &str| std::env::var(name).is_ok_and(|endpoint| endpoint.starts_with("http://"));
        let store: Box<dyn ObjectStore> = match scheme {
            ObjectStoreScheme::AmazonS3 => {
                let mut builder = AmazonS3Builder::from_env().with_url(url.as_str()).with_retry(retry);
                // The user chose an endpoint without TLS.
                if plain("AWS_ENDPOINT_URL") || plain("AWS_ENDPOINT") {
                    builder = builder.with_allow_http(true);
                }
                Box::new(builder.build().map_err(refused)?)
            }
            ObjectStoreScheme::GoogleCloudStorage => {
                let builder = GoogleCloudStorageBuilder::from_env().with_url(url.as_str()).with_retry(retry);
                Box::new(builder.build().map_err(refused)?)
            }
            ObjectStoreScheme::MicrosoftAzure => {
                let builder = MicrosoftAzureBuilder::from_env().with_url(url.as_str()).with_retry(retry);
                Box::new(builder.build().map_err(refused)?)
            }
            ObjectStoreScheme::Http => {
                let options = ClientOptions::new().with_allow_http(url.scheme() == "http");
                let builder = HttpBuilder::new().with_url(&url[..url::Position::BeforePath]);
                Box::new(builder.with_client_options(options).with_retry(retry).build().map_err(refused)?)
            }
            _ => {
                return Err(format!("`{url}` must begin with s3://, gs://, az://, http:// or https://"));
            }
        };
        Ok(Objects { store, base, seen: Mutex::default() })
    }

    async fn answer(&self, verb: &Verb) -> Result<Vec<u8>, String> {
        match verb {
            Verb::List => self.list().await,
            Verb::Size { name } => Ok(self.meta(name).await?.size.to_string().into_bytes()),
            Verb::Read { range, name } => self.read(range.clone(), name).await,
        }
    }

    async fn list(&self) -> Result<Vec<u8>, String> {
        let all: Vec<ObjectMeta> = self.store.list(Some(&self.base)).try_collect().await.map_err(words)?;
        let mut rows = Vec::new();
        let mut seen = self.seen.lock().expect("no holder of this lock panics");
        for meta in all {
            let name = meta.location.as_ref().strip_prefix(self.base.as_ref()).unwrap_or_default();
            let name = name.trim_start_matches('/').to_string();
            if name.contains('\n') {
                return Err(format!("the name of an object has a line break: `{}`", name.escape_debug()));
            }
            rows.push((name.clone(), meta.size));
            // Reads then need no request for the size.
            seen.entry(name).or_insert(meta);
        }
        rows.sort();
        Ok(rows.into_iter().map(|(name, size)| format!("{size}\t{name}\n")).collect::<String>().into_bytes())
    }

    fn path(&self, name: &str) -> Result<Path, String> {
        match name {
            "" => Ok(self.base.clone()),
            name => Path::parse(format!("{}/{name}", self.base)).map_err(|error| error.to_string()),
        }
    }

    /// Size and entity tag, as first seen.
    async fn meta(&self, name: &str) -> Result<ObjectMeta, String> {
        if let Some(meta) = self.seen.lock().expect("no holder of this lock panics").get(name) {
            return Ok(meta.clone());
        }
        let meta = self.store.head(&self.path(name)?).await.map_err(words)?;
        let mut seen = self.seen.lock().expect("no holder of this lock panics");
        Ok(seen.entry(name.to_string()).or_insert(meta).clone())
    }

    /// Exactly the bytes of `range`.
    async fn read(&self, range: Range<u64>, name: &str) -> Result<Vec<u8>, String> {
        let (meta, path) = (self.meta(name).await?, self.path(name)?);
        if meta.size < range.end {
            return Err(format!("the object has {} bytes, requested {} to {}", meta.size, range.start, range.end));
        }
        let mut bytes = Vec::with_capacity((range.end - range.start) as usize);
        let mut attempt = 0;
        loop {
            let rest = range.start + bytes.len() as u64..range.end;
            let options = GetOptions {
                range: Some(GetRange::Bounded(rest)),
                if_match: meta.e_tag.clone(),
                ..GetOptions::default()
            };
            let result = self.store.get_opts(&path, options).await.map_err(words)?;
            if result.meta.size != meta.size || meta.e_tag.is_some() && result.meta.e_tag != meta.e_tag {
                return Err("the object changed while it was read".into());
            }
            let mut stream = result.into_stream();
            let ended = loop {
                match stream.try_next().await {
                    Ok(Some(part)) => bytes.extend_from_slice(&part),
                    Ok(None) => break "the response has ended".to_string(),
                    Err(error) => break words(error),
                }
            };
            let (found, wanted) = (bytes.len() as u64, range.end - range.start);
            if found == wanted {
                return Ok(bytes);
            }
            attempt += 1;
            if wanted < found || BODY_ATTEMPTS <= attempt {
                return Err(format!("received {found} of {wanted} bytes in {attempt} attempts: {ended}"));
            }
            tokio::time::sleep(Duration::from_millis(50 << attempt)).await;
        }
    }
}

/// An error with its causes, each once.
fn words(error: object_store::Error) -> String {
    use object_store::Error as E;
    let head = match &error {
        E::Precondition { .. } => return "the object changed while it was read".into(),
        // Clients compare these two.
        E::NotFound { .. } => "not found: ",
        E::PermissionDenied { .. } | E::Unauthenticated { .. } => "access denied: ",
        _ => "",
    };
    let mut text = format!("{head}{error}");
    let mut cause = error.source();
    while let Some(error) = cause {
        let own = error.to_string();
        if !text.contains(&own) {
            text = format!("{text}: {own}");
        }
        cause = error.source();
    }
    text.replace('\n', " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_parsed_and_others_refused() {
        let read = |range, name: &str| Verb::Read { range, name: name.into() };
        assert_eq!(Request::parse("list 3"), Some(Request { id: 3, verb: Verb::List }));
        assert_eq!(Request::parse("read 4 5 6 a b").map(|own| own.verb), Some(read(5..11, "a b")));
        assert_eq!(Request::parse("read 4 5 6 ").map(|own| own.verb), Some(read(5..11, "")));
        assert_eq!(Request::parse("size 1 x").map(|own| own.verb), Some(Verb::Size { name: "x".into() }));
        for wrong in ["", "list", "list x", "size 1", "read 1 2 3", "read 1 0 0 x", "read 1 2 2000000000 x", "drop 1"] {
            assert_eq!(Request::parse(wrong), None, "{wrong}");
        }
        assert_eq!(Request::parse(&format!("read 1 {} 2 x", u64::MAX)), None, "the end overflows");
    }
}
