/* The steps of the model of tensors that are about trees of them: cast, and moved. */
#include "tensor_trees.h"
#include "bench/cli/naive_cast.h"
#include "support/fixtures/trees.h"
#include "support/fixtures/upstream.h"

#include <reshard/move.h>

#include <stdlib.h>
#include <string.h>

enum { MOST = 3 };

/* Tensors of one tree, the first of them twice. */
typedef struct bundle {
  int n;
  model_slot *slot[MOST];
  bool changes[MOST];
  int refused; /* the first that the call has to refuse; n: none */
} bundle;

static void bundle_add(bundle *b, model_slot *s) {
  for (int i = 0; i < b->n; i++)
    if (b->slot[i] == s)
      return;
  b->slot[b->n++] = s;
}

static reshard_tree tree_of(const bundle *b) {
  reshard_tree tree = list();
  for (int i = 0; i < b->n; i++) {
    reshard_tree leaf = leaf_of(reshard_tensor_retain(b->slot[i]->tensor));
    if (i == 0)
      append(tree, reshard_tree_retain(leaf));
    append(tree, leaf);
  }
  return tree;
}

/* The tensor in the tree at tensor i's place; owned by the caller. */
static reshard_tensor tensor_at(reshard_tree tree, int i) {
  const char path[2] = {(char)('1' + i), '\0'};
  reshard_tensor tensor;
  GOOD(reshard_tree_get_tensor(node_at(tree, path), &tensor));
  return reshard_tensor_retain(tensor);
}

static void look_up_tensors(bundle *b) {
  b->refused = b->n;
  for (int i = b->n - 1; i >= 0; i--)
    if (b->changes[i] && !model_there(b->slot[i]))
      b->refused = i;
}

/* New tensors that a call made before it refused one: they are gone. */
static bool check_refused(model *w, const bundle *b, reshard_status status, const int *places, const size_t *bytes) {
  assert_int_equal(status, RESHARD_ERROR_INVALID);
  for (int i = 0; i < b->refused; i++)
    if (b->changes[i])
      model_count_alloc(w, places[i], bytes[i]);
  for (int i = 0; i < b->refused; i++)
    if (b->changes[i])
      model_count_free(w, places[i], bytes[i]);
  w->done[MODEL_REFUSED]++;
  return false;
}

/* The new tensors in place of those before, or beside them. Returns whether there is one. */
static bool put_tree(model *w, const bundle *b, reshard_tree made, model_store *const *stores,
                     const reshard_dtype *dtypes, bool pins) {
  bool any = false;
  assert_ptr_equal(node_at(made, "0"), node_at(made, "1"));
  for (int i = 0; i < b->n; i++) {
    model_slot *s = b->slot[i], before = *s;
    reshard_tensor tensor = tensor_at(made, i);
    if (!b->changes[i]) {
      assert_ptr_equal(tensor, s->tensor);
      reshard_tensor_release(tensor);
      continue;
    }
    model_slot *other = rng_one_in(&w->random, 2) ? model_pick(w, true) : NULL;
    if (other == NULL) {
      model_drop(w, s);
      other = s;
    }
    model_fill_slot(other, tensor, stores[i], dtypes[i], before.shape);
    assert_int_equal(other->requires_grad, before.requires_grad);
    assert_int_equal(other->pin_memory, pins && before.pin_memory);
    any = true;
  }
  return any;
}

/* The bytes of a tensor, row-major, as numbers of another dtype. */
static void expect_numbers(const model_slot *s, reshard_dtype to, unsigned char *expected) {
  int64_t from_bytes = model_width(s), to_bytes = (int64_t)reshard_dtype_size(to);
  for (int64_t i = 0; i < s->shape[0]; i++)
    for (int64_t k = 0; k < s->shape[1]; k++) {
      uint64_t bits = 0;
      int64_t at = s->offset + i * s->strides[0] + k * s->strides[1];
      memcpy(&bits, s->store->expected + at * from_bytes, (size_t)from_bytes);
      if (to != s->dtype)
        bits = naive_cast(s->dtype, to, bits);
      memcpy(expected + (i * s->shape[1] + k) * to_bytes, &bits, (size_t)to_bytes);
    }
}

