/* reshard bench: the sizes that are measured, and the command. */
#include "bench/bench/bench.h"
#include "bench/bench/record.h"
#include "bench/bench/report.h"
#include "bench/bench/suite.h"
#include "bench/cli/rule_uses.h"
#include "bench/cli/topology.h"

#include <stdlib.h>
#include <string.h>

static int64_t bytes_of_shape(int64_t width, int ndim, const int64_t *shape) {
  for (int d = 0; d < ndim; d++)
    width *= shape[d]; /* no overflow: the given shape has been checked, and dims only shrink here */
  return width;
}

/* The squarest tensor of 2^k elements within the size, whose rows are as many as its columns or twice as many. */
static void set_square(bench_state *b, int64_t elements) {
  int k = 63 - __builtin_clzll((unsigned long long)elements);
  workload_set_shape(&b->w, 2, (int64_t[]){(int64_t)1 << (k + 1) / 2, (int64_t)1 << k / 2});
}

/* Sets the shape so that the tensor is the largest within the size. Dim 0 is scaled while every rank can have a row, as
 * far as the tensor that was given has so many. Below that the largest dim is halved again and again. */
static void scale_shape(bench_state *b, const workload_tensor *base, int64_t size) {
  int64_t shape[RESHARD_MAX_DIMS], width = (int64_t)reshard_dtype_size(base->dtype);
  if (base->ndim == 0)
    cli_exit(EXIT_USAGE, "-b: a scalar has no dim 0 to scale");
  memcpy(shape, base->shape, sizeof shape);
  shape[0] = 1;
  int64_t row = bytes_of_shape(width, base->ndim, shape);
  if (row == 0 || base->shape[0] == 0)
    cli_exit(EXIT_USAGE, "-b: a tensor without elements cannot be scaled");
  if (size < width)
    cli_exit(EXIT_USAGE, "-b: %lld bytes are less than an element of %lld bytes", (long long)size, (long long)width);
  if (b->squares) {
    set_square(b, size / width);
    return;
  }
  int64_t least = base->shape[0] < b->w.world ? base->shape[0] : b->w.world;
  shape[0] = size / row > least ? size / row : least;
  for (int last = 0; row > size / shape[0] && bytes_of_shape(width, base->ndim, shape) > size;) {
    last = 0;
    for (int d = 1; d < base->ndim; d++)
      last = shape[d] > shape[last] ? d : last;
    shape[last] = (shape[last] + 1) / 2;
    int64_t all = bytes_of_shape(width, base->ndim, shape);
    if (all <= size) /* as much of the last half as fits */
      shape[last] = size / (all / shape[last]);
  }
  workload_set_shape(&b->w, base->ndim, shape);
}

static int64_t next_size(const cli_options *o, int64_t size) {
  if (o->size_increment > 0)
    return size > INT64_MAX - o->size_increment ? INT64_MAX : size + o->size_increment;
  double grown = (double)size * (o->size_factor > 0 ? o->size_factor : 2);
  return grown >= 9e18 ? INT64_MAX : (int64_t)grown > size ? (int64_t)grown : size + 1;
}

/* Without a tensor, a model or a suite: rows to columns of the sizes that nccl-tests begins with. */
static void set_default_workload(cli_options *o) {
  o->shape = "1x1"; /* until its size is set */
  o->src = o->src != NULL ? o->src : "chunk(0)";
  o->dst = o->dst != NULL ? o->dst : "chunk(1)";
  o->size_begin = o->size_begin > 0 ? o->size_begin : 32 << 20;
}

static void check_sizes(cli_options *o) {
  if (o->size_increment > 0 && o->size_factor > 0)
    cli_exit(EXIT_USAGE, "-i %lld and -f %g are both given", (long long)o->size_increment, o->size_factor);
  if (o->size_begin == 0 && o->size_end == 0) {
    if (o->size_increment > 0)
      cli_exit(EXIT_USAGE, "-i %lld needs -b and -e", (long long)o->size_increment);
    if (o->size_factor > 0)
      cli_exit(EXIT_USAGE, "-f %g needs -b and -e", o->size_factor);
    return;
  }
  if (o->model != NULL)
    cli_exit(EXIT_USAGE, "-b and -e scale a --shape, not a --model");
  if (o->size_begin == 0)
    cli_exit(EXIT_USAGE, "-e %lld is given without -b", (long long)o->size_end);
  if (o->size_end == 0)
    o->size_end = o->size_begin;
  if (o->size_end < o->size_begin)
    cli_exit(EXIT_USAGE, "-e %lld is below -b %lld", (long long)o->size_end, (long long)o->size_begin);
}

