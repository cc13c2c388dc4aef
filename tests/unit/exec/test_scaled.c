/* Moves to and from f8_e4m3 with a scale for each block, against the definition: on all paths, in one round and in
 * several, of whole tensors and of parts, and where cuts lie within blocks. */
#include "bench/cli/naive_cast.h"
#include "bench/cli/naive_scaled.h"
#include "bench/cli/util.h"
#include "layout/blocks.h"
#include "support/fixtures/case.h"
#include "support/fixtures/expect.h"
#include "support/processes/process_matrix.h"
#include "support/reshards/local_world.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { RANKS = 4, DIMS = 2 };

/* One entry: the other side's layout and tensor, and those with scales. */
typedef struct scene {
  const char *wide, *scaled;
  int64_t wide_shape[DIMS], scaled_shape[DIMS], block[DIMS];
  int64_t wide_offset[DIMS], scaled_offset[DIMS], extent[DIMS]; /* of the region; extent 0: all */
  bool transposed;
  reshard_dtype dtype, scales;
  bool cut; /* the other side has cuts within blocks */
} scene;

/* Both sides in memory. */
typedef struct sides {
  reshard_layout wide, scaled, of_scales;
  rank_buffers numbers, values, scales, both; /* both: values, then scales, of each rank */
} sides;

static reshard_layout parse_layout(const char *text, const int64_t *shape) {
  reshard_layout l;
  if (reshard_layout_parse(text, DIMS, shape, RANKS, &l) != RESHARD_SUCCESS)
    fail_msg("%s: %s", text, reshard_last_error());
  return l;
}

static void join_buffers(sides *s) {
  s->both = (rank_buffers){.layout = s->scaled, .world = RANKS, .width = 1};
  s->both.first = cli_alloc(RANKS + 1, sizeof *s->both.first);
  s->both.buffer = cli_alloc(s->values.first[RANKS] + s->scales.first[RANKS], sizeof *s->both.buffer);
  int64_t n = 0;
  for (int64_t r = 0; r < RANKS; r++) {
    s->both.first[r] = n;
    for (int64_t b = s->values.first[r]; b < s->values.first[r + 1]; b++)
      s->both.buffer[n++] = s->values.buffer[b];
    for (int64_t b = s->scales.first[r]; b < s->scales.first[r + 1]; b++)
      s->both.buffer[n++] = s->scales.buffer[b];
  }
  s->both.first[RANKS] = n;
}

static sides make_sides(const scene *c) {
  sides s = {.wide = parse_layout(c->wide, c->wide_shape), .scaled = parse_layout(c->scaled, c->scaled_shape)};
  if (rs_layout_blocks(s.scaled, c->block, &s.of_scales) != RESHARD_SUCCESS)
    fail_msg("%s: %s", c->scaled, reshard_last_error());
  rank_buffers_create(s.wide, (int64_t)reshard_dtype_size(c->dtype), &s.numbers);
  rank_buffers_create(s.scaled, 1, &s.values);
  rank_buffers_create(s.of_scales, (int64_t)reshard_dtype_size(c->scales), &s.scales);
  join_buffers(&s);
  return s;
}

static void free_sides(sides *s) {
  rank_buffers_free(&s->numbers);
  rank_buffers_free(&s->values);
  rank_buffers_free(&s->scales);
  free(s->both.first);
  free(s->both.buffer);
  reshard_layout_release(s->wide);
  reshard_layout_release(s->scaled);
  reshard_layout_release(s->of_scales);
}

/* Whole tensors. */
typedef struct tensors {
  int64_t n[2], across, blocks; /* numbers, values; blocks of a row, and in all */
  unsigned char *numbers, *values, *scales;
} tensors;

static tensors alloc_tensors(const scene *c) {
  tensors t = {.n = {c->wide_shape[0] * c->wide_shape[1], c->scaled_shape[0] * c->scaled_shape[1]}};
  t.across = (c->scaled_shape[1] + c->block[1] - 1) / c->block[1];
  t.blocks = (c->scaled_shape[0] + c->block[0] - 1) / c->block[0] * t.across;
  t.numbers = cli_alloc(t.n[0], reshard_dtype_size(c->dtype));
  t.values = cli_alloc(t.n[1], 1);
  t.scales = cli_alloc(t.blocks, reshard_dtype_size(c->scales));
  return t;
}

static void free_tensors(tensors *t) {
  free(t->numbers);
  free(t->values);
  free(t->scales);
}

