//! [`MachineCode`]: the instructions of each function of a cubin, as `nvdisasm -c` lists them, by class and by loop.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Classes of instructions, by the unit that executes them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// All, no-operations included: each takes an issue slot.
    pub(crate) all: usize,
    /// Tensor-core instructions of a warp (`HMMA`).
    pub(crate) hmma: usize,
    /// Tensor-core instructions of four warps (`HGMMA`).
    pub(crate) hgmma: usize,
    /// Their operations, a multiply-add counting as two.
    pub(crate) tensor_flops: u64,
    /// Bytes of shared memory that a warp reads and writes; of those of `HGMMA`, which four warps execute together, its quarter.
    pub(crate) shared_bytes: u64,
    /// Accesses of local memory: spilled registers and arrays on the stack.
    pub(crate) local: usize,
}

impl Counts {
    fn add(&mut self, instruction: &str) {
        let name = instruction.split('.').next().unwrap_or_default();
        self.all += 1;
        match name {
            "HMMA" => self.hmma += 1,
            "HGMMA" => self.hgmma += 1,
            "LDL" | "STL" => self.local += 1,
            _ => {}
        }
        self.tensor_flops += tensor_flops(instruction).unwrap_or_default();
        self.shared_bytes += shared_bytes(instruction);
    }
}

/// Operations of a tensor-core instruction by the shape in its name: `HMMA.16816.F32` or `HGMMA.64x128x16.F32`.
fn tensor_flops(instruction: &str) -> Option<u64> {
    let mut parts = instruction.split('.');
    let (name, shape) = (parts.next()?, parts.find(|part| part.starts_with(|first: char| first.is_ascii_digit()))?);
    match name {
        "HGMMA" => Some(2 * shape.split('x').map(|extent| extent.parse::<u64>().unwrap_or(1)).product::<u64>()),
        "HMMA" if shape == "16816" => Some(2 * 16 * 8 * 16),
        "HMMA" if shape == "1688" => Some(2 * 16 * 8 * 8),
        _ => None,
    }
}

/// Bytes of shared memory of an instruction. `HGMMA` reads 64 lines of its left operand and those of its right one, with sixteen
/// halves each.
fn shared_bytes(instruction: &str) -> u64 {
    let name = instruction.split('.').next().unwrap_or_default();
    let has = |part: &str| instruction.split('.').any(|other| other == part);
    match name {
        "HGMMA" => {
            let shape = instruction.split('.').find(|part| part.contains('x')).unwrap_or_default();
            let columns = shape.split('x').nth(1).and_then(|columns| columns.parse::<u64>().ok()).unwrap_or(0);
            (64 + columns) * 16 * 2 / 4
        }
        "LDSM" => 512,
        "LDS" | "STS" | "LDGSTS" if has("128") => 512,
        "LDS" | "STS" | "LDGSTS" if has("64") => 256,
        "LDS" | "STS" | "LDGSTS" => 128,
        _ => 0,
    }
}

/// The instructions of a function.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct MachineCode {
    /// All of them.
    pub(crate) all: Counts,
    /// Those of the innermost loop with the most tensor-core operations, or without any the longest loop.
    pub(crate) main_loop: Option<Counts>,
    /// Whether there are further loops, whose turns the instructions do not tell.
    pub(crate) has_other_loops: bool,
}

impl MachineCode {
    /// From the lines of a function.
    fn of(lines: &[&str]) -> MachineCode {
        let mut instructions: Vec<&str> = Vec::new();
        let mut labels: BTreeMap<&str, usize> = BTreeMap::new();
        let mut loops: Vec<(usize, usize)> = Vec::new();
        for line in lines {
            if let Some(label) = line.trim().strip_suffix(':') {
                labels.insert(label, instructions.len());
            }
            let Some(instruction) = instruction(line) else { continue };
            let target = line.split_once("BRA").and_then(|(_, rest)| rest.split(['(', ')']).nth(1));
            if let Some(&start) = target.and_then(|label| labels.get(label.trim_start_matches('`').trim_matches('(')))
                // A branch to itself is padding behind the end.
                && start < instructions.len()
            {
                loops.push((start, instructions.len()));
            }
            instructions.push(instruction);
        }
        let count = |range: &[&str]| {
            let mut counts = Counts::default();
            range.iter().for_each(|instruction| counts.add(instruction));
            counts
        };
        let is_innermost =
            |own: &(usize, usize)| !loops.iter().any(|other| other != own && own.0 <= other.0 && other.1 <= own.1);
        let inner = loops.iter().filter(|own| is_innermost(own)).map(|&(start, end)| count(&instructions[start..=end]));
        let main_loop = inner.max_by_key(|counts| (counts.tensor_flops, counts.all));
        MachineCode { all: count(&instructions), main_loop, has_other_loops: 1 < loops.len() }
    }
}

