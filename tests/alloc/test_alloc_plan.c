/* The k-th allocation fails, for every k, in making, reversing and asking plans: of entries of all pairs of kinds, with
 * regions, permutations, replicas, node maps and workspace limits. */
#include "base/base.h"
#include "support/fault_local.h"
#include "support/fixtures/case.h"
#include "support/fixtures/expect.h"
#include "support/fixtures/rank_threads.h"
#include "support/fixtures/scale.h"
#include "support/seeded_case.h"

#include <stdlib.h>
#include <string.h>

typedef struct plan_case {
  int64_t nentries, rank;
  const reshard_entry *entries;
  const reshard_plan_options *options;
  reshard_plan plan, reverse; /* made without faults; reverse NULL where there is none */
} plan_case;

static void drop_plan(fault_output *out) { reshard_plan_destroy(out->object); }

/* The same in numbers and in peers; the time that it took may differ. */
static bool same_plan(reshard_plan a, reshard_plan b) {
  reshard_plan_info x, y;
  if (reshard_plan_get_info(a, &x) != RESHARD_SUCCESS || reshard_plan_get_info(b, &y) != RESHARD_SUCCESS)
    return false;
  x.plan_ns = y.plan_ns;
  x.memory_bytes = y.memory_bytes; /* plans of all ranks share some */
  bool same = memcmp(&x, &y, sizeof x) == 0;
  for (int64_t i = 0; i < x.peers && same; i++) {
    int64_t p[3], q[3];
    same = reshard_plan_peer(a, i, &p[0], &p[1], &p[2]) == RESHARD_SUCCESS &&
           reshard_plan_peer(b, i, &q[0], &q[1], &q[2]) == RESHARD_SUCCESS && memcmp(p, q, sizeof p) == 0;
  }
  return same;
}

static reshard_status make_plan(fault_output *out, const void *with) {
  const plan_case *c = with;
  reshard_plan made = out->object;
  reshard_status status = reshard_plan_create(c->nentries, c->entries, c->rank, c->options, &made);
  out->object = made;
  return status;
}
static bool good_plan(const fault_output *out, const void *with) {
  return same_plan(out->object, ((const plan_case *)with)->plan);
}

/* The plans of all ranks; that of the case's is kept. */
static reshard_status make_all(fault_output *out, const void *with) {
  const plan_case *c = with;
  int64_t world = reshard_layout_world(c->entries[0].src);
  reshard_plan made[64];
  for (int64_t r = 0; r < world; r++)
    made[r] = out->object;
  reshard_status status = reshard_plan_create_all(c->nentries, c->entries, world, NULL, c->options, made);
  for (int64_t r = 0; r < world && status == RESHARD_SUCCESS; r++)
    if (r != c->rank)
      reshard_plan_destroy(made[r]);
  out->object = made[c->rank];
  return status;
}

static reshard_status reverse(fault_output *out, const void *with) {
  const plan_case *c = with;
  reshard_plan made = out->object;
  reshard_status status = reshard_plan_reverse(c->plan, &made);
  out->object = made;
  return status;
}
static bool good_reverse(const fault_output *out, const void *with) {
  return same_plan(out->object, ((const plan_case *)with)->reverse);
}

/* Workspace and both print-outs. */
static reshard_status info_ask(fault_output *out, const void *with) {
  const plan_case *c = with;
  static char text[1 << 20];
  size_t bytes = 0, needed[2] = {0, 0};
  reshard_status status = reshard_plan_workspace(c->plan, &bytes);
  RS_THEN(status, reshard_plan_explain(c->plan, RESHARD_TEXT, text, sizeof text, &needed[0]));
  RS_THEN(status, reshard_plan_explain(c->plan, RESHARD_JSON, text, sizeof text, &needed[1]));
  if (status == RESHARD_SUCCESS)
    out->number = (int64_t)(bytes + 1000003 * needed[0] + 1000033 * needed[1]);
  return status;
}
static bool same_answer(const fault_output *out, const void *with) {
  fault_output again;
  return info_ask(&again, with) == RESHARD_SUCCESS && again.number == out->number;
}

/* Returns the allocations that making it takes. */
static int64_t each_fault(plan_case *c, const char *name) {
  int64_t live = fault_live();
  if (reshard_plan_create(c->nentries, c->entries, c->rank, c->options, &c->plan) != RESHARD_SUCCESS)
    fail_msg("%s: %s", name, reshard_last_error());
  int64_t made = fault_local_run(&(fault_local){name, make_plan, good_plan, drop_plan, c});
  if (c->nentries > 0)
    fault_local_run(&(fault_local){name, make_all, good_plan, drop_plan, c});
  fault_local_run(&(fault_local){name, info_ask, same_answer, NULL, c});
  c->reverse = NULL;
  if (reshard_plan_reverse(c->plan, &c->reverse) == RESHARD_SUCCESS)
    fault_local_run(&(fault_local){name, reverse, good_reverse, drop_plan, c});
  reshard_plan_destroy(c->reverse);
  reshard_plan_destroy(c->plan);
  assert_int_equal(fault_live(), live);
  return made;
}

