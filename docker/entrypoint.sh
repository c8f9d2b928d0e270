#!/usr/bin/env bash
# What a container runs: any program of the image, or the demo; by itself it says what there is.
set -euo pipefail
top=${BAYESCAFFE_TOP:-/opt/bayescaffe}

# With `-u`, the user may have no home, or one of somebody else.
[ -w "${HOME:-}" ] || export HOME=/tmp

case "${1:-help}" in
  help | --help | -h)
    cat << END
Bayesian Caffe: nets that know how sure they are.

  caffe train -solver SOLVER     Caffe's own tool: train, test, time, device_query
  bayescaffe COMMAND             data, train, sample, analyze, predict, inspect, report
  python                         with the modules caffe and bayescaffe
  jupyter lab --ip=0.0.0.0       with port 8888 published
  demo                           train a Bayesian LeNet on MNIST, and say how sure it is of what
  test-gpu                       our tests on your GPU; in the GPU image

Any other program of the image runs as well. Work is done in $PWD: mount a folder there to
keep it. The paper's nets are in $top/models/lenet, a notebook is in $top/examples.
END
    ;;
  demo)
    shift
    mkdir -p models
    [ -e models/lenet ] || cp -r "$top/models/lenet" models
    bayescaffe data mnist
    exec "$top/scripts/demo.sh" "$@"
    ;;
  test-gpu)
    command -v bayes_tests > /dev/null || {
      echo "entrypoint: only the GPU image has the tests for a GPU" >&2
      exit 1
    }
    caffe device_query
    exec bayes_tests
    ;;
  *)
    command -v -- "$1" > /dev/null || {
      echo "entrypoint: there is no program '$1'; without arguments this image tells what it has" >&2
      exit 127
    }
    exec "$@"
    ;;
esac
