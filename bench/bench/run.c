/* Measures a row: executes a prepared transfer again and again, alternating with a straight copy.
 *
 * The ranks are threads, and each executes its own transfer. The straight copy moves as many bytes as all destinations
 * have, between the same two arenas. On the CPU it uses as many threads as the reshard; on a GPU it is the runtime's
 * copy within device memory. Each pair of neighbouring iterations gives one ratio, so that a slow machine slows both.
 *
 * time.c describes what is timed. The host's part on a GPU is not in these times; it shows in the time of an execute
 * among many, by the host's clock. */

#include "bench/bench/state.h"

#include <stdlib.h>
#include <string.h>

/* Chooses the faster straight copy of this machine, by the medians of a few of each. */
static void choose_memcpy(bench_state *b) {
  double times[2][5];
  bench_memcpy(b, 0, 0);
  for (int i = 0; i < 5; i++)
    for (int s = 0; s < 2; s++) {
      double begin = rs_seconds();
      b->streaming = s == 1;
      bench_memcpy(b, 0, 0);
      times[s][i] = rs_seconds() - begin;
    }
  b->streaming = cli_median(times[1], 5) < cli_median(times[0], 5);
}

static void measure_pairs(bench_state *b, int64_t local) {
  for (int64_t i = -b->o->warmup; i < b->o->iterations; i++) {
    double mine = bench_timed(b, local, bench_reshard), theirs = bench_timed(b, local, bench_memcpy);
    if (local != 0 || i < 0)
      continue;
    b->ours[i] = mine;
    b->straight[i] = theirs;
    cli_progress("bench: %s, iteration %lld of %lld", b->row.shape, (long long)i + 1, (long long)b->o->iterations);
  }
}

static void synchronize_rank(bench_state *b, int64_t local) {
  if (b->s.cuda)
    CLI_TRY("", bench_streams(b, local)->synchronize(session_device(&b->s, local), b->stream[local]));
}

static void measure_loop(bench_state *b, int64_t local) {
  session_barrier(&b->s, local, true);
  double begin = rs_seconds();
  for (int64_t i = 0; i < b->o->iterations; i++)
    bench_reshard(b, local, i % b->dst.sets);
  synchronize_rank(b, local);
  rank_pool_barrier(b->s.pool, true);
  double seconds = bench_longest(b, local, rs_seconds() - begin);
  if (local == 0)
    b->row.loop_us = 1e6 * seconds / (double)b->o->iterations;
}

/* --- A row ------------------------------------------------------------------------------------------------------- */

typedef struct graph_set {
  const bench_state *b;
  int64_t set;
} graph_set;

static reshard_status execute_set(void *user, void *stream) {
  const graph_set *g = user;
  return reshard_execute_all(g->b->s.locals, g->b->transfers + g->set * g->b->s.locals, stream);
}

static void capture_sets(bench_state *b) {
  gpu_graph **graphs = cli_alloc(b->dst.sets, sizeof *graphs);
  for (graph_set g = {b, 0}; g.set < b->dst.sets; g.set++)
    CLI_TRY("-G: ", gpu_capture(session_device(&b->s, 0), b->stream[0], execute_set, &g, &graphs[g.set]));
  b->graphs = graphs;
}

/* Captures after an execute without a graph, so that work of the first execute alone is not captured. */
static void capture_graphs(bench_state *b, int64_t local) {
  for (int64_t set = 0; set < b->dst.sets; set++)
    bench_reshard(b, local, set);
  synchronize_rank(b, local);
  session_barrier(&b->s, local, true);
  if (local == 0)
    capture_sets(b);
  rank_pool_barrier(b->s.pool, true);
}

static reshard_plan create_transfers(bench_state *b, int64_t local) {
  int64_t rank = b->s.first + local;
  void *stream = bench_stream(b, local);
  reshard_plan plan = NULL;
  reshard_plan_options options = {.size = RESHARD_PLAN_OPTIONS_INIT, .workspace_limit = b->o->workspace};
  reshard_transfer_options how = {RESHARD_TRANSFER_OPTIONS_INIT, .path = b->o->path, .collective = b->o->collective};
  bench_fill(&b->w, &b->s, true, &b->src, local, stream);
  bench_poison(&b->dst, local, stream);
  reshard_status status = reshard_plan_create(b->w.n, b->entries, rank, &options, &plan);
  for (int64_t set = 0; set < b->dst.sets && status == RESHARD_SUCCESS; set++) {
    reshard_arrays arrays = {.size = RESHARD_ARRAYS_INIT,
                             .src = b->src.buffer + set * b->src.first[b->s.locals] + b->src.first[local],
                             .dst = b->dst.buffer + set * b->dst.first[b->s.locals] + b->dst.first[local]};
    reshard_transfer *made = &b->transfers[set * b->s.locals + local];
    status = reshard_transfer_create(plan, b->s.comms[local], &arrays, &how, made);
  }
  if (status != RESHARD_SUCCESS)
    cli_fail(status, "rank %lld: %s", (long long)rank, reshard_last_error());
  return plan;
}

static void describe_row(bench_state *b, int64_t local, reshard_plan plan) {
  reshard_plan_info info;
  reshard_transfer_info taken;
  reshard_plan_get_info(plan, &info);
  int64_t flow = info.sent_bytes > info.received_bytes ? info.sent_bytes : info.received_bytes;
  const double *flows = session_gather(&b->s, local, (double)flow);
  for (int64_t r = 0; local == 0 && r < b->s.world; r++)
    b->row.widest_flow = (int64_t)flows[r] > b->row.widest_flow ? (int64_t)flows[r] : b->row.widest_flow;
  reshard_transfer_get_info(b->transfers[local], &taken);
  const double *staged = session_gather(&b->s, local, (double)taken.workspace_bytes);
  if (local != 0)
    return;
  for (int64_t r = 0; r < b->s.world; r++)
    b->row.workspace = (int64_t)staged[r] > b->row.workspace ? (int64_t)staged[r] : b->row.workspace;
  b->row.limit = taken.workspace_limit;
  b->row.rounds = taken.rounds;
  b->row.least_rounds = taken.least_rounds;
  b->row.path = taken.path == RESHARD_PATH_DIRECT ? "direct" : "packed";
  b->row.collective = reshard_collective_string(taken.collective);
  snprintf(b->row.why, sizeof b->row.why, "%s", taken.collective_why);
}