/* The host knows more of memory that DLPack brought than the library does. */
static bool plain(const model_slot *s) { return !s->imported || (s->store->host && !s->store->pinned); }

/* Up to MOST tensors that a call can take together with the first: those of the host, and of one GPU. */
static void draw_bundle(model *w, bundle *b, bool mixed) {
  for (int tries = 0; tries < 2 * MOST && b->n < MOST; tries++) {
    model_slot *s = model_pick(w, false);
    if (s == NULL || !plain(s))
      continue;
    const model_store *first = b->n > 0 ? b->slot[0]->store : s->store;
    if (s->store->host == first->host ? s->store->host || s->store->owner == first->owner : mixed && b->n < 2)
      bundle_add(b, s);
  }
}

/* --- Cast --------------------------------------------------------------------------------------------------------- */

static bool is_floating(reshard_dtype dtype) { return dtype != RESHARD_U8; }

/* Those who wrote what will be read are waited for: by the stream, or by the host. */
static void before_reads(model *w, const bundle *b, int stream) {
  for (int i = 0; i < b->refused; i++) {
    const model_slot *s = b->slot[i];
    if (!b->changes[i] || s->store->bytes == 0)
      continue;
    if (stream == NOBODY || (s->store->host && !s->store->pinned))
      model_before_host_read(w, s);
    else
      model_before_read(w, s->store, stream);
  }
}

bool model_cast(model *w) {
  static const reshard_dtype dtypes[3] = {RESHARD_BF16, RESHARD_F16, RESHARD_F32};
  reshard_dtype to = dtypes[rng_below(&w->random, 3)], all[MOST] = {to, to, to};
  model_store *stores[MOST] = {NULL};
  size_t bytes[MOST] = {0};
  bundle b = {0};
  draw_bundle(w, &b, false);
  if (b.n == 0)
    return false;
  int place = b.slot[0]->store->owner, stream;
  if (b.slot[0]->store->host)
    do
      place = (int)rng_below(&w->random, w->m->nplaces);
    while (model_gpu(w, place));
  stream = model_stream_of(w, place);
  for (int i = 0; i < b.n; i++) {
    b.changes[i] = is_floating(b.slot[i]->dtype) && b.slot[i]->dtype != to;
    bytes[i] = (size_t)model_elements(b.slot[i]) * reshard_dtype_size(to);
  }
  look_up_tensors(&b);
  before_reads(w, &b, stream);
  reshard_tree tree = tree_of(&b), cast = NULL;
  reshard_status status = reshard_tree_cast(tree, to, w->m->place[place].device, model_handle(w, stream), &cast);
  if (b.refused < b.n) {
    reshard_tree_release(tree);
    assert_null(cast);
    return check_refused(w, &b, status, (const int[]){place, place, place}, bytes);
  }
  GOOD(status);
  for (int i = 0; i < b.n; i++) {
    if (!b.changes[i])
      continue;
    stores[i] = model_new_store(place, stream == NOBODY ? NOBODY : place, bytes[i]);
    stores[i]->host = stream == NOBODY;
    stores[i]->home = stores[i]->writer = stream;
    expect_numbers(b.slot[i], to, stores[i]->expected);
    model_count_alloc(w, place, bytes[i]);
  }
  bool any = put_tree(w, &b, cast, stores, all, false);
  assert_int_equal(cast != tree, any);
  reshard_tree_release(tree);
  reshard_tree_release(cast);
  return any;
}

/* --- Moved -------------------------------------------------------------------------------------------------------- */

/* Place that a move goes to, and whose stream it is given. */
typedef struct route {
  int to, gpu; /* places; gpu NOBODY: nothing moves */
  int stream;
  reshard_move_options options;
} route;

