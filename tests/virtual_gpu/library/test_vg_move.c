/* Trees moved between the CPU and GPUs, and cast on a GPU, on the virtual GPU: what arrives, in what order, what the
 * host waits for, what is left of a call that failed; and that each edge is one that the checker misses when it is left
 * out.
 *
 * A scenario is what a user does, by CUDA calls of his own on his stream: fill a source, move, write to the source
 * again, let go of it, use the result. */
#include "bench/cli/naive_cast.h"
#include "device/handle.h"
#include "support/fixtures/case.h"
#include "support/fixtures/expect.h"
#include "support/fixtures/trees.h"
#include "support/fixtures/upstream.h"
#include "virtual_gpu.h"

#include <reshard/move.h>

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CUDA(call) assert_int_equal((call), cudaSuccess)

enum { ROWS = 40, COLUMNS = 30, NUMBERS = ROWS * COLUMNS, BYTES = 4 * NUMBERS };
static const int64_t shape[2] = {ROWS, COLUMNS};

typedef struct fixture {
  bool check;  /* data, too */
  bool turned; /* the tensors that are moved are views: columns of what was rows */
  reshard_move_options options;
  reshard_device cpu, gpus[2];
  cudaStream_t streams[2]; /* of each GPU */
  void *scratch[2];        /* memory of each GPU */
} fixture;

/* Each stream gets memory of its own: else it comes after another one for the sake of its memory, too. */
static void warm(reshard_device device, void *user) {
  enum { EACH = 4 };
  void *streams[3] = {user, NULL, NULL};
  reshard_tensor tensors[3 * EACH];
  GOOD(rs_device_side(device, RS_SIDE_IN, &streams[1]));
  GOOD(rs_device_side(device, RS_SIDE_OUT, &streams[2]));
  for (int i = 0; i < 3 * EACH; i++)
    GOOD(reshard_tensor_create_on(device, RESHARD_F32, 2, shape, streams[i / EACH], &tensors[i]));
  for (int i = 0; i < 3 * EACH; i++)
    reshard_tensor_release(tensors[i]);
}

static void fixture_begin(fixture *s, const vg_options *options) {
  vg_begin(options);
  GOOD(reshard_device_create("cpu", &(reshard_device_options){RESHARD_DEVICE_OPTIONS_INIT, .threads = 1}, &s->cpu));
  for (int i = 0; i < 2; i++) {
    char name[16];
    snprintf(name, sizeof name, "cuda:%d", i);
    GOOD(reshard_device_create(name, NULL, &s->gpus[i]));
    CUDA(cudaSetDevice(i));
    CUDA(cudaStreamCreateWithFlags(&s->streams[i], cudaStreamNonBlocking));
    CUDA(cudaMalloc(&s->scratch[i], BYTES));
    warm(s->gpus[i], s->streams[i]);
    vg_name_stream(s->streams[i], i == 0 ? "user's" : "user's of cuda:1");
  }
  CUDA(cudaSetDevice(0));
}

static void fixture_end(fixture *s) {
  reshard_device_release(s->cpu);
  for (int i = 0; i < 2; i++) {
    reshard_device_release(s->gpus[i]);
    cudaSetDevice(i);
    cudaStreamSynchronize(s->streams[i]);
    cudaFree(s->scratch[i]);
    cudaStreamDestroy(s->streams[i]);
  }
  cudaSetDevice(0);
  vg_end();
}

static unsigned char pattern(int64_t i, int salt) { return (unsigned char)((i * 31 ^ i >> 7) + salt); }

static void paint(void *at, size_t n, int salt) {
  for (size_t i = 0; i < n; i++)
    ((unsigned char *)at)[i] = pattern((int64_t)i, salt);
}

static reshard_tensor tensor_of(reshard_tree tree) {
  reshard_tensor tensor;
  GOOD(reshard_tree_get_tensor(tree, &tensor));
  return tensor;
}

static void free_pinned(void *user, void *data) { cudaFreeHost(data); }

