//! Convolutions of channels-last values, which the cost model takes for large ones only: here for all that have a kernel.

use ir::ops::{Conv, Epilogue};
use ir::{Candidate, Formats, NoKernel, NodeId, Query};
use lower::Target;
use types::pointwise::Unary;
use types::{Bytes, Layout, Random, Scope, Shape};

use super::*;

/// A GPU whose convolutions have channels-last results wherever there is a kernel for them.
#[derive(Debug)]
struct ChannelsLast(CudaTarget);

impl Target for ChannelsLast {
    fn name(&self) -> String {
        self.0.name()
    }

    fn alignment(&self) -> Bytes {
        self.0.alignment()
    }

    fn precision(&self) -> DType {
        self.0.precision()
    }

    fn layout(&self) -> Option<Layout> {
        self.0.layout()
    }

    fn candidates(&self, graph: &Graph, nodes: &[NodeId], query: &Query) -> Result<Vec<Candidate>, NoKernel> {
        let mut all = self.0.candidates(graph, nodes, query)?;
        if query.formats == Formats::Layout(Layout::RowMajor) && matches!(graph.node(nodes[0]).op, Op::Conv(_)) {
            all.iter_mut().for_each(|candidate| candidate.cost = 1 << 40);
        }
        Ok(all)
    }

    fn relayout_cost(&self, graph: &Graph, value: ValueId) -> u64 {
        self.0.relayout_cost(graph, value)
    }
}

/// Extents of a convolution.
struct Case {
    images: usize,
    channels: [usize; 2],
    picture: [usize; 2],
    kernel: [usize; 2],
    stride: [usize; 2],
    dilation: usize,
    pad: [[usize; 2]; 2],
    depthwise: bool,
    epilogue: Epilogue,
}

impl Case {
    fn random(random: &mut Random) -> Case {
        let mut pick = |items: &[usize]| items[random.below(items.len() as u64) as usize];
        let depthwise = pick(&[0, 0, 1]) == 1;
        let ins = pick(&[1, 2, 3, 4, 8, 16, 24, 32, 40, 64, 72, 96]);
        let (ins, outs) = match depthwise {
            true => (ins.next_multiple_of(8), ins.next_multiple_of(8)),
            false => (ins, pick(&[8, 16, 24, 32, 40, 64, 72, 128, 136])),
        };
        let kernel = [pick(&[1, 1, 2, 3, 3, 5, 7]), pick(&[1, 1, 2, 3, 3, 5, 7])];
        let dilation = pick(&[1, 1, 1, 2]);
        let side = |random: &mut dyn FnMut(&[usize]) -> usize, taps: usize| {
            let reach = (taps - 1) * dilation + 1;
            let pad = [random(&[0, 1, reach / 2]), random(&[0, 1, reach / 2])].map(|pad| pad.min(reach - 1));
            (reach + random(&[0, 1, 3, 6, 9, 12]), pad)
        };
        let (rows, row_pad) = side(&mut pick, kernel[0]);
        let (columns, column_pad) = side(&mut pick, kernel[1]);
        let activation = match pick(&[0, 1, 2]) {
            0 => vec![],
            1 => vec![Unary::Relu],
            _ => vec![Unary::Clip { min: 0.0, max: 6.0 }, Unary::Sigmoid],
        };
        Case {
            images: pick(&[1, 2, 3]),
            channels: [ins, outs],
            picture: [rows, columns],
            kernel,
            stride: [pick(&[1, 1, 2, 3]), pick(&[1, 1, 2])],
            dilation,
            pad: [row_pad, column_pad],
            depthwise,
            epilogue: Epilogue {
                bias: pick(&[0, 1]) == 1,
                residual: pick(&[0, 0, 1]) == 1,
                activation: activation.into_iter().collect(),
                ..Epilogue::default()
            },
        }
    }

    fn name(&self) -> String {
        let Case { images, channels, picture, kernel, stride, dilation, pad, depthwise, epilogue } = self;
        let kind = if *depthwise { "depthwise" } else { "conv" };
        format!(
            "{kind} {images}x{channels:?}x{picture:?} by {kernel:?}, stride {stride:?}, dilation {dilation}, pad {pad:?}, \
             {epilogue:?}"
        )
    }

