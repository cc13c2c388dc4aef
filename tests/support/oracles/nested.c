#include "nested.h"

#include "bench/cli/util.h"
#include "bench/verify/random.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_RANKS = 16, MOST_PIECES = 8, COPIES = 2 };

typedef struct piece {
  reshard_box box;
  int64_t copies, n; /* groups, and ranks of each: 1 in a plain tensor */
  int64_t ranks[COPIES][MOST_RANKS];
  nested_case *inner[COPIES]; /* NULL in a plain tensor */
} piece;

struct nested_case {
  int ndim;
  int64_t shape[RESHARD_MAX_DIMS];
  int depth; /* 0: a plain sharded tensor */
  int64_t n;
  piece pieces[MOST_PIECES];
};

static const reshard_properties properties = {.dtype = RESHARD_I32};

void nested_free(nested_case *n) {
  for (int64_t i = 0; n != NULL && i < n->n; i++)
    for (int c = 0; c < COPIES; c++)
      nested_free(n->pieces[i].inner[c]);
  free(n);
}

/* --- Drawing -------------------------------------------------------------------------------------------------- */

static void shuffle(rng *r, int64_t n, int64_t *at) {
  for (int64_t i = n - 1; i > 0; i--) {
    int64_t j = rng_below(r, i + 1), kept = at[i];
    at[i] = at[j];
    at[j] = kept;
  }
}

/* Cuts one box in two, again and again; then there may be an empty one. */
static void cut_boxes(rng *r, nested_case *n) {
  n->n = 1;
  memcpy(n->pieces[0].box.extent, n->shape, sizeof n->shape);
  for (int64_t k = rng_below(r, MOST_PIECES - 1); k > 0 && n->ndim > 0; k--) {
    piece *p = &n->pieces[rng_below(r, n->n)];
    int d = (int)rng_below(r, n->ndim);
    if (p->box.extent[d] < 2)
      continue;
    int64_t at = rng_in(r, 1, p->box.extent[d] - 1);
    piece *q = &n->pieces[n->n++];
    q->box = p->box;
    q->box.offset[d] += at;
    q->box.extent[d] -= at;
    p->box.extent[d] = at;
  }
  if (n->ndim > 0 && rng_one_in(r, 4)) {
    piece *q = &n->pieces[n->n++];
    memcpy(q->box.extent, n->shape, sizeof n->shape);
    q->box.offset[0] = n->shape[0];
    q->box.extent[0] = 0;
  }
}

/* The same by other ranks. */
static nested_case *copy_for(const nested_case *n, int64_t count, const int64_t *from, const int64_t *to) {
  nested_case *made = cli_alloc(1, sizeof *made);
  *made = *n;
  for (int64_t i = 0; i < n->n; i++)
    for (int64_t c = 0; c < n->pieces[i].copies; c++) {
      for (int64_t k = 0; k < n->pieces[i].n; k++)
        for (int64_t j = 0; j < count; j++)
          if (n->pieces[i].ranks[c][k] == from[j])
            made->pieces[i].ranks[c][k] = to[j];
      if (n->depth > 0)
        made->pieces[i].inner[c] = copy_for(n->pieces[i].inner[c], count, from, to);
    }
  return made;
}

static nested_case *draw_case(rng *r, int ndim, const int64_t *shape, int64_t count, const int64_t *ranks, int depth) {
  nested_case *n = cli_alloc(1, sizeof *n);
  n->ndim = ndim;
  n->depth = depth;
  memcpy(n->shape, shape, sizeof n->shape);
  cut_boxes(r, n);
  for (int64_t i = 0; i < n->n; i++) {
    piece *p = &n->pieces[i];
    int64_t order[MOST_RANKS];
    memcpy(order, ranks, (size_t)count * sizeof *order);
    shuffle(r, count, order);
    p->copies = count > 1 && rng_one_in(r, 4) ? 2 : 1;
    p->n = depth == 0 ? 1 : rng_in(r, 1, count / p->copies);
    for (int64_t c = 0; c < p->copies; c++) {
      memcpy(p->ranks[c], order + c * p->n, (size_t)p->n * sizeof *order);
      if (depth > 0)
        p->inner[c] = c == 0 ? draw_case(r, ndim, p->box.extent, p->n, p->ranks[0], depth - 1)
                             : copy_for(p->inner[0], p->n, p->ranks[0], p->ranks[c]);
    }
  }
  return n;
}

