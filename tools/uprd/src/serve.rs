//! `uprd serve`: the daemon as a process: sockets, signals, figures, trace.

use std::fs::{self, Permissions};
use std::io::{self, Read, Write};
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use serde_json::json;
use share::Server;
use share::metrics::Metrics;
use share::server::{Binding, ServerOptions};
use share::settings::DaemonSettings;
use share::system;

use crate::cli::ServeArgs;
use crate::gpu;
use crate::operate::{find, name_of};

/// Serves until the daemon is drained.
pub(crate) fn run(args: &ServeArgs, socket: Option<PathBuf>, settings: DaemonSettings) -> Result<(), String> {
    let text = |error: io::Error| error.to_string();
    let variable = |name: &str| std::env::var_os(name).and_then(|value| value.into_string().ok());
    let listen = [variable("LISTEN_PID"), variable("LISTEN_FDS"), variable("LISTEN_FDNAMES")];
    // First, while descriptors 3 and following can only be systemd's.
    let mut inherited = system::inherited((listen[0].as_deref(), listen[1].as_deref(), listen[2].as_deref()));
    let signals = system::signals().map_err(text)?;
    system::raise_descriptor_limit();

    let socket = socket.unwrap_or_else(|| settings.socket.clone());
    let total = files::memory_limit().map_or(1 << 30, |limit| limit.0);
    let limit = args.budget.map_or((total as f64 * settings.memory_fraction) as u64, |budget| budget.0);
    let options = ServerOptions {
        allow: args.allow.clone(),
        one_namespace: args.one_namespace,
        policy: args.policy.unwrap_or(settings.policy),
        estimation_rate: settings.estimation_rate,
        with_internal: settings.with_internal,
        workers: args.workers.into(),
        clients_max: args.clients_max,
        leases_max: args.leases_max,
        record: settings.write_profile,
        devices: gpu::tiers(args, &settings)?,
        persist_host: settings.persist_cpu,
        preload: preloads(args, &settings)?,
        base: Some(args.base.clone().unwrap_or_else(|| settings.base_dir.clone())),
        ..ServerOptions::new(limit)
    };
    let metrics_listener = take(&mut inherited, "metrics").map(UnixListener::from);
    let mut binding = match inherited.pop() {
        Some((_, listener)) => Binding::inherited(listener).map_err(text)?,
        None => Binding::new(&socket, !args.allow.is_empty()).map_err(|error| error.to_string())?,
    };
    let notify = variable("NOTIFY_SOCKET");
    if let Some(address) = notify.clone() {
        binding.notify = Box::new(move |state| system::notify(&address, state));
    }
    binding.warn = Box::new(warn);
    let metrics_path = args.metrics.clone().unwrap_or_else(|| socket.with_file_name("metrics.sock"));
    let metrics_listener = match metrics_listener {
        Some(listener) => listener,
        None => {
            let failed =
                |error| format!("cannot bind `{}`: {error}; --metrics names another path", metrics_path.display());
            let listener = bind_metrics(&metrics_path).map_err(failed)?;
            binding.others.push(metrics_path.clone());
            listener
        }
    };
    let tcp = args.metrics_tcp.map(|address| match address.ip().is_loopback() {
        true => TcpListener::bind(address).map_err(|error| format!("cannot bind {address}: {error}")),
        false => Err(format!("--metrics-tcp must be a loopback address, got {address}")),
    });
    let tcp = tcp.transpose()?;

    let server = Server::new(binding, options, Some(signals)).map_err(text)?;
    let (metrics, recorder) = (server.metrics(), server.recorder());
    let figures = metrics.clone();
    serve_figures(
        "figures",
        metrics,
        move || metrics_listener.accept().map(|(stream, _)| stream),
        |stream| stream.set_read_timeout(Some(PATIENCE)).and_then(|()| stream.set_write_timeout(Some(PATIENCE))),
    )?;
    if let Some(tcp) = tcp {
        serve_figures(
            "figures-tcp",
            figures,
            move || tcp.accept().map(|(stream, _)| stream),
            |stream| stream.set_read_timeout(Some(PATIENCE)).and_then(|()| stream.set_write_timeout(Some(PATIENCE))),
        )?;
    }
    if let Some(address) = &notify {
        system::notify(address, "READY=1\nSTATUS=serving");
    }
    eprintln!("uprd: serving `{}`, budget {} of {}", socket.display(), types::Bytes(limit), types::Bytes(total));
    let served = server.run().map_err(text);
    if settings.write_profile {
        let data = json!({ "server": {
            "eviction_policy": settings.policy.name(), "estimation_rate": settings.estimation_rate,
            "persist_cpu": settings.persist_cpu, "memory_percentage": settings.memory_fraction,
        } });
        let trace = recorder.trace(&settings.client, "uprd", data);
        files::write(&settings.profile_target, trace.to_string().as_bytes()).map_err(|error| error.to_string())?;
    }
    served
}

