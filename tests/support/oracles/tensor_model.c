/* The steps of the model of tensors that are about one storage, and the run. */
#include "tensor_model.h"

#include "tensor_model_storage.h"
#include "tensor_trees.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool model_refused(model *w) {
  w->done[MODEL_REFUSED]++;
  return false;
}

/* --- Made --------------------------------------------------------------------------------------------------------- */

static void draw_shape(rng *r, int64_t shape[2]) {
  bool large = rng_one_in(r, 14);
  shape[0] = rng_log(r, large ? 300 : 60);
  shape[1] = rng_log(r, large ? 500 : 60);
  if (rng_one_in(r, 10))
    shape[rng_below(r, 2)] = 0;
}

/* Memory that the test lends: pinned. */
static reshard_tensor lend(model *w, reshard_dtype dtype, const int64_t *shape, model_store *store) {
  reshard_tensor tensor;
  store->lent = store->pinned = true;
  void *memory = w->m->pin(store->bytes + 1);
  GOOD(reshard_tensor_wrap(dtype, 2, shape, NULL, memory, w->m->unpin, NULL, &tensor));
  reshard_tensor_set_pin_memory(tensor, 1);
  return tensor;
}

static bool model_create(model *w) {
  static const reshard_dtype dtypes[] = {RESHARD_U8, RESHARD_F32, RESHARD_F32, RESHARD_F16, RESHARD_BF16};
  model_slot *s = model_pick(w, true);
  if (s == NULL)
    return false;
  int64_t shape[2];
  draw_shape(&w->random, shape);
  reshard_dtype dtype = dtypes[rng_below(&w->random, 5)];
  size_t bytes = (size_t)(shape[0] * shape[1]) * reshard_dtype_size(dtype);
  int place = (int)rng_in(&w->random, NOBODY, w->m->nplaces - 1), home = model_stream_of(w, place);
  model_store *store = model_new_store(place, model_gpu(w, place) ? place : NOBODY, bytes);
  reshard_tensor tensor;
  store->home = home;
  store->host = store->owner == NOBODY;
  if (place == NOBODY && w->m->nstreams > 0 && bytes > 0 && rng_one_in(&w->random, 2))
    tensor = lend(w, dtype, shape, store);
  else if (place == NOBODY)
    GOOD(reshard_tensor_create(dtype, 2, shape, &tensor));
  else
    GOOD(reshard_tensor_create_on(w->m->place[place].device, dtype, 2, shape, model_handle(w, home), &tensor));
  reshard_tensor_set_requires_grad(tensor, (int)rng_below(&w->random, 2));
  if (!store->host) /* where it goes to when it comes to the host */
    reshard_tensor_set_pin_memory(tensor, (int)rng_below(&w->random, 2));
  model_count_alloc(w, place, bytes);
  model_fill_slot(s, tensor, store, dtype, shape);
  model_write_all(w, store, home);
  return true;
}

/* A part of a tensor, turned round or not. */
static bool view(model *w) {
  model_slot *from = model_pick(w, false), *s = model_pick(w, true);
  if (from == NULL || s == NULL)
    return false;
  int dim = (int)rng_below(&w->random, 2);
  bool turn = rng_one_in(&w->random, 2);
  int64_t start = rng_in(&w->random, 0, from->shape[dim]), length = rng_in(&w->random, 0, from->shape[dim] - start);
  model_slot made = *from;
  made.shape[dim] = length;
  if (model_elements(&made) > 0) /* a view of nothing stays where the tensor begins */
    made.offset += start * from->strides[dim];
  reshard_tensor part;
  reshard_status status = reshard_tensor_narrow(from->tensor, dim, start, length, &part);
  if (from->store->bytes > 0 && !model_there(&made)) {
    assert_int_equal(status, RESHARD_ERROR_INVALID); /* it was allocated again with less */
    return model_refused(w);
  }
  GOOD(status);
  GOOD(reshard_tensor_permute(part, turn ? (const int[]){1, 0} : (const int[]){0, 1}, &made.tensor));
  reshard_tensor_release(part);
  *s = made;
  for (int d = 0; d < 2 && turn; d++) {
    s->shape[d] = made.shape[1 - d];
    s->strides[d] = made.strides[1 - d];
  }
  s->store->occupants++;
  s->store->given += s->imported;
  return true;
}

/* There and back: one more occupant, by the same memory. */
static bool export(model *w) {
  model_slot *from = model_pick(w, false), *s = model_pick(w, true);
  if (from == NULL || s == NULL || model_elements(from) == 0) /* which has no address to compare */
    return false;
  int versioned = (int)rng_below(&w->random, 2);
  void *managed = NULL;
  reshard_tensor back;
  reshard_status status = reshard_tensor_to_dlpack(from->tensor, versioned, &managed);
  if (!model_there(from)) {
    assert_int_equal(status, RESHARD_ERROR_INVALID);
    return model_refused(w);
  }
  GOOD(status);
  GOOD(reshard_tensor_from_dlpack(managed, versioned, 0, &back));
  *s = *from;
  s->tensor = back;
  s->imported = true;
  s->requires_grad = 0;
  s->store->occupants++;
  s->store->given++;
  return true;
}

/* --- Storage ------------------------------------------------------------------------------------------------------ */

static bool storage_free(model *w) {
  model_slot *s = model_pick(w, false);
  if (s == NULL)
    return false;
  model_store *store = s->store;
  int freed = 7;
  reshard_status status = reshard_storage_free(s->tensor, model_handle(w, model_stream_of(w, store->owner)), &freed);
  if (store->bytes == 0 && !s->imported) {
    GOOD(status);
    assert_int_equal(freed, 0);
    return false;
  }
  if (s->imported || store->lent || store->given > 0 || s->offset != 0) {
    assert_true(status == RESHARD_ERROR_INVALID && freed == 7);
    return model_refused(w);
  }
  GOOD(status);
  assert_int_equal(freed, 1);
  w->done[MODEL_FREE_VIEWED] += store->occupants > 1;
  model_count_free(w, store->place, store->bytes);
  store->bytes = 0;
  return true;
}

