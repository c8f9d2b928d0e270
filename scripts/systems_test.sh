#!/usr/bin/env bash
# Runs `make test` and `make demo`, each as the first command on a fresh minimal system that has nothing
# but git, make, ca-certificates and sudo, as an unprivileged user, in a folder whose path has odd characters.
#
#   scripts/systems_test.sh [SUITE…]    Debian's bookworm and trixie by default; `make systems-test` runs it
#
#   ROOTS      where systems are made, by default /var/tmp/bayescaffe-systems (2 GB each); SUITE.base is kept
#   TARGETS    what to make, each on a system of its own; "test demo" by default
#   FOLDER     the folder of the clone, below the user's home
#   CACHE      a folder that becomes the user's ~/.cache, for what the network lacks
#   MASK       the user's umask
#
# Takes the last commit; changes that are not committed are left out. Needs root or sudo, Debian or Ubuntu
# and .venv. A suite of Ubuntu (jammy) needs the package ubuntu-keyring.
# Exit codes: 0 all is well, 1 with the reason on standard error; the system that failed is left in place.
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

# The system before the user types anything. It reaches what this machine reaches.
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

# Runs a command as the user of a system. Its mounts and processes end with it. The first process of a
# namespace only heeds signals that it traps, and unshare heeds none.
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
    { tail -20 "$log" >&2; fail "$suite: make $target fails; log: $log, system: $root"; }
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
say "all is well"
