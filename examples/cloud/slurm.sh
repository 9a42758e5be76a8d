#!/usr/bin/env bash
#SBATCH --job-name=hone --nodes=1 --ntasks=1 --cpus-per-task=8 --gpus-per-node=1 --time=04:00:00
#SBATCH --signal=B:USR1@180 --requeue --open-mode=append --output=%x-%j.log
# A run on one node, which goes on in the next job when its time is over or when it was preempted:
#
#   sbatch examples/cloud/slurm.sh rl @ rl.toml --output-dir outputs/mine --ckpt.interval 10
#
# Three minutes before the end SLURM sends SIGUSR1 to this script, which ends the run by SIGTERM: it saves, and the job is
# queued again. A run that is stopped by `hone runs stop` is not.
# hone is in .venv below the folder of sbatch; set HONE_ENV to another environment.
set -euo pipefail
export PATH="$(realpath "${HONE_ENV:-.venv}")/bin:$PATH"
ended=
srun "$@" --resume --display plain --grace-seconds 120 &
run=$!
trap 'ended=1; kill -TERM "$run"' USR1
code=0
wait "$run" || code=$?
if [ "$ended" ]; then # the signal ended the first wait
    code=0
    wait "$run" || code=$?
fi
if [ "$ended" ] && [ "$code" = 143 ]; then
    scontrol requeue "$SLURM_JOB_ID"
else
    exit "$code"
fi
