#!/usr/bin/env bash
# bench in small: every path and kind of layout, sizes, models; wrong data would be seen by -c.
. "$(dirname "$0")/common.bash"
rules=$SOURCE/bench/models/rules
quick=(-n 3 -c)
# ThreadSanitizer looks at threads: options that are refused have one, and flags that change no thread have the same.
threads=
if ldd "$RESHARD" | grep -q libtsan; then threads=1; fi
refused() { [ -n "$threads" ] || refuse 2 '' "$@"; }
[ -z "$threads" ] || refuse() { :; }

pairs=('chunk(0) chunk(1)' 'cyclic(2x2;3x5) flat()' 'flat() mesh(2x2;S1*3,R)' 'rank(3) mesh(4;R)'
  'mesh(4;R) boxes(0:[0,0]+[5,9];2:[1,3]+[20,40];2:[30,0]+[1,50])')
for path in auto direct packed; do
  for pair in "${pairs[@]:0:${threads:-99}}"; do
    expect 0 bench --shape 37x53 --dtype c128 --src "${pair% *}" --dst "${pair#* }" --ranks 4 --path "$path" \
      "${quick[@]}"
    says 'Out of bounds values : 0 OK'
  done
done
for path in direct packed; do # a row has the source's bytes, and those of the destination behind
  expect 0 bench --shape 64x96 --src 'chunk(0)' --dst 'chunk(1)' --dst-dtype bf16 --ranks 4 --path "$path" "${quick[@]}"
  says '^ +24576 +6144 +f32 .* 0 +12288 +N/A$'; says 'Out of bounds values : 0 OK'
  says 'straight copy of half of what a conversion reads and writes,$'; says 'memcpy is a rate of what it copies, algbw'
done
while read -r shape src dst from to row; do # with a scale for each block: of values and scales both sides have bytes
  for path in direct packed; do
    expect 0 bench --shape "$shape" --src "$src" --dst "$dst" -d "$from" --dst-dtype "$to" --ranks 4 --path "$path" \
      "${quick[@]}"
    says "^ +${row/ .../ .* 0} +N/A$"; says 'Out of bounds values : 0 OK'
  done
done <<'TEXT'
64x96 chunk(0) chunk(1) bf16 f8_e4m3/8x8 12288 +6144 +bf16 ... +6528
64x90 chunk(0) mesh(2x2;S0,R) f32 f8_e4m3/16x32:e8m0 23040 +5760 +f32 ... +11544
64x96 chunk(0) chunk(1) f8_e4m3/8x8 f16 6528 +6144 +f8_e4m3/8x8 ... +12288
64x96 chunk(1) chunk(0) f8_e4m3/64x8:e8m0 bf16 6156 +6144 +f8_e4m3/64x8:e8m0 ... +12288
TEXT
expect 0 bench --shape 6x32x64 --permutation 2,1,0 --src 'chunk(1)' --dst 'chunk(0)' --ranks 4 -d bf16 \
  --dst-dtype f8_e4m3/8x3 "${quick[@]}"; says '0 OK'
refuse 2 'dim 1 of the f8_e4m3 side is cut at 24 by rank 0, within a block of 16' \
  bench --shape 64x96 --src 'chunk(0)' --dst 'chunk(1)' --ranks 4 --dst-dtype f8_e4m3/8x16
expect 0 bench --shape 256x512 --src 'chunk(0)' --dst 'chunk(1)' --ranks 4 --path packed --workspace 16K --threads 1 \
  "${quick[@]}"
says 'packed, workspace limit 16.0 KiB'; says '0 OK'
expect 0 bench --shape 16 --dtype u8 --src 'chunk(0)' --dst 'rank(0)' -t 2 -n 2 -w 0; says ' N/A +[0-9]+ +N/A$'
expect 0 bench --shape scalar --src 'rank(1)' --dst 'mesh(2;R)' "${quick[@]}"; says '0 OK'
expect 0 bench --shape 0x7 --src 'chunk(0)' --dst 'chunk(1)' --ranks 2 "${quick[@]}"; says '0 OK'
expect 0 bench --shape 8x64 --src 'chunk(0)' --dst 'chunk(1)' --ranks 2 -b 1000 -e 5000 -i 1000 "${quick[@]}"
[ "$(grep -cE '^ +[0-9]+ +[0-9]+ +f32' out)" = 5 ] || fault "not 5 sizes: $(cat out)"
says '^ +768 +192 +f32'; says '^ +4864 +1216 +f32'
expect 0 bench --shape 8x64 --src 'chunk(0)' --dst 'chunk(1)' --ranks 2 -b 1K -e 64K -f 4 -n 2 -c 1; says '0 OK'
expect 0 bench --model "$SOURCE/bench/models/demo-llama.json" --src "@$rules/fsdp.rules" --dst "@$rules/tp.rules" \
  --mesh fsdp=4,tp=2 \
  "${quick[@]}"
