//! The fields that say which nodes a gang gets: how many, of which pools, with which labels.

use gangline_spec::{Code, JobSpec, Topology, parse};

fn spec(resources: &str) -> JobSpec {
    parse(&format!("run: x\nresources: {{{resources}}}\n")).unwrap()
}

#[test]
fn a_number_of_nodes_or_a_range() {
    for (text, least, most, canonical) in [
        ("nnodes: 4", 4, None, "4"),
        ("nnodes: 2..4", 2, Some(4), "2..4"),
        ("nnodes: '2..4'", 2, Some(4), "2..4"),
        ("nnodes: 2:4", 2, Some(4), "2..4"),
        ("nnodes: '2:4'", 2, Some(4), "2..4"),
        ("nnodes: 3..3", 3, None, "3"),
    ] {
        let spec = spec(text);
        assert_eq!((spec.resources.nnodes, spec.resources.nnodes_max), (least, most), "{text}");
        assert_eq!(spec.resources.nnodes_text(), canonical, "{text}");
        assert_eq!(parse(&spec.canonical_json()).unwrap(), spec, "{text}");
        assert_eq!(parse(&spec.to_yaml()).unwrap(), spec, "{text}");
    }
    assert_eq!(spec("nnodes: 2..4, gpus_per_node: 8").resources.total_gpus(), Some(32));
}

#[test]
fn a_cluster_may_be_elastic_and_a_job_on_one_has_one_size() {
    let cluster = parse("kind: cluster\nresources: {nnodes: 2..6}\n").unwrap();
    assert_eq!((cluster.resources.nnodes, cluster.resources.nnodes_max), (2, Some(6)));
    let on = |resources: &str| {
        let text = format!("cluster: dev\nrun: x\nresources: {{{resources}}}\n");
        parse(&text).unwrap_err().errors
    };
    for (resources, pointer) in [
        ("nnodes: 2..6", "/resources/nnodes"),
        ("labels: {rack: r1}", "/resources/labels"),
        ("topology: rack", "/resources/topology"),
        ("exclusive: false", "/resources/exclusive"),
        ("pool: [a, b]", "/resources/pool"),
    ] {
        let errors = on(resources);
        assert_eq!(errors.len(), 1, "{resources}: {errors:?}");
        assert_eq!((errors[0].code, errors[0].pointer.as_str()), (Code::CONFLICT, pointer));
        assert_eq!(errors[0].line, Some(3), "{resources}");
        assert!(errors[0].hint.is_some());
    }
}

#[test]
fn pools_labels_whole_nodes_and_topology() {
    let all = spec("pool: [a, b], labels: {rail: 1, rack: r12}, exclusive: false, topology: rack");
    let resources = &all.resources;
    assert_eq!(resources.pools, ["a", "b"]);
    let labels = resources.labels.iter().map(|(key, value)| (key.as_str(), value.as_str()));
    assert_eq!(labels.collect::<Vec<_>>(), [("rack", "r12"), ("rail", "1")]);
    assert_eq!((resources.exclusive, resources.topology), (Some(false), Some(Topology::Rack)));
    assert_eq!(parse(&all.canonical_json()).unwrap(), all);

    let plain = spec("pool: a, topology: none");
    assert_eq!(
        (plain.resources.pools.as_slice(), plain.resources.topology),
        (&["a".to_owned()][..], None)
    );
    let text = plain.canonical_json();
    for absent in ["labels", "exclusive", "topology"] {
        assert!(!text.contains(absent), "{text}");
    }
    for (index, topology) in Topology::ALL.into_iter().enumerate() {
        assert_eq!(topology.word(), Topology::WORDS[index + 1]);
        let spec = spec(&format!("topology: {}", topology.word()));
        assert_eq!(spec.resources.topology, Some(topology));
    }
}

#[test]
fn a_spec_made_by_a_program_has_its_most_above_its_least() {
    let mut spec = JobSpec::for_command(vec!["a".to_owned()]);
    (spec.resources.nnodes, spec.resources.nnodes_max) = (4, Some(2));
    let errors = spec.validate().unwrap_err().errors;
    assert_eq!(errors[0].message, "`resources.nnodes` must be from 4 to 4096, not 2");
}
