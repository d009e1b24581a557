//! The inputs of a run: from `.npy` files, from an image, or random by a seed.

use std::path::Path;

use data::image;
use plan::{Plan, Port};
use runtime::synthetic_inputs;
use types::{Bytes, ChannelOrder, DType, Tensor};
use weights::npy;

use crate::arguments::Run;

/// One tensor for each input of the plan, in its order. `mean` replaces the plan's means of red, green and blue.
pub(crate) fn tensors(plan: &Plan, run: &Run, mean: [Option<f32>; 3]) -> Result<Vec<Tensor>, String> {
    if let Some(path) = &run.image {
        return from_image(plan, path, mean);
    }
    if run.inputs.is_empty() {
        return Ok(synthetic_inputs(plan, run.seed.unwrap_or(1)));
    }
    let known = || plan.inputs.iter().map(|port| format!("`{}`", port.name)).collect::<Vec<_>>().join(", ");
    if let Some((name, _)) = run.inputs.iter().find(|(name, _)| plan.inputs.iter().all(|port| port.name != *name)) {
        return Err(format!("no input is named `{name}`; the inputs are {}", known()));
    }
    plan.inputs
        .iter()
        .map(|port| {
            let mut given = run.inputs.iter().filter(|(name, _)| *name == port.name);
            let (_, path) =
                given.next().ok_or_else(|| format!("input `{0}` is missing; add --input {0}=FILE.npy", port.name))?;
            if given.next().is_some() {
                return Err(format!("input `{}` is given twice", port.name));
            }
            from_npy(port, path)
        })
        .collect()
}

fn from_npy(port: &Port, path: &Path) -> Result<Tensor, String> {
    /// More than the header of any file takes.
    const HEADER: u64 = 1 << 20;
    // At most 8 bytes for each element, whatever the dtype of the file.
    let most = 8 * port.shape.elements() as u64 + HEADER;
    let bytes = files::read(path, Bytes(most)).map_err(|error| error.to_string())?;
    let tensor = npy::read(&bytes).map_err(|error| format!("`{}`: {error}", path.display()))?;
    runtime::check_input(port, &tensor).map_err(|error| format!("`{}`: {error}", path.display()))?;
    Ok(tensor)
}

fn from_image(plan: &Plan, path: &Path, mean: [Option<f32>; 3]) -> Result<Vec<Tensor>, String> {
    let (Some(preprocess), [port]) = (&plan.preprocess, &plan.inputs[..]) else {
        return Err("this model has no preprocessing for images; use --input NAME=FILE.npy".into());
    };
    let mut preprocess = preprocess.clone();
    for (plane, own) in preprocess.mean.iter_mut().enumerate() {
        let color = match preprocess.channel_order {
            ChannelOrder::Rgb => plane,
            ChannelOrder::Bgr => 2 - plane,
        };
        *own = mean[color].unwrap_or(*own);
    }
    let want = [plan.batch as usize, 3, preprocess.height, preprocess.width];
    if port.dtype != DType::F32 || port.shape[..] != want {
        let want = types::Shape::from(want);
        return Err(format!("an image needs an input f32{want}, but `{}` is {}{}", port.name, port.dtype, port.shape));
    }
    /// The largest file of an image.
    const IMAGE: Bytes = Bytes(1 << 28);
    let bytes = files::read(path, IMAGE).map_err(|error| error.to_string())?;
    let rgb = image::decode(&bytes).map_err(|error| format!("`{}`: {error}", path.display()))?;
    let sample = image::prepare(&rgb, &preprocess);
    // Every sample of the batch is the same image.
    let tensor = Tensor::from_fn(port.shape.clone(), |at| sample[at % sample.len()]);
    Ok(vec![tensor])
}
