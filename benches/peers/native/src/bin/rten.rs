//! rten as a peer.

use std::process::ExitCode;
use std::sync::Arc;

use prestow_native_peers::{Peer, Request, serve};
use rten::{Model, ModelOptions, NodeId, RunOptions, ThreadPool, Value, ValueOrView};
use rten_tensor::Tensor;
use rten_tensor::prelude::*;
use types::{DType, Shape};

fn main() -> ExitCode {
    serve::<Rten>()
}

struct Rten {
    model: Model,
    inputs: Vec<(NodeId, Value)>,
    outputs: Vec<NodeId>,
    options: RunOptions,
}

impl Peer for Rten {
    type Outputs = Vec<Value>;

    fn load(request: &Request) -> Result<Rten, String> {
        let mut options = ModelOptions::with_all_ops();
        // Prepacked weights: faster, for more memory.
        options.prepack_weights(true);
        let model = options.load_file(&request.model).map_err(|error| error.to_string())?;
        let id = |name: &str| model.node_id(name).map_err(|error| error.to_string());
        let inputs = request.inputs()?;
        let inputs =
            inputs.iter().map(|(name, tensor)| Ok((id(name)?, theirs(tensor)?))).collect::<Result<_, String>>();
        let inputs = inputs?;
        let outputs = request.outputs.iter().map(|name| id(name)).collect::<Result<_, _>>()?;
        let mut options = RunOptions::default();
        options.thread_pool = Some(Arc::new(ThreadPool::with_num_threads(request.threads)));
        Ok(Rten { model, inputs, outputs, options })
    }

    fn run(&mut self) -> Result<Vec<Value>, String> {
        let inputs = self.inputs.iter().map(|(id, value)| (*id, ValueOrView::from(value))).collect();
        let options = Some(self.options.clone());
        self.model.run(inputs, &self.outputs, options).map_err(|error| error.to_string())
    }

    fn tensors(outputs: Vec<Value>) -> Result<Vec<types::Tensor>, String> {
        outputs.into_iter().map(ours).collect()
    }
}

/// rten has integers and booleans of 32 bits.
fn theirs(tensor: &types::Tensor) -> Result<Value, String> {
    let shape = &tensor.shape()[..];
    match tensor.dtype() {
        DType::F32 => {
            let items = tensor.as_slice::<f32>().expect("it has this dtype");
            Ok(Tensor::from_data(shape, items.to_vec()).into())
        }
        DType::I64 | DType::I32 | DType::Bool => {
            let items: Vec<i32> = tensor.to_i64().into_iter().map(|item| item as i32).collect();
            Ok(Tensor::from_data(shape, items).into())
        }
        dtype => Err(format!("inputs of {dtype} are not handed over")),
    }
}

fn ours(value: Value) -> Result<types::Tensor, String> {
    let tensor: Tensor<f32> = value.try_into().map_err(|_| "an output is not of f32")?;
    types::Tensor::new(Shape::from(tensor.shape()), tensor.to_vec()).map_err(|error| error.to_string())
}
