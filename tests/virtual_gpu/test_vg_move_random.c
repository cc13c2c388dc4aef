/* Random trees cast and moved between the CPU and two GPUs, against a model: what each number is, and where. Memory is
 * freed and taken again all the time, sources are let go of right after a call, and the checker of the virtual GPU
 * looks on. Then: the k-th call of the CUDA runtime fails. */
#include "device/device.h"
#include "random.h"
#include "support/crew.h"
#include "support/expect.h"
#include "support/naive_cast.h"
#include "support/trees.h"
#include "virtual_gpu.h"

#include <reshard/move.h>

#include <cuda_runtime_api.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define CUDA(call) assert_int_equal((call), cudaSuccess)

enum { SLOTS = 6, ITEMS = 3, HOST = -1 };

/* A tensor as it should be: its numbers, row-major. */
typedef struct item {
  reshard_dtype dtype;
  int64_t n;
  uint32_t *bits;
} item;

typedef struct slot {
  reshard_tree tree; /* a list of the tensors, the first one twice; NULL: none */
  int items;
  item item[ITEMS];
  int place;  /* HOST, or the number of a GPU */
  int writer; /* GPU whose stream has to be waited for; HOST: none */
} slot;

typedef struct world {
  rng random;
  reshard_device cpu, gpus[2];
  cudaStream_t streams[2];
  cudaEvent_t events[2];
  slot slots[SLOTS];
} world;

static void enter(world *w, uint64_t seed) {
  *w = (world){.cpu = NULL};
  rng_seed(&w->random, seed);
  vg_begin(&(vg_options){.devices = 2, .seed = seed});
  GOOD(reshard_device_create("cpu", &(reshard_device_options){RESHARD_DEVICE_OPTIONS_INIT, .threads = 1}, &w->cpu));
  for (int i = 0; i < 2; i++) {
    char name[16];
    const reshard_device_options options = {RESHARD_DEVICE_OPTIONS_INIT,
                                            .keep_bytes = rng_in(&w->random, -1, 1) * 4096};
    snprintf(name, sizeof name, "cuda:%d", i);
    GOOD(reshard_device_create(name, options.keep_bytes < 0 ? NULL : &options, &w->gpus[i]));
    CUDA(cudaSetDevice(i));
    CUDA(cudaStreamCreateWithFlags(&w->streams[i], cudaStreamNonBlocking));
    CUDA(cudaEventCreateWithFlags(&w->events[i], cudaEventDisableTiming));
  }
  CUDA(cudaSetDevice(0));
}

static void drop(slot *s) {
  reshard_tree_release(s->tree);
  for (int i = 0; i < s->items; i++)
    free(s->item[i].bits);
  *s = (slot){.tree = NULL};
}

static void leave(world *w) {
  for (int i = 0; i < SLOTS; i++)
    drop(&w->slots[i]);
  reshard_device_release(w->cpu);
  for (int i = 0; i < 2; i++) {
    reshard_device_release(w->gpus[i]);
    cudaSetDevice(i);
    cudaStreamSynchronize(w->streams[i]);
    cudaStreamDestroy(w->streams[i]);
    cudaEventDestroy(w->events[i]);
  }
  cudaSetDevice(0);
}

static void free_pinned(void *user, void *data) {
  (void)user;
  cudaFreeHost(data);
}

/* A new tensor of the CPU: pageable or pinned, and a part of it, turned round or not. */
static reshard_tensor make_tensor(world *w, item *item) {
  rng *r = &w->random;
  bool pinned = rng_one_in(r, 3), large = rng_one_in(r, 40);
  int64_t shape[2] = {rng_log(r, large ? 3000 : 60), rng_log(r, large ? 900 : 40)}, numbers = shape[0] * shape[1];
  uint32_t *memory;
  reshard_tensor tensor, view, part;
  reshard_tensor_info info;
  if (pinned) {
    CUDA(cudaHostAlloc((void **)&memory, (size_t)numbers * 4, 0));
    GOOD(reshard_tensor_wrap(RESHARD_F32, 2, shape, NULL, memory, free_pinned, NULL, &tensor));
    reshard_tensor_set_pin_memory(tensor, 1);
    vg_host_write(memory, (size_t)numbers * 4);
  } else {
    GOOD(reshard_tensor_create(RESHARD_F32, 2, shape, &tensor));
    GOOD(reshard_tensor_get_info(tensor, &info));
    memory = info.data;
  }
  for (int64_t i = 0; i < numbers; i++)
    memory[i] = (uint32_t)rng_next(r);
  int64_t first = rng_below(r, shape[0]);
  GOOD(reshard_tensor_narrow(tensor, 0, first, rng_in(r, 1, shape[0] - first), &part));
  GOOD(reshard_tensor_permute(part, rng_one_in(r, 2) ? (const int[]){1, 0} : (const int[]){0, 1}, &view));
  reshard_tensor_release(tensor);
  reshard_tensor_release(part);
  GOOD(reshard_tensor_get_info(view, &info));
  *item = (struct item){RESHARD_F32, info.elements, malloc((size_t)info.elements * sizeof *item->bits)};
  for (int64_t i = 0; i < info.elements; i++)
    item->bits[i] = ((uint32_t *)info.data)[i / info.shape[1] * info.strides[0] + i % info.shape[1] * info.strides[1]];
  return view;
}

