/* The k-th allocation fails in the calls of the FSDP extension, for every k, on one rank or on whichever makes it. In a
 * local call that rank alone has the error, in a collective one all ranks that take part have the same; outputs are not
 * written, nothing is left behind, and the same call right after succeeds. */
#include "support/fault_local.h"
#include "support/fixtures/case.h"
#include "support/fixtures/sharded_ranks.h"

#include <reshard/fsdp.h>

#include <string.h>

enum { RANKS = 4, ANY = -1 };

/* dp 2 x tp 2, and leaves of 5 x 3 elements. */
typedef struct world {
  sharded_ranks p;
  reshard_mesh mesh[RANKS], tp[RANKS];
  reshard_sharder fsdp[RANKS];
  reshard_tree plain[RANKS], cut[RANKS], both[RANKS]; /* a tensor, a DTensor on tp, one on both dims */
  const struct call *call;
  int64_t watched; /* whose allocations can fail, or ANY */
  reshard_tree out[RANKS];
} world;

typedef struct call {
  const char *name;
  reshard_status (*make)(world *w, int64_t r, reshard_tree *out);
  int64_t (*circle)(int64_t r); /* ranks of one circle do it together */
} call;

static int64_t alone(int64_t r) { return r; }
static int64_t group(int64_t r) { return r % 2; }
static int64_t all(int64_t r) { return r & 0; }

static reshard_status chunk(world *w, int64_t r, reshard_tree leaf, reshard_tree *out) {
  const reshard_fsdp_group g = {.size = RESHARD_FSDP_GROUP_INIT, .sharder = w->fsdp[r]};
  return reshard_fsdp_chunk_tensor(leaf, &g, NULL, out);
}
static reshard_status chunk_plain(world *w, int64_t r, reshard_tree *out) { return chunk(w, r, w->plain[r], out); }
static reshard_status chunk_nested(world *w, int64_t r, reshard_tree *out) { return chunk(w, r, w->cut[r], out); }
static reshard_status chunk_whole(world *w, int64_t r, reshard_tree *out) {
  return reshard_fsdp_chunk_dtensor(w->p.sharders[r], w->plain[r], w->mesh[r], NULL, out);
}
static reshard_status chunk_both(world *w, int64_t r, reshard_tree *out) {
  return reshard_fsdp_chunk_dtensor(w->p.sharders[r], w->cut[r], w->mesh[r], NULL, out);
}
static reshard_status chunk_fsdp_first(world *w, int64_t r, reshard_tree *out) {
  return reshard_fsdp_chunk_dtensor_ordered(w->p.sharders[r], w->cut[r], w->mesh[r], RESHARD_FSDP_FSDP_FIRST, NULL,
                                            out);
}
static reshard_status gather(world *w, int64_t r, reshard_tree *out) {
  return reshard_fsdp_all_gather(w->p.sharders[r], w->both[r], NULL, NULL, out);
}
static reshard_status gather_as(world *w, int64_t r, reshard_tree *out) {
  return reshard_fsdp_all_gather_as(w->p.sharders[r], w->both[r], NULL, RESHARD_F16, NULL, out);
}
static reshard_status fsdp_flatten(world *w, int64_t r, reshard_tree *out) {
  reshard_tree flat = NULL;
  reshard_flat_record record = NULL;
  reshard_tensor tensor;
  reshard_status status = reshard_fsdp_flatten(w->both[r], &flat, &record);
  if (status != RESHARD_SUCCESS)
    return flat == NULL && record == NULL ? status : RESHARD_ERROR_INTERNAL;
  status = reshard_tree_get_tensor(flat, &tensor);
  if (status == RESHARD_SUCCESS)
    status = reshard_fsdp_unflatten(w->p.sharders[r], tensor, record, out);
  reshard_flat_record_free(record);
  reshard_tree_release(flat);
  return status;
}
static reshard_status pre_load(world *w, int64_t r, reshard_tree *out) {
  reshard_metadata metadata;
  reshard_status status = reshard_fsdp_pre_load(w->both[r], out, &metadata);
  if (status == RESHARD_SUCCESS)
    reshard_metadata_release(metadata);
  return status;
}
static reshard_status leaf(world *w, int64_t r, reshard_tree *out) {
  reshard_dtensor tensor = NULL;
  return reshard_state_get_dtensor(w->both[r], &tensor) == RESHARD_SUCCESS ? reshard_state_dtensor(tensor, out)
                                                                           : RESHARD_ERROR_INTERNAL;
}

static void call_body(void *user, int64_t r) {
  sharded_ranks *p = user;
  world *w = p->user;
  w->out[r] = NULL;
  fault_mark(w->watched == ANY || w->watched == r);
  reshard_status status = w->call->make(w, r, &w->out[r]);
  fault_mark(false);
  rank_result_set(&p->results[r], status);
  p->wrong[r] = (w->out[r] != NULL) != (status == RESHARD_SUCCESS);
}

/* Runs the call on all ranks, frees the results. */
static void run_ranks(world *w) {
  sharded_ranks_run(&w->p, call_body, w);
  for (int64_t r = 0; r < RANKS; r++) {
    reshard_tree_release(w->out[r]);
    if (w->p.wrong[r] != 0)
      fail_msg("%s: rank %d: an output after an error, or none after success", w->call->name, (int)r);
  }
}

