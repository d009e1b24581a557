//! [`Cubin`]: machine code for one architecture, and the resources that its functions need.

/// Machine code for one architecture, an ELF file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cubin {
    /// The architecture, such as `sm_90`.
    pub arch: String,
    /// The file.
    pub bytes: Vec<u8>,
}

/// Resources of a function.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct KernelResources {
    /// Its name.
    pub name: String,
    /// Registers per thread.
    pub registers: u32,
    /// Bytes of local memory per thread: call frames, dynamically indexed arrays, spilled registers.
    pub stack: u32,
    /// Bytes of spill stores and of spill loads.
    pub spilled: [u32; 2],
    /// Bytes of shared memory per block.
    pub shared: u32,
}

impl KernelResources {
    /// Parses the assembler's output with `-v`. Sorted by name.
    pub(crate) fn parse(log: &str) -> Vec<KernelResources> {
        let mut all: Vec<KernelResources> = Vec::new();
        // The properties of NVIDIA's internal functions follow those of the function that calls them.
        let mut is_own = false;
        for line in log.lines() {
            if let Some((_, rest)) = line.split_once("Compiling entry function '") {
                let name = rest.split('\'').next().unwrap_or_default().to_string();
                all.push(KernelResources { name, ..KernelResources::default() });
            }
            // The number before a noun.
            let number = |noun: &str| -> Option<u32> { line.split(noun).next()?.rsplit_once(' ')?.1.parse().ok() };
            let Some(own) = all.last_mut() else { continue };
            if let Some((_, name)) = line.split_once("Function properties for ") {
                is_own = name == own.name;
            } else if !is_own {
                continue;
            }
            if line.contains(" bytes stack frame") {
                own.stack = number(" bytes stack frame").unwrap_or(u32::MAX);
                own.spilled =
                    [" bytes spill stores", " bytes spill loads"].map(|noun| number(noun).unwrap_or(u32::MAX));
            } else if line.contains(" registers") {
                own.registers = number(" registers").unwrap_or(u32::MAX);
                own.shared = if line.contains(" bytes smem") { number(" bytes smem").unwrap_or(u32::MAX) } else { 0 };
            }
        }
        all.sort();
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resources_are_parsed_from_assembler_output() {
        let log = "\
k.cu(1): warning #177-D: variable \"X\" was declared but never referenced
ptxas info    : 104 bytes gmem
ptxas info    : Compiling entry function 'product_7' for 'sm_90'
ptxas info    : Function properties for product_7
ptxas         .     16 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers, 16 bytes cumulative stack size, 10240 bytes smem
ptxas info    : Compile time = 25.957 ms
ptxas info    : Function properties for __internal_accurate_pow
ptxas         .     32 bytes stack frame, 4 bytes spill stores, 4 bytes spill loads
ptxas info    : Compiling entry function 'move_1' for 'sm_90'
ptxas info    : Function properties for move_1
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 12 registers, used 0 barriers
";
        let product =
            KernelResources { name: "product_7".into(), registers: 40, stack: 16, spilled: [8, 12], shared: 10_240 };
        let plain = KernelResources { name: "move_1".into(), registers: 12, ..KernelResources::default() };
        assert_eq!(KernelResources::parse(log), [plain, product]);
        assert_eq!(KernelResources::parse("nonsense, 3 registers"), []);
    }
}
