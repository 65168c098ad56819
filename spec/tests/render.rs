//! How errors look to a person.

use gangline_spec::{parse, parse_with_overrides, resolve_env};

fn rendered(source: &str) -> String {
    parse(source).unwrap_err().render("grpo.yaml", source)
}

#[test]
fn an_unknown_field() {
    let source = "name: grpo\nresources:\n  nnodes: 2\n  gpu_per_node: 8\nrun: x\n";
    insta::assert_snapshot!(rendered(source), @r#"
    error[E0101]: unknown field `gpu_per_node` in resources
     --> grpo.yaml:4:3
      |
    4 |   gpu_per_node: 8
      |   ^ did you mean `gpus_per_node`?
    "#);
}

#[test]
fn several_errors() {
    let source = "\
name: GRPO
resources:
  nnodes: 0
  memory_per_node: 512
launcher: {driver: rank0}
env:
  GANGLINE_JOB_ID: x
";
    insta::assert_snapshot!(rendered(source), @r#"
    error[E0103]: `name` cannot be `GRPO`
     --> grpo.yaml:1:7
      |
    1 | name: GRPO
      |       ^ lower-case letters, digits and `-`, at most 63, the first a letter or digit

    error[E0103]: `resources.nnodes` must be from 1 to 4096, not 0
     --> grpo.yaml:3:11
      |
    3 |   nnodes: 0
      |           ^

    error[E0103]: `resources.memory_per_node` must be a size such as 512GiB or 64GB, not `512`
     --> grpo.yaml:4:20
      |
    4 |   memory_per_node: 512
      |                    ^ the unit is missing

    error[E0102]: `launcher.driver` is not built yet
     --> grpo.yaml:5:12
      |
    5 | launcher: {driver: rank0}
      |            ^ leave it out: it would do nothing

    error[E0103]: `GANGLINE_JOB_ID` is reserved
     --> grpo.yaml:7:3
      |
    7 |   GANGLINE_JOB_ID: x
      |   ^ Gangline itself sets the variables GANGLINE_*

    error[E0104]: nothing to run: neither `run` nor `command` nor `template` is given
     --> grpo.yaml
      = add `run: |` and a shell script
    "#);
}

#[test]
fn wide_line_numbers_tabs_and_other_alphabets() {
    let source = format!("{}run: x\nlabels: {{\tключ: ~}}\n", "\n".repeat(9));
    insta::assert_snapshot!(rendered(&source), @r#"
    error[E0103]: `labels.ключ` must be a text, not nothing
      --> grpo.yaml:11:17
       |
    11 | labels: {	ключ: ~}
       |          	      ^
    "#);
}

#[test]
fn a_syntax_error() {
    insta::assert_snapshot!(rendered("run: x\r\nenv: {A: 1\r\n"), @r#"
    error[E0105]: not valid YAML: unclosed bracket '{'
     --> grpo.yaml:2:6
      |
    2 | env: {A: 1
      |      ^
    "#);
}

#[test]
fn an_error_without_a_hint() {
    insta::assert_snapshot!(rendered("run: x\nworkdir: here\n"), @r#"
    error[E0103]: `workdir` must be an absolute path, not `here`
     --> grpo.yaml:2:10
      |
    2 | workdir: here
      |          ^
    "#);
}

#[test]
fn control_characters_do_not_reach_the_terminal() {
    let source = "run: x\nna\u{9b}me: 1\n\"\\e[31m\": 1\n";
    let text = rendered(source);
    assert!(text.chars().all(|c| c == '\n' || !c.is_control()), "{text:?}");
}

#[test]
fn one_long_line_is_cut() {
    let source = format!(
        "{{\"env\": {{\"A\": \"{}\"}}, \"nme\": \"x\", \"run\": \"{}\"}}",
        "a".repeat(300),
        "b".repeat(300)
    );
    insta::assert_snapshot!(rendered(&source), @r#"
    error[E0101]: unknown field `nme`
     --> grpo.yaml:1:320
      |
    1 | …aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"}, "nme": "x", "run": "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb…
      |                                          ^ did you mean `name`?
    "#);
}

#[test]
fn errors_without_a_position() {
    let overrides = [("resources.nnodes".to_owned(), "0".to_owned())];
    let errors = parse_with_overrides("run: x", &overrides).unwrap_err();
    insta::assert_snapshot!(errors.render("grpo.yaml", "run: x"), @r#"
    error[E0103]: `resources.nnodes` must be from 1 to 4096, not 0 (from override `resources.nnodes`)
     --> grpo.yaml
    "#);

    let source = "run: x\nenv:\n  HF_TOKEN:\n";
    let mut spec = parse(source).unwrap();
    let mut errors = resolve_env(&mut spec, |_| None).unwrap_err();
    errors.locate(source);
    insta::assert_snapshot!(errors.render("grpo.yaml", source), @r#"
    error[E0104]: `HF_TOKEN` has no value in the spec and is not set in your shell
     --> grpo.yaml:3:11
      |
    3 |   HF_TOKEN:
      |           ^ export HF_TOKEN, or give it a value
    "#);
}

#[test]
fn one_line_form() {
    let errors = parse("nme: a\nresources: {nnodes: 0}\n").unwrap_err();
    insta::assert_snapshot!(errors.to_string(), @r#"line 1 column 1: unknown field `nme` [E0101]; line 2 column 21: `resources.nnodes` must be from 1 to 4096, not 0 [E0103]; nothing to run: neither `run` nor `command` nor `template` is given [E0104]"#);
}
