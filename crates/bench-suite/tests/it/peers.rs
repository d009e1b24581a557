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
    let error = peer("echo loading >&2; echo 'no module named x' >&2; echo >&2; exit 1").err().unwrap();
    assert_eq!(error, "the peer ended with exit status: 1: no module named x", "its last words are the reason");
    assert_eq!(peer("echo loading").err().unwrap(), "`sh` must print `ready`, printed `loading`");
    assert!(peer("echo ready").unwrap().runs(1).is_err());
}

#[test]
fn version_of_a_peer_is_optional() {
    assert_eq!(peer("echo ready 1.2.3").unwrap().version(), Some("1.2.3"));
    assert_eq!(peer("echo ready").unwrap().version(), None);
    assert!(peer("echo readily").is_err());
}

#[test]
fn peer_that_prints_garbage_is_an_error() {
    let runs =
        |answer: &str| peer(&format!("echo ready; read line; {answer}; read line")).unwrap().runs(1).unwrap_err();
    for answer in ["echo", "echo nan", "echo inf", "echo -1", "echo 0", "echo 1.5 x", "echo 1 2"] {
        assert!(runs(answer).starts_with("the peer must print 1 times, printed `"), "{answer}: {}", runs(answer));
    }
    assert!(runs("head -c 1000000 /dev/zero").starts_with("the peer printed a line of more than"));
    assert!(runs("printf '\\377\\n'").starts_with("cannot read from the peer"));
    let long = runs("head -c 3000 /dev/zero | tr '\\0' x; echo");
    assert!(long.len() < 300 && long.ends_with("...`"), "{long}");
}