/* The element of the other side that goes to row r and column k of the values; -1: none does. */
static int64_t wide_of(const scene *c, int64_t r, int64_t k) {
  int64_t at[DIMS] = {r - c->scaled_offset[0], k - c->scaled_offset[1]};
  for (int d = 0; d < DIMS; d++)
    if (at[d] < 0 || at[d] >= (c->extent[0] > 0 ? c->extent[d] : c->scaled_shape[d]))
      return -1;
  int64_t row = at[c->transposed] + c->wide_offset[0], column = at[!c->transposed] + c->wide_offset[1];
  return row * c->wide_shape[1] + column;
}

static void draw_numbers(const scene *c, tensors *t) {
  uint32_t state = 7;
  for (int64_t i = 0; i < t->n[0]; i++) {
    state = state * 1664525 + 1013904223;
    float number = i % 97 == 0 ? 0 : ldexpf((float)(int32_t)(state >> 8) - 8388608, (int)(i / 50 % 20) - 40);
    uint32_t bits;
    memcpy(&bits, &number, sizeof bits);
    bits = c->dtype == RESHARD_F32 ? bits : (uint32_t)naive_cast(RESHARD_F32, c->dtype, bits);
    memcpy(t->numbers + (size_t)i * reshard_dtype_size(c->dtype), &bits, reshard_dtype_size(c->dtype));
  }
}

static int64_t block_of(const scene *c, const tensors *t, int64_t r, int64_t k) {
  return r / c->block[0] * t->across + k / c->block[1];
}

/* Values and scales of the numbers; what no number goes to stays as it is. */
static void scale_by_definition(const scene *c, tensors *t) {
  float *most = cli_alloc(t->blocks, sizeof *most);
  bool *met = cli_alloc(t->blocks, sizeof *met);
  for (int pass = 0; pass < 2; pass++)
    for (int64_t i = 0; i < t->n[1]; i++) {
      int64_t r = i / c->scaled_shape[1], k = i % c->scaled_shape[1], from = wide_of(c, r, k), b = block_of(c, t, r, k);
      if (from < 0)
        continue;
      float number = naive_wide(t->numbers, c->dtype, from);
      met[b] = true;
      if (pass == 0)
        most[b] = naive_most(most[b], number);
      else
        t->values[i] = (unsigned char)naive_scaled(number, naive_scale(most[b], c->scales));
    }
  for (int64_t b = 0; b < t->blocks; b++) {
    uint32_t bits = naive_scale_bits(naive_scale(most[b], c->scales), c->scales);
    if (met[b])
      memcpy(t->scales + (size_t)b * reshard_dtype_size(c->scales), &bits, reshard_dtype_size(c->scales));
  }
  free(most);
  free(met);
}

/* Numbers of the values and scales. */
static void unscale_by_definition(const scene *c, tensors *t) {
  for (int64_t i = 0; i < t->n[1]; i++) {
    int64_t r = i / c->scaled_shape[1], k = i % c->scaled_shape[1], to = wide_of(c, r, k);
    if (to < 0)
      continue;
    float scale = naive_stored_scale(t->scales, c->scales, block_of(c, t, r, k));
    uint32_t bits = naive_unscaled(t->values[i], scale, c->dtype);
    memcpy(t->numbers + (size_t)to * reshard_dtype_size(c->dtype), &bits, reshard_dtype_size(c->dtype));
  }
}

/* The limit that the rank which needs most takes, as plans alone tell. */
static int64_t needed_limit(const reshard_entry *e, const reshard_plan_options *options) {
  int64_t most = 0;
  for (int64_t r = 0; r < RANKS; r++) {
    reshard_plan plan;
    reshard_plan_info info;
    GOOD(reshard_plan_create(1, e, r, options, &plan));
    GOOD(reshard_plan_get_info(plan, &info));
    most = info.workspace_limit > most ? info.workspace_limit : most;
    reshard_plan_destroy(plan);
  }
  return most;
}

/* The entry of a scene, there or back; extents: of the other side's region, while the entry is used. */
static reshard_entry make_entry(const scene *c, const sides *s, bool back, int64_t extents[DIMS]) {
  static const int turned[DIMS] = {1, 0};
  extents[0] = c->extent[c->transposed];
  extents[1] = c->extent[!c->transposed];
  bool part = c->extent[0] > 0;
  return (reshard_entry){.size = RESHARD_ENTRY_INIT,
                         .src = back ? s->scaled : s->wide,
                         .dst = back ? s->wide : s->scaled,
                         .dtype = back ? RESHARD_F8_E4M3 : c->dtype,
                         .dst_dtype = back ? c->dtype : RESHARD_F8_E4M3,
                         .src_offset = part ? (back ? c->scaled_offset : c->wide_offset) : NULL,
                         .dst_offset = part ? (back ? c->wide_offset : c->scaled_offset) : NULL,
                         .src_extent = part ? (back ? c->extent : extents) : NULL,
                         .dst_extent = part ? (back ? extents : c->extent) : NULL,
                         .permutation = c->transposed ? turned : NULL,
                         .block = c->block,
                         .scale_dtype = c->scales};
}

