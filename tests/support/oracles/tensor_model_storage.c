/* The model's storage: reads, writes and comparisons. */
#include "tensor_model_storage.h"

#include <stdlib.h>
#include <string.h>

enum { SMALL = 1 << 20, ROUNDING = 4096, LARGE_ROUNDING = 64 << 10 }; /* as pools round sizes up at most */

size_t model_reach(const model_slot *s) {
  if (model_elements(s) == 0)
    return 0;
  return (size_t)(((s->shape[0] - 1) * s->strides[0] + (s->shape[1] - 1) * s->strides[1] + 1) * model_width(s));
}

bool model_contiguous(const model_slot *s) {
  return model_elements(s) == 0 ||
         ((s->shape[1] == 1 || s->strides[1] == 1) && (s->shape[0] == 1 || s->strides[0] == s->shape[1]));
}

/* Pieces of a tensor that lie together. */
typedef struct runs {
  int64_t n, bytes, step;
} runs;
static runs runs_of(const model_slot *s) {
  int inner = s->strides[1] == 1 ? 1 : 0; /* nothing here takes the stride 1 from both */
  runs r = {s->shape[1 - inner], s->shape[inner] * model_width(s), s->strides[1 - inner] * model_width(s)};
  if (r.step == r.bytes) {
    r.bytes *= r.n;
    r.n = 1;
  }
  return model_elements(s) > 0 ? r : (runs){0, 0, 0};
}

/* --- Pools -------------------------------------------------------------------------------------------------------- */

enum { TABLES = 8, TABLE_BYTES = 1 << 20 };

static size_t rounding(size_t bytes) { return bytes < SMALL ? ROUNDING : LARGE_ROUNDING; }

void model_count_alloc(model *w, int place, size_t bytes) {
  if (place == NOBODY || bytes == 0)
    return;
  w->allocs[place]++;
  w->in_use[place] += bytes;
  w->slack[place] += rounding(bytes);
  w->peak[place] = w->in_use[place] > w->peak[place] ? w->in_use[place] : w->peak[place];
  w->most_slack[place] = w->slack[place] > w->most_slack[place] ? w->slack[place] : w->most_slack[place];
}

void model_count_free(model *w, int place, size_t bytes) {
  if (place == NOBODY || bytes == 0)
    return;
  w->frees[place]++;
  w->in_use[place] -= bytes;
  w->slack[place] -= rounding(bytes);
}

void model_compare_stats(const model *w) {
  for (int p = 0; p < w->m->nplaces; p++) {
    reshard_memory_stats stats;
    GOOD(reshard_device_get_memory_stats(w->m->place[p].device, &stats));
    /* A GPU has tables of its copies, too: they grow a few times, and stay. */
    int64_t tables = model_gpu(w, p) ? TABLES : 0;
    size_t bytes = model_gpu(w, p) ? TABLE_BYTES : 0;
    assert_in_range(stats.allocs, w->allocs[p], w->allocs[p] + tables);
    assert_in_range(stats.frees, w->frees[p], w->frees[p] + tables);
    assert_in_range(stats.in_use_bytes, w->in_use[p], w->in_use[p] + w->slack[p] + bytes);
    assert_in_range(stats.peak_bytes, w->peak[p], w->peak[p] + w->most_slack[p] + bytes);
    assert_true(stats.peak_held_bytes >= stats.peak_bytes);
    assert_true(stats.upstream_allocs >= stats.upstream_frees);
    if (!model_gpu(w, p))
      assert_int_equal(stats.records + stats.waits, 0); /* there is nothing to wait for */
  }
}

/* --- Order -------------------------------------------------------------------------------------------------------- */

static void come_after(model *w, int earlier, int later) {
  if (later == NOBODY)
    w->m->settle(&w->m->stream[earlier]);
  else if (earlier != later)
    w->m->order(&w->m->stream[earlier], &w->m->stream[later]);
}

void model_before_read(model *w, model_store *store, int s) {
  if (store->writer != NOBODY)
    come_after(w, store->writer, s);
  if (s == NOBODY)
    store->writer = NOBODY;
  else
    store->readers |= 1u << s;
}

void model_before_write(model *w, model_store *store, int s) {
  model_before_read(w, store, s);
  for (int r = 0; r < w->m->nstreams; r++)
    if (store->readers >> r & 1)
      come_after(w, r, s);
  store->readers = 0;
  store->writer = s;
}

int model_stream_of(model *w, int place) {
  if (!model_gpu(w, place))
    return NOBODY;
  for (;;) {
    int s = (int)rng_below(&w->random, w->m->nstreams);
    if (w->m->stream[s].place == place)
      return s;
  }
}

void *model_handle(const model *w, int s) { return s == NOBODY ? NULL : w->m->stream[s].handle; }

/* --- Tensors ------------------------------------------------------------------------------------------------------ */

model_store *model_new_store(int place, int owner, size_t bytes) {
  model_store *made = malloc(sizeof *made);
  assert_non_null(made);
  *made = (model_store){.occupants = 1, .place = place, .owner = owner, .bytes = bytes, .home = NOBODY};
  made->writer = NOBODY;
  made->expected = malloc(bytes + 1);
  assert_non_null(made->expected);
  return made;
}

