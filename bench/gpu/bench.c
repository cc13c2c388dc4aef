/* How fast: each case beside the GPU's own copy of as many bytes from device memory to device memory, in turns, with
 * empty caches; some beside what else there is for the same work. Goals are those of one H100 or H200. */
#include "bed.h"

#include "kernels/cub_copy.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { RIVALS = 2, ROWS = 24 };

typedef struct row {
  char name[64];
  const char *unit; /* of figure and goal: what is compared */
  double figure, goal;
  bool at_least; /* figure >= goal meets it; else <= */
  bool wrong;    /* the data */
  int64_t bytes;
  double us, memcpy_us;
  const char *rival[RIVALS]; /* NULL: none */
  double rival_us[RIVALS];   /* 0: this machine or build lacks it */
} row;

typedef struct bench {
  bed *b;
  const gpu_bench_options *o;
  bool small; /* tests: sizes that show nothing */
  int64_t rows;
  row row[ROWS];
} bench;

/* --- Time
 * -------------------------------------------------------------------------------------------------------------- */

typedef struct plain {
  bed *b;
  char *to;
  const char *from;
  int64_t bytes;
} plain;

static reshard_status plain_copy(void *user, void *stream) {
  plain *p = user;
  return p->b->gpu->ops->memcpy(p->b->gpu, p->to, p->from, (size_t)p->bytes, stream);
}

typedef struct runner {
  bed_work work;
  void *user;
} runner;

/* Medians of n runners, in turns; one turn to warm up. For a profiler each runs once, and nothing is timed. */
static void race(bench *x, int n, const runner *runners, double *seconds) {
  int64_t turns = x->o->iterations;
  for (int i = 0; x->o->profile && i < n; i++) {
    CLI_TRY("", runners[i].work(runners[i].user, x->b->stream[0]));
    seconds[i] = 1;
  }
  if (x->o->profile)
    return;
  double *times = cli_alloc(n * turns, sizeof *times);
  x->b->hold = 1;
  for (int64_t t = -1; t < turns; t++)
    for (int i = 0; i < n; i++) {
      double one = bed_time(x->b, runners[i].work, runners[i].user);
      if (t >= 0)
        times[i * turns + t] = one;
    }
  for (int i = 0; i < n; i++)
    seconds[i] = cli_median(times + i * turns, turns);
  free(times);
}

static row *add_row(bench *x, const char *name, const char *unit, double goal, bool at_least) {
  row *r = &x->row[x->rows++];
  *r = (row){.unit = unit, .goal = goal, .at_least = at_least};
  snprintf(r->name, sizeof r->name, "%s", name);
  return r;
}

static bool wanted(const bench *x, const char *name) {
  return x->o->only == NULL || strncmp(name, x->o->only, strlen(x->o->only)) == 0;
}

static bool met(const row *r) { return !r->wrong && (r->at_least ? r->figure >= r->goal : r->figure <= r->goal); }

static void tell(const bench *x, const row *r) {
  if (x->o->profile) {
    printf("%-38s %11lld B  %s\n", r->name, (long long)r->bytes, r->wrong ? "WRONG DATA" : "run once");
    return;
  }
  printf("%-38s %11lld B  %9.1f us  %6.3f %s, goal %s %g: %s", r->name, (long long)r->bytes, r->us, r->figure, r->unit,
         r->at_least ? ">=" : "<=", r->goal,
         r->wrong ? "WRONG DATA"
         : met(r) ? "met"
                  : "short");
  if (r->memcpy_us > 0)
    printf("; memcpy %.1f us", r->memcpy_us);
  for (int i = 0; i < RIVALS; i++)
    if (r->rival[i] != NULL && r->rival_us[i] > 0)
      printf("; %s %.1f us", r->rival[i], r->rival_us[i]);
    else if (r->rival[i] != NULL)
      printf("; %s: not here", r->rival[i]);
  printf("\n");
  fflush(stdout);
}

/* --- Box copies
 * -------------------------------------------------------------------------------------------------------- */

typedef struct box {
  bed *b;
  rs_program *program;
} box;

static reshard_status run_box(void *user, void *stream) {
  box *j = user;
  return j->b->gpu->ops->run(j->b->gpu, 1, &j->program, stream);
}

