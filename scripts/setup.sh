#!/usr/bin/env bash
# Installs what the build needs: Debian packages that are missing, and a virtual environment with the
# pinned Python packages. Does nothing, quickly, when all is there.
#
#   scripts/setup.sh               packages and environment
#   scripts/setup.sh --check       only say which Debian packages are missing; exit 1 if any is
#   scripts/setup.sh --tests       only the packages that some tests need and skip without
#   scripts/setup.sh --compilers   only the compilers that `make compilers` tries
#   scripts/setup.sh --peers       only the libraries that `make bench` compares with
set -euo pipefail
cd "$(dirname "$0")/.."

list=scripts/apt-packages.txt
venv=.venv

if [ "${1:-}" = --tests ]; then
  list=scripts/apt-packages-test.txt
  # Ubuntu's chromium only stands for a snap, which cannot be counted on.
  ! grep -q '^ID=ubuntu' "${OS_RELEASE:-/etc/os-release}" || exit 0
elif [ "${1:-}" = --compilers ] || [ "${1:-}" = --peers ]; then
  list=scripts/apt-packages-${1#--}.txt
fi

command -v dpkg-query > /dev/null || {
  echo "setup: this is not Debian or Ubuntu; install the counterparts of the packages in $list by" \
       "hand, then put a program named dpkg-query that always succeeds on PATH" >&2
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
    elif [ "${1:-}" = --tests ]; then
      echo "setup: without ${missing[*]}, which needs root or sudo, some tests are skipped"
      exit 0
    else
      echo "setup: these packages are missing, and you are neither root nor is there sudo. Ask an" \
           "administrator for:" >&2
      echo "  apt-get install ${missing[*]}" >&2
      exit 1
    fi
  fi
  echo "setup: installing ${missing[*]}"
  "${as_root[@]}" apt-get update -qq
  # Not every release has them all; the build's packages must all be there.
  if [ "$list" != scripts/apt-packages.txt ]; then
    for i in "${!missing[@]}"; do
      apt-cache show "${missing[i]}" > /dev/null 2>&1 || {
        echo "setup: this system has no package ${missing[i]}; going on without it"
        unset "missing[i]"
      }
    done
  fi
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get install -qq -y --no-install-recommends "${missing[@]}" > /dev/null
fi
[ "$list" = scripts/apt-packages.txt ] || exit 0

# Boost.Python is built for the system's Python, so the environment is made of that one.
wants=$(cat python/requirements.txt python/pyproject.toml scripts/setup.sh | sha256sum)
if [ "$(cat $venv/.installed 2> /dev/null || true)" != "$wants" ]; then
  echo "setup: making the virtual environment $venv"
  rm -rf $venv
  /usr/bin/python3 -m venv $venv
  $venv/bin/pip install -q -r python/requirements.txt
  $venv/bin/pip install -q --no-deps --no-build-isolation -e python
  site=$($venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  echo "$PWD/build/caffe-src/python" > "$site/pycaffe.pth"
  echo "$wants" > $venv/.installed
fi
