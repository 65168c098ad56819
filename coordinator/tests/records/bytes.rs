//! The bytes of every stored record, field by field: the specification of the store.
//!
//! Each constant is one whole record: layout (u8), CRC-32 of the rest (u32, little endian), body.
//! The part of a line after `;` is a comment, and blanks do not count. In a body, an integer below
//! 251 is one byte, a larger one is fb + u16, fc + u32 or fd + u64, little endian; a signed one is
//! zigzag first; a text or a list has its count first; an enum has its variant's index first; an
//! absent option is 00, a present one 01 and its value; a hash is its 32 bytes.

pub const META: &str = r#"
    02 11962d25 ; layout 2, checksum
    02 ; store_version 2
    05 302e312e30 ; written_by `0.1.0`
    03 ; era 3
    08 63376b713978326d ; cluster `c7kq9x2m`
    07 623030372d3164 ; boot_id `b007-1d`"#;

/// Of the first layout of the store.
pub const META_V1: &str = r#"
    01 c38ac38c ; layout 1, checksum
    01 ; store_version 1
    03 ; era 3
    08 63376b713978326d ; cluster `c7kq9x2m`
    07 623030372d3164 ; boot_id `b007-1d`"#;

pub const JOB_WAITING: &str = r#"
    01 a0db47cc ; layout 1, checksum
    03 6a2d31 ; id `j-1`
    05 616c696365 ; user `alice`
    04 726c6866 ; project `rlhf`
    9c ; spec_json: 156 bytes
    7b22636f6d6d616e64223a5b2274727565225d2c22677261 ; `{"command":["true"],"gra`
    63655f706572696f64223a22333073222c226b696e64223a ; `ce_period":"30s","kind":`
    226a6f62222c226c61756e63686572223a7b227374617274 ; `"job","launcher":{"start`
    5f74696d656f7574223a22356d222c2274797065223a2272 ; `_timeout":"5m","type":"r`
    6179227d2c227265736f7572636573223a7b22677075735f ; `ay"},"resources":{"gpus_`
    7065725f6e6f6465223a302c226e6e6f646573223a317d2c ; `per_node":0,"nnodes":1},`
    2276657273696f6e223a317d ; `"version":1}`
    00 ; submit_command ``
    00 ; no job_directory
    00 ; no checkpoint_directory
    00 ; state Pending
    03 672d31 ; gang `g-1`
    00 ; no cluster
    a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5 ; token_seed
    a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5 ; and its second half
    00 ; attempts 0
    00 ; sequence 0
    fc40420f00 fd7b505c18a3010000 ; submitted: boot 1000000, wall 1800000000123
    00 ; no started
    00 ; no ended
    00 ; reason ``
    00 ; no outcome
    00 ; history: 0
    00 00 00 ; changes: no priority, no timeout, no excluded nodes
    00 ; not held
    00 ; waits_for: 0
    00 ; no eligible
    00 ; no running
    00 00 00 ; recovery: counted 0, stuck 0, no rest"#;

pub const JOB_HELD: &str = r#"
    01 6a26b024 ; layout 1, checksum
    03 6a2d32 ; id `j-2`
    05 616c696365 ; user `alice`
    04 726c6866 ; project `rlhf`
    9c ; spec_json: 156 bytes
    7b22636f6d6d616e64223a5b2274727565225d2c22677261 ; `{"command":["true"],"gra`
    63655f706572696f64223a22333073222c226b696e64223a ; `ce_period":"30s","kind":`
    226a6f62222c226c61756e63686572223a7b227374617274 ; `"job","launcher":{"start`
    5f74696d656f7574223a22356d222c2274797065223a2272 ; `_timeout":"5m","type":"r`
    6179227d2c227265736f7572636573223a7b22677075735f ; `ay"},"resources":{"gpus_`
    7065725f6e6f6465223a302c226e6e6f646573223a317d2c ; `per_node":0,"nnodes":1},`
    2276657273696f6e223a317d ; `"version":1}`
    00 ; submit_command ``
    00 ; no job_directory
    00 ; no checkpoint_directory
    00 ; state Pending
    03 672d31 ; gang `g-1`
    00 ; no cluster
    a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5 ; token_seed
    a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5 ; and its second half
    00 ; attempts 0
    00 ; sequence 0
    fc40420f00 fd7b505c18a3010000 ; submitted: boot 1000000, wall 1800000000123
    00 ; no started
    00 ; no ended
    00 ; reason ``
    01 06 0b 612072616e6b2064696564 ; outcome Retried `a rank died`
    00 ; history: 0
    01 5a ; changes: priority 90
    01 fc00dd6d00 ; timeout_ms 7200000
    01 08 6770752d30323331 ; exclude_nodes: 1: `gpu-0231`
    01 03 626f62 0a 77726f6e672064617461 fc34440f00 fd6f525c18a3010000 ; held by `bob`: `wrong data`, since: boot 1000500, wall 1800000000623
    02 03 6a2d30 08 746f6b656e697a65 ; waits_for: 2: `j-0`, `tokenize`
    01 fb0401 fdc33e5d18a3010000 fb2c01 ; eligible, since: boot 260, wall 1800000061123; before 300 ms
    01 fc40420f00 fd7b505c18a3010000 00 ; running, since: boot 1000000, wall 1800000000123; before 0 ms
    01 02 ; recovery: counted 1, stuck 2
    01 fb3075 fc34440f00 fd6f525c18a3010000 05 ; rest 30000 ms, since: boot 1000500, wall 1800000000623; before 5 ms"#;

