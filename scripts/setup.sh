#!/usr/bin/env bash
# Installs what the build needs: missing Debian packages, and a virtual environment with the pinned Python
# packages. Finishes at once when nothing is missing.
#
#   scripts/setup.sh               packages and environment
#   scripts/setup.sh --check       only print the missing Debian packages; exit 1 if there are any
#   scripts/setup.sh --tests       only the packages of tests that are skipped without them
#   scripts/setup.sh --mpi         only MPI, for training on several machines
#   scripts/setup.sh --compilers   only the compilers of `make compilers`
#   scripts/setup.sh --fuzz        only the compiler of `make fuzz`
#   scripts/setup.sh --peers       only the libraries that `make bench` compares with
set -euo pipefail
cd "$(dirname "$0")/.."

list=scripts/apt-packages.txt
venv=.venv

if [ "${1:-}" = --tests ]; then
  list=scripts/apt-packages-test.txt
  # Ubuntu's package chromium only installs a snap, which many systems cannot run.
  ! grep -q '^ID=ubuntu' "${OS_RELEASE:-/etc/os-release}" || exit 0
elif [ "${1:-}" = --mpi ] || [ "${1:-}" = --compilers ] || [ "${1:-}" = --fuzz ] || [ "${1:-}" = --peers ]; then
  list=scripts/apt-packages-${1#--}.txt
fi

command -v dpkg-query > /dev/null || {
  echo "setup: this is not Debian or Ubuntu; install the equivalents of the packages in $list yourself," \
       "then put a program named dpkg-query that prints 'install ok installed' on PATH" >&2
  exit 1
}
mapfile -t wanted < <(grep -v '^#' "$list")
missing=()
for package in "${wanted[@]}"; do
  status=$(dpkg-query -W -f '${Status}' "$package" 2> /dev/null || true)
  [ "$status" = "install ok installed" ] || missing+=("$package")
done

if [ "${1:-}" = --check ]; then
  [ ${#missing[@]} -eq 0 ] || { printf '%s\n' "${missing[@]}"; exit 1; }
  exit 0
fi

if [ ${#missing[@]} -gt 0 ]; then
  as_root=()
  if [ "$(id -u)" -ne 0 ]; then
    if command -v sudo > /dev/null; then
      as_root=(sudo)
    elif [ "${1:-}" = --tests ] || [ "${1:-}" = --mpi ]; then
      echo "setup: continuing without ${missing[*]}; installing them needs root or sudo"
      exit 0
    else
      echo "setup: packages are missing, and installing them needs root or sudo. Ask an administrator to run:" >&2
      echo "  apt-get install ${missing[*]}" >&2
      exit 1
    fi
  fi
  echo "setup: installing ${missing[*]}"
  "${as_root[@]}" apt-get update -qq
  # A release may lack optional packages, but not those of the build.
  if [ "$list" != scripts/apt-packages.txt ]; then
    for i in "${!missing[@]}"; do
      apt-cache show "${missing[i]}" > /dev/null 2>&1 || {
        echo "setup: this system has no package ${missing[i]}; continuing without it"
        unset "missing[i]"
      }
    done
  fi
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get install -qq -y --no-install-recommends "${missing[@]}" > /dev/null
fi
[ "$list" = scripts/apt-packages.txt ] || exit 0

# Boost.Python is built for the system's Python, so the environment uses that one.
wants=$(cat python/requirements.txt pyproject.toml scripts/setup.sh | sha256sum)
if [ "$(cat $venv/.installed 2> /dev/null || true)" != "$wants" ]; then
  echo "setup: creating the virtual environment $venv"
  rm -rf $venv
  /usr/bin/python3 -m venv $venv
  $venv/bin/pip install -q -r python/requirements.txt
  $venv/bin/pip install -q --no-deps --no-build-isolation --config-settings=wheel.cmake=false -e .
  site=$($venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  echo "$PWD/build/caffe-src/python" > "$site/pycaffe.pth"
  echo "$wants" > $venv/.installed
fi