says ' bf16 '; says '0 OK'
for permutation in 1,0,2 2,0,1 2,1,0; do # a wrong element would be seen: each knows its place in the source
  expect 0 bench --shape 6x10x14 --src 'chunk(0)' --dst 'mesh(2x2;S1,S0)' --ranks 4 --permutation $permutation \
    "${quick[@]}"; says '0 OK'
done
for permutation in 1,1 0 0,1,2 2,0 1,0, x; do
  refused bench --shape 6x10 --src 'chunk(0)' --dst 'chunk(1)' --ranks 2 --permutation $permutation
done
refused bench --model llama-3.1-8b --src 'chunk(0)' --dst 'rank(0)' --ranks 2 --permutation 0
# a size that fails: what was measured before it is in the table, and the error tells of it
expect 1 bench --shape 8x64 --src 'chunk(0)' --dst 'chunk(1)' --ranks 2 -b 64K -e 1000000G -i 900000G -n 2
says '^ +65536 +16384 +f32'
done_before='done before: 1 size of 65536 to 65536 bytes, the last with a busbw of [0-9.e+-]+ GB/s'
grep -qE "^reshard: error: .* this machine has .*; $done_before\$" err ||
  fault "no word of what was measured: $(cat err)"

# memory: of both sides together, told before any is taken
full() { # PATTERN ARGUMENT...
  expect 1 bench "${@:2}" --ranks 2
  grep -qE "^reshard: error: .*$1" err || fault "no '$1': $(cat err)"
  [ "$(wc -l <err)" = 1 ] || fault "not one line: $(cat err)"
}
both='source buffers of all ranks take 4.00 PiB and the destination buffers 4.00 PiB, together 8.00 PiB'
full "$both: this machine has .* available" \
  --shape 1125899906842624 --src 'chunk(0)' --dst 'rank(0)'
if available=$(awk '/^MemAvailable:/ { print $2 }' /proc/meminfo) && [ -n "$available" ]; then
  ! ldd "$RESHARD" | grep -qE 'lib[at]san' || available=$((1 << 33)) # which cannot be limited
  [ "$available" = $((1 << 33)) ] || ulimit -v $((available / 10 * 9)) # in case it should take what it must not
  full 'together [0-9.]+ [GT]iB: this machine has [0-9.]+ GiB available' \
    --shape $((available / 20 * 19))x1024 --dtype u8 --src 'chunk(0)' --dst 'chunk(0;1,0)'
fi

# nccl-tests' flags. Sizes from 8 bytes: the tensor shrinks, so that all ranks have something as long as there is any.
small=(--src 'chunk(0)' --dst 'chunk(1)' --ranks 4 -n 2)
expect 0 bench --shape 8192x8192 "${small[@]}" -b 8 -e 64K -f 8 -c
for row in '8 +2' '64 +16' '512 +128' '4096 +1024' '32768 +8192'; do says "^ +$row +f32 .* 0 +[0-9]+ +N/A$"; done
# Without a workload: rows to columns of 2^ceil(k/2) x 2^floor(k/2) elements, k = floor(log2(size / width)).
expect 0 bench -b 8 -e 128K -f 2 --ranks 4 -n 1 -w 0 -c --csv c
says '^# in-place: N/A, since source and destination must not overlap$'; says '#wrong +dst bytes +in-place$'
says 'chunk\(0\) -> chunk\(1\), 2\^ceil\(k/2\) x 2\^floor\(k/2\) elements, k = floor\(log2\(size / width\)\)$'
shapes() { cut -d, -f 6 c | tr -d '"' | tail -n +2 | tr '\n' ' '; }
[ "$(shapes)" = "2x1 2x2 4x2 4x4 8x4 8x8 16x8 16x16 32x16 32x32 64x32 64x64 128x64 128x128 256x128 " ] ||
  fault "shapes by size: $(shapes)"
