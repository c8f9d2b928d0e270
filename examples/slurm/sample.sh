#!/bin/bash
#SBATCH --job-name=sample
#SBATCH --array=0-19
#SBATCH --cpus-per-task=4
#SBATCH --time=01:00:00
#
# Samples 10,000 images x 100 draws in 20 tasks of 2,500 images x 20 draws, and merges them when all are done:
#
#   mkdir parts
#   job=$(sbatch --parsable examples/slurm/sample.sh)
#   sbatch --dependency=afterok:$job --wrap "bayescaffe merge parts/*.npz --out all.npz"
#
# A task that failed is named by merge, with its images and draws. Submit it again: sbatch --array=7 …
set -euo pipefail

export OMP_NUM_THREADS=$SLURM_CPUS_PER_TASK
image=$((SLURM_ARRAY_TASK_ID / 5 * 2500))
draw=$((SLURM_ARRAY_TASK_ID % 5 * 20))
bayescaffe sample lenet.caffemodel --data test_lmdb --passes 100 \
  --images "$image-$((image + 2499))" --draws "$draw-$((draw + 19))" \
  --out "parts/$SLURM_ARRAY_TASK_ID.npz"