pub const JOB_STOPPING: &str = r#"
    01 4da0e9d9 ; layout 1, checksum
    07 6a2d3766336b32 ; id `j-7f3k2`
    05 616c696365 ; user `alice`
    04 726c6866 ; project `rlhf`
    fb1e01 ; spec_json: 286 bytes
    7b22636f6d6d616e64223a5b22707974686f6e222c227472 ; `{"command":["python","tr`
    61696e2e7079225d2c22656e76223a7b224c52223a223165 ; `ain.py"],"env":{"LR":"1e`
    2d36227d2c2267726163655f706572696f64223a22333073 ; `-6"},"grace_period":"30s`
    222c226b696e64223a226a6f62222c226c61756e63686572 ; `","kind":"job","launcher`
    223a7b2273746172745f74696d656f7574223a22356d222c ; `":{"start_timeout":"5m",`
    2274797065223a22636f6d6d616e64227d2c226e616d6522 ; `"type":"command"},"name"`
    3a2270706f222c227265736f7572636573223a7b22637075 ; `:"ppo","resources":{"cpu`
    735f7065725f6e6f6465223a312e352c22677075735f7065 ; `s_per_node":1.5,"gpus_pe`
    725f6e6f6465223a382c226d656d6f72795f7065725f6e6f ; `r_node":8,"memory_per_no`
    6465223a223634476942222c226e6e6f646573223a322c22 ; `de":"64GiB","nnodes":2,"`
    706f6f6c223a22683130302d61227d2c2276657273696f6e ; `pool":"h100-a"},"version`
    223a312c22776f726b646972223a222f636f6465227d ; `":1,"workdir":"/code"}`
    18 67616e676c696e65207375626d69742070706f2e79616d6c ; submit_command `gangline submit ppo.yaml`
    01 18 2f6d6e742f7368617265642f6a6f62732f6a2d3766336b32 ; job_directory `/mnt/shared/jobs/j-7f3k2`
    01 0d 2f6d6e742f7368617265642f63 ; checkpoint_directory `/mnt/shared/c`
    03 ; state Stopping
    06 672d34627137 ; gang `g-4bq7`
    01 05 6a2d646576 ; cluster `j-dev`
    a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5 ; token_seed
    a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5 ; and its second half
    02 ; attempts 2
    fb2c01 ; sequence 300
    fc40420f00 fd7b505c18a3010000 ; submitted: boot 1000000, wall 1800000000123
    01 fc34440f00 fd6f525c18a3010000 ; started: boot 1000500, wall 1800000000623
    01 fb0401 fdc33e5d18a3010000 ; ended: boot 260, wall 1800000061123
    0e 73746f7070656420627920626f62 ; reason `stopped by bob`
    01 02 03 626f62 0a 77726f6e672064617461 ; outcome Cancelled `bob`, `wrong data`
    02 ; history: 2
    fd7b505c18a3010000 07 50454e44494e47 05 616c696365 09 7375626d6974746564 ; - at 1800000000123 `PENDING` by `alice`: `submitted`
    fd6f525c18a3010000 08 5354415254494e47 0b 636f6f7264696e61746f72 06 706c61636564 ; - at 1800000000623 `STARTING` by `coordinator`: `placed`
    00 00 00 ; changes: no priority, no timeout, no excluded nodes
    00 ; not held
    00 ; waits_for: 0
    00 ; no eligible
    00 ; no running
    00 00 00 ; recovery: counted 0, stuck 0, no rest"#;

pub const ATTEMPT_RUNNING: &str = r#"
    01 15e45f6c ; layout 1, checksum
    07 6a2d3766336b32 ; job `j-7f3k2`
    01 ; number 1
    06 672d34627137 ; gang `g-4bq7`
    03 01 ; epoch 3.1
    fc34440f00 fd6f525c18a3010000 ; started: boot 1000500, wall 1800000000623
    00 ; no ended
    00 ; no outcome
    00 ; no ray
    01 02 ; guest, shares: 2
    00 04 fb401f ; - rank 0, GPUs 4, CPUs 8000 thousandths
    fb2c01 00 fa ; - rank 300, GPUs 0, CPUs 250 thousandths
    00 ; phase Preparing
    fc34440f00 fd6f525c18a3010000 ; since: boot 1000500, wall 1800000000623
    00 ; done: 0
    00 ; no log_bytes
    00 ; no verdict"#;

