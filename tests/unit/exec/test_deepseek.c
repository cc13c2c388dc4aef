/* A layer of DeepSeek-V3, scaled down: a trainer's bf16 becomes an engine's FP8 with a scale for each block over TP 1
 * to 16, and comes back. The engine's side is a loader's rules, written here by themselves: a checkpoint has values
 * and scales of each tensor; a rank takes its rows or columns of the values, and those over the block of the scales,
 * and puts tensors that are fused one behind the other. Blocks are 4 x 4, as 128 x 128 are in the model: kv_a ends
 * within one. */
#include "bench/cli/naive_cast.h"
#include "bench/cli/naive_scaled.h"
#include "bench/cli/util.h"
#include "layout/blocks.h"
#include "support/fixtures/case.h"
#include "support/reshards/local_world.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { RANKS = 16, BLOCK = 4, PARTS = 11, ENGINES = 8, HALF = 2 };

/* The engine's tensors, by [experts, rows, columns]. */
static const struct {
  const char *layout; /* with the number of ranks */
  int cut;            /* the dim of which each rank has its share; -1: none */
  int ndim;
} engines[ENGINES] = {{"mesh(tp=%lld;R)", -1, 2},      {"mesh(tp=%lld;S0)", 1, 2},      {"mesh(tp=%lld;S0)", 1, 2},
                      {"mesh(tp=%lld;S1)", 2, 2},      {"mesh(tp=%lld;S0{1:1})", 1, 2}, {"mesh(tp=%lld;S1)", 2, 2},
                      {"mesh(tp=%lld;S1{1:1})", 1, 3}, {"mesh(tp=%lld;S2)", 2, 3}};

#define ROWS    "mesh(fsdp=16;S0)"
#define COLUMNS "mesh(fsdp=16;S1)"
/* The trainer's tensors, in the order of the engine's, which several make together. */
static const struct {
  const char *name, *from, *to; /* the trainer's layouts of both ways */
  int engine;
  int64_t shape[3];
} parts[PARTS] = {
    {"q_a", COLUMNS, COLUMNS, 0, {1, 24, 64}}, {"kv_a", COLUMNS, ROWS, 0, {1, 18, 64}}, /* rows are cut within blocks */
    {"q_b", ROWS, ROWS, 1, {1, 64, 24}},       {"kv_b", ROWS, ROWS, 2, {1, 128, 16}},
    {"o", ROWS, ROWS, 3, {1, 64, 64}},         {"gate", ROWS, ROWS, 4, {1, 64, 64}},
    {"up", ROWS, ROWS, 4, {1, 64, 64}},        {"down", ROWS, COLUMNS, 5, {1, 64, 64}},
    {"w1", ROWS, ROWS, 6, {4, 64, 64}},        {"w3", ROWS, ROWS, 6, {4, 64, 64}},
    {"w2", ROWS, COLUMNS, 7, {4, 64, 64}}};

/* A tensor of the checkpoint. */
typedef struct stored {
  int64_t elements, across, down; /* blocks of a row, and of a column */
  unsigned char *numbers, *back;  /* bf16, before and after */
  unsigned char *values, *scales;
} stored;

static int64_t block_of(const stored *t, const int64_t *shape, int64_t i) {
  int64_t row = i / shape[2] % shape[1], column = i % shape[2];
  return (i / shape[2] / shape[1] * t->down + row / BLOCK) * t->across + column / BLOCK;
}

static stored make_stored(const int64_t *shape, uint32_t seed, reshard_dtype scales) {
  stored t = {.elements = shape[0] * shape[1] * shape[2],
              .across = (shape[2] + BLOCK - 1) / BLOCK,
              .down = (shape[1] + BLOCK - 1) / BLOCK};
  int64_t blocks = shape[0] * t.down * t.across, width = (int64_t)reshard_dtype_size(scales);
  float *most = cli_alloc(blocks, sizeof *most);
  t.numbers = cli_alloc(t.elements, HALF);
  t.back = cli_alloc(t.elements, HALF);
  t.values = cli_alloc(t.elements, 1);
  t.scales = cli_alloc(blocks, (size_t)width);
  for (int64_t i = 0; i < t.elements; i++) {
    seed = seed * 1664525 + 1013904223;
    float number = ldexpf((float)(int32_t)(seed >> 8) - 8388608, -26 - (int)(seed >> 4 & 7));
    uint32_t bits;
    memcpy(&bits, &number, sizeof bits);
    bits = (uint32_t)naive_cast(RESHARD_F32, RESHARD_BF16, bits);
    memcpy(t.numbers + i * HALF, &bits, HALF);
    most[block_of(&t, shape, i)] = naive_most(most[block_of(&t, shape, i)], naive_wide(&bits, RESHARD_BF16, 0));
  }
  for (int64_t b = 0; b < blocks; b++) {
    uint32_t bits = naive_scale_bits(naive_scale(most[b], scales), scales);
    memcpy(t.scales + b * width, &bits, (size_t)width);
  }
  for (int64_t i = 0; i < t.elements; i++) {
    float scale = naive_stored_scale(t.scales, scales, block_of(&t, shape, i));
    t.values[i] = (unsigned char)naive_scaled(naive_wide(t.numbers, RESHARD_BF16, i), scale);
    uint32_t bits = naive_unscaled(t.values[i], scale, RESHARD_BF16);
    memcpy(t.back + i * HALF, &bits, HALF);
  }
  free(most);
  return t;
}

