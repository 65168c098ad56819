//! Specs made from Slurm scripts and SkyPilot tasks: what each option becomes, errors with their
//! positions, and that every result is a spec.

use std::time::Duration;

use gangline_spec::{
    Entrypoint, Imported, JobSpec, LauncherKind, SpecErrors, from_sky, from_slurm, name_from, parse,
};
use proptest::prelude::*;

const SCRIPT: &str = r#"#!/bin/bash
# Pre-training
#SBATCH --job-name=Qwen_SFT
#SBATCH -N 2
#SBATCH --gres=gpu:h100:8
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task 64
#SBATCH --mem=512G
#SBATCH -p train
#SBATCH --time=2-12:00
#SBATCH -x gpu-[01-02]
#SBATCH --output=logs/%j.out
#SBATCH --dependency=afterok:123
#SBATCH --exclusive
#SBATCH --frobnicate=yes

export MASTER_ADDR=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -1)
echo "rank $SLURM_NODEID of ${SLURM_NNODES}" # SLURM_UNHEARD_OF
srun torchrun --nproc-per-node=8 train.py
#SBATCH --late
"#;

const TASK: &str = r#"name: My Task
num_nodes: 2
resources:
  accelerators: {H100: 8}
  cpus: 32+
  memory: 256
  infra: aws
workdir: ~/code
envs:
  LR: 1e-6
  FROM_SHELL:
file_mounts:
  /data: s3://bucket/data
secrets:
  HF_TOKEN: hf_canary
service: {port: 80}
setup: |
  pip install -r requirements.txt
run: |
  echo $SKYPILOT_NODE_RANK
  python train.py
"#;

/// The spec of `made`, which must be one.
fn spec(made: &Imported) -> JobSpec {
    parse(&made.text).unwrap_or_else(|errors| panic!("{errors}\n{}", made.text))
}

fn script(spec: &JobSpec) -> &str {
    match &spec.entrypoint {
        Entrypoint::Script(text) => text,
        other => panic!("{other:?}"),
    }
}

fn slurm(options: &str) -> Result<Imported, SpecErrors> {
    from_slurm(&format!("#!/bin/sh\n{options}\nhostname\n"))
}

#[test]
fn a_batch_script_becomes_a_spec() {
    let made = from_slurm(SCRIPT).unwrap();
    let spec = spec(&made);
    assert_eq!(spec.name.as_deref(), Some("qwen-sft"));
    let resources = &spec.resources;
    assert_eq!((resources.nnodes, resources.gpus_per_node), (2, 8));
    assert_eq!(resources.cpus_per_node, Some(64.0));
    assert_eq!(resources.memory_per_node, Some(512 << 30));
    assert_eq!(resources.pools, ["train"]);
    assert_eq!(spec.launcher.kind, LauncherKind::Torchrun);
    assert!(script(&spec).starts_with("exec /bin/bash /dev/fd/3 3<<'GANGLINE_SCRIPT'\n"));
    assert!(script(&spec).contains("\nsrun torchrun --nproc-per-node=8 train.py\n"));
    assert_eq!(spec.timeout, Some(Duration::from_secs(60 * 3600)));
    assert_eq!(spec.resources.gpu, ["h100"]);
    assert_eq!(spec.resources.exclusive, Some(true));
    assert_eq!(spec.resources.exclude_nodes, ["gpu-01", "gpu-02"]);
}

#[test]
fn nothing_of_a_batch_script_is_dropped_in_silence() {
    let made = from_slurm(SCRIPT).unwrap();
    for said in [
        "# `Qwen_SFT` cannot be a name",
        "# --ntasks-per-node=1: `run` is started once on each node",
        "#   line 17, scontrol: $MASTER_ADDR is the first node",
        "#   line 19, srun: leave `srun` and its options out",
        "#   SLURM_JOB_NODELIST: $GANGLINE_NODE_IPS",
        "#   SLURM_NODEID: $GANGLINE_NODE_RANK",
        "#   SLURM_UNHEARD_OF: no counterpart",
        "#   --output=logs/%j.out (line 12): ignored",
        "#   --dependency=afterok:123 (line 13): name the job that it is here in `queue.after`",
        "#   --frobnicate=yes (line 15): not known here",
    ] {
        assert!(made.text.contains(said), "{said}\n{}", made.text);
    }
    assert_eq!(
        made.warnings,
        [
            "2 line(s) of the script use programs of Slurm and are kept as they are: see the \
             comments above `run`",
            "the script uses variables of Slurm: see the comments above `run`",
            "line 20: #SBATCH after the first command, which Slurm ignores too",
            "not converted, see the comments at the end of the file: --dependency, \
             --frobnicate",
        ]
    );
}