/* Memory filled with numbers that tell places apart, and what the CPU makes of the same copies. */
typedef struct sides {
  char *from, *to, *host, *image, *seen;
  int64_t from_bytes, to_bytes;
} sides;

static sides make_sides(bed *b, int64_t from_bytes, int64_t to_bytes) {
  sides s = {.from_bytes = from_bytes, .to_bytes = to_bytes};
  s.from = bed_alloc(b, from_bytes);
  s.to = bed_alloc(b, to_bytes);
  s.host = cli_alloc(from_bytes, 1);
  s.image = cli_alloc(to_bytes, 1);
  s.seen = cli_alloc(to_bytes, 1);
  for (int64_t i = 0; i + 8 <= from_bytes; i += 8) {
    uint64_t word = (uint64_t)(i + 1) * 0x9e3779b97f4a7c15u;
    memcpy(s.host + i, &word, 8);
  }
  bed_to_gpu(b, s.from, s.host, from_bytes);
  CLI_TRY("", b->gpu->ops->memset(b->gpu, s.to, 0, (size_t)to_bytes, b->stream[0]));
  bed_wait(b);
  return s;
}

static bool right(bed *b, sides *s) {
  bed_to_host(b, s->seen, s->to, s->to_bytes);
  return memcmp(s->seen, s->image, (size_t)s->to_bytes) == 0;
}

static void free_sides(bed *b, sides *s) {
  bed_free(b, s->from);
  bed_free(b, s->to);
  free(s->host);
  free(s->image);
  free(s->seen);
}

/* The destination's places go to zero, so that nothing of before is taken for a result. */
static void clear(bed *b, sides *s) {
  CLI_TRY("", b->gpu->ops->memset(b->gpu, s->to, 0, (size_t)s->to_bytes, b->stream[0]));
}

/* from [m][k][run] to [k][m][run]; k == 0: from [m][n] elements of `run` bytes to [n][m]. */
static void box_case(bench *x, const char *name, int64_t run, int64_t k, double goal) {
  if (!wanted(x, name))
    return;
  bed *b = x->b;
  int64_t m = k > 0 ? x->o->bytes / (k * run) : (int64_t)sqrt((double)(x->o->bytes / run)) & -8;
  k = k > 0 ? k : m;
  int64_t bytes = m * k * run;
  sides s = make_sides(b, bytes, bytes);
  rs_copies copies = {0}, same = {0};
  int32_t element = run % 16 == 0 ? 16 : (int32_t)run;
  rs_axis axes[3] = {{k, run, m * run}, {m, k * run, run}, {run / element, element, element}};
  CLI_TRY("", rs_copies_add(&copies, s.from, s.to, element, 3, axes));
  CLI_TRY("", rs_copies_add(&same, s.host, s.image, element, 3, axes));
  box j = {.b = b};
  rs_program *cpu = NULL;
  CLI_TRY("", b->gpu->ops->compile(b->gpu, &copies, bytes, &j.program));
  CLI_TRY("", b->cpu->ops->compile(b->cpu, &same, bytes, &cpu));
  CLI_TRY("", b->cpu->ops->run(b->cpu, 1, &cpu, NULL));
  plain p = {b, s.to, s.from, bytes};
  double t[2];
  race(x, 2, (runner[]){{run_box, &j}, {plain_copy, &p}}, t);
  clear(b, &s);
  CLI_TRY("", run_box(&j, b->stream[0]));
  row *r = add_row(x, name, "x memcpy's time", goal, false);
  r->wrong = !right(b, &s);
  r->bytes = bytes;
  r->us = 1e6 * t[0];
  r->memcpy_us = 1e6 * t[1];
  r->figure = t[0] / t[1];
  tell(x, r);
  b->cpu->ops->release(b->cpu, cpu);
  b->gpu->ops->release(b->gpu, j.program);
  rs_copies_free(&copies);
  rs_copies_free(&same);
  free_sides(b, &s);
}

/* --- Many contiguous boxes, beside CUB and the runtime
 * ------------------------------------------------------------------ */

typedef struct batch {
  bed *b;
  int64_t n;
  rs_span *span;
  /* CUB's tables, of the device */
  const void **src;
  void **dst;
  uint64_t *sizes;
  void *workspace;
  size_t workspace_bytes;
} batch;

