//! The bytes of every message, field by field: the specification of the wire.
//!
//! Each constant is one whole frame: kind, length of the body (u32, big endian), body. The part of
//! a line after `;` is a comment, and blanks do not count. Handshake bodies are tag (u16), length
//! (u32), value, all big endian. Other bodies: an integer below 251 is one byte, a larger one is
//! fb + u16, fc + u32 or fd + u64, little endian; a signed one is zigzag first; a text or a list
//! has its count first; an enum has its variant's index first; an absent option is 00, a present
//! one 01 and its value; a float is its four bytes, little endian.

pub const HELLO: &str = "
    01 00000029 ; Hello, 41 bytes
    0001 00000004 00000000 ; minor_oldest 0
    0002 00000004 00000003 ; minor 3
    0003 00000005 302e312e30 ; build `0.1.0`
    0004 00000004 6b337839 ; instance `k3x9`";

pub const WELCOME: &str = "
    02 00000035 ; Welcome, 53 bytes
    0001 00000004 00000002 ; minor 2
    0002 00000005 302e312e30 ; build `0.1.0`
    0003 00000006 6e2d34627137 ; node `n-4bq7`
    0004 00000004 00000007 ; era 7
    0005 00000004 000007d0 ; heartbeat_ms 2000";

pub const REFUSE: &str = "
    03 0000001c ; Refuse, 28 bytes
    0001 00000004 00000004 ; code REFUSE_CLONE
    0002 0000000c 616c72656164792068657265 ; text `already here`";

pub const JOIN_REQUEST: &str = "
    04 00000035 ; JoinRequest, 53 bytes
    0001 00000004 6b337839 ; token_id `k3x9`
    0002 00000004 a5a5a5a5 ; token_secret
    0003 00000004 30820100 ; csr
    0004 00000006 6770752d3031 ; node_name `gpu-01`
    0005 00000005 302e312e30 ; build `0.1.0`";

pub const JOIN_GRANT: &str = "
    05 0000001e ; JoinGrant, 30 bytes
    0001 00000006 6e2d34627137 ; node `n-4bq7`
    0002 00000003 308202 ; certificate
    0003 00000003 308203 ; ca";

pub const INVENTORY_FULL: &str = "
    10 00000112 ; Inventory, 274 bytes
    06 6770752d3031 ; name `gpu-01`
    0a 6770752d30312e6c6162 ; hostname `gpu-01.lab`
    05 302e312e30 ; agent_version `0.1.0`
    02 ; roles: 2
    00 ; - Head
    01 ; - Worker
    01 06 683130302d61 ; pool `h100-a`
    02 ; labels: 2
    04 7261636b 02 7237 ; - `rack` = `r7`
    04 7a6f6e65 00 ; - `zone` = ``
    00 0a140001 ; address 10.20.0.1
    01 05 626f6e6430 ; interface `bond0`
    07 623030372d3164 ; boot_id `b007-1d`
    fc000000f0 ; network_namespace 4026531840
    fc40e20100 ; container_start_ms 123456
    02 ; gpus: 2
    06 4750552d6161 ; uuid `GPU-aa`
    00 ; index 0
    0b 4e56494449412048313030 ; name `NVIDIA H100`
    fd0000000014000000 ; memory_bytes 85899345920
    01 10 30303030303030303a31383a30302e30 ; pci_bus_id `00000000:18:00.0`
    06 4750552d6262 ; uuid `GPU-bb`
    01 ; index 1
    0b 4e56494449412048313030 ; name `NVIDIA H100`
    fd0000000014000000 ; memory_bytes 85899345920
    00 ; pci_bus_id absent
    fb00fa ; cpus_milli 64000
    fd0000000000010000 ; memory_bytes 1099511627776
    fc00000100 ; shm_bytes 65536
    01 fa ; pids_limit 250
    fb204e fb0020 ; ports 20000, size 8192
    01 ; versions: 1
    03 726179 06 322e34392e30 ; - `ray` = `2.49.0`
    04 ; doctor: 4
    04 6e766d6c ; check `nvml`
    00 ; level Ok
    06 322047505573 ; text `2 GPUs`
    00 ; advice absent
    03 73686d ; check `shm`
    01 ; level Warning
    06 3634204b6942 ; text `64 KiB`
    01 0a 2d2d73686d2d73697a65 ; advice `--shm-size`
    03 786964 ; check `xid`
    02 ; level Blind
    07 6e6f206b6d7367 ; text `no kmsg`
    00 ; advice absent
    03 726179 ; check `ray`
    03 ; level Error
    07 6d697373696e67 ; text `missing`
    01 0b 696e7374616c6c20726179 ; advice `install ray`";

