/* Plans of all ranks in one call: equal, field by field, to those made rank by rank, over random layouts of all kinds
 * with replicas, regions and permutations; lists of ranks, lifetime, errors. */
#include "bench/verify/case_make.h"
#include "plan/messages.h"
#include "support/fixtures/case.h"
#include "support/fixtures/layouts.h"
#include "support/fixtures/scale.h"

#include <stdlib.h>
#include <string.h>

/* The run of an axis as it is where the source asks. */
static rs_run of_source(const rs_geometry *g, const rs_run *run) {
  return g->src_asks ? *run : (rs_run){run->held, run->ask, run->n};
}

static bool equal_geometry(rs_route route, const rs_class *a, const rs_side *x, const rs_segment *s, const rs_class *b,
                           const rs_side *y, const rs_segment *t) {
  rs_geometry g, h;
  rs_segment_geometry(a, x, route, s, &g);
  rs_segment_geometry(b, y, route, t, &h);
  bool equal = g.naxes == h.naxes && g.cut == h.cut && g.row == h.row;
  for (int d = 0; equal && d < g.naxes; d++) {
    equal = g.axis[d].count == h.axis[d].count && g.axis[d].length == h.axis[d].length;
    for (int64_t r = 0; equal && r < g.axis[d].count; r++) {
      rs_run p = of_source(&g, &g.axis[d].runs[r]), q = of_source(&h, &h.axis[d].runs[r]);
      equal = p.ask == q.ask && p.held == q.held && p.n == q.n;
    }
  }
  return equal;
}

static const char *compare_sides(const rs_class *a, const rs_class *b, bool sending, int64_t rank) {
  const rs_side *x = sending ? &a->send : &a->receive, *y = sending ? &b->send : &b->receive;
  if (x->messages.n != y->messages.n || x->nsegments != y->nsegments)
    return "numbers of messages or segments";
  for (int64_t i = 0; i < x->messages.n; i++) {
    const rs_message *m = &x->messages.at[i], *n = &y->messages.at[i];
    if (m->peer != n->peer || m->count != n->count || m->elements != n->elements)
      return "messages";
    if ((sending && m->src_in_place != n->src_in_place) ||
        ((!sending || m->peer == rank) && m->dst_in_place != n->dst_in_place))
      return "places";
    for (int64_t k = 0; k < m->count; k++) {
      const rs_segment *s = &m->segments[k], *t = &n->segments[k];
      if (s->src_array != t->src_array || s->dst_array != t->dst_array || s->begin != t->begin ||
          s->elements != t->elements)
        return "segments";
      if (!equal_geometry(rs_route_of(rank, sending, m->peer), a, x, s, b, y, t))
        return "geometry";
    }
  }
  return NULL;
}

static const char *compare_classes(const rs_class *a, const rs_class *b, int64_t rank) {
  if (reshard_layout_equal(a->src, b->src) != 1 || reshard_layout_equal(a->dst, b->dst) != 1 ||
      memcmp(&a->space, &b->space, sizeof a->space) != 0 || !rs_format_equal(a->from, b->from) ||
      !rs_format_equal(a->to, b->to) || !rs_format_equal(a->wire, b->wire) || a->entries != b->entries ||
      a->first_entry != b->first_entry)
    return "classes";
  if (a->kept != b->kept || a->wanted != b->wanted || a->exclusive != b->exclusive)
    return "elements kept, wanted or exclusive";
  const char *differ = compare_sides(a, b, true, rank);
  return differ != NULL ? differ : compare_sides(a, b, false, rank);
}

static bool equal_info(reshard_plan_info a, reshard_plan_info b) {
  a.plan_ns = b.plan_ns = 0;
  a.memory_bytes = b.memory_bytes = 0;
  return memcmp(&a, &b, sizeof a) == 0; /* all fields are 64 bits */
}

