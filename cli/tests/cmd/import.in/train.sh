#!/bin/bash
# Fine-tuning on two nodes
#SBATCH --job-name=Qwen_SFT
#SBATCH -N 2
#SBATCH --gres=gpu:h100:8
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task 64
#SBATCH --mem=512G
#SBATCH -p train
#SBATCH --time=2-12:00
#SBATCH --exclude=gpu-[01-02]
#SBATCH --output=logs/%j.out
#SBATCH --dependency=afterok:123
#SBATCH --exclusive
#SBATCH --frobnicate=yes

module load cuda
export MASTER_ADDR=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1)
srun torchrun --nnodes=$SLURM_NNODES --node-rank=$SLURM_NODEID --nproc-per-node=8 \
  --master-addr=$MASTER_ADDR train.py
