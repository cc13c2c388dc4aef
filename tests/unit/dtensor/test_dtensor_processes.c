/* DTensors of ranks that are processes of one node, as a user has them: FSDP times TP on four, moved between placements
 * straight from rank to rank, saved and loaded into others. */
#include "support/fixtures/case.h"
#include "support/processes/processes.h"

#include <reshard/dtensor.h>
#include <reshard/file.h>
#include <reshard/state_dict.h>

#include <stdlib.h>
#include <string.h>

enum { RANKS = 4, WEIGHTS = 3, STEPS = 4, TIMEOUT_MS = 60000 };
#define GOOD(call) CHILD_CHECK((call) == RESHARD_SUCCESS)

static const char *const names[WEIGHTS] = {"wq", "w2", "bias"};
static const int ndims[WEIGHTS] = {2, 2, 1};
static const int64_t shapes[WEIGHTS][2] = {{64, 48}, {7, 130}, {37, 0}};
/* On (fsdp, tp), with TP first where a dim is cut twice. */
static const char *const placements[STEPS][WEIGHTS] = {{"S0,S0;order=tp,fsdp", "S0,S1", "S0,R"},
                                                       {"R,S1", "S1,S0", "R,S0"},
                                                       {"S1,R", "R,R", "S0,S0"},
                                                       {"R,S0", "S1,S1", "R,R"}};

typedef struct model {
  reshard_comm comm;
  reshard_sharder sharder;
  reshard_mesh mesh;
  reshard_placement placement[STEPS][WEIGHTS][2];
  int order[STEPS][WEIGHTS][2];
} model;

static reshard_placing placing_of(const model *m, int step, int weight) {
  return (reshard_placing){m->mesh, m->placement[step][weight], m->order[step][weight]};
}

static int64_t elements_of(int weight) { return shapes[weight][0] * (ndims[weight] == 2 ? shapes[weight][1] : 1); }

static void open_model(processes *all, int64_t rank, model *m) {
  GOOD(processes_comm(all, rank, NULL, TIMEOUT_MS, &m->comm));
  GOOD(reshard_sharder_create(m->comm, NULL, &m->sharder));
  GOOD(reshard_mesh_parse(m->comm, 0, "fsdp=2,tp=2", &m->mesh));
  for (int s = 0; s < STEPS; s++)
    for (int w = 0; w < WEIGHTS; w++)
      GOOD(reshard_placements_parse(placements[s][w], m->mesh, m->placement[s][w], m->order[s][w]));
}

static void close_model(model *m) {
  reshard_mesh_release(m->mesh);
  reshard_sharder_destroy(m->sharder);
  reshard_comm_destroy(m->comm);
}

static float value_of(int weight, int64_t i) { return (float)(weight * 100000 + i); }

/* Rank 0 has read the model: its tensors go to all. */
static void distribute(const model *m, int64_t rank, reshard_dtensor *tensors) {
  for (int w = 0; w < WEIGHTS; w++) {
    reshard_tensor whole = NULL;
    reshard_tensor_info info;
    reshard_placing placing = placing_of(m, 0, w);
    const reshard_properties properties = {.dtype = RESHARD_F32};
    if (rank == 0) {
      GOOD(reshard_tensor_create(RESHARD_F32, ndims[w], shapes[w], &whole));
      GOOD(reshard_tensor_get_info(whole, &info));
      for (int64_t i = 0; i < info.elements; i++)
        ((float *)info.data)[i] = value_of(w, i);
    }
    GOOD(reshard_dtensor_distribute(m->sharder, &placing, whole, 0, ndims[w], shapes[w], &properties, NULL,
                                    &tensors[w]));
    reshard_tensor_release(whole);
  }
}

/* Every rank gathers every tensor. */
static void check_tensors(const reshard_dtensor *tensors) {
  for (int w = 0; w < WEIGHTS; w++) {
    reshard_tensor whole;
    reshard_tensor_info info;
    GOOD(reshard_dtensor_full(tensors[w], NULL, &whole));
    GOOD(reshard_tensor_get_info(whole, &info));
    CHILD_CHECK(info.elements == elements_of(w));
    for (int64_t i = 0; i < info.elements; i++)
      CHILD_CHECK(((float *)info.data)[i] == value_of(w, i));
    reshard_tensor_release(whole);
  }
}

static void release_all(reshard_dtensor *tensors) {
  for (int w = 0; w < WEIGHTS; w++)
    reshard_dtensor_release(tensors[w]);
}

static reshard_tree state_of(const reshard_dtensor *tensors) {
  reshard_tree state, leaf;
  GOOD(reshard_tree_dict(&state));
  for (int w = 0; w < WEIGHTS; w++) {
    GOOD(reshard_state_dtensor(tensors[w], &leaf));
    GOOD(reshard_tree_set(state, names[w], leaf));
    reshard_tree_release(leaf);
  }
  return state;
}

