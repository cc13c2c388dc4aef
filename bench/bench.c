/* reshard bench: executes a prepared transfer again and again, alternating with a straight copy.
 *
 * The ranks are threads of this process, and each executes for itself, as ranks do. An iteration's time is from the
 * opening of a barrier to the return of the last rank. The straight copy moves as many bytes as all destinations have,
 * between the same two pieces of memory, by as many threads; each pair of neighbouring iterations gives one ratio, so
 * that what slows the machine down slows both. */
#include "bench_data.h"
#include "commands.h"
#include "json.h"
#include "machine.h"
#include "ranks.h"

/* The straight copies: as good as the library can make them, which is what ours should be compared with. */
#include "device/cpu.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct bench_row {
  int64_t bytes, elements, wrong, widest_flow;
  double time_us, algbw, busbw, memcpy_gbps, ratio;
  char shape[WHAT_SHAPE_TEXT];
  const char *dtype, *path;
} bench_row;

typedef struct bench_state {
  const cli_options *o;
  what w;
  rank_pool *pool;
  reshard_comm *comms;
  rs_device *device; /* of the straight copy */
  int threads;
  bool streaming; /* the faster straight copy */
  reshard_entry *entries;
  bench_side src, dst;
  double *ours, *straight, *ends; /* per iteration; per rank */
  int64_t *wrong;                 /* per rank */
  bench_row row;
} bench_state;

static void straight_copy(bench_state *b, bool streaming) {
  int64_t source = b->src.extent;
  for (int64_t done = 0; done < b->dst.extent;) { /* a replicated destination is larger than the source */
    int64_t n = b->dst.extent - done < source ? b->dst.extent - done : source;
    rs_device_cpu_straight(b->device, (char *)b->dst.memory + done, (const char *)b->src.memory, n, streaming);
    done += n;
  }
}

static double time_straight(bench_state *b, bool streaming) {
  double begin = cli_seconds();
  straight_copy(b, streaming);
  return cli_seconds() - begin;
}

/* Which straight copy is the faster one here, by the medians of a few of each. */
static void choose_straight(bench_state *b) {
  double times[2][5];
  time_straight(b, false);
  for (int i = 0; i < 5; i++)
    for (int s = 0; s < 2; s++)
      times[s][i] = time_straight(b, s == 1);
  b->streaming = cli_median(times[1], 5) < cli_median(times[0], 5);
}

static void fail_rank(reshard_status status, int64_t rank) {
  cli_fail(status, "rank %lld: %s", (long long)rank, reshard_last_error());
}

static void execute(reshard_transfer transfer, int64_t rank) {
  reshard_status status = reshard_execute(transfer, NULL);
  if (status != RESHARD_SUCCESS)
    fail_rank(status, rank);
}

static void measure(bench_state *b, reshard_transfer transfer, int64_t rank) {
  for (int64_t i = -b->o->warmup; i < b->o->iterations; i++) {
    rank_pool_meet(b->pool, true);
    double begin = rank_pool_opened(b->pool);
    execute(transfer, rank);
    b->ends[rank] = cli_seconds();
    rank_pool_meet(b->pool, true);
    if (rank != 0)
      continue;
    double end = begin;
    for (int64_t r = 0; r < b->w.world; r++)
      end = b->ends[r] > end ? b->ends[r] : end;
    double straight = time_straight(b, b->streaming);
    if (i < 0)
      continue;
    b->ours[i] = end - begin;
    b->straight[i] = straight;
    cli_progress("bench: %s, iteration %lld of %lld", b->row.shape, (long long)i + 1, (long long)b->o->iterations);
  }
}

static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