pub const INVENTORY_BARE: &str = "
    10 00000032 ; Inventory, 50 bytes
    03 637075 ; name `cpu`
    00 ; hostname ``
    05 302e312e30 ; agent_version `0.1.0`
    00 ; roles: 0
    00 ; pool absent
    00 ; labels: 0
    01 fd000000000000000000000000000001 ; address fd00::1
    00 ; interface absent
    00 ; boot_id ``
    00 ; network_namespace 0
    00 ; container_start_ms 0
    00 ; gpus: 0
    fa ; cpus_milli 250
    fbfb00 ; memory_bytes 251
    fbffff ; shm_bytes 65535
    00 ; pids_limit absent
    fb0004 01 ; ports 1024, size 1
    00 ; versions: 0
    00 ; doctor: 0";

pub const REPORT: &str = "
    11 00000242 ; Report, 578 bytes
    02 fb2c01 ; held 2.300
    0b ; members: 11
    07 672d3766336b32 ; gang `g-7f3k2`
    02 01 ; epoch 2.1
    00 ; member head
    00 ; Starting
    03 ; guests: 3
    04 6a322d31 ; operation `j2-1`
    00 ; Prepared
    04 6a332d31 ; operation `j3-1`
    01 ; Failed
    07 6e6f20726f6f6d ; reason `no room`
    04 6a342d31 ; operation `j4-1`
    02 ; Swept
    01 fb2c01 ; log_bytes 300
    00 ; checkpoint absent
    00 ; saved absent
    00 ; usage absent
    07 672d3766336b32 ; gang `g-7f3k2`
    02 01 ; epoch 2.1
    01 00 ; member rank 0
    01 ; Running
    fc70110100 ; pid 70000
    00 ; guests: 0
    01 ; checkpoint present
    0e 676c6f62616c5f737465705f3430 ; name `global_step_40`
    fc70110100 ; age_ms 70000
    01 ; saved present
    01 ;  newest present
    0e 676c6f62616c5f737465705f3230 ;   name `global_step_20`
    01 14 ;   step 20
    fc70110100 ;   bytes 70000
    fb2c01 ;   age_ms 300
    02 ;  count 2
    fc00000040 ;  bytes 1073741824
    fb2c01 ;  room: free_bytes 300
    fc70110100 ;   next_bytes 70000
    01 ;   is_low true
    01 ;   removed 1
    01 01 61 ;   last_removed `a`
    01 ;  copy present
    01 01 62 ;   newest `b`
    01 07 6e6f20726f6f6d ;   problem `no room`
    01 ; usage present
    fc70110100 ; measured_ms 70000
    fb2c01 ; busy_ms 300
    07 672d3766336b32 ; gang `g-7f3k2`
    02 01 ; epoch 2.1
    01 01 ; member rank 1
    02 ; Stopping
    00 ; guests: 0
    00 ; checkpoint absent
    00 ; saved absent
    00 ; usage absent
    07 672d3766336b32 ; gang `g-7f3k2`
    02 01 ; epoch 2.1
    01 02 ; member rank 2
    03 ; Ended
    00 ; Exited
    01 ; code -1, zigzag
    00 ; asked false
    09 54726163656261636b ; last_output `Traceback`
    00 ; swept 0
    01 ; logs_complete true
    00 ; guests: 0
    00 ; checkpoint absent
    00 ; saved absent
    00 ; usage absent
    07 672d3766336b32 ; gang `g-7f3k2`
    02 01 ; epoch 2.1
    01 03 ; member rank 3
    03 ; Ended
    01 ; Signalled
    12 ; signal 9, zigzag
    01 ; asked true
    00 ; last_output ``
    0c ; swept 12
    00 ; logs_complete false
    00 ; guests: 0
    00 ; checkpoint absent
    00 ; saved absent
    00 ; usage absent
    07 672d3766336b32 ; gang `g-7f3k2`
    02 01 ; epoch 2.1
    01 04 ; member rank 4
    03 ; Ended
    02 ; Failed
    0e 6e6f207368696d207265636f7264 ; reason `no shim record`
    00 ; asked false
    02 c3a9 ; last_output `é`
    00 ; swept 0
    00 ; logs_complete false
    00 ; guests: 0
    00 ; checkpoint absent
    00 ; saved absent
    00 ; usage absent
    07 672d3766336b32 ; gang `g-7f3k2`
    02 01 ; epoch 2.1
    01 05 ; member rank 5
    04 ; Refused
    00 ; PortBusy
    fb214e ; port 20001
    00 ; guests: 0
    00 ; checkpoint absent
    00 ; saved absent
    00 ; usage absent
    07 672d3766336b32 ; gang `g-7f3k2`
    02 01 ; epoch 2.1
    01 06 ; member rank 6
    04 ; Refused
    01 ; GpuHeld
    06 4750552d6161 ; gpu `GPU-aa`
    05 672d6f6c64 ; gang `g-old`
    01 09 ; epoch 1.9
    01 fb2c01 ; member rank 300
    00 ; guests: 0
    00 ; checkpoint absent
    00 ; saved absent
    00 ; usage absent
    07 672d3766336b32 ; gang `g-7f3k2`
    02 01 ; epoch 2.1
    01 07 ; member rank 7
    04 ; Refused
    02 ; StaleEpoch
    02 02 ; highest 2.2
    00 ; guests: 0
    00 ; checkpoint absent
    00 ; saved absent
    00 ; usage absent
    07 672d3766336b32 ; gang `g-7f3k2`
    02 01 ; epoch 2.1
    01 08 ; member rank 8
    04 ; Refused
    03 ; Impossible
    06 6e6f20677075 ; reason `no gpu`
    00 ; guests: 0
    00 ; checkpoint absent
    00 ; saved absent
    00 ; usage absent
    07 672d3766336b32 ; gang `g-7f3k2`
    02 01 ; epoch 2.1
    01 09 ; member rank 9
    04 ; Refused
    04 ; Unfit
    04 7369636b ; reason `sick`
    00 ; guests: 0
    00 ; checkpoint absent
    00 ; saved absent
    00 ; usage absent
    02 ; gangs: 2
    07 672d3766336b32 ; gang `g-7f3k2`
    02 01 ; epoch 2.1
    01 ; ray present
    01 ; ready true
    09 73657373696f6e5f31 ; session `session_1`
    06 322e34392e30 ; version `2.49.0`
    02 ; nodes: 2
    00 ; member head
    04 61613031 ; ray_node_id `aa01`
    09 31302e32302e302e31 ; address `10.20.0.1`
    01 ; alive true
    00 ; state_message ``
    01 01 ; member rank 1
    04 61613032 ; ray_node_id `aa02`
    09 31302e32302e302e32 ; address `10.20.0.2`
    00 ; alive false
    07 647261696e6564 ; state_message `drained`
    06 ; entrypoints: 6
    04 6a312d31 ; operation `j1-1`
    00 ; Waiting
    04 6a312d32 ; operation `j1-2`
    01 ; Running
    01 ; driver present
    04 61613031 ; ray_node_id `aa01`
    01 00 ; member head
    01 09 31302e32302e302e31 ; address `10.20.0.1`
    04 6a312d33 ; operation `j1-3`
    01 ; Running
    00 ; driver absent
    04 6a312d34 ; operation `j1-4`
    02 ; Succeeded
    01 ; driver present
    04 61613032 ; ray_node_id `aa02`
    01 01 01 ; member rank 1
    00 ; address absent
    04 6a312d35 ; operation `j1-5`
    03 ; Failed
    01 ; driver present
    04 61613033 ; ray_node_id `aa03`
    00 ; member absent
    00 ; address absent
    01 02 ; exit_code 1, zigzag
    01 03 4f4f4d ; error_type `OOM`
    06 6b696c6c6564 ; message `killed`
    04 6a312d36 ; operation `j1-6`
    03 ; Failed
    00 ; driver absent
    00 ; exit_code absent
    00 ; error_type absent
    00 ; message ``
    05 672d74776f ; gang `g-two`
    02 fc00000100 ; epoch 2.65536
    00 ; ray absent
    00 ; entrypoints: 0";

