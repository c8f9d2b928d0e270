#!/usr/bin/env bash
# Builds the images for real and tries them, without a Docker engine: buildah builds them, with
# chroot isolation, on a base made by debootstrap from this machine's own Debian mirror. Then every
# command of docker/README.md runs in them, as a user who is neither root nor known to the image.
#
#   docker/test.sh [cpu] [gpu]     both by default; `make docker-test` runs it
#
#   BASE                  build on this image instead
#   CUDA_ARCHITECTURES    as the build argument; only 80 unless told, since each takes its time
#   JOBS                  as the build argument
#
# Needs root or sudo, Debian or Ubuntu, .venv and data/mnist. Keeps layers: a second run is quick.
# Exit codes: 0 all is well, 1 with the reason on standard error.
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

# Makes a container of an image, and tells its name.
container_of() { buildah from --pull-never "$1" | tee -a "$scratch/containers"; }

# ---- What it needs ------------------------------------------------------------------------------
install_programs buildah debootstrap

# Debian 12 without the manuals, as in Debian's slim images.
make_base() {
  local image=$1 container
  say "making the base $image with debootstrap"
  bootstrap bookworm "$scratch/base"
  printf 'path-exclude %s\n' '/usr/share/doc/*' '/usr/share/man/*' '/usr/share/locale/*' \
    '/usr/share/info/*' > "$scratch/base/etc/dpkg/dpkg.cfg.d/slim"
  rm -rf "$scratch"/base/usr/share/{doc,man,locale,info}/* "$scratch"/base/var/cache/apt/* \
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

# A build reaches what this machine reaches: its certificates, its package index and proxies.
secrets=(--secret 'id=ca,src=/etc/ssl/certs/ca-certificates.crt')
pip_settings > "$scratch/pip.conf"
[ ! -s "$scratch/pip.conf" ] || secrets+=(--secret "id=pip,src=$scratch/pip.conf")

# ---- A docker that is buildah -------------------------------------------------------------------
# Understands what docker/README.md uses. Trainings are cut short. There
# is no GPU in these containers: what asks for one must say so in one line.
iterations=300
passes=41

docker() {
  local verb=$1
  shift
  case $verb in
    build) docker_build "$@" ;;
    run) docker_run "$@" ;;
    *) fail "docker/README.md has 'docker $verb', which this script does not know" ;;
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
      *) fail "docker/README.md has 'docker run $1', which this script does not know" ;;
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
  # The other lines are buildah's.
  said=$(grep -vE '^(subprocess exited with|Error: exit) status' "$scratch/stderr")
  if [ $status -ne 1 ] || [[ ! $said =~ ^'caffe: error: no CUDA device'[^$'\n']*$ ]]; then
    fail "where there is no GPU, '$*' must end with 1 and one line, but ended with $status"
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
    { tail -20 "build/docker-$kind.log" >&2; fail "it fails; all of its log: build/docker-$kind.log"; }
  echo "built in $((SECONDS - start)) s; log: build/docker-$kind.log"
}

# ---- Try ----------------------------------------------------------------------------------------
# A user whom the image does not know.
stranger=12345

# Runs the commands in docker/README.md that run an image of a kind, changed by sed.
run_readme() (
  # shellcheck disable=SC2329  # the commands ask it who the user is
  id() { echo "$stranger"; }
  commands=$(awk -v kind="$1" '
    /^```sh$/ { inside = 1; text = ""; next }
    /^```$/ { if (inside && text ~ "docker run.*bayescaffe:" kind) printf "%s", text; inside = 0 }
    inside { text = text $0 "\n" }' "$repository/docker/README.md" | sed "$2")
  echo "$commands"
  eval "$commands"
)

# Runs in an empty folder.
try() {
  local image=bayescaffe:$1 found
  say "$image: the commands of docker/README.md, as user $stranger, with $iterations iterations"
  mkdir data
  cp -r "$repository/data/mnist" data
  chown -R $stranger:$stranger .
  run_readme cpu "s/bayescaffe:cpu/$image/; s/iter_10000/iter_$iterations/
                  s/bayescaffe sample/& --passes $passes/
                  s/ demo /&models\/lenet\/bayes-plain $passes/"
  found=$(find . ! -uid $stranger)
  [ -z "$found" ] || fail "these files are not of the user who ran the container: $found"
  docker run --rm -v "$PWD:/workspace" "$image" bayescaffe analyze digits.npz --json |
    python3 -c 'import json, sys; sys.exit(json.load(sys.stdin)["metrics"]["error"] > 0.1)' ||
    fail "more than 10 % of MNIST is wrong after $iterations iterations"

  if [ "$1" = gpu ]; then
    say "$image: what needs a GPU says that there is none"
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

  say "$image: what is in it"
  [ "$(docker run --rm "$image" id -u)" = 1000 ] || fail "the image's own user is not 1000"
  docker run --rm "$image" sh -c 'touch /workspace/x' || fail "that user cannot write to /workspace"
  found=$(docker run --rm "$image" bash -c 'command -v cc gcc g++ c++ cmake ninja nvcc || true')
  [ -z "$found" ] || fail "the image has compilers: $found"
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
  try "$kind"
  cd "$repository"
done
say "all is well"
