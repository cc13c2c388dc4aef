/* Transfers that convert: every pair of dtypes over both paths, to and from every offset in a line; and what a message
 * that converts may not do, lie in place on a side whose dtype is not the one that travels. */
#include "bench/cli/naive_cast.h"
#include "bench/verify/random.h"
#include "exec/packed/packer.h"
#include "plan/place.h"
#include "support/fixtures/case.h"
#include "support/fixtures/expect.h"
#include "support/fixtures/layouts.h"
#include "support/fixtures/rank_threads.h"

#include <stdlib.h>
#include <string.h>

#if defined(__SANITIZE_THREAD__)
enum { SHIFT = 5, PAIRS = 1 }; /* which do not change what threads do: each way has its turn still */
#else
enum { SHIFT = 1, PAIRS = 4 };
#endif
enum { RANKS = 3, PATIENCE = 60000, POISON = 0xdb };

static const reshard_dtype numbers[] = {RESHARD_F64,  RESHARD_F32,     RESHARD_F16,
                                        RESHARD_BF16, RESHARD_F8_E4M3, RESHARD_F8_E5M2};
enum { NUMBERS = sizeof numbers / sizeof *numbers };
static const reshard_path paths[2] = {RESHARD_PATH_DIRECT, RESHARD_PATH_PACKED};

/* A matrix from one layout to another: which part each rank has is worked out here again. */
typedef struct matrix {
  const char *from, *to; /* rows: chunk(0); columns: chunk(1); rank(R) */
  int64_t shape[2];
  reshard_dtype src, dst;
  int64_t src_shift, dst_shift; /* bytes off a line */
  reshard_path path;
  bool strides; /* contiguous ones are given */
} matrix;

typedef struct part {
  int64_t begin[2], extent[2];
} part;

static part part_of(const char *layout, const int64_t *shape, int64_t rank) {
  part p = {{0, 0}, {shape[0], shape[1]}};
  int dim = layout[6] - '0';
  if (strncmp(layout, "rank", 4) == 0) {
    p.extent[0] = layout[5] - '0' == rank ? shape[0] : 0;
    return p;
  }
  int64_t each = (shape[dim] + RANKS - 1) / RANKS;
  p.begin[dim] = rank * each < shape[dim] ? rank * each : shape[dim];
  p.extent[dim] = each < shape[dim] - p.begin[dim] ? each : shape[dim] - p.begin[dim];
  return p;
}

/* Bits of an element: half of them of numbers that most dtypes have. */
static uint64_t bits_of(reshard_dtype dtype, int64_t index) {
  uint64_t random = rng_mix((uint64_t)index * 0x9e3779b97f4a7c15u + 7);
  float small = (float)((int64_t)(random % 4096) - 2048) / 64;
  uint32_t bits;
  memcpy(&bits, &small, sizeof bits);
  if (random >> 63 == 1 && dtype != RESHARD_F32)
    return naive_cast(RESHARD_F32, dtype, bits);
  return random >> 63 == 1 ? bits : random >> (64 - 8 * reshard_dtype_size(dtype));
}

/* Writes what a rank has of a side; converted: what it should have of the destination. */
static void fill_part(const matrix *m, const part *p, reshard_dtype to, char *at) {
  size_t width = reshard_dtype_size(to);
  for (int64_t i = 0; i < p->extent[0]; i++)
    for (int64_t j = 0; j < p->extent[1]; j++, at += width) {
      uint64_t bits = bits_of(m->src, (p->begin[0] + i) * m->shape[1] + p->begin[1] + j);
      if (to != m->src)
        bits = naive_cast(m->src, to, bits);
      memcpy(at, &bits, width);
    }
}

static int64_t part_bytes(const part *p, reshard_dtype dtype) {
  return p->extent[0] * p->extent[1] * (int64_t)reshard_dtype_size(dtype);
}

