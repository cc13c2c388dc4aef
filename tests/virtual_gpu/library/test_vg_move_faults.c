/* The k-th call of the CUDA runtime fails while a tree is moved: the output is not written, the sources are what they
 * were, and nothing is left behind. */
#include "support/fixtures/expect.h"
#include "support/fixtures/trees.h"
#include "virtual_gpu.h"

#include <reshard/move.h>

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/fixtures/case.h"

#define CUDA(call) assert_int_equal((call), cudaSuccess)

enum { TENSORS = 4, ROWS = 30, COLUMNS = 20, PART = 11, HOST = -1 };

static int32_t element_value(int tensor, int64_t row, int64_t column) {
  return (int32_t)(tensor * 1000000 + row * 1000 + column);
}

typedef struct world {
  reshard_device cpu, gpus[2];
  cudaStream_t streams[2];
  reshard_tree tree;
  int place, writer; /* of the tree; GPU whose stream has to be waited for, HOST: none */
} world;

static void free_pinned(void *user, void *data) { cudaFreeHost(data); }

/* Of the CPU: pageable or pinned, whole, or a part of the columns, turned round. */
static reshard_tensor make_tensor(int number) {
  const int64_t shape[2] = {ROWS, COLUMNS};
  reshard_tensor tensor, part, view;
  int32_t *memory;
  CUDA(cudaHostAlloc((void **)&memory, sizeof *memory * ROWS * COLUMNS, 0));
  vg_host_write(memory, sizeof *memory * ROWS * COLUMNS);
  for (int i = 0; i < ROWS * COLUMNS; i++)
    memory[i] = element_value(number, i / COLUMNS, i % COLUMNS);
  GOOD(reshard_tensor_wrap(RESHARD_I32, 2, shape, NULL, memory, free_pinned, NULL, &tensor));
  reshard_tensor_set_pin_memory(tensor, number % 2);
  if (number < TENSORS / 2)
    return tensor;
  GOOD(reshard_tensor_narrow(tensor, 1, 0, PART, &part));
  GOOD(reshard_tensor_permute(part, (const int[]){1, 0}, &view));
  reshard_tensor_release(tensor);
  reshard_tensor_release(part);
  return view;
}

static void world_begin(world *w, uint64_t seed) {
  *w = (world){.tree = list(), .place = HOST, .writer = HOST};
  vg_begin(&(vg_options){.devices = 2, .seed = seed});
  GOOD(reshard_device_create("cpu", &(reshard_device_options){RESHARD_DEVICE_OPTIONS_INIT, .threads = 1}, &w->cpu));
  for (int i = 0; i < 2; i++) {
    GOOD(reshard_device_create(i == 0 ? "cuda:0" : "cuda:1", NULL, &w->gpus[i]));
    CUDA(cudaSetDevice(i));
    CUDA(cudaStreamCreateWithFlags(&w->streams[i], cudaStreamNonBlocking));
  }
  CUDA(cudaSetDevice(0));
  for (int i = 0; i < TENSORS; i++)
    append(w->tree, leaf_of(make_tensor(i)));
}

static int world_end(world *w) {
  reshard_tree_release(w->tree);
  reshard_device_release(w->cpu);
  for (int i = 0; i < 2; i++) {
    reshard_device_release(w->gpus[i]);
    cudaSetDevice(i);
    cudaStreamSynchronize(w->streams[i]);
    cudaStreamDestroy(w->streams[i]);
  }
  cudaSetDevice(0);
  return vg_end();
}

static reshard_status move_to(world *w, int to, reshard_tree *moved) {
  int gpu = to != HOST ? to : w->place;
  return reshard_tree_to(w->tree, to == HOST ? w->cpu : w->gpus[to], w->streams[gpu], NULL, moved);
}

static void replace(world *w, reshard_tree moved, int to) {
  reshard_tree_release(w->tree);
  w->tree = moved;
  w->writer = to != HOST ? to : w->place;
  w->place = to;
}

/* As a user looks at them who has waited for the stream. */
static void world_check(const world *w) {
  if (w->writer != HOST)
    CUDA(cudaStreamSynchronize(w->streams[w->writer]));
  for (int i = 0; i < TENSORS; i++) {
    const char path[2] = {(char)('0' + i), '\0'};
    bool part = i >= TENSORS / 2;
    reshard_tensor tensor;
    reshard_tensor_info info;
    GOOD(reshard_tree_get_tensor(node_at(w->tree, path), &tensor));
    GOOD(reshard_tensor_get_info(tensor, &info));
    assert_int_equal(info.elements, ROWS * (part ? PART : COLUMNS));
    int32_t copy[ROWS * COLUMNS], *at = info.data;
    if (w->place != HOST) {
      assert_true(info.contiguous);
      vg_peek(copy, info.data, (size_t)info.elements * sizeof *copy);
      at = copy;
    } else if (info.contiguous) {
      vg_host_read(info.data, (size_t)info.elements * sizeof *copy);
    }
    for (int64_t k = 0; k < info.elements; k++) {
      int64_t row = k / info.shape[1], column = k % info.shape[1];
      assert_int_equal(at[row * info.strides[0] + column * info.strides[1]],
                       element_value(i, part ? column : row, part ? row : column));
    }
  }
}

typedef struct fault_case {
  const char *name;
  int from, to;
  bool from_then_on; /* not between two GPUs: one that is lost may not come back while memory of the other is freed */
} fault_case;

/* One run with the k-th call failing; whether there are so many. */
static bool run_fault_case(const fault_case *s, int64_t k) {
  world w;
  reshard_tree moved = NULL;
  world_begin(&w, (uint64_t)k);
  if (s->from != HOST) {
    GOOD(move_to(&w, s->from, &moved));
    replace(&w, moved, s->from);
    moved = NULL;
  }
  if (s->from != HOST && s->to != HOST) /* the other GPU's stream comes after */
    CUDA(cudaStreamSynchronize(w.streams[s->from]));
  vg_fail(NULL, k, s->from_then_on, 0);
  reshard_status status = move_to(&w, s->to, &moved);
  bool failed = vg_failed() > 0;
  vg_fail(NULL, 0, false, 0);
  if (status == RESHARD_SUCCESS) {
    replace(&w, moved, s->to);
  } else {
    assert_true(failed);
    assert_null(moved);
    assert_true(strlen(reshard_last_error()) > 0);
  }
  world_check(&w);
  if (world_end(&w) != 0)
    fail_msg("%s, call %d fails%s", s->name, (int)k, s->from_then_on ? " and all after it" : "");
  return failed;
}

CASE(every_failing_call_of_a_move_leaves_the_sources) {
  static const fault_case cases[] = {{"in", HOST, 0, false},
                                     {"out", 0, HOST, false},
                                     {"over", 0, 1, false},
                                     {"in", HOST, 0, true},
                                     {"out", 0, HOST, true}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    int64_t k = 1;
    while (run_fault_case(&cases[i], k))
      k++;
    print_message("%s: %d calls%s\n", cases[i].name, (int)k - 1, cases[i].from_then_on ? ", and all after each" : "");
    assert_true(k > 20);
  }
}

RUN_CASES