nested_case *nested_create(uint64_t seed, int64_t ranks, int depth) {
  rng r;
  int64_t shape[RESHARD_MAX_DIMS] = {0}, all[MOST_RANKS];
  rng_seed(&r, seed);
  int ndim = (int)rng_in(&r, 0, 3);
  for (int d = 0; d < ndim; d++)
    shape[d] = rng_one_in(&r, 30) ? 0 : rng_in(&r, 1, ndim == 3 ? 7 : 13);
  for (int64_t i = 0; i < ranks; i++)
    all[i] = i;
  return draw_case(&r, ndim, shape, ranks, all, depth);
}

/* --- As a rank has it ----------------------------------------------------------------------------------------- */

static bool piece_has(const piece *p, int64_t copy, int64_t rank) {
  bool found = false;
  for (int64_t k = 0; k < p->n; k++)
    found |= p->ranks[copy][k] == rank;
  return found;
}

/* The rank that a rank's outer metadata names for a copy. */
static int64_t named(const piece *p, int64_t copy, int64_t rank) {
  return piece_has(p, copy, rank) ? rank : p->ranks[copy][(rank + p->box.offset[0] + copy) % p->n];
}

/* Row-major number in a tensor of a shape of an element of a box of it. */
static int64_t number(int ndim, const int64_t *shape, const int64_t *offset, const int64_t *at) {
  int64_t index = 0;
  for (int d = 0; d < ndim; d++)
    index = index * shape[d] + offset[d] + at[d];
  return index;
}

/* The next index of a box in row-major order; false after the last one. */
static bool index_next(int ndim, const int64_t *extent, int64_t *at) {
  int d = ndim - 1;
  for (; d >= 0 && ++at[d] == extent[d]; d--)
    at[d] = 0;
  return d >= 0;
}

static bool is_empty(int ndim, const int64_t *extent) {
  bool empty = false;
  for (int d = 0; d < ndim; d++)
    empty |= extent[d] == 0;
  return empty;
}

static reshard_tree build_state(const nested_case *n, reshard_sharder sharder, int64_t rank, const int64_t *offset,
                                const int64_t *shape) {
  reshard_shard all[COPIES * MOST_PIECES], given[COPIES * MOST_PIECES];
  reshard_tree inner[COPIES * MOST_PIECES], made;
  reshard_tensor tensors[COPIES * MOST_PIECES];
  int64_t nall = 0, mine = 0;
  for (int64_t i = 0; i < n->n; i++)
    for (int64_t c = 0; c < n->pieces[i].copies; c++) {
      const piece *p = &n->pieces[i];
      int64_t there[RESHARD_MAX_DIMS] = {0}, at[RESHARD_MAX_DIMS] = {0};
      all[nall] = (reshard_shard){p->box, {named(p, c, rank), RESHARD_DEVICE_CPU, -1}};
      given[mine] = all[nall++];
      if (!piece_has(p, c, rank))
        continue;
      for (int d = 0; d < n->ndim; d++)
        there[d] = offset[d] + p->box.offset[d];
      if (n->depth > 0) {
        inner[mine++] = build_state(p->inner[c], sharder, rank, there, shape);
        continue;
      }
      reshard_tensor_info info;
      CLI_TRY("tensor: ", reshard_tensor_create(RESHARD_I32, n->ndim, p->box.extent, &tensors[mine]));
      CLI_TRY("tensor: ", reshard_tensor_get_info(tensors[mine++], &info));
      int32_t *data = info.data;
      if (!is_empty(n->ndim, p->box.extent))
        do
          *data++ = (int32_t)number(n->ndim, shape, there, at);
        while (index_next(n->ndim, p->box.extent, at));
    }
  reshard_metadata m;
  CLI_TRY("metadata: ", reshard_metadata_create(&properties, n->ndim, n->shape, nall, all, &m));
  if (n->depth > 0) {
    CLI_TRY("nested: ", reshard_state_nested(sharder, m, mine, given, inner, &made));
    for (int64_t i = 0; i < mine; i++)
      reshard_tree_release(inner[i]);
  } else {
    reshard_sharded_tensor t;
    CLI_TRY("inner: ", reshard_sharded_tensor_from_metadata(sharder, m, mine, tensors, &t));
    CLI_TRY("inner: ", reshard_state_sharded(t, &made));
    reshard_sharded_tensor_release(t);
    for (int64_t i = 0; i < mine; i++)
      reshard_tensor_release(tensors[i]);
  }
  reshard_metadata_release(m);
  return made;
}

