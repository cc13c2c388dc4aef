/* Compares the GPU's work byte by byte with the CPU's on the same memory.
 *
 * Random copies have all widths, shapes and alignments. They run compiled and once, from graphs and on several streams.
 * The size of tiles is drawn, and so is the bulk kernel. Then come copies that convert, spans, casts, selections
 * and storage. */
#include "bench/gpu/context.h"

#include "device/cuda/tiles.h"
#include "device/handle.h"
#include "device/memory/pool.h"

#include <stdlib.h>
#include <string.h>

enum { ROOM = 1 << 20, PIECE = 24 << 10, POISON = 0x5a };

typedef struct gpu_checker {
  gpu_context *b;
  rng r;
  char *from, *to;              /* of the GPU */
  char *source, *wanted, *seen; /* the same on the host; what came */
  const char *what;
  gpu_policy policy;  /* of this case */
  int64_t bulk, wide; /* programs with tiles of the bulk kernel; with tiles of more than 16 KiB */
} gpu_checker;

/* Draws how programs of this case are cut and run. */
static void draw_policy(gpu_checker *c) {
  static const int64_t tiles[] = {0, 16 << 10, 32 << 10, 32 << 10, 64 << 10};
  rng *r = &c->r;
  c->policy.tile = rng_one_in(r, 4) ? RS_BOX_LINE * rng_in(r, 32, 512) : tiles[rng_below(r, 5)];
  c->policy.bulk_from = rng_one_in(r, 2) ? 1 : 0;
  c->policy.leap = rng_one_in(r, 2) ? 0 : 1 << rng_in(r, 3, 7);
  c->policy.loads = rng_one_in(r, 2) ? 0 : 1 << rng_in(r, 1, 3);
  gpu_set_policy(c->b->gpu, c->policy);
}

/* Counts what tiles these copies are cut in. */
static void note_tiles(gpu_checker *c, const rs_copies *copies) {
  rs_box_tables tables = {0};
  rs_box_policy policy = {c->b->info.multiprocessors, c->policy.tile, c->policy.bulk_from, c->policy.leap};
  CLI_TRY("", rs_box_tables_make(&tables, copies, &policy));
  bool wide = false;
  for (int k = 0; k < RS_BOX_CLASSES; k++)
    for (int64_t i = 0; i < tables.tile[k].n && !wide; i++) {
      const rs_box_tile *tile = &tables.tile[k].at[i];
      wide = tile->shape == RS_BOX_CONTIGUOUS && tile->count > 16 << 10;
    }
  c->bulk += tables.tile[RS_BOX_BULK].n > 0;
  c->wide += wide;
  rs_box_tables_free(&tables);
}

static void fill_memory(gpu_checker *c) {
  for (int64_t i = 0; i < ROOM; i += 8) {
    uint64_t word = rng_next(&c->r);
    memcpy(c->source + i, &word, 8);
  }
  memset(c->wanted, POISON, ROOM);
  gpu_context_to_gpu(c->b, c->from, c->source, ROOM);
  gpu_context_to_gpu(c->b, c->to, c->wanted, ROOM);
}

static bool compare_memory(gpu_checker *c) {
  gpu_context_wait(c->b);
  gpu_context_to_host(c->b, c->seen, c->to, ROOM);
  for (int64_t i = 0; i < ROOM; i++)
    if (c->seen[i] != c->wanted[i]) {
      cli_error("%s: byte %lld is %02x, should be %02x", c->what, (long long)i, c->seen[i] & 255, c->wanted[i] & 255);
      return false;
    }
  return true;
}

/* --- Copies ------------------------------------------------------------------------------------------------------ */

static void copy_naively(const char *src, char *dst, int32_t element, int naxes, const rs_axis *axes) {
  if (naxes == 0) {
    memcpy(dst, src, (size_t)element);
    return;
  }
  for (int64_t i = 0; i < axes->n; i++)
    copy_naively(src + i * axes->src, dst + i * axes->dst, element, naxes - 1, axes + 1);
}

int64_t gpu_draw_strides(rng *r, int n, const int64_t *extent, int32_t element, bool gaps, int64_t *stride) {
  int order[4] = {0, 1, 2, 3};
  int64_t step = element;
  for (int i = 0; i < n; i++) {
    int j = (int)rng_in(r, i, n - 1), t = order[i];
    order[i] = order[j];
    order[j] = t;
    stride[order[i]] = step;
    step *= extent[order[i]];
    if (gaps && rng_one_in(r, 2))
      step += element * rng_below(r, 4);
  }
  return step;
}