static bool storage_alloc(model *w) {
  model_slot *s = model_pick(w, false);
  if (s == NULL || s->imported)
    return false;
  model_store *store = s->store;
  int64_t reach = model_elements(s) > 0 ? s->offset * model_width(s) + (int64_t)model_reach(s) : 0;
  int64_t more = rng_one_in(&w->random, 2) ? 0 : rng_in(&w->random, -3, 300);
  size_t bytes = reach + more < 0 ? 0 : (size_t)(reach + more);
  int allocated = 7, home = model_stream_of(w, store->owner);
  reshard_status status = reshard_storage_alloc(s->tensor, bytes, model_handle(w, home), &allocated);
  if (store->bytes == bytes) {
    GOOD(status);
    assert_int_equal(allocated, 0);
    return false;
  }
  if (store->bytes != 0 || store->lent || more < 0) {
    assert_true(status == RESHARD_ERROR_INVALID && allocated == 7);
    return model_refused(w);
  }
  reshard_tensor_info info;
  GOOD(status);
  GOOD(reshard_tensor_get_info(s->tensor, &info));
  assert_int_equal(allocated, 1);
  store->bytes = bytes;
  store->expected = realloc(store->expected, bytes + 1);
  assert_non_null(store->expected);
  store->at = (char *)info.data - (model_elements(s) > 0 ? s->offset * model_width(s) : 0);
  store->home = home;
  store->writer = home; /* of pinned memory: the host's turn is when that stream is there */
  store->readers = 0;
  model_count_alloc(w, store->place, bytes);
  model_write_all(w, store, home);
  return true;
}

static bool use_storage(model *w) {
  model_slot *s = model_pick(w, false);
  if (s == NULL)
    return false;
  int stream = model_stream_of(w, s->store->owner);
  if (s->imported) /* nothing is recorded of it */
    stream = s->store->host ? NOBODY : s->store->home;
  bool there = model_there(s);
  if (stream == NOBODY || stream != s->store->home || !there || rng_one_in(&w->random, 4)) /* else it knows */
    assert_int_equal(reshard_storage_record_use(s->tensor, model_handle(w, stream)),
                     there ? RESHARD_SUCCESS : RESHARD_ERROR_INVALID);
  if (!there)
    return model_refused(w);
  if (rng_one_in(&w->random, 2))
    model_write(w, s, stream);
  else
    model_read(w, s, stream);
  return true;
}

static bool model_release(model *w) {
  model_slot *s = model_pick(w, false);
  if (s != NULL)
    model_drop(w, s);
  return s != NULL;
}

/* Gives kept memory back; what is in use is not touched. */
static bool trim(model *w) {
  int p = (int)rng_below(&w->random, w->m->nplaces);
  GOOD(reshard_device_trim(w->m->place[p].device, (size_t)rng_below(&w->random, 1 << 20)));
  return true;
}

/* --- The run ------------------------------------------------------------------------------------------------------ */

void model_run(const model_machine *machine, uint64_t seed, int64_t steps, int64_t done[MODEL_KINDS]) {
  static const struct {
    bool (*step)(model *w);
    model_kind kind;
    int share;
  } kinds[] = {{model_create, MODEL_CREATE, 3},   {view, MODEL_VIEW, 2},
               {export, MODEL_EXPORT, 1},         {storage_free, MODEL_FREE, 3},
               {use_storage, MODEL_USE, 2},       {storage_alloc, MODEL_ALLOC, 3},
               {model_cast, MODEL_CAST, 2},       {model_move, MODEL_MOVE, 3},
               {model_release, MODEL_RELEASE, 2}, {trim, MODEL_TRIM, 1}};
  model w = {.m = machine, .done = done};
  rng_seed(&w.random, seed);
  for (int64_t i = 0; i < steps; i++) {
    int64_t share = rng_below(&w.random, 22);
    int k = 0;
    for (; share >= kinds[k].share; k++)
      share -= kinds[k].share;
    done[kinds[k].kind] += kinds[k].step(&w);
    model_slot *s = model_pick(&w, false);
    if (s != NULL && (s->store->host || rng_one_in(&w.random, 3))) /* GPUs are waited for now and then */
      model_compare(&w, s);
    model_compare_stats(&w);
  }
  for (int i = 0; i < MODEL_SLOTS; i++)
    if (w.slots[i].tensor != NULL)
      model_compare(&w, &w.slots[i]);
  for (int i = 0; i < MODEL_SLOTS; i++)
    if (w.slots[i].tensor != NULL)
      model_drop(&w, &w.slots[i]);
  model_compare_stats(&w);
  for (int p = 0; p < machine->nplaces; p++)
    assert_int_equal(w.in_use[p], 0);
}

void model_report(const model_machine *machine, const int64_t done[MODEL_KINDS]) {
  static const char *const names[MODEL_KINDS] = {"made", "views", "exports", "freed",  "freed under views", "allocated",
                                                 "uses", "cast",  "moved",   "let go", "trimmed",           "refused"};
  for (int k = 0; k < MODEL_KINDS; k++) {
    printf("%s%s %lld", k > 0 ? ", " : "", names[k], (long long)done[k]);
    assert_true(done[k] > 0 || (k == MODEL_MOVE && machine->nstreams == 0));
  }
  printf("\n");
}