static void check_flags(const cli_options *o) {
  bool cuda = o->device != NULL && strcmp(o->device, "cuda") == 0;
  if (o->connect == 0)
    cli_exit(EXIT_USAGE, "-p 0: ranks connect in parallel, each by its own thread; there is no other way");
  if (o->registry != 0)
    cli_exit(EXIT_USAGE, "-R %lld: buffers are not registered with NCCL; there is no other way",
             (long long)o->registry);
  if (o->blocking && !cuda)
    cli_exit(EXIT_USAGE, "-z 1 needs --device cuda: on the CPU an execute returns when it is done");
  if (o->host_time && !cuda)
    cli_exit(EXIT_USAGE, "-C 1 needs --device cuda: on the CPU an execute's time is the host's");
  if (o->host_time && o->blocking)
    cli_exit(EXIT_USAGE, "-C 1 and -z 1 are both given: until it is launched, or until it is done?");
  if (o->json != NULL && o->csv != NULL && strcmp(o->json, "-") == 0 && strcmp(o->csv, "-") == 0)
    cli_exit(EXIT_USAGE, "--json - and --csv - are both given");
  const char *const beside[] = {o->shape, o->model, o->src, o->dst, o->mesh, o->permutation, o->dtype};
  static const char *const names[] = {"--shape", "--model", "--src", "--dst", "--mesh", "--permutation", "--dtype"};
  for (int i = 0; o->suite != NULL && i < 7; i++)
    if (beside[i] != NULL)
      cli_exit(EXIT_USAGE, "--suite %s and %s are both given", o->suite, names[i]);
  if (o->suite != NULL && o->size_begin > 0)
    cli_exit(EXIT_USAGE, "--suite %s and -b are both given: --scale makes it smaller", o->suite);
}

/* Measures the sizes of the workload. */
static void run_sizes(bench_state *b, bench_report *r) {
  const cli_options *o = b->o;
  const workload_tensor base = b->w.n > 0 ? b->w.tensor[0] : (workload_tensor){0};
  for (int64_t size = o->size_begin;; size = next_size(o, size)) {
    if (o->size_begin > 0)
      scale_shape(b, &base, size);
    bench_watch_row(b->row.name != NULL ? b->row.name : "the row");
    bench_run_row(b);
    bench_watch_row(NULL);
    if (b->skipped && o->suite == NULL)
      cli_exit(EXIT_FAILED, "%s", b->why_skipped);
    bench_report_row(r);
    if (o->size_begin > 0)
      cli_done("%lld size%s of %lld to %lld bytes, the last with a busbw of %.4g GB/s", (long long)r->rows,
               cli_plural(r->rows), (long long)o->size_begin, (long long)size, b->row.busbw);
    else
      cli_done("%lld row%s, the last with a busbw of %.4g GB/s", (long long)r->rows, cli_plural(r->rows), b->row.busbw);
    if (o->size_begin == 0 || size >= o->size_end || next_size(o, size) > o->size_end)
      return;
  }
}

/* Sets the options to the i-th workload: of a suite, or an element type of -d all. False behind the last. */
static bool next_workload(cli_options *o, int64_t i, bool all_dtypes, bench_case *c) {
  if (o->suite == NULL) {
    o->dtype = all_dtypes ? workload_nccl_dtype(i) : o->dtype;
    return all_dtypes ? o->dtype != NULL : i == 0;
  }
  if (!bench_suite_case(o->suite, i, o->ranks, c))
    return false;
  o->shape = c->shape;
  o->dtype = c->dtype;
  o->model = c->model;
  o->src = c->src;
  o->dst = c->dst;
  o->mesh = c->mesh[0] != '\0' ? c->mesh : NULL;
  o->mesh_dst = c->mesh_dst;
  return true;
}