pub const ATTEMPT_SUCCEEDED: &str = r#"
    01 638e11f5 ; layout 1, checksum
    07 6a2d3766336b32 ; job `j-7f3k2`
    02 ; number 2
    06 672d34627137 ; gang `g-4bq7`
    03 02 ; epoch 3.2
    fc34440f00 fd6f525c18a3010000 ; started: boot 1000500, wall 1800000000623
    01 fb0401 fdc33e5d18a3010000 ; ended: boot 260, wall 1800000061123
    01 00 ; outcome Succeeded
    01 06 322e35362e30 ; ray: version `2.56.0`
    09 73657373696f6e5f31 ; session `session_1`
    02 ; nodes: 2
    00 04 66303064 09 31302e32302e302e31 01 00 ; - Head, `f00d` at `10.20.0.1`, alive, ``
    01 fb2c01 04 62656566 09 31302e32302e302e32 00 04 6c6f7374 ; - Rank 300, `beef` at `10.20.0.2`, dead, `lost`
    01 04 62656566 01 01 fb2c01 01 09 31302e32302e302e32 ; driver on `beef`, Rank 300, `10.20.0.2`
    01 02 ; guest, shares: 2
    00 04 fb401f ; - rank 0, GPUs 4, CPUs 8000 thousandths
    fb2c01 00 fa ; - rank 300, GPUs 0, CPUs 250 thousandths
    04 ; phase Over
    fc34440f00 fd6f525c18a3010000 ; since: boot 1000500, wall 1800000000623
    00 ; done: 0
    01 fc00000100 ; log_bytes 65536
    00 ; no verdict"#;

pub const ATTEMPT_FAILED: &str = r#"
    01 62250076 ; layout 1, checksum
    07 6a2d3766336b32 ; job `j-7f3k2`
    03 ; number 3
    06 672d34627137 ; gang `g-4bq7`
    03 03 ; epoch 3.3
    fc34440f00 fd6f525c18a3010000 ; started: boot 1000500, wall 1800000000623
    01 fb0401 fdc33e5d18a3010000 ; ended: boot 260, wall 1800000061123
    01 01 12 657869746564207769746820636f64652031 ; outcome Failed `exited with code 1`
    01 06 322e35362e30 ; ray: version `2.56.0`
    09 73657373696f6e5f32 ; session `session_2`
    00 ; nodes: 0
    01 04 66303064 00 00 ; driver on `f00d`, no member, no address
    01 02 ; guest, shares: 2
    00 04 fb401f ; - rank 0, GPUs 4, CPUs 8000 thousandths
    fb2c01 00 fa ; - rank 300, GPUs 0, CPUs 250 thousandths
    03 ; phase Sweeping
    fc34440f00 fd6f525c18a3010000 ; since: boot 1000500, wall 1800000000623
    02 00 01 00 ; done: Head, Rank 0
    00 ; no log_bytes
    01 01 06 ; verdict: After Storage
    07 73746f72616765 ; category `storage`
    04 66756c6c ; sub_code `full`
    01 03 6e2d31 ; node `n-1`
    01 ; progressed
    04 66756c6c ; summary `full`
    0b 747269656420616761696e ; done `tried again`"#;

pub const ATTEMPT_ROLLED_BACK: &str = r#"
    01 07e18683 ; layout 1, checksum
    07 6a2d3766336b32 ; job `j-7f3k2`
    04 ; number 4
    06 672d34627137 ; gang `g-4bq7`
    03 04 ; epoch 3.4
    fc34440f00 fd6f525c18a3010000 ; started: boot 1000500, wall 1800000000623
    01 fb0401 fdc33e5d18a3010000 ; ended: boot 260, wall 1800000061123
    01 03 13 706f72742032303030312069732074616b656e ; outcome RolledBack `port 20001 is taken`
    01 00 ; ray: version ``
    00 ; session ``
    00 ; nodes: 0
    00 ; no driver
    00 ; no guest
    00 ; no verdict"#;

pub const ATTEMPT_PREEMPTED: &str = r#"
    01 d01e20a4 ; layout 1, checksum
    07 6a2d3766336b32 ; job `j-7f3k2`
    05 ; number 5
    06 672d34627137 ; gang `g-4bq7`
    03 05 ; epoch 3.5
    fc34440f00 fd6f525c18a3010000 ; started: boot 1000500, wall 1800000000623
    01 fb0401 fdc33e5d18a3010000 ; ended: boot 260, wall 1800000061123
    01 04 17 6770752d30312077617320647261696e65643a2066616e ; outcome Preempted `gpu-01 was drained: fan`
    01 ; keeps_nodes
    01 00 ; ray: version ``
    00 ; session ``
    00 ; nodes: 0
    00 ; no driver
    00 ; no guest
    00 ; no verdict"#;

