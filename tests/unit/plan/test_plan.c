/* Dry plans: workspace under a limit, sizes near 2^63, classes, the refusals of a reverse plan,
 * explanations. */
#include "support/fixtures/case.h"

#include <reshard/plan.h>

#include "base/base.h"
#include "bench/cli/util.h"
#include "bench/verify/random.h"
#include "layout/layout.h"
#include "support/fixtures/layouts.h"

#include <stdlib.h>
#include <string.h>

#ifdef RS_HAVE_JANSSON
#include <jansson.h>
#endif

#define SHAPE(...) \
  (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (int64_t[]) { __VA_ARGS__ }

/* A plan from two strings; the layouts live on in it. */
static reshard_plan plan_of(const char *from, const char *to, int ndim, const int64_t *shape, int64_t world,
                            reshard_dtype dtype, int64_t rank, const reshard_plan_options *options) {
  reshard_layout src = layout_from_text(from, ndim, shape, world), dst = layout_from_text(to, ndim, shape, world);
  reshard_entry entry = {RESHARD_ENTRY_INIT, .src = src, .dst = dst, .dtype = dtype};
  reshard_plan plan;
  if (reshard_plan_create(1, &entry, rank, options, &plan) != RESHARD_SUCCESS)
    fail_msg("%s to %s: %s", from, to, reshard_last_error());
  reshard_layout_release(src);
  reshard_layout_release(dst);
  return plan;
}

static reshard_plan_info info_of(reshard_plan plan) {
  reshard_plan_info info = {0};
  assert_int_equal(reshard_plan_get_info(plan, &info), RESHARD_SUCCESS);
  return info;
}

/* --- Rounds and workspace ----------------------------------------------------------------------------------------- */

/* 100,000 bytes from rank 0 to rank 1, in place on both: one round under any limit, and no staging. */
CASE(test_in_place) {
  for (int64_t rank = 0; rank < 2; rank++) {
    reshard_plan_options options = {.size = RESHARD_PLAN_OPTIONS_INIT, .workspace_limit = 8192};
    reshard_plan plan = plan_of("rank(0)", "rank(1)", SHAPE(100, 1000), 2, RESHARD_U8, rank, &options);
    reshard_plan_info info = info_of(plan);
    size_t workspace;
    assert_int_equal(info.rounds, 1);
    assert_int_equal(info.messages_sent, rank == 0);
    assert_int_equal(info.messages_received, rank == 1);
    assert_int_equal(info.packs_skipped, rank == 0);
    assert_int_equal(info.unpacks_skipped, rank == 1);
    assert_int_equal(info.workspace_bytes, 0);
    assert_int_equal(reshard_plan_workspace(plan, &workspace), RESHARD_SUCCESS);
    assert_int_equal(workspace, 8192); /* strided arrays would take it */
    /* a rank that stages needs more rounds: F is 256, and so there are at most 390 pieces */
    assert_int_equal(reshard_plan_get_info_at(plan, 30, 0, &info), RESHARD_SUCCESS);
    assert_int_equal(info.messages_sent + info.messages_received, 30);
    assert_int_equal(reshard_plan_get_info_at(plan, 1000, 0, &info), RESHARD_SUCCESS);
    assert_int_equal(info.messages_sent + info.messages_received, 390);
    assert_int_equal(info.rounds, 1000);
    reshard_plan_destroy(plan);
  }
}

/* Two holders share the rows of a part that is narrower than their boxes: one row is a range of its box, two are none.
 */
CASE(test_shared_rows) {
  static const struct {
    const char *src, *dst;
    int64_t rows, skipped;
  } cases[] = {{"boxes(replicated;0:[0,0]+[2,8];1:[0,0]+[2,8])", "boxes(2:[0,2]+[2,4])", 2, 1},
               {"boxes(replicated;0:[0,0]+[4,8];1:[0,0]+[4,8])", "boxes(2:[0,2]+[4,4])", 4, 0}};
  for (int i = 0; i < 2; i++)
    for (int64_t rank = 0; rank < 3; rank++) {
      reshard_plan plan = plan_of(cases[i].src, cases[i].dst, SHAPE(cases[i].rows, 8), 3, RESHARD_U8, rank, NULL);
      reshard_plan_info info = info_of(plan);
      assert_int_equal(info.sent_bytes, rank < 2 ? cases[i].rows / 2 * 4 : 0);
      assert_int_equal(info.packs_skipped, rank < 2 ? cases[i].skipped : 0);
      assert_int_equal(info.unpacks_skipped, rank < 2 ? 0 : 2);
      reshard_plan_destroy(plan);
    }
}

/* Four ranks, rows to columns: a rank packs 3 messages of 65,536 bytes and receives as many in place. */
CASE(rank_packs_what_does_not_lie_in_place) {
  static const struct {
    int64_t limit, rounds, workspace;
  } cases[] = {{0, 1, 196608},         {196608, 1, 196608}, {196607, 3, 2 * 3 * 22016}, {131072, 4, 98304},
               {131070, 4, 6 * 16384}, {98304, 4, 98304},   {16384, 26, 6 * 2560},      {1024, 410, 6 * 160}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
    for (int64_t rank = 0; rank < 4; rank++) {
      reshard_plan_options options = {.size = RESHARD_PLAN_OPTIONS_INIT, .workspace_limit = cases[i].limit};
      reshard_plan plan = plan_of("chunk(0)", "chunk(1)", SHAPE(512, 512), 4, RESHARD_F32, rank, &options);
      reshard_plan_info info = info_of(plan);
      if (info.rounds != cases[i].rounds || info.workspace_bytes != cases[i].workspace)
        fail_msg("limit %d: %d rounds, %d bytes", (int)cases[i].limit, (int)info.rounds, (int)info.workspace_bytes);
      assert_int_equal(info.messages_sent, 3 * info.rounds);
      assert_int_equal(info.messages_received, 3 * info.rounds);
      reshard_plan_destroy(plan);
    }
}

/* The limit that holds, by name, kind of device, bytes and ranks. */
CASE(default_limit_goes_by_device_bytes_and_ranks) {
  enum { KIB = 1 << 10, MIB = 1 << 20 };
  static const struct {
    int64_t rows, world, asked, gpu, cpu;
  } cases[] = {
      {1 << 10, 4, RESHARD_DEFAULT_LIMIT, 64 * MIB, MIB},             /* 4 MiB a rank */
      {1 << 22, 4, RESHARD_DEFAULT_LIMIT, 85899264, MIB},             /* 4 GiB a rank: 2 % of that, in steps of 256 */
      {1 << 22, 1024, RESHARD_DEFAULT_LIMIT, 85899264, 16 * MIB},     /* ranks that hold nothing do not count */
      {1 << 10, 65536, RESHARD_DEFAULT_LIMIT, 256 * MIB, 1024 * MIB}, /* 4 KiB for each rank */
      {1 << 22, 4, RESHARD_NO_LIMIT, RESHARD_NO_LIMIT, MIB},
      {1 << 22, 4, 100 * KIB, 100 * KIB, 100 * KIB},
      {1 << 22, 4, MIB + 1, MIB + 1, MIB},
      {1 << 22, 4, INT64_MAX - 1, INT64_MAX - 1, MIB},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
    for (int cpu = 0; cpu < 2; cpu++) {
      reshard_plan_options options = {
          .size = RESHARD_PLAN_OPTIONS_INIT, .workspace_limit = cases[i].asked, .on_cpu = cpu};
      reshard_plan plan = plan_of("chunk(0;0-3)", "chunk(1;0-3)", SHAPE(cases[i].rows, 1 << 10), cases[i].world,
                                  RESHARD_F32, 1, &options);
      reshard_plan_info info = info_of(plan), back;
      int64_t limit = cpu ? cases[i].cpu : cases[i].gpu, one = limit == RESHARD_NO_LIMIT, staged = info.sent_bytes;
      size_t workspace;
      assert_int_equal(info.workspace_limit, limit);
      assert_int_equal(info.staged_bytes, staged); /* received in place */
      assert_int_equal(info.least_rounds, one || staged <= limit ? 1 : rs_ceil_div(staged, limit / (cpu ? 1 : 2)));
      assert_true(info.rounds >= info.least_rounds && (info.rounds == 1) == (one || staged <= limit));
      assert_true(one || info.workspace_bytes <= limit);
      assert_int_equal(reshard_plan_workspace(plan, &workspace), RESHARD_SUCCESS);
      assert_int_equal(workspace, one ? 2 * staged : rs_min(limit, 2 * staged));
      reshard_plan reverse; /* keeps what was asked for */
      assert_int_equal(reshard_plan_reverse(plan, &reverse), RESHARD_SUCCESS);
      back = info_of(reverse);
      assert_true(back.workspace_limit == limit && back.rounds == info.rounds);
      reshard_plan_destroy(plan);
      reshard_plan_destroy(reverse);
    }
}

/* Replicas count, and so do the ranks that hold any, on the side that has more of the entries' regions. */
CASE(default_limit_is_a_share_of_what_ranks_hold) {
  enum { MIB = 1 << 20 };
  const int64_t gib = 1 << 30; /* the tensor has 8 */
  static const struct {
    const char *src, *dst;
    int64_t rows, held; /* of the region; GiB that a rank has of it on average */
  } cases[] = {
      {"chunk(0)", "mesh(4x2;R,S1)", 1 << 20, 4},
      {"mesh(4x2;R,S0)", "chunk(1)", 1 << 20, 4},
      {"chunk(0)", "mesh(8;R)", 1 << 20, 8},
      {"chunk(0)", "mesh(8;R)", 1 << 19, 4},
      {"chunk(0)", "chunk(1)", 1 << 20, 1},
      {"rank(3)", "chunk(1;0-3)", 1 << 20, 8},
      {"chunk(0)", "boxes(4:[0,0]+[1048576,1024];5:[0,0]+[1048576,2048])", 1 << 20, 6},
      {"chunk(0)", "boxes(4:[0,0]+[1048576,1024];5:[0,0]+[1048576,2048];6:[524288,0]+[1,1])", 1 << 19, 3},
      {"flat()", "mesh(2x4@7-0;R,S0)", 1 << 20, 2},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
    for (int64_t rank = 0; rank < 8; rank += 7) {
      const int64_t extent[2] = {cases[i].rows, 2048};
      reshard_layout src = layout_from_text(cases[i].src, SHAPE(1 << 20, 2048), 8),
                     dst = layout_from_text(cases[i].dst, SHAPE(1 << 20, 2048), 8);
      reshard_entry entry = {RESHARD_ENTRY_INIT,   .src = src,           .dst = dst,
                             .dtype = RESHARD_F32, .src_extent = extent, .dst_extent = extent};
      reshard_plan plan;
      assert_int_equal(reshard_plan_create(1, &entry, rank, NULL, &plan), RESHARD_SUCCESS);
      int64_t limit = rs_max(64 * MIB, cases[i].held * gib / 50 / 256 * 256);
      if (info_of(plan).workspace_limit != limit)
        fail_msg("%s to %s: a limit of %lld, not %lld", cases[i].src, cases[i].dst,
                 (long long)info_of(plan).workspace_limit, (long long)limit);
      reshard_plan_destroy(plan);
      reshard_layout_release(src);
      reshard_layout_release(dst);
    }
}

/* A limit that is too small names the least; exactly that works, a byte less does not. */
CASE(least_limit_works_and_a_byte_less_does_not) {
  rng r;
  rng_seed(&r, 3);
  for (int i = 0; i < 200; i++) {
    int64_t world = rng_in(&r, 2, 70), rank = rng_below(&r, world);
    reshard_layout src = layout_from_text("chunk(0)", SHAPE(300, 70), world),
                   dst = layout_from_text("chunk(1)", SHAPE(300, 70), world);
    reshard_entry entry = {RESHARD_ENTRY_INIT, .src = src, .dst = dst, .dtype = RESHARD_U16};
    reshard_plan_options options = {.size = RESHARD_PLAN_OPTIONS_INIT, .workspace_limit = 1};
    reshard_plan plan = NULL;
    long long named = 0, given = 0;
    assert_int_equal(reshard_plan_create(1, &entry, rank, &options, &plan), RESHARD_ERROR_INVALID);
    assert_null(plan);
    assert_int_equal(
        sscanf(reshard_last_error(), "a workspace limit of %lld bytes is too small: %lld is the least", &given, &named),
        2);
    assert_int_equal(given, 1);
    options.workspace_limit = named - 1;
    assert_int_equal(reshard_plan_create(1, &entry, rank, &options, &plan), RESHARD_ERROR_INVALID);
    for (int k = 0; k < 3; k++) {
      size_t workspace;
      options.workspace_limit = k == 0 ? named : k == 1 ? named + rng_below(&r, 100000) : INT64_MAX - rng_below(&r, 3);
      assert_int_equal(reshard_plan_create(1, &entry, rank, &options, &plan), RESHARD_SUCCESS);
      assert_int_equal(reshard_plan_workspace(plan, &workspace), RESHARD_SUCCESS);
      assert_true((int64_t)workspace <= options.workspace_limit);
      assert_true(info_of(plan).workspace_bytes <= (int64_t)workspace);
      reshard_plan_destroy(plan);
      plan = NULL;
    }
    reshard_layout_release(src);
    reshard_layout_release(dst);
  }
}

/* A message that fills half of the limit in each of its rounds takes no round more. */
CASE(test_full_rounds) {
  enum { HALF = 64 << 10 };
  const reshard_plan_options options = {.size = RESHARD_PLAN_OPTIONS_INIT, .workspace_limit = 2 * HALF};
  for (int64_t rounds = 2; rounds < 40; rounds++) {
    reshard_plan plan = plan_of("chunk(0)", "chunk(1)", SHAPE(128 * rounds, 512), 2, RESHARD_F32, 0, &options);
    reshard_plan_info info = info_of(plan);
    assert_int_equal(info.staged_bytes, rounds * HALF); /* sent, and received in place */
    assert_int_equal(info.rounds, rounds <= 2 ? 1 : rounds);
    reshard_plan_destroy(plan);
  }
}

/* Lists of runs that no memory holds are refused before they are made, with their length, on either side. */
CASE(test_endless_lists) {
  static const struct {
    const char *src, *dst, *runs;
  } cases[] = {
      {"cyclic(4;9)", "chunk(0)", "32025597350190194"},
      {"chunk(0)", "cyclic(4;9)", "32025597350190194"},
      {"mesh(4;S0*288230376151711744)", "chunk(0)", "288230376151711744"},
      {"chunk(0)", "mesh(4;S0*288230376151711744)", "288230376151711744"},
      {"mesh(4;S0*9223372036854775807)", "rank(0)", "1152921504606846976"}, /* rank 0 has all, in one run */
  };
  const int64_t extent = (int64_t)1 << 60;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    reshard_layout src = layout_from_text(cases[i].src, 1, &extent, 4),
                   dst = layout_from_text(cases[i].dst, 1, &extent, 4);
    reshard_entry entry = {RESHARD_ENTRY_INIT, .src = src, .dst = dst, .dtype = RESHARD_U8};
    reshard_plan plan = NULL;
    char text[128];
    assert_int_equal(reshard_plan_create(1, &entry, 0, NULL, &plan), RESHARD_ERROR_OUT_OF_MEMORY);
    snprintf(text, sizeof text, "out of memory: a list of %s runs of a dim of extent 1152921504606846976",
             cases[i].runs);
    assert_string_equal(reshard_last_error(), text);
    assert_null(plan);
    reshard_layout_release(src);
    reshard_layout_release(dst);
  }
  const int64_t longest = INT64_MAX; /* of which no plan over 4 ranks is made; rank 0 has all, in one run */
  reshard_layout layout = layout_from_text("mesh(4;S0*9223372036854775807)", 1, &longest, 4);
  rs_pieces pieces = {.at = NULL};
  assert_int_equal(rs_layout_pieces(layout, 0, 0, 0, longest, &pieces), RESHARD_SUCCESS);
  assert_int_equal(pieces.n, 1);
  assert_int_equal(pieces.at[0].n, longest);
  free(pieces.at);
  reshard_layout_release(layout);
}

/* A plan's memory follows the runs that are shared, as plan.h says. */
CASE(test_listed_runs) {
  static const char *const others[] = {"chunk(0)", "cyclic(4;7)", "rank(0)"};
  static const int64_t runs[] = {2, 5, 5}; /* for each of the source, with those of the other side */
  const int64_t extent = 36 << 13;
  for (size_t i = 0; i < sizeof others / sizeof *others; i++)
    for (int back = 0; back < 2; back++) {
      reshard_plan plan = plan_of(back ? others[i] : "cyclic(4;9)", back ? "cyclic(4;9)" : others[i], 1, &extent, 4,
                                  RESHARD_U8, 0, NULL);
      assert_true(info_of(plan).memory_bytes <= runs[i] * (extent / 36) * 2 * 24 + 8192);
      reshard_plan_destroy(plan);
    }
}

/* Sizes near 2^63: what does not fit is refused, and nothing wraps. */
CASE(sizes_near_63_bits_do_not_wrap) {
  static const int64_t limits[] = {0, 1 << 20, INT64_MAX};
  int64_t most = INT64_MAX / 3 - 512, third = (int64_t)1 << 61;
  for (int l = 0; l < 3; l++)
    for (int64_t rank = 0; rank < 3; rank++) {
      reshard_plan_options options = {.size = RESHARD_PLAN_OPTIONS_INIT, .workspace_limit = limits[l]};
      size_t workspace;
      reshard_plan plan = plan_of("rank(0)", "mesh(3;R)", 1, &most, 3, RESHARD_U8, rank, &options);
      reshard_plan_info info = info_of(plan);
      assert_true(info.sent_bytes == (rank == 0 ? 2 * most : 0) && info.received_bytes == (rank == 0 ? 0 : most));
      assert_int_equal(reshard_plan_workspace(plan, &workspace), RESHARD_SUCCESS);
      assert_true(workspace > 0 && workspace <= (size_t)(limits[l] > 0 ? limits[l] : INT64_MAX));
      reshard_plan_destroy(plan);
      plan = plan_of("mesh(2;R)", "rank(2)", SHAPE(3, INT64_MAX / 9 - 512), 3, RESHARD_U8, rank, &options);
      info = info_of(plan);
      assert_true(rank == 2 ? info.received_bytes == info.bytes : info.sent_bytes >= info.bytes / 3);
      reshard_plan_destroy(plan);
    }
  /* one tensor too large, and two that are together */
  reshard_layout src = layout_from_text("rank(0)", 1, &third, 3), dst = layout_from_text("mesh(3;R)", 1, &third, 3);
  reshard_entry entries[2] = {{RESHARD_ENTRY_INIT, .src = src, .dst = dst, .dtype = RESHARD_U8}};
  reshard_plan plan = NULL;
  assert_int_equal(reshard_plan_create(1, entries, 0, NULL, &plan), RESHARD_SUCCESS);
  assert_int_equal(info_of(plan).sent_bytes, 2 * third);
  reshard_plan_destroy(plan);
  plan = NULL;
  entries[1] = entries[0];
  assert_int_equal(reshard_plan_create(2, entries, 0, NULL, &plan), RESHARD_ERROR_INVALID);
  assert_string_equal(reshard_last_error(),
                      "entry 1 'tensor': the bytes of all entries, on each of 3 ranks, overflow 63 bits");
  entries[0].dtype = RESHARD_BF16;
  assert_int_equal(reshard_plan_create(1, entries, 0, NULL, &plan), RESHARD_ERROR_INVALID);
  assert_string_equal(reshard_last_error(), "entry 0 'tensor': its bytes, on each of 3 ranks, overflow 63 bits");
  assert_null(plan);
  reshard_layout_release(src);
  reshard_layout_release(dst);
}

/* --- Entries, classes, empty plans -------------------------------------------------------------------------------- */

CASE(equal_tensors_are_one_class) {
  reshard_layout src = layout_from_text("chunk(0)", SHAPE(8, 8), 4), dst = layout_from_text("chunk(1)", SHAPE(8, 8), 4);
  reshard_layout again = layout_from_text("chunk(0;0-3)", SHAPE(8, 8), 4),
                 columns = layout_from_text("mesh(4;S1)", SHAPE(8, 8), 4);
  int64_t zero[2] = {0, 0}, whole[2] = {8, 8}, three[2] = {3, 8};
  int same[2] = {0, 1}, turned[2] = {1, 0};
  reshard_entry entries[] = {
      {RESHARD_ENTRY_INIT, .src = src, .dst = dst, .dtype = RESHARD_F32},
      {RESHARD_ENTRY_INIT, .src = src, .dst = dst, .dtype = RESHARD_I32},   /* the same width */
      {RESHARD_ENTRY_INIT, .src = again, .dst = dst, .dtype = RESHARD_F32}, /* the same layout, made twice */
      {RESHARD_ENTRY_INIT, .src = src, .dst = dst, .dtype = RESHARD_F32, .src_offset = zero, .dst_extent = whole,
       .permutation = same},
      {RESHARD_ENTRY_INIT, .src = src, .dst = dst, .dtype = RESHARD_BF16},    /* another width */
      {RESHARD_ENTRY_INIT, .src = src, .dst = columns, .dtype = RESHARD_F32}, /* another kind */
      {RESHARD_ENTRY_INIT, .src = src, .dst = dst, .dtype = RESHARD_F32, .src_extent = three},
      {RESHARD_ENTRY_INIT, .src = src, .dst = dst, .dtype = RESHARD_F32, .permutation = turned},
      {RESHARD_ENTRY_INIT, .src = dst, .dst = src, .dtype = RESHARD_F32},
  };
  static const int64_t classes[] = {1, 1, 1, 1, 2, 3, 4, 5, 6};
  for (int64_t n = 1; n <= 9; n++) {
    reshard_plan plan;
    assert_int_equal(reshard_plan_create(n, entries, 1, NULL, &plan), RESHARD_SUCCESS);
    assert_int_equal(info_of(plan).classes, classes[n - 1]);
    assert_int_equal(info_of(plan).entries, n);
    reshard_plan_destroy(plan);
  }
  reshard_layout_release(src);
  reshard_layout_release(dst);
  reshard_layout_release(again);
  reshard_layout_release(columns);
}

/* A thousand equal tensors cost one intersection and their names. */
CASE(thousand_equal_tensors_cost_one_intersection) {
  reshard_layout src = layout_from_text("chunk(0)", SHAPE(64, 64), 8),
                 dst = layout_from_text("chunk(1)", SHAPE(64, 64), 8);
  reshard_entry *entries = cli_alloc(1000, sizeof *entries);
  for (int i = 0; i < 1000; i++)
    entries[i] = (reshard_entry){RESHARD_ENTRY_INIT, .src = src, .dst = dst, .dtype = RESHARD_BF16};
  reshard_plan one, all;
  assert_int_equal(reshard_plan_create(1, entries, 3, NULL, &one), RESHARD_SUCCESS);
  assert_int_equal(reshard_plan_create(1000, entries, 3, NULL, &all), RESHARD_SUCCESS);
  reshard_plan_info a = info_of(one), b = info_of(all);
  assert_int_equal(b.classes, 1);
  assert_int_equal(b.segments, a.segments);
  assert_int_equal(b.peers, 7);
  assert_int_equal(b.messages_sent, 7); /* one a peer, however many tensors */
  assert_int_equal(b.sent_bytes, 1000 * a.sent_bytes);
  assert_int_equal(b.lower_bound_bytes, 1000 * a.lower_bound_bytes);
  assert_int_equal(b.exclusive_bytes, 1000 * a.exclusive_bytes);
  assert_true(b.memory_bytes < a.memory_bytes + 1000 * 100);
  reshard_plan_destroy(one);
  reshard_plan_destroy(all);
  free(entries);
  reshard_layout_release(src);
  reshard_layout_release(dst);
}

CASE(plan_without_entries_does_nothing) {
  int64_t nodes[1] = {0};
  reshard_plan_options options = {.size = RESHARD_PLAN_OPTIONS_INIT, .workspace_limit = 100, .nodes = nodes};
  reshard_plan plan, back;
  char text[1024];
  assert_int_equal(reshard_plan_create(0, NULL, 5, &options, &plan), RESHARD_SUCCESS);
  assert_int_equal(reshard_plan_reverse(plan, &back), RESHARD_SUCCESS);
  for (int i = 0; i < 2; i++) {
    reshard_plan_info info = info_of(i == 0 ? plan : back);
    assert_true(info.world == 0 && info.rank == 5 && info.bytes == 0 && info.peers == 0 && info.rounds == 0 &&
                info.workspace_bytes == 0);
  }
  assert_int_equal(reshard_plan_explain(plan, RESHARD_TEXT, text, sizeof text, NULL), RESHARD_SUCCESS);
  assert_int_equal(reshard_plan_explain(back, RESHARD_JSON, text, sizeof text, NULL), RESHARD_SUCCESS);
  reshard_plan_destroy(plan);
  reshard_plan_destroy(back);
  reshard_plan_destroy(NULL);
  plan = plan_of("chunk(0)", "chunk(1)", SHAPE(0, 7), 4, RESHARD_F32, 2, NULL);
  assert_true(info_of(plan).bytes == 0 && info_of(plan).peers == 0);
  reshard_plan_destroy(plan);
  /* Endless lists of a dim of which another one leaves nothing, on all ranks or this one, are not made. */
  for (int64_t rows = 0; rows < 2; rows++)
    for (int back = 0; back < 2; back++) {
      plan = plan_of(back ? "chunk(1)" : "cyclic(2x2;9x1)", back ? "cyclic(2x2;9x1)" : "chunk(1)",
                     SHAPE(INT64_C(1) << 58, rows), 4, RESHARD_U8, 1, NULL);
      assert_true(info_of(plan).peers == 0 && info_of(plan).memory_bytes < 8192);
      reshard_plan_destroy(plan);
    }
}

/* Segments number the arrays of a rank in 32 bits: a layout that could have more is refused, on either side. */
CASE(test_too_many_boxes) {
  reshard_layout boxes = layout_from_text("boxes(0:[0]+[3];0:[3]+[1])", SHAPE(4), 1),
                 one = layout_from_text("rank(0)", SHAPE(4), 1);
  reshard_entry there = {RESHARD_ENTRY_INIT, .src = boxes, .dst = one, .dtype = RESHARD_F32}, back = there;
  reshard_plan plan = NULL;
  back.src = one;
  back.dst = boxes;
  boxes->boxes->n = (int64_t)INT32_MAX + 1; /* more than a test can make */
  assert_int_equal(reshard_plan_create(1, &there, 0, NULL, &plan), RESHARD_ERROR_UNSUPPORTED);
  assert_non_null(strstr(reshard_last_error(), "entry 0 'tensor': src layout has 2147483648 boxes"));
  assert_int_equal(reshard_plan_create_all(1, &back, 1, NULL, NULL, &plan), RESHARD_ERROR_UNSUPPORTED);
  assert_non_null(strstr(reshard_last_error(), "dst layout has 2147483648 boxes, a plan takes 2147483647 at most"));
  assert_null(plan);
  boxes->boxes->n = 2;
  assert_int_equal(reshard_plan_create(1, &there, 0, NULL, &plan), RESHARD_SUCCESS);
  reshard_plan_destroy(plan);
  reshard_layout_release(boxes);
  reshard_layout_release(one);
}

/* --- Reverse ------------------------------------------------------------------------------------------------------ */

static void refuses(const char *to, int64_t rank, reshard_status status, const char *part) {
  reshard_plan back = NULL, plan = plan_of("chunk(0)", to, SHAPE(8, 12), 4, RESHARD_F32, rank, NULL);
  assert_int_equal(reshard_plan_reverse(plan, &back), status);
  assert_null(back);
  if (status != RESHARD_SUCCESS && strstr(reshard_last_error(), part) == NULL)
    fail_msg("%s: '%s' has no '%s'", to, reshard_last_error(), part);
  reshard_plan_destroy(plan);
}

CASE(reverse_of_replicas_is_refused_as_a_sum) {
  for (int64_t rank = 0; rank < 4; rank++) {
    refuses("mesh(4;R)", rank, RESHARD_ERROR_UNSUPPORTED, "sum");
    refuses("mesh(2x2;S0,R)", rank, RESHARD_ERROR_UNSUPPORTED, "entry 0 'tensor'");
    refuses("boxes(0:[0,0]+[8,12];1:[0,0]+[8,12])", rank, RESHARD_ERROR_UNSUPPORTED, "sum");
    refuses("boxes(0:[0,0]+[5,12];1:[4,0]+[4,12])", rank, RESHARD_ERROR_UNSUPPORTED, "sum"); /* a halo */
    refuses("boxes(0:[0,0]+[5,12];1:[6,0]+[2,12])", rank, RESHARD_ERROR_INVALID, "[5,6)");   /* a gap */
  }
  static const char *const fine[] = {"mesh(1;R)",
                                     "mesh(4x1;S1,R)",
                                     "rank(2)",
                                     "flat()",
                                     "cyclic(2x2;3x5)",
                                     "boxes(0:[0,0]+[5,12];1:[5,0]+[3,12])",
                                     "boxes(replicated;0:[0,0]+[8,12])"};
  for (int i = 0; i < 7; i++)
    for (int64_t rank = 0; rank < 4; rank++) {
      reshard_plan back, again, plan = plan_of("chunk(0)", fine[i], SHAPE(8, 12), 4, RESHARD_F32, rank, NULL);
      assert_int_equal(reshard_plan_reverse(plan, &back), RESHARD_SUCCESS);
      assert_int_equal(reshard_plan_reverse(back, &again), RESHARD_SUCCESS);
      reshard_plan_info a = info_of(plan), b = info_of(back), c = info_of(again);
      assert_true(a.sent_bytes == b.received_bytes && a.received_bytes == b.sent_bytes);
      assert_int_equal(a.self_copy_bytes, b.self_copy_bytes);
      assert_true(a.sent_bytes == c.sent_bytes && a.bytes == c.bytes && a.segments == c.segments);
      reshard_plan_destroy(plan);
      reshard_plan_destroy(back);
      reshard_plan_destroy(again);
    }
}

/* --- Explain ------------------------------------------------------------------------------------------------------ */

static char *explain(reshard_plan plan, reshard_format format) {
  size_t needed = 0, length;
  assert_int_equal(reshard_plan_explain(plan, format, NULL, 0, &needed), RESHARD_ERROR_INVALID);
  char *text = cli_alloc((int64_t)needed, 1);
  assert_int_equal(reshard_plan_explain(plan, format, text, needed - 1, &length), RESHARD_ERROR_INVALID);
  assert_int_equal(length, needed);
  assert_int_equal(reshard_plan_explain(plan, format, text, needed, NULL), RESHARD_SUCCESS);
  assert_int_equal(strlen(text) + 1, needed);
  return text;
}

/* The text about 64 x 48 of f32, but for memory and time of the plan. */
static void expect_text(const char *from, const char *to, int64_t world, int64_t rank, int64_t limit, const char *head,
                        const char *plan_line, const char *peers) {
  reshard_plan_options options = {.size = RESHARD_PLAN_OPTIONS_INIT, .workspace_limit = limit};
  reshard_plan plan = plan_of(from, to, SHAPE(64, 48), world, RESHARD_F32, rank, &options);
  char *text = explain(plan, RESHARD_TEXT), *at = strstr(text, plan_line), *end = at == NULL ? NULL : strchr(at, '\n');
  if (end == NULL || strncmp(text, head, strlen(head)) != 0 || text + strlen(head) != at || strcmp(end + 1, peers) != 0)
    fail_msg("'%s%s...%s' is due, not '%s'", head, plan_line, peers, text);
  free(text);
  reshard_plan_destroy(plan);
}

CASE(explanation_tells_messages_rounds_and_what_each_peer_gets) {
  expect_text("mesh(2x2;R,S0)", "chunk(1)", 5, 3, 8192,
              "plan of rank 3 of 5: 1 tensor, 12288 bytes, 1 of distinct geometry\n"
              "  sends     1784 bytes to others in 2 messages; 0 of 2 peers from the source in place, without packing\n"
              "  receives  1280 bytes in 2 messages; from 2 of 2 peers in place, without unpacking\n"
              "  lacks     1280 bytes (the lower bound), so it receives 1.000 times what it must\n"
              "  self copy 1280 bytes\n"
              "  packed    1 round (1 at least) for 1784 bytes, through 1792 bytes of workspace of a limit of 8192, on "
              "GPUs\n"
              "  pattern   none: messages differ in length\n"
              "  direct    one pass, no workspace\n",
              "  plan      5 segments, ",
              "      peer              sent                    received          \n"
              "         0                 0  -                      520  in place\n"
              "         2               760  packed                 760  in place\n"
              "         4              1024  packed                   0  -       \n");
  expect_text("chunk(0)", "rank(2)", 4, 1, RESHARD_NO_LIMIT,
              "plan of rank 1 of 4: 1 tensor, 12288 bytes, 1 of distinct geometry\n"
              "  sends     3072 bytes to others in 1 message; 1 of 1 peers from the source in place, without packing\n"
              "  receives  0 bytes in 0 messages; from 0 of 0 peers in place, without unpacking\n"
              "  lacks     0 bytes (the lower bound), so it receives 1.000 times what it must\n"
              "  self copy 0 bytes\n"
              "  packed    1 round (1 at least) for 0 bytes, through 0 bytes of workspace\n"
              "  pattern   none: not everybody is sent to\n"
              "  direct    one pass, no workspace\n",
              "  plan      1 segment, ",
              "      peer              sent                    received          \n"
              "         2              3072  in place                 0  -       \n");
  expect_text("chunk(0)", "chunk(0)", 4, 1, RESHARD_DEFAULT_LIMIT,
              "plan of rank 1 of 4: 1 tensor, 12288 bytes, 1 of distinct geometry\n"
              "  sends     0 bytes to others in 0 messages; 0 of 0 peers from the source in place, without packing\n"
              "  receives  0 bytes in 0 messages; from 0 of 0 peers in place, without unpacking\n"
              "  lacks     0 bytes (the lower bound), so it receives 1.000 times what it must\n"
              "  self copy 3072 bytes\n"
              "  packed    0 rounds (0 at least) for 0 bytes, through 0 bytes of workspace of a limit of 67108864 (the "
              "default), on GPUs\n"
              "  pattern   none: it exchanges nothing\n"
              "  direct    one pass, no workspace\n",
              "  plan      1 segment, ", "");
}

CASE(explanation_in_json_has_the_numbers_of_the_plan) {
  reshard_plan_options options = {.size = RESHARD_PLAN_OPTIONS_INIT, .workspace_limit = 8192};
  reshard_plan plan = plan_of("mesh(2x2;R,S0)", "chunk(1)", SHAPE(64, 48), 5, RESHARD_F32, 3, &options);
  reshard_plan_info info = info_of(plan);
  char *json = explain(plan, RESHARD_JSON);
#ifdef RS_HAVE_JANSSON
  json_error_t error;
  json_t *root = json_loads(json, JSON_REJECT_DUPLICATES, &error);
  if (root == NULL)
    fail_msg("%s in %s", error.text, json);
  const struct {
    const char *key;
    int64_t value;
  } fields[] = {
      {"rank", 3},
      {"sent_bytes", info.sent_bytes},
      {"received_bytes", info.received_bytes},
      {"self_copy_bytes", info.self_copy_bytes},
      {"messages", info.messages_sent},
      {"rounds", info.rounds},
      {"least_rounds", info.least_rounds},
      {"staged_bytes", info.staged_bytes},
      {"workspace_bytes", info.workspace_bytes},
      {"workspace_limit", 8192},
      {"packs_skipped", info.packs_skipped},
      {"unpacks_skipped", info.unpacks_skipped},
  };
  assert_int_equal(json_object_size(root), 14);
  for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
    assert_true(json_is_integer(json_object_get(root, fields[i].key)));
    assert_int_equal(json_integer_value(json_object_get(root, fields[i].key)), fields[i].value);
  }
  assert_true(json_is_real(json_object_get(root, "plan_us")));
  json_t *peers = json_object_get(root, "peers");
  assert_int_equal(json_array_size(peers), info.peers);
  for (int64_t i = 0, peer, out, in; i < info.peers; i++) {
    json_t *p = json_array_get(peers, (size_t)i);
    assert_int_equal(reshard_plan_peer(plan, i, &peer, &out, &in), RESHARD_SUCCESS);
    assert_int_equal(json_integer_value(json_object_get(p, "rank")), peer);
    assert_int_equal(json_integer_value(json_object_get(p, "sent_bytes")), out);
    assert_int_equal(json_integer_value(json_object_get(p, "received_bytes")), in);
  }
  json_decref(root);
#endif
  free(json);
  reshard_plan_destroy(plan);
}

/* In a world of 16,384 ranks a plan takes memory for its own peers, also where a world of receivers shares a replicated
 * source. */
CASE(plan_takes_memory_for_its_own_peers) {
  static const char *const pairs[][2] = {{"mesh(64x256;S0,S1)", "chunk(0)"},
                                         {"mesh(64x256;R,S0)", "mesh(64x256;S0,S1)"},
                                         {"mesh(64x256;R,S0)", "mesh(64x256;R,S1)"},
                                         {"mesh(128x128;R,S0)", "chunk(1)"},
                                         {"mesh(128x128;R,S0)", "mesh(16384;R)"}};
  const int64_t shape[2] = {1 << 20, 1 << 14};
  for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
    reshard_layout src, dst;
    reshard_plan plan;
    assert_int_equal(reshard_layout_parse(pairs[i][0], 2, shape, 16384, &src), RESHARD_SUCCESS);
    assert_int_equal(reshard_layout_parse(pairs[i][1], 2, shape, 16384, &dst), RESHARD_SUCCESS);
    reshard_entry entry = {RESHARD_ENTRY_INIT, .src = src, .dst = dst, .dtype = RESHARD_BF16};
    assert_int_equal(reshard_plan_create(1, &entry, 777, NULL, &plan), RESHARD_SUCCESS);
    reshard_plan_info info = info_of(plan);
    if (info.peers == 0 || info.peers > 512 || info.memory_bytes > 4096 + 1024 * info.peers)
      fail_msg("%s -> %s: %lld bytes for %lld peers", pairs[i][0], pairs[i][1], (long long)info.memory_bytes,
               (long long)info.peers);
    reshard_plan_destroy(plan);
    reshard_layout_release(src);
    reshard_layout_release(dst);
  }
}

/* The names that were given are in the text, the first four of them. */
CASE(explanation_has_the_first_names) {
  static const char *const names[] = {"wq", NULL, "wk", "w\nv", "wo", "norm", "gate"};
  static const char *const lines[] = {"",
                                      "\n  named     'wq'\n",
                                      "\n  named     'wq'\n",
                                      "\n  named     'wq', 'wk'\n",
                                      "\n  named     'wq', 'wk', 'w?v'\n",
                                      "\n  named     'wq', 'wk', 'w?v', 'wo'\n",
                                      "\n  named     'wq', 'wk', 'w?v', 'wo', and 1 more\n",
                                      "\n  named     'wq', 'wk', 'w?v', 'wo', and 2 more\n"};
  const int64_t shape[2] = {4, 6};
  reshard_layout rows, columns;
  assert_int_equal(reshard_layout_parse("chunk(0)", 2, shape, 2, &rows), RESHARD_SUCCESS);
  assert_int_equal(reshard_layout_parse("chunk(1)", 2, shape, 2, &columns), RESHARD_SUCCESS);
  reshard_entry entries[7];
  for (int i = 0; i < 7; i++)
    entries[i] = (reshard_entry){
        .size = RESHARD_ENTRY_INIT, .src = rows, .dst = columns, .dtype = RESHARD_F32, .name = names[i]};
  for (int n = 0; n <= 7; n++) {
    reshard_plan plan;
    char text[4096];
    assert_int_equal(reshard_plan_create(n, entries, 0, NULL, &plan), RESHARD_SUCCESS);
    assert_int_equal(reshard_plan_explain(plan, RESHARD_TEXT, text, sizeof text, NULL), RESHARD_SUCCESS);
    assert_non_null(strstr(text, lines[n]));
    assert_true(n > 0 || strstr(text, "named") == NULL);
    reshard_plan_destroy(plan);
  }
  reshard_layout_release(rows);
  reshard_layout_release(columns);
}

RUN_CASES
