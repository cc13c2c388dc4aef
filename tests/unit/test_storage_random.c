/* Random sequences of what can be done with tensors and storage, against a model: which storage each tensor looks at,
 * from where, whether it is there, and what is written in it. After each step some storage is compared byte by byte: so
 * memory that is given out twice, or taken away too early, is seen; and the pools' statistics are compared with sums
 * over the model. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "random.h"
#include "support/crew.h"
#include "support/expect.h"

#include <reshard/tensor.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TENSORS = 24, DEVICES = 3, LARGEST = 20000, RARELY = 600000, ROUNDING = 4096 };

/* Storage as it should be; bytes 0: freed. */
typedef struct store {
  int occupants, device; /* device -1: plain memory */
  size_t bytes;
  unsigned char *expected;
  void *at; /* where it is */
} store;

typedef struct slot {
  reshard_tensor tensor; /* of u8, 1-d; NULL: none */
  store *store;
  int64_t offset, length;
  bool imported; /* through DLPack: an occupant of the storage that cannot free it */
} slot;

typedef struct world {
  rng random;
  reshard_device devices[DEVICES];
  size_t in_use[DEVICES], peak[DEVICES];
  int64_t allocs[DEVICES], frees[DEVICES], live[DEVICES];
  slot slots[TENSORS];
  int64_t steps, done[8];
} world;

static void count_alloc(world *w, const store *s) {
  if (s->device < 0 || s->bytes == 0)
    return;
  w->allocs[s->device]++;
  w->live[s->device]++;
  w->in_use[s->device] += s->bytes;
  if (w->in_use[s->device] > w->peak[s->device])
    w->peak[s->device] = w->in_use[s->device];
}

static void count_free(world *w, const store *s) {
  if (s->device < 0 || s->bytes == 0)
    return;
  w->frees[s->device]++;
  w->live[s->device]--;
  w->in_use[s->device] -= s->bytes;
}

/* New bytes through a tensor, and in the model. */
static void write_through(world *w, slot *s) {
  reshard_tensor_info info;
  GOOD(reshard_tensor_get_info(s->tensor, &info));
  unsigned char seed = (unsigned char)rng_next(&w->random);
  for (int64_t i = 0; i < s->length; i++)
    ((unsigned char *)info.data)[i] = s->store->expected[s->offset + i] = (unsigned char)(seed + i * 7);
}

static void compare(const slot *s) {
  reshard_tensor_info info;
  bool there = s->store->bytes > 0;
  GOOD(reshard_tensor_get_info(s->tensor, &info));
  assert_int_equal(info.elements, s->length);
  assert_int_equal(reshard_data_allocated(s->tensor), there || s->length == 0);
  if (!there)
    assert_null(info.data);
  else if (s->length > 0)
    assert_ptr_equal(info.data, (char *)s->store->at + s->offset);
  if (!s->imported)
    assert_true(info.storage_bytes == s->store->bytes && info.offset == s->offset);
  if (there && s->length > 0)
    assert_memory_equal(info.data, s->store->expected + s->offset, (size_t)s->length);
}

static void compare_stats(const world *w) {
  for (int d = 0; d < DEVICES; d++) {
    reshard_memory_stats stats;
    GOOD(reshard_device_get_memory_stats(w->devices[d], &stats));
    size_t slack = (size_t)(w->live[d] * ROUNDING);
    assert_true(stats.allocs == w->allocs[d] && stats.frees == w->frees[d]);
    assert_true(stats.in_use_bytes >= w->in_use[d] && stats.in_use_bytes <= w->in_use[d] + slack);
    assert_true(stats.peak_bytes >= w->peak[d] && stats.peak_bytes <= w->peak[d] + TENSORS * ROUNDING);
    assert_true(stats.peak_held_bytes >= stats.peak_bytes);
    assert_true(stats.upstream_allocs >= stats.upstream_frees);
    assert_int_equal(stats.records + stats.waits, 0); /* on the CPU there is nothing to wait for */
  }
}

static slot *pick(world *w, bool free_one) {
  for (int tries = 0; tries < 4 * TENSORS; tries++) {
    slot *s = &w->slots[rng_below(&w->random, TENSORS)];
    if ((s->tensor == NULL) == free_one)
      return s;
  }
  return NULL;
}

static void drop(world *w, slot *s) {
  reshard_tensor_release(s->tensor);
  if (--s->store->occupants == 0) {
    count_free(w, s->store);
    free(s->store->expected);
    free(s->store);
  }
  *s = (slot){.tensor = NULL};
}

static void step_create(world *w) {
  slot *s = pick(w, true);
  if (s == NULL)
    return;
  int64_t most = rng_one_in(&w->random, 12) ? RARELY : LARGEST;
  int64_t bytes = rng_one_in(&w->random, 10) ? 0 : rng_log(&w->random, most);
  int device = (int)rng_in(&w->random, -1, DEVICES - 1);
  store *made = calloc(1, sizeof *made);
  *made = (store){1, device, (size_t)bytes, calloc(1, RARELY + 1000), NULL};
  if (device < 0)
    GOOD(reshard_tensor_create(RESHARD_U8, 1, &bytes, &s->tensor));
  else
    GOOD(reshard_tensor_create_on(w->devices[device], RESHARD_U8, 1, &bytes, NULL, &s->tensor));
  reshard_tensor_info info;
  GOOD(reshard_tensor_get_info(s->tensor, &info));
  s->store = made;
  s->length = bytes;
  made->at = info.data;
  assert_int_equal((uintptr_t)info.data % 256, 0);
  count_alloc(w, made);
  write_through(w, s);
}