pub const HEARTBEAT: &str = "
    12 0000000d ; Heartbeat, 13 bytes
    fd0000000001000000 ; sequence 4294967296
    02 fb2c01 ; held 2.300";

pub const RENEW_REQUEST: &str = "
    13 00000005 ; RenewRequest, 5 bytes
    04 308200ff ; csr";

pub const HEALTH: &str = "
    14 000000bb ; Health, 187 bytes
    06 ; conditions: 6
    02 7231 ; rule `r1`
    05 6770753a61 ; component `gpu:a`
    00 ; Info
    00 ; blocks_start
    00 ; shadow
    01 58 ; action `X`
    02 6973 ; reason `is`
    06 31206f662032 ; evidence `1 of 2`
    04 626f6f74 ; clears `boot`
    01 ; since_ms 1
    02 7232 ; rule `r2`
    05 6770753a61 ; component `gpu:a`
    01 ; Warning
    00 ; blocks_start
    01 ; shadow
    01 58 ; action `X`
    02 6973 ; reason `is`
    06 31206f662032 ; evidence `1 of 2`
    04 626f6f74 ; clears `boot`
    02 ; since_ms 2
    02 7233 ; rule `r3`
    05 6770753a61 ; component `gpu:a`
    02 ; Degraded
    00 ; blocks_start
    00 ; shadow
    01 58 ; action `X`
    02 6973 ; reason `is`
    06 31206f662032 ; evidence `1 of 2`
    04 626f6f74 ; clears `boot`
    03 ; since_ms 3
    02 7234 ; rule `r4`
    05 6770753a61 ; component `gpu:a`
    03 ; NoNewJobs
    01 ; blocks_start
    00 ; shadow
    01 58 ; action `X`
    02 6973 ; reason `is`
    06 31206f662032 ; evidence `1 of 2`
    04 626f6f74 ; clears `boot`
    04 ; since_ms 4
    02 7235 ; rule `r5`
    05 6770753a61 ; component `gpu:a`
    04 ; DrainAfterJob
    00 ; blocks_start
    00 ; shadow
    01 58 ; action `X`
    02 6973 ; reason `is`
    06 31206f662032 ; evidence `1 of 2`
    04 626f6f74 ; clears `boot`
    05 ; since_ms 5
    02 7236 ; rule `r6`
    05 6770753a61 ; component `gpu:a`
    05 ; Fatal
    00 ; blocks_start
    00 ; shadow
    01 58 ; action `X`
    02 6973 ; reason `is`
    06 31206f662032 ; evidence `1 of 2`
    04 626f6f74 ; clears `boot`
    06 ; since_ms 6
    01 ; blind: 1
    04 6b6d7367 ; `kmsg`";

