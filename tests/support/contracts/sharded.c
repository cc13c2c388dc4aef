/* Sharded tensors made in every way, merged from local shards, gathered and scattered; and what ranks do wrong. */
#include "sharded.h"

#include "support/contracts/layout_chain.h"
#include "support/oracles/fsdp_boxes.h"

#include "base/base.h"
#include "bench/cli/util.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A layout and what each rank has of it. */
typedef struct layout_case {
  oracle_layout what;
  oracle_buffers held;
  reshard_layout layout;
  char *text;
  reshard_properties properties;
  uint64_t key;
} layout_case;

static void open_layout_case(contract_rank *s, rng *r, uint64_t key, layout_case *c) {
  static const reshard_dtype dtypes[] = {RESHARD_U8, RESHARD_BF16, RESHARD_F32, RESHARD_I64, RESHARD_C128};
  int64_t shape[3];
  int ndim = (int)rng_in(r, 0, 3);
  for (int d = 0; d < ndim; d++)
    shape[d] = rng_in(r, 1, 9);
  *c = (layout_case){.properties = {.dtype = dtypes[rng_below(r, 5)]}, .key = key};
  case_describe(r, ndim, shape, reshard_comm_size(s->comm), true, &c->what);
  case_describe_unshared(&c->what);
  oracle_evaluate(&c->what, &c->held);
  CONTRACT_SUCCEEDS(s, case_build(r, &c->what, &c->layout, &c->text));
}

static void close_layout_case(layout_case *c) {
  oracle_buffers_free(&c->held, c->what.world);
  case_describe_free(&c->what);
  reshard_layout_release(c->layout);
  free(c->text);
}

typedef void visit(contract_rank *s, const layout_case *c, reshard_tensor array, const oracle_buffer *buffer,
                   bool flat);

/* Every buffer of this rank that has elements: its first array. */
static void each_buffer(contract_rank *s, const layout_case *c, reshard_sharded_tensor t, visit *each) {
  int64_t rank = reshard_comm_rank(s->comm), first = c->held.first[rank];
  for (int64_t b = first; b < c->held.first[rank + 1]; b++) {
    reshard_tensor array = NULL;
    if (c->held.buffer[b].n > 0 && CONTRACT_SUCCEEDS(s, reshard_sharded_tensor_local(t, b - first, &array, NULL)))
      each(s, c, array, &c->held.buffer[b], c->what.kind == RESHARD_LAYOUT_FLAT);
  }
}

static void stamp(contract_rank *s, const layout_case *c, reshard_tensor array, const oracle_buffer *b, bool flat) {
  contract_fill(s, array, b->n, b->index, flat, c->key);
}

static void array_matches(contract_rank *s, const layout_case *c, reshard_tensor array, const oracle_buffer *b,
                          bool flat) {
  CONTRACT_CHECK(s, contract_count_wrong(s, array, b->n, b->index, flat, c->key) == 0);
}

/* All elements are that of index 0, or zero. */
static void check_same(contract_rank *s, const layout_case *c, reshard_tensor array, const oracle_buffer *b,
                       bool flat) {
  int64_t *zeros = calloc((size_t)b->n + 1, sizeof *zeros);
  CONTRACT_CHECK(s, contract_count_wrong(s, array, b->n, zeros, flat, c->key) == 0);
  free(zeros);
}

static void check_zero(contract_rank *s, const layout_case *c, reshard_tensor array, const oracle_buffer *b,
                       bool flat) {
  size_t bytes = (size_t)b->n * reshard_dtype_size(c->properties.dtype);
  unsigned char *host = cli_alloc((int64_t)bytes, 1), any = 0;
  reshard_tensor_info info;
  (void)flat;
  CONTRACT_SUCCEEDS(s, reshard_tensor_get_info(array, &info));
  contract_copy(s, host, info.data, bytes);
  for (size_t i = 0; i < bytes; i++)
    any |= host[i];
  CONTRACT_CHECK(s, any == 0);
  free(host);
}