/* The loader: a rank's share of elements of `width` bytes, which are values or, over the block, scales. Of dim `cut`
 * it takes its chunk; tensors of one expert after the other, in each one tensor behind the other. */
static size_t load_rank(const stored *t, int engine, int64_t tp, int64_t rank, bool of_scales, size_t width,
                        unsigned char *out) {
  size_t bytes = 0;
  int64_t over = of_scales ? BLOCK : 1, experts = engines[engine].ndim == 3 ? parts[PARTS - 1].shape[0] : 1;
  for (int64_t e = 0; e < experts; e++)
    for (int p = 0; p < PARTS; p++) {
      int64_t n[3] = {1, (parts[p].shape[1] + over - 1) / over, (parts[p].shape[2] + over - 1) / over};
      int64_t begin[3] = {0}, end[3] = {1, n[1], n[2]};
      int cut = engines[engine].cut;
      if (parts[p].engine != engine)
        continue;
      if (cut >= 0) {
        begin[cut] = rank * (n[cut] / tp);
        end[cut] = begin[cut] + n[cut] / tp;
      }
      const unsigned char *from = of_scales ? t[p].scales : t[p].values;
      for (int64_t row = begin[1]; row < end[1]; row++) {
        size_t run = (size_t)(end[2] - begin[2]) * width;
        memcpy(out + bytes, from + (size_t)((e * n[1] + row) * n[2] + begin[2]) * width, run);
        bytes += run;
      }
    }
  return bytes;
}

typedef struct side {
  reshard_layout layout;
  rank_buffers ranks;
} side;

static side make_side(const char *text, int ndim, const int64_t *shape, size_t width) {
  side s;
  if (reshard_layout_parse(text, ndim, shape + 3 - ndim, RANKS, &s.layout) != RESHARD_SUCCESS)
    fail_msg("%s: %s", text, reshard_last_error());
  rank_buffers_create(s.layout, (int64_t)width, &s.ranks);
  return s;
}

static void free_side(side *s) {
  rank_buffers_free(&s->ranks);
  reshard_layout_release(s->layout);
}

/* The engine's side of all tensors: values, scales, and a list of both. */
typedef struct engine_side {
  side values, scales;
  rank_buffers both;
} engine_side;

static const int64_t blocks[3] = {1, BLOCK, BLOCK};

static engine_side make_engine(int engine, int64_t tp, reshard_dtype scales) {
  char text[64];
  int64_t shape[3] = {1, 0, 0};
  engine_side s;
  int ndim = engines[engine].ndim;
  for (int p = 0; p < PARTS; p++)
    if (parts[p].engine == engine) {
      shape[0] = parts[p].shape[0];
      shape[1] += parts[p].shape[1];
      shape[2] = parts[p].shape[2];
    }
  snprintf(text, sizeof text, engines[engine].layout, (long long)tp);
  s.values = make_side(text, ndim, shape, 1);
  assert_int_equal(rs_layout_blocks(s.values.layout, blocks + 3 - ndim, &s.scales.layout), RESHARD_SUCCESS);
  rank_buffers_create(s.scales.layout, (int64_t)reshard_dtype_size(scales), &s.scales.ranks);
  s.both = (rank_buffers){.layout = s.values.layout, .world = RANKS, .width = 1};
  s.both.first = cli_alloc(RANKS + 1, sizeof *s.both.first);
  s.both.buffer = cli_alloc(2 * RANKS, sizeof *s.both.buffer);
  for (int64_t r = 0; r < RANKS; r++) {
    int64_t n = s.values.ranks.first[r + 1] - s.values.ranks.first[r];
    s.both.first[r + 1] = s.both.first[r] + 2 * n;
    for (int64_t b = 0; b < n; b++) {
      s.both.buffer[s.both.first[r] + b] = s.values.ranks.buffer[s.values.ranks.first[r] + b];
      s.both.buffer[s.both.first[r] + n + b] = s.scales.ranks.buffer[s.scales.ranks.first[r] + b];
    }
  }
  return s;
}

static void free_engine(engine_side *s) {
  free(s->both.first);
  free(s->both.buffer);
  free_side(&s->values);
  free_side(&s->scales);
}

