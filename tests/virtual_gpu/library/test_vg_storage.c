/* Storage on streams of a virtual GPU: FSDP's loop under a memory limit; what a warm pair of alloc and free asks of the
 * driver; tensors that go while streams still use them; graphs, and selection along a dim.
 *
 * FSDP's loop, as torch/distributed/fsdp runs it: the full parameters of a layer are allocated and gathered on a side
 * stream while the layer before computes; compute waits for the gather; then they are freed. That is in the order of
 * the side stream after the recorded use by compute, or in the order of compute. Side streams take turns. Two layers
 * fit the memory, so that the gather of layer i + 2 runs in what layer i has left: it must come after the use of that,
 * and the host must not wait. */
#include "bench/verify/random.h"
#include "device/device.h"
#include "support/fixtures/expect.h"
#include "support/fixtures/rank_threads.h"
#include "virtual_gpu.h"

#include <reshard/move.h>
#include <reshard/tensor.h>

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/fixtures/case.h"

#define CUDA(call) assert_int_equal((call), cudaSuccess)

enum { LAYERS = 5, STEPS = 2, BYTES = 1 << 20, SHARDS = 4, PIECE = 1024, SIDES = 3 };
static const int64_t bytes = BYTES;

typedef enum release { FREE_ON_GATHER, FREE_ON_COMPUTE, DROP } release;

typedef struct loop {
  release release; /* how a layer goes */
  bool check;
  reshard_device device;
  cudaStream_t sides[SIDES], compute;
  int turn; /* layers gathered so far: where a layer is freed on compute, side streams take turns */
  cudaEvent_t gathered[LAYERS];
  unsigned char *shards, *output; /* of the device: what is gathered, what compute makes of it */
  reshard_tensor full[LAYERS];
  cudaStream_t gather[LAYERS]; /* that each is gathered on */
} loop;

static unsigned char shard_value(int layer, int shard, int i) { return (unsigned char)(layer * 37 + shard * 11 + i); }

static void *data_of(reshard_tensor tensor) {
  reshard_tensor_info info;
  GOOD(reshard_tensor_get_info(tensor, &info));
  return info.data;
}

static void open_loop(loop *l, const vg_options *options) {
  const reshard_device_options limit = {.size = RESHARD_DEVICE_OPTIONS_INIT, .limit_bytes = 2 * BYTES};
  vg_begin(options);
  GOOD(reshard_device_create("cuda", &limit, &l->device));
  l->turn = 0;
  for (int i = 0; i < SIDES; i++) {
    CUDA(cudaStreamCreateWithFlags(&l->sides[i], cudaStreamNonBlocking));
    vg_name_stream(l->sides[i], "gather");
  }
  CUDA(cudaStreamCreateWithFlags(&l->compute, cudaStreamNonBlocking));
  vg_name_stream(l->compute, "compute");
  CUDA(cudaMalloc((void **)&l->shards, LAYERS * SHARDS * PIECE));
  CUDA(cudaMalloc((void **)&l->output, LAYERS * SHARDS * PIECE));
  for (int layer = 0; layer < LAYERS; layer++) {
    unsigned char piece[SHARDS * PIECE];
    for (int i = 0; i < SHARDS * PIECE; i++)
      piece[i] = shard_value(layer, i / PIECE, i % PIECE);
    vg_poke(l->shards + layer * SHARDS * PIECE, piece, sizeof piece);
    CUDA(cudaEventCreateWithFlags(&l->gathered[layer], cudaEventDisableTiming));
    if (l->release == DROP)
      continue;
    GOOD(reshard_tensor_create_on(l->device, RESHARD_U8, 1, &bytes, l->sides[0], &l->full[layer])); /* as FSDP begins */
    GOOD(reshard_storage_free(l->full[layer], l->sides[0], NULL));
  }
}