static reshard_plan plan_of(const matrix *m, int64_t rank) {
  reshard_layout src = layout_from_text(m->from, 2, m->shape, RANKS), dst = layout_from_text(m->to, 2, m->shape, RANKS);
  reshard_entry entry = {RESHARD_ENTRY_INIT, .src = src, .dst = dst, .dtype = m->src, .dst_dtype = m->dst};
  reshard_plan plan = NULL;
  if (reshard_plan_create(1, &entry, rank, NULL, &plan) != RESHARD_SUCCESS)
    abort();
  reshard_layout_release(src);
  reshard_layout_release(dst);
  return plan;
}

typedef struct move {
  matrix m;
  reshard_comm comms[RANKS];
  rank_result results[RANKS];
  int64_t wrong[RANKS]; /* bytes, beside the destination too */
  int64_t came[RANKS];
  void (*rank)(struct move *move, int64_t rank);
} move;

static void move_matrix(move *w, int64_t r) {
  const matrix *m = &w->m;
  part from = part_of(m->from, m->shape, r), to = part_of(m->to, m->shape, r);
  int64_t room = part_bytes(&to, m->dst) + 128;
  int64_t src_stride[2] = {from.extent[1], 1}, dst_stride[2] = {to.extent[1], 1};
  const int64_t *src_strides[1] = {src_stride}, *dst_strides[1] = {dst_stride};
  char *src = aligned_alloc(64, (size_t)(part_bytes(&from, m->src) + 191) / 64 * 64);
  char *dst = aligned_alloc(64, (size_t)(room + 63) / 64 * 64), *wanted = malloc((size_t)room);
  void *src_list[1] = {src + m->src_shift}, *dst_list[1] = {dst + m->dst_shift};
  reshard_arrays arrays = {.size = RESHARD_ARRAYS_INIT, .src = src_list, .dst = dst_list};
  if (m->strides) {
    arrays.src_strides = src_strides;
    arrays.dst_strides = dst_strides;
  }
  fill_part(m, &from, m->src, src_list[0]);
  memset(dst, POISON, (size_t)room);
  memset(wanted, POISON, (size_t)room);
  fill_part(m, &to, m->dst, wanted + m->dst_shift);
  reshard_plan plan = plan_of(m, r);
  reshard_transfer transfer = NULL;
  reshard_transfer_options options = {RESHARD_TRANSFER_OPTIONS_INIT, .path = m->path};
  reshard_comm_stats before = {0}, after = {0};
  reshard_status status = reshard_transfer_create(plan, w->comms[r], &arrays, &options, &transfer);
  reshard_comm_get_stats(w->comms[r], &before);
  RS_THEN(status, reshard_execute(transfer, NULL));
  rank_result_set(&w->results[r], status);
  reshard_comm_get_stats(w->comms[r], &after);
  w->came[r] = after.received_bytes - before.received_bytes;
  for (int64_t i = 0; i < room; i++)
    w->wrong[r] += dst[i] != wanted[i];
  reshard_transfer_destroy(transfer);
  reshard_plan_destroy(plan);
  free(src);
  free(dst);
  free(wanted);
}

/* Bytes that come to a rank: of the narrower dtype by message, of the source's by direct copies. */
static int64_t bytes_to_come(const matrix *m, int64_t rank) {
  part from = part_of(m->from, m->shape, rank), to = part_of(m->to, m->shape, rank);
  int64_t kept = 1, width = (int64_t)reshard_dtype_size(m->src);
  for (int d = 0; d < 2; d++) {
    int64_t begin = from.begin[d] > to.begin[d] ? from.begin[d] : to.begin[d];
    int64_t a = from.begin[d] + from.extent[d], b = to.begin[d] + to.extent[d], end = a < b ? a : b;
    kept *= end > begin ? end - begin : 0;
  }
  if (m->path == RESHARD_PATH_PACKED && (int64_t)reshard_dtype_size(m->dst) < width)
    width = (int64_t)reshard_dtype_size(m->dst);
  return (to.extent[0] * to.extent[1] - kept) * width;
}