/* Adds a copy to the bytes from at on; returns the bytes that it takes there. */
static int64_t add_copy(gpu_checker *c, rs_copies *copies, int64_t at) {
  rng *r = &c->r;
  int n = (int)rng_in(r, 1, 4);
  int32_t element = 1 << rng_below(r, 5);
  int64_t extent[4], src[4], dst[4], left = PIECE / 2 / element;
  for (int d = 0; d < n; d++) {
    extent[d] = rng_log(r, left);
    left = left / extent[d] > 0 ? left / extent[d] : 1;
  }
  bool gaps = !rng_one_in(r, 3);
  int64_t span = gpu_draw_strides(r, n, extent, element, gaps, src);
  int64_t size = gpu_draw_strides(r, n, extent, element, gaps && rng_one_in(r, 2), dst);
  int64_t from = rng_below(r, ROOM - span), shift = rng_one_in(r, 2) ? (-at) & 15 : rng_below(r, 16);
  if (rng_one_in(r, 2))
    from &= -16;
  rs_axis axes[4];
  for (int d = 0; d < n; d++)
    axes[d] = (rs_axis){extent[d], src[d], dst[d]};
  if (rng_one_in(r, 8)) /* one step back, one row again and again */
    axes[0].src = rng_one_in(r, 2) ? 0 : -axes[0].src, from += axes[0].src < 0 ? -axes[0].src * (extent[0] - 1) : 0;
  CLI_TRY("", rs_copies_add(copies, c->from + from, c->to + at + shift, element, n, axes));
  copy_naively(c->source + from, c->wanted + at + shift, element, n, axes);
  return shift + size;
}

/* Adds rows of whole 16 bytes, of 32 bytes to 128 KiB: what the bulk kernel takes, and what fills large tiles. */
static int64_t add_rows(gpu_checker *c, rs_copies *copies, int64_t at) {
  rng *r = &c->r;
  int64_t run = 16 * (rng_one_in(r, 2) ? rng_in(r, 2 << 10, 8 << 10) : 2 * rng_log(r, 1 << 10));
  int64_t rows = run < 16 << 10 ? rng_in(r, 1, 8) : 1, gap = 16 * rng_below(r, 5), shift = (-at) & 15;
  int64_t from = rng_below(r, ROOM - rows * (run + gap)) & -16;
  rs_axis axes[2] = {{rows, run + gap, run}, {run / 16, 16, 16}};
  CLI_TRY("", rs_copies_add(copies, c->from + from, c->to + at + shift, 16, 2, axes));
  copy_naively(c->source + from, c->wanted + at + shift, 16, 2, axes);
  return shift + rows * run;
}

/* Adds copies to the bytes from at on, to end at most. */
static int64_t add_copies(gpu_checker *c, rs_copies *copies, int64_t at, int64_t end) {
  if (rng_one_in(&c->r, 3)) { /* these alone: the bulk kernel takes a program that is mostly rows */
    while (at + (160 << 10) < end)
      at += add_rows(c, copies, at);
    return at;
  }
  while (at + 6 * PIECE < end) /* a piece with gaps everywhere takes five */
    at += add_copy(c, copies, at);
  return at;
}

typedef struct program_list {
  gpu_context *b;
  int64_t n;
  rs_program **programs;
} program_list;

static reshard_status run_programs(void *user, void *stream) {
  program_list *j = user;
  return j->b->gpu->work->run(j->b->gpu, j->n, j->programs, stream);
}

