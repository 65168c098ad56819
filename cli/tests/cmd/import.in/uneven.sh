#!/bin/sh
#SBATCH --nodes=3
#SBATCH --gpus=16
hostname
