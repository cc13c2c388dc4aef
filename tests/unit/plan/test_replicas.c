/* Replicated sources: the holders that serve each receiver, and how evenly, with and without a node map. They are found
 * again by counting elements of each cell of the source (a part that the same ranks hold) that each rank lacks. */
#include "support/fixtures/case.h"

#include <reshard/plan.h>

#include "bench/cli/util.h"
#include "bench/verify/random.h"
#include "support/fixtures/layouts.h"
#include "support/fixtures/scale.h"

#include <stdlib.h>
#include <string.h>

#define NDIM 2

/* Data of a rank in a regular layout: runs per dim. */
typedef struct part {
  int64_t n[NDIM];
  reshard_interval *runs[NDIM];
  int64_t elements;
  int64_t cell; /* the lowest rank that holds the same; -1: nothing */
} part;

static part *parts_of(reshard_layout layout) {
  int64_t world = reshard_layout_world(layout);
  part *parts = cli_alloc(world, sizeof *parts);
  for (int64_t r = 0; r < world; r++) {
    int64_t arrays;
    reshard_layout_array_count(layout, r, &arrays);
    for (int d = 0; d < NDIM && arrays > 0; d++) {
      reshard_layout_array_intervals(layout, r, 0, d, 0, 0, NULL, &parts[r].n[d]);
      parts[r].runs[d] = cli_alloc(parts[r].n[d], sizeof(reshard_interval));
      reshard_layout_array_intervals(layout, r, 0, d, 0, parts[r].n[d], parts[r].runs[d], &parts[r].n[d]);
    }
    if (arrays > 0)
      reshard_layout_buffer_elements(layout, r, 0, &parts[r].elements);
  }
  return parts;
}

static void parts_free(part *parts, int64_t world) {
  for (int64_t r = 0; r < world; r++)
    for (int d = 0; d < NDIM; d++)
      free(parts[r].runs[d]);
  free(parts);
}

static int64_t common(const part *a, const part *b) {
  int64_t product = 1;
  for (int d = 0; d < NDIM; d++) {
    int64_t sum = 0;
    for (int64_t i = 0, j = 0; i < a->n[d] && j < b->n[d];) {
      reshard_interval x = a->runs[d][i], y = b->runs[d][j];
      int64_t lo = x.begin > y.begin ? x.begin : y.begin, hi = x.end < y.end ? x.end : y.end;
      sum += hi > lo ? hi - lo : 0;
      if (x.end < y.end)
        i++;
      else
        j++;
    }
    product *= sum;
  }
  return product;
}

static void find_cells(part *parts, int64_t world) {
  for (int64_t r = 0; r < world; r++) {
    parts[r].cell = parts[r].elements > 0 ? 0 : -1;
    while (parts[r].elements > 0 && (parts[parts[r].cell].elements != parts[r].elements ||
                                     common(&parts[parts[r].cell], &parts[r]) != parts[r].elements))
      parts[r].cell++;
  }
}

/* Plans of all ranks, as a matrix of bytes sent: [from * world + to]. Both ends must agree. */
static int64_t *sent_matrix(reshard_layout src, reshard_layout dst, const int64_t *nodes) {
  int64_t world = reshard_layout_world(src), *sent = cli_alloc(world * world, sizeof *sent);
  int64_t *received = cli_alloc(world * world, sizeof *received);
  reshard_plan_options options = {.size = RESHARD_PLAN_OPTIONS_INIT, .nodes = nodes};
  for (int64_t r = 0; r < world; r++) {
    reshard_entry entry = {RESHARD_ENTRY_INIT, .src = src, .dst = dst, .dtype = RESHARD_U8};
    reshard_plan plan;
    reshard_plan_info info;
    if (reshard_plan_create(1, &entry, r, &options, &plan) != RESHARD_SUCCESS)
      fail_msg("%s", reshard_last_error());
    assert_int_equal(reshard_plan_get_info(plan, &info), RESHARD_SUCCESS);
    assert_int_equal(info.received_bytes, info.lower_bound_bytes);
    for (int64_t i = 0, peer, out, in; i < info.peers; i++) {
      assert_int_equal(reshard_plan_peer(plan, i, &peer, &out, &in), RESHARD_SUCCESS);
      sent[r * world + peer] = out;
      received[peer * world + r] = in;
    }
    reshard_plan_destroy(plan);
  }
  assert_memory_equal(sent, received, (size_t)(world * world) * sizeof *sent);
  free(received);
  return sent;
}