/* Pinned memory of the user's, lent. */
static reshard_tensor lend_pinned(void) {
  void *memory;
  reshard_tensor tensor;
  CUDA(cudaHostAlloc(&memory, BYTES, 0));
  GOOD(reshard_tensor_wrap(RESHARD_F32, 2, shape, NULL, memory, free_pinned, NULL, &tensor));
  reshard_tensor_set_pin_memory(tensor, 1);
  return tensor;
}

/* A tensor of a GPU with a pattern in it, that stream writes now. */
static reshard_tensor on_gpu(fixture *s, int gpu, int salt) {
  reshard_tensor tensor;
  void *pinned;
  GOOD(reshard_tensor_create_on(s->gpus[gpu], RESHARD_F32, 2, shape, s->streams[gpu], &tensor));
  CUDA(cudaHostAlloc(&pinned, BYTES, 0));
  paint(pinned, BYTES, salt);
  vg_host_write(pinned, BYTES);
  CUDA(cudaSetDevice(gpu));
  CUDA(cudaMemcpyAsync(tensor_info(tensor).data, pinned, BYTES, cudaMemcpyDefault, s->streams[gpu]));
  CUDA(cudaSetDevice(0));
  CUDA(cudaStreamSynchronize(s->streams[gpu]));
  CUDA(cudaFreeHost(pinned));
  return tensor;
}

/* A tree of a tensor, whose reference is taken over, or of a view of it. */
static reshard_tree tree_of(fixture *s, reshard_tensor tensor) {
  reshard_tensor view;
  if (!s->turned)
    return leaf_of(tensor);
  GOOD(reshard_tensor_permute(tensor, (const int[]){1, 0}, &view));
  reshard_tensor_release(tensor);
  return leaf_of(view);
}

/* Memory is read in the order of stream. */
static void use_tensors(fixture *s, int gpu, reshard_tree tree) {
  CUDA(cudaMemcpyAsync(s->scratch[gpu], tensor_info(tensor_of(tree)).data, BYTES, cudaMemcpyDefault, s->streams[gpu]));
}

/* And by the host, which waits for stream, where data is looked at. */
static void assert_data(fixture *s, int gpu, reshard_tree tree, int salt) {
  unsigned char copy[BYTES];
  use_tensors(s, gpu, tree);
  if (!s->check)
    return;
  CUDA(cudaStreamSynchronize(s->streams[gpu]));
  vg_peek(copy, s->scratch[gpu], BYTES);
  for (int64_t i = 0; i < NUMBERS; i++) {
    int64_t from = s->turned ? i % ROWS * COLUMNS + i / ROWS : i;
    for (int64_t b = 0; b < 4; b++)
      assert_int_equal(copy[4 * i + b], pattern(4 * from + b, salt));
  }
}

/* host_syncs: waits of the host, -1: any number. Tables that are new wait for a stream without other work. */
static reshard_tree move_to(fixture *s, reshard_tree tree, reshard_device device, int gpu, int64_t host_syncs) {
  reshard_tree moved;
  vg_counts before = vg_count();
  int64_t grown = count_upstream(s->gpus[0]) + count_upstream(s->gpus[1]);
  GOOD(reshard_tree_to(tree, device, s->streams[gpu], &s->options, &moved));
  grown = count_upstream(s->gpus[0]) + count_upstream(s->gpus[1]) - grown;
  if (s->check && host_syncs >= 0)
    assert_in_range(vg_count().host_syncs - before.host_syncs, host_syncs, host_syncs + grown);
  return moved;
}

/* --- Scenarios ------------------------------------------------------------------------------------------- */

/* Pageable memory: read when the call returns, so that it can be written to and freed at once. */
static void in_pageable(void *user, const vg_options *options) {
  fixture *s = user;
  fixture_begin(s, options);
  for (int i = 0; i < 3; i++) {
    reshard_tensor tensor;
    GOOD(reshard_tensor_create(RESHARD_F32, 2, shape, &tensor));
    paint(tensor_info(tensor).data, BYTES, i);
    reshard_tree tree = tree_of(s, tensor), moved = move_to(s, tree, s->gpus[0], 0, 0);
    paint(tensor_info(tensor_of(tree)).data, BYTES, 77);
    reshard_tree_release(tree);
    assert_data(s, 0, moved, i);
    CUDA(cudaMemsetAsync(tensor_info(tensor_of(moved)).data, i, BYTES, s->streams[0]));
    reshard_tree_release(moved);
  }
  fixture_end(s);
}