pub const DESIRED_HEADER: &str = "
    20 00000005 ; DesiredHeader, 5 bytes
    02 fb2d01 ; generation 2.301
    03 ; count 3";

pub const DESIRED_GANG_RAY: &str = "
    21 000001d1 ; DesiredGang, 465 bytes
    07 672d3766336b32 ; gang `g-7f3k2`
    02 01 ; epoch 2.1
    00 ; Run
    07 6a2d747261696e ; job `j-train`
    01 ; attempt 1
    05 747261696e ; job_name `train`
    06 766973696f6e ; project `vision`
    00 ; launcher Ray
    02 ; nnodes 2
    08 ; gpus_per_node 8
    02 ; addresses: 2
    00 0a140001 ; - 10.20.0.1
    01 fd000000000000000000000000000002 ; - fd00::2
    00 0a140001 ; head_address 10.20.0.1
    fb204e fb0001 ; head_ports 20000, size 256
    02 ; members: 2
    00 ; member head
    00 ; gpus: 0
    fbd007 ; cpus_milli 2000
    fd0000000001000000 ; memory_bytes 4294967296
    fb204e fb0001 ; ports 20000, size 256
    01 00 ; member rank 0
    02 ; gpus: 2
    06 4750552d6161 ; - `GPU-aa`
    06 4750552d6262 ; - `GPU-bb`
    fb60ea ; cpus_milli 60000
    fd0000000080000000 ; memory_bytes 549755813888
    fb204f fb0001 ; ports 20256, size 256
    02 ; entrypoints: 2
    09 6a2d747261696e2d31 ; operation `j-train-1`
    02 ; argv: 2
    01 00 06 707974686f6e ; - text `python`
    02 ; - two pieces
    00 02 6e3d ;   text `n=`
    01 0f 47414e474c494e455f4e4e4f444553 ;   variable `GANGLINE_NNODES`
    00 ; driver head
    0a 6a2d747261696e2d3162 ; operation `j-train-1b`
    00 ; argv: 0
    01 01 ; driver rank 1
    05 ; guests: 5
    05 6a2d612d31 ; operation `j-a-1`
    03 6a2d61 ; job `j-a`
    01 ; attempt 1
    01 01 ; ranks: 1
    00 ; Prepare
    01 01 00 01 78 ; argv: text `x`
    01 61 ; job_name `a`
    06 766973696f6e ; project `vision`
    01 ; nnodes 1
    02 ; gpus_per_node 2
    01 00 0a140002 ; addresses: 10.20.0.2
    01 01 41 01 62 ; env: `A` = `b`
    01 01 41 ; secret_names: `A`
    01 02 2f77 ; workdir `/w`
    01 09 626c616b65333a3031 ; code `blake3:01`
    00 02 616c ; no shared root, of `al`
    01 04 2f732f61 ; job_directory `/s/a`
    00 ; checkpoint_directory absent
    01 02 7462 ; directories: `tb`
    01 01 63 01 64 ; config_files: `c` = `d`
    fb8813 ; grace_ms 5000
    05 6a2d622d31 ; operation `j-b-1`
    03 6a2d62 ; job `j-b`
    01 ; attempt 1
    02 00 01 ; ranks: 0, 1
    01 ; Run
    00 ; argv: 0
    00 ; job_name ``
    00 ; project ``
    02 ; nnodes 2
    00 ; gpus_per_node 0
    00 ; addresses: 0
    00 ; env: 0
    00 ; secret_names: 0
    00 ; workdir absent
    00 ; code absent
    00 ; job_directory absent
    00 ; checkpoint_directory absent
    00 ; directories: 0
    00 ; config_files: 0
    00 ; grace_ms 0
    05 6a2d632d32 ; operation `j-c-2`
    03 6a2d63 ; job `j-c`
    02 ; attempt 2
    01 00 ; ranks: 0
    02 ; Watch
    05 6a2d642d31 ; operation `j-d-1`
    03 6a2d64 ; job `j-d`
    01 ; attempt 1
    01 00 ; ranks: 0
    03 ; Stop
    05 6a2d652d31 ; operation `j-e-1`
    03 6a2d65 ; job `j-e`
    01 ; attempt 1
    01 01 ; ranks: 1
    04 ; Sweep
    01 04 2f732f65 ; log_directory `/s/e`
    00 ; argv: 0
    01 ; env: 1
    02 4c52 03 302e31 ; - `LR` = `0.1`
    01 02 4c52 ; secret_names: `LR`
    01 02 2f77 ; workdir `/w`
    01 09 626c616b65333a3030 ; code: tree `blake3:00`
    01 02 2f73 ;  shared_root `/s`
    02 616c ;  user `al`
    01 04 2f732f6a ; job_directory `/s/j`
    01 06 2f732f6a2f63 ; checkpoint_directory `/s/j/c`
    01 03 ; checkpoint_keep 3
    01 ; checkpoint_may_go true
    01 ; checkpoint_copy true
    01 05 77616e6462 ; directories: `wandb`
    01 ; config_files: 1
    06 612e79616d6c 04 783a2031 ; - `a.yaml` = `x: 1`
    fb3075 ; grace_ms 30000
    fcc0270900 ; start_timeout_ms 600000
    01 fb60ea ; on_disconnect Fence, after_ms 60000
    05 74306b656e ; auth_token `t0ken`
    01 ; run_as present
    fbe803 ;  uid 1000
    64 ;  gid 100
    01 10 6f7574707574732f2a2a2f2a2e6c6f67 ; log_files: `outputs/**/*.log`
    01 fc00000040 ; log_bytes 1073741824";

