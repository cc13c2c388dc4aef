/* A trainer's q, k and v, cut over FSDP, become an engine's fused qkv of tensor parallelism, and back. The engine's
 * side is a loader's rules, written here by themselves. A rank has its heads of q. Of k and v it has its heads; where
 * there are more ranks than these it has head r / (ranks / heads), as its neighbours do. Its numbers are the trainer's
 * f32, or bf16, each of which is the exact cast of one. */
#include "bench/cli/naive_cast.h"
#include "bench/cli/util.h"
#include "support/fixtures/case.h"
#include "support/reshards/local_world.h"

#include <stdlib.h>
#include <string.h>

#define RANKS   16
#define HEADS   32
#define KV      8 /* heads of k and of v */
#define HEAD    3 /* rows of a head */
#define COLUMNS 5
#define WIDTH   4

enum { Q, K, V, UNFUSED };

typedef struct side {
  reshard_layout layout;
  rank_buffers ranks;
} side;

static int64_t heads_of(int tensor) { return tensor == Q ? HEADS : KV; }

static side make_side(const char *text, int64_t rows, reshard_dtype dtype) {
  side s;
  if (reshard_layout_parse(text, 2, (int64_t[]){rows, COLUMNS}, RANKS, &s.layout) != RESHARD_SUCCESS)
    fail_msg("%s: %s", text, reshard_last_error());
  rank_buffers_create(s.layout, reshard_dtype_size(dtype), &s.ranks);
  return s;
}

static void free_side(side *s) {
  rank_buffers_free(&s->ranks);
  reshard_layout_release(s->layout);
}

/* Casts n numbers of f32, or to f32; of one dtype they stay. */
static void cast_numbers(reshard_dtype from, reshard_dtype to, int64_t n, const unsigned char *in, unsigned char *out) {
  size_t a = reshard_dtype_size(from), b = reshard_dtype_size(to);
  for (int64_t i = 0; i < n; i++) {
    uint64_t bits = 0;
    memcpy(&bits, in + (size_t)i * a, a);
    bits = from == to ? bits : naive_cast(from, to, bits);
    memcpy(out + (size_t)i * b, &bits, b);
  }
}

/* The loader: the rows of a rank, one tensor's behind the other's, in the engine's dtype. Returns their bytes. */
static size_t load_rank(unsigned char *const whole[UNFUSED], int64_t tp, int64_t rank, reshard_dtype engine,
                        unsigned char *rows) {
  size_t bytes = 0, head = HEAD * COLUMNS * WIDTH;
  for (int t = Q; t < UNFUSED; t++) {
    int64_t each = heads_of(t) >= tp ? heads_of(t) / tp : 1;
    int64_t first = heads_of(t) >= tp ? rank * each : rank / (tp / heads_of(t));
    cast_numbers(RESHARD_F32, engine, each * HEAD * COLUMNS, whole[t] + (size_t)first * head, rows + bytes);
    bytes += (size_t)each * HEAD * COLUMNS * reshard_dtype_size(engine);
  }
  return bytes;
}

static void must_run(local_world *world, const reshard_entry *entries, const rank_buffers *const *src,
                     const rank_buffers *const *dst, reshard_path path, int64_t limit) {
  reshard_plan_options options = {.size = RESHARD_PLAN_OPTIONS_INIT, .workspace_limit = limit};
  local_world_result result;
  local_world_reshard(world, UNFUSED, entries, src, dst, &options, path, false, &result);
  if (result.status != RESHARD_SUCCESS)
    fail_msg("%s", result.error);
  bool read = path == RESHARD_PATH_DIRECT && entries->dst_dtype == RESHARD_BF16; /* as f32, twice as wide */
  for (int r = 0; r < RANKS; r++)
    assert_int_equal(result.wire_bytes[r], result.info[r].lower_bound_bytes << read);
  local_world_result_free(&result);
}