static void make_slot(world *w, slot *s) {
  drop(s);
  s->place = s->writer = HOST;
  s->tree = list();
  s->items = (int)rng_in(&w->random, 1, ITEMS);
  for (int i = 0; i < s->items; i++) {
    reshard_tree leaf = leaf_of(make_tensor(w, &s->item[i]));
    if (i == 0)
      append(s->tree, reshard_tree_retain(leaf));
    append(s->tree, leaf);
  }
}

/* Result of a call in place of a slot: with the numbers of the one before, whose tree is let go of. */
static void replace(slot *s, reshard_tree made, int place, int writer) {
  assert_ptr_equal(node_at(made, "0"), node_at(made, "1"));
  reshard_tree_release(s->tree);
  s->tree = made;
  s->place = place;
  s->writer = writer;
}

/* Work of a GPU's stream comes after what was given to another one. */
static void follow(world *w, int gpu, int writer) {
  if (writer == HOST || writer == gpu)
    return;
  CUDA(cudaSetDevice(writer));
  CUDA(cudaEventRecord(w->events[writer], w->streams[writer]));
  CUDA(cudaSetDevice(gpu));
  CUDA(cudaStreamWaitEvent(w->streams[gpu], w->events[writer], 0));
  CUDA(cudaSetDevice(0));
}

static void move_slot(world *w, slot *s) {
  rng *r = &w->random;
  int to = (int)rng_in(r, HOST, 1), gpu = to != HOST ? to : s->place;
  const reshard_move_options options = {RESHARD_MOVE_OPTIONS_INIT, rng_one_in(r, 3), 0};
  reshard_tensor first;
  reshard_tensor_info info;
  reshard_tree moved;
  GOOD(reshard_tree_get_tensor(node_at(s->tree, "0"), &first));
  GOOD(reshard_tensor_get_info(first, &info));
  if (gpu != HOST)
    follow(w, gpu, s->writer);
  vg_counts before = vg_count();
  GOOD(reshard_tree_to(s->tree, to == HOST ? w->cpu : w->gpus[to], gpu == HOST ? NULL : w->streams[gpu], &options,
                       &moved));
  bool pageable = false;
  for (int i = 0; i <= s->items; i++) {
    const char path[2] = {(char)('0' + i), '\0'};
    GOOD(reshard_tree_get_tensor(node_at(moved, path), &first));
    GOOD(reshard_tensor_get_info(first, &info));
    pageable |= !info.pin_memory;
    assert_int_equal(info.device_type, to == HOST ? RESHARD_DEVICE_CPU : RESHARD_DEVICE_CUDA);
  }
  if (to == s->place)
    assert_ptr_equal(moved, s->tree);
  else if (to != HOST && vg_calls("cudaFree*") == 0)
    assert_int_equal(vg_count().host_syncs, before.host_syncs);
  replace(s, moved, to, to == s->place ? s->writer : to == HOST && pageable ? s->writer : gpu);
}

static void cast_slot(world *w, slot *s) {
  static const reshard_dtype dtypes[3] = {RESHARD_BF16, RESHARD_F16, RESHARD_F32};
  reshard_dtype to = dtypes[rng_below(&w->random, 3)];
  reshard_tree cast;
  if (s->place == HOST && s->writer != HOST)
    CUDA(cudaStreamSynchronize(w->streams[s->writer])); /* the host reads what it has written */
  GOOD(reshard_tree_cast(s->tree, to, s->place == HOST ? w->cpu : w->gpus[s->place],
                         s->place == HOST ? NULL : w->streams[s->place], &cast));
  for (int i = 0; i < s->items; i++) {
    for (int64_t k = 0; k < s->item[i].n && s->item[i].dtype != to; k++)
      s->item[i].bits[k] = (uint32_t)naive_cast(s->item[i].dtype, to, s->item[i].bits[k]);
    s->item[i].dtype = to;
  }
  replace(s, cast, s->place, s->writer);
}

