#include "steady.h"

#include <stdio.h>
#include <stdlib.h>

enum { ROWS = 96, COLUMNS = 96, PAIRS = 3 };
static const int64_t shape[2] = {ROWS, COLUMNS};
static const reshard_properties f32 = {.dtype = RESHARD_F32};
static const char *const cuts[PAIRS] = {"chunk(0)", "chunk(1)", "rank(0)"};

/* A rank with a sharder of its own, and a tensor that goes from cut to cut. */
typedef struct steady {
  contract_rank s;
  reshard_layout layouts[PAIRS];
  reshard_sharded_tensor tensor;
} steady;

static bool open_steady(contract_rank *s, const reshard_sharder_options *options, steady *x) {
  *x = (steady){.tensor = NULL};
  bool good = contract_rank_open_on(s, s->comm, options, &x->s);
  for (int i = 0; i < PAIRS; i++)
    good = CONTRACT_SUCCEEDS(s, reshard_layout_parse(cuts[i], 2, shape, reshard_comm_size(s->comm), &x->layouts[i])) &&
           good;
  return good &&
         CONTRACT_SUCCEEDS(s, reshard_sharded_tensor_zeros(x->s.sharder, x->layouts[0], &f32, s->stream, &x->tensor));
}

static void close_steady(contract_rank *s, steady *x) {
  reshard_sharded_tensor_release(x->tensor);
  for (int i = 0; i < PAIRS; i++)
    reshard_layout_release(x->layouts[i]);
  contract_rank_close_on(s, &x->s);
}

static reshard_status move_to(steady *x, int to) {
  return reshard_sharded_tensor_reshard(1, &x->tensor, &x->layouts[to], x->s.stream);
}

/* A sharder is of equal options: all ranks hear of others when they make it, and of a rank that fails. */
static void check_options(contract_rank *s) {
  enum { OPTIONS = 6 };
  bool odd = reshard_comm_rank(s->comm) == 1;
  int64_t size = reshard_comm_size(s->comm), *ranks = calloc((size_t)size, sizeof *ranks);
  if (!CONTRACT_CHECK(s, ranks != NULL))
    return;
  for (int64_t r = 0; r < size; r++)
    ranks[r] = 10 + r + (odd && r == size - 1);
  const reshard_sharder_options options[OPTIONS] = {
      {.size = RESHARD_SHARDER_OPTIONS_INIT, .cached_plans = odd ? 2 : 3},
      {.size = RESHARD_SHARDER_OPTIONS_INIT, .cached_plans = odd ? -1 : 64},
      {.size = RESHARD_SHARDER_OPTIONS_INIT, .workspace_limit = odd ? 1 << 20 : 0},
      {.size = RESHARD_SHARDER_OPTIONS_INIT, .path = odd ? RESHARD_PATH_PACKED : RESHARD_PATH_AUTO},
      {.size = RESHARD_SHARDER_OPTIONS_INIT, .group = {size, ranks}},
      {.size = RESHARD_SHARDER_OPTIONS_INIT, .keep_bytes = odd ? -2 : 0}};
  char group[80];
  snprintf(group, sizeof group, "global rank of rank %d: %d on rank 0, %d on rank 1", (int)size - 1, (int)size + 9,
           (int)size + 10);
  const char *const parts[OPTIONS] = {"cached_plans 3 on rank 0, 2 on rank 1",
                                      "cached_plans 64 on rank 0, 0 on rank 1",
                                      "workspace_limit default on rank 0, 1048576 on rank 1",
                                      "path auto on rank 0, packed on rank 1",
                                      group,
                                      "rank 1: -2 bytes kept: -1 is the least"};
  for (int i = 0; i < OPTIONS; i++) {
    reshard_status wanted = i < OPTIONS - 1 ? RESHARD_ERROR_MISMATCH : RESHARD_ERROR_INVALID;
    reshard_sharder made = NULL;
    CONTRACT_ALL(s, reshard_sharder_create(s->comm, &options[i], &made), wanted, parts[i]);
    CONTRACT_CHECK(s, made == NULL);
  }
  free(ranks);
}

