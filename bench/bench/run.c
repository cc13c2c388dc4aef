/* Measures a row: executes a prepared transfer again and again, alternating with a straight copy.
 *
 * The ranks are threads, and each executes its own transfer. The straight copy moves as many bytes as all destinations
 * have, between the same two arenas. On the CPU it uses as many threads as the reshard; on a GPU it is the runtime's
 * copy within device memory. Each pair of neighbouring iterations gives one ratio, so that a slow machine slows both.
 *
 * time.c describes what is timed. The host's part on a GPU is not in these times; it shows in the time of an execute
 * among many, by the host's clock. */

#include "bench/bench/record.h"
#include "bench/bench/time.h"
#include "bench/cli/topology.h"

#include <math.h>
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
  bench_average average = (bench_average)b->o->average;
  for (int64_t i = -b->o->warmup; i < b->samples; i++) {
    double mine = bench_timed(b, local, bench_reshard, average) / (double)b->each;
    double theirs = bench_timed(b, local, bench_memcpy, BENCH_LONGEST);
    if (local != 0 || i < 0)
      continue;
    b->ours[i] = mine;
    b->straight[i] = theirs;
    cli_progress("bench: %s, iteration %lld of %lld", b->row.shape, (long long)i + 1, (long long)b->samples);
  }
}

static void synchronize_rank(bench_state *b, int64_t local) {
  if (b->s.cuda)
    CLI_TRY("", bench_streams(b, local)->synchronize(session_device(&b->s, local), b->stream[local]));
}

static void measure_loop(bench_state *b, int64_t local) {
  session_barrier(&b->s, local, true);
  double begin = rs_seconds();
  for (int64_t i = 0; i < b->samples; i++)
    bench_reshard(b, local, i % b->dst.sets);
  synchronize_rank(b, local);
  rank_pool_barrier(b->s.pool, true);
  double seconds = bench_combine(b, local, rs_seconds() - begin, BENCH_LONGEST);
  if (local == 0)
    b->row.loop_us = 1e6 * seconds / (double)(b->samples * b->each);
}

/* --- A row ------------------------------------------------------------------------------------------------------- */

typedef struct graph_set {
  const bench_state *b;
  int64_t set;
} graph_set;

static reshard_status execute_set(void *user, void *stream) {
  const graph_set *g = user;
  reshard_status status = RESHARD_SUCCESS;
  for (int64_t i = 0; i < g->b->each && status == RESHARD_SUCCESS; i++)
    status = reshard_execute_all(g->b->s.locals, g->b->transfers + g->set * g->b->s.locals, stream);
  return status;
}

