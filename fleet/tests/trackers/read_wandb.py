"""Print what an offline run of Weights & Biases holds, as JSON.

Its file is a header of seven bytes, then blocks of 32 KiB with the pieces of records: checksum (4
bytes), length (2), and whether the piece is a whole record (1), its first (2), a middle (3) or its
last one (4)."""

import json
import struct
import sys

from wandb.proto import wandb_internal_pb2

BLOCK = 32768


def records(data):
    at, record = 7, b""
    while at + 7 <= len(data):
        if BLOCK - at % BLOCK < 7:
            at += BLOCK - at % BLOCK
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        if kind == 0:
            break
        record += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):
            yield record
            record = b""


found, losses = {}, []
with open(sys.argv[1], "rb") as file:
    for data in records(file.read()):
        record = wandb_internal_pb2.Record.FromString(data)
        if record.WhichOneof("record_type") == "run":
            run = record.run
            found = {"id": run.run_id, "name": run.display_name, "project": run.project}
        for item in record.history.item:
            if "loss" in (item.key, *item.nested_key):
                losses.append(float(json.loads(item.value_json)))
print(json.dumps({**found, "loss": losses}))