/* Runs compiled programs, then the same from a graph with other data. */
static bool check_compiled(gpu_checker *c) {
  enum { MOST = 4 };
  rs_device *gpu = c->b->gpu;
  rs_copies copies[MOST];
  memset(copies, 0, sizeof copies);
  rs_program *programs[MOST] = {NULL};
  program_list j = {c->b, rng_in(&c->r, 1, MOST), programs};
  int64_t at = 0;
  for (int64_t i = 0; i < j.n; i++) {
    at = add_copies(c, &copies[i], at, ROOM / j.n * (i + 1));
    copies[i].staging = rng_one_in(&c->r, 2);
    note_tiles(c, &copies[i]);
    CLI_TRY("", gpu->work->compile(gpu, &copies[i], rng_one_in(&c->r, 2) ? ROOM : (int64_t)1 << 40, &programs[i]));
  }
  c->what = "compiled copies";
  CLI_TRY("", run_programs(&j, c->b->stream[rng_below(&c->r, GPU_STREAMS)]));
  bool right = compare_memory(c);
  c->what = "compiled copies from a graph";
  gpu_graph graph = {0};
  CLI_TRY("", gpu_capture(gpu, c->b->stream[1], run_programs, &j, &graph));
  fill_memory(c);
  for (int64_t i = 0; i < j.n; i++)
    for (int64_t k = 0; k < copies[i].copy.n; k++) {
      const rs_copy *copy = &copies[i].copy.at[k];
      rs_axis axes[RESHARD_MAX_DIMS + 1];
      memcpy(axes, copies[i].axis.at + copy->axes, (size_t)copy->naxes * sizeof *axes);
      axes[copy->naxes] = (rs_axis){copy->run / copy->element, copy->element, copy->element};
      copy_naively(c->source + (copy->src - c->from), c->wanted + (copy->dst - c->to), copy->element, copy->naxes + 1,
                   axes);
    }
  CLI_TRY("", gpu_launch(&graph, c->b->stream[2]));
  right = compare_memory(c) && right;
  gpu_graph_destroy(&graph);
  for (int64_t i = 0; i < j.n; i++) {
    gpu->work->release(gpu, programs[i]);
    rs_copies_free(&copies[i]);
  }
  return right;
}

/* Compiles one program again and again while earlier runs of it may not have ended. */
static bool check_once(gpu_checker *c) {
  rs_device *gpu = c->b->gpu;
  rs_program *program = NULL;
  int64_t at = 0, turns = rng_in(&c->r, 2, 12);
  c->what = "copies that run once";
  for (int64_t i = 0; i < turns; i++) {
    rs_copies copies = {0};
    at = rng_one_in(&c->r, 3) ? at : add_copies(c, &copies, at, ROOM / turns * (i + 1));
    note_tiles(c, &copies);
    CLI_TRY("", gpu->work->recompile(gpu, &copies, ROOM, &program));
    CLI_TRY("", gpu->work->run(gpu, 1, &program, c->b->stream[rng_below(&c->r, GPU_STREAMS)]));
    rs_copies_free(&copies);
  }
  bool right = compare_memory(c);
  gpu->work->release(gpu, program);
  return right;
}

/* Runs copies that convert, compiled or once, and the same on the CPU. */
static bool check_conversions(gpu_checker *c) {
  const rs_device_work *gpu = c->b->gpu->work, *cpu = c->b->cpu->work;
  rs_copies copies[2] = {{.staging = rng_one_in(&c->r, 2)}, {.staging = false}};
  rs_program *program[2] = {NULL, NULL};
  c->what = "copies that convert";
  if (!rng_one_in(&c->r, 3)) { /* numbers of usual sizes: of random bits most blocks have an infinity */
    gpu_usual_numbers(c->source, ROOM);
    gpu_context_to_gpu(c->b, c->from, c->source, ROOM);
  }
  gpu_draw_conversions(&c->r, ROOM, (char *[]){c->from, c->source}, (char *[]){c->to, c->wanted}, copies);
  CLI_TRY("", (rng_one_in(&c->r, 2) ? gpu->compile : gpu->recompile)(c->b->gpu, &copies[0], ROOM, &program[0]));
  CLI_TRY("", gpu->run(c->b->gpu, 1, &program[0], c->b->stream[rng_below(&c->r, GPU_STREAMS)]));
  CLI_TRY("", cpu->compile(c->b->cpu, &copies[1], ROOM, &program[1]));
  CLI_TRY("", cpu->run(c->b->cpu, 1, &program[1], NULL));
  bool right = compare_memory(c);
  gpu->release(c->b->gpu, program[0]);
  cpu->release(c->b->cpu, program[1]);
  rs_copies_free(&copies[0]);
  rs_copies_free(&copies[1]);
  return right;
}