static void capture_sets(bench_state *b) {
  gpu_graph *graphs = cli_alloc(b->dst.sets, sizeof *graphs);
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

/* Gives local rank 0 the largest of all ranks' numbers, and their sum where it is asked for. */
static int64_t gather_largest(bench_state *b, int64_t local, int64_t mine, int64_t *sum) {
  const double *all = session_gather(&b->s, local, (double)mine);
  int64_t most = mine, total = 0;
  for (int64_t r = 0; local == 0 && r < b->s.world; r++) {
    most = (int64_t)all[r] > most ? (int64_t)all[r] : most;
    total += (int64_t)all[r];
  }
  if (local == 0 && sum != NULL)
    *sum = total;
  return most;
}

/* Times of preparing, of one rank. */
typedef struct preparation {
  double plan, create, bind; /* seconds; bind may be NAN */
} preparation;

/* A rebind of the first set, to the arrays that it has. It is left out where the staging of old and new binding
 * together could be too much on some rank: it is collective where ranks read each other. */
static reshard_status time_bind(bench_state *b, int64_t local, const reshard_arrays *arrays, preparation *took) {
  reshard_transfer_info info;
  reshard_transfer_get_info(b->transfers[local], &info);
  const double *staged = session_gather(&b->s, local, (double)info.workspace_bytes);
  for (int64_t r = 0; r < b->s.world; r++)
    if (staged[r] > 1 << 28)
      return RESHARD_SUCCESS;
  double begin = rs_seconds();
  reshard_status status = reshard_transfer_rebind(b->transfers[local], arrays);
  took->bind = rs_seconds() - begin;
  return status;
}

static reshard_plan_options options_of(const bench_state *b, int64_t limit) {
  return (reshard_plan_options){RESHARD_PLAN_OPTIONS_INIT, .workspace_limit = limit, .on_cpu = !b->s.cuda,
                                .topology = b->topology.domain != NULL ? &b->topology : NULL};
}

static reshard_plan create_transfers(bench_state *b, int64_t local, preparation *took) {
  int64_t rank = b->s.first + local;
  void *stream = bench_stream(b, local);
  reshard_plan plan = NULL;
  reshard_plan_options options = options_of(b, b->o->workspace);
  reshard_transfer_options how = {RESHARD_TRANSFER_OPTIONS_INIT, .path = b->o->path, .collective = b->o->collective};
  bench_fill(&b->w, &b->s, true, &b->src, local, stream);
  bench_poison(&b->dst, local, stream);
  session_barrier(&b->s, local, true); /* so that the times of ranks have no others' filling in them */
  double begin = rs_seconds();
  reshard_status status = reshard_plan_create(b->w.n, b->entries, rank, &options, &plan);
  *took = (preparation){rs_seconds() - begin, 0, NAN};
  for (int64_t set = 0; set < b->dst.sets && status == RESHARD_SUCCESS; set++) {
    reshard_arrays arrays = {.size = RESHARD_ARRAYS_INIT,
                             .src = b->src.buffer + set * b->src.first[b->s.locals] + b->src.first[local],
                             .dst = b->dst.buffer + set * b->dst.first[b->s.locals] + b->dst.first[local]};
    reshard_transfer *made = &b->transfers[set * b->s.locals + local];
    begin = rs_seconds();
    status = reshard_transfer_create(plan, b->s.comms[local], &arrays, &how, made);
    if (set > 0)
      continue;
    took->create = rs_seconds() - begin;
    RS_THEN(status, time_bind(b, local, &arrays, took));
  }
  if (status != RESHARD_SUCCESS)
    cli_fail(status, "rank %lld: %s", (long long)rank, reshard_last_error());
  return plan;
}

static void describe_preparation(bench_state *b, int64_t local, const preparation *took) {
  double *slowest[3] = {&b->row.plan_us, &b->row.create_us, &b->row.bind_us};
  double mine[3] = {took->plan, took->create, took->bind};
  for (int i = 0; i < 3; i++) {
    const double *all = session_gather(&b->s, local, mine[i]);
    for (int64_t r = 0; local == 0 && r < b->s.world; r++)
      *slowest[i] = fmax(*slowest[i], 1e6 * all[r]); /* NAN is less than all */
  }
}

/* The info of the rank's plan in the rounds that the transfer takes, under the limit that holds there. Over MPI that
 * limit may be another one than the plan knows. */
static reshard_plan_info info_of_transfer(const bench_state *b, int64_t local, reshard_plan plan,
                                          const reshard_transfer_info *taken) {
  reshard_plan_options options = options_of(b, taken->workspace_limit);
  reshard_topology plain = b->topology; /* of a transfer that passes nothing on, whatever its plan says */
  reshard_plan_info info;
  reshard_plan limited = NULL;
  CLI_TRY("", reshard_plan_get_info(plan, &info));
  plain.chains = RESHARD_NO_CHAINS;
  bool replanned = info.chains > 0 && taken->streams == 0;
  if (replanned)
    options.topology = &plain;
  if ((taken->path == RESHARD_PATH_DIRECT && !replanned) || info.peers == 0)
    return info;
  if (taken->workspace_limit != info.workspace_limit || replanned) {
    CLI_TRY("", reshard_plan_create(b->w.n, b->entries, b->s.first + local, &options, &limited));
    CLI_TRY("", reshard_plan_get_info(limited, &info));
  }
  if (taken->streams > 0)
    CLI_TRY("", reshard_plan_get_info_at(limited != NULL ? limited : plan, 0, taken->streams, &info));
  if (taken->packs_skipped > info.packs_skipped &&
      taken->rounds == 1) { /* strided sources are read where they are, and nothing is cut */
    int64_t sent, unused;
    info.messages_sent = 0;
    for (int64_t i = 0; i < info.peers; i++) {
      CLI_TRY("", reshard_plan_peer(plan, i, &unused, &sent, &unused));
      info.messages_sent += sent > 0;
    }
  }
  if (taken->path != RESHARD_PATH_DIRECT &&
      taken->rounds > info.rounds) /* else messages go through what the communicator has, in rounds of its own */
    CLI_TRY("", reshard_plan_get_info_at(limited != NULL ? limited : plan, taken->rounds, taken->streams, &info));
  reshard_plan_destroy(limited);
  return info;
}

static void describe_row(bench_state *b, int64_t local, reshard_plan plan) {
  bench_row none, *row = local == 0 ? &b->row : &none;
  reshard_transfer_info taken;
  reshard_transfer_get_info(b->transfers[local], &taken);
  row->rounds = taken.rounds + taken.later_rounds;
  row->least_rounds = taken.least_rounds;
  row->limit = taken.workspace_limit;
  row->workspace = gather_largest(b, local, (int64_t)taken.workspace_bytes, NULL);
  const reshard_plan_info info = info_of_transfer(b, local, plan, &taken);
  (void)gather_largest(b, local, info.messages_sent, &row->messages);
  int64_t received = gather_largest(b, local, info.received_bytes, &row->wire_bytes);
  int64_t sent = gather_largest(b, local, info.sent_bytes, NULL);
  row->busiest_bytes = sent > received ? sent : received;
  int64_t lacks = gather_largest(b, local, info.lower_bound_bytes, &row->bound_bytes);
  int64_t alone = gather_largest(b, local, info.exclusive_bytes, NULL);
  row->busiest_bound = lacks > alone ? lacks : alone;
  if (local != 0)
    return;
  row->path = reshard_path_string(taken.path);
  row->collective = reshard_collective_string(taken.collective);
  snprintf(row->why, sizeof row->why, "%s", taken.collective_why);
}

/* Each execute writes to poisoned memory. */
static void check_row(bench_state *b, int64_t local) {
  for (int64_t i = 0; i < b->o->check; i++) {
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
}

/* The first execute, and what its messages bring between domains and within. */
static void run_first(bench_state *b, int64_t local) {
  reshard_comm_stats before, after;
  bench_row none, *row = local == 0 ? &b->row : &none;
  reshard_comm_get_stats(b->s.comms[local], &before);
  row->first_us = 1e6 * bench_timed_call(b, local, bench_execute);
  reshard_comm_get_stats(b->s.comms[local], &after);
  (void)gather_largest(b, local, after.between_bytes - before.between_bytes, &row->between_bytes);
  (void)gather_largest(b, local, after.within_bytes - before.within_bytes, &row->within_bytes);
  (void)gather_largest(b, local, after.leaving_bytes - before.leaving_bytes, &row->leaving_bytes);
}

static void run_rank(void *user, int64_t local) {
  bench_state *b = user;
  preparation took;
  reshard_plan plan = create_transfers(b, local, &took);
  describe_row(b, local, plan);
  describe_preparation(b, local, &took);
  if (!b->s.cuda && local == 0)
    choose_memcpy(b);
  session_barrier(&b->s, local, true);
  run_first(b, local);
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
    gpu_graph_destroy(&b->graphs[set]);
  rank_pool_barrier(b->s.pool, true);
  for (int64_t set = 0; set < b->dst.sets; set++)
    reshard_transfer_destroy(b->transfers[set * b->s.locals + local]);
  reshard_plan_destroy(plan);
}

/* The value below which a share of n ascending ones lies, between neighbours in proportion. */
static double quantile(const double *ascending, int64_t n, double share) {
  double at = share * (double)(n - 1);
  int64_t i = (int64_t)at;
  return i + 1 < n ? ascending[i] + (at - (double)i) * (ascending[i + 1] - ascending[i]) : ascending[n - 1];
}

/* The straight copy and ours beside it. Pairs count in which it has three quarters of its best speed: memory that
 * others use, too, slows it more than ours. */
static void finish_ratio(bench_state *b) {
  int64_t quiet = 0;
  double best = b->straight[0];
  double *ratios = cli_alloc(b->samples, sizeof *ratios), *copies = cli_alloc(b->samples, sizeof *copies);
  for (int64_t i = 1; i < b->samples; i++)
    best = b->straight[i] < best ? b->straight[i] : best;
  for (int64_t i = 0; i < b->samples; i++)
    if (0.75 * b->straight[i] <= best) {
      copies[quiet] = b->straight[i];
      ratios[quiet++] = b->ours[i] > 0 ? b->straight[i] / b->ours[i] : 0;
    }
  double theirs = cli_median(copies, quiet);
  b->row.ratio = cli_median(ratios, quiet);
  b->row.memcpy_gbps = theirs > 0 ? 1e-9 * (double)b->dst.moved / theirs : 0;
  free(copies);
  free(ratios);
}

static void finish_row(bench_state *b) {
  bench_row *row = &b->row;
  int64_t n = b->samples;
  finish_ratio(b);
  double mine = cli_median(b->ours, n); /* sorts them */
  row->time_us = 1e6 * mine;
  row->min_us = 1e6 * b->ours[0];
  row->p50_us = 1e6 * quantile(b->ours, n, 0.50);
  row->p95_us = 1e6 * quantile(b->ours, n, 0.95);
  row->p99_us = 1e6 * quantile(b->ours, n, 0.99);
  row->max_us = 1e6 * b->ours[n - 1];
  row->algbw = mine > 0 ? 1e-9 * (double)row->bytes / mine : 0;
  row->busbw = mine > 0 ? 1e-9 * (double)row->busiest_bytes / mine : 0;
  if (b->traced)
    bench_trace_phases(b);
}

/* Gives the first rank of an empty source arena as many bytes as the destination has, for the straight copy to read. */
static void lend_extent(bench_side *from, const bench_side *to, int64_t p) {
  if (from->arena[p].extent == 0 && to->arena[p].extent > 0)
    from->end[p] = from->arena[p].extent = to->arena[p].extent;
}

/* Every process skips what does not fit in one of them. */
static void agree_skip(void *user, int64_t local) {
  bench_state *b = user;
  const double *all = session_gather(&b->s, local, b->skipped ? 1 : 0);
  bool any = false;
  for (int64_t r = 0; r < b->s.world; r++)
    any = any || all[r] != 0;
  rank_pool_barrier(b->s.pool, true);
  if (local == 0 && any && !b->skipped) {
    b->skipped = true;
    snprintf(b->why_skipped, sizeof b->why_skipped, "it does not fit where another process runs");
  }
}

/* Takes the memory of both sides, where it is there. Only ranks that are threads on GPUs have several sets: elsewhere
 * links are timed, and creating transfers takes long. */
static void alloc_sides(bench_state *b) {
  int64_t most = 0, sets = 1;
  workload_make_scales(&b->w);
  bench_side_create(&b->w, &b->s, true, b->o->shift, &b->src);
  bench_side_create(&b->w, &b->s, false, b->o->shift, &b->dst);
  for (int64_t p = 0; p < b->dst.narenas; p++) {
    int64_t bytes = b->src.arena[p].extent + b->dst.arena[p].extent;
    most = bytes > most ? bytes : most;
    lend_extent(&b->src, &b->dst, p);
  }
  if (b->s.cuda && strcmp(b->s.comm, "local") == 0)
    sets = gpu_sets(b->l2, most);
  b->row.sets = sets;
  b->row.source_bytes = b->src.bytes;
  b->row.destination_bytes = b->dst.bytes;
  b->skipped = !bench_sides_fit(&b->s, &b->src, &b->dst, sets, b->why_skipped, sizeof b->why_skipped);
  if (b->s.processes.n > 1)
    rank_pool_run(b->s.pool, b->s.locals, agree_skip, b);
  if (b->skipped)
    return;
  bench_side_alloc(&b->src, sets);
  bench_side_alloc(&b->dst, sets);
}

/* The dtype of all tensors on a side. */
static const char *common_dtype(const workload *w, bool source, char text[RS_BLOCKS_TEXT]) {
  char other[RS_BLOCKS_TEXT];
  const char *first = w->n > 0 ? workload_dtype_text(&w->tensor[0], source, text) : "-";
  for (int64_t t = 1; t < w->n; t++)
    if (strcmp(workload_dtype_text(&w->tensor[t], source, other), first) != 0)
      return "mixed";
  return first;
}

static void begin_row(bench_state *b) {
  const workload *w = &b->w;
  bench_row *row = &b->row;
  bench_row last = *row;
  *row = (bench_row){.bytes = w->bytes,
                     .cycle = last.cycle,
                     .name = last.name,
                     .src = last.src,
                     .dst = last.dst,
                     .model = last.model,
                     .mesh = last.mesh,
                     .mesh_dst = last.mesh_dst};
  row->dtype = common_dtype(w, true, row->scaled[0]);
  row->dst_dtype = common_dtype(w, false, row->scaled[1]);
  row->plan_us = row->create_us = row->bind_us = row->loop_us = row->host_us = row->group_us = NAN;
  row->blocking_group_us = row->blocking_host_us = row->group_graph_us = row->blocking_graph_us = NAN;
  for (int i = 0; i < BENCH_PHASES; i++)
    row->phase_us[i] = NAN;
  for (int64_t t = 0; t < w->n; t++)
    row->elements += reshard_layout_elements(w->tensor[t].src);
  if (w->model != NULL)
    snprintf(row->shape, sizeof row->shape, "%lld tensors", (long long)w->n);
  else
    rs_shape_text(row->shape, w->tensor->ndim, w->tensor->shape);
}

void bench_run_row(bench_state *b) {
  begin_row(b);
  b->hold = 1;
  b->entries = workload_entries(&b->w);
  if (b->o->topology != NULL)
    cli_read_topology(b->o->topology, b->w.world, &b->topology);
  alloc_sides(b);
  if (!b->skipped) {
    cli_progress("bench: %s, preparing", b->row.shape);
    rank_pool_run(b->s.pool, b->s.locals, run_rank, b);
    cli_progress_clear();
    finish_row(b);
  }
  free(b->graphs);
  b->graphs = NULL;
  bench_side_free(&b->src);
  bench_side_free(&b->dst);
  free((int64_t *)b->topology.domain);
  b->topology.domain = NULL;
  free(b->entries);
}
