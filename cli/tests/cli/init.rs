//! What editors need: the schema, and the lines that name it.

use serde_json::json;

use crate::answers::unexpected;
use crate::server::{Server, command, finish, json as answer, problem, run};

#[test]
fn the_schema_is_the_coordinators_for_who_is_logged_in() {
    let served = json!({"title": "with the names of this fleet"});
    let body = served.clone();
    let server = Server::start(move |asked, _| match asked.line().as_str() {
        "GET /schema/job.v1.json" => answer(200, &body),
        _ => unexpected(),
    });
    let ended = run(&server, &["schema", "job"]);
    assert_eq!((ended.code, ended.stderr.as_str()), (0, ""));
    assert_eq!(ended.json(), served);
    assert_eq!(server.asked()[0].headers["authorization"], "Bearer gla_test");

    // Without a token the program's own will do.
    let address = format!("http://{}", server.address);
    let stranger = command(&address, &["schema", "job"]).env("GANGLINE_TOKEN", "").spawn();
    let ended = finish(stranger.unwrap());
    assert_eq!(ended.json()["title"], "Gangline job spec");
    assert_eq!(ended.stderr, "not logged in: the schema names no pools and GPU models\n");
    assert_eq!(server.asked().len(), 1);
}

#[test]
fn a_schema_that_is_refused_is_an_error() {
    let server = Server::start(|_, _| problem(401, "E0301", "Not logged in"));
    let ended = run(&server, &["schema", "job"]);
    assert_eq!((ended.code, ended.stdout.as_str()), (4, ""));
}

#[test]
fn a_new_spec_names_the_schema() {
    let server = Server::start(|_, _| unexpected());
    let address = format!("http://{}", server.address);
    let url = format!("{address}/schema/job.v1.json");
    let lines = |schema: &str| {
        format!("# yaml-language-server: $schema={schema}\n# $schema: {schema}\n# A Gangline job.")
    };
    let ended = run(&server, &["init", "--file", "-"]);
    assert!(ended.stdout.starts_with(&lines(&url)), "{}", ended.stdout);
    assert!(server.asked().is_empty(), "writing a file asks nobody");

    let folder = tempfile::tempdir().unwrap();
    let init = || {
        let _ = std::fs::remove_file(folder.path().join("a.yaml"));
        let mut init = command(&address, &["init", "--file", "a.yaml"]);
        finish(init.env("GANGLINE_TOKEN", "").current_dir(folder.path()).spawn().unwrap())
    };
    let hint = "for completion in an editor: mkdir -p .gangline && gangline schema job > \
                .gangline/job.v1.json\n";
    assert!(init().stderr.ends_with(hint));
    let text = std::fs::read_to_string(folder.path().join("a.yaml")).unwrap();
    assert!(text.starts_with(&lines(".gangline/job.v1.json")), "{text}");
    std::fs::create_dir(folder.path().join(".gangline")).unwrap();
    std::fs::write(folder.path().join(".gangline/job.v1.json"), "{}").unwrap();
    assert!(!init().stderr.contains("completion"));
}