#[test]
fn sizes_of_a_gang() {
    let cases = [
        ("#SBATCH --gpus=16 -N 2", (2, 8, None)),
        ("#SBATCH -G 4", (1, 4, None)),
        ("#SBATCH --nodes=2-4 --gpus-per-node=h100:2", (2, 2, None)),
        ("#SBATCH -n 16 --ntasks-per-node=8 --gpus-per-task=1 -c 4", (2, 8, Some(32.0))),
        ("#SBATCH -N 2 -n 4 -c 3", (2, 0, Some(6.0))),
        ("#SBATCH --gres=gpu:8 --gpus-per-node=8", (1, 8, None)),
        ("#SBATCH -N 2\n#SBATCH -N 3", (3, 0, None)),
        ("", (1, 0, None)),
    ];
    for (options, expected) in cases {
        let resources = spec(&slurm(options).unwrap()).resources;
        let found = (resources.nnodes, resources.gpus_per_node, resources.cpus_per_node);
        assert_eq!(found, expected, "{options}");
    }
    let memory = |options: &str| spec(&slurm(options).unwrap()).resources.memory_per_node;
    assert_eq!(memory("#SBATCH --mem-per-gpu=64G -N 2 -G 16"), Some(512 << 30));
    assert_eq!(memory("#SBATCH --mem-per-cpu=2000 -c 4"), Some(8000 << 20));
    assert_eq!(memory("#SBATCH --mem=0"), None);
    let made = slurm("#SBATCH --mem-per-cpu=2000").unwrap();
    assert!(made.text.contains("#   --mem-per-cpu=2000 (line 2): write the sum"), "{}", made.text);
}

#[test]
fn what_a_batch_script_cannot_mean_is_shown_where_it_stands() {
    let cases = [
        ("#SBATCH -N 3\n#SBATCH --gpus=16", "E0103", (3, 9), "16 GPUs do not divide among 3"),
        ("#SBATCH --nodes=0", "E0103", (2, 9), "`resources.nnodes` must be from 1 to 4096"),
        ("#SBATCH --gpus-per-node=65", "E0103", (2, 9), "`resources.gpus_per_node` must be"),
        ("#SBATCH -G 2 --gpus-per-node=1", "E0107", (2, 9), "contradict each other"),
        ("#SBATCH --mem=1G --mem-per-gpu=1G", "E0107", (2, 18), "contradict each other"),
        ("#SBATCH -t tomorrow", "E0103", (2, 9), "`--time` cannot be `tomorrow`"),
        ("#SBATCH -t 400-00", "E0103", (2, 9), "`--time` cannot be `400-00`"),
        ("#SBATCH --mem=lots", "E0103", (2, 9), "`--mem` cannot be `lots`"),
        ("#SBATCH -p 'a b'", "E0103", (2, 9), "`--partition` cannot be `a b`"),
        ("#SBATCH -x gpu-[1-9999]", "E0103", (2, 9), "`--exclude` cannot be"),
        ("#SBATCH -D /a/../b", "E0103", (2, 9), "`workdir` must be a path without"),
        ("#SBATCH --nodes", "E0104", (2, 9), "`--nodes` has no value"),
        ("#SBATCH --gres=gpu:x:y", "E0103", (2, 9), "`--gres` cannot be"),
    ];
    for (options, code, place, message) in cases {
        let errors = slurm(options).expect_err(options);
        let error = &errors.errors[0];
        let found = error.line.zip(error.column).unwrap();
        assert_eq!((error.code, found), (code, place), "{options}: {errors}");
        assert!(error.message.contains(message), "{options}: {errors}");
    }
    let long = format!("#!/bin/sh\n\necho {}\n", "x".repeat(200_000));
    let errors = from_slurm(&long).unwrap_err();
    assert_eq!((errors.errors[0].code, errors.errors[0].line), ("E0106", Some(3)));
}

#[test]
fn scripts_of_sh_stand_as_they_are() {
    let made =
        from_slurm("#!/bin/sh\r\n#SBATCH -N 1\r\n\r\n  echo 'a: b'\r\n\techo\r\n\r\n").unwrap();
    assert_eq!(script(&spec(&made)), "  echo 'a: b'\n\techo\n");
    assert!(made.warnings.iter().any(|warning| warning.contains("Windows")));
    assert!(made.text.contains("\nrun: |2\n    echo 'a: b'\n  \techo\n"), "{}", made.text);
    // A block cannot carry every character.
    let made = from_slurm("#!/bin/sh\necho \u{1b}[1m\n").unwrap();
    assert_eq!(script(&spec(&made)), "echo \u{1b}[1m\n");
    let made = slurm("#SBATCH --export=ALL,A=1 --foo=\u{1b}\u{85}x").unwrap();
    assert!(made.text.contains("--foo=\u{fffd}\u{fffd}x"), "{}", made.text);
    spec(&made);
}