/* Pinned memory that stream writes before and after the move. */
static void in_pinned(void *user, const vg_options *options) {
  fixture *s = user;
  fixture_begin(s, options);
  reshard_tensor first = on_gpu(s, 0, 1), second = on_gpu(s, 0, 2), pinned = lend_pinned();
  void *memory = tensor_info(pinned).data;
  reshard_tree tree = tree_of(s, pinned);
  for (int i = 0; i < 3; i++) {
    CUDA(cudaMemcpyAsync(memory, tensor_info(first).data, BYTES, cudaMemcpyDefault, s->streams[0]));
    reshard_tree moved = move_to(s, tree, s->gpus[0], 0, 0);
    CUDA(cudaMemcpyAsync(memory, tensor_info(second).data, BYTES, cudaMemcpyDefault, s->streams[0]));
    assert_data(s, 0, moved, 1);
    reshard_tree_release(moved);
  }
  CUDA(cudaStreamSynchronize(s->streams[0]));
  reshard_tree_release(tree);
  reshard_tensor_release(first);
  reshard_tensor_release(second);
  fixture_end(s);
}

/* Lent pinned memory, filled by the host, that is let go of right after the call; a later call finds that it is not
 * used any more. The copies need not wait for stream. */
static void in_lent(void *user, const vg_options *options) {
  fixture *s = user;
  fixture_begin(s, options);
  s->options.sources_ready = 1;
  for (int i = 0; i < 4; i++) {
    reshard_tensor pinned = lend_pinned();
    paint(tensor_info(pinned).data, BYTES, i);
    vg_host_write(tensor_info(pinned).data, BYTES);
    reshard_tree tree = tree_of(s, pinned), moved = move_to(s, tree, s->gpus[0], 0, -1);
    reshard_tree_release(tree);
    use_tensors(s, 0, moved);
    if (i == 2)
      assert_data(s, 0, moved, i);
    reshard_tree_release(moved);
  }
  fixture_end(s);
}

/* From a GPU into pinned memory: the source is written before and after, and let go of; the result is used by stream,
 * and by the host when stream is past it. */
static void out_pinned(void *user, const vg_options *options) {
  fixture *s = user;
  fixture_begin(s, options);
  reshard_tensor source = on_gpu(s, 0, 4);
  for (int i = 0; i < 3; i++) {
    reshard_tensor tensor;
    GOOD(reshard_tensor_create_on(s->gpus[0], RESHARD_F32, 2, shape, s->streams[0], &tensor));
    CUDA(cudaMemcpyAsync(tensor_info(tensor).data, tensor_info(source).data, BYTES, cudaMemcpyDefault, s->streams[0]));
    reshard_tensor_set_pin_memory(tensor, 1);
    reshard_tree tree = tree_of(s, tensor), moved = move_to(s, tree, s->cpu, 0, 0);
    CUDA(cudaMemsetAsync(tensor_info(tensor_of(tree)).data, 99, BYTES, s->streams[0]));
    reshard_tree_release(tree);
    assert_data(s, 0, moved, 4);
    if (s->check)
      vg_host_read(tensor_info(tensor_of(moved)).data, BYTES);
    use_tensors(s, 0, moved);
    reshard_tree_release(moved); /* while stream reads it */
  }
  reshard_tensor_release(source);
  fixture_end(s);
}

/* There and back through pinned memory, without a wait of the host in between. */
static void there_and_back(void *user, const vg_options *options) {
  fixture *s = user;
  fixture_begin(s, options);
  reshard_tensor source = on_gpu(s, 0, 5), tensor;
  GOOD(reshard_tensor_create_on(s->gpus[0], RESHARD_F32, 2, shape, s->streams[0], &tensor));
  CUDA(cudaMemcpyAsync(tensor_info(tensor).data, tensor_info(source).data, BYTES, cudaMemcpyDefault, s->streams[0]));
  reshard_tensor_set_pin_memory(tensor, 1);
  reshard_tree trees[7] = {tree_of(s, tensor)};
  for (int i = 0; i < 6; i++)
    trees[i + 1] = move_to(s, trees[i], i % 2 == 0 ? s->cpu : s->gpus[0], 0, 0);
  assert_data(s, 0, trees[6], 5);
  for (int i = 0; i < 7; i++)
    reshard_tree_release(trees[i]);
  reshard_tensor_release(source);
  fixture_end(s);
}

