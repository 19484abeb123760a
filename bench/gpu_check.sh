#!/usr/bin/env bash
# Everything that only a CUDA card can show, in under 8 minutes; prints a short table last.
# Usage: bench/gpu_check.sh [extra pytest arguments]        PYTHON=python3.12 picks the interpreter.
set -uo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python}

if ! card=$("$python" -c 'from kvsuite.device.select import *; print(device_name(resolve_device("cuda")))' 2>&1); then
    echo "gpu_check: no usable CUDA card: ${card##*Error: }" >&2
    exit 3
fi

rows=()
failed=0
stage() { # name, seconds allowed, command...
    local name=$1 allowed=$2 began=$SECONDS verdict=ok
    shift 2
    timeout "$allowed" "$@" || { verdict="FAILED ($?)"; failed=1; }
    rows+=("$(printf '%-10s %-14s %4d s' "$name" "$verdict" $((SECONDS - began)))")
}

stage device 180 "$python" -m pytest -n 0 -q tests/device "$@"
stage cases 180 "$python" -m pytest -n 0 -q --device cuda cases "$@"
if compgen -G 'cases/timing/test_*.py' >/dev/null; then
    stage timing 100 "$python" -m pytest -n 0 -q --device cuda --benchmark-only cases/timing
fi

printf '\n%s\n' "card: $card"
printf '%s\n' "${rows[@]}"
exit "$failed"
