#!/usr/bin/env bash
# The program's rank threads on GPUs, for ThreadSanitizer: few and small runs, each of which starts slowly there.
. "$SOURCE/tests/cli/common.bash"
export VG_DEVICES=3
ways=('-g 2 --path packed' '--path direct')
[ "$NCCL" = 0 ] || ways+=('--comm nccl')
for way in "${ways[@]}"; do
  # shellcheck disable=SC2086 # words
  expect 0 bench --shape 24x40 --src 'chunk(0)' --dst 'chunk(1)' --ranks 3 -n 2 -c 1 --device cuda $way
  says '^ +3840 +960 +f32 .* 0 +[0-9]+ +N/A$'
done
expect 0 verify --device cuda --cases 2 -g 2; says '^0 of them failed'
[ "$NCCL" = 0 ] || expect 0 verify --device cuda --comm nccl -g 3 --cases 2; says '^0 of them failed'
finish