/* From a GPU into pageable memory: the one case in which the host waits. */
static void out_pageable(void *user, const vg_options *options) {
  fixture *s = user;
  fixture_begin(s, options);
  reshard_tensor source = on_gpu(s, 0, 3), tensor;
  GOOD(reshard_tensor_create_on(s->gpus[0], RESHARD_F32, 2, shape, s->streams[0], &tensor));
  CUDA(cudaMemcpyAsync(tensor_info(tensor).data, tensor_info(source).data, BYTES, cudaMemcpyDefault, s->streams[0]));
  reshard_tree tree = tree_of(s, tensor), moved;
  GOOD(reshard_tree_to(tree, s->cpu, s->streams[0], &s->options, &moved));
  CUDA(cudaMemsetAsync(tensor_info(tensor_of(tree)).data, 99, BYTES, s->streams[0]));
  const unsigned char *data = tensor_info(tensor_of(moved)).data;
  for (int64_t i = 0; i < BYTES && s->check; i++) {
    int64_t number = i / 4, from = s->turned ? number % ROWS * COLUMNS + number / ROWS : number;
    assert_int_equal(data[i], pattern(4 * from + i % 4, 3));
  }
  reshard_tree_release(moved);
  reshard_tree_release(tree);
  reshard_tensor_release(source);
  fixture_end(s);
}

/* From one GPU to another: the source's memory is of the first one's stream, and used again there. */
static void to_other(void *user, const vg_options *options) {
  fixture *s = user;
  cudaEvent_t event;
  fixture_begin(s, options);
  CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  reshard_tensor source = on_gpu(s, 0, 4), tensor;
  GOOD(reshard_tensor_create_on(s->gpus[0], RESHARD_F32, 2, shape, s->streams[0], &tensor));
  CUDA(cudaMemcpyAsync(tensor_info(tensor).data, tensor_info(source).data, BYTES, cudaMemcpyDefault, s->streams[0]));
  for (int i = 0; i < 2; i++) {
    reshard_tensor next;
    CUDA(cudaEventRecord(event, s->streams[0]));
    CUDA(cudaStreamWaitEvent(s->streams[1], event, 0));
    reshard_tree tree = tree_of(s, tensor), moved = move_to(s, tree, s->gpus[1], 1, 0);
    reshard_tree_release(tree);
    GOOD(reshard_tensor_create_on(s->gpus[0], RESHARD_F32, 2, shape, s->streams[0], &next));
    CUDA(cudaMemcpyAsync(tensor_info(next).data, tensor_info(source).data, BYTES, cudaMemcpyDefault, s->streams[0]));
    assert_data(s, 1, moved, 4);
    reshard_tree_release(moved);
    tensor = next;
  }
  reshard_tensor_release(tensor);
  reshard_tensor_release(source);
  CUDA(cudaEventDestroy(event));
  fixture_end(s);
}

/* A batch is moved while the one before is used; its memory comes back once stream is past it. */
static void prefetch(void *user, const vg_options *options) {
  fixture *s = user;
  fixture_begin(s, options);
  reshard_tree before = NULL;
  for (int i = 0; i < 5; i++) {
    reshard_tensor host;
    GOOD(reshard_tensor_create(RESHARD_F32, 2, shape, &host));
    paint(tensor_info(host).data, BYTES, i);
    reshard_tree tree = tree_of(s, host), moved = move_to(s, tree, s->gpus[0], 0, 0);
    reshard_tree_release(tree);
    if (before != NULL)
      assert_data(s, 0, before, i - 1);
    reshard_tree_release(before);
    before = moved;
  }
  reshard_tree_release(before);
  fixture_end(s);
}

