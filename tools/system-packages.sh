#!/bin/sh
# Installs the optional system packages that widen the tests: PostgreSQL, bubblewrap, tmux, Chromium, a C++ compiler.
# Needs root on Debian or Ubuntu; anywhere else it does nothing and says so. Tests that miss one skip and name it.
set -u
packages="postgresql bubblewrap tmux chromium g++"
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "optional packages not installed (needs root on Debian): $packages"
    exit 0
fi
export DEBIAN_FRONTEND=noninteractive
missing=""
for package in $packages; do
    dpkg -s "$package" >/dev/null 2>&1 || missing="$missing $package"
done
[ -z "$missing" ] && exit 0
apt-get update -q >/dev/null 2>&1
for package in $missing; do
    apt-get install -y -q --no-install-recommends "$package" >/dev/null 2>&1 || echo "could not install $package; its tests will skip"
done
exit 0
