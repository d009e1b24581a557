//! The protocol of peers, with a shell script as the peer.

use std::process::Command;

use prestow_bench_suite::PeerProcess;

fn peer(script: &str) -> Result<PeerProcess, String> {
    let mut command = Command::new("sh");
    command.arg("-c").arg(script);
    PeerProcess::start(command)
}

#[test]
fn peer_runs_and_saves() {
    let script = r#"echo ready; while read command word; do
        case $command in run) echo 1.5 2.25;; save) echo saved;; esac; done"#;
    let mut peer = peer(script).unwrap();
    assert_eq!(peer.runs(2).unwrap(), [1_500_000, 2_250_000]);
    assert!(peer.runs(0).unwrap().is_empty());
    assert_eq!(peer.runs(3).unwrap_err(), "the peer must print 3 times, printed `1.5 2.25`");
    peer.save(std::path::Path::new("/tmp")).unwrap();
}

#[test]
fn peer_that_is_missing_or_ends_is_an_error() {
    let error = PeerProcess::start(Command::new("/absent/peer")).err().unwrap();
    assert!(error.starts_with("cannot start `/absent/peer`"), "{error}");
    assert_eq!(peer("exit 3").err().unwrap(), "the peer ended with exit status: 3");
    assert_eq!(peer("echo loading").err().unwrap(), "`sh` must print `ready`, printed `loading`");
    assert!(peer("echo ready").unwrap().runs(1).is_err());
}