/* Cast in the order of stream: the source is written before and after. */
static void tree_cast(void *user, const vg_options *options) {
  fixture *s = user;
  fixture_begin(s, options);
  reshard_tensor source = on_gpu(s, 0, 6), tensor;
  for (int i = 0; i < 2; i++) {
    GOOD(reshard_tensor_create_on(s->gpus[0], RESHARD_F32, 2, shape, s->streams[0], &tensor));
    CUDA(cudaMemcpyAsync(tensor_info(tensor).data, tensor_info(source).data, BYTES, cudaMemcpyDefault, s->streams[0]));
    reshard_tree tree = tree_of(s, tensor), made;
    vg_counts before = vg_count();
    GOOD(reshard_tree_cast(tree, RESHARD_BF16, s->gpus[0], s->streams[0], &made));
    assert_int_equal(vg_count().host_syncs, before.host_syncs);
    CUDA(cudaMemsetAsync(tensor_info(tensor_of(tree)).data, 99, BYTES, s->streams[0]));
    reshard_tree_release(tree);
    uint16_t halves[NUMBERS];
    CUDA(
        cudaMemcpyAsync(s->scratch[0], tensor_info(tensor_of(made)).data, BYTES / 2, cudaMemcpyDefault, s->streams[0]));
    reshard_tree_release(made);
    if (!s->check)
      continue;
    CUDA(cudaStreamSynchronize(s->streams[0]));
    vg_peek(halves, s->scratch[0], BYTES / 2);
    for (int64_t n = 0; n < NUMBERS; n++) {
      int64_t from = s->turned ? n % ROWS * COLUMNS + n / ROWS : n;
      uint32_t bits = 0;
      for (int64_t b = 0; b < 4; b++)
        bits |= (uint32_t)pattern(4 * from + b, 6) << 8 * b;
      assert_int_equal(halves[n], naive_cast(RESHARD_F32, RESHARD_BF16, bits));
    }
  }
  reshard_tensor_release(source);
  fixture_end(s);
}

static const struct {
  const char *name;
  vg_scenario run;
  bool edges; /* of the move that the checker misses */
} scenarios[] = {{"in_pageable", in_pageable, true},
                 {"in_pinned", in_pinned, true},
                 {"in_lent", in_lent, true},
                 {"out_pinned", out_pinned, true},
                 {"there_and_back", there_and_back, true},
                 {"out_pageable", out_pageable, true},
                 {"to_other", to_other, true},
                 {"prefetch", prefetch, false}, /* used after a later move, whose edges do for the earlier one's, too */
                 {"cast", tree_cast, false}};   /* on the caller's stream alone */
enum { SCENARIOS = sizeof scenarios / sizeof *scenarios };

/* --- Tests ----------------------------------------------------------------------------------------------- */

CASE(trees_arrive_in_the_order_of_their_streams) {
  for (int i = 0; i < SCENARIOS; i++)
    for (int way = 0; way < 4; way++)
      for (uint64_t seed = 0; seed < 20; seed++) {
        fixture s = {.check = true, .turned = way % 2 != 0, .options = {RESHARD_MOVE_OPTIONS_INIT, way / 2, 0}};
        scenarios[i].run(&s, &(vg_options){.devices = 2, .seed = seed});
        if (vg_reports() > 0)
          fail_msg("%s, way %d, seed %d", scenarios[i].name, way, (int)seed);
      }
}

/* Those of the pool and the ring are their tests' matter. */
CASE(every_edge_of_a_move_is_needed) {
  if (!vg_sees_kernels()) /* nothing is checked in this build */
    skip();
  for (int i = 0; i < 2 * SCENARIOS; i++) {
    if (!scenarios[i / 2].edges)
      continue;
    fixture s = {.turned = i % 2 != 0, .options = {RESHARD_MOVE_OPTIONS_INIT, 0, 0}};
    char path[64];
    snprintf(path, sizeof path, "move: %s%s", scenarios[i / 2].name, s.turned ? " (turned)" : "");
    vg_edge_result result = vg_for_each_edge(&(vg_edge_search){.path = path,
                                                               .run = scenarios[i / 2].run,
                                                               .user = &s,
                                                               .options = {.devices = 2},
                                                               .seeds = 10,
                                                               .only = "move: "});
    assert_int_equal(result.false_alarms, 0);
    assert_int_equal(result.found, result.uses);
    assert_true(result.uses > 0);
  }
}

RUN_CASES
