# Files of tensors for the tests of convert, made by the shell. Sourced after common.bash.
checkpoint=$(dirname "$RESHARD")/reshard_demo_checkpoint # MODEL OUT [SEED]: writes random tensors

bytes() { # N OFFSET: data that no writer makes by accident; the program may be shorter
  cat "$RESHARD" "$RESHARD" "$RESHARD" "$RESHARD" 2>/dev/null | tail -c "+$(($2 + 1))" | head -c "$1"
}
little() { # N VALUE: a number of N bytes, the lowest first
  local i
  for ((i = 0; i < $1; i++)); do printf '%b' "\\x$(printf '%02x' $(($2 >> 8 * i & 255)))"; done
}

npy() { # DESCR FORTRAN SHAPE: the header of an .npy file, version 1; the data follows
  local text="{'descr': '$1', 'fortran_order': $2, 'shape': $3, }"
  local n=$(((10 + ${#text} + 1 + 63) / 64 * 64 - 10))
  printf '\x93NUMPY\x01\x00'
  little 2 $n
  printf '%-*s\n' $((n - 1)) "$text"
}

safetensors() { # JSON: the header of a .safetensors file; the data follows
  little 8 ${#1}
  printf '%s' "$1"
}

# beside: what is in the directory, hidden files too, without the program's output.
beside() { find . -mindepth 1 ! -name out ! -name err -printf '%P %s\n' | sort; }

# bad STATUS PATTERN ARGUMENT...: refuse, and every file is as before.
bad() {
  local before after
  before=$(beside)
  refuse "$@"
  after=$(beside)
  [ "$before" = "$after" ] || fault "reshard ${*:3}: leaves $(diff <(echo "$before") <(echo "$after"))"
}

# same FILE FILE: equal in every byte.
same() {
  checks=$((checks + 1))
  cmp -s "$1" "$2" || fault "$1 and $2 differ: $(cmp "$1" "$2" 2>&1 | head -1)"
}