#[test]
fn a_task_becomes_a_spec() {
    let made = from_sky(TASK).unwrap();
    let spec = spec(&made);
    assert_eq!(spec.name.as_deref(), Some("my-task"));
    let resources = &spec.resources;
    assert_eq!((resources.nnodes, resources.gpus_per_node), (2, 8));
    assert_eq!(resources.cpus_per_node, Some(32.0));
    assert_eq!(resources.memory_per_node, Some(256 << 30));
    assert_eq!(spec.env["LR"].as_deref(), Some("1e-6"));
    assert_eq!(spec.env["FROM_SHELL"], None);
    let run = script(&spec);
    assert_eq!(
        run,
        "exec /usr/bin/env bash /dev/fd/3 3<<'GANGLINE_SCRIPT'\n# setup\n(\npip install -r \
         requirements.txt\n) || exit\n# run\necho $SKYPILOT_NODE_RANK\npython train.py\n\
         GANGLINE_SCRIPT\n"
    );
    assert_eq!(spec.resources.gpu, ["H100"]);
    assert_eq!(spec.secrets, ["HF_TOKEN"]);
    assert!(!made.text.contains("hf_canary"), "{}", made.text);
    for said in [
        "#   workdir: ~/code: write `code: {snapshot: DIR}`",
        "#   file_mounts /data: s3://bucket/data: files are not sent yet",
        "#   resources.infra: aws: name a `pool`",
        "#   service: no counterpart",
        "#   SKYPILOT_NODE_RANK: $GANGLINE_NODE_RANK",
        "  # cpus: 32+, at least.",
    ] {
        assert!(made.text.contains(said), "{said}\n{}", made.text);
    }
    assert_eq!(
        made.warnings,
        [
            "the task uses variables of SkyPilot: see the comments above `run`",
            "not converted, see the comments at the end of the file: resources.infra, workdir, \
             file_mounts, secrets, service",
        ]
    );
}

#[test]
fn setup_runs_in_a_shell_of_its_own_and_its_failure_ends_the_job() {
    for (setup, code, output) in [("cd /tmp; x=(1 2)", 7, "not there\n"), ("(exit 3)", 3, "")] {
        let task =
            format!("setup: {setup}\nrun: |\n  [ \"$PWD\" = /tmp ] || echo not there\n  exit 7\n");
        let spec = spec(&from_sky(&task).unwrap());
        let mut shell = std::process::Command::new("/bin/sh");
        let ended = shell.args(["-c", script(&spec)]).current_dir("/").output().unwrap();
        assert_eq!(ended.status.code(), Some(code), "{ended:?}");
        assert_eq!(String::from_utf8(ended.stdout).unwrap(), output);
    }
}

#[test]
fn the_warning_about_leftovers_has_a_bound() {
    let options: String = (0..5000).map(|n| format!("#SBATCH --x{n}=1\n")).collect();
    let made = slurm(&options).unwrap();
    assert!(made.warnings[0].ends_with("--x19 and 4980 more"), "{}", made.warnings[0]);
    assert!(made.text.contains("#   --x4999=1 (line 5001): not known here"));
}

#[test]
fn accelerators_in_every_form() {
    for (form, gpus) in [
        ("H100:8", 8),
        ("H100", 1),
        ("{H100: 8}", 8),
        ("{H100: 8.0, A100: 8}", 8),
        ("[H100:4, A100:4]", 4),
        ("", 0),
    ] {
        let made = from_sky(&format!("resources:\n  accelerators: {form}\nrun: hi\n")).unwrap();
        assert_eq!(spec(&made).resources.gpus_per_node, gpus, "{form}");
    }
}

#[test]
fn what_a_task_cannot_mean_is_shown_where_it_stands() {
    let cases = [
        ("run: [a\n", "E0105", None),
        ("a: 1\na: 2\nrun: hi\n", "E0108", Some((2, 1))),
        ("- a\n", "E0103", Some((1, 1))),
        ("", "E0103", Some((1, 1))),
        ("name: x\n", "E0104", Some((1, 1))),
        ("num_nodes: two\nrun: hi\n", "E0103", Some((1, 12))),
        ("num_nodes: 0\nrun: hi\n", "E0103", Some((1, 12))),
        ("resources: {accelerators: H100:0.5}\nrun: hi\n", "E0103", Some((1, 27))),
        ("resources:\n  accelerators: {H100: 8, A100: 4}\nrun: hi\n", "E0103", Some((2, 17))),
        ("resources: {memory: much}\nrun: hi\n", "E0103", Some((1, 21))),
        ("envs: {GANGLINE_X: 1}\nrun: hi\n", "E0103", Some((1, 8))),
        ("envs: {1a: 1}\nrun: hi\n", "E0103", Some((1, 8))),
        ("envs: {A: [1]}\nrun: hi\n", "E0103", Some((1, 11))),
        ("run: hi\n---\nrun: hi\n", "E0105", None),
    ];
    for (text, code, place) in cases {
        let errors = from_sky(text).expect_err(text);
        let error = &errors.errors[0];
        assert_eq!(error.code, code, "{text}: {errors}");
        assert!(error.line.is_some(), "{text}: {errors}");
        if let Some(place) = place {
            assert_eq!(error.line.zip(error.column), Some(place), "{text}: {errors}");
        }
    }
}

