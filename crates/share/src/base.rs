//! Files of the base folder, by name.

use std::path::{Path, PathBuf};

/// Extensions of files of tensors, in the order in which they are looked for.
pub const EXTENSIONS: [&str; 4] = ["safetensors", "npz", "params", "npy"];

/// The file of a name in a folder: `NAME`, `NAME.safetensors` and so on, `NAME/model.params`, `NAME/NAME.params`,
/// `NAME/NAME-0000.params`. `None` also for names that lead out of the folder.
pub fn find(folder: &Path, name: &str) -> Option<PathBuf> {
    candidates(folder, name, true).into_iter().find(|path| path.is_file())
}

/// The same, only files of tensors.
pub fn find_tensors(folder: &Path, name: &str) -> Option<PathBuf> {
    candidates(folder, name, false).into_iter().find(|path| path.is_file())
}

fn candidates(folder: &Path, name: &str, with_bare: bool) -> Vec<PathBuf> {
    if name.is_empty() || name.starts_with('.') || name.contains(['/', '\0']) {
        return Vec::new();
    }
    let bare = with_bare.then(|| name.to_string());
    let in_folder = EXTENSIONS.iter().map(|extension| format!("{name}.{extension}"));
    let below = [format!("{name}/model.params"), format!("{name}/{name}.params"), format!("{name}/{name}-0000.params")];
    bare.into_iter().chain(in_folder).chain(below).map(|path| folder.join(path)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_lead_out_of_the_folder_have_no_candidates() {
        for name in ["", ".", "..", "../x", "/etc/passwd", "a/b", ".hidden", "a\0b"] {
            assert_eq!(candidates(Path::new("/base"), name, true), Vec::<PathBuf>::new(), "{name:?}");
        }
        let found = candidates(Path::new("/base"), "m", false);
        assert_eq!((&*found[0], found.len()), (Path::new("/base/m.safetensors"), 7));
    }
}