/* False where the limit is too small, which all ranks say then. */
static bool move_tensor(local_world *world, const scene *c, const sides *s, bool back, reshard_path path,
                        int64_t limit) {
  int64_t extents[DIMS];
  const reshard_entry e = make_entry(c, s, back, extents);
  reshard_plan_options options = {.size = RESHARD_PLAN_OPTIONS_INIT, .workspace_limit = limit, .on_cpu = 1};
  const rank_buffers *wide = &s->numbers, *scaled = &s->both;
  local_world_result result;
  int64_t needed = limit > 0 ? needed_limit(&e, &options) : 0;
  local_world_reshard(world, 1, &e, back ? &scaled : &wide, back ? &wide : &scaled, &options, path, false, &result);
  if (limit > 0 && needed > limit) {
    char text[64];
    snprintf(text, sizeof text, "needs %lld for blocks", (long long)needed);
    assert_int_equal(result.status, RESHARD_ERROR_INVALID);
    assert_non_null(strstr(result.error, text));
    local_world_result_free(&result);
    return false;
  }
  if (result.status != RESHARD_SUCCESS)
    fail_msg("%s to %s: %s", back ? c->scaled : c->wide, back ? c->wide : c->scaled, result.error);
  for (int r = 0; r < RANKS && path == RESHARD_PATH_PACKED; r++)
    assert_int_equal(result.wire_bytes[r], result.info[r].received_bytes);
  local_world_result_free(&result);
  return true;
}

static void check_same(const char *what, const scene *c, const unsigned char *found, const unsigned char *wanted,
                       size_t bytes) {
  for (size_t i = 0; i < bytes; i++)
    if (found[i] != wanted[i])
      fail_msg("%s to %s: byte %zu of %s is %02x, not %02x", c->wide, c->scaled, i, what, found[i], wanted[i]);
}

/* There and back; returns how many of both took place under the limit. */
static int run_scene(local_world *world, const scene *c, reshard_path path, int64_t limit) {
  int moved = 0;
  tensors want = alloc_tensors(c), found = alloc_tensors(c);
  size_t scales = (size_t)want.blocks * reshard_dtype_size(c->scales), values = (size_t)want.n[1];
  size_t numbers = (size_t)want.n[0] * reshard_dtype_size(c->dtype);
  sides s = make_sides(c);
  memset(want.values, 0xee, values);
  memset(want.scales, 0xee, scales);
  draw_numbers(c, &want);
  rank_buffers_scatter(&s.numbers, want.numbers);
  scale_by_definition(c, &want);
  if (c->cut) {
    rank_buffers_scatter(&s.values, want.values);
    rank_buffers_scatter(&s.scales, want.scales);
  } else if (move_tensor(world, c, &s, false, path, limit)) {
    moved++;
    assert_int_equal(rank_buffers_gather(&s.values, found.values), 0);
    assert_int_equal(rank_buffers_gather(&s.scales, found.scales), 0);
    check_same("the scales", c, found.scales, want.scales, scales);
    check_same("the values", c, found.values, want.values, values);
  }
  memset(want.numbers, 0xee, numbers);
  rank_buffers_scatter(&s.numbers, want.numbers);
  rank_buffers_scatter(&s.values, want.values);
  rank_buffers_scatter(&s.scales, want.scales);
  unscale_by_definition(c, &want);
  if (move_tensor(world, c, &s, true, path, limit)) {
    moved++;
    assert_int_equal(rank_buffers_gather(&s.numbers, found.numbers), 0);
    check_same("the numbers", c, found.numbers, want.numbers, numbers);
  }
  free_sides(&s);
  free_tensors(&want);
  free_tensors(&found);
  return moved;
}

#define F32_F32                           .dtype = RESHARD_F32, .scales = RESHARD_F32
#define BF16_F32                          .dtype = RESHARD_BF16, .scales = RESHARD_F32
#define F16_F32                           .dtype = RESHARD_F16, .scales = RESHARD_F32
#define F32_E8M0                          .dtype = RESHARD_F32, .scales = RESHARD_F8_E8M0
#define SAME(...)                         .wide_shape = {__VA_ARGS__}, .scaled_shape = {__VA_ARGS__}
#define BLOCK(...)                        .block = {__VA_ARGS__}
#define PART(r, k, rows, columns, r1, k1) .wide_offset = {r, k}, .extent = {rows, columns}, .scaled_offset = {r1, k1}

