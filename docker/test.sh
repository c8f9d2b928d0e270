#!/usr/bin/env bash
# Builds the images and tests them without a Docker engine. buildah builds them, with chroot isolation,
# on a base that debootstrap makes from this machine's own Debian mirror. Then every command of
# docker/README.md runs in them, as a user who is neither root nor known to the image.
#
#   docker/test.sh [cpu] [gpu]     default: both; `make docker-test` runs it
#
#   BASE                  build on this image instead
#   CUDA_ARCHITECTURES    the build argument; default: 80 only, because each architecture takes minutes
#   JOBS                  the build argument
#
# Needs root or sudo, Debian or Ubuntu, .venv and data/mnist. Layers are cached for the next run.
# Exit codes: 0 success; 1 failure, with the reason on standard error.
set -euo pipefail
cd "$(dirname "$0")/.."
repository=$PWD
mkdir -p build

if [ "$(id -u)" -ne 0 ]; then
  exec sudo --preserve-env=BASE,CUDA_ARCHITECTURES,JOBS "$0" "$@"
fi
kinds=("$@")
[ $# -gt 0 ] || kinds=(cpu gpu)

# shellcheck disable=SC2034  # for base_system.sh
name=docker-test
. scripts/base_system.sh

scratch=$(mktemp -d)
touch "$scratch/containers"
clean_up() {
  xargs -r buildah rm < "$scratch/containers" > /dev/null 2>&1 || true
  rm -rf "$scratch"
}
trap clean_up EXIT

# Creates a container from an image and prints its name.
container_of() { buildah from --pull-never "$1" | tee -a "$scratch/containers"; }

# ---- What it needs ------------------------------------------------------------------------------
install_programs buildah debootstrap

# Debian 12. Like Debian's slim images, it has no documentation but the licenses.
make_base() {
  local image=$1 container
  say "making the base $image with debootstrap"
  bootstrap bookworm "$scratch/base"
  printf 'path-exclude %s\n' '/usr/share/doc/*' '/usr/share/man/*' '/usr/share/locale/*' \
    '/usr/share/info/*' > "$scratch/base/etc/dpkg/dpkg.cfg.d/slim"
  find "$scratch/base/usr/share/doc" -type f ! -name copyright -delete
  rm -rf "$scratch"/base/usr/share/{man,locale,info}/* "$scratch"/base/var/cache/apt/* \
    "$scratch"/base/var/lib/apt/lists/* "$scratch"/base/var/log/* \
    "$scratch"/base/etc/{hostname,resolv.conf}
  container=$(container_of scratch)
  buildah copy -q "$container" "$scratch/base" / > /dev/null
  buildah config --cmd bash "$container"
  buildah commit -q "$container" "$image" > /dev/null
  rm -rf "$scratch/base"
}

base=${BASE:-}
if [ -z "$base" ]; then
  base=localhost/bayescaffe-base:bookworm
  buildah inspect --type image "$base" > /dev/null 2>&1 || make_base "$base"
fi

# The build uses this machine's certificates, package index and proxies.
secrets=(--secret 'id=ca,src=/etc/ssl/certs/ca-certificates.crt')
pip_settings > "$scratch/pip.conf"
[ ! -s "$scratch/pip.conf" ] || secrets+=(--secret "id=pip,src=$scratch/pip.conf")

# ---- A docker that is buildah -------------------------------------------------------------------
# Knows the options that docker/README.md uses. Shortens training. These containers have no GPU:
# a command that requests one must fail with a one-line error.
iterations=300
passes=41

docker() {
  local verb=$1
  shift
  case $verb in
    build) docker_build "$@" ;;
    run) docker_run "$@" ;;
    *) fail "docker/README.md uses 'docker $verb', which this script does not support" ;;
  esac
}

docker_build() {
  buildah build --isolation chroot --format docker --layers --pull-never "${secrets[@]}" \
    --build-arg BASE="$base" --build-arg REVISION="$(git rev-parse HEAD)" "$@"
}

docker_run() {
  local gpus="" container entrypoint said options=() status=0
  [ ! -d models ] || sed -i "s/^max_iter: .*/max_iter: $iterations/" models/lenet/*/solver.prototxt
  while [[ $1 == -* ]]; do
    case $1 in
      --rm) shift ;;
      --gpus) gpus=$2; shift 2 ;;
      -u) options+=(--user "$2"); shift 2 ;;
      -v) options+=(-v "$2"); shift 2 ;;
      *) fail "docker/README.md uses 'docker run $1', which this script does not support" ;;
    esac
  done
  entrypoint=$(buildah inspect --type image --format '{{index .OCIv1.Config.Entrypoint 0}}' "$1")
  container=$(container_of "$1")
  [ $# -gt 1 ] || set -- "$1" "$(buildah inspect --format '{{index .OCIv1.Config.Cmd 0}}' "$1")"
  shift
  buildah run --isolation chroot "${options[@]}" "$container" -- "$entrypoint" "$@" \
    2> "$scratch/stderr" || status=$?
  cat "$scratch/stderr" >&2
  buildah rm "$container" > /dev/null
  [ -n "$gpus" ] || return $status
  # buildah adds lines of its own.
  said=$(grep -vE '^(subprocess exited with|Error: exit) status' "$scratch/stderr")
  if [ $status -ne 1 ] || [[ ! $said =~ ^'caffe: error: no CUDA device'[^$'\n']*$ ]]; then
    fail "without a GPU, '$*' must exit with 1 and a one-line error, but exited with $status"
  fi
}

