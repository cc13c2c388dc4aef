#!/usr/bin/env bash
# A file system that is full by the last page of a conversion, or of the one before: status 1 with one line, OUT as it
# was, nothing beside it; with that page it works. Sources and destinations of packed elements too.
if [ "${IN_NAMESPACE:-}" = '' ]; then
  unshare -m true 2>/dev/null || { echo 'no mount namespace for a file system of its own'; exit 77; }
  IN_NAMESPACE=yes exec unshare -m bash "$0" "$@"
fi
. "$SOURCE/tests/cli/common.bash" || exit 1
. "$SOURCE/tests/files/conversions.bash" || exit 1
before() { # OUT is on the file system
  mkdir -p "$work/out.d"
  rm -rf "$work"/out.d/*
  [ -z "$old" ] || cp -a "$old" "$out"
}
resize() { mount -o "remount,size=$(($1 * 4096))" "$work/out.d" 2>/dev/null; } # PAGES: more than are in use
convert() { # PAGES: one run on a file system of so many, if what OUT was fits it
  resize 4096
  before
  resize "$1" || { status=none; return; }
  run convert "${arguments[@]}"
}

packed='{"w":{"dtype":"F4","shape":[96,1024],"data_offsets":[0,49152]},'
packed+='"v":{"dtype":"F6_E2M3","shape":[8,20],"data_offsets":[49152,49272]}}'
{ safetensors "$packed" && bytes 49272 0; } >in/packed.safetensors
expect 0 convert in/packed.safetensors in/packed.shards --dst 'chunk(0)' --ranks 3

mkdir -p "$work/out.d"
mount -t tmpfs -o size=16m none "$work/out.d" || { echo 'no file system of its own'; exit 77; }
trap '[ "$BASHPID" != $$ ] || { umount "$work/out.d"; rm -rf "$work"; }' EXIT
for name in "${conversions[@]}" packed_shards packed_file; do
  resize 4096
  case $name in
  packed_*)
    old=
    [ $name = packed_shards ] && out=$work/out.d/out arguments=(in/packed.safetensors "$out" --dst 'chunk(1)' --ranks 2)
    [ $name = packed_file ] && out=$work/out.d/out.safetensors arguments=(in/packed.shards "$out")
    rm -rf "$work/new"
    before
    run convert "${arguments[@]}"
    cp -a "$out" "$work/new" || fault "$name: $(cat err)"
    ;;
  *) conversion "$name" ;;
  esac
  low=0 high=4096 # pages that are too few, and that are enough
  while [ $((high - low)) -gt 1 ]; do
    middle=$(((low + high) / 2))
    convert $middle
    case $status in
    none) low=$middle && continue ;;
    0)
      high=$middle
      complete || fault "$name: $middle pages: OUT is not right"
      ;;
    1)
      low=$middle
      [ "$(wc -l <err)" = 1 ] && grep -q '^reshard: error: .*[Nn]o space' err || fault "$name: $middle: $(cat err)"
      as_it_was || fault "$name: $middle pages: OUT is not as it was"
      ;;
    *) fault "$name: $middle pages: status $status: $(cat err)" && break ;;
    esac
    [ -z "$(leftovers)" ] || fault "$name: $middle pages leave $(leftovers)"
  done
  [ $high -lt 4096 ] && [ $low -gt 0 ] || fault "$name: not between $low and $high pages"
  echo "$name: $high pages"
done
finish
