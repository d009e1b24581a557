//! [`assemble`]: the emitted functions of plans as one CUDA C source, and the launches of their steps.

use cuda_driver::{Launch, StepCode};
use plan::{Operand, Place, Plan, Step};

use super::emit::{Chosen, Draft, Emitted, ITERATION, Template};
use super::tiling;

/// All functions that the steps of plans launch, as one source.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Source {
    /// CUDA C without includes.
    pub text: String,
    /// Its functions, in order.
    pub entries: Vec<Entry>,
}

/// A function of the source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its name.
    pub name: String,
    /// The C types of its parameters.
    pub parameters: Vec<String>,
}

impl Source {
    /// The source for a C++ compiler, behind `cuda/mock/cpp/shim.h`, with the table of its functions that `cuda/mock/cpp/shim.cpp` reads.
    pub fn for_shim(&self) -> String {
        let row = |Entry { name, parameters }: &Entry| {
            let pointers = parameters.iter().enumerate().map(|(ix, ty)| format!("({ty})a[{ix}]"));
            let call = format!("{name}({})", pointers.collect::<Vec<_>>().join(", "));
            let numbers = parameters.iter().filter(|ty| *ty == ITERATION).count();
            format!("    {{\"{name}\", {}, {numbers}, [](void** a) {{ {call}; }}}},\n", parameters.len())
        };
        let rows: String = self.entries.iter().map(row).collect();
        format!("{}const Kernel kernels[] = {{\n{rows}    {{nullptr, 0, 0, nullptr}},\n}};\n", self.text)
    }
}

/// The library call of a step of a plan that is not assembled yet; `None` if its kernel is emitted.
pub fn library_work(code: &[u8]) -> Option<StepCode> {
    match postcard::from_bytes::<Draft>(code).ok()?.chosen {
        Chosen::Cudnn(planned) => Some(StepCode::Cudnn(planned)),
        Chosen::Cublas(product) => Some(StepCode::Cublas(product)),
        Chosen::Emitted(_) => None,
    }
}

/// The layer of a library whose work a step of a plan does that is not assembled yet, whichever kernel it has. `None` if there was
/// no choice.
pub fn library_layer(code: &[u8]) -> Option<String> {
    postcard::from_bytes::<Draft>(code).ok()?.layer
}

/// A digest of an emitted step's source, of a plan that is not assembled yet, with the templates that it needs.
pub fn kernel_digest(code: &[u8]) -> u64 {
    let needs = match postcard::from_bytes::<Draft>(code) {
        Ok(Draft { chosen: Chosen::Emitted(emitted), .. }) => emitted.needs,
        _ => Vec::new(),
    };
    let texts = Template::ALL.into_iter();
    let texts = texts.filter(|(template, _)| *template == Template::Base || needs.contains(template));
    let mut bytes: Vec<u8> = texts.flat_map(|(_, text)| text.bytes()).collect();
    bytes.extend_from_slice(code);
    plan::image::checksum(&bytes)
}

/// The addresses of a step's operands and results, up to a multiple of the driver's alignment.
fn places(plan: &Plan, step: &Step) -> Vec<usize> {
    let place = |operand: &Operand| match operand.place {
        Place::Buffer(_) => plan.arena_range(operand).map_or(1, |range| range.start as usize),
        Place::Constant(ix) => (plan.constants[ix.0 as usize].offset + operand.offset).0 as usize,
    };
    step.inputs.iter().chain(&step.outputs).map(place).collect()
}

/// Whether a launch may start before the previous one ends. On an H100, this hides the latency of launches with at most one block
/// per multiprocessor. Larger launches and the steps of recurrent layers became slower.
fn starts_early(emitted: &Emitted) -> bool {
    /// A product with split-K has two launches.
    const LAUNCHES_MAX: u32 = 2;
    let blocks = emitted.grid.iter().fold(1, |all: usize, &extent| all.saturating_mul(extent as usize));
    blocks <= tiling::MULTIPROCESSORS && emitted.iterations.unwrap_or(1) <= LAUNCHES_MAX
}

/// Brings the functions of the steps of some plans together, and leaves in each step how its function is launched.
///
/// # Panics
/// A plan for another target, or one that was assembled before; an operand of cuDNN's that is not aligned as declared.
pub fn assemble<'a>(plans: impl IntoIterator<Item = &'a mut Plan>) -> Source {
    let mut source = Source::default();
    let mut needs: Vec<Template> = vec![Template::Base];
    let mut bodies: Vec<(Emitted, usize)> = Vec::new();
    for plan in plans {
        let places: Vec<Vec<usize>> = plan.steps.iter().map(|step| places(plan, step)).collect();
        for (step, places) in plan.steps.iter_mut().zip(places) {
            let draft: Draft = postcard::from_bytes(&step.code).expect("the steps are as they were chosen");
            let emitted = match draft.chosen {
                Chosen::Emitted(emitted) => Emitted { body: tiling::placed(&emitted.body, &places), ..emitted },
                Chosen::Cudnn(planned) => {
                    let is_aligned = places.iter().all(|&place| place.is_multiple_of(planned.alignment as usize));
                    assert!(is_aligned, "`{}` has operands at {places:?}, not aligned as declared", step.scope);
                    step.code = StepCode::Cudnn(planned).code();
                    continue;
                }
                Chosen::Cublas(product) => {
                    step.code = StepCode::Cublas(product).code();
                    continue;
                }
            };
            let same = |(other, _): &&(Emitted, usize)| {
                (&other.parameters, &other.body, other.block) == (&emitted.parameters, &emitted.body, emitted.block)
            };
            let entry = match bodies.iter().find(same) {
                Some((_, entry)) => *entry,
                None => {
                    let name = format!("{}_{}", emitted.kind.stem(), source.entries.len());
                    let parameters = emitted.all_parameters().map(|(ty, _)| ty).collect();
                    source.entries.push(Entry { name, parameters });
                    needs.extend(&emitted.needs);
                    bodies.push((emitted.clone(), source.entries.len() - 1));
                    source.entries.len() - 1
                }
            };
            let (entry, block) = (source.entries[entry].name.clone(), [emitted.block.threads, 1, 1]);
            let shared = emitted.block.shared.0 as u32;
            let launch = Launch {
                entry,
                grid: emitted.grid,
                block,
                shared,
                repeat: emitted.iterations,
                waits: starts_early(&emitted),
            };
            step.code = StepCode::Launch(launch).code();
        }
    }
    for (template, text) in Template::ALL {
        if needs.contains(&template) {
            source.text.push_str(text);
            source.text.push('\n');
        }
    }
    for (emitted, entry) in &bodies {
        let parameters: Vec<String> = emitted.all_parameters().map(|(ty, name)| format!("{ty} {name}")).collect();
        let (name, parameters) = (&source.entries[*entry].name, parameters.join(", "));
        // Sums stay in registers, as long as a multiprocessor has two blocks at once.
        let bounds = match emitted.kind.blocks_min() {
            Some(blocks) => format!("{}, {blocks}", emitted.block.threads),
            None => emitted.block.threads.to_string(),
        };
        let head = format!("extern \"C\" __global__ void __launch_bounds__({bounds}) {name}({parameters})");
        source.text.push_str(&format!("{head} {{\n    begin_kernel();\n{}}}\n\n", emitted.body));
    }
    source
}