/* Every receiver gets the part of a cell that it lacks from the holders on its node, where there are some, else from
 * any. Each holder of a line of receivers sends as much as the others, within `slack`. Returns busiest sender over
 * mean. */
static double check_pair(const char *from, const char *to, const int64_t *shape, int64_t world, const int64_t *nodes,
                         double slack) {
  reshard_layout src = layout_from_text(from, NDIM, shape, world), dst = layout_from_text(to, NDIM, shape, world);
  part *have = parts_of(src), *want = parts_of(dst);
  int64_t *sent = sent_matrix(src, dst, nodes);
  double *ideal = cli_alloc(world, sizeof *ideal), busiest = 0, all = 0, senders = 0;
  find_cells(have, world);
  for (int64_t cell = 0; cell < world; cell++) {
    int64_t holders = 0;
    for (int64_t r = 0; r < world; r++)
      holders += have[r].cell == cell;
    for (int64_t to_rank = 0; to_rank < world && holders > 0; to_rank++) {
      int64_t needed = common(&have[cell], &want[to_rank]), got = 0, near = 0;
      if (needed == 0 || have[to_rank].cell == cell)
        continue;
      for (int64_t h = 0; h < world && nodes != NULL; h++)
        near += nodes[h] == nodes[to_rank] && have[h].cell == cell;
      for (int64_t h = 0; h < world; h++) {
        if (have[h].cell != cell)
          continue;
        if (near > 0 && nodes[h] != nodes[to_rank]) {
          if (sent[h * world + to_rank] != 0)
            fail_msg("%s to %s: rank %lld serves rank %lld of another node", from, to, (long long)h,
                     (long long)to_rank);
          continue;
        }
        got += sent[h * world + to_rank];
        ideal[h] += (double)needed / (double)(near > 0 ? near : holders);
      }
      if (got != needed)
        fail_msg("%s to %s: rank %lld gets %lld of %lld elements of the cell of rank %lld", from, to,
                 (long long)to_rank, (long long)got, (long long)needed, (long long)cell);
    }
  }
  for (int64_t r = 0; r < world; r++) {
    double bytes = 0;
    for (int64_t to_rank = 0; to_rank < world; to_rank++)
      bytes += (double)sent[r * world + to_rank];
    if (bytes > ideal[r] * (1 + slack) || bytes < ideal[r] * (1 - slack))
      fail_msg("%s to %s: rank %lld sends %.0f bytes, its share is %.0f", from, to, (long long)r, bytes, ideal[r]);
    busiest = bytes > busiest ? bytes : busiest;
    all += bytes;
    senders += have[r].elements > 0;
  }
  parts_free(have, world);
  parts_free(want, world);
  free(sent);
  free(ideal);
  reshard_layout_release(src);
  reshard_layout_release(dst);
  return all > 0 ? busiest * senders / all : 1;
}

static const char *const sources[] = {
    "mesh(8x8;R,S0)",   "mesh(8x8;S0,R)",       "mesh(8x8;R,S1)",  "mesh(2x32;R,S0)", "mesh(4x4x4;S0,R,S1)",
    "mesh(8x8;R,S0*3)", "mesh(16x2@0-31;R,S1)", "mesh(64@63-0;R)", "mesh(8@8-15;R)",
};
static const char *const destinations[] = {
    "chunk(0)",          "chunk(1)",       "mesh(8x8;S0,S1)", "mesh(8x8;S1,S0)", "mesh(16x4;R,S1)",
    "cyclic(8x8;32x32)", "mesh(8x8;S0,R)", "chunk(0;32-63)",  "chunk(1;63-0)",   "mesh(4x4x4;S0,S0,R;order=1,0,2)",
};
#define COUNT(list) ((int)(sizeof(list) / sizeof *(list)))