static route draw_route(model *w, bundle *b) {
  rng *r = &w->random;
  route route = {.to = (int)rng_below(r, w->m->nplaces), .gpu = NOBODY, .stream = NOBODY};
  route.options = (reshard_move_options){RESHARD_MOVE_OPTIONS_INIT, rng_one_in(r, 3), rng_one_in(r, 4)};
  for (int i = 0; i < b->n; i++) {
    const model_store *store = b->slot[i]->store;
    b->changes[i] = model_gpu(w, route.to) ? store->host || store->owner != route.to : !store->host;
    if (b->changes[i])
      route.gpu = model_gpu(w, route.to) ? route.to : store->owner;
  }
  if (model_gpu(w, route.to) || route.gpu != NOBODY)
    route.stream = model_stream_of(w, route.gpu != NOBODY ? route.gpu : route.to);
  return route;
}

/* Memory that the GPU's pool lends during the call for strided tensors that no host packs. */
static void count_between(model *w, const bundle *b, const route *r) {
  size_t bytes[MOST] = {0};
  for (int i = 0; i < b->n; i++) {
    const model_slot *s = b->slot[i];
    if (b->changes[i] && !model_contiguous(s) && (s->store->pinned || !s->store->host))
      bytes[i] = r->to == r->gpu ? model_reach(s) : (size_t)(model_elements(s) * model_width(s));
  }
  for (int i = 0; i < b->n; i++)
    model_count_alloc(w, r->gpu, bytes[i]);
  for (int i = 0; i < b->n; i++)
    model_count_free(w, r->gpu, bytes[i]);
}

static model_store *store_of_moved(const model_slot *s, const route *r) {
  bool in = r->to == r->gpu, pinned = !in && s->pin_memory;
  model_store *made = model_new_store(pinned ? NOBODY : r->to, in || pinned ? r->gpu : NOBODY,
                                      (size_t)(model_elements(s) * model_width(s)));
  made->host = !in;
  made->pinned = pinned;
  made->home = made->writer = in || pinned ? r->stream : NOBODY;
  expect_numbers(s, s->dtype, made->expected);
  return made;
}

static int64_t count_grown(const model *w) {
  int64_t n = 0;
  for (int p = 0; p < w->m->nplaces; p++)
    n += count_upstream(w->m->place[p].device);
  return n;
}

bool model_move(model *w) {
  model_store *stores[MOST] = {NULL};
  reshard_dtype dtypes[MOST];
  size_t bytes[MOST] = {0};
  int places[MOST];
  bundle b = {0};
  draw_bundle(w, &b, true);
  if (b.n == 0)
    return false;
  route r = draw_route(w, &b);
  look_up_tensors(&b);
  before_reads(w, &b, r.options.sources_ready ? NOBODY : r.stream);
  if (r.options.sources_ready)
    before_reads(w, &b, r.stream);
  reshard_tree tree = tree_of(&b), moved = NULL;
  int64_t waits = w->m->nstreams > 0 ? w->m->waits() : 0, grown = count_grown(w);
  reshard_status status =
      reshard_tree_to(tree, w->m->place[r.to].device, model_handle(w, r.stream), &r.options, &moved);
  for (int i = 0; i < b.n; i++) {
    const model_slot *s = b.slot[i];
    dtypes[i] = s->dtype;
    bytes[i] = (size_t)(model_elements(s) * model_width(s));
    places[i] = r.to != r.gpu && s->pin_memory ? NOBODY : r.to;
  }
  if (b.refused < b.n) {
    reshard_tree_release(tree);
    assert_null(moved);
    return check_refused(w, &b, status, places, bytes);
  }
  GOOD(status);
  if (r.to == r.gpu) /* new tables wait for a stream without other work */
    assert_in_range(w->m->waits(), waits, waits + count_grown(w) - grown);
  for (int i = 0; i < b.n; i++)
    if (b.changes[i]) {
      stores[i] = store_of_moved(b.slot[i], &r);
      model_count_alloc(w, places[i], bytes[i]);
    }
  count_between(w, &b, &r);
  bool any = put_tree(w, &b, moved, stores, dtypes, true);
  assert_int_equal(moved != tree, any);
  reshard_tree_release(tree);
  reshard_tree_release(moved);
  return any;
}
