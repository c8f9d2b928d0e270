#!/bin/sh
# Installs the Debian packages that a file names, one a line. A step of the Dockerfiles.
#
#   install-packages.sh LIST
set -eu
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
grep -v '^#' "$1" | xargs apt-get install -qq -y --no-install-recommends > /dev/null
apt-get clean