static reshard_status run_spans(void *user, void *stream) {
  batch *j = user;
  return j->b->gpu->ops->copy(j->b->gpu, j->n, j->span, (int64_t)1 << 40, stream);
}

static reshard_status run_runtime(void *user, void *stream) {
  batch *j = user;
  return gpu_memcpy_batch(j->b->gpu, j->n, j->span, stream);
}

static reshard_status run_cub(void *user, void *stream) {
  batch *j = user;
  int error = rs_cub_copy_launch(j->n, j->src, j->dst, j->sizes, j->workspace, j->workspace_bytes, stream);
  return error == 0 ? RESHARD_SUCCESS : rs_error(RESHARD_ERROR_SYSTEM, "CUB: CUDA error %d", error);
}

static bool cub_begin(batch *j) {
  const void **src = cli_alloc(j->n, sizeof *src);
  void **dst = cli_alloc(j->n, sizeof *dst);
  uint64_t *sizes = cli_alloc(j->n, sizeof *sizes);
  for (int64_t i = 0; i < j->n; i++) {
    src[i] = j->span[i].src;
    dst[i] = j->span[i].dst;
    sizes[i] = (uint64_t)j->span[i].bytes;
  }
  j->src = bed_alloc(j->b, j->n * 8);
  j->dst = bed_alloc(j->b, j->n * 8);
  j->sizes = bed_alloc(j->b, j->n * 8);
  bed_to_gpu(j->b, j->src, src, j->n * 8);
  bed_to_gpu(j->b, j->dst, dst, j->n * 8);
  bed_to_gpu(j->b, j->sizes, sizes, j->n * 8);
  free(src);
  free(dst);
  free(sizes);
  if (rs_cub_copy_workspace(j->n, &j->workspace_bytes) != 0)
    return false;
  j->workspace = bed_alloc(j->b, (int64_t)j->workspace_bytes);
  return true;
}

static void cub_end(batch *j) {
  bed_free(j->b, j->src);
  bed_free(j->b, j->dst);
  bed_free(j->b, j->sizes);
  bed_free(j->b, j->workspace);
}

/* Bytes of box i of n: log-uniform from 4 to 64 KiB, or all alike. */
static int64_t box_bytes(rng *r, int64_t alike) {
  return alike > 0 ? alike : (int64_t)(4096 * pow(16, (double)(rng_next(r) >> 11) * 0x1p-53)) & -4;
}

static void batch_race(bench *x, const char *name, batch *j, box *program, sides *s, int64_t bytes) {
  bed *b = x->b;
  plain p = {b, s->to, s->from, bytes};
  runner runners[4] = {{run_box, program}, {plain_copy, &p}};
  double t[4] = {0}, fastest = 0;
  int n = 2, at[RIVALS] = {-1, -1};
  if (program->program == NULL)
    runners[0] = (runner){run_spans, j};
  bool cub = cub_begin(j);
  if (run_runtime(j, b->stream[0]) == RESHARD_SUCCESS)
    runners[at[0] = n++] = (runner){run_runtime, j};
  if (cub)
    runners[at[1] = n++] = (runner){run_cub, j};
  race(x, n, runners, t);
  clear(b, s);
  CLI_TRY("", runners[0].work(runners[0].user, b->stream[0]));
  row *r = add_row(x, name, "of memcpy's speed", 0.9, true);
  r->wrong = !right(b, s);
  r->bytes = bytes;
  r->us = 1e6 * t[0];
  r->memcpy_us = 1e6 * t[1];
  r->figure = t[1] / t[0];
  static const char *const rivals[RIVALS] = {"cudaMemcpyBatchAsync", "cub::DeviceMemcpy"};
  for (int i = 0; i < RIVALS; i++) {
    r->rival[i] = rivals[i];
    r->rival_us[i] = at[i] >= 0 ? 1e6 * t[at[i]] : 0;
    if (at[i] >= 0 && (fastest == 0 || t[at[i]] < fastest))
      fastest = t[at[i]];
  }
  tell(x, r);
  if (fastest > 0 && !x->o->profile) {
    double ours = r->us;
    r = add_row(x, name, "x the faster rival's time", 1.0, false);
    snprintf(r->name + strlen(r->name), sizeof r->name - strlen(r->name), ", rivals");
    r->bytes = bytes;
    r->us = ours;
    r->memcpy_us = 1e6 * t[1];
    r->figure = t[0] / fastest;
    tell(x, r);
  }
  cub_end(j);
}