#[test]
fn names_fit() {
    for (text, name) in
        [("My Job_1", "my-job-1"), ("--", "job"), ("", "job"), ("Größe", "gr--e"), ("a", "a")]
    {
        assert_eq!(name_from(text), name);
    }
    assert_eq!(name_from(&"x".repeat(100)).len(), 63);
}

/// A clear error with its place, or a spec.
fn check(made: Result<Imported, SpecErrors>) {
    match made {
        Ok(made) => {
            spec(&made);
        }
        Err(errors) => {
            for error in &errors.errors {
                assert!(!error.message.is_empty());
                assert!(error.line.is_some(), "{errors}");
            }
        }
    }
}

/// `text` with a piece taken out, put in, or repeated.
fn mutated(text: &'static str) -> impl Strategy<Value = String> {
    let token = prop_oneof![
        "[-:{}\\[\\]=,\"'#%@`|>\t\n\r $0-9a-zN]{1,6}",
        Just("#SBATCH ".to_owned()),
        Just("\u{feff}\u{85}\u{2028}\u{1b}".to_owned()),
        any::<char>().prop_map(String::from),
    ];
    let length = text.chars().count();
    (0..=length, 0..12usize, proptest::option::of(token)).prop_map(move |(at, cut, token)| {
        let before: String = text.chars().take(at).collect();
        let after: String = text.chars().skip(at + cut).collect();
        format!("{before}{}{after}", token.unwrap_or_default())
    })
}

fn option() -> impl Strategy<Value = String> {
    let names = [
        "nodes",
        "gpus",
        "gpus-per-node",
        "gres",
        "ntasks",
        "ntasks-per-node",
        "cpus-per-task",
        "mem",
        "mem-per-gpu",
        "time",
        "partition",
        "job-name",
        "exclude",
        "chdir",
        "array",
        "x-y",
    ];
    let value = prop_oneof![
        "[0-9]{1,3}",
        "[0-9a-zA-Z:,.\\[\\]/-]{0,12}",
        any::<String>().prop_map(|text| text.replace(['\n', '\0'], "")),
    ];
    (proptest::sample::select(names.to_vec()), value)
        .prop_map(|(name, value)| format!("#SBATCH --{name}={value}"))
}

/// Lines that a script can hold.
fn body() -> impl Strategy<Value = String> {
    let special = "\t\r\"'\\$:#{}[]-|>&*!% \u{1b}\u{7f}\u{85}\u{a0}\u{2028}\u{feff}";
    let special = special.chars().collect::<Vec<char>>();
    let char = prop_oneof![any::<char>(), proptest::sample::select(special), Just('\n')];
    proptest::collection::vec(char, 0..60)
        .prop_map(|chars| chars.into_iter().filter(|c| *c != '\0').collect())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn any_batch_script_gives_a_spec_or_an_error(text in mutated(SCRIPT)) {
        check(from_slurm(&text));
    }

    #[test]
    fn any_options_give_a_spec_or_an_error(options in proptest::collection::vec(option(), 0..6)) {
        check(slurm(&options.join("\n")));
    }

    #[test]
    fn any_text_gives_a_spec_or_an_error(text in any::<String>()) {
        check(from_slurm(&text));
        check(from_sky(&text));
    }

    #[test]
    fn any_task_gives_a_spec_or_an_error(text in mutated(TASK)) {
        check(from_sky(&text));
    }

    #[test]
    fn a_script_arrives_as_it_was_written(body in body()) {
        let made = from_slurm(&format!("#!/bin/sh\necho\n{body}")).unwrap();
        let lines: Vec<&str> =
            body.split('\n').map(|line| line.strip_suffix('\r').unwrap_or(line)).collect();
        let expected = format!("echo\n{}", lines.join("\n"));
        let spec = spec(&made);
        prop_assert_eq!(script(&spec), format!("{}\n", expected.trim_end()));
    }
}
