#!/bin/sh
# build_info.sh OUT.h - macros that say what this build is made of: compiler, flags, revision, hash of the kernel
# sources (kernels/ and src/cpu/) and of each source, build id (hash of every source, the compiler and the flags). The file is only
# touched when a value changes.
set -eu
out=$1
cc=${CC:-gcc}

# Content hash of the C files below the given places, in a fixed order.
hash_of() {
    files=
    for place in "$@"; do [ -e "$place" ] && files="$files $place"; done
    if [ -z "$files" ]; then printf none; return; fi
    find $files -type f \( -name '*.[ch]' -o -name '*.cl' -o -name '*.cu' -o -name '*.hip' \) | LC_ALL=C sort |
        xargs -r sha256sum | sha256sum | cut -c1-32
}

quote() { printf '%s' "$1" | tr '\n' ' ' | sed -e 's/\\/\\\\/g' -e 's/"/\\"/g' -e 's/  */ /g' -e 's/ $//'; }

compiler=$($cc --version 2>/dev/null | head -n 1)
revision=$(git rev-parse --short=12 HEAD 2>/dev/null || true)
kernels=$(hash_of kernels src/cpu)
sources=$(hash_of src include kernels)
id=$(printf '%s\n%s\n%s\n%s' "$sources" "$compiler" "${FLAGS:-}" "${FEATURES:-}" | sha256sum | cut -c1-32)

# "hash path" of every source, so that two builds can say which files differ.
listed=$(find src include kernels -type f \( -name '*.[ch]' -o -name '*.cl' -o -name '*.cu' -o -name '*.hip' \) | LC_ALL=C sort |
    xargs -r sha256sum | sed -e 's/^\(.\{16\}\)[0-9a-f]*  \(.*\)$/    "\1 \2\\n" \\/')

mkdir -p "$(dirname "$out")"
new=$out.$$ # two builds at once do not share it
trap 'rm -f "$new"' EXIT
cat > "$new" <<END
/* Written by tools/build_info.sh. */
#ifndef PL_BUILD_INFO_H
#define PL_BUILD_INFO_H
#define PL_BUILD_COMPILER "$(quote "$compiler")"
#define PL_BUILD_FLAGS "$(quote "${FLAGS:-}")"
#define PL_BUILD_FEATURES "$(quote "${FEATURES:-}")"
#define PL_BUILD_REVISION "$(quote "$revision")"
#ifdef PL_FAULTS
#define PL_BUILD_ID "$id-faults"
#else
#define PL_BUILD_ID "$id"
#endif
#define PL_KERNEL_HASH "$kernels"
#define PL_BUILD_SOURCES \\
$listed
    ""
#endif
END
cmp -s "$new" "$out" || mv "$new" "$out"