/* The pool goes while the streams still run: its memory goes back in their order. */
static void close_loop(loop *l) {
  for (int i = 0; i < LAYERS; i++) {
    reshard_tensor_release(l->full[i]);
    l->full[i] = NULL;
  }
  reshard_device_release(l->device);
  CUDA(cudaDeviceSynchronize());
  for (int i = 0; i < LAYERS && l->check; i++) {
    unsigned char piece[SHARDS * PIECE];
    vg_peek(piece, l->output + i * SHARDS * PIECE, sizeof piece);
    for (int b = 0; b < SHARDS * PIECE; b++)
      if (piece[b] != shard_value(i, b / PIECE, b % PIECE))
        fail_msg("layer %d, byte %d: %d, %d is right", i, b, piece[b], shard_value(i, b / PIECE, b % PIECE));
  }
  for (int i = 0; i < LAYERS; i++)
    CUDA(cudaEventDestroy(l->gathered[i]));
  CUDA(cudaFree(l->shards));
  CUDA(cudaFree(l->output));
  for (int i = 0; i < SIDES; i++)
    CUDA(cudaStreamDestroy(l->sides[i]));
  CUDA(cudaStreamDestroy(l->compute));
  vg_end();
}

/* Every SHARDS-th part of the layer's memory, as ranks would send theirs. */
static void gather_layer(loop *l, int layer) {
  cudaStream_t gather = l->gather[layer] = l->sides[l->release == FREE_ON_COMPUTE ? l->turn++ % SIDES : 0];
  if (l->release == DROP)
    GOOD(reshard_tensor_create_on(l->device, RESHARD_U8, 1, &bytes, gather, &l->full[layer]));
  else
    GOOD(reshard_storage_alloc(l->full[layer], BYTES, gather, NULL));
  char *full = data_of(l->full[layer]);
  for (int s = 0; s < SHARDS; s++)
    CUDA(cudaMemcpyAsync(full + s * (BYTES / SHARDS), l->shards + (layer * SHARDS + s) * PIECE, PIECE,
                         cudaMemcpyDeviceToDevice, gather));
  CUDA(cudaEventRecord(l->gathered[layer], gather));
  CUDA(cudaMemsetAsync(full + BYTES - PIECE, 0, PIECE, gather)); /* padding, for which compute does not wait */
}

static void compute_layer(loop *l, int layer) {
  const char *full = data_of(l->full[layer]);
  CUDA(cudaStreamWaitEvent(l->compute, l->gathered[layer], 0));
  GOOD(reshard_storage_record_use(l->full[layer], l->compute));
  for (int s = 0; s < SHARDS; s++)
    CUDA(cudaMemcpyAsync(l->output + (layer * SHARDS + s) * PIECE, full + s * (BYTES / SHARDS), PIECE,
                         cudaMemcpyDeviceToDevice, l->compute));
}

static void free_layer(loop *l, int layer) {
  if (l->release == DROP) {
    reshard_tensor_release(l->full[layer]);
    l->full[layer] = NULL;
  } else {
    GOOD(reshard_storage_free(l->full[layer], l->release == FREE_ON_GATHER ? l->gather[layer] : l->compute, NULL));
    assert_int_equal(reshard_data_allocated(l->full[layer]), 0);
  }
}

static void run_step(loop *l) {
  gather_layer(l, 0);
  for (int i = 0; i < LAYERS; i++) {
    if (i + 1 < LAYERS)
      gather_layer(l, i + 1);
    compute_layer(l, i);
    free_layer(l, i);
  }
}

/* The scenario for edges that are left out. */
static void run_loop(void *user, const vg_options *options) {
  loop *l = user;
  open_loop(l, options);
  for (int i = 0; i < STEPS; i++)
    run_step(l);
  close_loop(l);
}

static const release releases[] = {FREE_ON_GATHER, FREE_ON_COMPUTE, DROP};
enum { RELEASES = sizeof releases / sizeof *releases };

