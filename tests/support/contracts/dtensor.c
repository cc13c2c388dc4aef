/* DTensors in random placings, against lists of elements (oracle.h). */
#include "dtensor.h"

#include "bench/cli/util.h"

#include <string.h>

/* A way of placing, the mesh that it is on, and what each rank has then. */
typedef struct way {
  oracle_layout what;
  oracle_buffers held;
  reshard_mesh mesh;
} way;

static int64_t draw_mesh(rng *r, int64_t world, oracle_layout *l) {
  int64_t size = 1, all[ORACLE_WORLD];
  l->mesh_ndim = (int)rng_in(r, 1, 3);
  for (int m = 0; m < l->mesh_ndim; m++) {
    l->mesh[m] = rng_in(r, 1, world / size);
    size *= l->mesh[m];
  }
  for (int64_t i = 0; i < world; i++)
    all[i] = i;
  for (int64_t i = 0; i < size; i++) {
    int64_t other = rng_in(r, i, world - 1);
    l->ranks[i] = all[other];
    all[other] = all[i];
  }
  return size;
}

static void draw_placements(rng *r, oracle_layout *l) {
  for (int m = 0; m < l->mesh_ndim; m++) {
    l->order[m] = m;
    l->placement[m] = (reshard_placement){.kind = RESHARD_PLACEMENT_REPLICATE};
    if (l->ndim > 0 && !rng_one_in(r, 4))
      l->placement[m] = (reshard_placement){.kind = RESHARD_PLACEMENT_SHARD, .dim = (int)rng_below(r, l->ndim)};
    if (l->placement[m].kind == RESHARD_PLACEMENT_SHARD && rng_one_in(r, 4)) {
      l->placement[m].kind = RESHARD_PLACEMENT_STRIDED_SHARD;
      l->placement[m].split_factor = rng_in(r, 1, 4);
    }
  }
  for (int m = l->mesh_ndim - 1; m > 0; m--) {
    int other = (int)rng_below(r, m + 1), order = l->order[m];
    l->order[m] = l->order[other];
    l->order[other] = order;
  }
}

/* like NULL: on a new mesh. */
static void draw_placings(contract_rank *s, rng *r, int ndim, const int64_t *shape, const way *like, way *w) {
  *w = (way){.what = {.kind = RESHARD_LAYOUT_MESH, .ndim = ndim, .world = reshard_comm_size(s->comm)}};
  memcpy(w->what.shape, shape, (size_t)ndim * sizeof *shape);
  if (like != NULL) {
    w->what = like->what;
    w->mesh = reshard_mesh_retain(like->mesh);
  } else {
    w->what.nranks = draw_mesh(r, w->what.world, &w->what);
    CONTRACT_SUCCEEDS(s, reshard_mesh_create(s->comm, 0, w->what.mesh_ndim, w->what.mesh, NULL, w->what.nranks,
                                             w->what.ranks, &w->mesh));
  }
  draw_placements(r, &w->what);
  oracle_evaluate(&w->what, &w->held);
}

static void way_drop(way *w) {
  oracle_buffers_free(&w->held, w->what.world);
  reshard_mesh_release(w->mesh);
}

static reshard_placing placing_of(const way *w) { return (reshard_placing){w->mesh, w->what.placement, w->what.order}; }

/* This rank's local tensor; NULL: the rank is outside of the mesh. */
static const oracle_buffer *mine(const contract_rank *s, const way *w) {
  int64_t r = reshard_comm_rank(s->comm);
  for (int64_t i = 0; i < w->what.nranks; i++)
    if (w->what.ranks[i] == r)
      return &w->held.buffer[w->held.first[r]];
  return NULL;
}

/* given: of parts that the test has made, of any strides. */
static void dtensor_check(contract_rank *s, const way *w, reshard_dtensor t, bool given, uint64_t key) {
  const oracle_buffer *b = mine(s, w);
  reshard_tensor local = reshard_dtensor_local(t);
  reshard_tensor_info info;
  if (!CONTRACT_CHECK(s, (local != NULL) == (b != NULL)) || b == NULL)
    return;
  CONTRACT_SUCCEEDS(s, reshard_tensor_get_info(local, &info));
  CONTRACT_CHECK(s, (given || info.contiguous) && info.ndim == w->what.ndim &&
                        memcmp(info.shape, b->shape, (size_t)info.ndim * sizeof *b->shape) == 0);
  CONTRACT_CHECK(s, contract_count_wrong(s, local, b->n, b->index, false, key) == 0);
}

/* Bytes that this rank lacks of what it gets. */
static int64_t lacked(const contract_rank *s, const way *from, const way *to, int64_t width) {
  oracle_region all = {.permutation = {0, 1, 2, 3, 4, 5, 6, 7}};
  oracle_counts counts = {0};
  oracle_buffers held;
  memcpy(all.src_extent, to->what.shape, sizeof all.src_extent);
  memcpy(all.dst_extent, to->what.shape, sizeof all.dst_extent);
  oracle_evaluate(&to->what, &held);
  oracle_reshard(&from->what, &from->held, &to->what, &held, &all, width, &counts);
  oracle_buffers_free(&held, to->what.world);
  return counts.lacked[reshard_comm_rank(s->comm)];
}