pub const DESIRED_GANG_COMMAND: &str = "
    21 00000056 ; DesiredGang, 86 bytes
    07 672d3766336b32 ; gang `g-7f3k2`
    02 01 ; epoch 2.1
    00 ; Run
    05 6a2d636d64 ; job `j-cmd`
    00 ; attempt 0
    00 ; job_name ``
    00 ; project ``
    01 ; launcher Command
    01 ; nnodes 1
    00 ; gpus_per_node 0
    00 ; addresses: 0
    00 7f000001 ; head_address 127.0.0.1
    fb00ff fbff00 ; head_ports 65280, size 255
    00 ; members: 0
    00 ; entrypoints: 0
    00 ; guests: 0
    02 ; argv: 2
    01 00 09 2f62696e2f74727565 ; - text `/bin/true`
    01 00 03 612062 ; - text `a b`
    00 ; env: 0
    00 ; secret_names: 0
    00 ; workdir absent
    00 ; code absent
    00 ; job_directory absent
    00 ; checkpoint_directory absent
    00 ; checkpoint_keep absent
    00 ; checkpoint_may_go false
    00 ; checkpoint_copy false
    00 ; directories: 0
    00 ; config_files: 0
    00 ; grace_ms 0
    fdffffffffffffffff ; start_timeout_ms 18446744073709551615
    02 fb1027 ; on_disconnect StopAfter, after_ms 10000
    00 ; auth_token ``
    00 ; run_as absent
    00 ; log_files: 0
    00 ; log_bytes absent";