static const scene scenes[] = {
    {"chunk(0)", "chunk(1)", SAME(64, 96), BLOCK(8, 8), F32_F32},
    {"chunk(0)", "chunk(1)", SAME(63, 95), BLOCK(8, 8), BF16_F32},
    {"chunk(1)", "chunk(0)", SAME(61, 253), BLOCK(16, 32), F32_E8M0},
    {"chunk(0)", "chunk(1)", SAME(128, 512), BLOCK(1, 128), BF16_F32},
    {"chunk(1)", "chunk(0)", SAME(30, 64), BLOCK(1, 16), F32_E8M0},
    {"mesh(4;R)", "mesh(a=2,b=2;S0,S1)", SAME(40, 24), BLOCK(4, 6), F32_F32},
    {"chunk(0)", "mesh(4;R)", SAME(40, 24), BLOCK(5, 24), F16_F32},
    {"mesh(4;R)", "mesh(4;R)", SAME(1, 7), BLOCK(3, 4), F32_F32},
    {"cyclic(2x2;8x8)", "cyclic(4x1;4x4)", SAME(70, 50), BLOCK(4, 4), F32_F32},
    {"chunk(0)", "chunk(1)", SAME(64, 96), BLOCK(16, 1), F32_E8M0},
    {"chunk(0)", "chunk(1)", SAME(64, 96), BLOCK(1, 1), F16_F32},
    {"chunk(0)", "chunk(0)", {48, 64}, {64, 48}, BLOCK(8, 4), .transposed = true, BF16_F32},
    /* parts: on blocks of both tensors, and counted from the begin of the region alone */
    {"chunk(0)", "chunk(1)", {64, 96}, {48, 64}, BLOCK(8, 8), PART(16, 24, 40, 48, 8, 16), F32_F32},
    {"rank(2)", "chunk(0)", {64, 96}, {40, 40}, BLOCK(5, 8), PART(3, 5, 40, 40, 0, 0), BF16_F32},
    {"chunk(0)", "chunk(0)", {52, 20}, {52, 16}, BLOCK(13, 8), PART(13, 3, 39, 16, 0, 0), F32_F32},
    {"chunk(0)", "rank(1)", {52, 20}, {40, 16}, BLOCK(13, 8), PART(13, 3, 39, 16, 0, 0), F32_F32},
    /* parts of a dim that end within blocks, but on one rank; ranks that have nothing of the region */
    {"mesh(1@2;S0{12,52})", "chunk(0)", SAME(64, 96), BLOCK(8, 8), F32_F32},
    {"chunk(0)", "rank(1)", {64, 96}, {8, 96}, BLOCK(8, 8), PART(4, 0, 8, 96, 0, 0), F32_E8M0},
    /* arrays of several runs, one of which is in the region: the second, or one beyond the first look */
    {"cyclic(2x1;10x96)", "rank(1)", {64, 96}, {10, 96}, BLOCK(8, 8), PART(20, 0, 10, 96, 0, 0), F32_F32},
    {"cyclic(2x1;1x16)", "rank(2)", {200, 16}, {1, 16}, BLOCK(2, 8), PART(141, 0, 1, 16, 0, 0), BF16_F32},
    /* cuts of the other side within blocks */
    {"cyclic(2x1;10x96)", "rank(1)", {64, 96}, {30, 96}, BLOCK(4, 8), PART(20, 0, 30, 96, 0, 0), F16_F32, .cut = true},
    {"chunk(0)", "chunk(1)", SAME(62, 94), BLOCK(12, 4), F32_F32, .cut = true},
    {"flat(0-3)", "chunk(0)", SAME(62, 90), BLOCK(16, 16), F32_E8M0, .cut = true},
    {"cyclic(2x2;3x5)", "chunk(1)", SAME(62, 94), BLOCK(31, 8), F16_F32, .cut = true},
    {"chunk(0)", "cyclic(2x1;2x8)", SAME(33, 20), BLOCK(2, 4), BF16_F32, .cut = true},
};
enum { SCENES = sizeof scenes / sizeof *scenes };

CASE(values_and_scales_are_those_of_the_definition_on_every_path) {
  local_world *world = local_world_create(RANKS);
  for (int i = 0; i < SCENES; i++) {
    run_scene(world, &scenes[i], RESHARD_PATH_DIRECT, RESHARD_DEFAULT_LIMIT);
    run_scene(world, &scenes[i], RESHARD_PATH_PACKED, RESHARD_NO_LIMIT);
  }
  local_world_destroy(world);
}