static void check_loaded(const stored *t, int engine, const engine_side *s, int64_t tp, reshard_dtype scales) {
  static unsigned char want[4 * 128 * 64];
  for (int64_t r = 0; r < tp; r++)
    for (int of_scales = 0; of_scales < 2; of_scales++) {
      size_t bytes = load_rank(t, engine, tp, r, of_scales, of_scales ? reshard_dtype_size(scales) : 1, want);
      const side *has = of_scales ? &s->scales : &s->values;
      int64_t elements;
      assert_int_equal(reshard_layout_buffer_elements(has->layout, r, 0, &elements), RESHARD_SUCCESS);
      assert_int_equal((size_t)elements * (of_scales ? reshard_dtype_size(scales) : 1), bytes);
      if (memcmp(has->ranks.buffer[has->ranks.first[r]], want, bytes) != 0)
        fail_msg("TP %lld: rank %lld has other %s of tensor %d than a loader", (long long)tp, (long long)r,
                 of_scales ? "scales" : "values", engine);
    }
}

static void must_run(local_world *world, const reshard_entry *entries, const rank_buffers *const *src,
                     const rank_buffers *const *dst, reshard_path path, int64_t limit) {
  reshard_plan_options options = {.size = RESHARD_PLAN_OPTIONS_INIT, .workspace_limit = limit, .on_cpu = 1};
  local_world_result result;
  local_world_reshard(world, PARTS, entries, src, dst, &options, path, false, &result);
  if (result.status != RESHARD_SUCCESS)
    fail_msg("%s", result.error);
  local_world_result_free(&result);
}

static void load_and_back(local_world *world, int64_t tp, reshard_dtype scales, reshard_path path, int64_t limit) {
  stored t[PARTS];
  side from[PARTS], to[PARTS];
  engine_side engine[ENGINES];
  reshard_entry there[PARTS], here[PARTS];
  int64_t offset[PARTS][3], row[ENGINES] = {0};
  const rank_buffers *trainer[PARTS], *again[PARTS], *loaded[PARTS];
  for (int e = 0; e < ENGINES; e++)
    engine[e] = make_engine(e, tp, scales);
  for (int p = 0; p < PARTS; p++) {
    int e = parts[p].engine, ndim = engines[e].ndim, skipped = 3 - ndim;
    const int64_t *shape = parts[p].shape;
    t[p] = make_stored(shape, (uint32_t)(31 * p + tp), scales);
    from[p] = make_side(parts[p].from, ndim, shape, HALF);
    to[p] = make_side(parts[p].to, ndim, shape, HALF);
    rank_buffers_scatter(&from[p].ranks, t[p].numbers);
    memcpy(offset[p], (int64_t[]){0, row[e], 0}, sizeof offset[p]);
    row[e] += shape[1];
    there[p] = (reshard_entry){.size = RESHARD_ENTRY_INIT,
                               .name = parts[p].name,
                               .dtype = RESHARD_BF16,
                               .dst_dtype = RESHARD_F8_E4M3,
                               .block = blocks + skipped,
                               .scale_dtype = scales};
    here[p] = there[p];
    here[p].dtype = RESHARD_F8_E4M3;
    here[p].dst_dtype = RESHARD_BF16;
    there[p].src = from[p].layout;
    there[p].dst = here[p].src = engine[e].values.layout;
    here[p].dst = to[p].layout;
    there[p].dst_offset = here[p].src_offset = offset[p] + skipped;
    there[p].dst_extent = here[p].src_extent = shape + skipped;
    trainer[p] = &from[p].ranks;
    loaded[p] = &engine[e].both;
    again[p] = &to[p].ranks;
  }
  must_run(world, there, trainer, loaded, path, limit);
  for (int e = 0; e < ENGINES; e++)
    check_loaded(t, e, &engine[e], tp, scales);
  must_run(world, here, loaded, again, path, limit);
  for (int p = 0; p < PARTS; p++) {
    unsigned char *found = cli_alloc(t[p].elements, HALF);
    assert_int_equal(rank_buffers_gather(&to[p].ranks, found), 0);
    assert_memory_equal(found, t[p].back, (size_t)t[p].elements * HALF);
    free(found);
    free(t[p].numbers);
    free(t[p].back);
    free(t[p].values);
    free(t[p].scales);
    free_side(&from[p]);
    free_side(&to[p]);
  }
  for (int e = 0; e < ENGINES; e++)
    free_engine(&engine[e]);
}

CASE(bf16_becomes_block_fp8_of_an_engine_of_any_size_and_comes_back) {
  local_world *world = local_world_create(RANKS);
  for (int64_t tp = 1; tp <= RANKS; tp *= 2)
    for (int i = 0; i < 2; i++)
      load_and_back(world, tp, (i + tp) % 2 == 0 ? RESHARD_F8_E8M0 : RESHARD_F32,
                    i == 0 ? RESHARD_PATH_DIRECT : RESHARD_PATH_PACKED, i == 0 ? RESHARD_DEFAULT_LIMIT : 4096 * RANKS);
  local_world_destroy(world);
}

RUN_CASES
