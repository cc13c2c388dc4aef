#!/usr/bin/env bash
# bench in small: every path and kind of layout, sizes, models; wrong data would be seen by -c.
. "$(dirname "$0")/common.bash"
rules=$SOURCE/bench/models/rules
quick=(-n 3 -c)

for path in auto direct packed; do
  for pair in 'chunk(0) chunk(1)' 'cyclic(2x2;3x5) flat()' 'flat() mesh(2x2;S1*3,R)' 'rank(3) mesh(4;R)' \
    'mesh(4;R) boxes(0:[0,0]+[5,9];2:[1,3]+[20,40];2:[30,0]+[1,50])'; do
    expect 0 bench --shape 37x53 --dtype c128 --src "${pair% *}" --dst "${pair#* }" --ranks 4 --path "$path" "${quick[@]}"
    says 'Out of bounds values : 0 OK'
  done
done
expect 0 bench --shape 256x512 --src 'chunk(0)' --dst 'chunk(1)' --ranks 4 --path packed --workspace 16K --threads 1 "${quick[@]}"
says 'packed, workspace limit 16.0 KiB'; says '0 OK'
expect 0 bench --shape 16 --dtype u8 --src 'chunk(0)' --dst 'rank(0)' -t 2 -n 2 -w 0; says ' N/A$'
expect 0 bench --shape scalar --src 'rank(1)' --dst 'mesh(2;R)' "${quick[@]}"; says '0 OK'
expect 0 bench --shape 0x7 --src 'chunk(0)' --dst 'chunk(1)' --ranks 2 "${quick[@]}"; says '0 OK'
expect 0 bench --shape 8x64 --src 'chunk(0)' --dst 'chunk(1)' --ranks 2 -b 1000 -e 5000 -i 1000 "${quick[@]}"
[ "$(grep -cE '^ +[0-9]+ +[0-9]+ +f32' out)" = 5 ] || fault "not 5 sizes: $(cat out)"
says '^ +768 +192 +f32'; says '^ +4864 +1216 +f32'
expect 0 bench --shape 8x64 --src 'chunk(0)' --dst 'chunk(1)' --ranks 2 -b 1K -e 64K -f 4 -n 2 -c 1; says '0 OK'
expect 0 bench --model "$SOURCE/bench/models/demo-llama.json" --src "@$rules/fsdp.rules" --dst "@$rules/tp.rules" --mesh fsdp=4,tp=2 \
  "${quick[@]}"
says ' bf16 '; says '0 OK'
for permutation in 1,0,2 2,0,1 2,1,0; do # a wrong element would be seen: each knows its place in the source
  expect 0 bench --shape 6x10x14 --src 'chunk(0)' --dst 'mesh(2x2;S1,S0)' --ranks 4 --permutation $permutation "${quick[@]}"; says '0 OK'
done
for permutation in 1,1 0 0,1,2 2,0 1,0, x; do
  expect 2 bench --shape 6x10 --src 'chunk(0)' --dst 'chunk(1)' --ranks 2 --permutation $permutation
done
expect 2 bench --model llama-3.1-8b --src 'chunk(0)' --dst 'rank(0)' --ranks 2 --permutation 0
# a size that fails: what was measured before it is in the table, and the error tells of it
expect 1 bench --shape 8x64 --src 'chunk(0)' --dst 'chunk(1)' --ranks 2 -b 64K -e 1000000G -i 900000G -n 2
says '^ +65536 +16384 +f32'
grep -qE '^reshard: error: .* this machine has .*; done before: 1 size of 65536 to 65536 bytes, the last with a busbw of [0-9.e+-]+ GB/s$' err ||
  fault "no word of what was measured: $(cat err)"

# memory: of both sides together, told before any is taken
full() { # PATTERN ARGUMENT...
  expect 1 bench "${@:2}" --ranks 2
  grep -qE "^reshard: error: .*$1" err || fault "no '$1': $(cat err)"
  [ "$(wc -l <err)" = 1 ] || fault "not one line: $(cat err)"
}
full 'source buffers of all ranks take 4.00 PiB and the destination buffers 4.00 PiB, together 8.00 PiB: this machine has .* available' \
  --shape 1125899906842624 --src 'chunk(0)' --dst 'rank(0)'
if available=$(awk '/^MemAvailable:/ { print $2 }' /proc/meminfo) && [ -n "$available" ]; then
  ! ldd "$RESHARD" | grep -qE 'lib[at]san' || available=$((1 << 33)) # which cannot be limited
  [ "$available" = $((1 << 33)) ] || ulimit -v $((available / 10 * 9)) # in case it should take what it must not
  full 'together [0-9.]+ [GT]iB: this machine has [0-9.]+ GiB available' \
    --shape $((available / 10 * 7))x1024 --dtype u8 --src 'chunk(0)' --dst 'chunk(0;1,0)'
fi
finish