CASE(limits_keep_blocks_whole_or_are_refused_with_what_is_needed) {
  local_world *world = local_world_create(RANKS);
  int moved = 0, refused = 0;
#if defined(__SANITIZE_THREAD__) /* threads do the same in each scene */
  const int step = 5;
#else
  const int step = 1;
#endif
  for (int i = 0; i < SCENES; i += step)
    for (int64_t limit = 256 * RANKS; limit <= 64 << 10; limit += limit / 3) {
      int done = run_scene(world, &scenes[i], RESHARD_PATH_PACKED, limit);
      moved += done;
      refused += 2 - scenes[i].cut - done;
    }
  assert_true(moved > 400 / step && refused > 50 / step);
  local_world_destroy(world);
}

/* A rank's buffers of a source, in storage that other processes map. */
static void **share_buffers(reshard_device device, const rank_buffers *b, const sides *s, bool scaled, int64_t rank,
                            size_t width, reshard_tensor *storage) {
  int64_t n = b->first[rank + 1] - b->first[rank];
  void **list = cli_alloc(n, sizeof *list);
  for (int64_t i = 0; i < n; i++) {
    int64_t values = scaled ? n / 2 : n, elements, width_of = scaled && i >= values ? s->scales.width : (int64_t)width;
    CHILD_CHECK(reshard_layout_buffer_elements(scaled && i >= values ? s->of_scales
                                               : scaled              ? s->scaled
                                                                     : s->wide,
                                               rank, i % values, &elements) == RESHARD_SUCCESS);
    storage[i] = elements > 0 ? alloc_on(device, elements * width_of, &list[i]) : NULL;
    if (elements > 0)
      memcpy(list[i], b->buffer[b->first[rank] + i], (size_t)(elements * width_of));
  }
  return list;
}

/* One rank's part, to buffers of its own that are compared with those where the definition put them. */
static void move_rank(reshard_comm comm, reshard_device device, const scene *c, const sides *from, const sides *to,
                      bool back, reshard_path path) {
  int64_t extents[DIMS], rank = reshard_comm_rank(comm);
  const reshard_entry e = make_entry(c, from, back, extents);
  const rank_buffers *src = back ? &from->both : &from->numbers, *dst = back ? &to->numbers : &to->both;
  reshard_tensor storage[16];
  void **shared = share_buffers(device, src, from, back, rank, reshard_dtype_size(e.dtype), storage);
  const reshard_arrays arrays = {
      .size = RESHARD_ARRAYS_INIT, .src = shared, .dst = (void **)dst->buffer + dst->first[rank]};
  const reshard_transfer_options options = {RESHARD_TRANSFER_OPTIONS_INIT, .path = path};
  reshard_plan plan;
  reshard_transfer transfer;
  CHILD_CHECK(reshard_plan_create(1, &e, rank, NULL, &plan) == RESHARD_SUCCESS);
  CHILD_CHECK(reshard_transfer_create(plan, comm, &arrays, &options, &transfer) == RESHARD_SUCCESS);
  for (int turn = 0; turn < 3; turn++)
    CHILD_CHECK(reshard_execute(transfer, NULL) == RESHARD_SUCCESS);
  reshard_transfer_destroy(transfer);
  reshard_plan_destroy(plan);
  for (int64_t i = 0; i < src->first[rank + 1] - src->first[rank]; i++)
    reshard_tensor_release(storage[i]);
  free(shared);
}

static bool same_rank(const rank_buffers *found, const rank_buffers *wanted, int64_t rank) {
  bool same = true;
  for (int64_t b = found->first[rank]; b < found->first[rank + 1]; b++) {
    int64_t elements;
    CHILD_CHECK(reshard_layout_buffer_elements(found->layout, rank, b - found->first[rank], &elements) ==
                RESHARD_SUCCESS);
    same =
        same && (elements == 0 || memcmp(found->buffer[b], wanted->buffer[b], (size_t)(elements * found->width)) == 0);
  }
  return same;
}

