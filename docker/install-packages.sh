#!/bin/sh
# Installs the Debian packages that the files LIST name, one per line. A step of the Dockerfiles.
#
#   install-packages.sh LIST…
#
# Keeps the packages' licenses (/usr/share/doc/*/copyright) even if the base image omits documentation.
set -eu
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
grep -hv '^#' "$@" | xargs apt-get install -qq -y --no-install-recommends \
  -o Dpkg::Options::=--path-include='/usr/share/doc/*/copyright' > /dev/null
apt-get clean