static void check_made(contract_rank *s, const layout_case *c) {
  unsigned char element[16];
  reshard_sharded_tensor t = NULL;
  oracle_stamp(c->key, 0, reshard_dtype_size(c->properties.dtype), element);
  if (CONTRACT_SUCCEEDS(s,
                        reshard_sharded_tensor_full(s->sharder, c->layout, &c->properties, element, s->stream, &t))) {
    memset(element, 0, sizeof element); /* it was read */
    each_buffer(s, c, t, check_same);
    reshard_sharded_tensor_release(t);
  }
  if (CONTRACT_SUCCEEDS(s, reshard_sharded_tensor_zeros(s->sharder, c->layout, &c->properties, s->stream, &t))) {
    each_buffer(s, c, t, check_zero);
    reshard_sharded_tensor_release(t);
  }
}

static reshard_status fill_nothing(void *user, reshard_tensor array, const reshard_box *box) {
  reshard_tensor_info info;
  ++*(int64_t *)user;
  return box != NULL ? reshard_tensor_get_info(array, &info) : RESHARD_ERROR_INTERNAL;
}

/* From one rank to all, as the layout says; to one rank; to all. */
static void check_passage(contract_rank *s, const layout_case *c, int64_t src, int64_t dst) {
  int64_t rank = reshard_comm_rank(s->comm);
  reshard_tensor whole = contract_tensor(s, c->properties.dtype, c->what.ndim, c->what.shape, src % 2 == 1);
  reshard_sharded_tensor t = NULL;
  layout_case other = *c;
  other.key++;
  if (rank == src)
    contract_fill_whole(s, whole, c->key);
  if (CONTRACT_SUCCEEDS(s, reshard_sharded_tensor_scatter(s->sharder, rank == src ? whole : NULL, src, c->layout,
                                                          &c->properties, s->stream, &t))) {
    each_buffer(s, c, t, array_matches);
    contract_fill_whole(s, whole, other.key);
    if (CONTRACT_SUCCEEDS(s, reshard_sharded_tensor_gather(t, dst, rank == dst ? whole : NULL, s->stream)))
      CONTRACT_CHECK(s, contract_count_wrong_whole(s, whole, rank == dst ? c->key : other.key) == 0);
    each_buffer(s, &other, t, stamp); /* it may be overwritten from then on */
    if (CONTRACT_SUCCEEDS(s, reshard_sharded_tensor_gather_all(t, whole, s->stream)))
      CONTRACT_CHECK(s, contract_count_wrong_whole(s, whole, other.key) == 0);
    reshard_sharded_tensor_release(t);
  }
  reshard_tensor_release(whole);
}

/* A placement that names another kind of device than the tensor's: refused with a tensor, and put right without. Local.
 */
static void check_placement(contract_rank *s, const reshard_local_shard *right, const int64_t *shape) {
  reshard_local_shard shard = *right;
  reshard_metadata wrong = NULL, rewritten = NULL, same = NULL;
  const reshard_properties f32 = {.dtype = RESHARD_F32};
  bool cpu = right->metadata.placement.type == RESHARD_DEVICE_CPU;
  int64_t rank = right->metadata.placement.rank;
  shard.metadata.placement =
      (reshard_remote_device){rank, cpu ? RESHARD_DEVICE_CUDA : RESHARD_DEVICE_CPU, cpu ? 0 : -1};
  CONTRACT_CHECK(s, reshard_metadata_build_local(2, shape, 1, &shard, rank, &wrong) == RESHARD_ERROR_INVALID &&
                        strstr(reshard_last_error(), cpu ? "its tensor is on cpu" : "its tensor is on cuda:") != NULL);
  if (CONTRACT_SUCCEEDS(s, reshard_metadata_create(&f32, 2, shape, 1, &shard.metadata, &wrong)) &&
      CONTRACT_SUCCEEDS(s, reshard_metadata_rewrite(wrong, shard.tensor, rank, &rewritten)) &&
      CONTRACT_SUCCEEDS(s, reshard_metadata_rewrite(rewritten, shard.tensor, rank, &same))) {
    const reshard_remote_device is = reshard_metadata_shards(rewritten)[0].placement;
    CONTRACT_CHECK(s, is.type == right->metadata.placement.type && is.index == right->metadata.placement.index &&
                          is.rank == rank && same == rewritten);
  }
  reshard_metadata_release(wrong);
  reshard_metadata_release(rewritten);
  reshard_metadata_release(same);
}