static void train(processes *all, int64_t rank, void *user) {
  const char *directory = user;
  model m;
  reshard_dtensor tensors[WEIGHTS], moved[WEIGHTS];
  reshard_placing placings[WEIGHTS];
  open_model(all, rank, &m);
  distribute(&m, rank, tensors);
  reshard_comm_stats before, after;
  GOOD(reshard_comm_get_stats(m.comm, &before));
  check_tensors(tensors);
  for (int turn = 1; turn < 4 * STEPS; turn++) {
    int64_t came = 0;
    for (int w = 0; w < WEIGHTS; w++)
      placings[w] = placing_of(&m, turn % STEPS, w);
    GOOD(reshard_dtensor_redistribute(WEIGHTS, tensors, placings, NULL, moved));
    release_all(tensors);
    memcpy(tensors, moved, sizeof tensors);
    GOOD(reshard_comm_get_stats(m.comm, &after));
    came = after.received_bytes - before.received_bytes;
    CHILD_CHECK(came > 0 && after.received_messages == before.received_messages); /* straight from array to array */
    check_tensors(tensors);
  }
#ifdef RS_HAVE_JANSSON
  reshard_tree state = state_of(tensors);
  GOOD(reshard_state_save(m.sharder, state, directory, NULL, NULL));
  reshard_tree_release(state);
  for (int w = 0; w < WEIGHTS; w++) {
    const reshard_properties properties = {.dtype = RESHARD_F32};
    reshard_placing placing = placing_of(&m, 1, w);
    GOOD(reshard_dtensor_empty(m.sharder, &placing, ndims[w], shapes[w], &properties, NULL, &moved[w]));
  }
  state = state_of(moved);
  GOOD(reshard_state_load(m.sharder, state, directory, NULL, NULL));
  reshard_tree_release(state);
  check_tensors(moved);
  release_all(moved);
#endif
  (void)directory;
  release_all(tensors);
  close_model(&m);
}

/* Two domains of two ranks; each has one half of the rows twice, and needs the other half twice. */
static void gather_domains(processes *all, int64_t rank, void *user) {
  static const int64_t domain[RANKS] = {0, 0, 1, 1}, shape[] = {64, 4096};
  const int64_t half = shape[0] / 2 * shape[1];
  const reshard_properties properties = {.dtype = RESHARD_F32};
  reshard_topology topology = RESHARD_TOPOLOGY_DEFAULTS;
  topology.ranks = RANKS;
  topology.domain = domain;
  topology.chains = 1;
  const reshard_sharder_options options = {
      .size = RESHARD_SHARDER_OPTIONS_INIT, .path = RESHARD_PATH_PACKED, .topology = user != NULL ? &topology : NULL};
  model m = {0};
  reshard_dtensor rows, whole;
  reshard_tensor_info info;
  reshard_comm_stats stats;
  GOOD(processes_comm(all, rank, NULL, TIMEOUT_MS, &m.comm));
  GOOD(reshard_sharder_create(m.comm, &options, &m.sharder));
  GOOD(reshard_mesh_parse(m.comm, 0, "domain=2,replica=2", &m.mesh));
  GOOD(reshard_placements_parse("S0,R", m.mesh, m.placement[0][0], m.order[0][0]));
  GOOD(reshard_placements_parse("R,R", m.mesh, m.placement[1][0], m.order[1][0]));
  reshard_placing from = placing_of(&m, 0, 0), to = placing_of(&m, 1, 0);
  GOOD(reshard_dtensor_empty(m.sharder, &from, 2, shape, &properties, NULL, &rows));
  GOOD(reshard_tensor_get_info(reshard_dtensor_local(rows), &info));
  CHILD_CHECK(info.elements == half);
  for (int64_t i = 0; i < half; i++)
    ((float *)info.data)[i] = value_of(0, domain[rank] * half + i);
  GOOD(reshard_dtensor_redistribute(1, &rows, &to, NULL, &whole));
  GOOD(reshard_tensor_get_info(reshard_dtensor_local(whole), &info));
  CHILD_CHECK(info.elements == 2 * half);
  for (int64_t i = 0; i < 2 * half; i++)
    CHILD_CHECK(((float *)info.data)[i] == value_of(0, i));
  GOOD(reshard_comm_get_stats(m.comm, &stats)); /* with domains, a half of the half comes from the other replica */
  CHILD_CHECK(stats.received_bytes == half * 4);
  CHILD_CHECK(stats.between_bytes == (user != NULL ? half * 4 / 2 : 0) && stats.within_bytes == stats.between_bytes);
  reshard_dtensor_release(rows);
  reshard_dtensor_release(whole);
  close_model(&m);
}

CASE(processes_of_a_domain_pass_on_what_enters_it) {
  for (int with = 0; with < 2; with++)
    assert_int_equal(processes_run(RANKS, 0, gather_domains, with ? &with : NULL), 0);
}

CASE(test_fsdp_tp) {
  char directory[] = "checkpoint", command[64];
  assert_int_equal(processes_run(RANKS, 0, train, directory), 0);
  snprintf(command, sizeof command, "rm -rf %s", directory);
  assert_int_equal(system(command), 0);
}

RUN_CASES