static void run_rank(void *user, int64_t rank) {
  bench_state *b = user;
  reshard_plan plan = NULL;
  reshard_transfer transfer = NULL;
  reshard_plan_options options = {RESHARD_PLAN_OPTIONS_INIT, b->o->workspace, 0, NULL};
  reshard_transfer_options how = {RESHARD_TRANSFER_OPTIONS_INIT, .path = b->o->path};
  reshard_arrays arrays = {.size = RESHARD_ARRAYS_INIT,
                           .src = b->src.buffer + b->src.first[rank],
                           .dst = b->dst.buffer + b->dst.first[rank]};
  bench_fill(&b->w, true, &b->src, rank);
  bench_poison(&b->dst, b->w.world, rank);
  reshard_status status = reshard_plan_create(b->w.n, b->entries, rank, &options, &plan);
  if (status == RESHARD_SUCCESS)
    status = reshard_transfer_create(plan, b->comms[rank], &arrays, &how, &transfer);
  if (status != RESHARD_SUCCESS)
    fail_rank(status, rank);
  reshard_plan_info info;
  reshard_plan_get_info(plan, &info);
  b->wrong[rank] = larger(info.sent_bytes, info.received_bytes);
  rank_pool_meet(b->pool, true);
  if (rank == 0) {
    reshard_transfer_info taken;
    reshard_transfer_get_info(transfer, &taken);
    b->row.path = taken.path == RESHARD_PATH_DIRECT ? "direct" : "packed";
    for (int64_t r = 0; r < b->w.world; r++)
      b->row.widest_flow = larger(b->row.widest_flow, b->wrong[r]);
    choose_straight(b);
  }
  measure(b, transfer, rank);
  b->wrong[rank] = 0;
  rank_pool_meet(b->pool, true); /* the last straight copy is over */
  if (b->o->check) {
    bench_poison(&b->dst, b->w.world, rank);
    execute(transfer, rank);
    b->wrong[rank] = bench_wrong(&b->w, false, &b->dst, rank);
  }
  rank_pool_meet(b->pool, true);
  reshard_transfer_destroy(transfer);
  reshard_plan_destroy(plan);
}

static void finish_row(bench_state *b) {
  bench_row *row = &b->row;
  int64_t n = b->o->iterations;
  double *ratios = cli_alloc(n, sizeof *ratios);
  for (int64_t i = 0; i < n; i++)
    ratios[i] = b->ours[i] > 0 ? b->straight[i] / b->ours[i] : 0;
  double ours = cli_median(b->ours, n), straight = cli_median(b->straight, n);
  row->ratio = cli_median(ratios, n);
  row->time_us = 1e6 * ours;
  row->algbw = ours > 0 ? 1e-9 * (double)row->bytes / ours : 0;
  row->busbw = ours > 0 ? 1e-9 * (double)row->widest_flow / ours : 0;
  row->memcpy_gbps = straight > 0 ? 1e-9 * (double)b->dst.bytes / straight : 0;
  for (int64_t r = 0; r < b->w.world; r++)
    row->wrong += b->wrong[r];
  free(ratios);
}

static void run_row(bench_state *b) {
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
  b->entries = what_entries(w);
  bench_side_make(w, true, &b->src);
  bench_side_make(w, false, &b->dst);
  cli_progress("bench: %s, preparing", b->row.shape);
  rank_pool_run(b->pool, w->world, run_rank, b);
  cli_progress_clear();
  finish_row(b);
  bench_side_free(&b->src);
  bench_side_free(&b->dst);
  free(b->entries);
}

static void print_head(const bench_state *b, const machine *m) {
  const cli_options *o = b->o;
  char limit[CLI_BYTES_TEXT + 8] = "none", bytes[CLI_BYTES_TEXT];
  if (o->workspace > 0)
    snprintf(limit, sizeof limit, "%s", cli_bytes_text(bytes, (double)o->workspace));
  printf("# reshard %s  %s -> %s\n", reshard_version(), o->src, o->dst);
  printf("# %s, %d cores, %s; %lld ranks are threads of 1 process, %d copy threads; path %s, workspace limit %s\n",
         m->processor, m->cores, m->isa, (long long)b->w.world, b->threads,
         o->path == RESHARD_PATH_AUTO     ? "auto"
         : o->path == RESHARD_PATH_DIRECT ? "direct"
                                          : "packed",
         limit);
  printf("# %lld iterations after %lld to warm up; time: median; memcpy: straight copy of as many bytes as the "
         "destinations have,\n"
         "# alternating with ours; ratio: its time / ours, median of pairs\n#\n",
         (long long)o->iterations, (long long)o->warmup);
  printf("# %13s %13s %8s %12s %8s %8s %8s %7s %8s\n", "size", "count", "type", "time", "algbw", "busbw", "memcpy",
         "ratio", "#wrong");
  printf("# %13s %13s %8s %12s %8s %8s %8s %7s %8s\n", "(B)", "(elements)", "", "(us)", "(GB/s)", "(GB/s)", "(GB/s)",
         "", "");
}

static void print_row(const bench_state *b) {
  const bench_row *r = &b->row;
  char wrong[24] = "N/A";
  if (b->o->check)
    snprintf(wrong, sizeof wrong, "%lld", (long long)r->wrong);
  printf("  %13lld %13lld %8s %12.2f %8.2f %8.2f %8.2f %7.3f %8s\n", (long long)r->bytes, (long long)r->elements,
         r->dtype, r->time_us, r->algbw, r->busbw, r->memcpy_gbps, r->ratio, wrong);
  fflush(stdout);
}