/* To the engine's tensor and back, into other memory, for one number of ranks. */
static void fuse_and_back(local_world *world, int64_t tp, const char *parts, reshard_dtype dtype, reshard_path path,
                          int64_t limit) {
  char text[64];
  side from[UNFUSED], back[UNFUSED];
  unsigned char *whole[UNFUSED], rows[(HEADS + 2 * KV) * HEAD * COLUMNS * WIDTH];
  snprintf(text, sizeof text, "mesh(tp=%lld;S0%s)", (long long)tp, parts);
  side fused = make_side(text, (HEADS + 2 * KV) * HEAD, dtype);
  reshard_entry there[UNFUSED], here[UNFUSED];
  int64_t offset[UNFUSED][2], extent[UNFUSED][2];
  const rank_buffers *apart[UNFUSED], *again[UNFUSED], *engine[UNFUSED];
  for (int t = Q, row = 0; t < UNFUSED; t++) {
    from[t] = make_side("mesh(fsdp;S0)", heads_of(t) * HEAD, RESHARD_F32);
    back[t] = make_side("mesh(fsdp;S0)", heads_of(t) * HEAD, RESHARD_F32);
    whole[t] = whole_tensor_create(heads_of(t) * HEAD * COLUMNS, WIDTH, (uint64_t)(100 * tp + t));
    rank_buffers_scatter(&from[t].ranks, whole[t]);
    offset[t][0] = row;
    offset[t][1] = 0;
    extent[t][0] = heads_of(t) * HEAD;
    extent[t][1] = COLUMNS;
    row += (int)extent[t][0];
    there[t] = (reshard_entry){.size = RESHARD_ENTRY_INIT, .dtype = RESHARD_F32, .dst_dtype = dtype};
    here[t] = (reshard_entry){.size = RESHARD_ENTRY_INIT, .dtype = dtype, .dst_dtype = RESHARD_F32};
    there[t].src = from[t].layout;
    there[t].dst = here[t].src = fused.layout;
    here[t].dst = back[t].layout;
    there[t].dst_offset = here[t].src_offset = offset[t];
    there[t].dst_extent = here[t].src_extent = extent[t];
    apart[t] = &from[t].ranks;
    again[t] = &back[t].ranks;
    engine[t] = &fused.ranks;
  }
  must_run(world, there, apart, engine, path, limit);
  for (int64_t r = 0; r < RANKS; r++) {
    size_t bytes = r < tp ? load_rank(whole, tp, r, dtype, rows) : 0;
    int64_t elements;
    assert_int_equal(reshard_layout_buffer_elements(fused.layout, r, 0, &elements), RESHARD_SUCCESS);
    assert_int_equal((size_t)elements * reshard_dtype_size(dtype), bytes);
    if (bytes > 0 && memcmp(fused.ranks.buffer[fused.ranks.first[r]], rows, bytes) != 0)
      fail_msg("%s: rank %lld has other rows than a loader", text, (long long)r);
  }
  must_run(world, here, engine, again, path, limit);
  for (int t = Q; t < UNFUSED; t++) {
    int64_t n = heads_of(t) * HEAD * COLUMNS;
    unsigned char *found = cli_alloc(n, WIDTH), *cast = cli_alloc(n, WIDTH);
    cast_numbers(RESHARD_F32, dtype, n, whole[t], cast);
    cast_numbers(dtype, RESHARD_F32, n, cast, whole[t]);
    assert_int_equal(rank_buffers_gather(&back[t].ranks, found), 0);
    assert_memory_equal(found, whole[t], (size_t)(n * WIDTH));
    free(found);
    free(cast);
    free(whole[t]);
    free_side(&from[t]);
    free_side(&back[t]);
  }
  free_side(&fused);
}

CASE(fsdp_becomes_a_fused_engine_of_any_size_and_comes_back) {
  local_world *world = local_world_create(RANKS);
  for (int64_t tp = 1; tp <= RANKS; tp *= 2)
    for (int i = 0; i < 6; i++)
      fuse_and_back(world, tp, "{32:8/8:8/8}", i < 3 ? RESHARD_F32 : RESHARD_BF16,
                    i % 3 == 0 ? RESHARD_PATH_DIRECT : RESHARD_PATH_PACKED, i % 3 == 2 ? 4096 * RANKS : 0);
  fuse_and_back(world, 8, "{96,24,24}", RESHARD_F32, RESHARD_PATH_PACKED,
                0); /* as many heads as ranks: the same without / */
  local_world_destroy(world);
}

RUN_CASES
