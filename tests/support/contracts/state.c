/* State dicts saved and loaded: those of a chain of layouts; plain ones of which every rank has a replica, on the
 * rank's device and on the CPU; and a number. */
#include "state.h"

#include "support/contracts/layout_chain.h"

#include <reshard/file.h>
#include <reshard/state_dict.h>

#include <stdio.h>
#include <stdlib.h>

enum { ROWS = 7, COLUMNS = 5 };
static const int64_t plain_shape[2] = {ROWS, COLUMNS};

static void put_leaf(contract_rank *s, reshard_tree state, const char *key, reshard_tree leaf) {
  CONTRACT_SUCCEEDS(s, reshard_tree_set(state, key, leaf));
  reshard_tree_release(leaf);
}

/* On the CPU: factor times the numbers of its elements. */
static reshard_tensor host_tensor(contract_rank *s, int64_t factor) {
  reshard_tensor tensor = NULL;
  reshard_tensor_info info;
  if (!CONTRACT_SUCCEEDS(s, reshard_tensor_create(RESHARD_I64, 2, plain_shape, &tensor)) ||
      !CONTRACT_SUCCEEDS(s, reshard_tensor_get_info(tensor, &info)))
    return NULL;
  for (int64_t i = 0; i < info.elements; i++)
    ((int64_t *)info.data)[i] = factor * i;
  return tensor;
}

static void check_host(contract_rank *s, reshard_tensor tensor) {
  reshard_tensor_info info;
  CONTRACT_SUCCEEDS(s, reshard_tensor_get_info(tensor, &info));
  for (int64_t i = 0; i < info.elements; i++)
    CONTRACT_CHECK(s, ((int64_t *)info.data)[i] == i);
}

static reshard_tree make_state(contract_rank *s, const layout_chain *j, const reshard_sharded_tensor *tensors,
                               reshard_tensor plain, reshard_tensor host, int64_t number) {
  reshard_tree state = NULL, leaf = NULL;
  CONTRACT_SUCCEEDS(s, reshard_tree_dict(&state));
  for (int64_t i = 0; i < j->n; i++) {
    char key[32];
    snprintf(key, sizeof key, "layer.%d", (int)i);
    if (CONTRACT_SUCCEEDS(s, reshard_state_sharded(tensors[i], &leaf)))
      put_leaf(s, state, key, leaf);
  }
  if (CONTRACT_SUCCEEDS(s, reshard_tree_tensor(plain, &leaf)))
    put_leaf(s, state, "plain", leaf);
  if (CONTRACT_SUCCEEDS(s, reshard_tree_tensor(host, &leaf)))
    put_leaf(s, state, "host", leaf);
  if (CONTRACT_SUCCEEDS(s, reshard_tree_int(number, &leaf)))
    put_leaf(s, state, "step", leaf);
  return state;
}

/* Each rank has put digests into its files. */
static void check_digests(contract_rank *s, const char *directory) {
  const reshard_check_options options = {.size = RESHARD_CHECK_OPTIONS_INIT, .threads = 1};
  reshard_check_report report = {0};
  CONTRACT_ALL(s, reshard_checkpoint_check(directory, &options, &report), RESHARD_SUCCESS, NULL);
#ifdef RS_HAVE_XXHASH
  CONTRACT_CHECK(s, report.files > 0 && report.unchecked_files == 0);
#endif
}

static void state_save(contract_rank *s, const layout_chain *j, const char *directory) {
  const reshard_state_save_options over = {.size = RESHARD_STATE_SAVE_OPTIONS_INIT,
                                           .force = 1,
                                           .threads = 1,
                                           .stream = s->stream,
                                           .staging_bytes = (int64_t)(j->seed % 3) * 300};
  reshard_sharded_tensor tensors[LAYOUT_CHAIN_TENSORS] = {NULL};
  reshard_tensor plain = contract_tensor(s, RESHARD_F16, 2, plain_shape, true);
  CONTRACT_SUCCEEDS(s, layout_chain_begin(s, j, tensors));
  contract_fill_whole(s, plain, j->seed);
  reshard_tensor host = host_tensor(s, 1);
  reshard_tree state = make_state(s, j, tensors, plain, host, (int64_t)j->seed);
  CONTRACT_ALL(s, reshard_state_save(s->sharder, state, directory, &over, NULL), RESHARD_SUCCESS, NULL);
  check_digests(s, directory);
  for (int64_t i = 0; i < j->n; i++)
    reshard_sharded_tensor_release(tensors[i]);
  reshard_tensor_release(plain);
  reshard_tensor_release(host);
  reshard_tree_release(state);
}

static void check_loaded(contract_rank *s, const layout_chain *j, int step, reshard_sharded_tensor *tensors,
                         reshard_tensor plain, reshard_tree state) {
  reshard_tree leaf = NULL;
  int64_t number = 0;
  for (int64_t i = 0; i < j->n; i++)
    layout_chain_check(s, j, i, step, tensors[i], false);
  CONTRACT_CHECK(s, contract_count_wrong_whole(s, plain, j->seed) == 0);
  if (CONTRACT_SUCCEEDS(s, reshard_tree_find(state, "step", &leaf)) &&
      CONTRACT_SUCCEEDS(s, reshard_tree_get_int(leaf, &number)))
    CONTRACT_CHECK(s, number == (int64_t)j->seed);
}