/* Measures all workloads, in one cycle of -N. The first of all is there already. */
static void run_workloads(bench_state *b, cli_options *o, bench_report *r, bool all_dtypes, bench_case *c) {
  for (int64_t i = 0; next_workload(o, i, all_dtypes, c); i++) {
    if (i > 0 || b->row.cycle > 1) {
      workload_free(&b->w);
      workload_read(o, &b->w);
    }
    b->row.name = o->suite != NULL ? c->name : NULL;
    b->row.src = o->suite != NULL ? c->src : NULL;
    b->row.dst = o->suite != NULL ? c->dst : NULL;
    b->row.model = o->suite != NULL ? c->model : NULL;
    b->row.mesh = o->suite != NULL && c->mesh[0] != '\0' ? c->mesh : NULL;
    b->row.mesh_dst = o->suite != NULL && c->mesh_dst[0] != '\0' ? c->mesh_dst : NULL;
    run_sizes(b, r);
  }
}

/* Cuts within blocks are told before anything is printed. */
static void check_blocks(const workload *w) {
  reshard_entry *entries = workload_entries(w);
  reshard_plan plan = NULL;
  for (int64_t t = 0; t < w->n && plan == NULL; t++)
    if (w->tensor[t].blocks.rows > 0)
      CLI_TRY("", reshard_plan_create(w->n, entries, 0, NULL, &plan));
  reshard_plan_destroy(plan);
  free(entries);
}

int command_bench(int argc, char **argv) {
  static bench_report report = {.lock = PTHREAD_MUTEX_INITIALIZER}; /* others may look at it until the end */
  cli_options o;
  machine m;
  bench_case c;
  cli_read_options(argc, argv, COMMAND_BENCH,
                   "usage: reshard bench (--shape S [--dtype T] | --model NAME|FILE) --src L --dst L [OPTION]...\n"
                   "       reshard bench --suite NAME [OPTION]...\n"
                   "       reshard bench -b 8 -e 128M -f 2 -g 8 [OPTION]...  (rows to columns of the squarest 2^k "
                   "elements of each size)\n\n"
                   "Measures a reshard beside a straight copy of as many bytes. Flags and columns are those of "
                   "nccl-tests; algbw is global\n"
                   "bytes / time, busbw what the busiest rank sends or receives / time. Packed in rounds under "
                   "--workspace,\n"
                   "by default what is fast on the device. Ranks = processes (of mpirun, or by RANK "
                   "and WORLD_SIZE) x -t x -g.\n"
                   "What is ended early, by an error, -T or a signal, has written what it had.\n",
                   &o);
  check_flags(&o);
  bool squares = o.shape == NULL && o.model == NULL && o.suite == NULL;
  if (squares)
    set_default_workload(&o);
  check_sizes(&o);
  bool all_dtypes = o.dtype != NULL && strcmp(o.dtype, "all") == 0;
  bench_state b = {.o = &o, .squares = squares, .traced = o.trace != NULL || o.json != NULL || o.csv != NULL};
  session_begin(&b.s, &o); /* from here on it is one of its processes */
  bench_watch_begin(&report, &o);
  if (o.suite != NULL && o.ranks == 0)
    o.ranks = 8;
  (void)next_workload(&o, 0, all_dtypes, &c);
  workload_read(&o, &b.w);
  if (o.topology != NULL) { /* what is wrong with it is said before anything is printed */
    cli_read_topology(o.topology, b.w.world, &b.topology);
    free((int64_t *)b.topology.domain);
    b.topology.domain = NULL;
  }
  machine_read(&m);
  bench_start(&b);
  if (o.suite == NULL && b.s.processes.me == 0)
    rule_uses_warn_of(&b.w);
  if (o.size_begin > 0) { /* what is wrong with it is said before anything is printed */
    const workload_tensor base = b.w.tensor[0];
    scale_shape(&b, &base, o.size_begin);
    workload_set_shape(&b.w, base.ndim, base.shape);
  }
  check_blocks(&b.w);
  bench_report_open(&report, &b, &m);
  for (int64_t cycle = 1; o.cycles == 0 || cycle <= o.cycles; cycle++) {
    b.row.cycle = cycle;
    run_workloads(&b, &o, &report, all_dtypes, &c);
  }
  cli_done("%s", "");
  cli_at_exit(NULL, NULL);
  bench_report_close(&report, NULL);
  if (o.trace != NULL && b.trace != NULL)
    bench_trace_write(&b, o.trace, NULL);
  bench_finish(&b);
  bench_watch_end();
  if (report.wrong > 0)
    cli_exit(EXIT_FAILED, "%lld elements are wrong", (long long)report.wrong);
  if (report.skipped > 0)
    cli_exit(EXIT_FAILED, "%lld of %lld reshards do not fit in memory: see --scale", (long long)report.skipped,
             (long long)(report.skipped + report.rows));
  return EXIT_DONE;
}