reshard_tree nested_state(const nested_case *n, reshard_sharder sharder, int64_t rank) {
  static const int64_t origin[RESHARD_MAX_DIMS];
  return build_state(n, sharder, rank, origin, n->shape);
}

/* --- Expected results ----------------------------------------------------------------------------------------- */

/* Ranks, as bits, that an element is said to be on. */
static uint32_t owners(const nested_case *n, const int64_t *at, int64_t rank, bool global) {
  for (int64_t i = 0; i < n->n; i++) {
    const piece *p = &n->pieces[i];
    int64_t inside[RESHARD_MAX_DIMS];
    uint32_t found = 0;
    bool in = true;
    for (int d = 0; d < n->ndim; d++) {
      inside[d] = at[d] - p->box.offset[d];
      in &= inside[d] >= 0 && inside[d] < p->box.extent[d];
    }
    if (!in)
      continue;
    for (int64_t c = 0; c < p->copies; c++)
      if (n->depth > 0 && !global && piece_has(p, c, rank))
        return owners(p->inner[c], inside, rank, global); /* what is known, instead of what is said */
    for (int64_t c = 0; c < p->copies; c++)
      found |= n->depth > 0 && global ? owners(p->inner[c], inside, rank, global)
                                      : (uint32_t)1 << (n->depth > 0 ? named(p, c, rank) : p->ranks[c][0]);
    return found;
  }
  return 0;
}

/* Elements whose holders in a layout are not all ranks that have them. */
static int64_t check_holders(const nested_case *n, reshard_layout layout) {
  const reshard_properties i32 = {.dtype = RESHARD_I32};
  int64_t elements = 1, wrong = 0, at[RESHARD_MAX_DIMS] = {0};
  reshard_metadata m;
  for (int d = 0; d < n->ndim; d++)
    elements *= n->shape[d];
  uint32_t *holders = cli_alloc(elements + 1, sizeof *holders);
  CLI_TRY("holders: ", reshard_metadata_from_layout(&i32, layout, NULL, NULL, &m));
  for (int64_t i = 0; i < reshard_metadata_count(m); i++) {
    const reshard_shard *s = &reshard_metadata_shards(m)[i];
    int64_t inside[RESHARD_MAX_DIMS] = {0};
    if (is_empty(n->ndim, s->box.extent))
      continue;
    do
      holders[number(n->ndim, n->shape, s->box.offset, inside)] |= (uint32_t)1 << s->placement.rank;
    while (index_next(n->ndim, s->box.extent, inside));
  }
  for (int64_t i = 0; i < elements; i++, index_next(n->ndim, n->shape, at))
    wrong += holders[i] != owners(n, at, 0, true);
  reshard_metadata_release(m);
  free(holders);
  return wrong;
}

