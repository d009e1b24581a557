//! Constants of executables with separate weights, packed from a file of weights as the compiler packs them. The code is
//! the compiler's: `types` derives tensors, `cpu` packs them.

use std::collections::BTreeMap;

use cpu::Packing;
use plan::ConstantRecipe;
use types::Tensor;

/// Bytes of intermediate tensors for each byte of the constant; packed half precision and int8 are smaller than their
/// tensors.
const STEP_BYTES: u64 = 64;
/// Bytes of intermediate tensors of small constants.
const STEP_BYTES_MIN: u64 = 64 << 20;

/// The packed bytes of a constant of `size` bytes, from the tensors of a file of weights.
///
/// # Errors
/// Tensors that the file does not have, or that do not fit the recipe; a recipe for other bytes. For people.
pub fn apply(recipe: &ConstantRecipe, size: u64, stored: &BTreeMap<String, Tensor>) -> Result<Vec<u8>, String> {
    let limit = size.saturating_mul(STEP_BYTES).max(STEP_BYTES_MIN);
    let tensor = recipe.tensor.evaluate(stored, limit)?;
    let differs = |got: u64| format!("a constant of {size} bytes became {got}");
    if recipe.packing.is_empty() {
        let got = tensor.size().0;
        return if got == size { Ok(tensor.to_le_bytes()) } else { Err(differs(got)) };
    }
    let packing: Packing = postcard::from_bytes(&recipe.packing).map_err(|error| format!("its packing: {error}"))?;
    match packing.size(tensor.elements()) {
        Ok(Some(got)) if got == size => {}
        Ok(got) => return Err(differs(got.unwrap_or(u64::MAX))),
        Err(error) => return Err(format!("its packing for {}{}: {error}", tensor.dtype(), tensor.shape())),
    }
    // A packing allocates its size, which was compared, as was the number of elements.
    let bytes = packing.apply(&tensor);
    if bytes.len() as u64 == size { Ok(bytes) } else { Err(differs(bytes.len() as u64)) }
}

#[cfg(test)]
mod tests {
    use types::{Derivation, Shape};

    use super::*;

    fn apply_to(name: &str, packing: &[u8], size: u64) -> Result<Vec<u8>, String> {
        let tensor = Tensor::from_fn(Shape::from([3, 4]), |at| at as f32);
        let recipe = ConstantRecipe { tensor: Derivation::stored(name), packing: packing.to_vec() };
        apply(&recipe, size, &BTreeMap::from([("w".to_string(), tensor)]))
    }

    fn code(packing: &Packing) -> Vec<u8> {
        postcard::to_stdvec(packing).expect("it is plain data")
    }

    #[test]
    fn recipe_gives_plain_and_packed_bytes() {
        let plain = apply_to("w", &[], 48).expect("it has 12 elements");
        assert_eq!(plain[4..8], 1.0f32.to_le_bytes());
        let padded = apply_to("w", &code(&Packing::Padded), 64).expect("a block has 16 elements");
        assert_eq!((&padded[..48], &padded[48..]), (&plain[..], &[0; 16][..]));
        let factor = code(&Packing::TransposedFactor { k: 4, n: 3, weights: None });
        let packed = apply_to("w", &factor, 4 * 4 * 16).expect("its strip has 16 columns");
        assert_eq!(packed[..12], [0.0f32, 4.0, 8.0].map(f32::to_le_bytes).concat());
    }

    #[test]
    fn recipe_of_others_is_an_error() {
        let error = |name: &str, packing: &[u8], size: u64| apply_to(name, packing, size).expect_err("it is refused");
        assert_eq!(error("v", &[], 48), "it has no tensor `v`");
        assert_eq!(error("w", &[], 47), "a constant of 47 bytes became 48");
        assert_eq!(error("w", &code(&Packing::Padded), 48), "a constant of 48 bytes became 64");
        assert!(error("w", &[200], 48).starts_with("its packing: "));
        let most = usize::MAX / 64;
        for (k, n) in [(most, most), (1 << 40, 3), (0, usize::MAX)] {
            let _ = error("w", &code(&Packing::TransposedFactor { k, n, weights: None }), 48);
        }
        let other = code(&Packing::TransposedFactor { k: 8, n: 16, weights: None });
        let want = "its packing for f32[3,4]: the tensor must have as many elements as the kernel has weights";
        assert_eq!(error("w", &other, 4 * 8 * 16), want);
        let to = Shape::from([1, 1, 16]);
        for from in [Shape::from([1 << 40, 1 << 40]), Shape::from([0]), Shape::from([64, 9, 9])] {
            let packing = Packing::Blocked { from, to: to.clone() };
            if let Ok(bytes) = apply_to("w", &code(&packing), 64) {
                assert_eq!(bytes.len(), 64);
            }
        }
    }
}
