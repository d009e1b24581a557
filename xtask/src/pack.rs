//! `cargo xtask gpu-check --pack DIR`: what is built here in a folder that checks there, on a machine with a GPU and neither
//! Rust nor this repository.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::{cargo, check, target};

/// Builds the programs and lays them into a folder, with a script that runs `gpu-check` with these words.
pub(crate) fn run(folder: &Path, words: &[String]) -> Result<u8, String> {
    check(
        "the build",
        cargo().args([
            "build",
            "--quiet",
            "--release",
            "-p",
            "prestow-cli",
            "-p",
            "prestow-runner",
            "-p",
            "prestow-gpu-check",
        ]),
    )?;
    let told = |path: &Path| {
        let path = path.display().to_string();
        move |error: std::io::Error| format!("{path}: {error}")
    };
    fs::create_dir_all(folder).map_err(told(folder))?;
    for program in ["prestow-gpu-check", "prestow", "prestow-runner"] {
        let (from, to) = (target().join("release").join(program), folder.join(program));
        fs::copy(&from, &to).map_err(told(&to))?;
    }
    let script = folder.join("check");
    fs::write(&script, text(words)).map_err(told(&script))?;
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).map_err(told(&script))?;
    println!(
        "{}: copy it to where the GPU is, and run `check` in it; it writes report.json beside itself",
        folder.display()
    );
    Ok(0)
}

/// The script. What it is given goes to `gpu-check` as well.
fn text(words: &[String]) -> String {
    let quoted: Vec<String> = words.iter().map(|word| format!("'{}' ", word.replace('\'', r"'\''"))).collect();
    format!(
        "#!/bin/sh\n# Needs NVIDIA's driver, and its libraries where Python's packages or a toolkit have them.\n\
         cd \"$(dirname \"$0\")\" || exit 2\nexec ./prestow-gpu-check {}-o report.json \"$@\"\n",
        quoted.concat()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_come_to_the_command_as_they_are() {
        let words: Vec<String> = ["resnet50", "--python", "/a b/it's"].map(str::to_string).to_vec();
        let folder = std::env::temp_dir().join(format!("prestow-pack-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        let write = |name: &str, text: &str| {
            fs::write(folder.join(name), text).unwrap();
            fs::set_permissions(folder.join(name), fs::Permissions::from_mode(0o755)).unwrap();
        };
        write("check", &text(&words));
        write("prestow-gpu-check", "#!/bin/sh\nfor word; do echo \"[$word]\"; done\n");
        let out = std::process::Command::new(folder.join("check")).arg("--json").current_dir("/").output().unwrap();
        fs::remove_dir_all(&folder).unwrap();
        let said = String::from_utf8(out.stdout).unwrap();
        assert_eq!(said, "[resnet50]\n[--python]\n[/a b/it's]\n[-o]\n[report.json]\n[--json]\n");
    }
}