pub const DESIRED_GANG_STOP: &str = "
    21 00000010 ; DesiredGang, 16 bytes
    07 672d3766336b32 ; gang `g-7f3k2`
    02 fcffffffff ; epoch 2.4294967295
    01 01 ; Stop, keep_scene";

pub const HEARTBEAT_ACK: &str = "
    22 0000000a ; HeartbeatAck, 10 bytes
    fa ; sequence 250
    fd7bc02cc899010000 ; wall_ms 1760000000123";

pub const LOG_ACK: &str = "
    23 00000019 ; LogAck, 25 bytes
    07 672d3766336b32 ; gang `g-7f3k2`
    02 01 ; epoch 2.1
    00 ; member head
    0a 6472697665722e6c6f67 ; file `driver.log`
    fbfb00 ; offset 251";

pub const RENEWED: &str = "
    24 00000006 ; Renewed, 6 bytes
    02 3001 ; certificate
    02 3002 ; ca";

pub const HEALTH_CLEARED: &str = "
    25 00000013 ; HealthCleared, 19 bytes
    01 ; conditions: 1
    02 7236 ; rule `r6`
    05 6770753a61 ; component `gpu:a`
    fd7bc02cc899010000 ; since_ms 1760000000123";

pub const SAMPLE_FULL: &str = "
    30 0000016e ; Sample, 366 bytes
    fd7bc02cc899010000 ; wall_ms 1760000000123
    02 ; dropped 2
    fbe803 ; interval_ms 1000
    01 00004841 ; cpu_busy_pct 12.5
    01 fb0004 ; memory_used_bytes 1024
    01 fd0000000000010000 ; memory_total_bytes 1099511627776
    01 0000403f ; load1 0.75
    01 00 ; shm_free_bytes 0
    01 0000c03f ; cpu_pressure_pct 1.5
    01 0000803e ; memory_pressure_pct 0.25
    01 00004040 ; io_pressure_pct 3.0
    01 02 ; oom_kills 2
    01 fa ; pids 250
    01 fbfb00 ; network_received_bytes 251
    01 fc00000100 ; network_sent_bytes 65536
    01 fc00000040 ; state_free_bytes 1073741824
    01 fc00000080 ; temp_free_bytes 2147483648
    01 fd0000000000000400 ; shared_free_bytes 1125899906842624
    01 05 ; clock_offset_ms -3
    01 fc00009000 ; agent_memory_bytes 9437184
    01 0000003f ; agent_cpu_pct 0.5
    02 ; gpus: 2
    064750552d6161 ; uuid `GPU-aa`
    00 ; lost false
    01 0000c742 ; utilization_pct 99.5
    01 00005842 ; memory_utilization_pct 54.0
    01 fc00000100 ; memory_used_bytes 65536
    01 fd0000000014000000 ; memory_total_bytes 85899345920
    01 00007442 ; temperature_c 61.0
    01 00009042 ; memory_temperature_c 72.0
    01 0020af43 ; power_w 350.25
    01 00002f44 ; power_limit_w 700.0
    01 fc15cd5b07 ; energy_mj 123456789
    01 fbbc07 ; sm_clock_mhz 1980
    01 fb3b0a ; memory_clock_mhz 2619
    01 40 ; clock_reasons 64
    01 0000603f ; sm_active 0.875
    01 0000003f ; tensor_active 0.5
    01 0000203f ; dram_active 0.625
    01 fc00001000 ; pcie_received_bytes_per_s 1048576
    01 fc00002000 ; pcie_sent_bytes_per_s 2097152
    01 fd0000000002000000 ; nvlink_received_bytes_per_s 8589934592
    01 fd0000000004000000 ; nvlink_sent_bytes_per_s 17179869184
    01 01 ; nvlinks_down 1
    01 11 ; nvlink_errors 17
    01 05 ; ecc_corrected 5
    01 00 ; ecc_uncorrected 0
    01 03 ; pcie_replays 3
    01 4f ; last_xid 79
    02 ; xids 2
    01 03 ; processes 3
    01 01 ; foreign_processes 1
    064750552d6262 ; uuid `GPU-bb`
    01 ; lost true
    00 ; utilization_pct absent
    00 ; memory_utilization_pct absent
    00 ; memory_used_bytes absent
    00 ; memory_total_bytes absent
    00 ; temperature_c absent
    00 ; memory_temperature_c absent
    00 ; power_w absent
    00 ; power_limit_w absent
    00 ; energy_mj absent
    00 ; sm_clock_mhz absent
    00 ; memory_clock_mhz absent
    00 ; clock_reasons absent
    00 ; sm_active absent
    00 ; tensor_active absent
    00 ; dram_active absent
    00 ; pcie_received_bytes_per_s absent
    00 ; pcie_sent_bytes_per_s absent
    00 ; nvlink_received_bytes_per_s absent
    00 ; nvlink_sent_bytes_per_s absent
    00 ; nvlinks_down absent
    00 ; nvlink_errors absent
    00 ; ecc_corrected absent
    00 ; ecc_uncorrected absent
    00 ; pcie_replays absent
    00 ; last_xid absent
    00 ; xids 0
    00 ; processes absent
    00 ; foreign_processes absent
    02 ; ports: 2
    066d6c78355f30 ; device `mlx5_0`
    01 ; port 1
    01 00 ; ethernet false
    01 04 ; state 4
    01 05 ; physical_state 5
    01 fd00743ba40b000000 ; rate_bytes_per_s 50000000000
    01 fd0000000000010000 ; received_bytes 1099511627776
    01 fd0000000000020000 ; sent_bytes 2199023255552
    01 07 ; errors 7
    01 01 ; link_downed 1
    01 fb2c01 ; congestion 300
    0472786530 ; device `rxe0`
    01 ; port 1
    00 ; ethernet absent
    00 ; state absent
    00 ; physical_state absent
    00 ; rate_bytes_per_s absent
    00 ; received_bytes absent
    00 ; sent_bytes absent
    00 ; errors absent
    00 ; link_downed absent
    00 ; congestion absent
    02 ; collectors: 2
    04686f7374 ; name `host`
    01 ; success true
    fb5e01 ; duration_us 350
    01 0c ; age_ms 12
    0472646d61 ; name `rdma`
    00 ; success false
    fcc0e1e400 ; duration_us 15000000
    00 ; age_ms absent";

