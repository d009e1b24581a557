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
    use plan::{Buffer, BufferIx, Persistence, Sharing};
    use types::{Bytes, Layout, Role, Scope, Shape, Tag};

    use super::*;

    #[test]
    fn first_element_decides_between_nan_and_infinity() {
        let bytes = |items: &[f32]| items.iter().flat_map(|item| item.to_le_bytes()).collect::<Vec<u8>>();
        assert_eq!(not_finite(DType::F32, &bytes(&[0.0, f32::MAX, -1e-40])), None);
        assert_eq!(not_finite(DType::F32, &bytes(&[1.0, f32::NEG_INFINITY, f32::NAN])), Some(false));
        assert_eq!(not_finite(DType::F16, &f16::NAN.to_le_bytes()), Some(true));
        assert_eq!(not_finite(DType::Bf16, &bf16::INFINITY.to_le_bytes()), Some(false));
        assert_eq!(not_finite(DType::F64, &[1.0, f64::NAN].map(f64::to_le_bytes).concat()), Some(true));
        assert_eq!(not_finite(DType::I32, &[255; 4]), None, "integers are finite");
    }

    /// `a` is read by the step that overwrites it with `b`.
    #[test]
    fn written_value_is_the_latest_of_its_bytes() {
        let value = |name: &str, first_step, last_step| ValueSpan {
            name: name.into(),
            dtype: DType::F32,
            shape: Shape::from([2]),
            layout: Layout::RowMajor,
            offset: Bytes(0),
            first_step,
            last_step,
            sharing: Sharing::InPlace,
        };
        let buffer = Buffer {
            tag: Tag { scope: Scope::new("a"), role: Role::Activation },
            size: Bytes(8),
            offset: Bytes(0),
            first_step: 0,
            last_step: 2,
            persistence: Persistence::Run,
            values: vec![value("a", 0, 1), value("b", 1, 2)],
            refused: Vec::new(),
        };
        let plan = Plan { buffers: vec![buffer], ..Plan::default() };
        let whole = Operand { place: Place::Buffer(BufferIx(0)), offset: Bytes(0), size: Bytes(8) };
        let names = [0, 1, 2, 3].map(|step| span(&plan, &whole, step).map(|span| &span.name[..]));
        assert_eq!(names, [Some("a"), Some("b"), Some("b"), None]);
        let half = Operand { size: Bytes(4), ..whole };
        assert_eq!(span(&plan, &half, 1), None, "no value has these bytes alone");
    }
}