/* Local shards to a sharded tensor: what is placed where is merged by all ranks. */
static void check_merged(contract_rank *s, int64_t rows, uint64_t key) {
  int64_t rank = reshard_comm_rank(s->comm), n = reshard_comm_size(s->comm), shape[2] = {n * rows, 3};
  int64_t *index = cli_alloc(rows * 3, sizeof *index);
  reshard_tensor_info info;
  reshard_local_shard shard = {.tensor = contract_tensor(s, RESHARD_F32, 2, (int64_t[]){rows, 3}, false)};
  reshard_sharded_tensor t = NULL;
  reshard_tensor whole = contract_tensor(s, RESHARD_F32, 2, shape, false);
  for (int64_t e = 0; e < rows * 3; e++)
    index[e] = (n - 1 - rank) * rows * 3 + e; /* in the reverse order of the ranks */
  contract_fill(s, shard.tensor, rows * 3, index, false, key);
  CONTRACT_SUCCEEDS(s, reshard_tensor_get_info(shard.tensor, &info));
  shard.metadata.box = (reshard_box){{(n - 1 - rank) * rows, 0}, {rows, 3}};
  shard.metadata.placement =
      (reshard_remote_device){rank, info.device_type, info.device_type == RESHARD_DEVICE_CPU ? -1 : info.device_index};
  check_placement(s, &shard, shape);
  if (CONTRACT_SUCCEEDS(s, reshard_sharded_tensor_from_local(s->sharder, 2, shape, 1, &shard, &t))) {
    reshard_metadata m = reshard_sharded_tensor_metadata(t);
    CONTRACT_CHECK(s, reshard_metadata_count(m) == n);
    for (int64_t i = 0; i < n; i++)
      CONTRACT_CHECK(s, reshard_metadata_shards(m)[i].placement.rank == i);
    if (CONTRACT_SUCCEEDS(s, reshard_sharded_tensor_gather_all(t, whole, s->stream)))
      CONTRACT_CHECK(s, contract_count_wrong_whole(s, whole, key) == 0);
    reshard_sharded_tensor_release(t);
  }
  reshard_tensor_release(whole);
  reshard_tensor_release(shard.tensor);
  free(index);
}

/* --- From chunks to chunks, by name ------------------------------------------------------------------------------ */

/* Chunks of a dim, the i-th on the i-th rank of a permutation. */
typedef struct chunks {
  int dim;
  int64_t mine; /* the place of this rank */
  reshard_remote_device placements[ORACLE_WORLD];
} chunks;

static void assign_chunks(contract_rank *s, rng *r, int dim, chunks *c) {
  int64_t n = reshard_comm_size(s->comm), rank = reshard_comm_rank(s->comm);
  c->dim = dim;
  for (int64_t i = 0; i < n; i++) {
    int64_t j = rng_below(r, i + 1);
    c->placements[i] = c->placements[j];
    c->placements[j] = (reshard_remote_device){i, RESHARD_DEVICE_CPU, -1};
  }
  for (int64_t i = 0; i < n; i++)
    if (c->placements[i].rank == rank)
      c->mine = i;
}