static bool check_spans(gpu_checker *c) {
  enum { MOST = 400 };
  rs_span span[MOST];
  int64_t n = 0, at = 0;
  c->what = "spans";
  for (; n < MOST; n++) {
    int64_t bytes = rng_one_in(&c->r, 10) ? 0 : rng_log(&c->r, 8 << 10), from = rng_below(&c->r, ROOM - bytes);
    at += rng_below(&c->r, 20);
    if (at + bytes > ROOM)
      break;
    span[n] = (rs_span){c->from + from, c->to + at, bytes, rng_one_in(&c->r, 4)};
    memcpy(c->wanted + at, c->source + from, (size_t)bytes);
    at += bytes;
  }
  CLI_TRY("", c->b->gpu->work->copy(c->b->gpu, n, span, ROOM, c->b->stream[0]));
  return compare_memory(c);
}

/* --- Casts, selections, memset ----------------------------------------------------------------------------------- */

static bool check_casts(gpu_checker *c) {
  static const reshard_dtype dtypes[] = {RESHARD_F8_E4M3, RESHARD_F8_E5M2, RESHARD_F16,
                                         RESHARD_BF16,    RESHARD_F32,     RESHARD_F64};
  rs_casts gpu = {0}, cpu = {0};
  c->what = "casts";
  for (int64_t at = 0; at + (64 << 10) < ROOM;) {
    reshard_dtype from = dtypes[rng_below(&c->r, 6)], to = dtypes[rng_below(&c->r, 6)];
    if (!rs_cast_supported(from, to))
      continue;
    int64_t in = (int64_t)reshard_dtype_size(from), out = (int64_t)reshard_dtype_size(to);
    int64_t rows = rng_log(&c->r, 16), row = rng_log(&c->r, 300), src = rng_below(&c->r, 1000) * in;
    rs_axis axes[2] = {{rows, (row + rng_below(&c->r, 3)) * in, row * out}, {row, in, out}};
    at = (at + rng_below(&c->r, 20) + out - 1) / out * out;
    CLI_TRY("", rs_casts_add(&gpu, c->from + src, c->to + at, from, to, 2, axes));
    CLI_TRY("", rs_casts_add(&cpu, c->source + src, c->wanted + at, from, to, 2, axes));
    at += rows * row * out;
  }
  CLI_TRY("", c->b->cpu->work->cast(c->b->cpu, &cpu, NULL));
  CLI_TRY("", c->b->gpu->work->cast(c->b->gpu, &gpu, c->b->stream[1]));
  rs_casts_free(&gpu);
  rs_casts_free(&cpu);
  return compare_memory(c);
}

static bool check_selections(gpu_checker *c) {
  rng *r = &c->r;
  int32_t width = rng_one_in(r, 2) ? 4 : 8, element = 1 << rng_below(r, 5);
  int64_t rows = rng_log(r, 500), run_programs = element * rng_log(r, 64), count = rng_below(r, 300),
          outer = rng_in(r, 1, 3);
  int64_t bad = count > 0 && rng_one_in(r, 3) ? rng_below(r, count) : -1, gap = element * rng_below(r, 3);
  char *index = c->source + ROOM / 2;
  int64_t bad_value = rng_one_in(r, 2) ? -1 - rng_below(r, 100) : rows + rng_below(r, 100);
  for (int64_t i = 0; i < count; i++) {
    int64_t value = i == bad ? bad_value : rng_below(r, rows);
    int32_t narrow = (int32_t)value;
    memcpy(index + i * width, width == 8 ? (void *)&value : (void *)&narrow, (size_t)width);
  }
  if (rows * run_programs * outer > ROOM / 2 - 64 || count * (run_programs + gap) * outer > ROOM - 64)
    return true; /* too large: another time */
  gpu_context_to_gpu(c->b, c->from, c->source, ROOM);
  int64_t shift = rng_below(r, 17);
  rs_select s = {.src = c->from + shift,
                 .index = c->from + ROOM / 2,
                 .dst = c->to + 16 - shift % 16,
                 .count = count,
                 .extent = rows,
                 .index_stride = width,
                 .src_stride = run_programs,
                 .dst_stride = run_programs + gap,
                 .index_bytes = width,
                 .element = element,
                 .run = run_programs,
                 .naxes = 1,
                 .axes = {{outer, rows * run_programs, count * (run_programs + gap)}}};
  rs_select_fault *fault = gpu_context_alloc(c->b, sizeof *fault), found;
  c->what = bad < 0 ? "a selection" : "a selection with an index out of range";
  CLI_TRY("", c->b->gpu->work->select(c->b->gpu, &s, fault, c->b->stream[2]));
  for (int64_t o = 0; o < outer; o++)
    for (int64_t i = 0; i < count; i++) {
      int64_t value = 0;
      int32_t narrow = 0;
      memcpy(width == 8 ? (void *)&value : (void *)&narrow, index + i * width, (size_t)width);
      value = width == 8 ? value : narrow;
      if (i != bad)
        memcpy(c->wanted + 16 - shift % 16 + o * count * (run_programs + gap) + i * (run_programs + gap),
               c->source + shift + o * rows * run_programs + value * run_programs, (size_t)run_programs);
    }
  bool right = compare_memory(c);
  gpu_context_to_host(c->b, &found, fault, sizeof found);
  if (found.position != bad || found.value != (bad < 0 ? 0 : bad_value)) {
    cli_error("%s: position %lld, value %lld were reported, %lld and %lld are right", c->what,
              (long long)found.position, (long long)found.value, (long long)bad, (long long)(bad < 0 ? 0 : bad_value));
    right = false;
  }
  gpu_context_free(c->b, fault);
  return right;
}

