#!/bin/sh
# dist.sh BUILD VERSION - build/dist/plumb-VERSION-linux-ARCH.tar.xz: a folder that runs from anywhere on a Linux with
# the same or a newer glibc. bin/plumb finds lib/ through $ORIGIN; everything but glibc itself is bundled, and licences/
# holds the terms of each bundled package.
set -eu
build=$1 version=$2
name=plumb-$version-linux-$(uname -m)
top=$build/dist/$name
for tool in xz readelf ldd dpkg-query; do
    command -v $tool > /dev/null 2>&1 || { echo "dist.sh: needs $tool (Debian: xz-utils, binutils, dpkg)" >&2; exit 1; }
done
rm -rf "$top" "$top.tar.xz"
mkdir -p "$top/bin" "$top/lib" "$top/include" "$top/licences" "$top/share/man/man1"

install -m 755 "$build/release/plumb-dist" "$top/bin/plumb"
install -m 755 "$build/release/libplumb-dist.so" "$top/lib/libplumb.so.0"
ln -s libplumb.so.0 "$top/lib/libplumb.so"
strip --strip-debug "$top/bin/plumb" "$top/lib/libplumb.so.0"
install -m 644 include/plumb.h "$top/include/"
install -m 644 docs/plumb.1 "$top/share/man/man1/"
install -m 644 README.md CHANGELOG.md "$top/"
install -m 644 LICENSE "$top/licences/plumb"
if [ -d kernels ]; then
    (find kernels -type f \( -name '*.c' -o -name '*.h' -o -name '*.cu' -o -name '*.cl' \)) | while read -r f; do
        mkdir -p "$top/$(dirname "$f")"
        install -m 644 "$f" "$top/$f"
    done
fi

# Kernels for machines with NVIDIA's driver and no NVRTC: where the compiler is here now.
echo "dist: compiling CUDA kernels, which takes minutes" >&2
if "$build/release/plumb" cache --ship "$top/lib/plumb-kernels.pack" > "$build/dist/ship.log"; then
    echo "dist: $(cat "$build/dist/ship.log")"
else
    rm -f "$top/lib/plumb-kernels.pack"
    echo "dist: no kernels are shipped compiled (above: why)" >&2
fi

# Everything that ldd finds and glibc does not own.
ldd "$build/release/plumb-dist" | awk '$3 ~ /^\// { print $3 }' | while read -r lib; do
    real=$(readlink -f "$lib")
    package=
    for path in "$lib" "$real" "/usr$lib" "/usr$real"; do
        package=$(dpkg-query -S "$path" 2>/dev/null | head -n 1 | cut -d: -f1) && [ -n "$package" ] && break
    done
    [ "$package" = libc6 ] && continue
    [ -n "$package" ] || { echo "dist.sh: no package owns $lib, so its licence is not known" >&2; exit 1; }
    install -m 644 "$real" "$top/lib/$(basename "$lib")"
    [ -f "/usr/share/doc/$package/copyright" ] || { echo "dist.sh: no licence text of $package" >&2; exit 1; }
    install -m 644 "/usr/share/doc/$package/copyright" "$top/licences/$package"
done

need=$(readelf -V "$top/bin/plumb" "$top"/lib/*.so* | grep -o 'GLIBC_2\.[0-9]*' | sort -t. -k2 -n | tail -n 1)
echo "needs ${need#GLIBC_} or newer of glibc, nothing else" > "$top/REQUIRES"
epoch=$(git log -1 --format=%ct 2>/dev/null || date +%s)
echo "dist: packing" >&2
tar -C "$build/dist" --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$epoch" -cf - "$name" | xz -6 -T2 > "$top.tar.xz"
echo "dist: $top.tar.xz, $(du -k "$top.tar.xz" | cut -f1) KB, $(ls "$top"/lib/*.so* | wc -l) libraries, glibc ${need#GLIBC_}"
