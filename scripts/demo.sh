#!/usr/bin/env bash
# Trains a Bayesian net, runs the test images through draws of it, and reports its uncertainty. Prints
# each command that it runs. `make demo` runs it for the paper's LeNet.
#
#   scripts/demo.sh [MODEL [PASSES]]
#
#   MODEL     a folder with solver.prototxt and train_test.prototxt; default: models/lenet/bayes-plain
#   PASSES    the number of draws; default: 100
#
# Run it at the top of the repository, after `bayescaffe data mnist`.
set -euo pipefail
PATH="$(cd "$(dirname "$0")/.." && pwd)/.venv/bin:$PATH"

model=${1:-models/lenet/bayes-plain}
passes=${2:-100}
iterations=$(sed -n 's/^max_iter: *//p' "$model/solver.prototxt")
net=$model/train_test.prototxt
weights=$model/lenet_iter_$iterations.caffemodel
draws=$model/test.draws.npz

run() {
  printf '\n$ bayescaffe %s\n' "$*"
  bayescaffe "$@"
}
run train "$model/solver.prototxt"
run inspect "$net" "$weights"
run sample "$net" "$weights" --passes "$passes" --out "$draws"
run analyze "$draws"
run report "$draws" --curve "$model/curve.csv" --out "$model/report.html"