/* A call that one rank alone makes, of which there are more than plans are kept. */
static void call_alone(steady *x, reshard_mesh mesh, int i) {
  const reshard_placement cut = {.kind = RESHARD_PLACEMENT_SHARD, .dim = 0};
  const reshard_placing placing = {mesh, &cut, NULL};
  const int64_t other[2] = {ROWS + i, COLUMNS};
  reshard_tensor whole = contract_tensor(&x->s, RESHARD_F32, 2, other, false);
  reshard_dtensor part = NULL;
  contract_fill_whole(&x->s, whole, 1);
  CONTRACT_SUCCEEDS(&x->s,
                    reshard_dtensor_distribute(x->s.sharder, &placing, whole, -1, 2, other, &f32, x->s.stream, &part));
  reshard_dtensor_release(part);
  reshard_tensor_release(whole);
}

/* Pairs of which not all are kept. Where a rank's cache were another one, it would wait for ranks that do not come. */
static void check_turns(contract_rank *s, int64_t cached_plans) {
  const reshard_sharder_options options = {
      .size = RESHARD_SHARDER_OPTIONS_INIT, .path = RESHARD_PATH_PACKED, .cached_plans = cached_plans};
  int64_t size = reshard_comm_size(s->comm);
  reshard_mesh mesh = NULL;
  steady x;
  if (open_steady(s, &options, &x) &&
      CONTRACT_SUCCEEDS(s, reshard_mesh_create(s->comm, 0, 1, &size, NULL, 0, NULL, &mesh)))
    for (int i = 1; i < 5 * PAIRS; i++) {
      int64_t turns = reshard_comm_rank(s->comm) == 1 ? 2 * cached_plans : 0;
      for (int64_t k = 0; k < turns; k++)
        call_alone(&x, mesh, (int)k);
      CONTRACT_ALL(s, move_to(&x, i % 4 == 3 ? 1 : i % PAIRS), RESHARD_SUCCESS, NULL);
    }
  reshard_mesh_release(mesh);
  close_steady(s, &x);
}

/* Rank 1's pool has no room for the new array of a call that went well before; when it has, the call goes well
 * again. */
static void check_memory(contract_rank *s) {
  enum { LIMIT = 64 << 20 };
  const reshard_device_options limits = {
      .size = RESHARD_DEVICE_OPTIONS_INIT, .threads = 1, .limit_bytes = LIMIT, .keep_bytes = -1};
  reshard_sharder_options options = {.size = RESHARD_SHARDER_OPTIONS_INIT, .path = RESHARD_PATH_PACKED};
  reshard_memory_stats stats;
  reshard_tensor hog = NULL;
  steady x;
  if (!CONTRACT_SUCCEEDS(s, reshard_device_create("cpu", &limits, &options.device)))
    return;
  if (open_steady(s, &options, &x)) {
    for (int i = 1; i <= 4; i++)
      CONTRACT_ALL(s, move_to(&x, i % 2), RESHARD_SUCCESS, NULL);
    CONTRACT_SUCCEEDS(s, reshard_device_get_memory_stats(options.device, &stats));
    const int64_t room = (LIMIT - (int64_t)stats.in_use_bytes) / 4096 * 4096; /* less than an array is left */
    if (reshard_comm_rank(s->comm) == 1)
      CONTRACT_SUCCEEDS(s, reshard_tensor_create_on(options.device, RESHARD_U8, 1, &room, NULL, &hog));
    CONTRACT_ALL(s, move_to(&x, 1), RESHARD_ERROR_OUT_OF_MEMORY, "rank 1: ");
    reshard_tensor_release(hog);
    for (int i = 1; i <= 4; i++)
      CONTRACT_ALL(s, move_to(&x, i % 2), RESHARD_SUCCESS, NULL);
  }
  close_steady(s, &x);
  reshard_device_release(options.device);
}

void contract_check_steady(contract_rank *s) {
  if (reshard_comm_size(s->comm) < 2)
    return;
  check_options(s);
  check_turns(s, 1);
  check_turns(s, 2);
  check_turns(s, 64);
  if (s->device == NULL)
    check_memory(s);
}
