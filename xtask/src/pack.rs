//! `cargo xtask gpu-check --pack DIR`: a folder with the programs of the check, for a machine with a GPU and without Rust
//! or this repository.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::{target, tools};

/// Builds the programs and copies them to a folder, with a script that runs `gpu-check` with these arguments.
pub(crate) fn run(folder: &Path, arguments: &[String]) -> Result<u8, String> {
    tools::build(&[tools::PRODUCT[0], tools::PRODUCT[1], tools::GPU_CHECK])?;
    let failed = |path: &Path| {
        let path = path.display().to_string();
        move |error: std::io::Error| format!("{path}: {error}")
    };
    fs::create_dir_all(folder).map_err(failed(folder))?;
    for program in ["prestow-gpu-check", "prestow", "prestow-runner"] {
        let (from, to) = (target().join("release").join(program), folder.join(program));
        fs::copy(&from, &to).map_err(failed(&to))?;
    }
    let script = folder.join("check");
    fs::write(&script, text(arguments)).map_err(failed(&script))?;
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).map_err(failed(&script))?;
    println!(
        "{}: copy it to the machine with the GPU and run `check` in it; it writes report.json to the same folder",
        folder.display()
    );
    Ok(0)
}

/// The script. Its own arguments follow the packed ones.
fn text(arguments: &[String]) -> String {
    let quoted: Vec<String> =
        arguments.iter().map(|argument| format!("'{}' ", argument.replace('\'', r"'\''"))).collect();
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
    fn arguments_reach_the_command_unchanged() {
        let arguments: Vec<String> = ["resnet50", "--python", "/a b/it's"].map(str::to_string).to_vec();
        let folder = std::env::temp_dir().join(format!("prestow-pack-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        let write = |name: &str, text: &str| {
            fs::write(folder.join(name), text).unwrap();
            fs::set_permissions(folder.join(name), fs::Permissions::from_mode(0o755)).unwrap();
        };
        write("check", &text(&arguments));
        write("prestow-gpu-check", "#!/bin/sh\nfor word; do echo \"[$word]\"; done\n");
        let out = std::process::Command::new(folder.join("check")).arg("--json").current_dir("/").output().unwrap();
        fs::remove_dir_all(&folder).unwrap();
        let text = String::from_utf8(out.stdout).unwrap();
        assert_eq!(text, "[resnet50]\n[--python]\n[/a b/it's]\n[-o]\n[report.json]\n[--json]\n");
    }
}
