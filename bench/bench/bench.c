/* reshard bench: the sizes that are measured, and the command. */
#include "bench/bench/bench.h"
#include "bench/bench/record.h"
#include "bench/bench/report.h"
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

/* --- Suites: the reshards that a field has, for a world of any even number of ranks ------------------------------- */

/* A reshard of a suite, for a world of `ranks`. */
typedef struct bench_case {
  const char *name;
  const char *shape, *dtype, *model; /* shape or model is NULL */
  char src[96], dst[96];
  char mesh[64], mesh_dst[64]; /* "": none */
} bench_case;

/* In layouts and meshes {N} is the number of ranks, {H} half of it, {P} x {Q} the squarest grid of it. */
typedef struct suite_row {
  const char *suite, *name, *shape, *dtype, *model, *src, *mesh, *dst, *mesh_dst;
} suite_row;

#define DENSE  NULL, NULL, "llama-3.1-8b"
#define SPARSE NULL, NULL, "qwen3-30b-a3b"
static const suite_row suite_rows[] = {
    {"training", "fsdp-to-tp", DENSE, "@fsdp", "fsdp={N}", "@tp", "tp={N}"},
    {"training", "fsdp-to-fsdp-tp", DENSE, "@fsdp", "fsdp={N}", "@fsdp-tp", "fsdp={H},tp=2"},
    {"training", "hsdp-to-fsdp", DENSE, "@hsdp", "replica=2,fsdp={H}", "@fsdp", "fsdp={N}"},
    {"training", "flat-to-fsdp", DENSE, "@flat", NULL, "@fsdp", "fsdp={N}"},
    {"training", "fsdp-to-experts", SPARSE, "@fsdp", "fsdp={N}", "@ep-128", "tp={N}"},
    {"training", "all-gather", "8192x8192", "bf16", NULL, "chunk(0)", NULL, "mesh({N};R)", NULL},
    {"training", "gather", "8192x8192", "bf16", NULL, "chunk(0)", NULL, "rank(0)", NULL},
    {"training", "broadcast", "8192x8192", "bf16", NULL, "rank(0)", NULL, "mesh({N};R)", NULL},
    {"training", "uneven", "8191x8179", "bf16", NULL, "chunk(0)", NULL, "chunk(1)", NULL},
    {"inference", "fsdp-to-tp", DENSE, "@fsdp", "fsdp={N}", "@tp", "tp={N}"},
    {"inference", "tp-to-half", DENSE, "@tp", "tp={N}", "@tp", "tp={H}"},
    {"inference", "tp-to-double", DENSE, "@tp", "tp={H}", "@tp", "tp={N}"},
    {"inference", "experts-to-tp", SPARSE, "@ep-128", "tp={N}", "@tp", "tp={N}"},
    {"inference", "rows-to-columns", "8192x8192", "bf16", NULL, "mesh({N};S0)", NULL, "mesh({N};S1)", NULL},
    {"inference", "all-gather", "8192x8192", "bf16", NULL, "mesh({N};S1)", NULL, "mesh({N};R)", NULL},
    {"inference", "gather", "8192x8192", "bf16", NULL, "mesh({N};S1)", NULL, "rank(0)", NULL},
    {"inference", "broadcast", "8192x8192", "bf16", NULL, "rank(0)", NULL, "mesh({N};R)", NULL},
    {"inference", "uneven", "50257x1601", "f16", NULL, "chunk(0)", NULL, "chunk(1)", NULL},
    {"hpc", "pencil-x-to-y", "512x512x512", "c64", NULL, "mesh({P}x{Q};S1,S2)", NULL, "mesh({P}x{Q};S0,S2)", NULL},
    {"hpc", "pencil-y-to-z", "512x512x512", "c64", NULL, "mesh({P}x{Q};S0,S2)", NULL, "mesh({P}x{Q};S0,S1)", NULL},
    {"hpc", "slab-to-slab", "512x512x512", "c64", NULL, "chunk(0)", NULL, "chunk(1)", NULL},
    {"hpc", "slab-to-pencil", "512x512x512", "c64", NULL, "chunk(0)", NULL, "mesh({P}x{Q};S1,S2)", NULL},
    {"hpc", "cyclic-to-cyclic", "8192x8192", "f64", NULL, "cyclic({P}x{Q};32x32)", NULL, "cyclic({Q}x{P};64x64)", NULL},
    {"hpc", "cyclic-to-rows", "8192x8192", "f64", NULL, "cyclic({P}x{Q};64x64)", NULL, "chunk(0)", NULL},
    {"hpc", "all-gather", "4096x4096", "f64", NULL, "chunk(0)", NULL, "mesh({N};R)", NULL},
    {"hpc", "gather", "8192x8192", "f64", NULL, "cyclic({P}x{Q};32x32)", NULL, "rank(0)", NULL},
    {"hpc", "broadcast", "4096x4096", "f64", NULL, "rank(0)", NULL, "mesh({N};R)", NULL},
    {"hpc", "uneven", "8191x8179", "f64", NULL, "cyclic({P}x{Q};37x53)", NULL, "mesh({Q}x{P};S1,S0)", NULL},
};

/* Writes a template with the numbers of a world in it. */
static void fill_template(const char *from, int64_t ranks, char *out, size_t size) {
  int64_t p = 1;
  for (int64_t i = 1; i * i <= ranks; i++)
    p = ranks % i == 0 ? i : p;
  rs_text text = {.at = out, .size = size};
  out[0] = '\0';
  for (const char *at = from; at != NULL && *at != '\0'; at++)
    if (*at == '{' && at[2] == '}') {
      int64_t number = at[1] == 'N' ? ranks : at[1] == 'H' ? ranks / 2 : at[1] == 'P' ? p : ranks / p;
      rs_text_add(&text, "%lld", (long long)number);
      at += 2;
    } else
      rs_text_add(&text, "%c", *at);
}

/* Makes the i-th case of a suite; false behind the last. Ends the program where the world is not one for it. */
static bool suite_case(const char *suite, int64_t i, int64_t ranks, bench_case *out) {
  if (ranks % 2 != 0)
    cli_exit(EXIT_USAGE, "--suite %s: %lld ranks: an even number is needed", suite, (long long)ranks);
  for (size_t k = 0; k < sizeof suite_rows / sizeof *suite_rows; k++) {
    const suite_row *r = &suite_rows[k];
    if (strcmp(r->suite, suite) != 0 || i-- > 0)
      continue;
    *out = (bench_case){.name = r->name, .shape = r->shape, .dtype = r->dtype, .model = r->model};
    fill_template(r->src, ranks, out->src, sizeof out->src);
    fill_template(r->dst, ranks, out->dst, sizeof out->dst);
    fill_template(r->mesh, ranks, out->mesh, sizeof out->mesh);
    fill_template(r->mesh_dst, ranks, out->mesh_dst, sizeof out->mesh_dst);
    return true;
  }
  return false;
}

/* --- Workloads ---------------------------------------------------------------------------------------------------- */

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
  if (!suite_case(o->suite, i, o->ranks, c))
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
    if (o->suite != NULL)
      b->row = (bench_row){.cycle = b->row.cycle,
                           .name = c->name,
                           .src = c->src,
                           .dst = c->dst,
                           .model = c->model,
                           .mesh = c->mesh[0] != '\0' ? c->mesh : NULL,
                           .mesh_dst = c->mesh_dst[0] != '\0' ? c->mesh_dst : NULL};
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
