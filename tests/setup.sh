#!/bin/sh
# Installs the Debian packages of packages.txt that are missing, and says which. Needs root or sudo only when something is missing.
set -eu
cd "$(dirname "$0")/.."

missing=""
for package in $(sed 's/#.*//' packages.txt); do
    if [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)" != installed ]; then
        missing="$missing $package"
    fi
done
[ -n "$missing" ] || exit 0

sudo=""
if [ "$(id -u)" -ne 0 ]; then
    if ! command -v sudo >/dev/null; then
        echo "setup: these Debian packages are missing:$missing" >&2
        echo "setup: install them as root (apt-get install$missing), or install sudo, then run make again" >&2
        exit 1
    fi
    sudo=sudo
fi
echo "setup: installing Debian packages:$missing"
log=$(mktemp)
if ! { $sudo apt-get update -qq && $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing; } >"$log" 2>&1; then
    tail -n 20 "$log" >&2
    echo "setup: apt-get failed; the lines above say why" >&2
    rm -f "$log"
    exit 1
fi
rm -f "$log"
