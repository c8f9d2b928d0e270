#!/usr/bin/env bash
# What a container runs: any program of the image, the demo or the GPU tests. Without arguments it
# prints what the image contains.
set -euo pipefail
top=${BAYESCAFFE_TOP:-/opt/bayescaffe}

# With `docker run -u` the user may have no home directory, or none that is writable.
[ -w "${HOME:-}" ] || export HOME=/tmp

case "${1:-help}" in
  help | --help | -h)
    cat << END
Bayesian Caffe: Caffe with Bayesian layers.

  caffe train -solver SOLVER     Caffe's own tool: train, test, time, device_query
  convert_imageset               and compute_image_mean: Caffe's tools for pictures
  bayescaffe COMMAND             data, convert, check, train, sample, merge, calibrate, analyze, predict, inspect, pack, export, report
  python                         with the modules caffe and bayescaffe
  jupyter lab --ip=0.0.0.0       publish port 8888 to use it
  demo                           train a Bayesian LeNet on MNIST and report its uncertainty
  test-gpu                       run the tests on your GPU (GPU image only)

Any other program of the image runs as well. The container works in $PWD: mount a folder there
to keep the files. The paper's nets are in $top/models/lenet, a notebook is in
$top/examples, licenses are in $top/LICENSE and $top/licenses.
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
      echo "entrypoint: only the GPU image contains the GPU tests" >&2
      exit 1
    }
    caffe device_query
    exec bayes_tests
    ;;
  *)
    command -v -- "$1" > /dev/null || {
      echo "entrypoint: no program '$1' in this image; run it without arguments for a list" >&2
      exit 127
    }
    exec "$@"
    ;;
esac