pub const SAMPLE_BLIND: &str = "
    30 00000018 ; Sample, 24 bytes
    00 ; wall_ms 0
    00 ; dropped 0
    00 ; interval_ms 0
    00 ; cpu_busy_pct absent
    00 ; memory_used_bytes absent
    00 ; memory_total_bytes absent
    00 ; load1 absent
    00 ; shm_free_bytes absent
    00 ; cpu_pressure_pct absent
    00 ; memory_pressure_pct absent
    00 ; io_pressure_pct absent
    00 ; oom_kills absent
    00 ; pids absent
    00 ; network_received_bytes absent
    00 ; network_sent_bytes absent
    00 ; state_free_bytes absent
    00 ; temp_free_bytes absent
    00 ; shared_free_bytes absent
    00 ; clock_offset_ms absent
    00 ; agent_memory_bytes absent
    00 ; agent_cpu_pct absent
    00 ; gpus: 0
    00 ; ports: 0
    00 ; collectors: 0";

pub const LOG_CHUNK: &str = "
    31 0000002d ; LogChunk, 45 bytes
    07 672d3766336b32 ; gang `g-7f3k2`
    02 01 ; epoch 2.1
    01 03 ; member rank 3
    08 72616e6b2e6f7574 ; file `rank.out`
    fc00001000 ; offset 1048576
    09 7374657020310a00ff ; bytes
    fd00a8da769b010000 ; read at 1767225600000";

pub const PACKED_LOG_CHUNK: &str = "
    32 00000037 ; PackedLogChunk, 55 bytes
    07 672d3766336b32 ; gang `g-7f3k2`
    02 01 ; epoch 2.1
    01 03 ; member rank 3
    08 72616e6b2e6f7574 ; file `rank.out`
    fc00001000 ; offset 1048576
    09 ; plain bytes
    12 28b52ffd 20 09 490000 7374657020310a00ff ; one frame of Zstandard
    fd00a8da769b010000 ; read at 1767225600000";

pub const REQUEST_NODES: &str = "
    40 00000010 ; Request, 16 bytes
    00 ; state of a gang's Ray
    07 672d3766336b32 ; gang `g-7f3k2`
    02 01 ; epoch 2.1
    00 ; nodes
    00 ; in any state
    fbe803 ; limit 1000";

