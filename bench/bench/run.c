/* Measures a row: executes a prepared transfer again and again, alternating with a straight copy.
 *
 * The ranks are threads, and each executes for itself, as ranks do. The straight copy moves as many bytes as all
 * destinations have, between the same two pieces of memory: on the CPU by as many threads, on a GPU by its own copy
 * from device memory to device memory. Each pair of neighbouring iterations gives one ratio, so that what slows the
 * machine down slows both.
 *
 * bench_time.c says what is timed. On a GPU what the host needs is not in it, and shows in another number: the time of
 * an execute in a loop of them, by the host's clock. */
#include "bench/bench/bench.h"

/* The straight copies of the CPU: as good as the library can make them, which is what ours should be compared with. */
#include "device/cpu/cpu.h"
#include "device/stream.h"

#include <stdlib.h>
#include <string.h>

static const rs_device_streams *streams_of(const bench_state *b, int64_t local) {
  return session_device(&b->s, local)->streams;
}

/* Which straight copy is the faster one here, by the medians of a few of each. */
static void choose_straight(bench_state *b) {
  double times[2][5];
  bench_straight(b, 0, 0);
  for (int i = 0; i < 5; i++)
    for (int s = 0; s < 2; s++) {
      double begin = cli_seconds();
      b->streaming = s == 1;
      bench_straight(b, 0, 0);
      times[s][i] = cli_seconds() - begin;
    }
  b->streaming = cli_median(times[1], 5) < cli_median(times[0], 5);
}

static void measure(bench_state *b, int64_t local) {
  for (int64_t i = -b->o->warmup; i < b->o->iterations; i++) {
    double mine = bench_timed(b, local, bench_ours), theirs = bench_timed(b, local, bench_straight);
    if (local != 0 || i < 0)
      continue;
    b->ours[i] = mine;
    b->straight[i] = theirs;
    cli_progress("bench: %s, iteration %lld of %lld", b->row.shape, (long long)i + 1, (long long)b->o->iterations);
  }
}

static void synchronize(bench_state *b, int64_t local) {
  if (b->s.cuda)
    CLI_TRY("", streams_of(b, local)->synchronize(session_device(&b->s, local), b->stream[local]));
}

static void measure_loop(bench_state *b, int64_t local) {
  session_meet(&b->s, local, true);
  double begin = cli_seconds();
  for (int64_t i = 0; i < b->o->iterations; i++)
    bench_ours(b, local, i % b->dst.sets);
  synchronize(b, local);
  rank_pool_meet(b->s.pool, true);
  double seconds = bench_longest(b, local, cli_seconds() - begin);
  if (local == 0)
    b->row.loop_us = 1e6 * seconds / (double)b->o->iterations;
}

/* --- A row
 * ------------------------------------------------------------------------------------------------------------- */

typedef struct giving {
  const bench_state *b;
  int64_t set;
} giving;

static reshard_status give(void *user, void *stream) {
  const giving *g = user;
  return reshard_execute_all(g->b->s.locals, g->b->transfers + g->set * g->b->s.locals, stream);
}

static void capture_all(bench_state *b) {
  gpu_graph **graphs = cli_alloc(b->dst.sets, sizeof *graphs);
  for (giving g = {b, 0}; g.set < b->dst.sets; g.set++)
    CLI_TRY("-G: ", gpu_capture(session_device(&b->s, 0), b->stream[0], give, &g, &graphs[g.set]));
  b->graphs = graphs;
}

/* After an execute without a graph: what is done at the first one only is not captured. */
static void capture(bench_state *b, int64_t local) {
  for (int64_t set = 0; set < b->dst.sets; set++)
    bench_ours(b, local, set);
  synchronize(b, local);
  session_meet(&b->s, local, true);
  if (local == 0)
    capture_all(b);
  rank_pool_meet(b->s.pool, true);
}