/* Every kind with every kind in one plan. */
CASE(test_all_kinds) {
  enum { WORLD = 8, SOURCES = 9, DESTINATIONS = 8 };
  static const int64_t shape[3] = {12, 20, 3};
  static const char *const sources[SOURCES] = {
      "chunk(1)",
      "mesh(2x4;S0,R)",
      "mesh(2x2x2;S0*2,R,S1)",
      "cyclic(2x2x2;3x4x1)",
      "rank(3)",
      "flat()",
      "boxes(1:[0,0,0]+[12,7,3];5:[0,7,0]+[12,13,3])",
      "boxes(replicated;0:[0,0,0]+[6,20,3];1:[0,0,0]+[6,20,3];2:[6,0,0]+[6,20,3];6:[6,0,0]+[6,20,3])",
      "mesh(8;R)"};
  static const char *const destinations[DESTINATIONS] = {
      "chunk(0;7-0)",        "mesh(2x4;R,S1)",
      "cyclic(4x2x1;1x7x2)", "rank(0)",
      "flat(2-6)",           "boxes(0:[0,0,0]+[5,5,3];4:[3,3,0]+[9,9,3];4:[0,15,0]+[3,5,3])",
      "mesh(8;R)",           "mesh(a=2,b=4;S1,S0;order=b,a)"};
  reshard_entry entries[SOURCES * DESTINATIONS];
  reshard_layout src[SOURCES], dst[DESTINATIONS];
  for (int i = 0; i < SOURCES; i++)
    if (reshard_layout_parse(sources[i], 3, shape, WORLD, &src[i]) != RESHARD_SUCCESS)
      fail_msg("%s", reshard_last_error());
  for (int i = 0; i < DESTINATIONS; i++)
    if (reshard_layout_parse(destinations[i], 3, shape, WORLD, &dst[i]) != RESHARD_SUCCESS)
      fail_msg("%s", reshard_last_error());
  const int64_t offset[3] = {1, 2, 0}, extent[3] = {9, 12, 3};
  int64_t nodes[WORLD] = {0, 0, 1, 1, 2, 2, 3, 3};
  const reshard_topology topology = {RESHARD_TOPOLOGY_INIT, WORLD, nodes, 50, 900, 30, 0};
  const reshard_plan_options options[] = {
      {.size = RESHARD_PLAN_OPTIONS_INIT},
      {.size = RESHARD_PLAN_OPTIONS_INIT, .nodes = nodes},
      {.size = RESHARD_PLAN_OPTIONS_INIT, .workspace_limit = 32768, .topology = &topology, .nodes = nodes}};
  const int step = test_scale() < 1 ? 3 : 1; /* with a sanitizer each source has one of the options */
  for (int o = 0; o < 3; o++)
    for (int s = o % step; s < SOURCES; s += step) {
      for (int d = 0; d < DESTINATIONS; d++) {
        entries[d] = (reshard_entry){RESHARD_ENTRY_INIT, .src = src[s], .dst = dst[d],
                                     .dtype = d % 2 == 0 ? RESHARD_BF16 : RESHARD_F64};
        if (d % 3 == 2) {
          entries[d].src_offset = entries[d].dst_offset = offset;
          entries[d].src_extent = entries[d].dst_extent = extent;
          entries[d].name = "a part";
        }
      }
      plan_case c = {DESTINATIONS, (s + o) % WORLD, entries, &options[o], NULL, NULL};
      assert_true(each_fault(&c, sources[s]) >= DESTINATIONS);
    }
  for (int i = 0; i < SOURCES; i++)
    reshard_layout_release(src[i]);
  for (int i = 0; i < DESTINATIONS; i++)
    reshard_layout_release(dst[i]);
}

CASE(random_plans_survive_any_failed_allocation) {
  int64_t seeds = test_scaled(50, 10), made = 0;
  for (int64_t seed = 1; seed <= seeds; seed++) {
    case_plan r;
    seeded_case_make((uint64_t)seed, 0, &r);
    reshard_entry *entries = case_entries(&r);
    plan_case c = {r.nentries, seed % r.world, entries, &r.options, NULL, NULL};
    char name[32];
    snprintf(name, sizeof name, "seed %lld", (long long)seed);
    if (r.nentries > 0)
      made += each_fault(&c, name);
    free(entries);
    case_free(&r);
  }
  assert_true(made > seeds * 5);
}

/* Replicas of a source share a hundred receivers, in another order than that of their ranks. */
CASE(shares_of_replicas_survive_any_failed_allocation) {
  const int64_t shape[] = {1000};
  reshard_entry entry = {RESHARD_ENTRY_INIT, .dtype = RESHARD_U8};
  plan_case c = {1, 0, &entry, NULL, NULL, NULL};
  reshard_plan_info info;
  GOOD(reshard_layout_parse("mesh(3@0-2;R)", 1, shape, 100, &entry.src));
  GOOD(reshard_layout_parse("chunk(0;99-0)", 1, shape, 100, &entry.dst));
  GOOD(reshard_plan_create(1, &entry, 0, NULL, &c.plan));
  GOOD(reshard_plan_get_info(c.plan, &info));
  assert_true(info.sent_bytes > 0);
  assert_true(fault_local_run(&(fault_local){"replicas", make_plan, good_plan, drop_plan, &c}) > 10);
  reshard_plan_destroy(c.plan);
  reshard_layout_release(entry.src);
  reshard_layout_release(entry.dst);
}

CASE(empty_plans_survive_any_failed_allocation) {
  plan_case c = {0, 3, NULL, NULL, NULL, NULL};
  each_fault(&c, "no entries");
}

RUN_CASES
