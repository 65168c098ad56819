//! The environment that trackers need.

use gangline_spec::{TrackingPlace, parse};

const PLACE: TrackingPlace<'_> = TrackingPlace {
    job_id: "j-7f3k2",
    name: "qwen",
    project: "rlhf",
    directory: Some("/shared/jobs/j-7f3k2/"),
    wandb_reachable: true,
};

fn environment(tracking: &str, place: &TrackingPlace<'_>) -> Vec<(&'static str, String)> {
    let spec = parse(&format!("run: x\ntracking: {tracking}\n")).unwrap();
    spec.tracking.environment(place).into_iter().collect()
}

fn pairs(pairs: &[(&'static str, &str)]) -> Vec<(&'static str, String)> {
    pairs.iter().map(|(name, value)| (*name, (*value).to_owned())).collect()
}

#[test]
fn without_trackers_there_is_nothing() {
    assert_eq!(environment("{}", &PLACE), []);
    let spec = parse("run: x\ntracking: {tensorboard: true, wandb: {}}\n").unwrap();
    assert_eq!(spec.tracking.directories(), ["wandb", "tensorboard"]);
}

#[test]
fn all_trackers() {
    let all = "{wandb: {project: rl, mode: online}, tensorboard: true, \
               mlflow: {uri: 'http://m:5000', experiment: e}}";
    assert_eq!(
        environment(all, &PLACE),
        pairs(&[
            ("MLFLOW_EXPERIMENT_NAME", "e"),
            ("MLFLOW_RUN_CONTEXT", r#"{"gangline.job_id":"j-7f3k2","mlflow.runName":"j-7f3k2"}"#),
            ("MLFLOW_TRACKING_URI", "http://m:5000"),
            ("TENSORBOARD_DIR", "/shared/jobs/j-7f3k2/tensorboard"),
            ("WANDB_DIR", "/shared/jobs/j-7f3k2"),
            ("WANDB_MODE", "online"),
            ("WANDB_NAME", "qwen"),
            ("WANDB_PROJECT", "rl"),
            ("WANDB_RESUME", "allow"),
            ("WANDB_RUN_ID", "j-7f3k2"),
        ])
    );
}

#[test]
fn the_job_names_the_run_where_the_spec_does_not() {
    let env = environment("{wandb: {}, mlflow: {uri: u}}", &PLACE);
    for (name, value) in
        [("WANDB_PROJECT", "rlhf"), ("WANDB_RUN_ID", "j-7f3k2"), ("MLFLOW_EXPERIMENT_NAME", "rlhf")]
    {
        assert!(env.contains(&(name, value.to_owned())), "{name}: {env:?}");
    }
}

#[test]
fn without_a_directory_the_rest_is_told() {
    let all = "{wandb: {}, tensorboard: true, mlflow: {uri: u}}";
    let env = environment(all, &TrackingPlace { directory: None, ..PLACE });
    let names: Vec<&str> = env.iter().map(|(name, _)| *name).collect();
    assert!(names.contains(&"WANDB_RUN_ID") && names.contains(&"MLFLOW_TRACKING_URI"));
    assert!(!names.contains(&"WANDB_DIR") && !names.contains(&"TENSORBOARD_DIR"));
}

#[test]
fn auto_follows_the_node_and_the_other_modes_do_not() {
    let mode = |mode: &str, wandb_reachable| {
        let place = TrackingPlace { wandb_reachable, ..PLACE };
        let env = environment(&format!("{{wandb: {{mode: {mode}}}}}"), &place);
        env.into_iter().find(|(name, _)| *name == "WANDB_MODE").map(|(_, value)| value)
    };
    for (asked, online, cut) in [
        ("auto", "online", "offline"),
        ("online", "online", "online"),
        ("offline", "offline", "offline"),
        ("disabled", "disabled", "disabled"),
    ] {
        assert_eq!(mode(asked, true).as_deref(), Some(online));
        assert_eq!(mode(asked, false).as_deref(), Some(cut));
    }
}

#[test]
fn wrong_trackers_are_refused() {
    let cases = [
        ("{wandb: {mode: on}}", "/tracking/wandb/mode"),
        ("{wandb: {projct: x}}", "/tracking/wandb/projct"),
        ("{wandb: true}", "/tracking/wandb"),
        ("{wandb: {project: ''}}", "/tracking/wandb/project"),
        ("{tensorboard: yes}", "/tracking/tensorboard"),
        ("{mlflow: {experiment: x}}", "/tracking/mlflow/uri"),
        ("{mlflow: {uri: ''}}", "/tracking/mlflow/uri"),
    ];
    for (tracking, pointer) in cases {
        let errors = parse(&format!("run: x\ntracking: {tracking}\n")).expect_err(tracking);
        assert_eq!(errors.errors.len(), 1, "{tracking}: {errors}");
        assert_eq!(errors.errors[0].pointer, pointer);
    }
}