static void move_between_processes(processes *all, int64_t rank, void *user) {
  const scene *c = user;
  reshard_device device;
  reshard_comm comm;
  open_device(1, &device);
  CHILD_CHECK(processes_comm(all, rank, device, TIMEOUT_MS, &comm) == RESHARD_SUCCESS);
  tensors want = alloc_tensors(c);
  sides given = make_sides(c);
  memset(want.values, 0xee, (size_t)want.n[1]);
  memset(want.scales, 0xee, (size_t)want.blocks * reshard_dtype_size(c->scales));
  draw_numbers(c, &want);
  rank_buffers_scatter(&given.numbers, want.numbers);
  scale_by_definition(c, &want);
  rank_buffers_scatter(&given.values, want.values);
  rank_buffers_scatter(&given.scales, want.scales);
  for (int direct = 0; direct < 2; direct++) {
    sides found = make_sides(c);
    reshard_path path = direct ? RESHARD_PATH_DIRECT : RESHARD_PATH_PACKED;
    if (!c->cut) {
      move_rank(comm, device, c, &given, &found, false, path);
      CHILD_CHECK(same_rank(&found.values, &given.values, rank) && same_rank(&found.scales, &given.scales, rank));
    }
    move_rank(comm, device, c, &given, &found, true, path);
    memset(want.numbers, 0xee, (size_t)want.n[0] * reshard_dtype_size(c->dtype));
    unscale_by_definition(c, &want);
    sides numbers = make_sides(c);
    rank_buffers_scatter(&numbers.numbers, want.numbers);
    CHILD_CHECK(same_rank(&found.numbers, &numbers.numbers, rank));
    free_sides(&numbers);
    free_sides(&found);
  }
  free_sides(&given);
  free_tensors(&want);
  reshard_comm_destroy(comm);
  reshard_device_release(device);
}

/* Blocks of 16 KiB are longer than slots of mailboxes let pieces be: they are staged beside them. */
CASE(processes_of_a_node_move_blocks_through_mailboxes_and_beside_them) {
#if defined(__SANITIZE_THREAD__)
  skip(); /* each process has one thread */
#endif
  static const scene large = {"chunk(0)", "chunk(1)", SAME(600, 1024), BLOCK(50, 128), BF16_F32};
  static const scene huge = {"chunk(0)", "chunk(1)", SAME(1024, 1000), BLOCK(128, 125), F32_F32};
  for (int i = 0; i < SCENES; i += 2)
    assert_int_equal(processes_run(RANKS, 0, move_between_processes, (void *)&scenes[i]), 0);
  assert_int_equal(processes_run(RANKS, 0, move_between_processes, (void *)&large), 0);
  assert_int_equal(processes_run(RANKS, 0, move_between_processes, (void *)&huge), 0);
}

/* The explanation of a plan of the scene, there or back. */
static void expect_explained(const scene *c, bool back, reshard_format format, const char *says) {
  reshard_layout wide = parse_layout(c->wide, c->wide_shape), scaled = parse_layout(c->scaled, c->scaled_shape);
  const reshard_entry e = {.size = RESHARD_ENTRY_INIT,
                           .src = back ? scaled : wide,
                           .dst = back ? wide : scaled,
                           .dtype = back ? RESHARD_F8_E4M3 : c->dtype,
                           .dst_dtype = back ? c->dtype : RESHARD_F8_E4M3,
                           .block = c->block,
                           .scale_dtype = c->scales};
  const reshard_entry two[2] = {e, e};
  char text[8192];
  reshard_plan plan;
  GOOD(reshard_plan_create(2, two, 0, NULL, &plan));
  GOOD(reshard_plan_explain(plan, format, text, sizeof text, NULL));
  if (strstr(text, says) == NULL)
    fail_msg("'%s' is not in '%s'", says, text);
  reshard_plan_destroy(plan);
  reshard_layout_release(wide);
  reshard_layout_release(scaled);
}

CASE(plans_tell_blocks_what_travels_and_where_it_is_converted) {
  const scene whole = {"chunk(0)", "chunk(1)", SAME(62, 94), BLOCK(8, 4), BF16_F32};
  const scene parts = {"chunk(0)", "chunk(1)", SAME(62, 94), BLOCK(12, 4), F32_E8M0};
  expect_explained(&whole, false, RESHARD_TEXT,
                   "2 tensors from bf16 to f8_e4m3/8x4; values and scales travel, converted in the pack; direct copies "
                   "read bf16\n");
  expect_explained(&whole, true, RESHARD_TEXT,
                   "2 tensors from f8_e4m3/8x4 to bf16; values and scales travel, converted in the unpack; direct "
                   "copies read f8_e4m3/8x4\n");
  expect_explained(&parts, true, RESHARD_TEXT,
                   "2 tensors from f8_e4m3/12x4:e8m0 to f32; f32 travels, converted in the pack; direct copies read "
                   "f8_e4m3/12x4:e8m0\n");
  expect_explained(&whole, true, RESHARD_JSON, "\"wire\"");
  expect_explained(&whole, true, RESHARD_JSON, "\"f8_e4m3/8x4\"");
}

