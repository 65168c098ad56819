#!/bin/bash
# Two nodes with four GPUs each
#GANGLINE resources.nnodes: 2
#GANGLINE resources.gpus_per_node: 4
#GANGLINE launcher.type: torchrun
#GANGLINE env: {SEED: 7, LR: 1e-6}      # what the script finds as $SEED and $LR

set -euo pipefail
torchrun --nnodes=$NNODES --node-rank=$NODE_RANK --master-addr=$MASTER_ADDR \
  --nproc-per-node=$GANGLINE_GPUS_PER_NODE train.py --lr "$LR"
