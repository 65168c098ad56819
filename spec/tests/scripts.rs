//! Shell scripts that are submitted as they are: what their lines become, and that each problem is
//! shown in its line.

use gangline_spec::{Entrypoint, FromScript, LauncherKind, SpecErrors, is_script, parse_script};
use proptest::prelude::*;

fn read(text: &str) -> Result<FromScript, SpecErrors> {
    parse_script(text, &[])
}

/// Code, line and column, and message.
type Found = (&'static str, Option<(u32, u32)>, String);

/// Every problem of `text`.
fn problems(text: &str) -> Vec<Found> {
    let errors = read(text).expect_err(text).errors;
    errors.into_iter().map(|e| (e.code, e.line.zip(e.column), e.message)).collect()
}

#[test]
fn own_lines_are_fields_and_the_script_is_run() {
    let text = "#!/bin/sh\n#GANGLINE name: a  # why\n#GANGLINE\tresources.nnodes: 2\n\
                # a comment\n#GANGLINE resources: {gpus_per_node: 8}\n#GANGLINE env.A.B: 1e-6\n\
                #GANGLINE launcher.type: command\nset -e\npython train.py\n";
    // The second line of `resources` would replace what the first one says.
    assert_eq!(
        problems(text),
        [
            ("E0107", Some((5, 11)), "`resources` is said in line 3 already".to_owned()),
            ("E0103", Some((6, 11)), "`A.B` cannot be the name of a variable".to_owned()),
        ]
    );
    let text = text.replace("resources: {gpus_per_node: 8}", "resources.gpus_per_node: 8");
    let spec = read(&text.replace("env.A.B", "env.A_B")).unwrap().spec;
    assert_eq!(spec.name.as_deref(), Some("a"));
    assert_eq!((spec.resources.nnodes, spec.resources.gpus_per_node), (2, 8));
    assert_eq!(spec.launcher.kind, LauncherKind::Command);
    assert_eq!(spec.resolved_env().collect::<Vec<_>>(), [("A_B", "1e-6")]);
    let run = "# a comment\nset -e\npython train.py\n";
    assert_eq!(spec.entrypoint, Entrypoint::Script(run.to_owned()));
}

#[test]
fn without_lines_the_defaults_are_those_of_a_spec() {
    let read = read("python train.py\n").unwrap();
    assert_eq!(read.spec.launcher.kind, LauncherKind::Ray);
    assert_eq!((read.spec.resources.nnodes, read.spec.resources.gpus_per_node), (1, 0));
    assert_eq!(read.spec.name, None);
    assert!(read.warnings.is_empty() && read.notes.is_empty());
}

#[test]
fn options_of_the_command_line_go_over_the_script() {
    let overrides = [("resources.nnodes".to_owned(), "5".to_owned())];
    let text = "#SBATCH -N 2 --gpus=16\n#GANGLINE launcher.type: ray\nhostname\n";
    let spec = parse_script(text, &overrides).unwrap().spec;
    assert_eq!((spec.resources.nnodes, spec.resources.gpus_per_node), (5, 8));
    assert_eq!(spec.launcher.kind, LauncherKind::Ray, "Slurm's default gives way");
    let overrides = [("resources.nnodes".to_owned(), "none".to_owned())];
    let error = &parse_script(text, &overrides).unwrap_err().errors[0];
    assert!(error.line.is_none() && error.message.ends_with("(from override `resources.nnodes`)"));
}

#[test]
fn each_problem_stands_in_its_line() {
    let place =
        |text: &str| problems(text).into_iter().map(|(code, at, _)| (code, at)).collect::<Vec<_>>();
    let cases = [
        ("#GANGLINE resources.nnodes: two\nx\n", "E0103", (1, 29)),
        ("#GANGLINE resources: {nnodes: 1, pol: x}\nx\n", "E0101", (1, 34)),
        ("\n#GANGLINE notify.to: x\nx\n", "E0102", (2, 11)),
        ("#GANGLINE preflight: [disk]\nx\n", "E0102", (1, 11)),
        ("#GANGLINE name: [a\nx\n", "E0105", (1, 17)),
        ("#GANGLINE name\nx\n", "E0105", (1, 11)),
        ("#GANGLINE\nx\n", "E0105", (1, 10)),
        ("#GANGLINE a..b: 1\nx\n", "E0103", (1, 11)),
        ("#GANGLINE {name: a, name: b}\nx\n", "E0108", (1, 21)),
        ("#GANGLINE name: a\n#GANGLINE name: b\nx\n", "E0107", (2, 11)),
        ("#GANGLINE name: a\n#GANGLINE name.b: 1\nx\n", "E0107", (2, 11)),
        ("#GANGLINE template: ray\nx\n", "E0107", (1, 11)),
        ("#GANGLINE command: [a]\nx\n", "E0107", (1, 11)),
        ("#GANGLINE kind: serve\nx\n", "E0102", (1, 17)),
        ("x\n#GANGLINE name: a\n", "E0107", (2, 1)),
        ("#SBATCH --gpus=4\n#GANGLINE resources.nnodes: 2\nx\n", "E0107", (2, 11)),
        ("#SBATCH --job-name=a\n#GANGLINE name: b\nx\n", "E0107", (2, 11)),
        ("#SBATCH --nodes=5000\nx\n", "E0103", (1, 9)),
        ("#SBATCH --partition=a,-b\nx\n", "E0103", (1, 9)),
        ("#SBATCH --nodes=2-4 --gpus=8\nx\n", "E0103", (1, 9)),
        ("#SBATCH --exclusive=user\nx\n", "E0102", (1, 9)),
        ("#SBATCH --gres=gpu:1,nvme:2\nx\n", "E0102", (1, 9)),
        ("#SBATCH --chdir=here\nx\n", "E0102", (1, 9)),
        ("#SBATCH --mem=0\nx\n", "E0102", (1, 9)),
        ("#SBATCH -w gpu-1\nx\n", "E0102", (1, 9)),
        ("#SBATCH --array=1-4 --qos=high\nx\n", "E0102", (1, 9)),
        ("#SBATCH --gpus=3 --nodes=2\nx\n", "E0103", (1, 9)),
        ("#GANGLINE name: a\n", "E0104", (1, 1)),
    ];
    for (text, code, at) in cases {
        assert_eq!(place(text)[0], (code, Some(at)), "{text}: {:?}", problems(text));
    }
    let many = "#GANGLINE env.A: 1\n".repeat(300) + "x\n";
    assert_eq!(place(&many), [("E0106", Some((257, 11)))]);
}

#[test]
fn a_variable_that_the_shell_does_not_have_is_shown_in_its_line() {
    let read = read("#!/bin/sh\n#GANGLINE env.TOKEN:\nx\n").unwrap();
    let mut spec = read.spec.clone();
    let mut errors = gangline_spec::resolve_env(&mut spec, |_| None).unwrap_err();
    read.locate(&mut errors);
    assert_eq!(errors.errors[0].line, Some(2), "{errors}");
}

#[test]
fn what_does_not_matter_is_said() {
    let text = "#!/bin/bash\n#SBATCH -J Qwen_SFT -o a.out --mail-type=END -N 2\n\
                srun a $SLURM_NODEID\n#SBATCH --late\n";
    let read = read(text).unwrap();
    assert_eq!(read.spec.name.as_deref(), Some("qwen-sft"));
    let said = |texts: &[String], word: &str| {
        assert!(texts.iter().any(|t| t.contains(word)), "{word}: {texts:?}")
    };
    for note in ["`qwen-sft`", "-o a.out (line 2)", "--mail-type=END (line 2)"] {
        said(&read.notes, note);
    }
    for warning in
        ["on every node at once", "line 3, srun", "SLURM_NODEID: $GANGLINE_NODE_RANK", "line 4"]
    {
        said(&read.warnings, warning);
    }
}

#[test]
fn scripts_and_specs_are_told_apart() {
    for (name, text) in [
        ("a", "#!/bin/sh\nx"),
        ("a.sh", "x"),
        ("stdin", "# a\n\n#SBATCH -N 2\nx"),
        ("stdin", "\u{feff}#GANGLINE name: a\nx"),
    ] {
        assert!(is_script(name, text), "{name} {text}");
    }
    for (name, text) in [
        ("a.yaml", "# a spec\nrun: |\n  #SBATCH -N 2\n  x"),
        ("stdin", "# GANGLINE is here\nrun: x"),
        ("stdin", "#GANGLINES\nrun: x"),
        ("a", ""),
    ] {
        assert!(!is_script(name, text), "{name} {text}");
    }
}

/// Lines of a script, good and bad.
fn line() -> impl Strategy<Value = String> {
    let any_text = any::<String>().prop_map(|text| text.replace('\n', ""));
    let value = "[0-9a-zA-Z:,.\\[\\]{}/# -]{0,16}";
    prop_oneof![
        ("[a-z_.]{0,12}", value).prop_map(|(key, value)| format!("#GANGLINE {key}: {value}")),
        ("resources.(nnodes|gpus_per_node|pool)|name|env.A", value)
            .prop_map(|(key, value)| format!("#GANGLINE {key}: {value}")),
        ("(nodes|gpus|gres|time|partition|x)", value)
            .prop_map(|(key, value)| format!("#SBATCH --{key}={value}")),
        any_text.clone().prop_map(|text| format!("#GANGLINE {text}")),
        any_text,
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn any_script_gives_a_spec_or_errors_in_its_lines(lines in proptest::collection::vec(line(), 0..8)) {
        let text = lines.join("\n");
        match read(&text) {
            Ok(read) => prop_assert!(gangline_spec::parse(&read.spec.canonical_json()).is_ok()),
            Err(errors) => {
                let lines = u32::try_from(text.split('\n').count()).unwrap();
                for error in errors.errors {
                    prop_assert!(error.line.is_some_and(|line| line <= lines), "{error:?} {text}");
                }
            }
        }
    }
}
