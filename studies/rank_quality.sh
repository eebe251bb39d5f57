#!/usr/bin/env sh
# The measurements behind docs/rank-quality.md. What results/rank_quality holds already is not measured again.
set -eu
measure() {
  task=$1
  shift
  offrank rank-quality "$task" --seed 0 --candidates 150 --episodes 6 --out "results/rank_quality/$task" --json "$@" >/dev/null
}
gather() {
  offrank rank-quality "$1" --run "results/rank_quality/$1"/*.state.npz --candidates 150 --episodes 6 \
    --out "results/rank_quality/$1" --json >/dev/null
}
measure HalfCheetah-v3 --algo op-ars --iterations 30,100,250
measure Hopper-v3 --algo op-ars --iterations 30,100
measure Hopper-v3 --algo ars --iterations 30,100
measure Swimmer-v3 --algo op-ars --iterations 30,100
measure Swimmer-v3 --algo ars --iterations 100
for task in HalfCheetah-v3 Hopper-v3 Swimmer-v3; do gather "$task"; done