static void run_rank(void *user, int64_t rank) {
  move *w = user;
  w->rank(w, rank);
}

static void check_move(move *w) {
  memset(w->wrong, 0, sizeof w->wrong);
  w->rank = move_matrix;
  rank_threads_run(RANKS, run_rank, w);
  rank_results_assert(RANKS, w->results, RESHARD_SUCCESS, NULL, "a transfer that converts");
  for (int64_t r = 0; r < RANKS; r++) {
    if (w->wrong[r] > 0)
      fail_msg("%s to %s, %s to %s, offsets %lld and %lld, path %d: %lld bytes of rank %lld are wrong",
               reshard_dtype_string(w->m.src), reshard_dtype_string(w->m.dst), w->m.from, w->m.to,
               (long long)w->m.src_shift, (long long)w->m.dst_shift, (int)w->m.path, (long long)w->wrong[r],
               (long long)r);
    assert_int_equal(w->came[r], bytes_to_come(&w->m, r));
  }
}

static const char *const ways[][2] = {
    {"chunk(0)", "chunk(1)"}, {"chunk(1)", "chunk(0)"}, {"chunk(0)", "rank(1)"}, {"rank(2)", "chunk(0)"}};
enum { WAYS = sizeof ways / sizeof *ways };

/* All pairs, at all offsets from a line: the ways take turns. */
CASE(each_pair_is_converted_at_each_offset) {
  move w = {0};
  rank_comms_open(RANKS, 1, PATIENCE, w.comms);
  for (int from = 0; from < NUMBERS; from++)
    for (int to = 0; to < NUMBERS; to++)
      for (int64_t shift = 0; shift < 16 && from != to; shift += SHIFT)
        for (int p = 0; p < 2; p++) {
          const char *const *way = ways[(shift + from + to) % WAYS];
          w.m = (matrix){way[0],   way[1],        {8, 37}, numbers[from], numbers[to], shift, (5 * shift + 3) % 16,
                         paths[p], shift % 3 == 1};
          check_move(&w);
        }
  rank_comms_close(RANKS, w.comms);
}

/* Tensors beyond the caches, which are stored past them; a packed message goes from one thread's pack to its place. */
CASE(large_tensors_are_converted_past_the_cache) {
  static const reshard_dtype pairs[4][2] = {{RESHARD_F32, RESHARD_BF16},
                                            {RESHARD_BF16, RESHARD_F32},
                                            {RESHARD_F64, RESHARD_F8_E4M3},
                                            {RESHARD_F16, RESHARD_BF16}};
  move w = {0};
  rank_comms_open(RANKS, 2, PATIENCE, w.comms);
  for (int i = 0; i < PAIRS; i++)
    for (int way = 0; way < WAYS; way++)
      for (int p = 0; p < 2; p++) {
        int64_t shift = way % 2 == 0 ? 0 : 3;
        w.m = (matrix){ways[way][0], ways[way][1], {700, 1500}, pairs[i][0], pairs[i][1], 0, shift, paths[p], false};
        check_move(&w);
      }
  rank_comms_close(RANKS, w.comms);
}

