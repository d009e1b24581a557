//! [`DeviceDescription`]: the properties of a GPU as a file, measured on the GPU or copied from its data sheet.
//!
//! NVIDIA's libraries plan for such a description on machines without the GPU, and plans are checked against its memory.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The value of `format` in such files.
const FORMAT: &str = "prestow-target";

/// The properties of a GPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceDescription {
    format: String,
    /// The architecture in NVRTC's notation: `sm_90`.
    pub arch: String,
    /// The origin of the values.
    pub source: DescriptionSource,
    /// Library versions by name.
    pub libraries: BTreeMap<String, String>,
    /// Device memory outside of an arena. `None` if not measured.
    pub measured: Option<MeasuredMemory>,
    /// The device's properties.
    pub device: DeviceProperties,
}

/// The origin of a description.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DescriptionSource {
    /// Queried from a driver.
    #[serde(rename = "recorded from the device")]
    Recorded,
    /// Copied from a data sheet.
    #[serde(rename = "from the data sheet, not recorded")]
    DataSheet,
}

impl DescriptionSource {
    /// Its text in files and reports.
    pub fn text(self) -> &'static str {
        match self {
            DescriptionSource::Recorded => "recorded from the device",
            DescriptionSource::DataSheet => "from the data sheet, not recorded",
        }
    }
}

/// Device memory that no plan determines, in bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MeasuredMemory {
    /// Used memory after the context was created: the context's own, and that of other processes at the time.
    pub context_bytes: u64,
    /// Memory of a cuDNN handle.
    pub cudnn_bytes: Option<u64>,
    /// Memory of a cuBLASLt handle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cublas_bytes: Option<u64>,
}

/// The properties of a device, under the names that cuDNN's deviceless mode expects.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the names are cuDNN's")]
pub struct DeviceProperties {
    pub device_name: String,
    /// 900 for 9.0.
    pub device_ver: u32,
    /// 13000 for CUDA 13.0.
    pub driver_ver: u32,
    pub multi_processor_count: u32,
    /// In bytes.
    pub total_global_mem: u64,
    pub l2_cache_size: u64,
    #[serde(rename = "smClockRateKHz")]
    pub sm_clock_rate_khz: u32,
    #[serde(rename = "memClockRateKHz")]
    pub mem_clock_rate_khz: u32,
    pub max_grid_size: [u32; 3],
    pub max_block_size: [u32; 3],
    pub max_threads_per_block: u32,
    #[serde(rename = "maxThreadsPerSM")]
    pub max_threads_per_sm: u32,
    #[serde(rename = "maxCtasPerSM")]
    pub max_ctas_per_sm: u32,
    pub regs_per_block: u32,
    #[serde(rename = "maxRegistersPerSM")]
    pub max_registers_per_sm: u32,
    pub max_shared_memory_per_block: u32,
    pub max_shared_memory_per_block_optin: u32,
    pub reserved_shared_memory_per_block: u32,
    pub warp_size: u32,
    pub support_coop_launch: u32,
    pub is_tcc_driver: u32,
    pub pci_device_id: u32,
    pub cuda_device_id: u32,
    /// Additional properties for a library, by name.
    #[serde(flatten)]
    pub more: BTreeMap<String, serde_json::Value>,
}

/// Error of a text that is no device description.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DescriptionError {
    /// A field is missing, unknown or of another type.
    #[error("{0}")]
    Text(String),
    /// The file has another format.
    #[error("`format` must be `{FORMAT}`, got `{0}`")]
    Format(String),
    /// Architecture and compute capability contradict each other.
    #[error("`arch` must be `{own}`, the architecture of `deviceVer` {version}, got `{arch}`")]
    Arch {
        /// The architecture in the file.
        arch: String,
        /// The compute capability times 100.
        version: u32,
        /// The architecture of that compute capability.
        own: String,
    },
    /// A property that must be positive is 0.
    #[error("`{0}` must be at least 1, got 0")]
    Zero(&'static str),
}

