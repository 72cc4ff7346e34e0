#!/bin/bash
# TaskProlog in slurm.conf. Runs as the user before each task; lines `export NAME=value` on stdout become the task's
# environment. Talk goes to stderr. A job that names no store is left alone, and whatever goes wrong here, the task runs.
[ -n "${CACHEHOME_STORE:-}" ] || exit 0
command -v cachehome >/dev/null || exit 0
cachehome agent start --shell slurm --name "$SLURM_JOB_ID.$SLURM_PROCID" --pid "$SLURM_TASK_PID"
exit 0