/* From one half of the world to the other, so that all cells are asked for alike: then all senders are equal. */
CASE(holders_share_the_sending_equally) {
  static const char *const from[] = {"mesh(4x8;R,S0)",  "mesh(4x8;S0,R)",      "mesh(8x4;R,S1)",
                                     "mesh(2x16;R,S0)", "mesh(4x2x4;S0,R,S1)", "mesh(32@31-0;R)"};
  static const char *const to[] = {"chunk(0;32-63)", "chunk(1;63-32)", "mesh(4x8@32-63;S1,S0)"};
  int64_t shape[NDIM] = {65536, 8192};
  for (int i = 0; i < 18; i++) {
    double ratio = check_pair(from[i / 3], to[i % 3], shape, 64, NULL, 0.02);
    if (ratio > 1.02)
      fail_msg("%s to %s: the busiest sender has %.3f times the mean", from[i / 3], to[i % 3], ratio);
  }
}

CASE(shares_of_all_layouts_are_even) {
  int64_t shape[NDIM] = {65536, 8192};
  int step = test_scale() < 1 ? 3 : 1;
  for (int i = 0; i < COUNT(sources); i++)
    for (int j = i % step; j < COUNT(destinations); j += step)
      check_pair(sources[i], destinations[j], shape, 64, NULL, 0.02);
}

CASE(holders_on_the_node_of_the_receiver_send) {
  int64_t shape[NDIM] = {65536, 8192}, nodes[64];
  rng r;
  rng_seed(&r, 7);
  int step = test_scale() < 1 ? 9 : 3;
  for (int map = 0; map < 6; map++) {
    for (int64_t i = 0; i < 64; i++) {
      static const int64_t per_node[3] = {8, 16, 3};
      nodes[i] = map < 3 ? i / per_node[map] : map == 3 ? i % 8 : map == 4 ? 1000000007 * rng_below(&r, 5) : 7;
    }
    for (int i = 0; i < COUNT(sources); i++)
      for (int j = (i + map) % step; j < COUNT(destinations); j += step)
        check_pair(sources[i], destinations[j], shape, 64, nodes, 0.02);
  }
}

/* Every node has a copy: nothing travels between nodes. */
CASE(test_copy_per_node) {
  int64_t shape[NDIM] = {4096, 512}, nodes[64];
  for (int64_t i = 0; i < 64; i++)
    nodes[i] = i / 8;
  reshard_layout src = layout_from_text("mesh(8x8;R,S0)", NDIM, shape, 64),
                 dst = layout_from_text("chunk(1)", NDIM, shape, 64);
  int64_t *sent = sent_matrix(src, dst, nodes), bytes = 0;
  for (int64_t i = 0; i < 64 * 64; i++) {
    assert_true(sent[i] == 0 || nodes[i / 64] == nodes[i % 64]);
    bytes += sent[i];
  }
  assert_int_equal(bytes, 4096 * 512 / 8 * 7);
  free(sent);
  reshard_layout_release(src);
  reshard_layout_release(dst);
}

/* Shares of a few rows, or of less than one: uneven, but whole, and the same on both sides. */
CASE(shares_of_few_rows_are_whole_on_both_sides) {
  static const int64_t shapes[][NDIM] = {{7, 5}, {1, 40}, {40, 1}, {3, 3}, {64, 2}, {0, 9}, {1, 1}, {13, 21}};
  int64_t nodes[64];
  for (int64_t i = 0; i < 64; i++)
    nodes[i] = i / 5;
  int step = test_scale() < 1 ? 7 : 2;
  for (int s = 0; s < COUNT(shapes); s++)
    for (int i = 0; i < COUNT(sources); i++)
      for (int j = (i + s) % step; j < COUNT(destinations); j += step)
        check_pair(sources[i], destinations[j], shapes[s], 64, (i + j) % 3 ? NULL : nodes, 1e9);
}

/* Shares end at the row of a part that is nearest, the later one of two: so no holder has more than half a row more or
 * less than its share of each part. */
