#!/usr/bin/env bash
#SBATCH --job-name=hone --nodes=1 --ntasks=1 --cpus-per-task=8 --gpus-per-node=1 --time=04:00:00
#SBATCH --signal=TERM@180 --requeue --open-mode=append --output=%x-%j.log
# A run on one node, which goes on in the next job when its time is over or when it was preempted:
#
#   sbatch examples/cloud/slurm.sh rl @ rl.toml --output-dir outputs/mine --ckpt.interval 10
#
# Three minutes before the end SLURM sends SIGTERM. The run then saves and ends with code 143, and the job is queued again.
# hone is in .venv below the folder of sbatch; set HONE_ENV to another environment.
set -euo pipefail
export PATH="$(realpath "${HONE_ENV:-.venv}")/bin:$PATH"
code=0
srun "$@" --resume --display plain --grace-seconds 120 || code=$?
if [ "$code" = 143 ]; then
    scontrol requeue "$SLURM_JOB_ID"
else
    exit "$code"
fi
