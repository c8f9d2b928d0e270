#!/usr/bin/env bash
# Installs the wheel in dist/ as a user does: by pip, in an empty virtual environment of a fresh minimal Debian
# that has python3-venv and no -dev package. There it trains, draws and reports, imports pycaffe beside other
# packages with C++ libraries of their own, in either order, and uninstalls the wheel.
#
#   scripts/wheel_test.sh [SUITE]    default: bookworm (Debian 12); `make wheel-test` runs it
#
#   ROOTS      where the system is made; default: /var/tmp/bayescaffe-systems. wheel-SUITE.base is kept
#   WHEELS     a folder of wheels that pip uses beside the index, such as PyTorch's for the CPU; default: the one
#              of pip's find-links
#   CACHE      a folder that becomes ~/.cache/bayescaffe, for what the network lacks; default: the user's own
#
# Needs root or sudo, Debian or Ubuntu, and .venv.
# Exit codes: 0 success; 1 failure, with the reason on standard error. A system that failed is kept.
set -euo pipefail
cd "$(dirname "$0")/.."

if [ "$(id -u)" -ne 0 ]; then
  exec sudo --preserve-env=ROOTS,WHEELS,CACHE "$0" "$@"
fi
# shellcheck disable=SC2034  # for base_system.sh
name=wheel-test
. scripts/base_system.sh

suite=${1:-bookworm}
WHEELS=${WHEELS:-$(.venv/bin/pip config get global.find-links 2> /dev/null || true)}
CACHE=${CACHE:-$HOME/.cache/bayescaffe}
roots=${ROOTS:-/var/tmp/bayescaffe-systems}
base=$roots/wheel-$suite.base root=$roots/wheel-$suite.run log=build/wheel-test.log
mapfile -t wheels < <(ls dist/bayescaffe-*.whl 2> /dev/null)
[ ${#wheels[@]} -eq 1 ] || fail "dist/ has ${#wheels[@]} wheels, not one; \`make wheel\` builds it"
mkdir -p "$roots" build
install_programs debootstrap

if [ ! -d "$base" ]; then
  say "making $base with debootstrap"
  rm -rf --one-file-system "$base.new"
  bootstrap "$suite" "$base.new" python3-venv ca-certificates
  if [ -d /usr/local/share/ca-certificates ]; then
    cp -r /usr/local/share/ca-certificates "$base.new/usr/local/share"
    chroot "$base.new" update-ca-certificates > /dev/null
  fi
  pip_settings > "$base.new/etc/pip.conf"
  printf '127.0.0.1 localhost %s\n' "$(hostname)" > "$base.new/etc/hosts"
  chroot "$base.new" useradd --create-home --shell /bin/bash user
  mv "$base.new" "$base"
fi

say "$suite: ${wheels[0]}"
rm -rf --one-file-system "$root"
cp -a "$base" "$root"
home=$root/home/user
cp "${wheels[0]}" tests/wheel/use.sh tests/wheel/imports.py "$home"
cp -r models/lenet "$home"
[ ! -d "$CACHE" ] || { mkdir -p "$home/.cache"; cp -r "$CACHE" "$home/.cache/bayescaffe"; }
chroot "$root" chown -R user: /home/user
# The mounts and processes end with the command.
# shellcheck disable=SC2016  # variables of the inner shell
unshare --mount --pid --fork --kill-child bash -euc '
  mount -t proc proc "$1/proc"
  mount --rbind /sys "$1/sys"
  mount --rbind /dev "$1/dev"
  [ ! -d "$2" ] || mount --bind "$2" "$1/mnt"
  trap "exit 130" INT
  chroot "$1" su --login user --command "bash use.sh" &
  wait $!' bash "$root" "$WHEELS" 2>&1 | tee "$log"
rm -rf --one-file-system "$root"
say "all tests passed; log: $log"