    fn graph(&self) -> Graph {
        let Case { images, channels: [ins, outs], picture: [rows, columns], kernel, .. } = self;
        let mut random = Random::new((rows * 31 + columns) as u64);
        let mut graph = Graph::new("conv");
        let x = graph.add_input("x", DType::F32, Shape::from([*images, *ins, *rows, *columns]));
        let inner = if self.depthwise { 1 } else { *ins };
        let size = 1.0 / ((inner * kernel[0] * kernel[1]) as f32).sqrt();
        let mut known = |graph: &mut Graph, name: &str, shape: &[usize], size: f32| {
            let tensor = Tensor::from_fn(Shape::from(shape), |_| random.uniform(-size, size));
            graph.add_weight(name, tensor)
        };
        let weight = known(&mut graph, "weight", &[*outs, inner, kernel[0], kernel[1]], size);
        let mut inputs = vec![x, weight];
        if self.epilogue.bias {
            inputs.push(known(&mut graph, "bias", &[*outs], 0.5));
        }
        let conv = Conv {
            stride: self.stride.into_iter().collect(),
            pad: self.pad.into_iter().collect(),
            dilation: [self.dilation; 2].into_iter().collect(),
            groups: if self.depthwise { *ins } else { 1 },
            epilogue: Epilogue { residual: false, ..self.epilogue.clone() },
            ..Conv::square(1, 0)
        };
        if self.epilogue.residual {
            let extent = |axis: usize| {
                let reach = (kernel[axis] - 1) * self.dilation + 1;
                (self.picture[axis] + self.pad[axis][0] + self.pad[axis][1] - reach) / self.stride[axis] + 1
            };
            let shape = Shape::from([*images, *outs, extent(0), extent(1)]);
            inputs.push(graph.add_input("residual", DType::F32, shape));
        }
        let conv = Conv { epilogue: self.epilogue.clone(), ..conv };
        let y = graph.add1(conv.into(), &inputs, Scope::new("y")).expect("the extents fit");
        graph.set_outputs(vec![("y".into(), y)]);
        graph
    }
}

/// Random convolutions on tensor cores and by channel, in three precisions.
#[test]
fn random_convolutions_match_the_definition_under_a_sanitizer() {
    let test = "cuda::channels_last::random_convolutions_match_the_definition_under_a_sanitizer";
    let mut random = Random::new(7);
    let graphs: Vec<(String, Graph)> =
        (0..60).map(|_| Case::random(&mut random)).map(|case| (case.name(), case.graph())).collect();
    // By single warps, and by groups of four.
    let never = usize::MAX;
    for (precision, stored, groups_from) in [
        ("f16", DType::F16, never),
        ("f16-groups", DType::F16, 1),
        ("bf16-groups", DType::Bf16, 1),
        ("tf32", DType::F32, 1),
    ] {
        let own = target(stored).with_groups_from(groups_from);
        let own = ChannelsLast(if stored == DType::F32 { own.rounding() } else { own });
        let (mut by_cores, mut by_groups) = (0, 0);
        for (name, graph) in &graphs {
            let mut plan = compiled_for(graph.clone(), &own).unwrap_or_else(|error| panic!("{name}: {error}")).1.plan;
            let text = assemble([&mut plan]).text;
            by_groups += usize::from(text.contains(", GroupTile<"));
            by_cores +=
                usize::from(text.contains("(Windows<")) + usize::from(text.contains("    convolve_by_channel<"));
        }
        assert!(graphs.len() * 2 / 3 < by_cores, "{precision}: {by_cores} of {} are channels-last", graphs.len());
        assert_eq!(10 < by_groups, groups_from == 1 && stored != DType::F32, "{precision}: {by_groups} by groups");
        let given: Vec<Vec<Tensor>> = graphs.iter().map(|(_, graph)| inputs(graph, 3)).collect();
        let folder = format!("cuda-channels-last-{precision}");
        let Some(runs) = run_given(test, &folder, &graphs, given, &own, &ADDRESSES) else { return };
        let mut wrong = Vec::new();
        for ((name, graph), Run { given, got, rounded }) in graphs.iter().zip(&runs) {
            let want = evaluate(rounded, given).expect("the graph verifies");
            let allowed = match stored {
                DType::F32 if cases::forms::has_activation(graph) => continue,
                DType::F32 => Allowed::of_rounded(graph, given, 1.0).expect("the graph verifies"),
                half => Allowed::of(&want[0], half),
            };
            let verdict = Verdict::of(&got[0], &want[0], &allowed).unwrap_or_else(|other| panic!("{name}: {other}"));
            wrong.extend(verdict.first.map(|first| format!("{name}: {first}")));
        }
        assert!(wrong.is_empty(), "{precision}: {} differ:\n{}", wrong.len(), wrong.join("\n"));
    }
}
