#!/bin/bash
# TaskEpilog in slurm.conf. Runs as the user after each task. The last task of the node to let go waits until what remains is
# published, within exit_timeout_seconds: keep that below the time that Slurm grants an epilog.
[ -n "${CACHEHOME_STORE:-}" ] || exit 0
command -v cachehome >/dev/null || exit 0
cachehome agent release --wait --name "$SLURM_JOB_ID.$SLURM_PROCID"
exit 0