static void json_row(json *j, const bench_state *b) {
  const bench_row *r = &b->row;
  cli_json_line(j);
  cli_json_open(j, NULL, '{');
  cli_json_int(j, "bytes", r->bytes);
  cli_json_string(j, "shape", r->shape);
  cli_json_string(j, "dtype", r->dtype);
  cli_json_real(j, "time_us", r->time_us);
  cli_json_real(j, "algbw", r->algbw);
  cli_json_real(j, "busbw", r->busbw);
  cli_json_real(j, "memcpy_gbps", r->memcpy_gbps);
  cli_json_real(j, "ratio", r->ratio);
  if (b->o->check)
    cli_json_int(j, "wrong", r->wrong);
  else
    cli_json_null(j, "wrong");
  cli_json_string(j, "path", r->path);
  cli_json_close(j, '}');
}

static void json_head(json *j, const bench_state *b, const machine *m) {
  const cli_options *o = b->o;
  cli_json_open(j, NULL, '{');
  cli_json_int(j, "version", 1);
  cli_json_string(j, "reshard", reshard_version());
  machine_json(j, "machine", m);
  cli_json_open(j, "options", '{');
  if (o->model != NULL)
    cli_json_string(j, "model", o->model);
  else
    cli_json_string(j, "shape", o->shape);
  if (o->permutation != NULL)
    cli_json_string(j, "permutation", o->permutation);
  cli_json_string(j, "src", o->src);
  cli_json_string(j, "dst", o->dst);
  cli_json_int(j, "ranks", b->w.world);
  cli_json_string(j, "device", "cpu");
  cli_json_string(j, "comm", "local");
  cli_json_string(j, "path",
                  o->path == RESHARD_PATH_AUTO     ? "auto"
                  : o->path == RESHARD_PATH_DIRECT ? "direct"
                                                   : "packed");
  cli_json_int(j, "workspace_bytes", o->workspace);
  cli_json_int(j, "threads", b->threads);
  cli_json_int(j, "iterations", o->iterations);
  cli_json_int(j, "warmup", o->warmup);
  cli_json_bool(j, "check", o->check);
  cli_json_close(j, '}');
  cli_json_open(j, "rows", '[');
}

/* The shape with dim 0 such that the tensor is the largest within the size. */
static void scale(bench_state *b, const what_tensor *base, int64_t size) {
  int64_t shape[RESHARD_MAX_DIMS], row = (int64_t)reshard_dtype_size(base->dtype);
  if (base->ndim == 0)
    cli_exit(EXIT_USAGE, "-b: a scalar has no dim 0 to scale");
  memcpy(shape, base->shape, sizeof shape);
  for (int d = 1; d < base->ndim; d++)
    row *= shape[d]; /* no overflow: the given shape has been checked, with dim 0 of 1 or more */
  if (row == 0)
    cli_exit(EXIT_USAGE, "-b: a tensor without elements cannot be scaled");
  if (size < row)
    cli_exit(EXIT_USAGE, "-b: %lld bytes are less than one row of %lld bytes", (long long)size, (long long)row);
  shape[0] = size / row;
  what_set_shape(&b->w, base->ndim, shape);
}

static int64_t next_size(const cli_options *o, int64_t size) {
  if (o->size_increment > 0)
    return size > INT64_MAX - o->size_increment ? INT64_MAX : size + o->size_increment;
  double grown = (double)size * (o->size_factor > 0 ? o->size_factor : 2);
  return grown >= 9e18 ? INT64_MAX : (int64_t)grown > size ? (int64_t)grown : size + 1;
}

static void check_sizes(cli_options *o) {
  if (o->size_increment > 0 && o->size_factor > 0)
    cli_exit(EXIT_USAGE, "-i and -f are both given");
  if (o->size_begin == 0 && o->size_end == 0) {
    if (o->size_increment > 0 || o->size_factor > 0)
      cli_exit(EXIT_USAGE, "%s needs -b and -e", o->size_increment > 0 ? "-i" : "-f");
    return;
  }
  if (o->model != NULL)
    cli_exit(EXIT_USAGE, "-b and -e scale a --shape, not a --model");
  if (o->size_begin == 0)
    cli_exit(EXIT_USAGE, "-e is given without -b");
  if (o->size_end == 0)
    o->size_end = o->size_begin;
  if (o->size_end < o->size_begin)
    cli_exit(EXIT_USAGE, "-e %lld is below -b %lld", (long long)o->size_end, (long long)o->size_begin);
}