/* n boxes in an order of their own, by one program of the box copy, or as spans of an exchange. */
static void batch_case(bench *x, const char *name, int64_t n, int64_t alike, bool spans) {
  if (!wanted(x, name))
    return;
  bed *b = x->b;
  batch j = {.b = b, .n = n, .span = cli_alloc(n, sizeof *j.span)};
  rng r;
  rng_seed(&r, 7);
  int64_t *size = cli_alloc(n, sizeof *size), *order = cli_alloc(n, sizeof *order), bytes = 0, at = 0;
  for (int64_t i = 0; i < n; i++) {
    bytes += size[i] = box_bytes(&r, alike);
    int64_t k = rng_in(&r, 0, i);
    order[i] = order[k];
    order[k] = i;
  }
  sides s = make_sides(b, bytes, bytes);
  rs_copies copies = {0};
  int64_t *first = cli_alloc(n, sizeof *first);
  for (int64_t i = 0; i < n; at += size[i++])
    first[i] = at;
  at = 0;
  for (int64_t i = 0; i < n; i++) {
    int64_t k = order[i];
    j.span[i] = (rs_span){s.from + first[k], s.to + at, size[k], false};
    rs_axis axis = {size[k] / 4, 4, 4};
    CLI_TRY("", rs_copies_add(&copies, s.from + first[k], s.to + at, 4, 1, &axis));
    memcpy(s.image + at, s.host + first[k], (size_t)size[k]);
    at += size[k];
  }
  box program = {.b = b};
  if (!spans)
    CLI_TRY("", b->gpu->ops->compile(b->gpu, &copies, bytes, &program.program));
  batch_race(x, name, &j, &program, &s, bytes);
  if (!spans)
    b->gpu->ops->release(b->gpu, program.program);
  rs_copies_free(&copies);
  free_sides(b, &s);
  free(first);
  free(size);
  free(order);
  free(j.span);
}

/* --- Selection
 * --------------------------------------------------------------------------------------------------------- */

typedef struct selection {
  bed *b;
  rs_select select;
} selection;

static reshard_status run_select(void *user, void *stream) {
  selection *j = user;
  return j->b->gpu->ops->select(j->b->gpu, &j->select, NULL, stream);
}

/* All rows of a table of bf16 in another order. */
static void select_case(bench *x, const char *name, int64_t rows, int64_t columns) {
  if (!wanted(x, name))
    return;
  bed *b = x->b;
  int64_t run = 2 * columns, bytes = rows * run;
  sides s = make_sides(b, bytes, bytes);
  int64_t *index = cli_alloc(rows, sizeof *index), *there = bed_alloc(b, rows * 8);
  rng r;
  rng_seed(&r, 3);
  for (int64_t i = 0; i < rows; i++) {
    int64_t k = rng_in(&r, 0, i);
    index[i] = index[k];
    index[k] = i;
  }
  for (int64_t i = 0; i < rows; i++)
    memcpy(s.image + i * run, s.host + index[i] * run, (size_t)run);
  bed_to_gpu(b, there, index, rows * 8);
  selection j = {b,
                 {.src = s.from,
                  .index = (const char *)there,
                  .dst = s.to,
                  .count = rows,
                  .extent = rows,
                  .index_stride = 8,
                  .src_stride = run,
                  .dst_stride = run,
                  .index_bytes = 8,
                  .element = 2,
                  .run = run}};
  plain p = {b, s.to, s.from, bytes};
  double t[2];
  race(x, 2, (runner[]){{run_select, &j}, {plain_copy, &p}}, t);
  clear(b, &s);
  CLI_TRY("", run_select(&j, b->stream[0]));
  row *out = add_row(x, name, "of memcpy's speed", 0.85, true);
  out->wrong = !right(b, &s);
  out->bytes = bytes;
  out->us = 1e6 * t[0];
  out->memcpy_us = 1e6 * t[1];
  out->figure = t[1] / t[0];
  tell(x, out);
  free(index);
  bed_free(b, there);
  free_sides(b, &s);
}

/* --- What the host needs for an execute
 * --------------------------------------------------------------------------------- */