static bool check_memset(gpu_checker *c) {
  c->what = "memset";
  for (int i = 0; i < 20; i++) {
    int64_t bytes = rng_log(&c->r, 4000), at = rng_below(&c->r, ROOM - bytes);
    int value = (int)rng_below(&c->r, 256);
    CLI_TRY("", c->b->gpu->memory->memset(c->b->gpu, c->to + at, value, (size_t)bytes, c->b->stream[0]));
    memset(c->wanted + at, value, (size_t)bytes);
  }
  return compare_memory(c);
}

/* --- Storage ----------------------------------------------------------------------------------------------------- */

/* Checks blocks of the pool on several streams. Each is filled with a byte of its own where it is allocated, and
 * checked where it is freed: a block that is reused too early shows another's byte. */
static bool check_storage(gpu_checker *c) {
  enum { LIVE = 12 };
  rs_device *gpu = c->b->gpu;
  struct rs_storage_pool *pool;
  rs_block *live[LIVE] = {NULL};
  int value[LIVE] = {0}, on[LIVE] = {0};
  bool right = true;
  CLI_TRY("", rs_device_pool(c->b->handle, &pool));
  for (int i = 0; i < 60 + LIVE; i++) {
    int k = i < 60 ? (int)rng_below(&c->r, LIVE) : i - 60;
    void *stream = c->b->stream[on[k]];
    if (live[k] != NULL) {
      CLI_TRY("", gpu->memory->memcpy(gpu, c->seen, live[k]->memory, live[k]->bytes, stream));
      CLI_TRY("", gpu->streams->synchronize(gpu, stream));
      for (size_t at = 0; right && at < live[k]->bytes; at++)
        if ((c->seen[at] & 255) != value[k]) {
          cli_error("storage: byte %zu of a block of %zu is %d, should be %d", at, live[k]->bytes, c->seen[at] & 255,
                    value[k]);
          right = false;
        }
      if (rng_one_in(&c->r, 2)) /* work that is still to come when it is freed */
        CLI_TRY("", gpu->memory->memset(gpu, live[k]->memory, 0xee, live[k]->bytes, stream));
      rs_storage_pool_free(pool, live[k], stream);
      live[k] = NULL;
    } else if (i < 60) {
      on[k] = (int)rng_below(&c->r, GPU_STREAMS);
      value[k] = 1 + i;
      CLI_TRY("", rs_storage_pool_alloc(pool, (size_t)rng_log(&c->r, 40000), c->b->stream[on[k]], &live[k]));
      CLI_TRY("", gpu->memory->memset(gpu, live[k]->memory, value[k], live[k]->bytes, c->b->stream[on[k]]));
    }
  }
  return right;
}

/* --- Offsets of more than 32 bits -------------------------------------------------------------------------------- */