static void start(bench_state *b) {
  const cli_options *o = b->o;
  b->threads = o->threads > 0 ? o->threads : cli_cores();
  b->pool = rank_pool_create();
  b->comms = cli_alloc(b->w.world, sizeof *b->comms);
  b->ends = cli_alloc(b->w.world, sizeof *b->ends);
  b->wrong = cli_alloc(b->w.world, sizeof *b->wrong);
  b->ours = cli_alloc(o->iterations, sizeof *b->ours);
  b->straight = cli_alloc(o->iterations, sizeof *b->straight);
  reshard_local_options local = {RESHARD_LOCAL_OPTIONS_INIT, b->threads, RESHARD_ISA_AUTO, 0, NULL, 0};
  CLI_TRY("", reshard_comm_create_local(b->w.world, &local, b->comms));
  reshard_isa isa = RESHARD_ISA_AUTO;
  const char *forced = getenv("RESHARD_ISA");
  for (int i = 0; forced != NULL && i < RESHARD_ISA_COUNT; i++)
    if (strcmp(forced, reshard_isa_string((reshard_isa)i)) == 0)
      isa = (reshard_isa)i;
  CLI_TRY("", rs_device_cpu_create(b->threads, isa, &b->device));
}

static void finish(bench_state *b) {
  rank_pool_destroy(b->pool);
  for (int64_t r = 0; r < b->w.world; r++)
    reshard_comm_destroy(b->comms[r]);
  b->device->ops->destroy(b->device);
  free(b->comms);
  free(b->ends);
  free(b->wrong);
  free(b->ours);
  free(b->straight);
  what_free(&b->w);
}

/* All rows; returns the elements that were wrong. */
static int64_t run(bench_state *b, const machine *m) {
  const cli_options *o = b->o;
  bool quiet = o->json != NULL && strcmp(o->json, "-") == 0;
  const what_tensor base = b->w.n > 0 ? b->w.tensor[0] : (what_tensor){0};
  int64_t wrong = 0, rows = 0;
  double busbw = 0;
  json j = {0};
  if (o->size_begin > 0)
    scale(b, &base, o->size_begin); /* what is wrong with it is said before anything is printed */
  if (o->json != NULL)
    json_head(&j, b, m);
  if (!quiet)
    print_head(b, m);
  for (int64_t size = o->size_begin;; size = next_size(o, size)) {
    if (o->size_begin > 0)
      scale(b, &base, size);
    run_row(b);
    wrong += b->row.wrong;
    busbw += b->row.busbw;
    rows++;
    if (!quiet)
      print_row(b);
    if (o->json != NULL)
      json_row(&j, b);
    if (o->size_begin == 0 || size >= o->size_end || next_size(o, size) > o->size_end)
      break;
  }
  if (!quiet) {
    if (o->check)
      printf("# Out of bounds values : %lld %s\n", (long long)wrong, wrong == 0 ? "OK" : "FAILED");
    printf("# Avg bus bandwidth    : %.4g\n", busbw / (double)rows);
  }
  if (o->json != NULL) {
    cli_json_close(&j, ']');
    cli_json_int(&j, "out_of_bounds", wrong);
    cli_json_real(&j, "average_busbw", busbw / (double)rows);
    cli_json_close(&j, '}');
    cli_json_write(&j, o->json);
  }
  return wrong;
}

int command_bench(int argc, char **argv) {
  cli_options o;
  machine m;
  cli_read_options(argc, argv, COMMAND_BENCH,
                   "usage: reshard bench (--shape S [--dtype T] | --model NAME|FILE) --src L --dst L [OPTION]...\n\n"
                   "Measures a reshard beside a straight copy of as many bytes. Flags and columns are those of "
                   "nccl-tests; algbw is global\n"
                   "bytes / time, busbw what the busiest rank sends or receives / time. Packed without --workspace "
                   "stages whole messages;\n"
                   "a limit of a few MiB, which stays in the cache, is faster.\n",
                   &o);
  check_sizes(&o);
  if (o.rank_threads > 0 && o.ranks > 0 && o.rank_threads != o.ranks)
    cli_exit(EXIT_USAGE, "-t %lld and --ranks %lld differ: there is one process", (long long)o.rank_threads,
             (long long)o.ranks);
  if (o.rank_threads > 0)
    o.ranks = o.rank_threads;
  bench_state b = {.o = &o};
  what_read(&o, &b.w);
  machine_read(&m);
  start(&b);
  int64_t wrong = run(&b, &m);
  finish(&b);
  if (wrong > 0)
    cli_exit(EXIT_FAILED, "%lld elements are wrong", (long long)wrong);
  return EXIT_DONE;
}
