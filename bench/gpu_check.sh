#!/usr/bin/env bash
# Everything that only a CUDA card can show, in under 8 minutes; prints a short table last.
# Usage: bench/gpu_check.sh [--dry-run] [extra pytest arguments]     PYTHON=python3.12 picks the interpreter.
#
# The suite runs against goldens that were recorded on a CPU. --dry-run takes the same way on a CPU, with small
# shapes and a part of the cases: it shows that the script runs, and nothing of a card.
set -uo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python}
device=cuda
quick=()
small=()
cases=(cases)
if [ "${1:-}" = --dry-run ]; then
    shift
    device=cpu
    quick=(--quick --rounds 9)
    small=(--small --model tiny)
    cases=(cases/conformance/test_tail_slack.py cases/regression/test_golden_ledgers.py)
    export OMP_NUM_THREADS=1
fi

if ! lacks=$("$python" -c 'import kvsuite, pytest, torch' 2>&1); then
    echo "gpu_check: $python cannot run it: ${lacks##*Error: }: install kvsuite[dev], or set PYTHON" >&2
    exit 3
fi
look="from kvsuite.device.select import *; print(device_name(resolve_device('$device')))"
if ! card=$("$python" -c "$look" 2>&1); then
    echo "gpu_check: no usable CUDA card: ${card##*Error: }" >&2
    echo "gpu_check: with --dry-run the same is gone through on this CPU" >&2
    exit 3
fi

kept=$(mktemp -d)
trap 'rm -rf "$kept"' EXIT
rows=()
failed=0
stage() { # name, seconds allowed, command...
    local name=$1 allowed=$2 began=$SECONDS verdict=ok
    shift 2
    printf '\n== %s\n' "$name"
    timeout "$allowed" "$@" 2>&1 | tee "$kept/$name" || { verdict="FAILED ($?)"; failed=1; }
    rows+=("$(printf '%-12s %-14s %4d s' "$name" "$verdict" $((SECONDS - began)))")
}

# What the caching allocator (on a CPU: the kernel) holds beyond what was asked for, closed to the byte.
closure=(tests/device/test_card.py tests/device/test_memory.py tests/device/test_residency.py)
stage closure 60 "$python" -m pytest -n 0 -q "${closure[@]}" "$@"
stage device 100 "$python" -m pytest -n 0 -q tests/device "${closure[@]/#/--ignore=}" "$@"
stage cases 140 "$python" -m pytest -n 0 -q --device "$device" "${cases[@]}" "$@"
stage attention 60 "$python" bench/gpu_attention.py --device "$device" "${quick[@]}"
stage calibration 60 "$python" -c 'from kvsuite.cli.main import main; main()' calibrate --device "$device" \
    --layers 1 --sizes 1,16,256 --live churn --limit 64 --out "$kept/calibration.json" "${small[@]}"
if compgen -G 'cases/timing/test_*.py' >/dev/null; then
    stage timing 55 "$python" -m pytest -n 0 -q --device "$device" -m timing cases/timing
fi

printf '\n%s\n' "card: $card"
[ "$device" = cpu ] && printf '%s\n' "dry run on this CPU with small shapes: nothing below speaks of a card"
printf '%s\n' "${rows[@]}"
sed -n 's/^summary /  /p' "$kept/attention"
grep '^live, all' "$kept/calibration"
exit "$failed"
