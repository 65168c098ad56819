//! The words of an answer: eighteen categories, what to do, and root or consequence.

use serde::{Deserialize, Serialize};

/// What kind of failure it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Category {
    GpuOom,
    HostResources,
    GpuHardware,
    GpuDriverEnv,
    GpuKernelFault,
    CollectiveHang,
    NetworkFabric,
    RendezvousPort,
    RayRuntime,
    RayResources,
    Storage,
    ArtifactAccess,
    ConfigError,
    PythonEnv,
    RolloutEngine,
    Numerical,
    UserCode,
    Preempted,
    /// An answer of its own: better than a wrong one.
    Unknown,
}

impl Category {
    /// The eighteen, in the order of the documentation; without [`Category::Unknown`].
    pub const ALL: [Category; 18] = [
        Category::GpuOom,
        Category::HostResources,
        Category::GpuHardware,
        Category::GpuDriverEnv,
        Category::GpuKernelFault,
        Category::CollectiveHang,
        Category::NetworkFabric,
        Category::RendezvousPort,
        Category::RayRuntime,
        Category::RayResources,
        Category::Storage,
        Category::ArtifactAccess,
        Category::ConfigError,
        Category::PythonEnv,
        Category::RolloutEngine,
        Category::Numerical,
        Category::UserCode,
        Category::Preempted,
    ];

    /// The word in JSON and in `rules.toml`.
    pub fn word(self) -> &'static str {
        match self {
            Category::GpuOom => "gpu_oom",
            Category::HostResources => "host_resources",
            Category::GpuHardware => "gpu_hardware",
            Category::GpuDriverEnv => "gpu_driver_env",
            Category::GpuKernelFault => "gpu_kernel_fault",
            Category::CollectiveHang => "collective_hang",
            Category::NetworkFabric => "network_fabric",
            Category::RendezvousPort => "rendezvous_port",
            Category::RayRuntime => "ray_runtime",
            Category::RayResources => "ray_resources",
            Category::Storage => "storage",
            Category::ArtifactAccess => "artifact_access",
            Category::ConfigError => "config_error",
            Category::PythonEnv => "python_env",
            Category::RolloutEngine => "rollout_engine",
            Category::Numerical => "numerical",
            Category::UserCode => "user_code",
            Category::Preempted => "preempted",
            Category::Unknown => "unknown",
        }
    }
}

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Action {
    FixConfig,
    FixEnv,
    FixCode,
    FixData,
    RetrySame,
    RetryElsewhere,
    /// Retry elsewhere and take the node out of use. Advice as long as it stands on text alone: see
    /// [`Diagnosis::certain`](crate::Diagnosis::certain).
    RetryElsewhereCordon,
    RetryFromCheckpoint,
    RollbackCheckpoint,
    CheckNetworkRetry,
    FreeSpaceThenRetry,
    WaitOrShrink,
    RestartRayRetry,
    InvestigateHang,
    Resume,
    /// Nothing to do yet.
    Watch,
}

impl Action {
    /// Whether the same job may be started again without a change by its user.
    pub fn retries(self) -> bool {
        match self {
            Action::FixConfig
            | Action::FixEnv
            | Action::FixCode
            | Action::FixData
            | Action::Watch => false,
            Action::RetrySame
            | Action::RetryElsewhere
            | Action::RetryElsewhereCordon
            | Action::RetryFromCheckpoint
            | Action::RollbackCheckpoint
            | Action::CheckNetworkRetry
            | Action::FreeSpaceThenRetry
            | Action::WaitOrShrink
            | Action::RestartRayRetry
            | Action::InvestigateHang
            | Action::Resume => true,
        }
    }

    /// The word in JSON and in `rules.toml`.
    pub fn word(self) -> &'static str {
        match self {
            Action::FixConfig => "FIX_CONFIG",
            Action::FixEnv => "FIX_ENV",
            Action::FixCode => "FIX_CODE",
            Action::FixData => "FIX_DATA",
            Action::RetrySame => "RETRY_SAME",
            Action::RetryElsewhere => "RETRY_ELSEWHERE",
            Action::RetryElsewhereCordon => "RETRY_ELSEWHERE_CORDON",
            Action::RetryFromCheckpoint => "RETRY_FROM_CHECKPOINT",
            Action::RollbackCheckpoint => "ROLLBACK_CHECKPOINT",
            Action::CheckNetworkRetry => "CHECK_NETWORK_RETRY",
            Action::FreeSpaceThenRetry => "FREE_SPACE_THEN_RETRY",
            Action::WaitOrShrink => "WAIT_OR_SHRINK",
            Action::RestartRayRetry => "RESTART_RAY_RETRY",
            Action::InvestigateHang => "INVESTIGATE_HANG",
            Action::Resume => "RESUME",
            Action::Watch => "WATCH",
        }
    }
}

/// Whether a finding can be the first cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rank {
    /// It usually is a first cause.
    Root,
    /// It usually follows from something else.
    Consequence,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_those_of_json() {
        for category in Category::ALL {
            assert_eq!(serde_json::to_value(category).unwrap(), category.word());
        }
        for action in [Action::FixConfig, Action::RetryElsewhereCordon, Action::Watch] {
            assert_eq!(serde_json::to_value(action).unwrap(), action.word());
        }
    }

    #[test]
    fn what_a_user_must_change_is_not_retried() {
        assert!(!Action::FixConfig.retries() && !Action::FixData.retries());
        assert!(Action::Resume.retries() && Action::RollbackCheckpoint.retries());
    }
}
