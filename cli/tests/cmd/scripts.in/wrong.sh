#!/bin/bash
#SBATCH --nodes=2-4 --time=2:00:00
#SBATCH --dependency=afterok:123 --exclusive
#SBATCH --nodelist=gpu-[01-04] --frobnicate
#GANGLINE notify.to: x
#GANGLINE gpu_per_node: 8
#GANGLINE resources.nnodes: 3
#GANGLINE run: hostname
#GANGLINE timeout 3d
python train.py
#GANGLINE name: late