/* Copies rows that lie 1 GiB apart, with stamps of their places. */
static bool check_beyond_4g(gpu_context *b) {
  enum { ROWS = 6, ROW = 5000 };
  const int64_t apart = ((int64_t)1 << 30) + 7;
  char *memory = gpu_context_alloc(b, apart * ROWS), *out = gpu_context_alloc(b, ROWS * ROW),
       *host = cli_alloc(ROWS * ROW, 1);
  rs_copies copies = {0};
  rs_program *program = NULL;
  rs_axis axes[2] = {{ROWS, apart, ROW}, {ROW, 1, 1}};
  for (int64_t i = 0; i < ROWS; i++)
    CLI_TRY("", b->gpu->memory->memset(b->gpu, memory + i * apart, (int)i + 1, ROW, b->stream[0]));
  CLI_TRY("", rs_copies_add(&copies, memory, out, 1, 2, axes));
  CLI_TRY("", b->gpu->work->compile(b->gpu, &copies, copies.bytes, &program));
  CLI_TRY("", b->gpu->work->run(b->gpu, 1, &program, b->stream[0]));
  gpu_context_to_host(b, host, out, ROWS * ROW);
  bool right = true;
  for (int64_t i = 0; i < ROWS * ROW && right; i++)
    right = host[i] == i / ROW + 1;
  if (!right)
    cli_error("rows that lie %lld bytes apart: wrong data", (long long)apart);
  b->gpu->work->release(b->gpu, program);
  rs_copies_free(&copies);
  gpu_context_free(b, memory);
  gpu_context_free(b, out);
  free(host);
  return right;
}

static const struct check_kind {
  const char *name;
  bool (*run)(gpu_checker *c);
} check_kinds[] = {{"copies", check_compiled},         {"copies", check_once},    {"spans", check_spans},
                   {"conversions", check_conversions}, {"casts", check_casts},    {"selections", check_selections},
                   {"storage", check_memset},          {"storage", check_storage}};
enum { KINDS = sizeof check_kinds / sizeof *check_kinds };

bool gpu_check_knows(const char *kind) {
  for (int k = 0; k < KINDS; k++)
    if (strcmp(check_kinds[k].name, kind) == 0)
      return true;
  return false;
}

/* The check of a seed: one of the kind's. */
static const struct check_kind *kind_of(const char *kind, uint64_t seed) {
  const struct check_kind *found[KINDS];
  uint64_t n = 0;
  for (int k = 0; k < KINDS; k++)
    if (kind == NULL || strcmp(check_kinds[k].name, kind) == 0)
      found[n++] = &check_kinds[k];
  return found[seed % n];
}

int gpu_check(gpu_context *b, const gpu_check_options *o) {
  gpu_checker c = {.b = b, .from = gpu_context_alloc(b, ROOM), .to = gpu_context_alloc(b, ROOM)};
  c.source = cli_alloc(ROOM, 1);
  c.wanted = cli_alloc(ROOM, 1);
  c.seen = cli_alloc(ROOM, 1);
  int64_t wrong = 0;
  for (int64_t i = 0; i < o->cases && wrong < 10; i++) {
    uint64_t seed = o->seed + (uint64_t)i;
    rng_seed(&c.r, seed);
    fill_memory(&c);
    draw_policy(&c);
    if (!kind_of(o->kind, seed)->run(&c)) {
      wrong++;
      printf("seed %llu: %s; again: reshard_gpu check --cases 1 --seed %llu%s%s\n", (unsigned long long)seed, c.what,
             (unsigned long long)seed, o->kind != NULL ? " --kind " : "", o->kind != NULL ? o->kind : "");
      fflush(stdout);
    }
  }
  gpu_set_policy(b->gpu, (gpu_policy){0});
  if (o->large)
    wrong += !check_beyond_4g(b);
  printf("%lld programs had tiles of the bulk kernel, %lld had tiles of more than 16 KiB\n", (long long)c.bulk,
         (long long)c.wide);
  const char *kinds = o->kind != NULL ? o->kind : "copies, conversions, spans, casts, selections, memset and storage";
  if (o->cases > 0)
    printf("%s: %lld cases of %s%s, %lld wrong\n", b->info.name, (long long)o->cases, kinds,
           o->large ? ", and offsets beyond 4 GiB" : "", (long long)wrong);
  else
    printf("%s: %d case of offsets beyond 4 GiB, %lld wrong\n", b->info.name, o->large, (long long)wrong);
  gpu_context_free(b, c.from);
  gpu_context_free(b, c.to);
  free(c.source);
  free(c.wanted);
  free(c.seen);
  return wrong > 0 ? EXIT_FAILED : EXIT_DONE;
}
