//! The short form of a job: where its output goes and where it runs.

use crate::terminal::clean;
use crate::view::Job;

/// Id, name, state and reason in one line; then output directory, training checkpoints, nodes,
/// the node of the Ray driver and the gang's Ray nodes. Ends with a line end.
pub(super) fn card(job: &Job) -> String {
    let mut out = format!("{}  {}  {}", clean(&job.id), clean(&job.name), clean(&job.state));
    if !job.reason.is_empty() {
        out.push_str(&format!("  {}", clean(&job.reason)));
    }
    out.push('\n');
    for (label, text) in places(job) {
        out.push_str(&format!("  {label:<12} {}\n", clean(&text)));
    }
    out
}

/// What `card` and `show` say about places.
pub(super) fn places(job: &Job) -> Vec<(&'static str, String)> {
    let mut out = Vec::new();
    let later = if job.is_over() { "none" } else { "not placed yet" };
    out.push((
        "output",
        job.directory.clone().unwrap_or_else(|| "none: no shared root".to_owned()),
    ));
    if let Some(cluster) = &job.cluster {
        out.push(("cluster", cluster.clone()));
    }
    if let Some(usage) = &job.usage {
        let jobs = if usage.jobs.is_empty() { "none".to_owned() } else { usage.jobs.join(" ") };
        out.push(("jobs", format!("{jobs}; {} waiting", usage.waiting)));
        out.push(("GPUs free", format!("{} of {}", usage.gpus_free, usage.gpus)));
    }
    if let Some(directory) = &job.checkpoint_directory {
        out.push(("checkpoints", directory.clone()));
    }
    if let Some(policy) = job.on_disconnect.as_ref().filter(|policy| *policy != "fence") {
        out.push(("when cut off", policy.clone()));
    }
    let nodes = if job.nodes.is_empty() { later.to_owned() } else { job.nodes.join(" ") };
    out.push(("nodes", nodes));
    if job.launcher == "ray" && job.kind != "cluster" {
        let waiting = if job.is_over() { "none" } else { "not started yet" };
        let driver = job.driver_node.clone().unwrap_or_else(|| waiting.to_owned());
        out.push(("Ray driver", driver));
        let ray_nodes = ray_nodes(job);
        if !ray_nodes.is_empty() {
            out.push(("Ray nodes", ray_nodes));
        }
    }
    out
}

/// The Ray nodes of the last attempt: `gpu-0203 (0, 10.0.0.3)`.
fn ray_nodes(job: &Job) -> String {
    let nodes = job.attempt_list.last().map(|attempt| attempt.ray_nodes.as_slice());
    let shown = nodes.unwrap_or_default().iter().map(|node| {
        let member = node.member.as_ref().map_or_else(|| "?".to_owned(), ToString::to_string);
        let name = node.node.as_deref().unwrap_or("?");
        let address = node.address.as_deref().map(|a| format!(", {a}")).unwrap_or_default();
        let dead = if node.alive == Some(false) { ", dead" } else { "" };
        format!("{name} ({member}{address}{dead})")
    });
    shown.collect::<Vec<_>>().join(" ")
}