CASE(loop_of_layers_keeps_the_limit) {
  for (int r = 0; r < RELEASES; r++)
    for (int policy = VG_RANDOM; policy <= VG_IN_ORDER; policy++) {
      loop l = {.release = releases[r], .check = true};
      const vg_options options = {.seed = (uint64_t)(41 * r + policy), .policy = (vg_policy)policy};
      reshard_memory_stats stats, first;
      open_loop(&l, &options);
      run_step(&l);
      GOOD(reshard_device_get_memory_stats(l.device, &first));
      vg_counts before = vg_count();
      for (int i = 0; i < STEPS; i++)
        run_step(&l);
      vg_counts after = vg_count();
      GOOD(reshard_device_get_memory_stats(l.device, &stats));
      /* no more than two layers at any time, no new memory after the first step, and the host waits for nothing */
      assert_true(stats.peak_bytes == 2 * BYTES && stats.peak_held_bytes == 2 * BYTES && stats.in_use_bytes == 0);
      assert_int_equal(stats.upstream_allocs, 2);
      assert_int_equal(after.host_syncs, before.host_syncs);
      assert_int_equal(after.allocs, before.allocs);
      assert_true(stats.records > first.records && stats.waits > first.waits);
      assert_true(vg_memory_peak(0) <= 2 * BYTES + 2 * LAYERS * SHARDS * PIECE + (2 << 20));
      /* a third layer is beyond the limit while two are in use */
      reshard_tensor t[3] = {NULL};
      for (int i = 0; i < 2; i++)
        GOOD(reshard_tensor_create_on(l.device, RESHARD_U8, 1, &bytes, l.sides[0], &t[i]));
      FAILS_WITH(reshard_tensor_create_on(l.device, RESHARD_U8, 1, &bytes, l.sides[0], &t[2]),
                 RESHARD_ERROR_OUT_OF_MEMORY, "1048576 bytes of storage on cuda");
      reshard_tensor_release(t[0]);
      reshard_tensor_release(t[1]);
      close_loop(&l);
      assert_int_equal(vg_reports(), 0);
    }
}

CASE(every_edge_of_storage_is_needed) {
  if (!vg_sees_kernels()) /* nothing is checked in this build */
    skip();
  for (int r = 0; r < RELEASES; r++) {
    static const char *const paths[] = {"storage: FSDP's loop, freed on the side stream",
                                        "storage: FSDP's loop, freed on compute", "storage: FSDP's loop, released"};
    loop l = {.release = releases[r]};
    vg_edge_result result = vg_for_each_edge(
        &(vg_edge_search){.path = paths[r], .run = run_loop, .user = &l, .options = {.seed = 7}, .seeds = 6});
    printf("%s: %d edges at %d places, %d of them missed when they are left out, %d false alarms\n", paths[r],
           result.edges, result.uses, result.found, result.false_alarms);
    assert_int_equal(result.false_alarms, 0);
    assert_true(result.uses > 0);
    assert_int_equal(result.found, result.uses);
  }
}

/* A use that nobody records is a use after free: the checker sees it. */
CASE(test_unrecorded_use) {
  if (!vg_sees_kernels()) /* nothing is checked in this build */
    skip();
  vg_options options = {.policy = VG_VICTIM};
  int reports = 0;
  vg_quiet(true);
  for (uint64_t seed = 0; seed < 4; seed++) {
    loop l = {.release = FREE_ON_GATHER};
    options.seed = seed;
    open_loop(&l, &options);
    for (int i = 0; i < 2; i++) {
      gather_layer(&l, i);
      CUDA(cudaStreamWaitEvent(l.compute, l.gathered[i], 0));
      CUDA(cudaMemcpyAsync(l.output, data_of(l.full[i]), PIECE, cudaMemcpyDeviceToDevice, l.compute));
      free_layer(&l, i);
    }
    close_loop(&l);
    reports += vg_reports();
  }
  vg_quiet(false);
  assert_true(reports > 0);
}

/* --- Random sequences --------------------------------------------------------------------------------------------- */

/* Storage is allocated, written, seen through views, read, freed and released on streams that are drawn. The user
 * orders each access after the last write and each write after the reads, by events of his own, and never frees against
 * access: that is the library's part. What was read is compared with the model at the end. */
enum { STREAMS = 4, TENSORS = 6, ACTIONS = 60, READ = 64 };

typedef struct item {
  reshard_tensor tensor; /* NULL: none */
  bool there;
  unsigned char value;
  cudaStream_t writer;
} item;