/* The elements of this rank's chunk, and its extents. */
static int64_t chunk_elements(const contract_rank *s, const chunks *c, const int64_t *shape, int64_t *extent,
                              int64_t *index) {
  int64_t offset[2] = {0, 0}, n = 0;
  memcpy(extent, shape, 2 * sizeof *shape);
  indices_of(shape[c->dim], reshard_comm_size(s->comm), c->mine, &offset[c->dim], &extent[c->dim]);
  for (int64_t i = 0; i < extent[0]; i++)
    for (int64_t j = 0; j < extent[1]; j++)
      index[n++] = (offset[0] + i) * shape[1] + offset[1] + j;
  return n;
}

static void check_chunks(contract_rank *s, rng *r, bool same_dim, uint64_t key) {
  const int64_t shape[2] = {rng_in(r, 1, 13), rng_in(r, 1, 13)};
  int64_t world = reshard_comm_size(s->comm), extent[2], index[13 * 13], n;
  chunks before, after;
  reshard_tensor result = NULL;
  assign_chunks(s, r, (int)rng_below(r, 2), &before);
  assign_chunks(s, r, same_dim ? before.dim : 1 - before.dim, &after);
  n = chunk_elements(s, &before, shape, extent, index);
  reshard_tensor local = contract_tensor(s, RESHARD_BF16, 2, extent, key % 2 == 0);
  contract_fill(s, local, n, index, false, key);
  const reshard_local_reshard cuts = {.size = RESHARD_LOCAL_RESHARD_INIT,
                                      .dtype = RESHARD_BF16,
                                      .ndim = 2,
                                      .shape = shape,
                                      .before = {same_dim ? before.dim - 2 : before.dim, world, before.placements},
                                      .after = {after.dim, world, after.placements}};
  CONTRACT_SUCCEEDS(s, (same_dim ? reshard_reshuffle_local_shard
                                 : reshard_reshard_local_shard)(s->sharder, &cuts, local, s->stream, &result));
  n = chunk_elements(s, &after, shape, extent, index);
  CONTRACT_CHECK(s, contract_count_wrong(s, result, n, index, false, key) == 0);
  reshard_tensor_release(result);
  reshard_tensor_release(local);
}

/* Rows in another order, some twice: when the call returns, in the order of the stream, and with one that is out of
 * range. Local. */
static void check_select(contract_rank *s, rng *r, uint64_t key) {
  enum { ROWS = 9, COLUMNS = 5, WANTED = 12 };
  int64_t list[WANTED], found[2], place[WANTED * COLUMNS];
  reshard_tensor_info info;
  reshard_tensor src = contract_tensor(s, RESHARD_F32, 2, (int64_t[]){ROWS, COLUMNS}, key % 2);
  reshard_tensor dst = contract_tensor(s, RESHARD_F32, 2, (int64_t[]){WANTED, COLUMNS}, false);
  reshard_tensor index = contract_tensor(s, RESHARD_I64, 1, (int64_t[]){WANTED}, false);
  reshard_tensor fault = contract_tensor(s, RESHARD_I64, 1, (int64_t[]){2}, false);
  contract_fill_whole(s, src, key);
  for (int64_t i = 0; i < WANTED; i++) {
    list[i] = rng_below(r, ROWS);
    for (int64_t c = 0; c < COLUMNS; c++)
      place[i * COLUMNS + c] = list[i] * COLUMNS + c;
  }
  CONTRACT_SUCCEEDS(s, reshard_tensor_get_info(index, &info));
  void *at = info.data;
  CONTRACT_SUCCEEDS(s, reshard_tensor_get_info(fault, &info));
  contract_copy(s, at, list, sizeof list);
  CONTRACT_SUCCEEDS(s, reshard_index_select(src, 0, index, dst, 1, s->stream));
  CONTRACT_CHECK(s, contract_count_wrong(s, dst, WANTED * COLUMNS, place, false, key) == 0);
  contract_fill_whole(s, dst, key + 1);
  CONTRACT_SUCCEEDS(s, reshard_index_select_async(src, -2, index, dst, fault, 1, s->stream));
  CONTRACT_CHECK(s, contract_count_wrong(s, dst, WANTED * COLUMNS, place, false, key) == 0);
  contract_copy(s, found, info.data, sizeof found);
  CONTRACT_CHECK(s, found[0] == -1);
  list[7] = ROWS;
  contract_copy(s, at, list, sizeof list);
  CONTRACT_SUCCEEDS(s, reshard_index_select_async(src, 0, index, dst, fault, 1, s->stream));
  contract_copy(s, found, info.data, sizeof found);
  CONTRACT_CHECK(s, found[0] == 7 && found[1] == ROWS);
  CONTRACT_CHECK(s, reshard_index_select(src, 0, index, dst, 1, s->stream) == RESHARD_ERROR_INVALID &&
                        strstr(reshard_last_error(), "index[7] = 9, dim 0 has 9 indices") != NULL);
  reshard_tensor_release(src);
  reshard_tensor_release(dst);
  reshard_tensor_release(index);
  reshard_tensor_release(fault);
}