pub const ATTEMPT_TIMED_OUT: &str = r#"
    01 ef7997dc ; layout 1, checksum
    07 6a2d3766336b32 ; job `j-7f3k2`
    06 ; number 6
    06 672d34627137 ; gang `g-4bq7`
    03 06 ; epoch 3.6
    fc34440f00 fd6f525c18a3010000 ; started: boot 1000500, wall 1800000000623
    01 fb0401 fdc33e5d18a3010000 ; ended: boot 260, wall 1800000061123
    01 05 1e 6974732074696d65206c696d6974206f662036302073206973206f766572 ; outcome TimedOut `its time limit of 60 s is over`
    01 00 ; ray: version ``
    00 ; session ``
    00 ; nodes: 0
    00 ; no driver
    00 ; no guest
    00 ; no verdict"#;

pub const ATTEMPT_EVACUATED: &str = r#"
    01 625bb756 ; layout 1, checksum
    07 6a2d3766336b32 ; job `j-7f3k2`
    07 ; number 7
    06 672d34627137 ; gang `g-4bq7`
    03 07 ; epoch 3.7
    fc34440f00 fd6f525c18a3010000 ; started: boot 1000500, wall 1800000000623
    01 fb0401 fdc33e5d18a3010000 ; ended: boot 260, wall 1800000061123
    01 07 0e 6770752d30313a20586964203739 ; outcome Evacuated `gpu-01: Xid 79`
    01 00 ; ray: version ``
    00 ; session ``
    00 ; nodes: 0
    00 ; no driver
    00 ; no guest
    00 ; no verdict"#;

pub const GANG_EVERY_PHASE: &str = r#"
    01 a1ce1800 ; layout 1, checksum
    06 672d34627137 ; id `g-4bq7`
    00 07 6a2d3766336b32 02 ; owner Job `j-7f3k2`, attempt 2
    03 09 ; epoch 3.9
    00 ; state Starting
    fc40420f00 fd7b505c18a3010000 ; since: boot 1000000, wall 1800000000123
    0c ; members: 12
    00 06 6e2d68656164 ; - Head on `n-head`
    00 ;   gpus: 0
    fbf401 fc00000040 ;   cpus_milli 500, memory_bytes 1073741824
    00 ;   shared
    fb204e fb0001 ;   ports 20000 + 256
    00 ;   Assigned
    00 ;   not kept
    01 00 03 6e2d30 ; - Rank 0 on `n-0`
    02 05 4750552d61 05 4750552d62 ;   gpus: 2 `GPU-a` `GPU-b`
    fb803e fd0000000010000000 ;   cpus_milli 16000, memory_bytes 68719476736
    01 ;   exclusive
    fb204f fb0001 ;   ports 20256 + 256
    01 ;   Starting
    00 ;   not kept
    01 01 03 6e2d31 ; - Rank 1 on `n-1`
    00 ;   gpus: 0
    00 00 ;   cpus_milli 0, memory_bytes 0
    00 ;   shared
    fb2050 fb0001 ;   ports 20512 + 256
    02 fb6712 ;   Running, pid 4711
    00 ;   not kept
    01 02 03 6e2d32 ; - Rank 2 on `n-2`
    00 ;   gpus: 0
    00 00 ;   cpus_milli 0, memory_bytes 0
    00 ;   shared
    fb2051 fb0001 ;   ports 20768 + 256
    03 ;   Stopping
    00 ;   not kept
    01 03 03 6e2d33 ; - Rank 3 on `n-3`
    00 ;   gpus: 0
    00 00 ;   cpus_milli 0, memory_bytes 0
    00 ;   shared
    fb2052 fb0001 ;   ports 21024 + 256
    04 00 00 01 04 646f6e65 01 ;   Ended: Exited 0, asked, `done`, logs complete
    00 ;   not kept
    01 04 03 6e2d34 ; - Rank 4 on `n-4`
    00 ;   gpus: 0
    00 00 ;   cpus_milli 0, memory_bytes 0
    00 ;   shared
    fb2053 fb0001 ;   ports 21280 + 256
    04 00 01 00 00 00 ;   Ended: Exited -1
    00 ;   not kept
    01 05 03 6e2d35 ; - Rank 5 on `n-5`
    00 ;   gpus: 0
    00 00 ;   cpus_milli 0, memory_bytes 0
    00 ;   shared
    fb2054 fb0001 ;   ports 21536 + 256
    04 01 12 00 00 00 ;   Ended: Signalled 9
    01 ;   kept
    01 06 03 6e2d36 ; - Rank 6 on `n-6`
    00 ;   gpus: 0
    00 00 ;   cpus_milli 0, memory_bytes 0
    00 ;   shared
    fb2055 fb0001 ;   ports 21792 + 256
    04 02 06 6e6f20726179 00 00 00 ;   Ended: Failed `no ray`
    00 ;   not kept
    01 07 03 6e2d37 ; - Rank 7 on `n-7`
    00 ;   gpus: 0
    00 00 ;   cpus_milli 0, memory_bytes 0
    00 ;   shared
    fb2056 fb0001 ;   ports 22048 + 256
    04 03 04 62757379 01 fb214e 00 00 00 ;   Ended: Refused `busy`, port 20001
    00 ;   not kept
    01 08 03 6e2d38 ; - Rank 8 on `n-8`
    00 ;   gpus: 0
    00 00 ;   cpus_milli 0, memory_bytes 0
    00 ;   shared
    fb2057 fb0001 ;   ports 22304 + 256
    04 03 06 6e6f20475055 00 00 00 00 ;   Ended: Refused `no GPU`, no port
    00 ;   not kept
    01 09 03 6e2d39 ; - Rank 9 on `n-9`
    00 ;   gpus: 0
    00 00 ;   cpus_milli 0, memory_bytes 0
    00 ;   shared
    fb2058 fb0001 ;   ports 22560 + 256
    04 04 04 7369636b 00 00 00 ;   Ended: Unfit `sick`
    00 ;   not kept
    01 0a 04 6e2d3130 ; - Rank 10 on `n-10`
    00 ;   gpus: 0
    00 00 ;   cpus_milli 0, memory_bytes 0
    00 ;   shared
    fb2059 fb0001 ;   ports 22816 + 256
    04 05 04 676f6e65 00 00 00 ;   Ended: GivenUp `gone`
    00 ;   not kept
    02 00 0a140001 01 fd000000000000000000000000000002 ; rank_addresses 10.20.0.1, fd00::2
    00 0a140001 ; head_address 10.20.0.1
    01 ; keeps"#;

