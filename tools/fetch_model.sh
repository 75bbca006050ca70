#!/bin/sh
# fetch_model.sh NAME - makes sure a model that plumb knows by name is in the store and prints its path. For the demo and
# for tests of real models: checksums are pinned in src/cmd/sources.c, an interrupted fetch goes on where it stopped.
set -eu
cd "$(dirname "$0")/.."
plumb=${PLUMB:-build/plumb}
[ -x "$plumb" ] || { echo "fetch_model.sh: no $plumb: run make first" >&2; exit 1; }
exec "$plumb" pull "$1"
