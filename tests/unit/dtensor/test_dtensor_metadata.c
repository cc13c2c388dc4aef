/* Metadata and print-outs of DTensors. */
#include "bench/cli/util.h"
#include "support/fixtures/case.h"
#include "support/fixtures/sharded_ranks.h"

#include <reshard/dtensor.h>

#include <string.h>

static const reshard_properties f32 = {.dtype = RESHARD_F32};

static reshard_dtensor on(sharded_ranks *p, int64_t r, const char *mesh_text, const char *text, int ndim,
                          const int64_t *shape) {
  reshard_placement placements[RESHARD_MAX_DIMS];
  int order[RESHARD_MAX_DIMS];
  reshard_placing at = {NULL, placements, order};
  reshard_dtensor tensor = NULL;
  CLI_TRY(mesh_text, reshard_mesh_parse(p->comms[r], 0, mesh_text, &at.mesh));
  CLI_TRY(text, reshard_placements_parse(text, at.mesh, placements, order));
  CLI_TRY(text, reshard_dtensor_empty(p->sharders[r], &at, ndim, shape, &f32, NULL, &tensor));
  reshard_mesh_release(at.mesh);
  return tensor;
}

CASE(metadata_of_dtensors_name_global_ranks) {
  const int64_t shape[2] = {5, 3}, ranks[6] = {10, 11, 12, 13, 14, 15};
  sharded_ranks p;
  reshard_sharder_options options = {.size = RESHARD_SHARDER_OPTIONS_INIT, .group = {6, ranks}};
  sharded_ranks_open(&p, 6, &options);
  reshard_dtensor tensor = on(&p, 4, "2x2@5,0,4,2", "R,S0", 2, shape); /* 5 and 4 have [0,3), 0 and 2 the rest */
  reshard_metadata metadata;
  reshard_shard shard;
  CLI_TRY("metadata: ", reshard_dtensor_metadata(tensor, &metadata));
  assert_int_equal(reshard_metadata_count(metadata), 2);
  const reshard_shard *shards = reshard_metadata_shards(metadata);
  assert_true(shards[0].placement.rank == 10 && shards[0].box.offset[0] == 3 && shards[0].box.extent[0] == 2);
  assert_true(shards[1].placement.rank == 14 && shards[1].box.offset[0] == 0 && shards[1].box.extent[0] == 3);
  assert_int_equal(reshard_metadata_check(metadata), RESHARD_SUCCESS);
  reshard_metadata_release(metadata);
  CLI_TRY("shard: ", reshard_dtensor_shard_metadata(tensor, &shard));
  assert_true(shard.placement.rank == 14 && shard.placement.type == RESHARD_DEVICE_CPU && shard.box.extent[1] == 3 &&
              shard.box.offset[0] == 0 && shard.box.extent[0] == 3);
  reshard_dtensor_release(tensor);
  tensor = on(&p, 0, "4", "S0*2", 2, shape); /* [0,1)+[3,4), [1,2)+[4,5), [2,3), none */
  CLI_TRY("metadata: ", reshard_dtensor_metadata(tensor, &metadata));
  assert_int_equal(reshard_metadata_count(metadata), 6);
  assert_int_equal(reshard_metadata_check(metadata), RESHARD_SUCCESS);
  reshard_metadata_release(metadata);
  reshard_dtensor_release(tensor);
  sharded_ranks_close(&p);
}

