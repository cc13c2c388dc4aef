/* Edges of a transfer over NCCL on virtual GPUs, left out one by one. */
#ifndef VG_NCCL_EDGES_H
#define VG_NCCL_EDGES_H

#include "nccl_case.h"
#include "support/fixtures/case.h"
#include "support/reshards/stream_case.h"

typedef struct nccl_edges {
  const char *path;
  stream_side src, dst;
  int64_t limit;
  bool graph;
} nccl_edges;

/* A case and the world that it runs in. */
typedef struct nccl_edge_run {
  const nccl_edges *edges;
  nccl_world world; /* without a communicator */
  const case_plan *c;
} nccl_edge_run;

static inline void nccl_edges_scenario(void *user, const vg_options *options) {
  const nccl_edge_run *run = user;
  nccl_world w = run->world;
  vg_begin(options);
  nccl_world_begin(&w);
  w.c = run->c;
  w.graph = run->edges->graph;
  w.executes = 2;
  rank_threads_run(w.n, nccl_case_rank, &w);
  nccl_world_close(&w);
  vg_end();
}

/* Leaves each edge out, or where most is not 0 that many of each name. All are found but those that end an execute. */
static inline void nccl_edges_find(const nccl_edges *edges, nccl_world world, int seeds, int most) {
  case_plan c;
  nccl_edge_run run = {edges, world, &c};
  stream_case_make(world.n, edges->src, edges->dst, edges->limit, &c);
  vg_quiet(true);
  vg_edge_result result =
      vg_for_each_edge(&(vg_edge_search){.path = edges->path,
                                         .run = nccl_edges_scenario,
                                         .user = &run,
                                         .options = {.devices = (int)world.n, .seed = 11, .patience_ms = 300},
                                         .seeds = seeds,
                                         .most = most,
                                         .covered = "the host has waited for the stream before it destroys",
                                         .covered_edges = "execute before host"});
  vg_quiet(false);
  printf("%s: %d of %d uses of %d edges found\n", edges->path, result.found, result.uses - result.covered,
         result.edges);
  case_free(&c);
  assert_true(result.edges > 0);
  assert_int_equal(result.false_alarms, 0);
  assert_int_equal(result.found + result.covered, result.uses);
}

#endif
