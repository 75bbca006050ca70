#!/bin/sh
# configure.sh OUT.mk - finds the libraries. Required ones stop the build with what to install; optional ones become
# -DPL_HAVE_X and their link flags, and the build says what it leaves out. Written anew when this script changes or
# after tools/install_deps.sh installed something.
set -u
out=$1
cc=${CC:-gcc}
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT

# has HEADER LIBS: does a program including the header link?
has() {
    printf '#include <stddef.h>\n#include <stdio.h>\n#include <stdint.h>\n%s\nint main(void) { return 0; }\n' "$1" > "$dir/t.c"
    $cc -D_GNU_SOURCE -o "$dir/t" "$dir/t.c" $2 > "$dir/log" 2>&1
}

if ! command -v "${cc%% *}" > /dev/null 2>&1; then # "ccache gcc" is one too
    echo "plumb: no C compiler '$cc': run 'make deps' or set CC" >&2
    exit 1
fi

missing=
need() { has "$2" "$3" || missing="$missing $1"; }
need libjansson-dev '#include <jansson.h>' -ljansson
need libpcre2-dev '#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>' -lpcre2-8
need libutf8proc-dev '#include <utf8proc.h>' -lutf8proc
need libxxhash-dev '#define XXH_INLINE_ALL
#include <xxhash.h>' ''
if [ -n "$missing" ]; then
    echo "plumb: required libraries are missing (Debian names):$missing: run 'make deps'" >&2
    exit 1
fi

features= names= libs= left=
want() { # MACRO package header libs what-it-is-for
    if has "$3" "$4"; then
        features="$features -DPL_HAVE_$1"
        names="$names $(echo "$1" | tr 'A-Z' 'a-z')"
        libs="$libs $4"
    else
        left="$left $2"
        echo "plumb: building without $2: no $5" >&2
    fi
}
want EDIT libedit-dev '#include <editline/readline.h>' -ledit 'line editing in plumb run'
want CURL libcurl4-openssl-dev '#include <curl/curl.h>' -lcurl 'plumb pull'
want ZLIB zlib1g-dev '#include <zlib.h>' -lz 'models that are published inside zip archives'
want KISSFFT libkissfft-dev '#include <kissfft/kiss_fftr.h>' -lkissfft-float 'Fourier transforms on the CPU (plumb mel)'
want MICROHTTPD libmicrohttpd-dev '#include <microhttpd.h>' -lmicrohttpd 'plumb serve'

mkdir -p "$(dirname "$out")"
{
    echo "# written by tools/configure.sh"
    echo "PL_FEATURES :=$features"
    echo "PL_FEATURE_NAMES :=$names"
    echo "PL_CMD_LIBS :=$libs"
    echo "PL_LEFT_OUT :=$left"
} > "$out.tmp" && mv "$out.tmp" "$out"
