//! What people write and programs answer: specs, foreign scripts, traces, configurations, event
//! streams.

use std::io::Write;
use std::path::Path;

use flate2::Compression;
use flate2::write::GzEncoder;
use gangline::sse::SseParser;
use gangline_coordinator::config::Config;
use gangline_simulate::trace;
use gangline_spec::{
    Imported, SpecErrors, from_sky, from_slurm, parse, parse_resolved, parse_script,
    parse_with_overrides,
};

use super::{Memory, Target, Verdict, again, bytes_of, of_text, taken};

/// A text is a tree with positions before it is a spec, and an error may quote all of it.
const SPEC: Memory = Memory { fixed: 1 << 20, per_byte: 4096 };
const YAML: &[&[u8]] = &[
    b"<<: ",
    b"&a ",
    b"*a",
    b"!!binary ",
    b"---\n",
    b"[[[[[[[[",
    b"{a: ",
    b"\xef\xbb\xbf",
    b"? ",
    b"| \n",
    b"1e999",
    b"0x",
    b"\"\\u",
    b"\xc2\x85",
    b"~",
    b"$GANGLINE_NAME",
    b"365d",
    b"nnodes: ",
];

const SPECS: [&str; 5] = [
    include_str!("../../../../examples/hello.yaml"),
    include_str!("../../../../examples/ppo_cartpole.yaml"),
    "{\"name\": \"j\", \"resources\": {\"nnodes\": 1}, \"launcher\": {\"type\": \"command\"}, \
     \"command\": [\"a\", \"b\"]}",
    "name: x\nlabels: {owner: alice, ab: 'c'}\nresources:\n  nnodes: 2..4\n  gpus_per_node: 8\n  \
     memory_per_node: 512GiB\nlauncher: {type: ray, start_timeout: 5m}\nenv:\n  A: &a 1.0e-6\n  B: \
     *a\nrun: |\n  echo \"$HOME\"\ncheckpoint:\n  dir: /ckpt/$GANGLINE_NAME\n",
    "name: q\nresources: {nnodes: 1}\nqueue: {after: [j-1], max_wait: 3d12h}\nrun: \"true\"\n",
];

pub fn targets(scratch: &Path) -> anyhow::Result<Vec<Target>> {
    let specs = Target {
        name: "job spec, YAML and JSON",
        seeds: bytes_of(&SPECS),
        words: YAML,
        limit: 16 << 10,
        memory: SPEC,
        feed: of_text(|text| {
            let shown = |errors: SpecErrors| errors.render("x.yaml", text);
            let _ = parse(text).map_err(shown);
            let overrides = [("resources.nnodes", "3"), ("env.A", text)];
            let overrides = overrides.map(|(path, value)| (path.to_owned(), value.to_owned()));
            let _ = parse_with_overrides(text, &overrides);
            match parse_resolved(text) {
                Err(_) => Verdict::Refused,
                Ok(spec) => again(&spec, parse_resolved(&spec.canonical_json())),
            }
        }),
    };
    let slurm = "#!/bin/bash\n#SBATCH --job-name=Qwen_SFT\n#SBATCH -N 2\n#SBATCH --gres=gpu:h100:8\n\
                 #SBATCH --mem=512G\n#SBATCH --time=2-12:00\n#SBATCH -x gpu-[01-02]\n#GANGLINE \
                 --grace-period=30s\nsrun torchrun train.py\n";
    let sky = "name: My Task\nnum_nodes: 2\nresources:\n  accelerators: {H100: 8}\n  cpus: 32+\nenvs:\n  \
               LR: 1e-6\nfile_mounts:\n  /data: s3://bucket/data\nrun: |\n  python train.py\n";
    let scripts = Target {
        name: "Slurm script",
        seeds: bytes_of(&[slurm, "#!/bin/bash\n#SBATCH -N1\ntrue\n"]),
        words: &[b"#SBATCH ", b"#GANGLINE ", b"--", b"[1-4294967295]", b",", b"%", b"\\\n", b"'"],
        limit: 16 << 10,
        memory: SPEC,
        feed: of_text(|text| {
            let _ = parse_script(text, &[]);
            imported(from_slurm(text))
        }),
    };
    let tasks = Target {
        name: "SkyPilot task",
        seeds: bytes_of(&[sky]),
        words: YAML,
        limit: 16 << 10,
        memory: SPEC,
        feed: of_text(|text| imported(from_sky(text))),
    };
    Ok(vec![specs, scripts, tasks, traces()?, configuration(scratch), events()])
}

/// What comes of a foreign file is a spec.
fn imported(made: Result<Imported, SpecErrors>) -> Verdict {
    match made {
        Err(_) => Verdict::Refused,
        Ok(made) => match parse(&made.text) {
            Ok(_) => Verdict::Taken,
            Err(errors) => Verdict::Broken(format!("{errors}\n{}", made.text)),
        },
    }
}

fn traces() -> anyhow::Result<Target> {
    let plain = "submit_s,duration_s,num_gpus,vc,user\n0,10,1,a,b\n5.5,1e3,8,\"c,d\",e\n";
    let other = "num_gpu,submit_ms,duration_ms\n2,1000,60000\n0,1,1\n";
    let mut packed = GzEncoder::new(Vec::new(), Compression::default());
    packed.write_all(plain.as_bytes())?;
    let mut seeds = bytes_of(&[plain, other]);
    seeds.push(packed.finish()?);
    Ok(Target {
        name: "CSV trace, plain and gzip",
        seeds,
        words: &[
            b",",
            b"\"",
            b"\n",
            b"1e308",
            b"-1",
            b"NaN",
            b"inf",
            b"\x1f\x8b\x08",
            b"submit_ms",
        ],
        limit: 32 << 10,
        // A line of 64 KiB several times, the buffers of gzip, and jobs larger than their lines.
        memory: Memory { fixed: 1 << 20, per_byte: 64 },
        feed: Box::new(|input| taken(&trace::read("t.csv", input))),
    })
}

fn configuration(scratch: &Path) -> Target {
    let path = scratch.join("coordinator.toml");
    Target {
        name: "coordinator's configuration",
        seeds: bytes_of(&[include_str!("../../../../packaging/coordinator.toml"), ""]),
        words: &[b"= 1e400", b"[[", b"\"\"\"", b"http = \"", b"= -1", b"\xef\xbb\xbf"],
        limit: 16 << 10,
        memory: Memory { fixed: 512 << 10, per_byte: 1024 },
        feed: Box::new(move |input| match std::fs::write(&path, input) {
            Ok(()) => match Config::load(Some(&path)) {
                Ok(config) => taken(&config.validate()),
                Err(_) => Verdict::Refused,
            },
            Err(error) => Verdict::Broken(error.to_string()),
        }),
    }
}

fn events() -> Target {
    Target {
        name: "event stream",
        seeds: bytes_of(&["event: log\nid: 12\ndata: {\"a\":1}\n\ndata:x\rdata: y\r\r: c\n\n"]),
        words: &[b"data:", b"event:", b"\n\n", b"\r\n", b"\r", b": "],
        limit: 32 << 10,
        memory: Memory { fixed: 64 << 10, per_byte: 64 },
        // However the bytes are cut, the events are the same.
        feed: Box::new(|input| {
            let whole = SseParser::default().push(input);
            let mut parser = SseParser::default();
            let pieces: Result<Vec<_>, _> =
                input.chunks(7).map(|piece| parser.push(piece)).collect();
            match again(&whole, Ok::<_, ()>(pieces.map(|pieces| pieces.concat()))) {
                Verdict::Taken => taken(&whole),
                other => other,
            }
        }),
    }
}