/* The first field that differs; NULL when the plans are equal. */
static const char *compare_plans(reshard_plan a, reshard_plan b) {
  if (a->rank != b->rank || a->world != b->world || a->smaller != b->smaller || a->nentries != b->nentries ||
      a->limit != b->limit || a->on_cpu != b->on_cpu || a->nsrc != b->nsrc || a->ndst != b->ndst ||
      a->classes.n != b->classes.n)
    return "numbers";
  if (memcmp(a->fields, b->fields, sizeof a->fields) != 0 ||
      (a->nentries > 0 && memcmp(a->order, b->order, (size_t)a->nentries * sizeof *a->order) != 0))
    return "fields or order";
  if ((a->nodes == NULL) != (b->nodes == NULL) ||
      (a->nodes != NULL && memcmp(a->nodes, b->nodes, (size_t)a->world * sizeof *a->nodes) != 0))
    return "nodes";
  for (int64_t i = 0; i < a->nentries; i++) {
    const rs_entry *x = &a->entries[i], *y = &b->entries[i];
    if (x->class_ != y->class_ || x->dtype != y->dtype || x->src_buffer != y->src_buffer ||
        x->dst_buffer != y->dst_buffer || strcmp(x->name, y->name) != 0)
      return "entries";
  }
  if (a->peers.n != b->peers.n)
    return "number of peers";
  for (int64_t i = 0; i < a->peers.n; i++) {
    const rs_peer *x = &a->peers.at[i], *y = &b->peers.at[i];
    if (x->rank != y->rank || x->sent != y->sent || x->received != y->received || x->send_message != y->send_message ||
        x->receive_message != y->receive_message)
      return "peers";
  }
  for (int64_t i = 0; i < a->classes.n; i++) {
    const char *differ = compare_classes(&a->classes.at[i], &b->classes.at[i], a->rank);
    if (differ != NULL)
      return differ;
  }
  reshard_pattern p = rs_plan_pattern(a), q = rs_plan_pattern(b);
  if (p.kind != q.kind || p.root != q.root || p.bytes != q.bytes || p.why != q.why)
    return "patterns";
  return equal_info(a->info, b->info) ? NULL : "info";
}

static void check_case(uint64_t seed, int64_t ranks) {
  case_choices fixed = {.ranks = ranks, .casts = true, .blocks = true};
  case_plan c;
  rs_text why = {0};
  if (!case_make(seed, &fixed, &c, &why))
    fail_msg("seed %llu: %s", (unsigned long long)seed, why.at);
  reshard_entry *entries = case_entries(&c);
  reshard_plan *plans = cli_alloc(c.world, sizeof *plans);
  if (reshard_plan_create_all(c.nentries, entries, c.world, NULL, &c.options, plans) != RESHARD_SUCCESS)
    fail_msg("seed %llu: %s", (unsigned long long)seed, reshard_last_error());
  int64_t together = 0, alone = 0;
  for (int64_t i = 0; i < c.world; i++) {
    int64_t r = (i + (int64_t)(seed % 7)) % c.world; /* they go in any order */
    reshard_plan plan;
    if (reshard_plan_create(c.nentries, entries, r, &c.options, &plan) != RESHARD_SUCCESS)
      fail_msg("seed %llu, rank %lld: %s", (unsigned long long)seed, (long long)r, reshard_last_error());
    const char *differ = compare_plans(plans[r], plan);
    if (differ != NULL)
      fail_msg("seed %llu, rank %lld of %lld: %s differ", (unsigned long long)seed, (long long)r, (long long)c.world,
               differ);
    together += plans[r]->info.memory_bytes;
    alone += plan->info.memory_bytes;
    reshard_plan_destroy(plan);
    reshard_plan_destroy(plans[r]);
  }
  if (together > 2 * alone)
    fail_msg("seed %llu: %lld bytes of plans together, %lld alone", (unsigned long long)seed, (long long)together,
             (long long)alone);
  free(plans);
  free(entries);
  case_free(&c);
}

CASE(plans_of_all_ranks_are_those_made_one_by_one) {
  for (int64_t i = 0, n = (int64_t)(6000 * test_scale()); i <= n; i++)
    check_case(900000 + (uint64_t)i, i % 50 == 49 ? 64 : 0);
}