/* Memory of a stream that is taken, written and given back. */
static void churn(world *w) {
  int gpu = (int)rng_below(&w->random, 2);
  int64_t n = rng_log(&w->random, 20000);
  reshard_tensor tensor;
  reshard_tensor_info info;
  GOOD(reshard_tensor_create_on(w->gpus[gpu], RESHARD_U8, 1, &n, w->streams[gpu], &tensor));
  GOOD(reshard_tensor_get_info(tensor, &info));
  CUDA(cudaSetDevice(gpu));
  CUDA(cudaMemsetAsync(info.data, 0xee, (size_t)n, w->streams[gpu]));
  CUDA(cudaSetDevice(0));
  reshard_tensor_release(tensor);
}

/* Looks at a slot as a user does who has waited for its stream. */
static void check_slot(world *w, const slot *s) {
  if (s->writer != HOST)
    CUDA(cudaStreamSynchronize(w->streams[s->writer]));
  if (s->place != HOST)
    CUDA(cudaStreamSynchronize(w->streams[s->place]));
  for (int i = 0; i < s->items; i++) {
    const char path[2] = {(char)('1' + i), '\0'};
    const item *item = &s->item[i];
    size_t width = reshard_dtype_size(item->dtype);
    reshard_tensor tensor;
    reshard_tensor_info info;
    GOOD(reshard_tree_get_tensor(node_at(s->tree, path), &tensor));
    GOOD(reshard_tensor_get_info(tensor, &info));
    assert_int_equal(info.dtype, item->dtype);
    assert_int_equal(info.elements, item->n);
    char *copy = malloc(info.storage_bytes);
    const char *at = info.data;
    if (s->place != HOST) {
      assert_true(info.contiguous);
      vg_peek(copy, info.data, (size_t)item->n * width);
      at = copy;
    } else if (info.pin_memory && s->writer != HOST) {
      vg_host_read(info.data, (size_t)item->n * width);
    }
    for (int64_t k = 0; k < item->n; k++) {
      uint32_t bits = 0;
      int64_t row = k / info.shape[1], column = k % info.shape[1];
      memcpy(&bits, at + (row * info.strides[0] + column * info.strides[1]) * (int64_t)width, width);
      assert_int_equal(bits, item->bits[k]);
    }
    free(copy);
  }
}

static void test_random(void **state) {
  (void)state;
  int64_t runs = vg_scaled(300, 2000);
  for (int64_t seed = 0; seed < runs; seed++) {
    world w;
    enter(&w, (uint64_t)seed + vg_first_seed());
    for (int step = 0; step < 60; step++) {
      slot *s = &w.slots[rng_below(&w.random, SLOTS)];
      int64_t what = rng_below(&w.random, 10);
      if (s->tree == NULL || what == 0)
        make_slot(&w, s);
      else if (what < 6)
        move_slot(&w, s);
      else if (what < 7)
        cast_slot(&w, s);
      else if (what < 8)
        churn(&w);
      else
        check_slot(&w, s);
    }
    for (int i = 0; i < SLOTS; i++)
      if (w.slots[i].tree != NULL)
        check_slot(&w, &w.slots[i]);
    leave(&w);
    if (vg_end() != 0)
      fail_msg("seed %d", (int)seed);
  }
}

/* The k-th call of the runtime fails, once or from then on: the output is not written, and nothing is left behind. (Not
 * from then on between two GPUs: one that is lost may not come back while memory of the other one is freed.) */
static void test_faults(void **state) {
  (void)state;
  for (int scene = 0; scene < 7; scene++) {
    int64_t failed = 1;
    for (int64_t k = 1; failed > 0; k++) {
      world w;
      slot s = {.tree = NULL};
      reshard_tree moved = NULL;
      enter(&w, (uint64_t)(100 + scene));
      make_slot(&w, &s);
      if (scene % 4 >= 2) { /* out, or to the other */
        GOOD(reshard_tree_to(s.tree, w.gpus[0], w.streams[0], NULL, &moved));
        replace(&s, moved, 0, 0);
        moved = NULL;
      }
      int to = scene % 4 == 2 ? HOST : scene % 4 == 3 ? 1 : 0, gpu = to == HOST ? 0 : to;
      follow(&w, gpu, s.writer);
      vg_fail(NULL, k, scene >= 4, 0);
      reshard_status status = reshard_tree_to(s.tree, to == HOST ? w.cpu : w.gpus[to], w.streams[gpu], NULL, &moved);
      failed = vg_failed();
      vg_fail(NULL, 0, false, 0);
      if (status == RESHARD_SUCCESS) {
        replace(&s, moved, to, gpu);
        check_slot(&w, &s);
      } else {
        assert_true(failed > 0);
        assert_null(moved);
        assert_true(strlen(reshard_last_error()) > 0);
        check_slot(&w, &s);
      }
      drop(&s);
      leave(&w);
      if (vg_end() != 0)
        fail_msg("scene %d, call %d fails", scene, (int)k);
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_random), cmocka_unit_test(test_faults)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