expect 0 bench -b 100 -e 1000 -i 300 -d f64 --ranks 3 -n 1 -w 0 --csv c # 12, 50, 87 and 125 elements
[ "$(shapes)" = '4x2 8x4 8x8 8x8 ' ] || fault "shapes by size: $(shapes)"
expect 0 bench --ranks 2 -n 1 -w 0; says '^ +33554432 +8388608 +f32 '
expect 0 bench -b 1K --src 'mesh(2;S1)' --dst 'mesh(4;R)' -n 1 -w 0 --json j
says '^ +1024 +256 +f32 .* N/A +4096 +N/A$'
grep -q '"shape":null,"src":"mesh(2;S1)"' j || fault "options: $(head -c 600 j)"
refuse 2 'give --ranks' bench -b 8 -e 8M -f 2
refuse 2 '-b: 4 bytes are less than an element of 8 bytes' bench -b 4 -d f64 --ranks 2
refuse 2 '-e 1048576 is below -b 33554432' bench -e 1M --ranks 2
refuse 2 '-g 8 needs --device cuda' bench -b 8 -e 8M -f 2 -g 8 --device cpu
[ -n "$threads" ] || { run bench -b 8 -e 64 -f 2 -g 2; [[ $status =~ ^[03]$ ]] || fault "-g 2: $status: $(cat err)"; }
refuse 2 '-b: 4 bytes are less than an element of 8 bytes' bench --shape 8x8 --dtype f64 "${small[@]}" -b 4
expect 0 bench --shape 4x4 -d half "${small[@]}"; says '^ +32 +16 +f16 '
expect 0 bench --shape 4x4 -d all "${small[@]}" -c
[ "$(grep -cE '^ +(16|32|64|128) +16 .* 0 +[0-9]+ +N/A$' out)" = 12 ] || fault "not 12 types: $(cat out)"
says ' bf16 '; says ' f8_e5m2 '
flags=('-c 3' '-c3' '--check=3' '-c 0' '-a 0' '-a 1' '-a 2' '-a 3' '-m 4' '-u 3 -c' '-p 1' '-R 0' '-z 0' '-C 0' \
  '-G 0' '-T 0' '-y 0' '-D 0' '--datatype float')
for flag in "${flags[@]:0:${threads:-99}}"; do
  # shellcheck disable=SC2086 # words
  expect 0 bench --shape 12x8 "${small[@]}" $flag; says '^ +384 +96 +f32 '
done
expect 0 bench --shape 12x8 "${small[@]}" -c 0; says ' N/A +[0-9]+ +N/A$'
expect 0 bench --shape 12x8 "${small[@]}" -m 4 -a 1 -u 3; says 'mean of ranks; a time of 4 executes; buffers 3 elements'
expect 0 bench --shape 12x8 "${small[@]}" -N 3 -S 1 -M 1
[ "$(grep -cE '^ +384 .* N/A  20[0-9]{2}-[01][0-9]-[0-3][0-9] [0-9:]{8}$' out)" = 3 ] ||
  fault "not 3 cycles: $(cat out)"