impl DeviceDescription {
    /// A description of a device.
    pub fn new(source: DescriptionSource, device: DeviceProperties) -> DeviceDescription {
        let (format, arch) = (FORMAT.to_string(), device.arch());
        DeviceDescription { format, arch, source, libraries: BTreeMap::new(), measured: None, device }
    }

    /// Reads a file's text.
    ///
    /// # Errors
    /// A field is missing or has an invalid value.
    pub fn parse(text: &str) -> Result<DeviceDescription, DescriptionError> {
        let facts: DeviceDescription = serde_json::from_str(text).map_err(|error| {
            let text = error.to_string();
            DescriptionError::Text(text)
        })?;
        if facts.format != FORMAT {
            return Err(DescriptionError::Format(facts.format));
        }
        let (device, own) = (&facts.device, facts.device.arch());
        if facts.arch != own {
            return Err(DescriptionError::Arch { arch: facts.arch, version: device.device_ver, own });
        }
        let counts = [
            ("multiProcessorCount", u64::from(device.multi_processor_count)),
            ("totalGlobalMem", device.total_global_mem),
            ("warpSize", u64::from(device.warp_size)),
            ("maxThreadsPerBlock", u64::from(device.max_threads_per_block)),
        ];
        match counts.into_iter().find(|(_, count)| *count == 0) {
            Some((name, _)) => Err(DescriptionError::Zero(name)),
            None => Ok(facts),
        }
    }

    /// The file's text.
    pub fn text(&self) -> String {
        serde_json::to_string_pretty(self).expect("facts are plain data") + "\n"
    }
}

impl DeviceProperties {
    /// The architecture in NVRTC's notation.
    pub fn arch(&self) -> String {
        format!("sm_{}", self.device_ver / 10)
    }

    /// JSON in cuDNN's format.
    pub fn json(&self) -> String {
        serde_json::to_string(self).expect("properties are plain data")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const H200: &str = include_str!("../../../targets/cuda-sm_90-h200.json");

    #[test]
    fn file_of_the_repository_is_from_a_data_sheet() {
        let facts = DeviceDescription::parse(H200).expect("it is whole");
        assert_eq!((&facts.arch[..], facts.source, &facts.measured), ("sm_90", DescriptionSource::DataSheet, &None));
        assert_eq!(facts.text(), H200, "it is written as we write it");
        assert_eq!(DeviceDescription::parse(&facts.text()), Ok(facts));
    }

    /// Recorded on an H100 that other programs shared, so without measured memory.
    #[test]
    fn file_of_a_device_is_as_recorded() {
        let text = include_str!("../../../targets/cuda-sm_90-h100.json");
        let facts = DeviceDescription::parse(text).expect("it is whole");
        assert_eq!((&facts.arch[..], facts.source, &facts.measured), ("sm_90", DescriptionSource::Recorded, &None));
        assert_eq!((facts.text(), &facts.device.device_name[..]), (text.to_string(), "NVIDIA H100 80GB HBM3"));
    }

    #[test]
    fn missing_or_invalid_fields_are_named() {
        let refused = |from: &str, to: &str| {
            assert!(H200.contains(from), "{from}");
            DeviceDescription::parse(&H200.replacen(from, to, 1)).expect_err("something is wrong").to_string()
        };
        assert!(refused("\"warpSize\": 32", "\"other\": 32").contains("missing field `warpSize`"));
        assert!(refused("\"source\"", "\"sauce\"").contains("unknown field `sauce`"));
        assert!(refused("\"warpSize\": 32", "\"warpSize\": \"many\"").contains("many"));
        assert!(refused("\"warpSize\": 32", "\"warpSize\": 0").contains("`warpSize` must be at least 1"));
        assert!(refused("prestow-target", "prestow-report").contains("`prestow-report`"));
        assert!(refused("\"sm_90\"", "\"sm_80\"").contains("`arch` must be `sm_90`"));
        assert!(DeviceDescription::parse("").is_err());
    }
}
