#!/usr/bin/env bash
# Runs a command on the CPU time that everything else leaves.
set -euo pipefail

# Where the kernel divides time between sessions first (autogroup), nice counts within one only: the
# command gets a session, and its session that weight. In the background it would ignore Ctrl-C, and
# so would the programs that it starts.
setsid bash -c '
    { echo 19 >/proc/self/autogroup; } 2>/dev/null || true
    exec nice -n 19 env --default-signal=INT,QUIT "$@"
' - "$@" &
trap 'kill -TERM -- "-$!"' HUP INT TERM
wait "$!"
