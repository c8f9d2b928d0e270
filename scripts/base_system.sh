# Functions for the scripts that test the project on a fresh system: docker/test.sh, scripts/systems_test.sh.
# The scripts set `name`, the prefix of all messages.
# shellcheck shell=bash disable=SC2154

say() { printf '\n%s: %s\n' "$name" "$*"; }
fail() { printf '%s: %s\n' "$name" "$*" >&2; exit 1; }

# Installs missing programs. Each is in the package of the same name.
install_programs() {
  local program missing=()
  for program in "$@"; do
    command -v "$program" > /dev/null || missing+=("$program")
  done
  [ ${#missing[@]} -gt 0 ] || return 0
  say "installing ${missing[*]}"
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends "${missing[@]}" > /dev/null
}

# bootstrap SUITE DIRECTORY [PACKAGE…]: makes a minimal Debian from the mirror that this machine's apt uses,
# or a minimal Ubuntu from debootstrap's default mirror.
bootstrap() {
  local suite=$1 directory=$2 script=/usr/share/debootstrap/scripts/$1 options=() mirror=()
  shift 2
  [ $# -eq 0 ] || options+=("--include=$(IFS=,; echo "$*")")
  [ -e "$script" ] || fail "debootstrap does not know $suite"
  if grep -q ubuntu "$script"; then
    [ -e /usr/share/keyrings/ubuntu-archive-keyring.gpg ] ||
      fail "$suite needs the keys of Ubuntu's archive: install the package ubuntu-keyring"
    options+=("--components=main,universe")
  else
    # shellcheck disable=SC2016  # these are apt's variables
    mapfile -t mirror < <(apt-get indextargets --format '$(REPO_URI) $(ORIGIN) $(LABEL)' |
                          awk '$2 == "Debian" && $3 == "Debian" { print $1; exit }')
    [ ${#mirror[@]} -gt 0 ] || fail "apt's configuration names no Debian mirror"
  fi
  debootstrap --variant=minbase "${options[@]}" "$suite" "$directory" "${mirror[@]}" > "$directory.log" ||
    { tail "$directory.log" >&2; fail "debootstrap failed"; }
  rm "$directory.log"
}

# Prints a pip.conf with this machine's package index, for another system; nothing if pip uses its default.
pip_settings() {
  local settings
  settings=$(.venv/bin/pip config list | sed -nE "s/^[^=]*\.(index-url|trusted-host|proxy)='(.*)'/\1 = \2/p")
  [ -z "$settings" ] || printf '[global]\n%s\n' "$settings"
}
