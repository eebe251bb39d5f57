#!/bin/sh
# One seed of OP-ARS on HalfCheetah-v3, run five ways; the hashes of the policies must be equal.
#   sh benchmarks/exactness.sh [FOLDER]
set -eu
out=${1:-$(mktemp -d)}
run="offrank train HalfCheetah-v3 --algo op-ars --threshold none --eval-every 5 --eval-episodes 10 --quiet"
hash() { sed -n 's/.*"policy_sha256": "\(.*\)".*/\1/p' "$1/result.json"; }

$run --seed 0 --iterations 12 --threads 1 --out "$out/one-thread" >/dev/null
echo "one thread                       $(hash "$out/one-thread")"

$run --seed 0 --iterations 12 --threads 4 --out "$out/four-threads" >/dev/null
echo "four threads                     $(hash "$out/four-threads")"

$run --seeds 0-2 --iterations 12 --out "$out/fleet" >/dev/null
echo "beside seeds 1 and 2             $(hash "$out/fleet/HalfCheetah-v3-op-ars-0")"

$run --seed 0 --iterations 12 --checkpoint-seconds 0 --out "$out/killed" >/dev/null &
pid=$!
while [ "$(wc -l <"$out/killed/metrics.jsonl" 2>/dev/null || echo 0)" -lt 4 ]; do sleep 0.05; done
kill -9 $pid
wait $pid 2>/dev/null || true
echo "  (killed after $(wc -l <"$out/killed/metrics.jsonl") lines of metrics)"
$run --seed 0 --out "$out/killed" --resume >/dev/null
echo "kill -9, then --resume           $(hash "$out/killed")"

$run --seed 0 --iterations 5 --out "$out/extended" >/dev/null
$run --seed 0 --iterations 12 --out "$out/extended" --resume >/dev/null
echo "5 iterations, resumed to 12      $(hash "$out/extended")"