[ "$(grep -c 'memory: source 384 B, destination 384 B' out)" = 3 ] || fault "no memory: $(cat out)"
while read -r flag why; do
  refuse 2 "$why" bench --shape 12x8 "${small[@]}" ${flag//_/ }
done <<'TEXT'
-o_sum ^reshard: error: -o sum: refused: .*nothing is computed
-r_0 ^reshard: error: -r 0: refused: the layouts say it
-y_1 -y 1: refused
-x_1 -x 1: refused
-D_1 -D 1: refused
-V_1 -V 1: refused
-p_0 -p 0: ranks connect in parallel
-R_1 -R 1: buffers are not registered
-z_1 -z 1 needs --device cuda
-C_1 -C 1 needs --device cuda
-G -G needs --device cuda
-a_4 -a: 4 is not between 0 and 3
TEXT

# ./run bench --threads: a row for 1, 2, 4, ... and all threads
if [ -z "$threads" ]; then
  checks=$((checks + 1))
  bash "$SOURCE/bench/compare/threads.sh" "$RESHARD" 256 >out 2>err || fault "threads: $(cat err)"
  counts=$(sed -nE 's/^\| ([0-9]+) \|( [0-9.]+ \|){6}$/\1/p' out)
  [ "$(head -1 <<<"$counts") $(tail -1 <<<"$counts")" = "1 $(nproc)" ] || fault "threads: $(cat out)"
  says '^[0-9]+ threads are enough here: .*RESHARD_THREADS=[0-9]+'; says '^What to expect '
fi

# JSON and CSV: the same fields, one row each
expect 0 bench --shape 64x64 "${small[@]}" --path packed -b 4K -e 16K --json j --csv c
python=$(command -v python3) && "$python" -c 'import json' 2>/dev/null || python=
[ -z "$python" ] || "$python" -c '
import csv, json
j, c = json.load(open("j")), list(csv.DictReader(open("c")))
assert len(j["rows"]) == len(c) == 3 and "ended" not in j
for a, b in zip(j["rows"], c):
    assert set(a) <= set(b) and all(a[k] is None or k in ("shape", "dtype", "dst_dtype", "path")
                                      or abs(float(b[k]) - a[k]) <= 1e-4 * abs(a[k]) for k in a)
    assert a["min_us"] <= a["p50_us"] <= a["p95_us"] <= a["p99_us"] <= a["max_us"] and a["p50_us"] == a["time_us"]
    assert min(a[k] for k in ("first_us", "plan_us", "create_us", "bind_us", "exchange_us", "self_copy_us")) > 0
    assert a["wire_bytes"] == a["lower_bound_bytes"] == a["bytes"] * 3 // 4 and a["messages"] == 12 and a["rounds"] == 1
    assert a["busiest_bytes"] == a["busiest_bound_bytes"] == a["bytes"] * 3 // 16 and a["workspace_bytes"] > 0
    assert a["source_bytes"] == a["destination_bytes"] == a["bytes"]
' 2>err || fault "JSON and CSV: $(tail -3 err)"
refuse 2 '--json - and --csv -' bench --shape 4x4 "${small[@]}" --json - --csv -
expect 0 bench --shape 12x8 "${small[@]}" --csv -; says '^,,,,384,"12x8","f32",'; [ "$(wc -l <out)" = 2 ] ||
  fault "more than CSV: $(cat out)"

# A run that ends early has written what it had: at a deadline, by a signal (of which it dies), by an error.
ended() { # PATTERN: in the table, JSON and CSV
  grep -qE "\"ended\":\"$1" j || fault "no '$1': $(cat j err)"
  [ "$(grep -c '"bytes":' j)" -ge 1 ] && [ "$(wc -l <c)" -ge 2 ] || fault "no rows: $(cat j c)"
  says '^ +[0-9]+ +[0-9]+ +f32 '; says '^# Avg bus bandwidth'
}
rm -f j c
expect 1 bench --shape 64x64 "${small[@]}" -b 4K -e 1000000G -i 900000G --json j --csv c
ended 'the source buffers of all ranks take'
rm -f j c
expect 1 bench --shape 64x1024 "${small[@]}" -b 256K -e 16M -f 64 -n 1000 -m 1000 -T 2 --json j --csv c
grep -q '^reshard: error: -T 2: .* after as many seconds' err || fault "no deadline: $(cat err)"
grep -q '"ended":"-T 2: ' j || fault "no deadline: $(cat j)"
rm -f j c
expect 1 bench --shape 64x1024 "${small[@]}" --processes 4 -b 256K -e 16M -f 64 -n 1000 -m 1000 -T 2 --json j --csv c
grep -q '"ended":' j || fault "no deadline of four processes: $(cat j)"
for run in INT TERM 'TERM --processes 4'; do
  read -r signal processes <<<"$run"
  rm -f j c
  : >out
  env --default-signal=INT "$RESHARD" bench --shape 64x64 "${small[@]}" $processes -N 0 --json j --csv c >out 2>err \
    </dev/null &
  for ((i = 0; i < 3000; i++)); do [ "$(grep -c ' f32 ' out)" -lt 2 ] || break; sleep 0.1; done
  kill -$signal $!
  status=0
  wait $! || status=$?
  why="by signal $(kill -l $signal)" want=$((128 + $(kill -l $signal)))
  [ -z "$processes" ] || why="($why|.* is gone)" # rank 0 may notice the end of another first
  [ "$status" = "$want" ] || fault "$signal: status $status, not $want: $(cat err)"
  ended "$why"
done

# suites, and what does not fit
suites=(hpc training inference)
for suite in "${suites[@]:0:${threads:-99}}"; do
  expect 0 bench --suite $suite --scale 1/512 --ranks 4 -n 1 -w 0 -c --json j
  says '^# uneven: '; says '^# gather: .* -> rank\(0\)$'; says 'Out of bounds values : 0 OK'
  [ "$(grep -c '^# [a-z-]*: .* -> ' out)" = "$(grep -c '"case":.*"src":.*"dst":.*"wrong":0' j)" ] ||
    fault "$suite: $(cat out j)"
  [ $suite != inference ] ||
    grep -q '"case":"tp-to-half",.*"model":"llama-3.1-8b","mesh":"tp=4","mesh_dst":"tp=2"' j ||
    fault "no model or meshes: $(cat j)"
  [ $suite = hpc ] || continue
  says '^# pencil-x-to-y: 1x512x512, mesh\(2x2;S1,S2\) -> mesh\(2x2;S0,S2\)$'; says '^# cyclic-to-cyclic: 16x8192, '
done
expect 0 bench --shape 64x64 "${small[@]}" --scale 0.25; says '^ +4096 +1024 '
for wrong in '--scale 0' '--scale 1/0' '--scale x' '--scale 1/' '--suite none' '--suite hpc --shape 4x4' \
  '--suite hpc --ranks 3' '--suite hpc -b 8'; do
  # shellcheck disable=SC2086 # words
  refused bench $wrong
done
expect 1 bench --suite hpc --scale 65536 -n 1
says '#   skipped: the source buffers .* --scale 1/[0-9]+ would fit'
grep -q 'reshards do not fit in memory' err || fault "nothing skipped: $(cat err)"
finish