void contract_check_sharded(contract_rank *s, uint64_t seed) {
  rng r;
  layout_case c;
  rng_seed(&r, seed);
  open_layout_case(s, &r, seed, &c);
  reshard_sharded_tensor t = NULL;
  int64_t calls = 0;
  check_made(s, &c);
  if (CONTRACT_SUCCEEDS(
          s, reshard_sharded_tensor_generate(s->sharder, c.layout, &c.properties, fill_nothing, &calls, s->stream, &t)))
    CONTRACT_CHECK(s, calls == reshard_sharded_tensor_local_count(t));
  reshard_sharded_tensor_release(t);
  check_passage(s, &c, rng_below(&r, c.what.world), rng_below(&r, c.what.world));
  check_merged(s, rng_in(&r, 1, 4), seed);
  check_chunks(s, &r, true, seed);
  check_chunks(s, &r, false, seed);
  check_select(s, &r, seed);
  close_layout_case(&c);
}

/* --- Mistakes of ranks ------------------------------------------------------------------------------------------- */

/* Rows of a tensor, one a rank; rank `odd` gives another dtype, or other columns. */
static reshard_status try_from_local(contract_rank *s, reshard_mesh mesh, int64_t odd, reshard_dtype dtype,
                                     int64_t columns) {
  bool mine = reshard_comm_rank(s->comm) == odd;
  const reshard_placement rows = {.kind = RESHARD_PLACEMENT_SHARD, .dim = 0};
  reshard_tensor local = contract_tensor(s, mine ? dtype : RESHARD_F32, 2, (int64_t[]){1, mine ? columns : 3}, false);
  reshard_dtensor t = NULL;
  reshard_status status =
      reshard_dtensor_from_local(s->sharder, &(reshard_placing){mesh, &rows, NULL}, local, 0, NULL, 1, &t);
  reshard_tensor_release(local);
  reshard_dtensor_release(t);
  return status;
}

/* A shard a rank, of which rank `odd`'s has another dtype, or lies where its neighbour's is. */
static reshard_status try_merge(contract_rank *s, int64_t odd, bool overlap) {
  int64_t rank = reshard_comm_rank(s->comm), n = reshard_comm_size(s->comm);
  reshard_dtype dtype = rank == odd && !overlap ? RESHARD_F64 : RESHARD_F32;
  reshard_tensor_info info;
  reshard_local_shard shard = {.tensor = contract_tensor(s, dtype, 2, (int64_t[]){1, 3}, false)};
  reshard_sharded_tensor t = NULL;
  CONTRACT_SUCCEEDS(s, reshard_tensor_get_info(shard.tensor, &info));
  shard.metadata.box = (reshard_box){{rank == odd && overlap ? rank - 1 : rank, 0}, {1, 3}};
  shard.metadata.placement = (reshard_remote_device){rank, info.device_type, -1};
  reshard_status status = reshard_sharded_tensor_from_local(s->sharder, 2, (int64_t[]){n, 3}, 1, &shard, &t);
  reshard_tensor_release(shard.tensor);
  reshard_sharded_tensor_release(t);
  return status;
}