static void check_row(bench_state *b, int64_t local) {
  bench_poison(&b->dst, local, bench_stream(b, local));
  session_barrier(&b->s, local, true);
  for (int64_t set = 0; set < b->dst.sets; set++)
    bench_reshard(b, local, set);
  synchronize_rank(b, local);
  rank_pool_barrier(b->s.pool, true);
  int64_t wrong = bench_wrong(&b->w, &b->s, false, &b->dst, local, bench_stream(b, local));
  const double *all = session_gather(&b->s, local, (double)wrong);
  for (int64_t r = 0; local == 0 && r < b->s.world; r++)
    b->row.wrong += (int64_t)all[r];
}

static void run_rank(void *user, int64_t local) {
  bench_state *b = user;
  reshard_plan plan = create_transfers(b, local);
  describe_row(b, local, plan);
  if (!b->s.cuda && local == 0)
    choose_memcpy(b);
  session_barrier(&b->s, local, true);
  if (b->o->graph)
    capture_graphs(b, local);
  measure_pairs(b, local);
  if (b->s.cuda) {
    measure_loop(b, local);
    bench_host_times(b, local, plan);
  }
  session_barrier(&b->s, local, true); /* the last straight copy is over */
  if (b->o->check)
    check_row(b, local);
  if (b->traced)
    bench_trace_row(b, local);
  session_barrier(&b->s, local, true);
  for (int64_t set = 0; local == 0 && b->graphs != NULL && set < b->dst.sets; set++)
    gpu_graph_destroy(b->graphs[set]);
  rank_pool_barrier(b->s.pool, true);
  for (int64_t set = 0; set < b->dst.sets; set++)
    reshard_transfer_destroy(b->transfers[set * b->s.locals + local]);
  reshard_plan_destroy(plan);
}

static void finish_row(bench_state *b) {
  bench_row *row = &b->row;
  int64_t n = b->o->iterations;
  double *ratios = cli_alloc(n, sizeof *ratios);
  for (int64_t i = 0; i < n; i++)
    ratios[i] = b->ours[i] > 0 ? b->straight[i] / b->ours[i] : 0;
  double mine = cli_median(b->ours, n), theirs = cli_median(b->straight, n);
  row->ratio = cli_median(ratios, n);
  row->time_us = 1e6 * mine;
  row->algbw = mine > 0 ? 1e-9 * (double)row->bytes / mine : 0;
  row->busbw = mine > 0 ? 1e-9 * (double)row->widest_flow / mine : 0;
  row->memcpy_gbps = theirs > 0 ? 1e-9 * (double)b->dst.bytes / theirs : 0;
  free(ratios);
}

/* Gives the first rank of an empty source arena as many bytes as the destination has, for the straight copy to read. */
static void lend_extent(bench_side *from, const bench_side *to, int64_t p) {
  if (from->arena[p].extent == 0 && to->arena[p].extent > 0)
    from->end[p] = from->arena[p].extent = to->arena[p].extent;
}

/* Takes the memory of both sides. Only ranks that are threads on GPUs have several sets: elsewhere links are timed, and
 * creating transfers takes long. */
static void alloc_sides(bench_state *b) {
  int64_t most = 0, sets = 1;
  bench_side_create(&b->w, &b->s, true, &b->src);
  bench_side_create(&b->w, &b->s, false, &b->dst);
  for (int64_t p = 0; p < b->dst.narenas; p++) {
    int64_t bytes = b->src.arena[p].extent + b->dst.arena[p].extent;
    most = bytes > most ? bytes : most;
    lend_extent(&b->src, &b->dst, p);
  }
  if (b->s.cuda && strcmp(b->s.comm, "local") == 0)
    sets = gpu_sets(b->l2, most);
  bench_sides_check_memory(&b->s, &b->src, &b->dst, sets);
  bench_side_alloc(&b->src, sets);
  bench_side_alloc(&b->dst, sets);
  b->row.sets = sets;
}

void bench_run_row(bench_state *b) {
  workload *w = &b->w;
  b->row = (bench_row){.bytes = w->bytes, .dtype = w->n > 0 ? reshard_dtype_string(w->tensor[0].dtype) : "-"};
  for (int64_t t = 0; t < w->n; t++) {
    b->row.elements += reshard_layout_elements(w->tensor[t].src);
    if (w->tensor[t].dtype != w->tensor[0].dtype)
      b->row.dtype = "mixed";
  }
  if (w->model != NULL)
    snprintf(b->row.shape, sizeof b->row.shape, "%lld tensors", (long long)w->n);
  else
    rs_shape_text(b->row.shape, w->tensor->ndim, w->tensor->shape);
  b->hold = 1;
  b->entries = workload_entries(w);
  alloc_sides(b);
  cli_progress("bench: %s, preparing", b->row.shape);
  rank_pool_run(b->s.pool, b->s.locals, run_rank, b);
  cli_progress_clear();
  finish_row(b);
  free(b->graphs);
  b->graphs = NULL;
  bench_side_free(&b->src);
  bench_side_free(&b->dst);
  free(b->entries);
}