typedef struct chaos {
  rng random;
  reshard_device device;
  cudaStream_t streams[STREAMS];
  cudaEvent_t event;
  item items[TENSORS];
  unsigned char *log, expected[ACTIONS];
  int logged;
} chaos;

static cudaStream_t any_stream(chaos *c) { return c->streams[rng_below(&c->random, STREAMS)]; }

static void fill_item(chaos *c, item *it, cudaStream_t stream) {
  reshard_tensor_info info;
  GOOD(reshard_tensor_get_info(it->tensor, &info));
  it->there = true;
  it->value = (unsigned char)rng_in(&c->random, 1, 255);
  it->writer = stream;
  CUDA(cudaMemsetAsync(info.data, it->value, (size_t)info.elements, stream));
}

/* Reads a part through a view, which goes at once. */
static void read_item(chaos *c, const item *it) {
  cudaStream_t stream = any_stream(c);
  reshard_tensor_info info;
  reshard_tensor view;
  GOOD(reshard_tensor_get_info(it->tensor, &info));
  GOOD(reshard_tensor_narrow(it->tensor, 0, rng_in(&c->random, 0, info.elements - READ), READ, &view));
  CUDA(cudaEventRecord(c->event, it->writer));
  CUDA(cudaStreamWaitEvent(stream, c->event, 0));
  if (stream != it->writer || rng_one_in(&c->random, 2)) /* that it was allocated on needs no record */
    GOOD(reshard_storage_record_use(view, stream));
  CUDA(cudaMemcpyAsync(c->log + c->logged * READ, data_of(view), READ, cudaMemcpyDeviceToDevice, stream));
  c->expected[c->logged++] = it->value;
  reshard_tensor_release(view);
}

static void chaos_act(chaos *c) {
  static const int64_t sizes[] = {READ, 5000, 70000, 1 << 20, 3 << 20};
  item *it = &c->items[rng_below(&c->random, TENSORS)];
  cudaStream_t stream = any_stream(c);
  int64_t size = sizes[rng_below(&c->random, 5)];
  if (it->tensor == NULL) {
    GOOD(reshard_tensor_create_on(c->device, RESHARD_U8, 1, &size, stream, &it->tensor));
    fill_item(c, it, stream);
  } else if (!it->there) {
    reshard_tensor_info info;
    GOOD(reshard_tensor_get_info(it->tensor, &info));
    GOOD(reshard_storage_alloc(it->tensor, (size_t)info.elements, stream, NULL));
    fill_item(c, it, stream);
  } else if (rng_one_in(&c->random, 3)) {
    GOOD(reshard_storage_free(it->tensor, stream, NULL));
    it->there = false;
  } else if (rng_one_in(&c->random, 4)) {
    reshard_tensor_release(it->tensor);
    it->tensor = NULL;
  } else {
    read_item(c, it);
  }
  if (rng_one_in(&c->random, 20))
    GOOD(reshard_device_trim(c->device, 1 << 20));
}

static void run_chaos(uint64_t seed) {
  static const int64_t keep[] = {0, -1, 2 << 20};
  const reshard_device_options options = {.size = RESHARD_DEVICE_OPTIONS_INIT, .keep_bytes = keep[seed % 3]};
  chaos c = {.logged = 0};
  reshard_memory_stats stats;
  unsigned char seen[READ];
  rng_seed(&c.random, seed);
  vg_begin(&(vg_options){.seed = seed});
  GOOD(reshard_device_create("cuda", &options, &c.device));
  CUDA(cudaMalloc((void **)&c.log, ACTIONS * READ));
  CUDA(cudaEventCreateWithFlags(&c.event, cudaEventDisableTiming));
  for (int i = 1; i < STREAMS; i++) /* and the default stream */
    CUDA(cudaStreamCreateWithFlags(&c.streams[i], i < 3 ? cudaStreamNonBlocking : cudaStreamDefault));
  int64_t syncs = vg_count().host_syncs;
  for (int i = 0; i < ACTIONS; i++)
    chaos_act(&c);
  for (int i = 0; i < TENSORS; i++)
    reshard_tensor_release(c.items[i].tensor);
  GOOD(reshard_device_get_memory_stats(c.device, &stats));
  assert_true(stats.in_use_bytes == 0 && stats.allocs == stats.frees && stats.peak_held_bytes >= stats.peak_bytes);
  assert_int_equal(vg_count().host_syncs, syncs);
  reshard_device_release(c.device);
  CUDA(cudaDeviceSynchronize());
  for (int i = 0; i < c.logged; i++) {
    vg_peek(seen, c.log + i * READ, READ);
    for (int b = 0; b < READ; b++)
      assert_int_equal(seen[b], c.expected[i]);
  }
  CUDA(cudaFree(c.log));
  CUDA(cudaEventDestroy(c.event));
  for (int i = 1; i < STREAMS; i++)
    CUDA(cudaStreamDestroy(c.streams[i]));
  if (vg_end() != 0)
    fail_msg("seed %d", (int)seed);
}