/* To rank 0, without an output there, or with one on rank 1, too. */
static reshard_status try_gather(contract_rank *s, bool foreign) {
  const reshard_properties properties = {.dtype = RESHARD_F32};
  int64_t rank = reshard_comm_rank(s->comm), shape[1] = {5};
  reshard_sharded_tensor t = NULL;
  reshard_layout layout = NULL;
  CONTRACT_SUCCEEDS(s, reshard_layout_parse("chunk(0)", 1, shape, reshard_comm_size(s->comm), &layout));
  CONTRACT_SUCCEEDS(s, reshard_sharded_tensor_zeros(s->sharder, layout, &properties, s->stream, &t));
  reshard_tensor out = foreign && rank < 2 ? contract_tensor(s, RESHARD_F32, 1, shape, false) : NULL;
  reshard_status status = reshard_sharded_tensor_gather(t, 0, out, s->stream);
  reshard_tensor_release(out);
  reshard_sharded_tensor_release(t);
  reshard_layout_release(layout);
  return status;
}

/* A report tells of this rank's last call, by a number that all have. */
static void check_report(contract_rank *s) {
  char report[1 << 14], line[64], call[64] = "";
  CONTRACT_SUCCEEDS(s, reshard_comm_barrier(s->comm));
  CONTRACT_SUCCEEDS(s, reshard_comm_report(s->comm, 0, report, sizeof report, NULL));
  snprintf(line, sizeof line, "rank %d: out of reshard_comm_barrier, call ", (int)reshard_comm_rank(s->comm));
  const char *found = strstr(report, line);
  if (CONTRACT_CHECK(s, found != NULL))
    snprintf(call, sizeof call, "call %d", atoi(found + strlen(line)));
  CONTRACT_ALL(s, rs_error(RESHARD_ERROR_INVALID, "%s", call), RESHARD_ERROR_INVALID, "call ");
}

void contract_check_refusals(contract_rank *s) {
  int64_t size = reshard_comm_size(s->comm);
  reshard_mesh mesh = NULL;
  reshard_comm comm = NULL;
  if (size < 3 || !CONTRACT_SUCCEEDS(s, reshard_mesh_create(s->comm, 0, 1, &size, NULL, 0, NULL, &mesh)))
    return;
  check_report(s);
  CONTRACT_ALL(s, try_from_local(s, mesh, 1, RESHARD_F64, 3), RESHARD_ERROR_MISMATCH,
               "dtype f32 on rank 0, f64 on rank 1");
  CONTRACT_ALL(s, try_from_local(s, mesh, 2, RESHARD_F32, 4), RESHARD_ERROR_INVALID,
               "the local tensor of rank 2 is of");
  CONTRACT_ALL(s, try_from_local(s, mesh, -1, RESHARD_F32, 3), RESHARD_SUCCESS, NULL);
  CONTRACT_ALL(s, try_merge(s, 1, false), RESHARD_ERROR_MISMATCH, "f64");
  CONTRACT_ALL(s, try_merge(s, 1, true), RESHARD_ERROR_INVALID, "overlap");
  CONTRACT_ALL(s, try_gather(s, false), RESHARD_ERROR_INVALID, "rank 0 has to give the output");
  CONTRACT_ALL(s, try_gather(s, true), RESHARD_ERROR_INVALID, "the output is rank 0's to give, and rank 1 gives one");
  /* one rank names a dim that is not there, the others wait for nobody */
  CONTRACT_ALL(s, reshard_mesh_comm(mesh, reshard_comm_rank(s->comm) == 1 ? "tp" : "0,0", &comm), RESHARD_ERROR_INVALID,
               NULL);
  CONTRACT_ALL(s, try_from_local(s, mesh, -1, RESHARD_F32, 3), RESHARD_SUCCESS, NULL); /* still usable */
  reshard_mesh_release(mesh);
}
