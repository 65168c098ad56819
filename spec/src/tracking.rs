//! Experiment trackers: what a spec says about them, and the environment that follows from it.

use std::collections::BTreeMap;

use serde_json::json;

/// The field `tracking`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tracking {
    /// Weights & Biases, when it is asked for.
    pub wandb: Option<Wandb>,
    /// Whether TensorBoard events are written.
    pub tensorboard: bool,
    /// MLflow, when it is asked for.
    pub mlflow: Option<Mlflow>,
}

/// The field `tracking.wandb`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wandb {
    /// Project of the run; `None` for the job's.
    pub project: Option<String>,
    /// Whether the run talks to a server.
    pub mode: WandbMode,
}

/// Whether a run of Weights & Biases talks to a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WandbMode {
    /// Online where the node can reach the server, else offline.
    #[default]
    Auto,
    /// Always to the server.
    Online,
    /// Into files, to be sent later.
    Offline,
    /// Not at all.
    Disabled,
}

impl WandbMode {
    /// All modes, in the order of [`WandbMode::WORDS`].
    pub const ALL: [Self; 4] = [Self::Auto, Self::Online, Self::Offline, Self::Disabled];
    /// The words of the spec.
    pub const WORDS: [&'static str; 4] = ["auto", "online", "offline", "disabled"];

    /// The word of the spec.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Online => "online",
            Self::Offline => "offline",
            Self::Disabled => "disabled",
        }
    }
}

/// The field `tracking.mlflow`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mlflow {
    /// Tracking server.
    pub uri: String,
    /// Experiment of the run; `None` for the job's project.
    pub experiment: Option<String>,
}

/// What [`Tracking::environment`] has to know about an attempt.
#[derive(Clone, Copy, Debug)]
pub struct TrackingPlace<'a> {
    /// Id of the job: the same over retries, so that they continue one run.
    pub job_id: &'a str,
    /// Name of the job.
    pub name: &'a str,
    /// Project of the job.
    pub project: &'a str,
    /// Absolute directory of the job, shared by its nodes; without one the trackers of
    /// [`Tracking::directories`] are told nothing of it.
    pub directory: Option<&'a str>,
    /// Whether the node can reach the server of Weights & Biases.
    pub wandb_reachable: bool,
}

impl Tracking {
    /// Whether nothing is asked for.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The loggers of verl (`trainer.logger`) that this asks for. Console and file are always
    /// there: Gangline reads the progress of a job from them.
    #[must_use]
    pub fn loggers(&self) -> Vec<&'static str> {
        let wandb = self.wandb.as_ref().is_some_and(|wandb| wandb.mode != WandbMode::Disabled);
        let asked = [
            ("wandb", wandb),
            ("tensorboard", self.tensorboard),
            ("mlflow", self.mlflow.is_some()),
        ];
        let asked = asked.into_iter().filter(|(_, on)| *on).map(|(name, _)| name);
        ["console", "file"].into_iter().chain(asked).collect()
    }

    /// Names of directories below the job's that trackers write to.
    #[must_use]
    pub fn directories(&self) -> Vec<&'static str> {
        let asked = [("wandb", self.wandb.is_some()), ("tensorboard", self.tensorboard)];
        asked.into_iter().filter(|(_, on)| *on).map(|(name, _)| name).collect()
    }

    /// The name that trackers group runs by, where the spec gives one.
    #[must_use]
    pub fn project(&self) -> Option<&str> {
        let wandb = self.wandb.as_ref().and_then(|wandb| wandb.project.as_deref());
        wandb.or_else(|| self.mlflow.as_ref().and_then(|mlflow| mlflow.experiment.as_deref()))
    }

    /// The environment of the entrypoint. The job's own `env` goes over it. The directories that
    /// it names, see [`Tracking::directories`], have to be made before the entrypoint starts.
    ///
    /// The run of Weights & Biases and the directory of TensorBoard are those of the job, so that
    /// a retry continues the curves. MLflow gives out the ids of its runs itself: there each
    /// attempt has a run with the job's id as its name and as a tag.
    #[must_use]
    pub fn environment(&self, place: &TrackingPlace<'_>) -> BTreeMap<&'static str, String> {
        let TrackingPlace { job_id, name, project, directory, wandb_reachable } = *place;
        let directory = directory.map(|directory| directory.trim_end_matches('/'));
        let mut env = BTreeMap::new();
        if let Some(wandb) = &self.wandb {
            let mode = match wandb.mode {
                WandbMode::Auto if wandb_reachable => WandbMode::Online,
                WandbMode::Auto => WandbMode::Offline,
                mode => mode,
            };
            let project = wandb.project.as_deref().unwrap_or(project);
            env.insert("WANDB_PROJECT", project.to_owned());
            env.insert("WANDB_MODE", mode.word().to_owned());
            env.insert("WANDB_RUN_ID", job_id.to_owned());
            env.insert("WANDB_NAME", name.to_owned());
            env.insert("WANDB_RESUME", "allow".to_owned());
            // The library makes `wandb` below it.
            env.extend(directory.map(|directory| ("WANDB_DIR", directory.to_owned())));
        }
        if let (true, Some(directory)) = (self.tensorboard, directory) {
            env.insert("TENSORBOARD_DIR", format!("{directory}/tensorboard"));
        }
        if let Some(mlflow) = &self.mlflow {
            let experiment = mlflow.experiment.as_deref().unwrap_or(project);
            env.insert("MLFLOW_TRACKING_URI", mlflow.uri.clone());
            env.insert("MLFLOW_EXPERIMENT_NAME", experiment.to_owned());
            // Tags of every run that the job begins.
            let tags = json!({ "mlflow.runName": job_id, "gangline.job_id": job_id });
            env.insert("MLFLOW_RUN_CONTEXT", tags.to_string());
        }
        env
    }
}