pub const NODE_NEW: &str = r#"
    01 3e11e50e ; layout 1, checksum
    03 6e2d31 ; id `n-1`
    06 6770752d3032 ; name `gpu-02`
    fc40420f00 fd7b505c18a3010000 ; joined: boot 1000000, wall 1800000000123
    00 ; no bound_pool
    00 ; no set_pool
    00 ; set_labels: 0
    00 ; lifecycle Pending
    00 ; no cordon
    00 ; no drain
    00 ; not revoked
    00 ; certificates: 0
    00 00 ; generation 0.0
    00 ; no inventory
    00 ; history: 0
    00 ; stops: 0
    00 ; cleared: 0
    00 ; no doubt"#;

pub const NODE_FULL: &str = r#"
    01 8391b19e ; layout 1, checksum
    06 6e2d34627137 ; id `n-4bq7`
    06 6770752d3031 ; name `gpu-01`
    fc40420f00 fd7b505c18a3010000 ; joined: boot 1000000, wall 1800000000123
    01 06 683130302d61 ; bound_pool `h100-a`
    01 06 683130302d62 ; set_pool `h100-b`
    02 ; set_labels: 2
    04 6c656166 02 6c31 ; - `leaf`: `l1`
    04 7261636b 03 723132 ; - `rack`: `r12`
    02 ; lifecycle Draining
    01 03 626f62 03 66616e ; cordon by `bob`: `fan`
    01 03 6c6975 03 707375 ; drain by `liu`: `psu`
    fc34440f00 fd6f525c18a3010000 ; since: boot 1000500, wall 1800000000623
    01 fc00dd6d00 ; deadline_ms 7200000
    01 ; revoked
    02 ; certificates: 2
    11111111111111111111111111111111 ; - 11 ..
    11111111111111111111111111111111 ; and its second half
    22222222222222222222222222222222 ; - 22 ..
    22222222222222222222222222222222 ; and its second half
    03 fc70110100 ; generation 3.70000
    01 0a 6770752d30312e6c6162 ; inventory: hostname `gpu-01.lab`
    05 302e312e30 ; agent_version `0.1.0`
    01 ; head_role
    01 ; worker_role
    06 683130302d61 ; pool `h100-a`
    01 04 7261636b 02 7237 ; labels: 1, `rack` = `r7`
    00 0a140001 ; address 10.20.0.1
    07 623030372d3164 ; boot_id `b007-1d`
    fc000000f0 ; network_namespace 4026531840
    fc40e20100 ; container_start_ms 123456
    01 ; gpus: 1
    05 4750552d61 07 04 48323030 fd000000c022000000 ; - `GPU-a`, index 7, `H200`, 149250113536 bytes
    fc00ee0200 ; cpus_milli 192000
    fd0000000000020000 ; memory_bytes 2199023255552
    fc00000004 ; shm_bytes 67108864
    01 fb0010 ; pids_limit 4096
    fb204e fb1027 ; ports 20000 + 10000
    01 03 726179 06 322e35362e30 ; versions: 1, `ray` = `2.56.0`
    02 ; doctor: 2
    03 677075 02 6f6b 05 3120475055 00 ; - `gpu` `ok` `1 GPU`, no advice
    03 73686d 07 7761726e696e67 05 736d616c6c 01 0a 2d2d73686d2d73697a65 ; - `shm` `warning` `small`, advice `--shm-size`
    01 ; history: 1
    fd6f525c18a3010000 06 6f6e6c696e65 05 6167656e74 0f 666972737420696e76656e746f7279 ; - at 1800000000623 `online` by `agent`: `first inventory`
    01 03 672d37 03 02 ; stops: 1, `g-7` at epoch 3.2
    01 09 7869642d666174616c 04 6e6f6465 fb2823 ; cleared: 1, `xid-fatal` of `node` since 9000
    01 fbdc05 ; doubt: 1500
    fc34440f00 fd6f525c18a3010000 ; at: boot 1000500, wall 1800000000623
    06 586964203739 ; why `Xid 79`"#;