CASE(plans_tell_each_conversion_once_and_why_blocks_are_not_passed_on) {
  static const int64_t block[][2] = {{2, 4}, {4, 2}, {8, 8}};
  static const int64_t domain[] = {0, 0, 1, 1};
  reshard_topology topology = RESHARD_TOPOLOGY_DEFAULTS;
  reshard_plan_options options = RESHARD_PLAN_OPTIONS_DEFAULTS;
  const int64_t shape[] = {64, 96};
  reshard_layout rows = parse_layout("mesh(2@0-1;S0)", shape), whole = parse_layout("mesh(2x2;S0,R)", shape);
  reshard_entry entries[60];
  char text[8192];
  reshard_plan plan;
  reshard_plan_info info;
  topology.ranks = RANKS;
  topology.domain = domain;
  options.topology = &topology;
  for (int i = 0; i < 60; i++) { /* in turn, so that those alike are apart */
    bool scaled = i % 5 < 3;
    entries[i] = (reshard_entry){.size = RESHARD_ENTRY_INIT,
                                 .src = rows,
                                 .dst = whole,
                                 .dtype = RESHARD_BF16,
                                 .dst_dtype = scaled       ? RESHARD_F8_E4M3
                                              : i % 5 == 3 ? RESHARD_F32
                                                           : RESHARD_BF16,
                                 .block = scaled ? block[i % 5] : NULL,
                                 .scale_dtype = i % 5 == 1 ? RESHARD_F8_E8M0 : RESHARD_DTYPE_NONE};
  }
  GOOD(reshard_plan_create(60, entries, 0, &options, &plan));
  GOOD(reshard_plan_explain(plan, RESHARD_TEXT, text, sizeof text, NULL));
  int lines = 0;
  for (const char *at = text; (at = strstr(at, "  converts  12 tensors from bf16 to ")) != NULL; at++)
    lines++;
  assert_int_equal(lines, 4);
  assert_non_null(strstr(text, "bf16 to f32; bf16 travels, converted in the unpack; direct copies read bf16\n"));
  assert_non_null(strstr(text, "bf16 to f8_e4m3/2x4; values and scales travel"));
  assert_non_null(strstr(text, "bf16 to f8_e4m3/4x2:e8m0; values and scales travel"));
  assert_non_null(strstr(text, "bf16 to f8_e4m3/8x8; values and scales travel"));
  assert_non_null(strstr(text, "\n  not passed on: anything, as blocks travel with their scales, which nothing cuts"));
  GOOD(reshard_plan_get_info(plan, &info));
  assert_int_equal(info.classes, 5); /* those alike are intersected once */
  GOOD(reshard_plan_explain(plan, RESHARD_JSON, text, sizeof text, NULL));
  assert_non_null(
      strstr(text, "{\"from\":\"bf16\",\"to\":\"f32\",\"wire\":\"bf16\",\"converted\":\"unpack\",\"tensors\":12}"));
  reshard_plan_destroy(plan);
  topology.chains = RESHARD_NO_CHAINS;
  GOOD(reshard_plan_create(60, entries, 0, &options, &plan));
  GOOD(reshard_plan_explain(plan, RESHARD_TEXT, text, sizeof text, NULL));
  assert_null(strstr(text, "not passed on"));
  reshard_plan_destroy(plan);
  reshard_layout_release(rows);
  reshard_layout_release(whole);
}

static void expect_refused(const scene *c, const reshard_entry *like, reshard_status status, const char *text) {
  reshard_entry e = *like;
  reshard_plan plan = NULL;
  e.src = parse_layout(c->wide, c->wide_shape);
  e.dst = parse_layout(c->scaled, c->scaled_shape);
  FAILS_WITH(reshard_plan_create(1, &e, 0, NULL, &plan), status, text);
  reshard_layout_release(e.src);
  reshard_layout_release(e.dst);
}

CASE(arrays_of_several_runs_without_elements_have_blocks) {
  static const int64_t block[] = {8, 8}, shape[] = {0, 40};
  reshard_entry e = {.size = RESHARD_ENTRY_INIT, .dtype = RESHARD_F32, .dst_dtype = RESHARD_F8_E4M3, .block = block};
  reshard_plan plan;
  e.src = parse_layout("mesh(2;S1{1:3})", shape); /* rank 0: 0 to 4, and 10 to 24 */
  e.dst = parse_layout("rank(0)", shape);
  GOOD(reshard_plan_create(1, &e, 0, NULL, &plan));
  reshard_plan_destroy(plan);
  reshard_layout_release(e.src);
  reshard_layout_release(e.dst);
}