pub const REQUEST_ACTORS: &str = "
    40 00000016 ; Request, 22 bytes
    00 ; state of a gang's Ray
    07 672d3766336b32 ; gang `g-7f3k2`
    02 01 ; epoch 2.1
    01 ; actors
    01 05 414c495645 ; in state `ALIVE`
    fbe803 ; limit 1000";

pub const REQUEST_GROUPS: &str = "
    40 00000010 ; Request, 16 bytes
    00 ; state of a gang's Ray
    07 672d3766336b32 ; gang `g-7f3k2`
    02 01 ; epoch 2.1
    02 ; placement groups
    00 ; in any state
    fbe803 ; limit 1000";

pub const REQUEST_NODE_METRICS: &str = "
    40 00000001 ; Request, 1 byte
    01 ; metrics of the node";

pub const REQUEST_RAY_METRICS: &str = "
    40 0000000d ; Request, 13 bytes
    02 ; metrics of a member's Ray
    07 672d3766336b32 ; gang `g-7f3k2`
    02 01 ; epoch 2.1
    01 03 ; rank 3";

pub const REQUEST_STACKS: &str = "
    40 0000000d ; Request, 13 bytes
    03 ; stacks of a member
    07 672d3766336b32 ; gang `g-7f3k2`
    02 01 ; epoch 2.1
    01 03 ; rank 3";

pub const REQUEST_SCENE: &str = "
    40 0000000c ; Request, 12 bytes
    04 ; scene of a member
    07 672d3766336b32 ; gang `g-7f3k2`
    02 01 ; epoch 2.1
    00 ; head";

pub const REQUEST_CHECKPOINTS: &str = "
    40 00000008 ; Request, 8 bytes
    05 ; training checkpoints
    06 2f732f6a2f63 ; directory `/s/j/c`";

pub const REQUEST_XID: &str = "
    40 00000003 ; Request, 3 bytes
    06 ; inject
    00 4f ; Xid 79";

pub const REQUEST_LINK: &str = "
    40 00000002 ; Request, 2 bytes
    06 ; inject
    01 ; a link goes down";

pub const REQUEST_KILL: &str = "
    40 00000002 ; Request, 2 bytes
    06 ; inject
    02 ; a GPU is lost";

pub const REQUEST_HEAL: &str = "
    40 00000002 ; Request, 2 bytes
    06 ; inject
    03 ; all are well again";

pub const REQUEST_KEEP_SCENE: &str = "
    40 0000000e ; Request, 14 bytes
    07 ; scene of a member, to be kept
    07 672d3766336b32 ; gang `g-7f3k2`
    02 01 ; epoch 2.1
    01 03 ; rank 3
    01 ; it hangs";

pub const REQUEST_WRITE_REPORT: &str = "
    40 0000000c ; Request, 12 bytes
    08 ; a report beside the logs of an attempt
    04 2f732f6a ; directory `/s/j`
    02 ; attempt 2
    04 7768790a ; text, 4 bytes";

pub const ANSWER_BODY: &str = "
    41 00000006 ; AnswerHead, 6 bytes
    00 ; a body
    fc00004000 ; of 4194304 bytes";

pub const ANSWER_UNKNOWN: &str = "
    41 00000006 ; AnswerHead, 6 bytes
    01 ; failed
    00 ; unknown question
    03 6e6577 ; text `new`";

pub const ANSWER_NOT_HERE: &str = "
    41 00000003 ; AnswerHead, 3 bytes
    01 01 00 ; failed, not here, no text";

pub const ANSWER_SILENT: &str = "
    41 00000003 ; AnswerHead, 3 bytes
    01 02 00 ; failed, no answer, no text";

pub const ANSWER_TOO_LARGE: &str = "
    41 00000003 ; AnswerHead, 3 bytes
    01 03 00 ; failed, too large, no text";

pub const ANSWER_PIECE: &str = "
    42 00000005 ; AnswerPiece, 5 bytes
    04 7b7d00ff ; bytes";

pub const CODE_REQUEST: &str = "
    50 00000012 ; CodeRequest, 18 bytes
    07 6a2d747261696e ; job `j-train`
    09 626c616b65333a3030 ; tree `blake3:00`";

pub const CODE_PART_BYTES: &str = "
    51 00000004 ; CodePart, 4 bytes
    00 ; Bytes
    02 00ff ; bytes";

pub const CODE_PART_REFUSED: &str = "
    51 00000004 ; CodePart, 4 bytes
    01 ; Refused
    02 6e6f ; reason `no`";
