#!/usr/bin/env bash
# What a container runs: any program of the image, the service, the demo or the GPU tests. Without arguments it
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
  bayescaffe COMMAND             data, convert, check, train, sample, merge, calibrate, analyze, predict, serve, inspect, pack, export, report, completion
  python                         with the modules caffe and bayescaffe
  jupyter lab --ip=0.0.0.0       publish port 8888 to use it
  demo                           train a Bayesian LeNet on MNIST and report its uncertainty
  serve NET [WEIGHTS]            bayescaffe serve, for others than this container: publish port 8080
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
  serve)
    shift
    exec bayescaffe serve --host 0.0.0.0 "$@"
    ;;
  health) # what Docker asks; a container that does not serve is as healthy as it runs
    mapfile -d '' -t words < "${BAYESCAFFE_CMDLINE:-/proc/1/cmdline}"
    [[ " ${words[*]} " == *" serve "* ]] || exit 0
    port=8080
    for i in "${!words[@]}"; do
      case ${words[i]} in
        --port) port=${words[i + 1]} ;;
        --port=*) port=${words[i]#--port=} ;;
      esac
    done
    exec python -c "import urllib.request as u; u.urlopen('http://127.0.0.1:$port/healthz', timeout=4)"
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
