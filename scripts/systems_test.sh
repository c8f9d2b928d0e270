#!/usr/bin/env bash
# Runs `make test` and `make demo`, each as the first command on a fresh minimal system: one that has only
# git, make, ca-certificates and sudo, with an unprivileged user and a clone whose path contains spaces.
#
#   scripts/systems_test.sh [SUITE…]    default: bookworm trixie (Debian 12 and 13); `make systems-test` runs it
#
#   ROOTS      where systems are made; default: /var/tmp/bayescaffe-systems (2 GB each). SUITE.base is kept
#   TARGETS    the targets to make, each on its own system; default: "test demo"
#   FOLDER     the folder of the clone, below the user's home
#   CACHE      a folder that becomes the user's ~/.cache, for what the network lacks
#   MASK       the user's umask; default: 022
#
# Tests the last commit, without uncommitted changes. Needs root or sudo, Debian or Ubuntu, and .venv. A suite
# of Ubuntu, such as jammy, needs the package ubuntu-keyring.
# Exit codes: 0 success; 1 failure, with the reason on standard error. A system that failed is kept.
set -euo pipefail
cd "$(dirname "$0")/.."

if [ "$(id -u)" -ne 0 ]; then
  exec sudo --preserve-env=ROOTS,TARGETS,FOLDER,CACHE,MASK "$0" "$@"
fi
# shellcheck disable=SC2034  # for base_system.sh
name=systems-test
. scripts/base_system.sh

suites=("$@")
[ $# -gt 0 ] || suites=(bookworm trixie)
roots=${ROOTS:-/var/tmp/bayescaffe-systems}
folder=${FOLDER:-my projects/bayes caffe}
mkdir -p "$roots" build
install_programs debootstrap

# Makes the system as a new user finds it, with this machine's certificates and package index.
make_base() {
  local suite=$1 base=$2
  say "making $base with debootstrap"
  bootstrap "$suite" "$base" git make ca-certificates sudo
  if [ -d /usr/local/share/ca-certificates ]; then
    cp -r /usr/local/share/ca-certificates "$base/usr/local/share"
    chroot "$base" update-ca-certificates > /dev/null
  fi
  pip_settings > "$base/etc/pip.conf"
  printf '127.0.0.1 localhost %s\n' "$(hostname)" > "$base/etc/hosts"
  chroot "$base" useradd --create-home --shell /bin/bash user
  echo 'user ALL=(ALL) NOPASSWD: ALL' > "$base/etc/sudoers.d/user"
}

# Runs a command as the user of a system. The mounts and processes end with the command. The first
# process of a namespace receives only the signals that it traps, and unshare passes none on.
as_user() {
  local root=$1 command=$2
  # shellcheck disable=SC2016  # variables of the inner shell
  unshare --mount --pid --fork --kill-child bash -euc '
    mount -t proc proc "$1/proc"
    mount --rbind /sys "$1/sys"
    mount --rbind /dev "$1/dev"
    trap "exit 130" INT
    chroot "$1" su --login user --command "$2" &
    wait $!' bash "$root" "$command"
}

try() {
  local suite=$1 target=$2 root=$roots/$1.$2 log=build/systems-$1-$2.log home start=$SECONDS
  say "$suite: make $target"
  rm -rf --one-file-system "$root"
  cp -a "$roots/$suite.base" "$root"
  home=$root/home/user
  mkdir -p "$home/$folder"
  git clone -q . "$home/$folder"
  [ -z "${CACHE:-}" ] || cp -rT "$CACHE" "$home/.cache"
  chroot "$root" chown -R user: /home/user
  as_user "$root" "umask ${MASK:-022} && cd $(printf %q "$folder") && make $target" > "$log" 2>&1 ||
    { tail -20 "$log" >&2; fail "$suite: make $target failed; log: $log, system: $root"; }
  tail -3 "$log"
  echo "$((SECONDS - start)) s; log: $log"
  rm -rf --one-file-system "$root"
}

for suite in "${suites[@]}"; do
  [ -d "$roots/$suite.base" ] || { make_base "$suite" "$roots/$suite.new"; mv "$roots/$suite.new" "$roots/$suite.base"; }
  for target in ${TARGETS:-test demo}; do
    try "$suite" "$target"
  done
done
say "all tests passed"