fn warn(message: &str) {
    let _ = writeln!(io::stderr().lock(), "uprd: {message}");
}

/// The files to preload with their names.
fn preloads(
    args: &ServeArgs,
    settings: &DaemonSettings,
) -> Result<Vec<(PathBuf, String, share::core::Granularity)>, String> {
    let mut given = args.preload.clone();
    if let Some(list) = &args.preload_list {
        let text = fs::read_to_string(list).map_err(|error| format!("cannot read `{}`: {error}", list.display()))?;
        let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
        given.extend(lines.filter(|line| !line.is_empty()).map(PathBuf::from));
    }
    let base = args.base.as_ref().unwrap_or(&settings.base_dir);
    let granularity = args.granularity.unwrap_or(settings.client.granularity);
    given.iter().map(|path| find(path, base).map(|path| (path.clone(), name_of(&path), granularity))).collect()
}

/// Takes the socket of a name from those that systemd passed on.
fn take(inherited: &mut Vec<(String, OwnedFd)>, name: &str) -> Option<OwnedFd> {
    let at = inherited.iter().position(|(own, _)| own == name)?;
    Some(inherited.remove(at).1)
}

/// Replaces a stale socket. That of another daemon in this folder, or of this one, stays.
fn bind_metrics(path: &Path) -> io::Result<UnixListener> {
    let is_used = match UnixStream::connect(path) {
        Ok(_) => true,
        // A daemon's own socket has another type.
        Err(error) => Errno::from_io_error(&error) == Some(Errno::PROTOTYPE),
    };
    if is_used {
        return Err(io::Error::new(io::ErrorKind::AddrInUse, "another socket is in use there"));
    }
    share::socket::remove_stale(path)?;
    let listener = UnixListener::bind(path)?;
    fs::set_permissions(path, Permissions::from_mode(0o600))?;
    Ok(listener)
}

/// The wait for a reader of figures. They are served one at a time, apart from leases.
const PATIENCE: Duration = Duration::from_secs(2);

/// Answers HTTP requests in a thread that ends with the process.
fn serve_figures<S: Read + Write + 'static>(
    name: &str,
    metrics: Arc<Metrics>,
    accept: impl Fn() -> io::Result<S> + Send + 'static,
    limit: impl Fn(&S) -> io::Result<()> + Send + 'static,
) -> Result<(), String> {
    let serve = move || {
        loop {
            let Ok(mut stream) = accept() else {
                std::thread::sleep(Duration::from_millis(100));
                continue;
            };
            let mut request = [0; 2048];
            if limit(&stream).is_ok()
                && let Ok(length) = stream.read(&mut request)
            {
                let _ = stream.write_all(metrics.http(&request[..length]).as_bytes());
            }
        }
    };
    let thread = std::thread::Builder::new().name(name.into()).spawn(serve);
    thread.map(drop).map_err(|error| error.to_string())
}