/* The other side has a dim of one index, which the side with blocks lacks. */
CASE(dims_of_one_side_alone_have_no_blocks) {
  static const int64_t block[] = {8, 8}, shape[] = {40, 24}, more[] = {40, 1, 24};
  static const int turned[] = {0, -1, 1}, back[] = {0, 2};
  for (int i = 0; i < 2; i++) {
    reshard_layout scaled = parse_layout("rank(0)", shape), wide;
    GOOD(reshard_layout_create_single(3, more, RANKS, 1, &wide));
    reshard_entry e = {.size = RESHARD_ENTRY_INIT,
                       .src = i == 0 ? scaled : wide,
                       .dst = i == 0 ? wide : scaled,
                       .dtype = i == 0 ? RESHARD_F8_E4M3 : RESHARD_BF16,
                       .dst_dtype = i == 0 ? RESHARD_BF16 : RESHARD_F8_E4M3,
                       .permutation = i == 0 ? turned : back,
                       .block = block};
    reshard_plan plan;
    reshard_plan_info info;
    GOOD(reshard_plan_create(1, &e, i, NULL, &plan));
    GOOD(reshard_plan_get_info(plan, &info));
    assert_int_equal(info.sent_bytes, 40 * 24 + 5 * 3 * 4); /* values and scales, from rank 0, or from rank 1 */
    reshard_plan_destroy(plan);
    reshard_layout_release(scaled);
    reshard_layout_release(wide);
  }
}

CASE(what_has_no_blocks_is_refused_with_dim_cut_and_block) {
  static const int64_t block[] = {8, 8}, large[] = {256, 129}, tall[] = {32769, 1}, none[] = {8, 0};
  static const int64_t offset[2][2] = {{4, 0}, {16, 0}}, extent[2][2] = {{16, 96}, {20, 96}};
  const scene rows = {"chunk(0)", "chunk(1)", SAME(64, 96), BLOCK(0, 0), F32_F32};
  const scene cut = {"chunk(0)", "chunk(1)", SAME(60, 96), BLOCK(0, 0), F32_F32};
  const scene within = {"chunk(1)", "chunk(0)", SAME(60, 96), BLOCK(0, 0), F32_F32};
  const scene parts = {"rank(0)", "mesh(1@2;S0{12,48})", SAME(60, 96), BLOCK(0, 0), F32_F32};
  const reshard_entry e = {
      .size = RESHARD_ENTRY_INIT, .dtype = RESHARD_F32, .dst_dtype = RESHARD_F8_E4M3, .block = block};
  reshard_entry other = e;
  expect_refused(&cut, &e, RESHARD_ERROR_UNSUPPORTED,
                 "dim 0 of the source is cut at 15 by rank 0, within a block of 8");
  expect_refused(&cut, &e, RESHARD_ERROR_UNSUPPORTED, "another layout, or two steps");
  expect_refused(&within, &e, RESHARD_ERROR_INVALID,
                 "dim 0 of the f8_e4m3 side is cut at 15 by rank 0, within a block of 8");
  expect_refused(&parts, &e, RESHARD_ERROR_INVALID,
                 "dim 0 of the f8_e4m3 side is cut at 12 by rank 2, within a block of 8");
  other.block = large;
  expect_refused(&rows, &other, RESHARD_ERROR_UNSUPPORTED, "256 x 129 has more than 32768 elements");
  other.block = tall;
  expect_refused(&rows, &other, RESHARD_ERROR_UNSUPPORTED, "32769 x 1 has more than 32768 elements");
  other.block = none;
  expect_refused(&rows, &other, RESHARD_ERROR_INVALID, "a block of 0 in dim 1");
  other = e;
  other.dst_offset = other.src_offset = offset[0];
  other.src_extent = extent[0];
  expect_refused(&rows, &other, RESHARD_ERROR_INVALID, "dim 0 of the f8_e4m3 region is cut at 4, within a block of 8");
  other.dst_offset = other.src_offset = offset[1];
  other.src_extent = extent[1];
  expect_refused(&rows, &other, RESHARD_ERROR_INVALID, "dim 0 of the f8_e4m3 region is cut at 36, within a block of 8");
  other = e;
  other.dtype = RESHARD_F8_E4M3;
  expect_refused(&rows, &other, RESHARD_ERROR_UNSUPPORTED, "two plain entries");
  other.dtype = RESHARD_F64;
  expect_refused(&rows, &other, RESHARD_ERROR_UNSUPPORTED, "f32, f16 or bf16, not of f64");
  other = e;
  other.dst_dtype = RESHARD_BF16;
  expect_refused(&rows, &other, RESHARD_ERROR_INVALID, "blocks of f32 and bf16");
  other = e;
  other.scale_dtype = RESHARD_F16;
  expect_refused(&rows, &other, RESHARD_ERROR_INVALID, "scales are f32 or f8_e8m0, not f16");
  other = e;
  other.block = NULL;
  other.scale_dtype = RESHARD_F32;
  expect_refused(&rows, &other, RESHARD_ERROR_INVALID, "scales of f32 without blocks");
}

RUN_CASES