pub const JOIN_TOKEN_BOUND: &str = r#"
    01 335eaf9a ; layout 1, checksum
    04 6b337839 ; id `k3x9`
    c3c3c3c3c3c3c3c3c3c3c3c3c3c3c3c3 ; secret_sha256
    c3c3c3c3c3c3c3c3c3c3c3c3c3c3c3c3 ; and its second half
    10 ; uses_left 16
    fd7bac821da3010000 ; expires_wall_ms 1800086400123
    01 06 683130302d61 ; pool `h100-a`
    05 61646d696e ; created_by `admin`
    fc40420f00 fd7b505c18a3010000 ; created: boot 1000000, wall 1800000000123"#;

pub const JOIN_TOKEN_OPEN: &str = r#"
    01 4e20c6e1 ; layout 1, checksum
    04 70347738 ; id `p4w8`
    c3c3c3c3c3c3c3c3c3c3c3c3c3c3c3c3 ; secret_sha256
    c3c3c3c3c3c3c3c3c3c3c3c3c3c3c3c3 ; and its second half
    01 ; uses_left 1
    fd7bac821da3010000 ; expires_wall_ms 1800086400123
    00 ; no pool
    05 61646d696e ; created_by `admin`
    fc40420f00 fd7b505c18a3010000 ; created: boot 1000000, wall 1800000000123"#;

pub const API_TOKEN_V1_ADMIN: &str = r#"
    01 6c450639 ; layout 1, checksum
    04 726f6f74 ; name `root`
    d4d4d4d4d4d4d4d4d4d4d4d4d4d4d4d4 ; sha256
    d4d4d4d4d4d4d4d4d4d4d4d4d4d4d4d4 ; and its second half
    04 726f6f74 ; user `root`
    04 726c6866 ; project `rlhf`
    01 ; admin
    fc40420f00 fd7b505c18a3010000 ; created: boot 1000000, wall 1800000000123"#;

pub const API_TOKEN_V1_MEMBER: &str = r#"
    01 42483c57 ; layout 1, checksum
    05 616c696365 ; name `alice`
    d4d4d4d4d4d4d4d4d4d4d4d4d4d4d4d4 ; sha256
    d4d4d4d4d4d4d4d4d4d4d4d4d4d4d4d4 ; and its second half
    05 616c696365 ; user `alice`
    04 726c6866 ; project `rlhf`
    00 ; not admin
    fc40420f00 fd7b505c18a3010000 ; created: boot 1000000, wall 1800000000123"#;

/// A token of an administrator that stays.
pub const API_TOKEN_ADMIN: &str = r#"
    02 9d0fb6c5 ; layout 2, checksum
    04 726f6f74 ; name `root`
    d4d4d4d4d4d4d4d4d4d4d4d4d4d4d4d4 ; sha256
    d4d4d4d4d4d4d4d4d4d4d4d4d4d4d4d4 ; and its second half
    04 726f6f74 ; user `root`
    04 726c6866 ; project `rlhf`
    03 ; role: admin
    00 ; it does not expire
    fc40420f00 fd7b505c18a3010000 ; created: boot 1000000, wall 1800000000123"#;

/// A token of a member that expires.
pub const API_TOKEN_MEMBER: &str = r#"
    02 1d2cfce1 ; layout 2, checksum
    05 616c696365 ; name `alice`
    d4d4d4d4d4d4d4d4d4d4d4d4d4d4d4d4 ; sha256
    d4d4d4d4d4d4d4d4d4d4d4d4d4d4d4d4 ; and its second half
    05 616c696365 ; user `alice`
    04 726c6866 ; project `rlhf`
    01 ; role: member
    01 fd7b505c18a3010000 ; expires: wall 1800000000123
    fc40420f00 fd7b505c18a3010000 ; created: boot 1000000, wall 1800000000123"#;

/// An entry of the audit log.
pub const AUDIT: &str = r#"
    01 f8d528e6 ; layout 1, checksum
    07 ; sequence
    fd7b505c18a3010000 ; wall 1800000000123
    05 616c696365 ; actor `alice`
    01 09 3132372e302e302e31 ; source `127.0.0.1`
    0a6a6f622e7375626d6974 ; action `job.submit`
    0b6a6f62206a2d3766336b32 ; object `job j-7f3k2`
    0c6772706f20696e20726c6866 ; detail `grpo in rlhf`
    f6f6f6f6f6f6f6f6f6f6f6f6f6f6f6f6 ; hash of the entry before
    f6f6f6f6f6f6f6f6f6f6f6f6f6f6f6f6 ; and its second half"#;