enum { HOST_RANKS = 4, HOST_SHARE = 64 << 10 };

typedef struct world {
  bed *b;
  reshard_comm comm[HOST_RANKS];
  reshard_plan plan[HOST_RANKS];
  reshard_transfer transfer[HOST_RANKS];
  reshard_status status[HOST_RANKS];
  char *memory[2];
  reshard_layout layout[2];
} world;

typedef struct seat {
  world *w;
  int64_t rank;
} seat;

static void *host_rank(void *user) {
  world *w = ((seat *)user)->w;
  int64_t r = ((seat *)user)->rank, share = HOST_SHARE;
  reshard_entry entry = {RESHARD_ENTRY_INIT, .src = w->layout[0], .dst = w->layout[1], .dtype = RESHARD_F32};
  void *src[] = {w->memory[0] + r * share}, *dst[] = {w->memory[1] + r * share};
  reshard_arrays arrays = {.size = RESHARD_ARRAYS_INIT, .src = src, .dst = dst};
  w->status[r] = reshard_plan_create(1, &entry, r, NULL, &w->plan[r]);
  if (w->status[r] == RESHARD_SUCCESS)
    w->status[r] = reshard_transfer_create(w->plan[r], w->comm[r], &arrays, NULL, &w->transfer[r]);
  if (w->status[r] != RESHARD_SUCCESS)
    cli_error("rank %lld: %s", (long long)r, reshard_last_error());
  return NULL;
}

static reshard_status execute_all(void *user, void *stream) {
  return reshard_execute_all(HOST_RANKS, ((world *)user)->transfer, stream);
}

typedef struct launching {
  bed *b;
  gpu_graph *graph;
} launching;

static reshard_status launch(void *user, void *stream) {
  launching *j = user;
  return gpu_launch(j->b->gpu, j->graph, stream);
}

/* Median of the host's time for a call. The stream is empty before each, so that no queue is full. */
static double host_time(bench *x, bed_work work, void *user) {
  int64_t n = 10 * x->o->iterations;
  double *times = cli_alloc(n, sizeof *times);
  for (int64_t i = -5; i < n; i++) {
    double begin = cli_seconds();
    CLI_TRY("", work(user, x->b->stream[0]));
    double end = cli_seconds();
    bed_wait(x->b);
    if (i >= 0)
      times[i] = end - begin;
  }
  double median = cli_median(times, n);
  free(times);
  return median;
}

static void host_row(bench *x, const char *name, double seconds) {
  row *r = add_row(x, name, "us of the host", 10, false);
  r->bytes = HOST_RANKS * HOST_SHARE;
  r->figure = r->us = 1e6 * seconds;
  tell(x, r);
}

/* Rows to columns, 256 KiB, 4 ranks of one thread. */
static void host_cases(bench *x) {
  if (!wanted(x, "execute") || x->o->profile)
    return;
  world w = {.b = x->b};
  reshard_local_options local = {.size = RESHARD_LOCAL_OPTIONS_INIT, .devices = &x->b->handle, .ndevices = 1};
  int64_t shape[] = {256, 256};
  seat mine[HOST_RANKS];
  pthread_t thread[HOST_RANKS];
  CLI_TRY("", reshard_layout_parse("chunk(0)", 2, shape, HOST_RANKS, &w.layout[0]));
  CLI_TRY("", reshard_layout_parse("chunk(1)", 2, shape, HOST_RANKS, &w.layout[1]));
  w.memory[0] = bed_alloc(x->b, HOST_RANKS * HOST_SHARE);
  w.memory[1] = bed_alloc(x->b, HOST_RANKS * HOST_SHARE);
  CLI_TRY("", x->b->gpu->ops->memset(x->b->gpu, w.memory[0], 1, HOST_RANKS * HOST_SHARE, x->b->stream[0]));
  bed_wait(x->b);
  CLI_TRY("", reshard_comm_create_local(HOST_RANKS, &local, w.comm));
  for (int64_t r = 0; r < HOST_RANKS; r++) {
    mine[r] = (seat){&w, r};
    if (pthread_create(&thread[r], NULL, host_rank, &mine[r]) != 0)
      cli_exit(EXIT_FAILED, "no thread");
  }
  for (int64_t r = 0; r < HOST_RANKS; r++)
    pthread_join(thread[r], NULL);
  for (int64_t r = 0; r < HOST_RANKS; r++)
    if (w.status[r] != RESHARD_SUCCESS)
      exit(EXIT_FAILED);
  host_row(x, "execute of 4 ranks, a rank", host_time(x, execute_all, &w) / HOST_RANKS);
  launching j = {x->b, NULL};
  CLI_TRY("", gpu_capture(x->b->gpu, x->b->stream[0], execute_all, &w, &j.graph));
  host_row(x, "execute of 4 ranks, launch of a graph", host_time(x, launch, &j));
  gpu_graph_destroy(j.graph);
  for (int64_t r = 0; r < HOST_RANKS; r++)
    reshard_transfer_destroy(w.transfer[r]);
  for (int64_t r = 0; r < HOST_RANKS; r++) {
    reshard_plan_destroy(w.plan[r]);
    reshard_comm_destroy(w.comm[r]);
  }
  reshard_layout_release(w.layout[0]);
  reshard_layout_release(w.layout[1]);
  bed_free(x->b, w.memory[0]);
  bed_free(x->b, w.memory[1]);
}