CASE(metadata_are_rewritten_for_a_device) {
  const int64_t shape[1] = {6};
  reshard_remote_device devices[3] = {
      {0, RESHARD_DEVICE_CUDA, 0}, {1, RESHARD_DEVICE_CUDA, 1}, {2, RESHARD_DEVICE_CPU, -1}};
  reshard_metadata metadata, rewritten;
  reshard_tensor tensor;
  CLI_TRY("metadata: ", reshard_metadata_from_chunk(&f32, 1, shape, 0, 3, devices, &metadata));
  CLI_TRY("tensor: ", reshard_tensor_create(RESHARD_F32, 1, shape, &tensor));
  CLI_TRY("rewrite: ", reshard_metadata_rewrite(metadata, tensor, 2, &rewritten));
  assert_ptr_equal(rewritten, metadata);
  reshard_metadata_release(rewritten);
  CLI_TRY("rewrite: ", reshard_metadata_rewrite(metadata, tensor, 1, &rewritten));
  assert_ptr_not_equal(rewritten, metadata);
  const reshard_shard *shards = reshard_metadata_shards(rewritten);
  assert_true(shards[0].placement.type == RESHARD_DEVICE_CUDA && shards[1].placement.type == RESHARD_DEVICE_CPU &&
              shards[1].placement.index == -1 && shards[1].placement.rank == 1 && shards[1].box.offset[0] == 2);
  assert_int_equal(reshard_metadata_shards(metadata)[1].placement.type, RESHARD_DEVICE_CUDA);
  reshard_metadata_release(rewritten);
  assert_int_equal(reshard_metadata_rewrite(metadata, NULL, 1, &rewritten), RESHARD_ERROR_INVALID);
  assert_string_equal(reshard_last_error(), "reshard_metadata_rewrite: tensor is NULL");
  reshard_metadata_release(metadata);
  reshard_tensor_release(tensor);
}

/* --- Print ------------------------------------------------------------------------------------------------------- */

static void drawn(sharded_ranks *p, const char *mesh, const char *placements, int ndim, const int64_t *shape,
                  const char *wanted) {
  char text[4096];
  size_t needed = 0;
  reshard_dtensor tensor = on(p, 0, mesh, placements, ndim, shape);
  CLI_TRY("print: ", reshard_dtensor_print(tensor, text, sizeof text, &needed));
  assert_string_equal(text, wanted);
  assert_int_equal(needed, strlen(text) + 1);
  assert_int_equal(reshard_dtensor_print(tensor, text, needed - 1, NULL), RESHARD_ERROR_INVALID);
  reshard_dtensor_release(tensor);
}

CASE(print_draws_which_rank_has_what) {
  sharded_ranks p;
  sharded_ranks_open(&p, 12, NULL);
  const int64_t shape[3] = {5, 112, 2}, empty[2] = {0, 3};
  drawn(&p, "dp=3,tp=2@0-5", "S0,S1", 2, shape,
        "f32 5x112 over dp=3,tp=2@0-5, S0,S1\n"
        "       [0,56)  [56,112)\n"
        "[0,2)  0       1\n"
        "[2,4)  2       3\n"
        "[4,5)  4       5\n");
  drawn(&p, "2x6", "S0,R", 2, shape,
        "f32 5x112 over 2x6@0-11, S0,R\n"
        "       [0,112)\n"
        "[0,3)  0-5\n"
        "[3,5)  6-11\n");
  drawn(&p, "2x4@0-3,8-11", "R,S0", 1, shape,
        "f32 5 over 2x4@0-3,8-11, R,S0\n"
        "[0,2)  [2,4)  [4,5)\n"
        "0,8    1,9    2,10\n"
        "no elements: 3,11\n");
  drawn(&p, "a=2,b=2", "S0*2,S0", 1, shape,
        "f32 5 over a=2,b=2@0-3, S0*2,S0\n"
        "[0,2)  [2,3)  [3,4)  [4,5)\n"
        "0      2      1      3\n");
  drawn(&p, "2x2", "S0,S2", 3, shape,
        "f32 5x112x2 over 2x2@0-3, S0,S2\n"
        "rank 0: [0,3)x[0,112)x[0,1)\n"
        "rank 1: [0,3)x[0,112)x[1,2)\n"
        "rank 2: [3,5)x[0,112)x[0,1)\n"
        "rank 3: [3,5)x[0,112)x[1,2)\n");
  drawn(&p, "2", "R", 0, shape, "f32 scalar over 2@0-1, R\nrank 0: []\nrank 1: []\n");
  drawn(&p, "2", "S1", 2, empty, "f32 0x3 over 2@0-1, S1\nno elements: 0-1\n");
  sharded_ranks_close(&p);
}

RUN_CASES
