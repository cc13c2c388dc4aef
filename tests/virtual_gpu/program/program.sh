#!/usr/bin/env bash
# The program on GPUs: what it does with --device cuda, by every communicator and path, and that it says what is
# missing. On a virtual GPU ($RESHARD), whose checker makes a run fail that lacks a wait between streams or leaves
# something behind. An argument is the number of GPUs of the largest run.
. "$SOURCE/tests/cli/common.bash"
scale=${RESHARD_TEST_SCALE:-1}
moved=$([ $# -gt 0 ] && echo 40 || awk -v s="$scale" 'BEGIN { print s < 0.5 ? 4 : 8 }') # random cases of a way
cases=$(awk -v s="$scale" 'BEGIN { n = int(40 * s); print n < 8 ? 8 : n }')
many=${1:-$(awk -v s="$scale" 'BEGIN { print s < 0.5 ? 16 : 32 }')} # GPUs; the model takes their cube
small=(bench --shape 24x40 --src 'chunk(0)' --dst 'chunk(1)' --ranks 4 -n 2 -c 1 --device cuda)
export VG_DEVICES=2

expect 0 info; says '^cuda:1 .*virtual GPU.*reaches cuda:0'
expect 0 info --json -; says '"gpus":\[\{"name":"virtual GPU 0"'

# bench: rows of 24 x 40 f32
row='^ +3840 +960 +f32 .* 0 +[0-9]+ +N/A$'
for way in '' '--path direct' '--path packed' '-G' '-g 2' '-g 2 -G --path packed' '--path packed --workspace 4K' \
  '-t 2 -g 2 --comm local'; do
  # shellcheck disable=SC2086 # words
  expect 0 "${small[@]}" $way; says "$row"; says '^# virtual GPU 0'; says 'Out of bounds values : 0 OK'
done
for to in bf16 f8_e4m3 f8_e4m3/3x5 f8_e4m3/3x5:e8m0; do # converted on the way
  for way in direct packed; do
    expect 0 "${small[@]}" --dst-dtype $to --path $way; says 'Out of bounds values : 0 OK'
  done
done
expect 0 verify --device cuda --dst-dtype f8_e4m3/8x16 --cases 4; says '^0 of them failed'
expect 0 "${small[@]}" -b 2K -e 8K; says ' 4000 +1000 .* 0 +[0-9]+ +N/A$'
# as nccl-tests is typed: -g means GPUs, and sizes alone are rows to columns
VG_DEVICES=4 expect 0 bench -b 8 -e 2K -f 4 -g 4 -n 1 -c; says '^# virtual GPU 0, 4 GPUs a process; 4 ranks'
says '^ +8 +2 .* 0 +8 +N/A$'; says '^ +2048 +512 .* 0 +2048 +N/A$'
# nccl-tests' flags: graphs of all iterations, executes timed together, by the host's clock until done or launched
for way in '-G 3' '-G 2 -m 2' '-m 3' '-z 1' '-C 1' '-z 1 -G' '-u 5' '-a 1'; do
  # shellcheck disable=SC2086 # words
  expect 0 "${small[@]}" $way; says "$row"; says 'Out of bounds values : 0 OK'
done
expect 0 "${small[@]}" -G 2 -m 2; says 'from a graph of 4 executes'
expect 0 "${small[@]}" -G 7 -m 3 --json -; says '"samples":7,"executes_per_sample":6'
expect 0 "${small[@]}" -z 1; says 'the host waits for each'
expect 0 "${small[@]}" -C 1; says 'times of the host alone'
refuse 2 '-C 1 and -z 1' "${small[@]}" -C 1 -z 1
expect 0 "${small[@]}" --path packed --json -; says '"pack_us":[0-9.]+,"exchange_us":[0-9.]+,"self_copy_us":[0-9.]+,'
expect 0 "${small[@]}" --json -; says '"device":"cuda"'; says '"loop_us":[0-9]'; says '"path":"direct"'
says '"sets":16' # of buffers: at most so many, and as many as four times the cache has room for
expect 0 "${small[@]}" -b 80K --json -; says '"sets":2'
expect 0 "${small[@]}" -b 160K --json -; says '"sets":1'
expect 0 bench --shape 24x40 --src 'rank(1)' --dst 'mesh(a=3;R)' --ranks 3 -n 1 -c 1 --device cuda; says "$row"
expect 0 bench --shape 24x40 --src 'rank(0)' --dst 'mesh(a=2;R)' --ranks 2 -g 2 -n 1 -c 1 --device cuda; says "$row"
# More than a GPU has, both sides together.
expect 1 bench --shape 1099511627776 --dtype u8 --src 'chunk(0)' --dst 'chunk(0;1,0)' --ranks 2 -n 1 --device cuda
grep -qE 'source.* destination.* together .*: cuda:0 has .* available' err ||
  fault "no word of the GPU's memory: $(cat err)"
if [ "$NCCL" = 1 ]; then
  VG_DEVICES=4 expect 0 "${small[@]}" --comm nccl; says "$row"; says '4 ranks of 1 process by nccl'
  VG_DEVICES=4 expect 0 bench --shape 24x40 --src 'rank(0)' --dst 'mesh(a=4;R)' -n 1 -c 1 --device cuda --comm nccl \
    -t 1 -g 4; says "$row"
  VG_DEVICES=4 expect 0 bench --shape 24x40 --src 'chunk(0)' --dst 'chunk(1)' -n 1 -c 1 --device cuda --comm nccl \
    -t 2 -g 2; says "$row"; says '4 GPUs a process; 4 ranks' # GPUs per thread, as in nccl-tests
  VG_DEVICES=$many expect 0 bench --shape 64x64 --src 'chunk(0)' --dst 'chunk(1)' -n 1 -w 0 -c 1 --device cuda \
    --comm nccl -t 1 -g "$many"; says "$many ranks of 1 process by nccl"; says 'Out of bounds values : 0 OK'
  VG_DEVICES=4 expect 0 "${small[@]}" --comm nccl --json -
  says '"host_us":[0-9.]+,"group_us":[0-9.]+,"blocking_group_us":[0-9.]+,"blocking_host_us":[0-9]'
  VG_DEVICES=4 expect 0 bench --shape 24x40 --src 'chunk(0)' --dst 'chunk(1)' -n 1 -c 1 --device cuda --comm nccl -t 1 \
    -g 3; says "$row"
  expect 0 bench --shape 24x40 --src 'chunk(0)' --dst 'chunk(1)' -n 1 -c 1 --device cuda --comm nccl -t 1 -G
  says "$row"
fi

# verify
for way in '--path direct' '--path packed' '-G' '-g 2'; do
  # shellcheck disable=SC2086
  expect 0 verify --device cuda --cases "$moved" $way; says '^0 of them failed'
done
if [ "$NCCL" = 1 ]; then
  VG_DEVICES=3 expect 0 verify --device cuda --comm nccl -g 3 --cases "$moved"; says '^0 of them failed'
  expect 0 verify --device cuda --comm nccl --cases "$moved" -G; says '^0 of them failed'
  VG_DEVICES=3 expect 1 verify --device cuda --comm nccl -g 3 --path mixed --cases 1
  says 'the mixed path reads memory of other processes of a node' # and no other path is tested in its place
fi

# processes of a node, each with a virtual GPU of its own, or all with one
processes=(bench --shape 24x40 --src 'chunk(0)' --dst 'chunk(1)' -n 2 -c 1 --device cuda --comm node --processes)
for way in '' '-G' '--path direct' '--path packed' '--path packed -G' '--path auto'; do
  # shellcheck disable=SC2086
  expect 0 "${processes[@]}" 2 $way; says "$row"; says '2 ranks of 2 processes by node'
  says 'Out of bounds values : 0 OK'
done
VG_DEVICES=3 expect 0 "${processes[@]}" 3 --json -; says '"path":"packed"' # of cudaMalloc, which only a wish reads
VG_DEVICES=3 expect 0 "${processes[@]}" 3 --path packed --json -; says '"path":"packed"'; says '"wrong":0'
for path in direct packed; do
  VG_DEVICES=1 expect 0 "${processes[@]}" 2 --path $path; says "$row"; says "path $path"
  expect 0 verify --device cuda --comm node --processes 2 --cases "$moved" --path $path; says '^0 of them failed'
  expect 0 trace --shape 24x40 --src 'chunk(0)' --dst 'chunk(1)' --device cuda --comm node --processes 2 --path $path \
    --json -
done
refuse 3 '--path mixed: --comm mpi and nccl connect nodes' "${processes[@]}" 2 --path mixed
# arrays in storage that the other process maps, also all on one GPU
for path in direct packed; do
  VG_DEVICES=1 expect 0 verify --device cuda --comm node --processes 2 --shared --cases 10 --path $path
  says '^0 of them failed'
done
expect 0 "${processes[@]}" 2 --shared --json -; says '"shared":true'; says '"path":"direct"'; says '"wrong":0'
expect 0 verify --device cuda --shared --cases 10; says '^0 of them failed'
refuse 2 '--shared: ranks that are threads' bench --shape 8x8 --src 'chunk(0)' --dst 'chunk(1)' --ranks 2 --shared
expect 0 verify --device cuda --comm node --processes 3 --cases "$moved"; says '^0 of them failed'
expect 0 verify --device cuda --comm node --processes 2 --cases "$moved" -G; says '^0 of them failed'
# trace: each process tells of its own stream, which meets the other's before the copy and after it
expect 0 trace --shape 24x40 --src 'chunk(0)' --dst 'chunk(1)' --device cuda --comm node --processes 2 --path direct \
  --json -
says '"2 ranks, direct, node communicator, virtual GPU 0'
for rank in 0 1; do
  says "\"thread_name\",\"pid\":$((1025 * rank + 1)),.*\"rank $rank: copy after peers, user after peers\""
  for step in 'copy after peers' copy 'user after peers'; do
    says "\"name\":\"$step\",\"pid\":$((1025 * rank + 1)),.*\"cat\":\"work\""
  done
done

# copies, casts, selections, storage: checked by the program reshard_gpu, of one thread; measured by reshard_micro
reshard=$RESHARD
RESHARD=$RESHARD_GPU
expect 0 check --cases "$((cases / 4 * 4))"; says ', 0 wrong$'
[ "$cases" -lt 32 ] || says '^[1-9][0-9]* programs had tiles of the bulk kernel, [1-9][0-9]* had'
RESHARD_CUDA_TILE=100 refuse 3 'RESHARD_CUDA_TILE=100 is no multiple of 128' check --cases 1
RESHARD_CUDA_LOADS=3 refuse 3 'RESHARD_CUDA_LOADS=3 is none of 2, 4 and 8' check --cases 1
if [ -n "$RESHARD_MICRO" ]; then
  RESHARD=$RESHARD_MICRO
  export RESHARD_MICRO_GPU_BYTES=65536 RESHARD_MICRO_GPU_TURNS=1
  run --benchmark_filter=^gpu_ --benchmark_format=csv
  [ "$status" = 0 ] || fault "reshard_micro: status $status: $(cat err)"
  memcpy='memcpy_us=[0-9.]+ x_memcpy=[0-9.]+ of_memcpy=[0-9.]+'
  for name in copy_runs/{4,8,16,32,64,250,256,4096,4100,16384,65536} copy_interleaved/{4,8} copy_shifted/4096 \
    copy_transpose/{1,2,4,8} copy_transpose_shifted/2 fsdp_copy_{out,in} index_select/{4096,65536} \
    index_select_narrow/4 cast_{f32_bf16,bf16_f32,f32_f8} convert_rows_{f32_bf16,bf16_f32,f32_f8} \
    convert_transpose_f32_bf16 convert_blocks_{f32_f8,bf16_f8,f8_bf16} copy_{boxes/100000,boxes/8,spans/8} \
    dtensor_redistribute_4_ranks; do
    says "^\"gpu_$name/iterations:1/manual_time\",1,[0-9.e+-]+,[0-9.e+-]+,us,[0-9.e+-]+,,\"bytes=[0-9]+ $memcpy[ \"]"
  done
  for name in execute_4_ranks execute_4_ranks_graph storage_pool_pair/65536; do
    says "^\"gpu_$name/iterations:1/manual_time\",1,[0-9.e+-]+,[0-9.e+-]+,us,[0-9.e+-]+,,\"bytes=[0-9]+[ \"]"
  done
  [ "$(grep -c '^"gpu_' out)" = 41 ] || fault "rows that nobody asks for: $(cut -d, -f1 out)"
  says '^"gpu_copy_boxes/100000/.* x_rivals=.* cudaMemcpyBatchAsync_us=.* cub_us=.* x_cub=.* loop_us=.* extra_percent='
  says '^"gpu_storage_pool_pair/.* cudaMallocAsync_us=[0-9.]'
  RESHARD_MICRO_GPU_TURNS=0 run '--benchmark_filter=^gpu_(copy_runs/64|copy_boxes/8)/' # each piece of work once
  [ "$status" = 0 ] || fault "reshard_micro: status $status: $(cat err)"
  says '^gpu_copy_runs/64/.* bytes=65536 '
  refuses() { # NAME VALUE LEAST
    env "RESHARD_MICRO_GPU_$1=$2" "$RESHARD_MICRO" --benchmark_filter=^gpu_copy_runs/64/ >out 2>err
    [ $? = 2 ] && grep -q "RESHARD_MICRO_GPU_$1: '$2' is no number of $3 or more" err ||
      fault "reshard_micro: RESHARD_MICRO_GPU_$1=$2: $(cat err)"
  }
  refuses BYTES 9 65536; refuses BYTES 1e6 65536; refuses TURNS -1 0
  RESHARD_MICRO_SECONDS=1 RESHARD_MICRO_GPU_TURNS=10000000 run --benchmark_filter=^gpu_copy_runs/64/
  [ "$status" = 142 ] || fault "a row of more than RESHARD_MICRO_SECONDS: status $status: $(cat out err)"
  unset RESHARD_MICRO_GPU_BYTES RESHARD_MICRO_GPU_TURNS
  VG_DEVICES=0 expect 0 --benchmark_list_tests; ! grep -q '^gpu_' out || fault "cases of a GPU without one: $(cat out)"
fi
RESHARD=$reshard

# what is missing
VG_DEVICES=0 refuse 3 'no GPU can be used' "${small[@]}"
VG_DEVICES=-1 refuse 3 'no CUDA driver' verify --device cuda
refuse 3 'there is no cuda:2: the process sees 2 GPUs' "${small[@]}" -g 3
refuse 3 'no MPI' "${small[@]}" --comm mpi
refuse 2 'a graph holds one rank' "${small[@]}" --comm nccl -G -g 2
refuse 2 '1 process x -t 3 x -g 1 are 3 ranks' "${small[@]}" -t 3
refuse 3 '--path direct' verify --device cuda --comm nccl --path direct
RANK=3 WORLD_SIZE=2 MASTER_ADDR=localhost MASTER_PORT=1 refuse 2 'RANK=3' "${small[@]}" --comm nccl
RANK=0 refuse 2 'WORLD_SIZE is not' "${small[@]}" --comm nccl
RANK=1 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=9 RESHARD_TIMEOUT_MS=200 refuse 1 \
  'did not answer at 127.0.0.1, port 10' "${small[@]}" --comm nccl

# A run comes out of its seed, ranks' threads and reports included; another seed gives another.
repeats() { # COMMAND...: with a wait left out and without
  local seed again digests=()
  for seed in 1 2; do
    for again in 1 2; do
      VG_DIGEST=1 VG_SEED=$seed run "$@"
      { grep '^digest' err; VG_SEED=$seed VG_WITHOUT='rank after work' run "$@"; grep '^virtual GPU' err; } \
        >"seed-$seed-$again"
    done
    cmp -s "seed-$seed-1" "seed-$seed-2" || fault "seed $seed: $(diff "seed-$seed-1" "seed-$seed-2" | head -c 600)"
    digests+=("$(head -1 "seed-$seed-1")")
  done
  [[ ${digests[0]} == digest* && ${digests[0]} != "${digests[1]}" ]] || fault "digests: ${digests[*]}"
}
repeats "${small[@]}" --path direct
if [ "$cases" -gt 8 ]; then # what sanitizers see does not repeat
  repeats verify --device cuda --cases $((moved / 4)) --seed 3 -g 2
  [ "$NCCL" != 1 ] || VG_DEVICES=3 repeats verify --device cuda --comm nccl -g 3 --cases $((moved / 4)) --seed 3
fi

# A wait that is left out is seen: the runs above could have failed.
VG_WITHOUT='rank after work' run "${small[@]}" --path direct
[ "$status" != 0 ] && grep -q 'race' err || fault "without a wait: status $status, $(head -c 300 err)"
finish