/* --- All
 * ---------------------------------------------------------------------------------------------------------------- */

static void write_json(const bench *x) {
  json j = {0};
  cli_json_open(&j, NULL, '{');
  cli_json_int(&j, "version", 1);
  cli_json_string(&j, "reshard", reshard_version());
  cli_json_string(&j, "gpu", x->b->info.name);
  cli_json_int(&j, "iterations", x->o->iterations);
  cli_json_open(&j, "rows", '[');
  for (int64_t i = 0; i < x->rows; i++) {
    const row *r = &x->row[i];
    cli_json_line(&j);
    cli_json_open(&j, NULL, '{');
    cli_json_string(&j, "name", r->name);
    cli_json_int(&j, "bytes", r->bytes);
    cli_json_real(&j, "time_us", r->us);
    cli_json_real(&j, "memcpy_us", r->memcpy_us);
    for (int k = 0; k < RIVALS; k++)
      if (r->rival[k] != NULL && r->rival_us[k] > 0)
        cli_json_real(&j, r->rival[k], r->rival_us[k]);
    cli_json_real(&j, "figure", r->figure);
    cli_json_string(&j, "of", r->unit);
    cli_json_real(&j, r->at_least ? "at_least" : "at_most", r->goal);
    cli_json_bool(&j, "met", met(r));
    cli_json_bool(&j, "wrong", r->wrong);
    cli_json_close(&j, '}');
  }
  cli_json_close(&j, ']');
  cli_json_close(&j, '}');
  cli_json_write(&j, x->o->json);
}

int gpu_bench(bed *b, const gpu_bench_options *o) {
  bench x = {.b = b, .o = o, .small = o->bytes < 64 << 20};
  box_case(&x, "box copy, runs of 4 KiB", 4096, 4, 1.03);
  box_case(&x, "box copy, runs of 256 B", 256, 4, 1.10);
  box_case(&x, "box copy, runs of 32 B", 32, 4, 1.5);
  box_case(&x, "transposing pack of 2-byte elements", 2, 0, 1.15);
  batch_case(&x, x.small ? "20 boxes of 4-64 KiB" : "100,000 boxes of 4-64 KiB", x.small ? 20 : 100000, 0, false);
  batch_case(&x, "8 large boxes", 8, o->bytes / 8 & -16, false);
  batch_case(&x, "8 large spans of an exchange", 8, o->bytes / 8 & -16, true);
  select_case(&x, x.small ? "index_select 16 x 64 bf16" : "index_select 4096 x 5120 bf16", x.small ? 16 : 4096,
              x.small ? 64 : 5120);
  select_case(&x, x.small ? "index_select 256 x 64 bf16" : "index_select 65536 x 5120 bf16", x.small ? 256 : 65536,
              x.small ? 64 : 5120);
  host_cases(&x);
  if (o->json != NULL)
    write_json(&x);
  int64_t wrong = 0;
  for (int64_t i = 0; i < x.rows; i++)
    wrong += x.row[i].wrong;
  if (wrong > 0)
    cli_error("%lld cases have wrong data", (long long)wrong);
  return wrong > 0 ? EXIT_FAILED : EXIT_DONE;
}
