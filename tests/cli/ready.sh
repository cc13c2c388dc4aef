#!/usr/bin/env bash
# The folder that ./run gpu --prebuild makes for a bare machine: complete or not there, stripped, with a text of what it
# is; its program runs in an empty root that has libc alone.
. "$SOURCE/tests/cli/common.bash"
command -v strip >/dev/null && command -v ldd >/dev/null || { echo 'there is no strip or no ldd'; exit 77; }
cd "$SOURCE" || exit 1
. "$SOURCE/profiles/gpu_build.sh"
nvcc=
make_ready "$work/ready" '0123abc with changes' './run gpu --prebuild' "$RESHARD" || fault 'make_ready'
cd "$work" || exit 1
checks=$((checks + 1))
grep -qx 'commit: 0123abc with changes' ready/ready.txt && grep -qx 'command: ./run gpu --prebuild' ready/ready.txt &&
  grep -qx 'programs: reshard' ready/ready.txt && grep -qE '^needs: glibc of 2\.[0-9]+ or newer$' ready/ready.txt ||
  fault "$(cat ready/ready.txt)"
[ ! -e ready.new ] && [ ! -e ready.old ] || fault "left: $(ls)"
[ "$(wc -c <ready/reshard)" -lt "$(wc -c <"$RESHARD")" ] || fault 'it is not stripped'

# Made again with a program that is not there, it stays as it was.
! make_ready "$work/ready" other how "$RESHARD" "$work/none" 2>/dev/null || fault 'it is made without a program'
grep -q '0123abc' ready/ready.txt && [ -x ready/reshard ] || fault "$(ls -A ready)"

# An empty root. A sanitizer's program wants more.
! ldd "$RESHARD" | grep -qE 'lib[at]san' || finish
root=$work/root
enter=(chroot "$root")
[ "$(id -u)" = 0 ] || enter=(unshare -r chroot "$root")
mkdir -p "$root/tmp"
while read -r library; do
  mkdir -p "$root${library%/*}" && cp -L "$library" "$root$library"
done < <(ldd "$RESHARD" | grep -oE '/[^ ]*/(libc|libm|libdl|librt|libpthread|ld-linux[^ ]*)\.so[^ ]*')
cp -r ready "$root/ready"
[ "$(id -u)" = 0 ] || unshare -r true 2>/dev/null || { echo 'no other root may be had here'; finish; }
for words in info 'verify --cases 20 --seed 3'; do
  # Without /proc a program does not know where it is, so its libraries are named here.
  # shellcheck disable=SC2086
  LD_LIBRARY_PATH=/ready "${enter[@]}" /ready/reshard $words >out 2>err || fault "$words: $(cat out err)"
done
finish