CASE(test_nearest_row) {
  static const struct {
    const char *from, *to;
    int64_t rows, sent[4]; /* rows that each holder sends to rank 4 */
  } cases[] = {
      {"mesh(3;R)", "rank(4)", 5, {2, 1, 2}},    /* 5/3 and 10/3 rows */
      {"mesh(2;R)", "rank(4)", 3, {2, 1}},       /* 3/2 */
      {"mesh(4;R)", "rank(4)", 7, {2, 2, 1, 2}}, /* 7/4, 14/4 and 21/4 */
      {"mesh(4;R)", "rank(4)", 2, {1, 0, 1, 0}}, /* 1/2, 1 and 3/2 */
      {"mesh(3;R)", "mesh(2@4-5;R)", 5, {3, 2, 0}},
  };
  enum { COLUMNS = 12 };
  for (int i = 0; i < COUNT(cases); i++) {
    const int64_t shape[NDIM] = {cases[i].rows, COLUMNS}, world = 6;
    reshard_layout src = layout_from_text(cases[i].from, NDIM, shape, world),
                   dst = layout_from_text(cases[i].to, NDIM, shape, world);
    int64_t *sent = sent_matrix(src, dst, NULL);
    for (int64_t r = 0; r < 4; r++)
      if (sent[r * world + 4] != cases[i].sent[r] * COLUMNS)
        fail_msg("%s to %s, %lld rows: rank %lld sends %lld elements of %d a row, %lld rows are expected",
                 cases[i].from, cases[i].to, (long long)cases[i].rows, (long long)r, (long long)sent[r * world + 4],
                 COLUMNS, (long long)cases[i].sent[r]);
    free(sent);
    reshard_layout_release(src);
    reshard_layout_release(dst);
  }
}

/* A world of 16,384 ranks: what a rank says of each of its peers, the peer says of it. */
static void check_large(const char *from, const char *to, const int64_t *nodes) {
  int64_t shape[NDIM] = {1 << 18, 1 << 16}, world = 16384;
  static const int64_t ranks[] = {0, 127, 128, 5000, 16383};
  reshard_layout src = layout_from_text(from, NDIM, shape, world), dst = layout_from_text(to, NDIM, shape, world);
  reshard_entry entry = {RESHARD_ENTRY_INIT, .src = src, .dst = dst, .dtype = RESHARD_BF16};
  reshard_plan_options options = {.size = RESHARD_PLAN_OPTIONS_INIT, .nodes = nodes};
  for (int k = 0; k < COUNT(ranks); k++) {
    reshard_plan plan, other;
    reshard_plan_info info, theirs;
    assert_int_equal(reshard_plan_create(1, &entry, ranks[k], &options, &plan), RESHARD_SUCCESS);
    assert_int_equal(reshard_plan_get_info(plan, &info), RESHARD_SUCCESS);
    assert_int_equal(info.received_bytes, info.lower_bound_bytes);
    int64_t step = 1 + info.peers / 12, sums[2] = {0, 0};
    for (int64_t i = 0, peer, out, in; i < info.peers; i++) {
      assert_int_equal(reshard_plan_peer(plan, i, &peer, &out, &in), RESHARD_SUCCESS);
      sums[0] += out;
      sums[1] += in;
      if (i % step != 0)
        continue;
      assert_int_equal(reshard_plan_create(1, &entry, peer, &options, &other), RESHARD_SUCCESS);
      assert_int_equal(reshard_plan_get_info(other, &theirs), RESHARD_SUCCESS);
      int64_t at = 0, rank = -1, their_out = 0, their_in = 0;
      while (at < theirs.peers && rank != ranks[k])
        assert_int_equal(reshard_plan_peer(other, at++, &rank, &their_out, &their_in), RESHARD_SUCCESS);
      assert_int_equal(rank, ranks[k]);
      assert_int_equal(their_out, in);
      assert_int_equal(their_in, out);
      reshard_plan_destroy(other);
    }
    assert_int_equal(sums[0], info.sent_bytes);
    assert_int_equal(sums[1], info.received_bytes);
    reshard_plan_destroy(plan);
  }
  reshard_layout_release(src);
  reshard_layout_release(dst);
}

CASE(test_large_world) {
  int64_t *nodes = cli_alloc(16384, sizeof *nodes);
  for (int64_t i = 0; i < 16384; i++)
    nodes[i] = i / 8;
  check_large("mesh(128x128;S0,S1)", "mesh(128x128;S1,S0)", NULL);
  check_large("mesh(128x128;S0,S1)", "mesh(16384@16383-0;S0)", NULL);
  check_large("mesh(128x128;R,S0)", "mesh(128x128;S0,S1)", NULL);
  check_large("mesh(64x256;R,S0)", "mesh(64x256;R,S1)", NULL); /* cells do not come in the order of ranks */
  check_large("mesh(128x128;S0,R)", "mesh(128x128@16383-0;S1,S0)", NULL);
  check_large("mesh(128x128;S0,R)", "mesh(16x1024;S1,S0)", nodes);
  free(nodes);
}

RUN_CASES