/// The instruction of a line, without its address and predicate.
fn instruction(line: &str) -> Option<&str> {
    let (address, rest) = line.trim().strip_prefix("/*")?.split_once("*/")?;
    u64::from_str_radix(address, 16).ok()?;
    let rest = rest.trim_start();
    let rest = if rest.starts_with('@') { rest.split_once(' ')?.1.trim_start() } else { rest };
    rest.split([' ', ';']).next().filter(|name| !name.is_empty())
}

/// The functions of a listing, by name.
pub(crate) fn parse(listing: &str) -> BTreeMap<String, MachineCode> {
    let mut functions: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    let mut current = None;
    for line in listing.lines() {
        if let Some((_, section)) = line.split_once(".section\t").or_else(|| line.split_once(".section ")) {
            let name = section.trim_start().strip_prefix(".text.");
            current = name.and_then(|name| name.split(',').next()).map(str::to_string);
        } else if let Some(name) = &current {
            functions.entry(name.clone()).or_default().push(line);
        }
    }
    functions.into_iter().map(|(name, lines)| (name, MachineCode::of(&lines))).collect()
}

/// Disassembles a cubin.
///
/// # Errors
/// There is no disassembler, or it fails.
pub(crate) fn disassemble(tool: &Path, cubin: &[u8]) -> Result<BTreeMap<String, MachineCode>, String> {
    let file = std::env::temp_dir().join(format!("prestow-{}.cubin", std::process::id()));
    let listing = write(&file, cubin).and_then(|()| list(tool, &file));
    let _ = std::fs::remove_file(&file);
    Ok(parse(&listing?))
}

fn write(file: &Path, bytes: &[u8]) -> Result<(), String> {
    let mut created = std::fs::File::create_new(file).map_err(|error| format!("{}: {error}", file.display()))?;
    created.write_all(bytes).map_err(|error| format!("{}: {error}", file.display()))
}

fn list(tool: &Path, file: &Path) -> Result<String, String> {
    let output = Command::new(tool).arg("-c").arg(file).stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("cannot run {}: {error}", tool.display()))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(format!("{}: {}", tool.display(), String::from_utf8_lossy(&output.stderr).trim())),
    }
}

/// `nvdisasm`: that of `PRESTOW_NVDISASM`, of PATH, or of the CUDA toolkit.
///
/// # Errors
/// No program was found.
pub(crate) fn find_disassembler() -> Result<PathBuf, String> {
    if let Some(given) = std::env::var_os("PRESTOW_NVDISASM") {
        return Ok(PathBuf::from(given));
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain([PathBuf::from("/usr/local/cuda/bin")]);
    let mut all = folders.map(|folder| folder.join("nvdisasm"));
    all.find(|tool| tool.is_file()).ok_or_else(|| {
        "cannot find nvdisasm in PATH or /usr/local/cuda/bin; install the CUDA toolkit, or set the program in \
         PRESTOW_NVDISASM (the Python package triton has it in backends/nvidia/bin)"
            .into()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LISTING: &str = "\
\t.section\t.text.product_0,\"ax\",@progbits
product_0:
.text.product_0:
        /*0000*/                   LDC R1, c[0x0][0x28] ;
.L_x_1:
        /*0010*/                   HMMA.16816.F32 R4, R8, R12, R4 ;
        /*0020*/              @!P0 LDGSTS.E.BYPASS.128 [R17], desc[UR16][R2.64] ;
        /*0030*/               @P4 BRA `(.L_x_1) ;
        /*0040*/                   STL [R1+0x8], R250 ;
        /*0050*/                   EXIT ;
.L_x_2:
        /*0060*/                   BRA `(.L_x_2);
\t.section\t.nv.shared.product_0,\"aw\",@nobits
\t.section\t.text.group_1,\"ax\",@progbits
        /*0000*/                   HGMMA.64x128x16.F32 R24, gdesc[UR12], R24, gsb0 ;
        /*0010*/                   EXIT ;
";

    #[test]
    fn listing_is_counted_by_function_and_loop() {
        let functions = parse(LISTING);
        let product = functions["product_0"];
        let main_loop = Counts { all: 3, hmma: 1, tensor_flops: 4096, shared_bytes: 512, ..Counts::default() };
        assert_eq!(product.main_loop, Some(main_loop));
        assert_eq!(product.all, Counts { all: 7, local: 1, ..main_loop });
        assert!(!product.has_other_loops);
        let group = functions["group_1"];
        assert_eq!((group.all.hgmma, group.all.tensor_flops), (1, 2 * 64 * 128 * 16));
        assert_eq!(group.all.shared_bytes, (64 + 128) * 8);
        assert_eq!((group.main_loop, functions.len()), (None, 2));
        assert_eq!(parse("nonsense\n.section .text."), BTreeMap::new());
    }
}
