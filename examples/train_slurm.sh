#!/bin/bash
# Data parallel training under Slurm: srun starts one rank for each task, and tells it its number.
#
#   sbatch --nodes 2 --ntasks-per-node 4 examples/train_slurm.sh --task graph --data mol_tox21.npz --batch 512
#
# The arguments are those of `graphweave train`. Submitted again after a failure or a time limit, the job goes on from
# the checkpoint that it has kept.
#SBATCH --job-name=graphweave
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=2
#SBATCH --cpus-per-task=4
#SBATCH --time=01:00:00
#SBATCH --requeue

set -euo pipefail

# Ranks meet at the first machine of the job, at a port that another job there is unlikely to take.
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
MASTER_PORT=$((20000 + SLURM_JOB_ID % 20000))
export MASTER_ADDR MASTER_PORT
export OMP_NUM_THREADS=${SLURM_CPUS_PER_TASK:-1}

CHECKPOINT=${CHECKPOINT:-checkpoint-$SLURM_JOB_NAME}
if compgen -G "$CHECKPOINT/snapshot-*" > /dev/null; then
  KEPT=(--resume "$CHECKPOINT")
else
  KEPT=(--checkpoint "$CHECKPOINT")
fi

srun --kill-on-bad-exit=1 "${PYTHON:-python}" -m graphweave train "${KEPT[@]}" "$@"
