#!/bin/sh
# install_deps.sh build|demo|check - makes sure the packages for building, the demo or the tests are there.
# On Debian and its kin they are installed with apt, only when something is missing, without questions; elsewhere the
# list is printed. `check` also makes build/venv, the Python packages of tools/requirements-test.txt.
set -eu
optional=
what=${1:-build}
cd "$(dirname "$0")/.."

build_packages="gcc make libc6-dev libjansson-dev libpcre2-dev libutf8proc-dev libxxhash-dev libcurl4-openssl-dev
libedit-dev libmicrohttpd-dev zlib1g-dev libkissfft-dev
ca-certificates"
demo_packages="python3 python3-pip" # pip knows the package index that holds the demo model
check_packages="libcmocka-dev clang clang-format libclang-rt-dev pocl-opencl-icd ocl-icd-libopencl1 curl valgrind python3 python3-venv python3-pip git
gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user libsimde-dev"
optional_packages="libamdhip64-5" # hipRTC: without it the HIP compile gates are skipped, and say so

case $what in
build) packages=$build_packages ;;
demo) packages="$build_packages $demo_packages" ;;
check) packages="$build_packages $check_packages" && optional=$optional_packages ;;
*) echo "usage: install_deps.sh build|demo|check" >&2; exit 64 ;;
esac
packages=$(echo $packages)

# The requirements by function, so that a system whose tools came from elsewhere is left alone.
compiles() { printf '%s\nint main(void) { return 0; }\n' "$1" | ${CC:-gcc} -D_GNU_SOURCE -x c -fsyntax-only - > /dev/null 2>&1; }
present() {
    case $1 in
    gcc | make | clang | clang-format | python3 | git | curl | valgrind) command -v "$1" > /dev/null 2>&1 ;;
    gcc-aarch64-linux-gnu) command -v aarch64-linux-gnu-gcc > /dev/null 2>&1 ;;
    libc6-dev-arm64-cross) printf '#include <stdio.h>\n' | aarch64-linux-gnu-gcc -x c -fsyntax-only - > /dev/null 2>&1 ;;
    libsimde-dev) printf '#include <simde/x86/avx512.h>\n' | ${CC:-gcc} -E -x c - > /dev/null 2>&1 ;;
    qemu-user) command -v qemu-aarch64 > /dev/null 2>&1 ;;
    libc6-dev) compiles '#include <stdio.h>' ;;
    libjansson-dev) compiles '#include <jansson.h>' ;;
    libpcre2-dev) compiles '#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>' ;;
    libutf8proc-dev) compiles '#include <utf8proc.h>' ;;
    libxxhash-dev) compiles '#include <xxhash.h>' ;;
    libcurl4-openssl-dev) compiles '#include <curl/curl.h>' ;;
    libedit-dev) compiles '#include <editline/readline.h>' ;;
    libmicrohttpd-dev) compiles '#include <stdint.h>
#include <microhttpd.h>' ;;
    libkissfft-dev) compiles '#include <kissfft/kiss_fftr.h>' ;;
    zlib1g-dev) compiles '#include <zlib.h>' ;;
    libamdhip64-5) ls /usr/lib/*/libamdhip64.so.* /opt/rocm/lib/libamdhip64.so.* 2> /dev/null | grep -q . ;;
    ocl-icd-libopencl1) ls /usr/lib/*/libOpenCL.so.1 /usr/lib*/libOpenCL.so.1 2> /dev/null | grep -q . ;;
    pocl-opencl-icd) ls /etc/OpenCL/vendors/*.icd > /dev/null 2>&1 ;;
    libcmocka-dev) compiles '#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>' ;;
    libclang-rt-dev) [ -n "$(find -L "$(clang -print-resource-dir 2>/dev/null)" -name 'libclang_rt.fuzzer*' 2>/dev/null)" ] ;;
    python3-venv) python3 -c 'import ensurepip, venv' > /dev/null 2>&1 ;;
    python3-pip) python3 -m pip --version > /dev/null 2>&1 ;;
    ca-certificates) [ -e /etc/ssl/certs/ca-certificates.crt ] || [ -e /etc/pki/tls/certs/ca-bundle.crt ] ||
        [ -e /etc/ssl/cert.pem ] ;;
    *) return 1 ;;
    esac
}

missing=
for p in $packages; do present "$p" || missing="$missing $p"; done
wanted=
for p in $optional; do present "$p" || wanted="$wanted $p"; done

if [ -n "$missing" ] && ! command -v apt-get > /dev/null 2>&1; then
    echo "plumb: these are missing; install your system's equivalents of the Debian packages:" >&2
    for p in $missing; do echo "  $p" >&2; done
    exit 1
fi
as_root=
if [ "$(id -u)" != 0 ]; then as_root=sudo; fi
if [ -n "$as_root" ] && ! command -v sudo > /dev/null 2>&1; then
    if [ -n "$missing" ]; then
        echo "plumb: not root and no sudo. As root: apt-get install$missing$wanted" >&2
        exit 1
    fi
    as_root=none
fi
if [ -n "$wanted" ] && { [ "$as_root" = none ] || ! command -v apt-get > /dev/null 2>&1; }; then
    echo "plumb: not here, so what needs it is skipped:$wanted" >&2
    wanted=
fi

if [ -n "$missing$wanted" ]; then
    mkdir -p build
    echo "plumb: installing$missing$wanted" >&2
    updated=yes
    $as_root env DEBIAN_FRONTEND=noninteractive apt-get update -q > build/install.log 2>&1 < /dev/null || updated=
    for p in $wanted; do # only where the distribution has it
        if [ -n "$updated" ] && apt-cache show "$p" > /dev/null 2>&1; then
            missing="$missing $p"
        else
            echo "plumb: no package $p to be had, so what needs it is skipped" >&2
        fi
    done
fi
if [ -n "$missing" ]; then
    if [ -z "$updated" ] || ! $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends $missing \
        >> build/install.log 2>&1 < /dev/null; then
        tail -n 20 build/install.log >&2
        echo "plumb: apt-get failed (build/install.log). The packages:$missing" >&2
        exit 1
    fi
    rm -f build/gen/config.mk
    for p in $missing; do
        present "$p" || echo "plumb: $p is still not usable after its installation" >&2
    done
fi

# Tests in Python have an environment of their own; pip uses its own configuration.
if [ "$what" = check ]; then
    stamp=build/venv/.requirements
    if ! cmp -s tools/requirements-test.txt "$stamp" 2>/dev/null || ! build/venv/bin/python -c '' 2>/dev/null; then
        echo "plumb: preparing build/venv" >&2
        mkdir -p build
        rm -rf build/venv
        python3 -m venv build/venv
        if ! build/venv/bin/python -m pip install -q --disable-pip-version-check -r tools/requirements-test.txt \
            > build/pip.log 2>&1 < /dev/null; then
            tail -n 20 build/pip.log >&2
            echo "plumb: pip failed (build/pip.log)" >&2
            exit 1
        fi
        cp tools/requirements-test.txt "$stamp"
    fi
fi
