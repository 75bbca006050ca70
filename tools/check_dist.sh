#!/bin/sh
# check_dist.sh ARCHIVE - unpacks the archive into an empty root that holds nothing but glibc's own files, and runs it
# there. With the small demo model in the store it also answers a question. Needs root for chroot.
set -eu
archive=$1
[ "$(id -u)" = 0 ] || { echo "check_dist.sh: needs root for chroot" >&2; exit 1; }
root=$(mktemp -d)
trap 'umount "$root/proc" 2>/dev/null || true; mountpoint -q "$root/proc" || rm -rf "$root"' EXIT
mkdir -p "$root/opt" "$root/tmp" "$root/models" "$root/proc"
mount -t proc proc "$root/proc" # the loader asks /proc/self/exe what $ORIGIN is
dpkg -L libc6 | grep -E '\.so(\.[0-9]+)?$' | while read -r f; do
    mkdir -p "$root$(dirname "$f")"
    cp -L "$f" "$root$f"
done
[ -e "$root/lib64/ld-linux-x86-64.so.2" ] || { mkdir -p "$root/lib64"; cp -L /lib64/ld-linux-x86-64.so.2 "$root/lib64/"; }
tar -C "$root/opt" -xf "$archive"
plumb=/opt/$(basename "$archive" .tar.xz)/bin/plumb
inside() { env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/tmp PLUMB_HOME=/ chroot "$root" "$@"; }
inside "$plumb" --version
inside "$plumb" --help > "$root/tmp/help"
grep -q pull "$root/tmp/help" || { echo "check_dist.sh: no help" >&2; exit 1; }
model=$("${PLUMB:-build/plumb}" list --json | sed -n 's/.*"directory": "\(.*smollm2-135m-instruct\)".*/\1/p')
if [ -n "$model" ]; then
    cp -r "$model" "$root/models/"
    answer=$(inside "$plumb" run smollm2-135m-instruct --system "You are a helpful assistant." -p "What is the capital of France?" --temp 0 -n 40)
    echo "$answer"
    case $answer in *Paris*) ;; *) echo "check_dist.sh: the answer does not name Paris" >&2; exit 1 ;; esac
else
    echo "check_dist.sh: the demo model is not stored ('make demo'), so only --version and --help were tried"
fi
echo "check_dist.sh: runs with glibc alone"
