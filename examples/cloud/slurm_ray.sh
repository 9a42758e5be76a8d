#!/usr/bin/env bash
#SBATCH --job-name=hone --nodes=4 --ntasks-per-node=1 --gpus-per-task=1 --time=04:00:00 --output=%x-%j.log
# A run on several nodes: Ray on all of them, with a token, and the command on the first.
#
#   sbatch examples/cloud/slurm_ray.sh rl @ rl.toml --inference.replicas 3 --ckpt.interval 10 --output-dir outputs/mine
set -euo pipefail
export PATH="$(realpath "${HONE_ENV:-.venv}")/bin:$PATH"
RAY_AUTH_TOKEN=$(openssl rand -hex 32)
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
srun ray symmetric-run --address "$head:6379" --min-nodes "$SLURM_JOB_NUM_NODES" -- "$@" --cluster.address auto --resume