/* inferred: the global shape is found by the ranks. */
static reshard_dtensor from_local(contract_rank *s, const way *w, reshard_dtype dtype, bool strided, bool inferred,
                                  uint64_t key) {
  const oracle_buffer *b = mine(s, w);
  reshard_placing placing = placing_of(w);
  reshard_tensor local = NULL;
  reshard_dtensor t = NULL;
  if (b != NULL) {
    local = contract_tensor(s, dtype, w->what.ndim, b->shape, strided);
    if (local != NULL)
      contract_fill(s, local, b->n, b->index, false, key);
  }
  CONTRACT_SUCCEEDS(
      s, reshard_dtensor_from_local(s->sharder, &placing, local, w->what.ndim, inferred ? NULL : w->what.shape, 1, &t));
  reshard_tensor_release(local);
  if (t != NULL)
    CONTRACT_CHECK(s, reshard_dtensor_ndim(t) == w->what.ndim &&
                          memcmp(reshard_dtensor_shape(t), w->what.shape, (size_t)w->what.ndim * sizeof(int64_t)) == 0);
  return t;
}

static void check_full(contract_rank *s, const way *w, reshard_dtensor t, uint64_t key) {
  reshard_tensor whole = NULL;
  if (!CONTRACT_SUCCEEDS(s, reshard_dtensor_full(t, s->stream, &whole)))
    return;
  if (CONTRACT_CHECK(s, (whole != NULL) == (mine(s, w) != NULL)) && whole != NULL)
    CONTRACT_CHECK(s, contract_count_wrong_whole(s, whole, key) == 0);
  reshard_tensor_release(whole);
}

/* From a rank that has the whole, in the mesh or not, or from each its own. */
static void check_distribute(contract_rank *s, const way *w, reshard_dtype dtype, int64_t src, uint64_t key) {
  const reshard_properties properties = {.dtype = dtype};
  reshard_placing placing = placing_of(w);
  bool has = src < 0 ? mine(s, w) != NULL : src == reshard_comm_rank(s->comm);
  reshard_tensor whole = has ? contract_tensor(s, dtype, w->what.ndim, w->what.shape, src % 2 == 0) : NULL;
  reshard_dtensor t = NULL;
  int64_t before = contract_received(s);
  if (whole != NULL)
    contract_fill_whole(s, whole, key);
  if (CONTRACT_SUCCEEDS(s, reshard_dtensor_distribute(s->sharder, &placing, whole, src, w->what.ndim, w->what.shape,
                                                      &properties, s->stream, &t)))
    dtensor_check(s, w, t, false, key);
  if (src < 0)
    CONTRACT_CHECK(s, contract_received(s) == before);
  reshard_dtensor_release(t);
  reshard_tensor_release(whole);
}

/* Into memory that is there, of any strides; the dtype of the tensor's, else all ranks have one error. On GPUs, where
 * hosts do not meet once plans are kept, that would end the communicator. */
static void check_into(contract_rank *s, const way *to, reshard_dtensor t, reshard_dtype dtype, bool strided,
                       uint64_t key) {
  reshard_dtensor into = from_local(s, to, dtype, strided, false, key + 7),
                  other = from_local(s, to, RESHARD_I16, strided, false, key);
  if (into != NULL && other != NULL) {
    for (int i = 0; i < 2; i++)
      CONTRACT_SUCCEEDS(s, reshard_dtensor_redistribute_into(1, &t, &into, s->stream));
    dtensor_check(s, to, into, true, key);
    if (s->stream == NULL) {
      CONTRACT_CHECK(s, reshard_dtensor_redistribute_into(1, &t, &other, s->stream) == RESHARD_ERROR_INVALID);
      CONTRACT_CHECK(s, strstr(reshard_last_error(), "is of i16, its tensor of ") != NULL);
    }
    dtensor_check(s, to, other, true, key);
  }
  reshard_dtensor_release(into);
  reshard_dtensor_release(other);
}

static void check_move(contract_rank *s, const way *from, const way *to, reshard_dtensor *t, int64_t width,
                       uint64_t key) {
  reshard_placing placing = placing_of(to);
  reshard_dtensor moved = NULL;
  int64_t before = contract_received(s);
  if (!CONTRACT_SUCCEEDS(s, reshard_dtensor_redistribute(1, t, &placing, s->stream, &moved)))
    return;
  CONTRACT_CHECK(s, contract_received(s) - before == lacked(s, from, to, width));
  dtensor_check(s, to, moved, false, key);
  dtensor_check(s, from, *t, true, key);
  reshard_dtensor_release(*t);
  *t = moved;
}

void contract_check_dtensor(contract_rank *s, uint64_t seed) {
  static const reshard_dtype dtypes[] = {RESHARD_U8, RESHARD_F16, RESHARD_I32, RESHARD_F64, RESHARD_C128};
  rng r;
  int64_t shape[3];
  way ways[4];
  rng_seed(&r, seed);
  int ndim = (int)rng_in(&r, 0, 3);
  for (int d = 0; d < ndim; d++)
    shape[d] = rng_below(&r, 13);
  for (int i = 0; i < 4; i++)
    draw_placings(s, &r, ndim, shape, i > 0 && rng_one_in(&r, 2) ? &ways[i - 1] : NULL, &ways[i]);
  reshard_dtype dtype = dtypes[rng_below(&r, 5)];
  bool strided = rng_one_in(&r, 2), inferred = rng_one_in(&r, 2);
  reshard_dtensor t = from_local(s, &ways[0], dtype, strided, inferred, seed);
  for (int i = 1; i < 4 && t != NULL; i++)
    check_move(s, &ways[i - 1], &ways[i], &t, (int64_t)reshard_dtype_size(dtype), seed);
  if (t != NULL) {
    check_full(s, &ways[3], t, seed);
    check_into(s, &ways[1], t, dtype, !strided, seed);
  }
  reshard_dtensor_release(t);
  check_distribute(s, &ways[1], dtype, -1, seed + 1);
  check_distribute(s, &ways[2], dtype, rng_below(&r, reshard_comm_size(s->comm)), seed + 2);
  for (int i = 0; i < 4; i++)
    way_drop(&ways[i]);
}