pub const IDEMPOTENCY: &str = r#"
    01 ffeb9682 ; layout 1, checksum
    05 616c696365 ; user `alice`
    07 72657472792d31 ; key `retry-1`
    e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5 ; body_sha256
    e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5 ; and its second half
    07 6a2d3766336b32 ; made `j-7f3k2`
    fc40420f00 fd7b505c18a3010000 ; created: boot 1000000, wall 1800000000123"#;

pub const SECRET: &str = r#"
    01 7e0cbbdf ; layout 1, checksum
    04 726c6866 ; project `rlhf`
    08 48465f544f4b454e ; name `HF_TOKEN`
    1e ; sealed: 30 bytes
    5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e ; nonce, text and tag
    5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e ; and their second half
    05 616c696365 ; set_by `alice`
    fc40420f00 fd7b505c18a3010000 ; set: boot 1000000, wall 1800000000123"#;

/// Before projects said anything about idle GPUs.
pub const PROJECT_V1: &str = r#"
    01 331ed2a1 ; layout 1, checksum
    04 726c6866 ; name `rlhf`
    64 ; max_priority 100
    02 ; quotas in 2 pools
    01 61 08 01 10 ; `a`: 8 guaranteed, at most 16
    01 62 00 00 ; `b`: none guaranteed, no limit
    04 726f6f74 ; set_by `root`
    fc40420f00 fd7b505c18a3010000 ; set: boot 1000000, wall 1800000000123"#;

pub const USAGE: &str = r#"
    01 31d2289c ; layout 1, checksum
    04 726c6866 ; project `rlhf`
    fc80ee3600 ; gpu_ms 3600000
    fc40420f00 fd7b505c18a3010000 ; at: boot 1000000, wall 1800000000123"#;
pub const POOL: &str = r#"
    01 e10e23d1 ; layout 1, checksum
    06 683130302d61 ; name `h100-a`
    08 3820782048313030 ; description `8 x H100`
    03 6c6975 ; set_by `liu`
    fc40420f00 fd7b505c18a3010000 ; set: boot 1000000, wall 1800000000123"#;

pub const PROJECT: &str = r#"
    02 8d186036 ; layout 2, checksum
    04 726c6866 ; name `rlhf`
    64 ; max_priority 100
    02 ; quotas in 2 pools
    01 61 08 01 10 ; `a`: 8 guaranteed, at most 16
    01 62 00 00 ; `b`: none guaranteed, no limit
    01 fcc0270900 ; idle_warn_after_ms 600000
    00 ; idle_reclaim_after_ms absent
    04 726f6f74 ; set_by `root`
    fc40420f00 fd7b505c18a3010000 ; set: boot 1000000, wall 1800000000123"#;

pub const NODE_TEST_OPEN: &str = r#"
    01 359aa603 ; layout 1, checksum
    03 6a2d31 ; job `j-1`
    03 6f7073 ; by `ops`
    06 683130302d61 ; pool `h100-a`
    00 ; gpus_per_node
    fc40420f00 fd7b505c18a3010000 ; begun: boot 1000000, wall 1800000000123
    00 ; not ended
    00 ; open"#;

pub const NODE_TEST_MEASURED: &str = r#"
    01 75c77a29 ; layout 1, checksum
    03 6a2d32 ; job `j-2`
    03 6f7073 ; by `ops`
    06 683130302d61 ; pool `h100-a`
    08 ; gpus_per_node
    fc40420f00 fd7b505c18a3010000 ; begun: boot 1000000, wall 1800000000123
    01 fd6f525c18a3010000 ; ended: wall 1800000000623
    01 04 676c6f6f ; measured: backend `gloo`
    01 05 746f726368 04 312e3133 ; versions: 1, `torch` `1.13`
    fc00000004 ; message_bytes 67108864
    fbe803 07 ; all-reduce: 1000 bytes per second, 7 ns
    02 ; nodes: 2
    03 6e2d31 02 7731 fb2c01 05 00 ; - `n-1` `w1`, 300 bytes per second, 5 ns, not slow
    03 6e2d32 02 7732 fb2c01 05 01 ; - `n-2` `w2`, the same, slow
    01 00 01 fb2c01 05 ; pairs: 1, ranks 0 and 1
    fb2c01 ; median"#;

pub const NODE_TEST_FAILED: &str = r#"
    01 7607587f ; layout 1, checksum
    03 6a2d33 ; job `j-3`
    03 6f7073 ; by `ops`
    06 683130302d61 ; pool `h100-a`
    00 ; gpus_per_node
    fc40420f00 fd7b505c18a3010000 ; begun: boot 1000000, wall 1800000000123
    01 fd6f525c18a3010000 ; ended: wall 1800000000623
    02 0a 6e6f205079546f726368 ; failed: `no PyTorch`"#;