CASE(random_storage_on_streams_is_right) {
  int64_t cases = vg_scaled(vg_sees_kernels() ? 200 : 30, 1000);
  for (int64_t i = 0; i < cases; i++)
    run_chaos(1000 + vg_first_seed() + (uint64_t)i);
  vg_prove("schedules|storage allocated, used and freed on random streams|%lld", (long long)cases);
  printf("%lld random sequences\n", (long long)cases);
}

/* --- Calls of the driver by a warm pair -------------------------------------------------------------------------- */

CASE(test_warm_pair) {
  static const int64_t sizes[] = {4096, BYTES, 64 << 20};
  enum { PAIRS = 100 };
  vg_begin(NULL);
  reshard_device device;
  cudaStream_t stream;
  GOOD(reshard_device_create("cuda:0", NULL, &device));
  CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
    reshard_tensor t;
    GOOD(reshard_tensor_create_on(device, RESHARD_U8, 1, &sizes[s], stream, &t));
    void *memory = data_of(t);
    int64_t calls = vg_count().calls - vg_calls("cuCtx*"), asks = vg_calls("cudaStreamIsCapturing");
    for (int i = 0; i < PAIRS; i++) {
      GOOD(reshard_storage_free(t, stream, NULL));
      GOOD(reshard_storage_alloc(t, (size_t)sizes[s], stream, NULL));
      assert_ptr_equal(data_of(t), memory);
    }
    /* nothing but the question whether a graph is being made, which would use the memory again, and which context is
     * current */
    assert_int_equal(vg_count().calls - vg_calls("cuCtx*") - calls, vg_calls("cudaStreamIsCapturing") - asks);
    assert_true(vg_calls("cudaStreamIsCapturing") - asks <= 2 * PAIRS);
    reshard_tensor_release(t);
  }
  reshard_memory_stats stats;
  GOOD(reshard_device_get_memory_stats(device, &stats));
  assert_int_equal(stats.records + stats.waits, 0);
  reshard_device_release(device);
  CUDA(cudaStreamDestroy(stream));
  assert_int_equal(vg_end(), 0);
}

/* --- Streams that are being captured ----------------------------------------------------------------------------- */

