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
    let checker = folder.join("prestow-gpu-check");
    let glibc = glibc(&fs::read(&checker).map_err(failed(&checker))?);
    let needs = requirements(arguments, glibc);
    let script = folder.join("check");
    fs::write(&script, text(arguments, &needs)).map_err(failed(&script))?;
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).map_err(failed(&script))?;
    println!(
        "{}: copy it to the machine with the GPU and run `check` in it; it writes report.json to the same folder, and \
         `check --resume` continues a run that was stopped. That machine must have:",
        folder.display()
    );
    needs.iter().for_each(|need| println!("  {need}"));
    Ok(0)
}

/// Requirements on the other machine for these arguments of `gpu-check`.
fn requirements(arguments: &[String], glibc: Option<u32>) -> Vec<String> {
    let has = |flag: &str| arguments.iter().any(|word| word == flag || word.starts_with(&format!("{flag}=")));
    let value = |flags: [&str; 2]| {
        let of = |(ix, word): (usize, &String)| match word.split_once('=') {
            Some((flag, value)) if flags.contains(&flag) => Some(value.to_string()),
            None if flags.contains(&word.as_str()) => arguments.get(ix + 1).cloned(),
            _ => None,
        };
        arguments.iter().enumerate().find_map(of)
    };
    let glibc = glibc.map_or(String::new(), |minor| format!(" with glibc 2.{minor} or later"));
    let mut needs = vec![
        format!("Linux on {}{glibc}", std::env::consts::ARCH),
        "NVIDIA's driver of release 580 or later, and a GPU of sm_80 or later".to_string(),
        "libnvrtc.so.13: PyTorch's packages or `pip install nvidia-cuda-nvrtc` have it".to_string(),
    ];
    if has("--cudnn") {
        needs.push("libcudnn.so.9 of 9.11 or later, and libcublasLt.so.13 that it loads".into());
    }
    if has("--cublas") {
        needs.push("libcublasLt.so.13".into());
    }
    if has("--data") {
        needs.push("the folder of --data, with the weights of `cargo xtask fetch`".into());
    }
    match value(["--baselines", "--peers"]).as_deref() {
        Some("none") => {}
        named => {
            let names = named.unwrap_or("torch-eager,torch-compile,onnxruntime");
            let python = value(["--python", "--python"]).unwrap_or_else(|| "python3".into());
            needs.push(format!(
                "for the baselines {names}: {python} with torch, onnx and numpy, or with onnxruntime-gpu; --baselines none leaves \
                 them out"
            ));
        }
    }
    needs.push("optional: libcupti.so.13, which counts the driver's allocations in a run".into());
    needs.push(
        "libraries are looked for in PRESTOW_CUDA_LIBS, CUDA_HOME, the packages of Python, and by the system's loader"
            .into(),
    );
    needs
}

/// The latest version 2.N of glibc's symbols that a program needs.
fn glibc(program: &[u8]) -> Option<u32> {
    const NAME: &[u8] = b"GLIBC_2.";
    let versions =
        program.windows(NAME.len()).enumerate().filter(|(_, window)| *window == NAME).filter_map(|(at, _)| {
            let digits = program[at + NAME.len()..].iter().take_while(|byte| byte.is_ascii_digit());
            String::from_utf8(digits.copied().collect()).ok()?.parse().ok()
        });
    versions.max()
}

/// The script. Its own arguments follow the packed ones.
fn text(arguments: &[String], needs: &[String]) -> String {
    let needs: String = needs.iter().map(|need| format!("#   {need}\n")).collect();
    let quoted: Vec<String> =
        arguments.iter().map(|argument| format!("'{}' ", argument.replace('\'', r"'\''"))).collect();
    format!(
        "#!/bin/sh\n# This machine must have:\n{needs}cd \"$(dirname \"$0\")\" || exit 2\nexec ./prestow-gpu-check {}-o report.json \"$@\"\n",
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
        write("check", &text(&arguments, &requirements(&arguments, Some(34))));
        write("prestow-gpu-check", "#!/bin/sh\nfor word; do echo \"[$word]\"; done\n");
        let out = std::process::Command::new(folder.join("check")).arg("--json").current_dir("/").output().unwrap();
        fs::remove_dir_all(&folder).unwrap();
        let text = String::from_utf8(out.stdout).unwrap();
        assert_eq!(text, "[resnet50]\n[--python]\n[/a b/it's]\n[-o]\n[report.json]\n[--json]\n");
    }

    #[test]
    fn requirements_follow_the_arguments() {
        let of = |words: &str| {
            let words: Vec<String> = words.split_whitespace().map(str::to_string).collect();
            requirements(&words, Some(34)).join("\n")
        };
        let usual = of("resnet50");
        for part in ["glibc 2.34", "release 580", "libnvrtc.so.13", "torch-eager,torch-compile,onnxruntime: python3"] {
            assert!(usual.contains(part), "{part}: {usual}");
        }
        assert!(!usual.contains("libcudnn") && !usual.contains("libcublasLt") && !usual.contains("--data"), "{usual}");
        assert!(of("--cudnn=tf32").contains("libcudnn.so.9") && of("--cublas").contains("libcublasLt.so.13"));
        assert!(of("--peers torch-eager --python=/a/python").contains("torch-eager: /a/python with torch"));
        assert!(!of("--baselines none").contains("torch") && !of("--peers=none").contains("torch"));
        assert!(of("--data weights").contains("folder of --data"));
    }

    #[test]
    fn the_latest_version_of_a_symbol_is_found() {
        assert_eq!(glibc(b"GLIBC_2.2.5\0GLIBC_2.34\0GLIBC_2.17\0GLIBC_PRIVATE"), Some(34));
        assert_eq!(glibc(b"static"), None);
    }
}