/* Rank 1 receives one range and rank 2 sends one: in place where their dtype is the one that travels. */
CASE(messages_are_in_place_where_their_dtype_travels) {
  static const struct {
    reshard_dtype from, to;
    bool sent, received; /* in place */
  } rows[] = {{RESHARD_F32, RESHARD_F32, true, true},
              {RESHARD_F32, RESHARD_BF16, false, true},
              {RESHARD_BF16, RESHARD_F32, true, false},
              {RESHARD_F16, RESHARD_BF16, true, false}};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    const matrix m = {"rank(2)", "rank(1)", {8, 6}, rows[i].from, rows[i].to, 0, 0, RESHARD_PATH_PACKED, false};
    static char memory[8 * 6 * 8];
    void *list[1] = {memory};
    int64_t stride[2] = {6, 1};
    const int64_t *strides[1] = {stride};
    for (int64_t rank = 1; rank <= 2; rank++) {
      bool sending = rank == 2, in_place = sending ? rows[i].sent : rows[i].received;
      reshard_plan plan = plan_of(&m, rank);
      reshard_plan_info info;
      GOOD(reshard_plan_get_info(plan, &info));
      assert_int_equal(sending ? info.packs_skipped : info.unpacks_skipped, in_place);
      assert_int_equal(info.staged_bytes > 0, !in_place);
      for (int given = 0; given < 2; given++) { /* strides, which are the contiguous ones */
        rs_arrays arrays = {
            .src = list, .dst = list, .src_strides = given ? strides : NULL, .dst_strides = given ? strides : NULL};
        char *at = rs_arrays_message(&arrays, plan, &plan->peers.at[0], sending, 1);
        assert_ptr_equal(at, in_place ? memory : NULL);
        struct reshard_transfer_s transfer = {.plan = plan};
        const reshard_pattern pattern = {RESHARD_COLLECTIVE_BROADCAST, 2, info.sent_bytes + info.received_bytes, ""};
        rs_placement placement;
        rs_collective_place(&transfer, &pattern, &arrays, &placement);
        assert_ptr_equal(sending ? placement.send : placement.receive, in_place ? memory : NULL);
        rs_strided strided;
        arrays.src_strides = strides;
        stride[0] = 7; /* runs with gaps, which MPI could send */
        if (sending)
          GOOD(rs_arrays_strided(&arrays, plan, &plan->peers.at[0], 1, &strided));
        assert_true(!sending || (strided.at != NULL) == in_place);
        stride[0] = 6;
      }
      reshard_plan_destroy(plan);
    }
  }
}

/* Bytes of a plan are those of the dtype that travels; the way back swaps the dtypes. */
CASE(bytes_of_a_plan_are_of_what_travels) {
  static const matrix m = {"chunk(0)", "chunk(1)", {6, 9}, RESHARD_F32, RESHARD_BF16, 0, 0, RESHARD_PATH_AUTO, false};
  reshard_plan plan = plan_of(&m, 1), back;
  GOOD(reshard_plan_reverse(plan, &back));
  for (int way = 0; way < 2; way++) {
    reshard_plan_info info;
    char text[4096];
    GOOD(reshard_plan_get_info(way == 0 ? plan : back, &info));
    assert_int_equal(info.bytes, 6 * 9 * 2);
    assert_int_equal(info.sent_bytes, 2 * 2 * 3 * 2);
    assert_int_equal(info.received_bytes, 2 * 2 * 3 * 2);
    assert_int_equal(info.self_copy_bytes, 2 * 3 * 2);
    assert_int_equal(info.lower_bound_bytes, info.received_bytes);
    GOOD(reshard_plan_explain(way == 0 ? plan : back, RESHARD_TEXT, text, sizeof text, NULL));
    assert_non_null(strstr(text, way == 0 ? "converts  1 tensor from f32 to bf16; bf16 travels, converted in the pack; "
                                            "direct copies read f32\n"
                                          : "converts  1 tensor from bf16 to f32; bf16 travels, converted in the "
                                            "unpack; direct copies read bf16\n"));
    GOOD(reshard_plan_explain(way == 0 ? plan : back, RESHARD_JSON, text, sizeof text, NULL));
    assert_non_null(strstr(text, way == 0 ? "\"from\":\"f32\"" : "\"from\":\"bf16\""));
    assert_non_null(strstr(text, way == 0 ? "\"converted\":\"pack\"" : "\"converted\":\"unpack\""));
  }
  reshard_plan_destroy(back);
  reshard_plan_destroy(plan);
}

RUN_CASES