int64_t nested_check_owners(const nested_case *n, reshard_sharded_tensor flat, int64_t rank, bool global) {
  reshard_metadata m = reshard_sharded_tensor_metadata(flat);
  int64_t elements = 1, wrong = reshard_metadata_ndim(m) != n->ndim, at[RESHARD_MAX_DIMS] = {0};
  for (int d = 0; d < n->ndim; d++)
    elements *= n->shape[d];
  int64_t *owner = cli_alloc(elements + 1, sizeof *owner); /* + 1 */
  for (int64_t i = 0; i < reshard_metadata_count(m); i++) {
    const reshard_shard *s = &reshard_metadata_shards(m)[i];
    int64_t inside[RESHARD_MAX_DIMS] = {0};
    wrong += i > 0 && s[-1].placement.rank > s->placement.rank;
    if (is_empty(n->ndim, s->box.extent))
      continue;
    do {
      int64_t *o = &owner[number(n->ndim, n->shape, s->box.offset, inside)];
      wrong += *o != 0;
      *o = s->placement.rank + 1;
    } while (index_next(n->ndim, s->box.extent, inside));
  }
  for (int64_t i = 0; i < elements; i++, index_next(n->ndim, n->shape, at)) {
    uint32_t who = owners(n, at, rank, global);
    int64_t lowest = who != 0 ? __builtin_ctz(who) : -1;
    wrong += owner[i] - 1 != (!global && who >> rank & 1 ? rank : lowest);
  }
  free(owner);
  return wrong + (global ? check_holders(n, reshard_sharded_tensor_layout(flat)) : 0);
}

/* --- Arrays --------------------------------------------------------------------------------------------------- */

static int32_t *element(const reshard_tensor_info *info, const int64_t *at) {
  int32_t *data = info->data;
  for (int d = 0; d < info->ndim; d++)
    data += at[d] * info->strides[d];
  return data;
}

void nested_fill(reshard_sharded_tensor inner, int64_t rank, const reshard_box *outer, const int64_t *shape) {
  reshard_layout layout = reshard_sharded_tensor_layout(inner);
  for (int64_t a = 0; a < reshard_sharded_tensor_local_count(inner); a++) {
    int64_t at[RESHARD_MAX_DIMS] = {0}, global[RESHARD_MAX_DIMS];
    reshard_tensor array;
    reshard_tensor_info info;
    CLI_TRY("array: ", reshard_sharded_tensor_local(inner, a, &array, NULL));
    CLI_TRY("array: ", reshard_tensor_get_info(array, &info));
    if (info.elements == 0)
      continue;
    do {
      for (int d = 0; d < info.ndim; d++) {
        reshard_interval intervals[64];
        int64_t n, left = at[d];
        CLI_TRY("array: ", reshard_layout_array_intervals(layout, rank, a, d, 0, 64, intervals, &n));
        int64_t k = 0;
        for (; k < n - 1 && left >= intervals[k].end - intervals[k].begin; k++)
          left -= intervals[k].end - intervals[k].begin;
        global[d] = intervals[k].begin + left;
      }
      *element(&info, at) = (int32_t)number(info.ndim, shape, outer->offset, global);
    } while (index_next(info.ndim, info.shape, at));
  }
}

int64_t nested_check(reshard_sharded_tensor flat) {
  const int64_t *shape = reshard_metadata_shape(reshard_sharded_tensor_metadata(flat));
  int64_t wrong = 0;
  for (int64_t a = 0; a < reshard_sharded_tensor_local_count(flat); a++) {
    int64_t at[RESHARD_MAX_DIMS] = {0};
    reshard_tensor array;
    reshard_tensor_info info;
    reshard_box box;
    if (reshard_sharded_tensor_local(flat, a, &array, &box) != RESHARD_SUCCESS)
      return 1;
    if (array == NULL || reshard_tensor_get_info(array, &info) != RESHARD_SUCCESS || info.elements == 0)
      continue;
    wrong += memcmp(info.shape, box.extent, (size_t)info.ndim * sizeof *info.shape) != 0;
    do
      wrong += *element(&info, at) != number(info.ndim, shape, box.offset, at);
    while (index_next(info.ndim, info.shape, at));
  }
  return wrong;
}