static void state_load(contract_rank *s, const layout_chain *j, int step, const char *directory) {
  const reshard_state_load_options options = {.size = RESHARD_STATE_LOAD_OPTIONS_INIT,
                                              .threads = 1,
                                              .stream = s->stream,
                                              .staging_bytes = step,
                                              .check = step % 2};
  reshard_state_load_report report = {0};
  reshard_sharded_tensor tensors[LAYOUT_CHAIN_TENSORS] = {NULL};
  reshard_tensor plain = contract_tensor(s, RESHARD_F16, 2, plain_shape, step % 2 == 1);
  for (int64_t i = 0; i < j->n; i++)
    CONTRACT_SUCCEEDS(s, reshard_sharded_tensor_zeros(s->sharder, j->stops[i][step].layout, &j->properties[i],
                                                      s->stream, &tensors[i]));
  reshard_tensor host = host_tensor(s, 0);
  reshard_tree state = make_state(s, j, tensors, plain, host, -1);
  for (int again = 0; again < 2; again++) /* while the GPU still copies what came first */
    CONTRACT_ALL(s, reshard_state_load(s->sharder, state, directory, &options, &report), RESHARD_SUCCESS, NULL);
  CONTRACT_CHECK(s, report.tensors == j->n + 2);
#ifdef RS_HAVE_XXHASH
  CONTRACT_CHECK(s, report.unchecked_files == 0 && (report.checked_bytes > 0) == (step % 2 == 1));
#endif
  check_host(s, host);
  check_loaded(s, j, step, tensors, plain, state);
  for (int64_t i = 0; i < j->n; i++)
    reshard_sharded_tensor_release(tensors[i]);
  reshard_tensor_release(plain);
  reshard_tensor_release(host);
  reshard_tree_release(state);
}

/* Misfits on one rank or on all: all ranks get the same error, and nothing is written. */
static void check_refused(contract_rank *s, const char *directory) {
  const reshard_state_save_options over = {.size = RESHARD_STATE_SAVE_OPTIONS_INIT, .force = 1, .stream = s->stream};
  const reshard_state_load_options options = {
      .size = RESHARD_STATE_LOAD_OPTIONS_INIT, .partial = 1, .stream = s->stream};
  bool odd = reshard_comm_rank(s->comm) == 1;
  reshard_tree state = NULL, leaf = NULL;
  reshard_tensor plain = contract_tensor(s, odd ? RESHARD_I32 : RESHARD_F16, 2, plain_shape, false);
  contract_fill_whole(s, plain, 1);
  CONTRACT_SUCCEEDS(s, reshard_tree_dict(&state));
  if (CONTRACT_SUCCEEDS(s, reshard_tree_tensor(plain, &leaf)))
    put_leaf(s, state, "plain", leaf);
  CONTRACT_ALL(s, reshard_state_load(s->sharder, state, directory, &options, NULL), RESHARD_ERROR_INVALID,
               "rank 1: path 'plain' is i32 here, in the checkpoint it is f16");
  CONTRACT_CHECK(s, contract_count_wrong_whole(s, plain, 1) == 0);
  CONTRACT_ALL(s, reshard_state_save(s->sharder, state, directory, &over, NULL), RESHARD_ERROR_MISMATCH,
               "path 'plain': rank 0 has f16, rank 1 has i32");
  CONTRACT_ALL(s, reshard_state_load(s->sharder, odd ? NULL : state, directory, &options, NULL), RESHARD_ERROR_INVALID,
               "rank 1: ");
  CONTRACT_ALL(s, reshard_state_load(s->sharder, state, odd ? "elsewhere" : directory, &options, NULL),
               RESHARD_ERROR_MISMATCH, "rank 1 from 'elsewhere'");
  CONTRACT_ALL(s, reshard_state_save(s->sharder, state, odd ? "elsewhere" : directory, &over, NULL),
               RESHARD_ERROR_MISMATCH, "rank 1 to 'elsewhere'");
  CONTRACT_ALL(s, reshard_state_save(s->sharder, state, directory, odd ? NULL : &over, NULL), RESHARD_ERROR_MISMATCH,
               "rank 0 saves with force 1, rank 1 with 0");
  reshard_tree_release(state);
  reshard_tensor_release(plain);
}

/* Without jansson there are no such files. */
void contract_check_state(contract_rank *s, uint64_t seed, const char *directory) {
#ifndef RS_HAVE_JANSSON
  return;
#endif
  rng r;
  layout_chain j;
  rng_seed(&r, seed);
  layout_chain_draw(&r, seed, reshard_comm_size(s->comm), &j);
  for (int64_t i = 0; i < j.n; i++) /* what files have no dtype for */
    j.properties[i].dtype = j.properties[i].dtype == RESHARD_C128 ? RESHARD_F64 : j.properties[i].dtype;
  state_save(s, &j, directory);
  for (int step = 0; step < 3; step++)
    state_load(s, &j, step, directory);
  check_refused(s, directory);
  layout_chain_free(&j);
}