# ---- Build --------------------------------------------------------------------------------------
build() {
  local kind=$1 arguments=() words start=$SECONDS
  read -ra words < <(grep "^docker build .* -t bayescaffe:$kind " docker/README.md)
  [ "$kind" = cpu ] || arguments+=(--build-arg "CUDA_ARCHITECTURES=${CUDA_ARCHITECTURES:-80}")
  [ -z "${JOBS:-}" ] || arguments+=(--build-arg "JOBS=$JOBS")
  words=("${words[@]:0:2}" "${arguments[@]}" "${words[@]:2}")
  say "${words[*]}"
  "${words[@]}" > "build/docker-$kind.log" 2>&1 ||
    { tail -20 "build/docker-$kind.log" >&2; fail "the build of $kind failed; see build/docker-$kind.log"; }
  echo "built in $((SECONDS - start)) s; log: build/docker-$kind.log"
}

# ---- Test ---------------------------------------------------------------------------------------
# A user ID that the image does not know.
stranger=12345

# Runs the commands of docker/README.md that use an image, edited by sed: run_readme KIND SED_SCRIPT
run_readme() (
  # shellcheck disable=SC2329  # the commands call it
  id() { echo "$stranger"; }
  commands=$(awk -v kind="$1" '
    /^```sh$/ { inside = 1; text = ""; next }
    /^```$/ { if (inside && text ~ "docker run.*bayescaffe:" kind) printf "%s", text; inside = 0 }
    inside { text = text $0 "\n" }' "$repository/docker/README.md" | sed "$2")
  echo "$commands"
  eval "$commands"
)

# Runs in an empty folder.
test_image() {
  local image=bayescaffe:$1 found
  say "$image: the commands of docker/README.md, as user $stranger, with $iterations iterations"
  mkdir data
  cp -r "$repository/data/mnist" data
  chown -R $stranger:$stranger .
  run_readme cpu "s/bayescaffe:cpu/$image/; s/iter_10000/iter_$iterations/
                  s/bayescaffe sample/& --passes $passes/
                  s/ demo /&models\/lenet\/bayes-plain $passes/"
  found=$(find . ! -uid $stranger)
  [ -z "$found" ] || fail "these files do not belong to the user who ran the container: $found"
  docker run --rm -v "$PWD:/workspace" "$image" bayescaffe analyze digits.npz --json |
    python3 -c 'import json, sys; sys.exit(json.load(sys.stdin)["metrics"]["error"] > 0.1)' ||
    fail "the error on MNIST is above 10 % after $iterations iterations"

  if [ "$1" = gpu ]; then
    say "$image: requesting a GPU fails with a one-line error"
    run_readme gpu ''
  fi

  say "$image: the notebook, and JupyterLab as docker/compose.yaml starts it"
  docker run --rm -u $stranger:$stranger -v "$PWD:/workspace" "$image" sh -c \
    'cp -r /opt/bayescaffe/examples . && jupyter execute examples/uncertainty.ipynb'
  [ -s examples/uncertainty/report.html ] || fail "the notebook wrote no report"
  docker run --rm -u $stranger:$stranger -v "$PWD:/workspace" "$image" bash -c "
    $(sed -n 's/^  command: //p' "$repository/docker/compose.yaml") 2> jupyter.log &
    for second in {1..60}; do
      sleep 1
      python -c 'import urllib.request as u; print(u.urlopen(\"http://127.0.0.1:8888/api\").read().decode())' 2> /dev/null && break
    done
    kill %1
    grep -q 'http://127.0.0.1:8888/lab?token=' jupyter.log" || fail "JupyterLab does not answer"

  say "$image: the service"
  docker run --rm -u $stranger:$stranger -v "$PWD:/workspace" "$image" bash -c "
    printf 'bayescaffe\\0serve\\0' > cmdline
    /opt/bayescaffe/docker/entrypoint.sh serve models/lenet/bayes-plain/solver.prototxt &
    for second in {1..60}; do
      sleep 1
      BAYESCAFFE_CMDLINE=cmdline /opt/bayescaffe/docker/entrypoint.sh health 2> /dev/null && break
    done
    python -c 'import urllib.request as u; print(u.urlopen(\"http://127.0.0.1:8080/model\").read().decode())' &&
    kill %1 && wait %1" || fail "the service does not answer, or does not end well"

  say "$image: contents"
  [ "$(docker run --rm "$image" id -u)" = 1000 ] || fail "the image's own user is not 1000"
  docker run --rm "$image" sh -c 'touch /workspace/x' || fail "that user cannot write to /workspace"
  found=$(docker run --rm "$image" bash -c 'command -v cc gcc g++ c++ cmake ninja nvcc || true')
  [ -z "$found" ] || fail "the image has compilers: $found"
  # shellcheck disable=SC2016  # these are dpkg-query's and the container's variables
  found=$(docker run --rm "$image" bash -c '
    cd /opt/bayescaffe
    for notice in LICENSE licenses/caffe; do [ -s $notice ] || echo $notice; done
    [ ! -e build/caffe/tools/bayes_tests ] || [ -s licenses/googletest ] || echo licenses/googletest
    for package in $(dpkg-query -W -f "\${Package} "); do
      [ -s /usr/share/doc/$package/copyright ] || echo $package
    done')
  [ -z "$found" ] || fail "these licenses are missing: $found"
  # shellcheck disable=SC2016  # these are buildah's variables
  buildah inspect --type image --format '{{range $k, $v := .OCIv1.Config.Labels}}{{println $k "=" $v}}{{end}}' "$image"
  printf 'size of %s: %s (its base: %s)\n' "$image" "$(size "$image")" "$(size "$base")"
}

size() { buildah images --format '{{.Size}}' "$1"; }

for kind in "${kinds[@]}"; do
  build "$kind"
done
for kind in "${kinds[@]}"; do
  mkdir "$scratch/$kind"
  cd "$scratch/$kind"
  test_image "$kind"
  cd "$repository"
done
say "all tests passed"
