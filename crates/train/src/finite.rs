//! [`run_checked`]: a run that stops at the first value with a NaN or an infinity.

use plan::{Operand, Place, Plan, ValueSpan};
use runtime::Session;
use types::{DType, bf16, f16};

use crate::TrainError;

/// A value that is not finite.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotFinite {
    /// The name of the value: the scope of its node, or an input.
    pub value: String,
    /// The kernel that wrote it; `None` for an input or a state.
    pub kernel: Option<String>,
    /// Whether it is a NaN; else an infinity.
    pub is_nan: bool,
}

/// Runs the steps of a plan and checks the elements of every value right after they are written. Inputs and states are checked
/// first. `None`: all are finite.
///
/// Packed weights and workspaces are not values; results computed from them are checked.
///
/// # Errors
/// The device fails.
pub(crate) fn run_checked(session: &mut Session, plan: &Plan) -> Result<Option<NotFinite>, TrainError> {
    let ports = plan.inputs.iter().chain(plan.states.iter().map(|state| &state.port));
    for port in ports {
        if let Some(is_nan) = operand_is_nan(session, plan, &port.operand, port.dtype)? {
            return Ok(Some(NotFinite { value: port.name.clone(), kernel: None, is_nan }));
        }
    }
    for (ix, step) in plan.steps.iter().enumerate() {
        session.run_step(ix)?;
        for operand in &step.outputs {
            let Some(span) = span(plan, operand, ix as u32) else { continue };
            if let Some(is_nan) = operand_is_nan(session, plan, operand, span.dtype)? {
                let kernel = Some(step.kernel.clone());
                return Ok(Some(NotFinite { value: span.name.clone(), kernel, is_nan }));
            }
        }
    }
    Ok(None)
}

/// The value that a step writes to an operand.
fn span<'a>(plan: &'a Plan, operand: &Operand, step: u32) -> Option<&'a ValueSpan> {
    let Place::Buffer(buffer) = operand.place else { return None };
    let spans = plan.buffers[buffer.0 as usize].values.iter();
    let holds = |span: &&ValueSpan| {
        span.offset == operand.offset
            && span.size() == operand.size
            && span.first_step <= step
            && step <= span.last_step
    };
    spans.filter(holds).max_by_key(|span| span.first_step)
}

/// Whether the first element that is not finite is a NaN; `None` if all are finite.
fn operand_is_nan(
    session: &mut Session,
    plan: &Plan,
    operand: &Operand,
    dtype: DType,
) -> Result<Option<bool>, TrainError> {
    let Some(range) = plan.arena_range(operand) else { return Ok(None) };
    let bytes = &session.arena()?[range.start as usize..range.end as usize];
    Ok(not_finite(dtype, bytes))
}

fn not_finite(dtype: DType, bytes: &[u8]) -> Option<bool> {
    fn first<const N: usize>(bytes: &[u8], read: impl Fn([u8; N]) -> f64) -> Option<bool> {
        let mut elements = bytes.as_chunks::<N>().0.iter().map(|chunk| read(*chunk));
        elements.find(|element| !element.is_finite()).map(f64::is_nan)
    }
    match dtype {
        DType::F32 => first(bytes, |chunk| f64::from(f32::from_le_bytes(chunk))),
        DType::F64 => first(bytes, f64::from_le_bytes),
        DType::F16 => first(bytes, |chunk| f16::from_le_bytes(chunk).to_f64()),
        DType::Bf16 => first(bytes, |chunk| bf16::from_le_bytes(chunk).to_f64()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_element_decides_between_nan_and_infinity() {
        let bytes = |items: &[f32]| items.iter().flat_map(|item| item.to_le_bytes()).collect::<Vec<u8>>();
        assert_eq!(not_finite(DType::F32, &bytes(&[0.0, f32::MAX, -1e-40])), None);
        assert_eq!(not_finite(DType::F32, &bytes(&[1.0, f32::NEG_INFINITY, f32::NAN])), Some(false));
        assert_eq!(not_finite(DType::F16, &f16::NAN.to_le_bytes()), Some(true));
        assert_eq!(not_finite(DType::Bf16, &bf16::INFINITY.to_le_bytes()), Some(false));
        assert_eq!(not_finite(DType::I32, &[255; 4]), None, "integers are finite");
    }
}