CASE(captured_stream_takes_no_storage) {
  vg_begin(NULL);
  reshard_device device;
  cudaStream_t stream;
  cudaGraph_t graph;
  reshard_tensor t, other, freed, made = NULL;
  reshard_device cpu;
  reshard_tree tree, moved = NULL;
  const int64_t small = 4096;
  int did = 7;
  GOOD(reshard_device_create("cuda:0", NULL, &device));
  CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  GOOD(reshard_tensor_create_on(device, RESHARD_U8, 1, &small, stream, &t));
  GOOD(reshard_tensor_create_on(device, RESHARD_U8, 1, &small, NULL, &other));
  GOOD(reshard_tensor_create_on(device, RESHARD_U8, 1, &small, stream, &freed));
  GOOD(reshard_storage_free(freed, stream, NULL));
  GOOD(reshard_tree_tensor(other, &tree));
  GOOD(reshard_device_create("cpu", NULL, &cpu));
  CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  FAILS_WITH(reshard_storage_free(t, stream, &did), RESHARD_ERROR_INVALID, "reshard_storage_free: stream ");
  FAILS_WITH(reshard_storage_alloc(freed, 4096, stream, &did), RESHARD_ERROR_INVALID, "reshard_storage_alloc: stream ");
  FAILS_WITH(reshard_tensor_create_on(device, RESHARD_U8, 1, &small, stream, &made), RESHARD_ERROR_INVALID,
             "is being captured");
  FAILS_WITH(reshard_tree_to(tree, cpu, stream, NULL, &moved), RESHARD_ERROR_INVALID, "reshard_tree_to: stream ");
  assert_true(did == 7 && made == NULL && moved == NULL);
  GOOD(reshard_storage_record_use(other, stream)); /* nothing is recorded */
  CUDA(cudaMemcpyAsync(data_of(t), data_of(other), 1, cudaMemcpyDeviceToDevice, stream));
  reshard_tensor_release(freed);
  CUDA(cudaStreamEndCapture(stream, &graph));
  CUDA(cudaGraphDestroy(graph));
  CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  reshard_tensor_release(t); /* its last reference goes all the same */
  reshard_tensor_release(other);
  CUDA(cudaStreamEndCapture(stream, &graph));
  CUDA(cudaGraphDestroy(graph));
  reshard_tree_release(tree);
  reshard_device_release(cpu);
  reshard_device_release(device);
  CUDA(cudaStreamDestroy(stream));
  assert_int_equal(vg_end(), 0);
}

/* --- Streams that end --------------------------------------------------------------------------------------------- */

/* A tensor outlives the stream that it was allocated and used on, which was told before that ended. */
CASE(tensor_outlives_its_forgotten_stream) {
  vg_begin(NULL);
  reshard_device device;
  cudaStream_t ending, staying;
  reshard_tensor t, next;
  GOOD(reshard_device_create("cuda:0", NULL, &device));
  CUDA(cudaStreamCreateWithFlags(&ending, cudaStreamNonBlocking));
  CUDA(cudaStreamCreateWithFlags(&staying, cudaStreamNonBlocking));
  GOOD(reshard_tensor_create_on(device, RESHARD_U8, 1, &bytes, ending, &t));
  void *memory = data_of(t);
  CUDA(cudaMemsetAsync(memory, 1, BYTES, ending));
  GOOD(reshard_device_forget_stream(device, ending));
  CUDA(cudaStreamDestroy(ending));
  reshard_tensor_release(t);
  GOOD(reshard_tensor_create_on(device, RESHARD_U8, 1, &bytes, staying, &next)); /* after what it was given */
  assert_ptr_equal(data_of(next), memory);
  CUDA(cudaMemsetAsync(memory, 2, BYTES, staying));
  reshard_tensor_release(next);
  reshard_device_release(device);
  CUDA(cudaStreamDestroy(staying));
  assert_int_equal(vg_end(), 0);
}

/* --- Selection along a dim --------------------------------------------------------------------------------------- */

