#!/bin/sh
#SBATCH --job-name=Qwen_SFT --nodes=2
#SBATCH --gres=gpu:8
#SBATCH --partition=h100-a
#SBATCH --exclude=gpu-[01-02]
#SBATCH --output=logs/%j.out
#GANGLINE labels.owner: alice
hostname
srun python train.py --node $SLURM_NODEID