pub const RULE_TRIAL: &str = r#"
    01 72e1837b ; layout 1, checksum
    09 6770752d636c6f636b ; rule `gpu-clock`
    01 02 03 ; confirmed, refuted, untold of findings that are over
    03 ; 3 findings
    03 6e2d31 05 6770753a67 ; node `n-1`, component `gpu:g`
    02 07 fc40420f00 fd7b505c18a3010000 ; level: Degraded; since_ms; found: boot 1000000, wall 1800000000123
    00 ; proof: None
    03 6e2d31 04 6e6f6465 ; node `n-1`, component `node`
    02 07 fc40420f00 fd7b505c18a3010000 ; level: Degraded; since_ms; found: boot 1000000, wall 1800000000123
    01 ; proof: Refuted
    03 6e2d31 08 706f72743a702f31 ; node `n-1`, component `port:p/1`
    02 07 fc40420f00 fd7b505c18a3010000 ; level: Degraded; since_ms; found: boot 1000000, wall 1800000000123
    02 04 6c6f7374 ; proof: Confirmed, why `lost`
"#;

pub const ACCOUNT: &str = r#"
    01 0c218e0c ; layout 1, checksum
    07 672d3766336b32 ; gang `g-7f3k2`
    02 01 ; epoch 2.1
    06 683130302d61 ; pool `h100-a`
    fc40420f00 fd7b505c18a3010000 fb581b ; held: since, and 7000 ms before
    fb7017 ; hung 6000 ms
    01 fb3075 fc905f0100 ; run: startup 30000, ran 90000 ms,
    fb401f fb8813 ; hung 8000, lost 5000 ms
    02 ; shares: 2
    00 08 fcc0d40100 00 00 ; head: 8 GPUs, 120000 ms, nothing measured
    01 01 08 fcc0d40100 ; rank 1: the same
    fca0bb0d00 fcd0dd0600 ; measured 900000, busy 450000 GPU-ms"#;

pub const SPENT: &str = r#"
    01 306eb637 ; layout 1, checksum
    07 672d3766336b32 ; gang `g-7f3k2`
    02 01 ; epoch 2.1
    07 6a2d3766336b32 ; job `j-7f3k2`
    03 ; attempt
    05 616c696365 ; user `alice`
    04 726c6866 ; project `rlhf`
    06 683130302d61 ; pool `h100-a`
    fd7b505c18a3010000 ; from: wall 1800000000123
    02 08 15 01 00 ; shares: 8 GPUs for 21 ms, 1 GPU for 0 ms
    64 14 1e ; productive 100, idle 20, unmeasured 30 GPU-ms
    0a 09 05 03 ; startup 10, hung 9, lost 5, stopping 3 GPU-ms"#;

pub const VACANCY: &str = r#"
    01 098ecb4b ; layout 1, checksum
    06 683130302d61 ; pool `h100-a`
    fd7b505c18a3010000 ; from: wall 1800000000123
    fd6f525c18a3010000 ; until: wall 1800000000623
    fbe803 05 ; quarantined 1000, fragmented 5 GPU-ms
    01 04 726c6866 fc70110100 ; queued: 1, of `rlhf` 70000 GPU-ms"#;

pub const NOTICE: &str = r#"
    01 035e240a ; layout 1, checksum
    02 07 ; era, sequence
    fd7b505c18a3010000 ; wall 1800000000123
    0a 6a6f622e6661696c6564 ; kind `job.failed`
    0b 6a6f62206a2d3766336b32 ; object `job j-7f3k2`
    01 04 726c6866 ; project `rlhf`
    06 72616e6b2031 ; reason `rank 1`"#;

pub const WEBHOOK: &str = r#"
    01 321f6c0b ; layout 1, checksum
    01 04 726c6866 ; project `rlhf`
    04 7465616d ; name `team`
    02 ; kind: slack
    0b 68747470733a2f2f612e62 ; shown `https://a.b`
    04 5e5e5e5e ; sealed: 4 bytes
    01 05 6a6f622e2a ; events: `job.*`
    05 616c696365 ; set_by `alice`
    fc40420f00 fd7b505c18a3010000 ; set: boot 1000000, wall 1800000000123"#;

pub const DELIVERY: &str = r#"
    01 0b44d28a ; layout 1, checksum
    00 ; of the fleet
    03 6f7073 ; name `ops`
    fb2c01 fb2201 02 ; cursor 300, delivered 290, missed 2
    01 ; dead: 1
    03 322d36 ; id `2-6`
    0a 6a6f622e6661696c6564 ; kind `job.failed`
    07 6a6f62206a2d31 ; object `job j-1`
    fd7b505c18a3010000 ; wall 1800000000123
    10 ; attempts
    0f 697420616e73776572656420353030 ; cause `it answered 500`"#;
