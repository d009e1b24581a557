//! tract as a peer.

use std::process::ExitCode;
use std::sync::Arc;

use prestow_native_peers::{Peer, Request, serve};
use tract_onnx::prelude::multithread::Executor;
use tract_onnx::prelude::{
    Datum, Framework, InferenceFact, InferenceModelExt, RunOptions, TValue, TVec, TractResult, TypedRunnableModel, onnx,
};
use types::{Data, Shape};

fn main() -> ExitCode {
    serve::<Tract>()
}

struct Tract {
    plan: Arc<TypedRunnableModel>,
    inputs: TVec<TValue>,
}

impl Peer for Tract {
    type Outputs = TVec<TValue>;

    fn load(request: &Request) -> Result<Tract, String> {
        let inputs = request.inputs()?;
        load(request, &inputs).map_err(|error| format!("{error:#}"))
    }

    fn run(&mut self) -> Result<Self::Outputs, String> {
        // Cloned inputs are reference counted.
        self.plan.run(self.inputs.clone()).map_err(|error| format!("{error:#}"))
    }

    fn tensors(outputs: Self::Outputs) -> Result<Vec<types::Tensor>, String> {
        outputs.iter().map(ours).collect()
    }
}

fn load(request: &Request, inputs: &[(&str, types::Tensor)]) -> TractResult<Tract> {
    let mut model = onnx().model_for_path(&request.model)?;
    model.set_input_names(inputs.iter().map(|(name, _)| name))?;
    model.select_outputs_by_name(&request.outputs)?;
    let mut values = TVec::new();
    for (ix, (_, tensor)) in inputs.iter().enumerate() {
        let value = theirs(tensor)?;
        model.set_input_fact(ix, InferenceFact::dt_shape(value.datum_type(), value.shape()))?;
        values.push(value.into());
    }
    let executor = match request.threads {
        1 => Executor::SingleThread,
        threads => Executor::multithread(threads),
    };
    let options = RunOptions { executor: Some(executor), ..RunOptions::default() };
    let plan = model.into_optimized()?.into_runnable_with_options(&options)?;
    Ok(Tract { plan, inputs: values })
}

fn theirs(tensor: &types::Tensor) -> TractResult<tract_onnx::prelude::Tensor> {
    fn made<T: Datum + Copy>(shape: &Shape, items: &[T]) -> TractResult<tract_onnx::prelude::Tensor> {
        tract_onnx::prelude::Tensor::from_shape(shape, items)
    }
    let shape = tensor.shape();
    match tensor.data() {
        Data::F32(items) => made(shape, items),
        Data::I64(items) => made(shape, items),
        Data::I32(items) => made(shape, items),
        Data::Bool(items) => made(shape, items),
        _ => tract_onnx::prelude::tract_data::internal::bail!("inputs of {} are not handed over", tensor.dtype()),
    }
}

fn ours(value: &TValue) -> Result<types::Tensor, String> {
    let items = value.cast_to::<f32>().map_err(|error| format!("{error:#}"))?;
    let items = items.to_plain_array_view::<f32>().map_err(|error| format!("{error:#}"))?;
    let shape = Shape::from(items.shape());
    types::Tensor::new(shape, items.iter().copied().collect()).map_err(|error| error.to_string())
}