void model_fill_slot(model_slot *s, reshard_tensor tensor, model_store *store, reshard_dtype dtype,
                     const int64_t shape[2]) {
  reshard_tensor_info info;
  GOOD(reshard_tensor_get_info(tensor, &info));
  store->at = info.data;
  *s = (model_slot){.tensor = tensor,
                    .store = store,
                    .dtype = dtype,
                    .shape = {shape[0], shape[1]},
                    .strides = {shape[1], 1},
                    .requires_grad = info.requires_grad,
                    .pin_memory = info.pin_memory};
  if (store->bytes > 0)
    assert_int_equal((uintptr_t)info.data % 256, 0);
}

static void write_run(model *w, model_store *store, int64_t to, int64_t bytes, int stream) {
  int64_t from = rng_in(&w->random, 0, MODEL_PATTERN - bytes);
  memcpy(store->expected + to, w->m->pattern + from, (size_t)bytes);
  if (!store->host) {
    w->m->copy(store->at + to, w->m->place[store->owner].pattern + from, (size_t)bytes, &w->m->stream[stream]);
    return;
  }
  if (store->pinned)
    w->m->touch(store->at + to, (size_t)bytes, true);
  memcpy(store->at + to, w->m->pattern + from, (size_t)bytes);
}

void model_write(model *w, const model_slot *s, int stream) {
  runs r = runs_of(s);
  if (r.n > 0)
    model_before_write(w, s->store, s->store->host ? NOBODY : stream);
  for (int64_t i = 0; i < r.n; i++)
    write_run(w, s->store, s->offset * model_width(s) + i * r.step, r.bytes, stream);
}

void model_write_all(model *w, model_store *store, int stream) {
  if (store->bytes == 0)
    return;
  model_before_write(w, store, store->host ? NOBODY : stream);
  write_run(w, store, 0, (int64_t)store->bytes, stream);
}

void model_read(model *w, const model_slot *s, int stream) {
  runs r = runs_of(s);
  if (r.n == 0 || s->store->host)
    return;
  model_before_read(w, s->store, stream);
  for (int64_t i = 0; i < r.n; i++)
    w->m->copy(w->m->stream[stream].scratch, s->store->at + s->offset * model_width(s) + i * r.step, (size_t)r.bytes,
               &w->m->stream[stream]);
}

void model_before_host_read(model *w, const model_slot *s) {
  runs r = runs_of(s);
  model_before_read(w, s->store, NOBODY);
  for (int64_t i = 0; i < r.n && s->store->pinned; i++)
    w->m->touch(s->store->at + s->offset * model_width(s) + i * r.step, (size_t)r.bytes, false);
}

static void compare_bytes(model *w, const model_slot *s) {
  const model_store *store = s->store;
  runs r = runs_of(s);
  char *copy = malloc((size_t)r.bytes + 1);
  assert_non_null(copy);
  model_before_host_read(w, s);
  for (int64_t i = 0; i < r.n; i++) {
    int64_t at = s->offset * model_width(s) + i * r.step;
    if (!store->host)
      w->m->fetch(copy, store->at + at, (size_t)r.bytes);
    assert_memory_equal(store->host ? store->at + at : copy, store->expected + at, (size_t)r.bytes);
  }
  free(copy);
}

void model_compare(model *w, const model_slot *s) {
  reshard_tensor_info info;
  GOOD(reshard_tensor_get_info(s->tensor, &info));
  assert_int_equal(info.dtype, s->dtype);
  assert_int_equal(info.ndim, 2);
  assert_true(info.shape[0] == s->shape[0] && info.shape[1] == s->shape[1]);
  assert_int_equal(info.contiguous, model_contiguous(s));
  assert_int_equal(info.requires_grad, s->requires_grad);
  assert_int_equal(info.device_type, s->store->host ? RESHARD_DEVICE_CPU : RESHARD_DEVICE_CUDA);
  assert_int_equal(reshard_data_allocated(s->tensor), model_there(s));
  if (!s->imported) {
    assert_int_equal(info.pin_memory, s->pin_memory);
    assert_int_equal(info.storage_bytes, s->store->bytes);
    assert_int_equal(info.offset, s->offset);
  }
  if (s->store->bytes == 0 || !model_there(s)) {
    assert_null(info.data);
  } else if (model_elements(s) > 0) {
    assert_ptr_equal(info.data, s->store->at + s->offset * model_width(s));
    compare_bytes(w, s);
  }
}

void model_drop(model *w, model_slot *s) {
  reshard_tensor_release(s->tensor);
  s->store->given -= s->imported;
  if (--s->store->occupants == 0) {
    model_count_free(w, s->store->place, s->store->bytes);
    free(s->store->expected);
    free(s->store);
  }
  *s = (model_slot){.tensor = NULL};
}

model_slot *model_pick(model *w, bool free_one) {
  for (int tries = 0; tries < 4 * MODEL_SLOTS; tries++) {
    model_slot *s = &w->slots[rng_below(&w->random, MODEL_SLOTS)];
    if ((s->tensor == NULL) == free_one)
      return s;
  }
  return NULL;
}