CASE(test_index_select) {
  enum { ROWS = 9, COLUMNS = 5, TAKEN = 6 };
  static const int64_t shape[2] = {ROWS, COLUMNS}, columns[2] = {COLUMNS, TAKEN}, taken = TAKEN;
  static const int32_t good[TAKEN] = {8, 0, 3, 3, 4, 5}, bad[TAKEN] = {8, 0, -1, 3, 9, 5};
  int16_t numbers[ROWS * COLUMNS], result[COLUMNS * TAKEN];
  reshard_tensor src, turned, index, dst, host;
  reshard_device device;
  reshard_memory_stats stats;
  cudaStream_t streams[2];
  vg_begin(NULL);
  GOOD(reshard_device_create("cuda:0", NULL, &device));
  for (int i = 0; i < 2; i++)
    CUDA(cudaStreamCreateWithFlags(&streams[i], cudaStreamNonBlocking));
  GOOD(reshard_tensor_create_on(device, RESHARD_I16, 2, shape, streams[0], &src));
  GOOD(reshard_tensor_create_on(device, RESHARD_I32, 1, &taken, streams[0], &index));
  GOOD(reshard_tensor_create_on(device, RESHARD_I16, 2, columns, streams[0], &dst));
  GOOD(reshard_tensor_create(RESHARD_I16, 2, columns, &host));
  GOOD(reshard_tensor_permute(src, (int[]){1, 0}, &turned)); /* 5 x 9, of which columns are taken */
  for (int i = 0; i < ROWS * COLUMNS; i++)
    numbers[i] = (int16_t)(100 + i);
  vg_poke(data_of(src), numbers, sizeof numbers);
  vg_poke(data_of(index), good, sizeof good);
  CUDA(cudaStreamSynchronize(streams[0]));
  GOOD(reshard_device_get_memory_stats(device, &stats));
  const int64_t in_use = stats.in_use_bytes;
  GOOD(reshard_index_select(turned, 1, index, dst, 0, streams[1]));
  vg_peek(result, data_of(dst), sizeof result);
  for (int c = 0; c < COLUMNS; c++)
    for (int i = 0; i < TAKEN; i++)
      assert_int_equal(result[c * TAKEN + i], 100 + good[i] * COLUMNS + c);
  vg_poke(data_of(index), bad, sizeof bad);
  BAD(reshard_index_select(turned, 1, index, dst, 0, streams[1]),
      "reshard_index_select: index[2] = -1, dim 1 has 9 indices");
  GOOD(reshard_device_get_memory_stats(device, &stats));
  assert_int_equal(stats.in_use_bytes, in_use); /* its own is given back, also where an index is wrong */
  BAD(reshard_index_select(turned, 1, index, host, 0, NULL),
      "reshard_index_select: src: a tensor on cuda:0, and not on the CPU");
  BAD(reshard_index_select(host, 1, index, dst, 0, streams[1]),
      "reshard_index_select: src: a tensor on the CPU, and not on cuda:0");
  reshard_tensor_release(src); /* in the order of a stream that did not use them last: the use was recorded */
  reshard_tensor_release(turned);
  reshard_tensor_release(index);
  reshard_tensor_release(dst);
  reshard_tensor_release(host);
  reshard_device_release(device);
  for (int i = 0; i < 2; i++)
    CUDA(cudaStreamDestroy(streams[i]));
  assert_int_equal(vg_end(), 0);
}

/* Tells whether network cards may reach memory of the current GPU. */
static bool is_rdma_capable(void *memory) {
  CUresult (*get)(unsigned, CUpointer_attribute *, void **, CUdeviceptr);
  CUpointer_attribute what = CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE;
  enum cudaDriverEntryPointQueryResult found;
  unsigned capable = 2;
  void *values[] = {&capable};
  CUDA(cudaGetDriverEntryPointByVersion("cuPointerGetAttributes", (void **)&get, 11030, cudaEnableDefault, &found));
  assert_int_equal(get(1, &what, values, (uintptr_t)memory), CUDA_SUCCESS);
  assert_in_range(capable, 0, 1);
  return capable == 1;
}

CASE(segments_are_for_rdma_where_the_gpu_has_it) {
  const reshard_device_options shared = {.size = RESHARD_DEVICE_OPTIONS_INIT, .shared = true};
  const int64_t segment = 2 << 20;
  for (int without = 0; without < 2; without++) {
    reshard_device device;
    reshard_tensor tensor;
    vg_begin(&(vg_options){.no_rdma = without != 0});
    CUDA(cudaSetDevice(0));
    GOOD(reshard_device_create("cuda", &shared, &device));
    GOOD(reshard_tensor_create_on(device, RESHARD_U8, 1, &segment, NULL, &tensor));
    assert_int_equal(vg_calls("cuMemCreate"), 1);
    assert_int_equal(is_rdma_capable(data_of(tensor)), without == 0);
    reshard_tensor_release(tensor);
    reshard_device_release(device);
    assert_int_equal(vg_end(), 0);
  }
}

RUN_CASES