static int64_t errors(const world *w, reshard_status status, int64_t k) {
  int64_t failed = 0;
  for (int64_t r = 0; r < RANKS; r++) {
    const rank_result *mine = &w->p.results[r];
    failed += mine->status != RESHARD_SUCCESS;
    if (mine->status != RESHARD_SUCCESS && (mine->status != status || mine->text[0] == '\0'))
      fail_msg("%s, allocation %lld fails: rank %d: %s: %s", w->call->name, (long long)k, (int)r,
               reshard_status_string(mine->status), mine->text);
    for (int64_t s = 0; s < r; s++)
      if (w->call->circle(r) == w->call->circle(s) &&
          (mine->status != w->p.results[s].status ||
           (mine->status != RESHARD_SUCCESS && strcmp(mine->text, w->p.results[s].text) != 0)))
        fail_msg("%s, allocation %lld fails: ranks %d and %d: %s (%s), %s (%s)", w->call->name, (long long)k, (int)s,
                 (int)r, reshard_status_string(w->p.results[s].status), w->p.results[s].text,
                 reshard_status_string(mine->status), mine->text);
  }
  return failed;
}

static int64_t ranks_run(world *w) {
  fault_arm(-1);
  run_ranks(w); /* what is kept for the next time is there now */
  fault_disarm();
  for (int64_t k = 0;; k++) {
    int64_t live = fault_live();
    fault_arm(k);
    run_ranks(w);
    int64_t made = fault_disarm();
    reshard_status status = fault_status(fault_fired());
    if ((errors(w, status, k) > 0) != (status != RESHARD_SUCCESS))
      fail_msg("%s, allocation %lld fails: and no rank has an error", w->call->name, (long long)k);
    if (fault_live() != live)
      fail_msg("%s, allocation %lld fails: %lld blocks leak", w->call->name, (long long)k,
               (long long)(fault_live() - live));
    if (status == RESHARD_SUCCESS)
      return made;
    run_ranks(w);
    errors(w, RESHARD_SUCCESS, k);
    if (fault_live() != live)
      fail_msg("%s, after allocation %lld failed: %lld blocks leak", w->call->name, (long long)k,
               (long long)(fault_live() - live));
  }
}

static void open_body(void *user, int64_t r) {
  sharded_ranks *p = user;
  world *w = p->user;
  const int64_t shape[2] = {5, 3};
  const reshard_placement rows = {.kind = RESHARD_PLACEMENT_SHARD, .dim = 0};
  const reshard_properties f32 = {.dtype = RESHARD_F32};
  reshard_comm comm = NULL;
  reshard_tensor whole = NULL;
  reshard_dtensor cut = NULL;
  reshard_sharder_options options = {.size = RESHARD_SHARDER_OPTIONS_INIT, .cached_plans = -1};
  reshard_status status[] = {
      reshard_mesh_parse(p->comms[r], 0, "dp=2,tp=2", &w->mesh[r]),
      reshard_mesh_init_groups(w->mesh[r], 0, NULL),
      reshard_mesh_sub(w->mesh[r], "tp", RESHARD_MESH_MINE, &w->tp[r]),
      reshard_mesh_comm(w->mesh[r], "dp", &comm),
      reshard_tensor_create(RESHARD_F32, 2, shape, &whole),
  };
  reshard_tensor_info info;
  reshard_tensor_get_info(whole, &info);
  memset(info.data, 0, 60);
  options.group = (reshard_group){2, reshard_comm_global_ranks(comm)};
  const reshard_placing over_tp = {w->tp[r], &rows, NULL};
  reshard_status more[] = {
      reshard_sharder_create(comm, &options, &w->fsdp[r]),
      reshard_dtensor_distribute(p->sharders[r], &over_tp, whole, -1, 2, shape, &f32, NULL, &cut),
      reshard_tree_tensor(whole, &w->plain[r]),
      reshard_state_dtensor(cut, &w->cut[r]),
      reshard_fsdp_chunk_dtensor(p->sharders[r], w->cut[r], w->mesh[r], NULL, &w->both[r]),
  };
  for (size_t i = 0; i < 5; i++)
    p->wrong[r] += status[i] != RESHARD_SUCCESS;
  for (size_t i = 0; i < 5; i++)
    p->wrong[r] += more[i] != RESHARD_SUCCESS;
  reshard_dtensor_release(cut);
  reshard_tensor_release(whole);
}

static void close_world(world *w) {
  for (int64_t r = 0; r < RANKS; r++) {
    reshard_tree_release(w->plain[r]);
    reshard_tree_release(w->cut[r]);
    reshard_tree_release(w->both[r]);
    reshard_sharder_destroy(w->fsdp[r]);
    reshard_mesh_release(w->tp[r]);
    reshard_mesh_release(w->mesh[r]);
  }
  sharded_ranks_close(&w->p);
}

CASE(calls_of_fsdp_survive_any_failed_allocation) {
  static const call calls[] = {
      {"chunk_tensor of a tensor", chunk_plain, group},
      {"chunk_tensor of a DTensor", chunk_nested, group},
      {"chunk_dtensor of a tensor", chunk_whole, alone},
      {"chunk_dtensor of a DTensor", chunk_both, alone},
      {"chunk_dtensor, FSDP first", chunk_fsdp_first, all},
      {"all_gather_dtensor", gather, all},
      {"all_gather_dtensor_as", gather_as, all},
      {"flatten and unflatten", fsdp_flatten, alone},
      {"pre_load", pre_load, alone},
      {"a leaf", leaf, alone},
  };
  const reshard_sharder_options options = {.size = RESHARD_SHARDER_OPTIONS_INIT, .cached_plans = -1};
  int64_t live = fault_live();
  world w = {0};
  sharded_ranks_open(&w.p, RANKS, &options);
  sharded_ranks_run(&w.p, open_body, &w);
  for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
    w.call = &calls[i];
    for (w.watched = ANY; w.watched < 2; w.watched += 2) {
      int64_t made = ranks_run(&w);
      if (w.watched == 1)
        print_message("%s: %lld allocations\n", w.call->name, (long long)made);
      assert_true(made > 0);
    }
  }
  close_world(&w);
  assert_int_equal(fault_live(), live);
}

RUN_CASES