static void step_view(world *w) {
  slot *from = pick(w, false), *s = pick(w, true);
  if (from == NULL || s == NULL)
    return;
  int64_t start = rng_in(&w->random, 0, from->length), length = rng_in(&w->random, 0, from->length - start);
  bool there = from->store->bytes > 0 || length == 0;
  reshard_tensor view = NULL;
  reshard_status status = reshard_tensor_narrow(from->tensor, 0, start, length, &view);
  if (!there) {
    assert_int_equal(status, RESHARD_ERROR_INVALID); /* nothing is made over what is freed */
    return;
  }
  GOOD(status);
  /* a view of nothing stays where the tensor begins */
  *s = (slot){view, from->store, from->offset + (length > 0 ? start : 0), length, from->imported};
  s->store->occupants++;
}

/* There and back: one more occupant, by the same memory. */
static void step_export(world *w) {
  slot *from = pick(w, false), *s = pick(w, true);
  if (from == NULL || s == NULL)
    return;
  int versioned = (int)rng_below(&w->random, 2);
  void *managed = NULL;
  reshard_status status = reshard_tensor_to_dlpack(from->tensor, versioned, &managed);
  if (from->store->bytes == 0 && from->length > 0) {
    assert_int_equal(status, RESHARD_ERROR_INVALID);
    return;
  }
  GOOD(status);
  reshard_tensor back;
  GOOD(reshard_tensor_from_dlpack(managed, versioned, 0, &back));
  if (from->length == 0) { /* it has no address to compare */
    reshard_tensor_release(back);
    return;
  }
  *s = (slot){back, from->store, from->offset, from->length, true};
  s->store->occupants++;
}

static void step_free(world *w) {
  slot *s = pick(w, false);
  if (s == NULL)
    return;
  int freed = 7;
  reshard_status status = reshard_storage_free(s->tensor, NULL, &freed);
  if (s->store->bytes == 0 && !s->imported) {
    GOOD(status);
    assert_int_equal(freed, 0);
  } else if (s->imported || s->store->occupants > 1 || s->offset != 0) {
    assert_true(status == RESHARD_ERROR_INVALID && freed == 7);
  } else {
    GOOD(status);
    assert_int_equal(freed, 1);
    count_free(w, s->store);
    s->store->bytes = 0;
  }
}

static void step_alloc(world *w) {
  slot *s = pick(w, false);
  if (s == NULL || s->imported)
    return;
  int64_t more = rng_one_in(&w->random, 2) ? 0 : rng_in(&w->random, -3, 300);
  size_t bytes = s->length + more < 0 ? 0 : (size_t)(s->length + more), has = s->store->bytes;
  int allocated = 7;
  reshard_status status = reshard_storage_alloc(s->tensor, bytes, NULL, &allocated);
  if (has == bytes) {
    GOOD(status);
    assert_int_equal(allocated, 0);
  } else if (has != 0 || more < 0 || s->store->occupants > 1) {
    assert_true(status == RESHARD_ERROR_INVALID && allocated == 7);
  } else {
    reshard_tensor_info info;
    GOOD(status);
    GOOD(reshard_tensor_get_info(s->tensor, &info));
    assert_int_equal(allocated, 1);
    s->store->bytes = bytes;
    s->store->at = info.data;
    count_alloc(w, s->store);
    write_through(w, s);
  }
}

static void step_use(world *w) {
  slot *s = pick(w, false);
  if (s == NULL)
    return;
  bool there = s->store->bytes > 0 || s->length == 0;
  assert_int_equal(reshard_storage_record_use(s->tensor, NULL), there ? RESHARD_SUCCESS : RESHARD_ERROR_INVALID);
  if (there)
    write_through(w, s);
}

static void step_release(world *w) {
  slot *s = pick(w, false);
  if (s != NULL)
    drop(w, s);
}

/* Gives kept memory back; what is in use is not touched. */
static void step_trim(world *w) {
  int d = (int)rng_below(&w->random, DEVICES);
  GOOD(reshard_device_trim(w->devices[d], (size_t)rng_below(&w->random, 2 * RARELY)));
}

static void run(uint64_t seed, int64_t *steps) {
  static void (*const kinds[])(world *) = {step_create, step_view,    step_export, step_free, step_alloc,
                                           step_use,    step_release, step_trim,   step_free, step_alloc};
  static const int64_t keep[DEVICES] = {0, -1, RARELY};
  world w = {.steps = 400};
  rng_seed(&w.random, seed);
  for (int d = 0; d < DEVICES; d++) {
    const reshard_device_options options = {.size = RESHARD_DEVICE_OPTIONS_INIT, .threads = 1, .keep_bytes = keep[d]};
    GOOD(reshard_device_create("cpu", &options, &w.devices[d]));
  }
  for (int64_t i = 0; i < w.steps; i++) {
    kinds[rng_below(&w.random, sizeof kinds / sizeof *kinds)](&w);
    slot *s = pick(&w, false);
    if (s != NULL)
      compare(s);
    compare_stats(&w);
  }
  for (int i = 0; i < TENSORS; i++)
    if (w.slots[i].tensor != NULL) {
      compare(&w.slots[i]);
      drop(&w, &w.slots[i]);
    }
  compare_stats(&w);
  for (int d = 0; d < DEVICES; d++) {
    assert_int_equal(w.in_use[d], 0);
    reshard_device_release(w.devices[d]);
  }
  *steps += w.steps;
}

static void test_random(void **state) {
  (void)state;
  int64_t cases = crew_scaled(60), steps = 0;
  for (int64_t c = 0; c < cases; c++)
    run(0x570c + (uint64_t)c, &steps);
  printf("%lld steps\n", (long long)steps);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_random)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