#define SHAPE(...) \
  (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (int64_t[]) { __VA_ARGS__ }

/* Boxes of many arrays a rank, permuted, with replicas in every order of arrays: segments that must be sorted. */
static reshard_layout tiles(int64_t n, int64_t shift, int64_t world, int64_t copies) {
  int64_t m = n + (shift > 0), count = 0, shape[2] = {8 * n, 8 * n};
  reshard_box *boxes = cli_alloc(m * m * copies, sizeof *boxes);
  int64_t *ranks = cli_alloc(m * m * copies, sizeof *ranks);
  for (int64_t copy = 0; copy < copies; copy++)
    for (int64_t k = 0; k < m * m; k++) {
      int64_t t = copy % 2 == 0 ? k : m * m - 1 - k, at[2] = {t / m * 8 - shift, t % m * 8 - shift};
      reshard_box b = {.offset = {rs_max(0, at[0]), rs_max(0, at[1])}};
      for (int d = 0; d < 2; d++)
        b.extent[d] = rs_min(at[d] + 8, 8 * n) - b.offset[d];
      if (b.extent[0] <= 0 || b.extent[1] <= 0)
        continue;
      boxes[count] = b;
      ranks[count++] = (t * 7 / 5 + copy) % world; /* world and copies are such that these differ */
    }
  reshard_layout layout = NULL;
  if (reshard_layout_create_boxes(2, shape, world, count, ranks, boxes, copies > 1, &layout) != RESHARD_SUCCESS)
    fail_msg("%s", reshard_last_error());
  free(boxes);
  free(ranks);
  return layout;
}

/* Plans src to dst for all ranks of the list, and compares each with its own. */
static void check_list(reshard_layout src, reshard_layout dst, int64_t nranks, const int64_t *ranks,
                       const reshard_plan_options *options) {
  reshard_entry entry = {RESHARD_ENTRY_INIT, .src = src, .dst = dst, .dtype = RESHARD_F32, .name = "w"};
  reshard_plan *plans = cli_alloc(nranks, sizeof *plans), plan;
  if (reshard_plan_create_all(1, &entry, nranks, ranks, options, plans) != RESHARD_SUCCESS)
    fail_msg("%s", reshard_last_error());
  for (int64_t i = 0; i < nranks; i++) {
    int64_t rank = ranks != NULL ? ranks[i] : i;
    assert_int_equal(reshard_plan_create(1, &entry, rank, options, &plan), RESHARD_SUCCESS);
    const char *differ = compare_plans(plans[i], plan);
    if (differ != NULL)
      fail_msg("rank %lld: %s differ", (long long)rank, differ);
    reshard_plan_destroy(plan);
  }
  for (int64_t i = nranks - 1; i >= 0; i--)
    reshard_plan_destroy(plans[i]);
  free(plans);
}

CASE(plans_of_tiles_are_those_made_one_by_one) {
  int64_t nodes[9] = {2, 0, 1, 1, 0, 2, 7, 7, 7};
  reshard_plan_options on_nodes = {RESHARD_PLAN_OPTIONS_INIT, .nodes = nodes};
  reshard_plan_options on_cpu = {RESHARD_PLAN_OPTIONS_INIT, .workspace_limit = 64 << 10, .on_cpu = 1};
  for (int64_t copies = 1; copies <= 3; copies++)
    for (int64_t shift = 0; shift <= 4; shift += 4) {
      reshard_layout src = tiles(20, 0, 9, copies), dst = tiles(20, shift, 9, 4 - copies);
      reshard_layout one = layout_from_text("rank(4)", SHAPE(160, 160), 9),
                     cyclic = layout_from_text("cyclic(3x3;5x7)", SHAPE(160, 160), 9);
      reshard_layout to[] = {dst, one, cyclic};
      for (int i = 0; i < 3; i++) {
        check_list(src, to[i], 9, NULL, NULL);
        check_list(src, to[i], 9, NULL, &on_nodes);
        check_list(src, to[i], 9, NULL, &on_cpu);
        check_list(to[i], src, 9, NULL, NULL);
        reshard_layout_release(to[i]);
      }
      reshard_layout_release(src);
    }
}

/* n stripes of rows, or of columns, a rank each. */
static reshard_layout stripes(int64_t n, int dim) {
  reshard_box *boxes = cli_alloc(n, sizeof *boxes);
  int64_t *ranks = cli_alloc(n, sizeof *ranks), shape[2] = {2 * n, 2 * n};
  for (int64_t i = 0; i < n; i++) {
    ranks[i] = i;
    boxes[i] = (reshard_box){.extent = {2 * n, 2 * n}};
    boxes[i].offset[dim] = 2 * i;
    boxes[i].extent[dim] = 2;
  }
  reshard_layout layout = NULL;
  assert_int_equal(reshard_layout_create_boxes(2, shape, n, n, ranks, boxes, 0, &layout), RESHARD_SUCCESS);
  free(boxes);
  free(ranks);
  return layout;
}

/* A dense world is planned as fast as its memory is filled: 128 bytes for a message of one segment on both ends. */
CASE(test_dense_memory) {
  enum { WORLD = 200 };
  reshard_layout src = stripes(WORLD, 0), dst = stripes(WORLD, 1);
  reshard_entry entry = {RESHARD_ENTRY_INIT, .src = src, .dst = dst, .dtype = RESHARD_U8};
  reshard_plan plans[WORLD];
  int64_t bytes = 0;
  assert_int_equal(reshard_plan_create_all(1, &entry, WORLD, NULL, NULL, plans), RESHARD_SUCCESS);
  for (int r = 0; r < WORLD; r++) {
    reshard_plan_info info = {0};
    assert_int_equal(reshard_plan_get_info(plans[r], &info), RESHARD_SUCCESS);
    assert_int_equal(info.segments, 2 * WORLD - 1);
    bytes += info.memory_bytes;
    reshard_plan_destroy(plans[r]);
  }
  if (bytes > 128 * WORLD * WORLD + 2048 * WORLD)
    fail_msg("%.1f bytes an intersection", (double)bytes / WORLD / WORLD);
  reshard_layout_release(src);
  reshard_layout_release(dst);
}

/* Lists: all ranks in another order, some, one twice, none. */
CASE(ranks_may_be_listed_in_any_order) {
  reshard_layout src = layout_from_text("mesh(2x3;R,S0)", SHAPE(31, 17), 6),
                 dst = layout_from_text("chunk(1)", SHAPE(31, 17), 6);
  check_list(src, dst, 6, (int64_t[]){5, 3, 0, 1, 4, 2}, NULL);
  check_list(src, dst, 2, (int64_t[]){4, 1}, NULL);
  check_list(src, dst, 6, (int64_t[]){4, 1, 1, 0, 2, 3}, NULL);
  check_list(src, dst, 0, (int64_t[]){0}, NULL);
  reshard_layout_release(src);
  reshard_layout_release(dst);
}

/* Some plans go, the others stay as they were; layouts are released before. */
CASE(plans_live_on_when_others_go) {
  reshard_layout src = tiles(12, 0, 5, 1), dst = tiles(12, 4, 5, 1);
  reshard_entry entry = {RESHARD_ENTRY_INIT, .src = src, .dst = dst, .dtype = RESHARD_U8};
  reshard_plan plans[5], alone;
  assert_int_equal(reshard_plan_create_all(1, &entry, 5, NULL, NULL, plans), RESHARD_SUCCESS);
  assert_int_equal(reshard_plan_create(1, &entry, 3, NULL, &alone), RESHARD_SUCCESS);
  reshard_layout_release(src);
  reshard_layout_release(dst);
  for (int i = 0; i < 5; i++)
    if (i != 3)
      reshard_plan_destroy(plans[i]);
  assert_null(compare_plans(plans[3], alone));
  reshard_plan_destroy(plans[3]);
  reshard_plan_destroy(alone);
}

CASE(wrong_lists_of_ranks_are_refused) {
  reshard_layout src = layout_from_text("chunk(0)", SHAPE(8, 4), 4), dst = layout_from_text("chunk(1)", SHAPE(8, 4), 4);
  reshard_entry entry = {RESHARD_ENTRY_INIT, .src = src, .dst = dst, .dtype = RESHARD_F32};
  reshard_plan_options small = {RESHARD_PLAN_OPTIONS_INIT, .workspace_limit = 1};
  reshard_plan plans[4] = {NULL, NULL, NULL, NULL};
  assert_int_equal(reshard_plan_create_all(1, &entry, 3, NULL, NULL, plans), RESHARD_ERROR_INVALID);
  assert_non_null(strstr(reshard_last_error(), "3 ranks without a list, the world has 4"));
  assert_int_equal(reshard_plan_create_all(1, &entry, 4, (int64_t[]){0, 1, 2, 4}, NULL, plans), RESHARD_ERROR_INVALID);
  assert_non_null(strstr(reshard_last_error(), "rank 4 is not in the world of 4"));
  assert_int_equal(reshard_plan_create_all(1, &entry, -1, NULL, NULL, plans), RESHARD_ERROR_INVALID);
  assert_int_equal(reshard_plan_create_all(1, &entry, 4, NULL, &small, plans), RESHARD_ERROR_INVALID);
  assert_non_null(strstr(reshard_last_error(), "limit of 1 bytes"));
  entry.op = RESHARD_OP_SUM;
  assert_int_equal(reshard_plan_create_all(1, &entry, 4, NULL, NULL, plans), RESHARD_ERROR_UNSUPPORTED);
  for (int i = 0; i < 4; i++)
    assert_null(plans[i]); /* written only on success */
  reshard_layout_release(src);
  reshard_layout_release(dst);
}

/* Without entries there is no world: any number of ranks. */
CASE(test_no_entries) {
  reshard_plan plans[3];
  assert_int_equal(reshard_plan_create_all(0, NULL, 3, NULL, NULL, plans), RESHARD_SUCCESS);
  for (int i = 0; i < 3; i++) {
    reshard_plan_info info = {.world = 1};
    assert_int_equal(reshard_plan_get_info(plans[i], &info), RESHARD_SUCCESS);
    assert_int_equal(info.world, 0);
    assert_int_equal(info.rank, i);
    reshard_plan_destroy(plans[i]);
  }
}

RUN_CASES