static reshard_plan prepare(bench_state *b, int64_t local) {
  int64_t rank = b->s.first + local;
  void *stream = bench_stream(b, local);
  reshard_plan plan = NULL;
  reshard_plan_options options = {RESHARD_PLAN_OPTIONS_INIT, b->o->workspace, 0, NULL};
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

static void tell_row(bench_state *b, int64_t local, reshard_plan plan) {
  reshard_plan_info info;
  reshard_transfer_info taken;
  reshard_plan_get_info(plan, &info);
  int64_t flow = info.sent_bytes > info.received_bytes ? info.sent_bytes : info.received_bytes;
  const double *flows = session_gather(&b->s, local, (double)flow);
  if (local != 0)
    return;
  for (int64_t r = 0; r < b->s.world; r++)
    b->row.widest_flow = (int64_t)flows[r] > b->row.widest_flow ? (int64_t)flows[r] : b->row.widest_flow;
  reshard_transfer_get_info(b->transfers[0], &taken);
  b->row.path = taken.path == RESHARD_PATH_DIRECT ? "direct" : "packed";
  b->row.collective = reshard_collective_string(taken.collective);
  snprintf(b->row.why, sizeof b->row.why, "%s", taken.collective_why);
}

static void check(bench_state *b, int64_t local) {
  bench_poison(&b->dst, local, bench_stream(b, local));
  session_meet(&b->s, local, true);
  for (int64_t set = 0; set < b->dst.sets; set++)
    bench_ours(b, local, set);
  synchronize(b, local);
  rank_pool_meet(b->s.pool, true);
  int64_t wrong = bench_wrong(&b->w, &b->s, false, &b->dst, local, bench_stream(b, local));
  const double *all = session_gather(&b->s, local, (double)wrong);
  for (int64_t r = 0; local == 0 && r < b->s.world; r++)
    b->row.wrong += (int64_t)all[r];
}

static void run_rank(void *user, int64_t local) {
  bench_state *b = user;
  reshard_plan plan = prepare(b, local);
  tell_row(b, local, plan);
  if (!b->s.cuda && local == 0)
    choose_straight(b);
  session_meet(&b->s, local, true);
  if (b->o->graph)
    capture(b, local);
  measure(b, local);
  if (b->s.cuda) {
    measure_loop(b, local);
    bench_host_times(b, local, plan);
  }
  session_meet(&b->s, local, true); /* the last straight copy is over */
  if (b->o->check)
    check(b, local);
  if (b->traced)
    bench_trace_row(b, local);
  session_meet(&b->s, local, true);
  for (int64_t set = 0; local == 0 && b->graphs != NULL && set < b->dst.sets; set++)
    gpu_graph_destroy(b->graphs[set]);
  rank_pool_meet(b->s.pool, true);
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

/* What the straight copy reads where the ranks of a place bring nothing: it is given to the first of them. */
static void lend(bench_side *from, const bench_side *to, int64_t p) {
  if (from->place[p].extent == 0 && to->place[p].extent > 0)
    from->end[p] = from->place[p].extent = to->place[p].extent;
}

/* Sets of buffers where the ranks are threads on GPUs; where they are connected, what is timed is the links, and making
 * transfers is not free. */
static void take_memory(bench_state *b) {
  int64_t most = 0, sets = 1;
  bench_side_lay(&b->w, &b->s, true, &b->src);
  bench_side_lay(&b->w, &b->s, false, &b->dst);
  for (int64_t p = 0; p < b->dst.nplaces; p++) {
    int64_t bytes = b->src.place[p].extent + b->dst.place[p].extent;
    most = bytes > most ? bytes : most;
    lend(&b->src, &b->dst, p);
  }
  if (b->s.cuda && strcmp(b->s.comm, "local") == 0)
    sets = gpu_sets(b->l2, most);
  bench_sides_check(&b->s, &b->src, &b->dst, sets);
  bench_side_take(&b->src, sets);
  bench_side_take(&b->dst, sets);
  b->row.sets = sets;
}

void bench_run_row(bench_state *b) {
  what *w = &b->w;
  b->row = (bench_row){.bytes = w->bytes, .dtype = w->n > 0 ? reshard_dtype_string(w->tensor[0].dtype) : "-"};
  for (int64_t t = 0; t < w->n; t++) {
    b->row.elements += reshard_layout_elements(w->tensor[t].src);
    if (w->tensor[t].dtype != w->tensor[0].dtype)
      b->row.dtype = "mixed";
  }
  if (w->model != NULL)
    snprintf(b->row.shape, sizeof b->row.shape, "%lld tensors", (long long)w->n);
  else
    what_shape_text(b->row.shape, w->tensor->ndim, w->tensor->shape);
  b->hold = 1;
  b->entries = what_entries(w);
  take_memory(b);
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

/* --- What all rows share
 * ----------------------------------------------------------------------------------------------- */

static void start_cpu(bench_state *b) {
  reshard_isa isa = RESHARD_ISA_AUTO;
  const char *forced = getenv("RESHARD_ISA");
  for (int i = 0; forced != NULL && i < RESHARD_ISA_COUNT; i++)
    if (strcmp(forced, reshard_isa_string((reshard_isa)i)) == 0)
      isa = (reshard_isa)i;
  CLI_TRY("", rs_device_cpu_create(b->s.threads, isa, &b->cpu));
}

static void start_gpu(bench_state *b) {
  const session *s = &b->s;
  gpu_info info;
  b->stream = cli_alloc(s->locals, sizeof *b->stream);
  b->done = cli_alloc(s->locals, sizeof *b->done);
  b->scratch = cli_alloc(s->ndevices, sizeof *b->scratch);
  for (int64_t l = 0; l < s->locals; l++) {
    CLI_TRY("", streams_of(b, l)->create(session_device(s, l), &b->stream[l]));
    CLI_TRY("", streams_of(b, l)->event_create(session_device(s, l), &b->done[l]));
  }
  CLI_TRY("", gpu_info_read(session_device(s, 0)->index, &info));
  snprintf(b->gpu, sizeof b->gpu, "%s", info.name);
  b->l2 = info.l2;
  b->scratch_bytes = (size_t)gpu_flushed(info.l2);
  for (int64_t d = 0; d < s->ndevices; d++)
    CLI_TRY("", session_device(s, d)->memory->alloc(session_device(s, d), b->scratch_bytes, &b->scratch[d]));
  CLI_TRY("", gpu_time_create(session_device(s, 0), &b->begin));
  CLI_TRY("", gpu_time_create(session_device(s, 0), &b->end));
}

void bench_start(bench_state *b) {
  const cli_options *o = b->o;
  session_connect(&b->s, b->w.world);
  b->ends = cli_alloc(b->s.locals, sizeof *b->ends);
  b->transfers = cli_alloc(GPU_MOST_SETS * b->s.locals, sizeof(reshard_transfer));
  b->ours = cli_alloc(o->iterations, sizeof *b->ours);
  b->straight = cli_alloc(o->iterations, sizeof *b->straight);
  if (b->s.cuda)
    start_gpu(b);
  else
    start_cpu(b);
}

static void finish_gpu(bench_state *b) {
  const session *s = &b->s;
  streams_of(b, 0)->event_destroy(session_device(s, 0), b->begin);
  streams_of(b, 0)->event_destroy(session_device(s, 0), b->end);
  for (int64_t d = 0; d < s->ndevices; d++)
    session_device(s, d)->memory->free(session_device(s, d), b->scratch[d]);
  for (int64_t l = 0; l < s->locals; l++) {
    streams_of(b, l)->event_destroy(session_device(s, l), b->done[l]);
    streams_of(b, l)->destroy(session_device(s, l), b->stream[l]);
  }
  free(b->stream);
  free(b->done);
  free(b->scratch);
}

void bench_finish(bench_state *b) {
  if (b->s.cuda)
    finish_gpu(b);
  else
    b->cpu->destroy(b->cpu);
  trace_destroy(b->trace);
  free(b->ends);
  free(b->transfers);
  free(b->ours);
  free(b->straight);
  session_end(&b->s);
  what_free(&b->w);
}
