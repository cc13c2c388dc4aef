/* The cost of sharded tensors' metadata, each tensor cut into a grid of shards: building, merging and validating.
 * PyTorch's planner takes 200 s for 1,024 tensors of 1,024 shards each. */
#include "bench/micro/micro.h"

#include "metadata/serialize.h"

#include <reshard/tensor.h>

#include <stdlib.h>
#include <string.h>

enum { TENSORS = 1024, ROWS = 4, COLUMNS = 8 };

/* The parts of all ranks, by one thread: builds the metadata of every rank's shards, packs them, and merges all ranks'
 * strings once, as every process does. */
typedef struct metadata_bench {
  int64_t ranks, shards; /* per rank */
  reshard_tensor tensor; /* the data of every shard */
  reshard_local_shard *local;
  reshard_metadata *locals, *globals;
} metadata_bench;

static void metadata_drop(void *state) {
  metadata_bench *g = state;
  reshard_tensor_release(g->tensor);
  free(g->local);
  free(g->locals);
  free(g->globals);
  free(g);
}

/* So many shards of each tensor: a rank each, or all of one rank, the same through the public calls alone. */
static void *metadata_make(const micro_case *of, int64_t *items) {
  metadata_bench *g = calloc(1, sizeof *g);
  const int64_t shards = of->more[0] ? of->parameter : 1;
  g->ranks = of->parameter / shards;
  g->shards = shards;
  *items = TENSORS * of->parameter;
  g->local = calloc((size_t)shards, sizeof *g->local);
  g->locals = calloc(TENSORS, sizeof(reshard_metadata));
  g->globals = calloc(TENSORS, sizeof(reshard_metadata));
  if (reshard_tensor_create(RESHARD_BF16, 2, (int64_t[]){ROWS, COLUMNS}, &g->tensor) == RESHARD_SUCCESS)
    return g;
  metadata_drop(g);
  return NULL;
}

/* The side of a square grid of n shards. */
static int64_t side_of(int64_t n) {
  int64_t side = 1;
  while (side * side < n)
    side++;
  return side;
}

static reshard_shard shard_of(int64_t side, int64_t i, int64_t rank) {
  return (reshard_shard){.box = {{i / side * ROWS, i % side * COLUMNS}, {ROWS, COLUMNS}},
                         .placement = {rank, RESHARD_DEVICE_CPU, -1}};
}

static void release_all(reshard_metadata *list) {
  for (int64_t i = 0; i < TENSORS; i++) {
    reshard_metadata_release(list[i]);
    list[i] = NULL;
  }
}

static reshard_status build_locals(metadata_bench *g, int64_t rank) {
  reshard_status status = RESHARD_SUCCESS;
  const int64_t side = side_of(g->ranks * g->shards), shape[2] = {ROWS * side, COLUMNS * side};
  for (int64_t s = 0; s < g->shards; s++)
    g->local[s] = (reshard_local_shard){shard_of(side, rank * g->shards + s, rank), g->tensor};
  for (int64_t i = 0; i < TENSORS && status == RESHARD_SUCCESS; i++)
    status = reshard_metadata_build_local(2, shape, g->shards, g->local, rank, &g->locals[i]);
  return status;
}

/* Concatenates the ranks' strings, as a communicator's gathering does. */
static rs_strings *concatenate_strings(int64_t ranks, char *const *string, const int64_t *size) {
  int64_t total = 0;
  for (int64_t r = 0; r < ranks; r++)
    total += size[r];
  rs_strings *all = malloc(sizeof *all + (size_t)(ranks + 1) * sizeof *size + (size_t)total);
  all->n = ranks;
  all->bytes = (char *)(all->first + ranks + 1);
  all->first[0] = 0;
  for (int64_t r = 0; r < ranks; r++) {
    memcpy(all->bytes + all->first[r], string[r], (size_t)size[r]);
    all->first[r + 1] = all->first[r] + size[r];
  }
  return all;
}

static int ranks_run(void *state) {
  metadata_bench *g = state;
  char **string = calloc((size_t)g->ranks, sizeof *string);
  int64_t *size = calloc((size_t)g->ranks, sizeof *size);
  reshard_status status = RESHARD_SUCCESS;
  for (int64_t r = 0; r < g->ranks && status == RESHARD_SUCCESS; r++) {
    status = build_locals(g, r);
    RS_THEN(status, rs_metadata_pack(TENSORS, g->locals, -1, &string[r], &size[r]));
    release_all(g->locals);
  }
  if (status == RESHARD_SUCCESS) {
    rs_strings *all = concatenate_strings(g->ranks, string, size);
    status = rs_metadata_merge(NULL, all, TENSORS, g->globals);
    free(all);
  }
  release_all(g->globals);
  for (int64_t r = 0; r < g->ranks; r++)
    free(string[r]);
  free(string);
  free(size);
  return status != RESHARD_SUCCESS;
}

static int one_rank_run(void *state) {
  metadata_bench *g = state;
  reshard_comm comm;
  if (reshard_comm_create_local(1, NULL, &comm) != RESHARD_SUCCESS)
    return 1;
  reshard_status status = build_locals(g, 0);
  status = reshard_metadata_build_global_many(comm, TENSORS, g->locals, status, g->globals);
  release_all(g->locals);
  release_all(g->globals);
  reshard_comm_destroy(comm);
  return status != RESHARD_SUCCESS;
}

/* Validating one tensor of `shards` shards. */
static void *check_make(const micro_case *of, int64_t *items) {
  reshard_metadata m = NULL;
  int64_t side = side_of(of->parameter);
  reshard_properties properties = {.dtype = RESHARD_BF16};
  reshard_shard *list = calloc((size_t)(side * side), sizeof *list);
  for (int64_t i = 0; i < side * side; i++)
    list[i] = shard_of(side, i, i);
  reshard_metadata_create(&properties, 2, (int64_t[]){side * ROWS, side * COLUMNS}, side * side, list, &m);
  free(list);
  *items = side * side;
  return m;
}
static int check_run(void *state) { return reshard_metadata_check(state) != RESHARD_SUCCESS; }
static void check_drop(void *state) { reshard_metadata_release(state); }

static const micro_case micro_metadata[] = {
    {"metadata_1024_tensors_ranks_of_one_shard", 1024, 0, metadata_make, ranks_run, metadata_drop, {0}, NULL},
    {"metadata_1024_tensors_one_rank_of_shards", 1024, 0, metadata_make, one_rank_run, metadata_drop, {1}, NULL},
    {"metadata_check_grid_of_shards", 1024, 0, check_make, check_run, check_drop, {0}, NULL},
    {"metadata_check_grid_of_shards", 1000000, 0, check_make, check_run, check_drop, {0}, NULL},
};
MICRO_TABLE(micro_metadata, NULL)
