//! Variables and options of Slurm that become no field, and what to use instead.

use super::script::Replacement;

/// What the variables of Slurm become.
pub(super) const VARIABLES: [Replacement; 22] = [
    ("SLURM_ARRAY_TASK_ID", "give each job of the array its own --env"),
    ("SLURM_CPUS_ON_NODE", "$(nproc)"),
    ("SLURM_CPUS_PER_TASK", "write the number, or put it into `env`"),
    ("SLURM_GPUS", "$((GANGLINE_NNODES * GANGLINE_GPUS_PER_NODE))"),
    ("SLURM_GPUS_ON_NODE", "$GANGLINE_GPUS_PER_NODE"),
    ("SLURM_GPUS_PER_NODE", "$GANGLINE_GPUS_PER_NODE"),
    ("SLURM_JOBID", "$GANGLINE_JOB_ID"),
    ("SLURM_JOB_ACCOUNT", "$GANGLINE_PROJECT"),
    ("SLURM_JOB_ID", "$GANGLINE_JOB_ID"),
    ("SLURM_JOB_NAME", "$GANGLINE_NAME"),
    ("SLURM_JOB_NODELIST", "$GANGLINE_NODE_IPS, addresses with commas; the first is $MASTER_ADDR"),
    ("SLURM_JOB_NUM_NODES", "$GANGLINE_NNODES"),
    ("SLURM_LAUNCH_NODE_IPADDR", "$MASTER_ADDR"),
    ("SLURM_LOCALID", "$LOCAL_RANK, which torchrun sets"),
    ("SLURM_NNODES", "$GANGLINE_NNODES"),
    ("SLURM_NODEID", "$GANGLINE_NODE_RANK"),
    ("SLURM_NODELIST", "$GANGLINE_NODE_IPS, addresses with commas; the first is $MASTER_ADDR"),
    ("SLURM_NTASKS", "$GANGLINE_NNODES with one process on each node; torchrun sets $WORLD_SIZE"),
    ("SLURM_PROCID", "$GANGLINE_NODE_RANK with one process on each node; torchrun sets $RANK"),
    ("SLURM_RESTART_COUNT", "$GANGLINE_ATTEMPT, which counts from 1"),
    ("SLURM_SUBMIT_DIR", "set `workdir` to a path that all nodes have, and use $PWD"),
    ("SLURM_TMPDIR", "${TMPDIR:-/tmp}"),
];

/// Options without a counterpart: what to do instead, and whether the job is another one without.
pub(super) const WITHOUT: [(&str, &str, bool); 21] = [
    ("account", "the project of your token counts; `project: NAME` names another one", true),
    ("array", "submit once for each index, with --env INDEX=...", true),
    ("begin", "write it as `queue.not_before`, with its offset", true),
    ("comment", "`description: TEXT` says something about a job", false),
    ("constraint", "name labels of such nodes: `resources.labels: {KEY: VALUE}`", true),
    ("dependency", "name the job that it is here in `queue.after`, or with --after", true),
    ("error", "stdout and stderr are one log: `gangline logs JOB`", false),
    ("exclusive", "a node is shared with nobody or with anybody: `exclusive: true`", true),
    ("export", "a job gets only what stands in `env`, or in --env of submit", true),
    ("hold", "say `queue: {hold: true}`, or --hold", true),
    ("input", "redirect stdin in the script", true),
    ("mail-type", "not built yet: `gangline wait JOB` returns when it has ended", false),
    ("mail-user", "not built yet: `gangline wait JOB` returns when it has ended", false),
    ("no-requeue", "nothing is retried yet", false),
    ("nodelist", "nodes cannot be asked for by name: name a `pool` or labels of them", true),
    ("open-mode", "each attempt has a log of its own", false),
    ("output", "ignored: `gangline logs JOB` has the output", false),
    ("qos", "there is none; `queue.priority` is the nearest field", true),
    ("requeue", "nothing is retried yet", true),
    ("reservation", "name a `pool` of these nodes", true),
    ("signal", "a stopped job gets SIGTERM, and `grace_period` to end", true),
];
