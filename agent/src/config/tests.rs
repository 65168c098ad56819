//! Defaults, precedence, and what is said about wrong values.

use super::*;

fn from_text(text: &str) -> Result<Config, ConfigErrors> {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    Config::load(Some(file.path()), toml::Table::new())
}

#[test]
fn the_packaged_file_says_the_defaults() {
    assert_eq!(from_text(DEFAULT_FILE).unwrap(), Config::default());
    assert_eq!(Config::load(None, toml::Table::new()).unwrap(), Config::default());
}

#[test]
fn every_commented_key_of_the_packaged_file_is_a_key() {
    let everything: String = DEFAULT_FILE
        .lines()
        .map(|line| match line.strip_prefix("# ") {
            Some(rest) if rest.split_once(" = ").is_some_and(|(k, _)| is_word(k, "_")) => rest,
            _ => line,
        })
        .map(|line| format!("{line}\n"))
        .collect();
    let config = from_text(&everything).unwrap();
    assert_eq!(config.coordinator.unwrap().to_string(), "gangline.example:8265");
    assert_eq!(config.labels["rack"], "b12");
    assert_eq!(config.ray_env.len(), 1);
    assert!(config.shared_root.is_some() && config.object_store_bytes.is_some());
    assert!(config.name.is_some() && config.pool.is_some() && config.nvml_library.is_some());
}

#[test]
fn flags_go_before_the_file() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let text = "state_dir = \"/file\"\ntemp_root = \"/t\"\n[labels]\na = \"1\"\nb = \"2\"\n";
    std::fs::write(file.path(), text).unwrap();
    let flags = "state_dir = \"/flag\"\n[labels]\nb = \"3\"\n".parse().unwrap();
    let config = Config::load(Some(file.path()), flags).unwrap();
    assert_eq!(config.state_dir, Path::new("/flag"));
    assert_eq!(config.temp_root, Path::new("/t"));
    let labels: Vec<_> = config.labels.into_iter().collect();
    assert_eq!(labels, [("a".into(), "1".into()), ("b".into(), "3".into())]);
}

#[test]
fn all_bad_values_are_named_with_their_place() {
    let text = r#"
        coordinator = "host:99999"
        state_dir = "relative"
        temp_root = "/a/very/long/path/that/leaves/no/room/for/sockets"
        name = "a b"
        roles = ["worker", "boss"]
        node_address = "0.0.0.0"
        ports = "100-200"
        object_store_bytes = -1
        on_sigterm = "panic"
        stat_dir = "/x"
        [labels]
        "bad name" = "x"
        [ray_env]
        LD_PRELOAD = "/evil.so"
    "#;
    let ConfigErrors(wrong) = from_text(text).unwrap_err();
    assert_eq!(wrong.len(), 12, "{wrong:#?}");
    for key in [
        "coordinator",
        "state_dir",
        "temp_root",
        "name",
        "roles",
        "node_address",
        "ports",
        "object_store_bytes",
        "on_sigterm",
        "stat_dir is not a key",
        "labels",
        "ray_env",
    ] {
        assert!(wrong.iter().any(|line| line.contains(key)), "{key}: {wrong:#?}");
    }
    let flags = "roles = []".parse().unwrap();
    let ConfigErrors(wrong) = Config::load(None, flags).unwrap_err();
    assert!(wrong[0].starts_with("--role "), "{wrong:?}");
}

#[test]
fn broken_files_name_the_file() {
    let ConfigErrors(wrong) = from_text("state_dir = ").unwrap_err();
    assert!(wrong[0].contains("/"), "{wrong:?}");
    let missing = Config::load(Some(Path::new("/no/such.toml")), toml::Table::new());
    assert!(missing.unwrap_err().0[0].starts_with("/no/such.toml: "));
}

#[test]
fn addresses_of_coordinators() {
    for (text, shown) in [
        ("quic://gangline.lan:8265", "gangline.lan:8265"),
        ("127.0.0.1:9", "127.0.0.1:9"),
        ("host", "host:8265"),
        ("quic://[::1]:7", "[::1]:7"),
        ("[::1]", "[::1]:8265"),
    ] {
        assert_eq!(CoordinatorAddress::parse(text).unwrap().to_string(), shown);
    }
    for text in ["", "quic://", "host:", "host:0", "host:70000", "a b:1", "http://x:1", "::1"] {
        assert_eq!(CoordinatorAddress::parse(text), None, "{text}");
    }
}

#[test]
fn port_ranges() {
    let block = |base, size| Ok(PortBlock { base, size });
    assert_eq!(parse_ports("20000-32767"), block(20000, 12768));
    assert_eq!(parse_ports("65280-65535"), block(65280, 256));
    for text in ["", "1-2-3", "20000", "30000-20000", "20000-20254", "1000-3000", "2000-70000"] {
        assert!(parse_ports(text).is_err(), "{text}");
    }
}

#[test]
fn rules_on_trial_and_devices_that_are_left_out_are_lists_of_known_words() {
    let config =
        from_text("health_trial = [\"port-broken\"]\nrdma_exclude = [\"mlx5_0\", \"mlx5_9\"]")
            .unwrap();
    assert_eq!(config.health_trial, [gangline_health::Rule::PortBroken].into());
    assert_eq!(config.rdma_exclude.len(), 2);
    for (text, said) in [
        ("health_trial = [\"xid\"]", "\"xid\" is not known"),
        ("health_trial = \"xid-fatal\"", "is not a list"),
        ("health_trial = [\"pids\"]\nhealth_trusted = [\"pids\"]", "both name \"pids\""),
        ("rdma_exclude = [\"mlx5 0\"]", "is not known"),
    ] {
        let error = from_text(text).unwrap_err().to_string();
        assert!(error.contains(said), "{error}");
    }
}
