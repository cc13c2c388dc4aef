/* Use of limits: rounds beside the least possible, and workspace beside the limit, as all ranks of a world
 * have them. */
#include "support/fixtures/case.h"

#include <reshard/file.h>
#include <reshard/plan.h>

#include "base/base.h"
#include "bench/cli/util.h"

#include <stdlib.h>
#include <string.h>

/* A world under a limit. */
typedef struct limited_world {
  const char *src, *dst;
  int64_t world, limit;
  bool cpu;
  int64_t rounds, most, used; /* of all ranks: agreed rounds, most bytes staged, most workspace */
} limited_world;

static void plan_world(limited_world *w, int64_t nentries, const reshard_entry *entries) {
  reshard_plan_options options = {.size = RESHARD_PLAN_OPTIONS_INIT, .workspace_limit = w->limit, .on_cpu = w->cpu};
  reshard_plan *plans = cli_alloc(w->world, sizeof *plans);
  reshard_plan_info info;
  if (reshard_plan_create_all(nentries, entries, w->world, NULL, &options, plans) != RESHARD_SUCCESS)
    fail_msg("%s to %s: %s", w->src, w->dst, reshard_last_error());
  for (int64_t rank = 0; rank < w->world; rank++) {
    assert_int_equal(reshard_plan_get_info(plans[rank], &info), RESHARD_SUCCESS);
    w->rounds = rs_max(w->rounds, info.rounds);
    w->most = rs_max(w->most, info.staged_bytes);
  }
  for (int64_t rank = 0; rank < w->world; rank++) {
    assert_int_equal(reshard_plan_get_info_at(plans[rank], w->rounds, 0, &info), RESHARD_SUCCESS);
    assert_true(info.workspace_bytes <= w->limit);
    w->used = rs_max(w->used, info.workspace_bytes);
    reshard_plan_destroy(plans[rank]);
  }
  free(plans);
}

/* Rounds are at most 1.25 times what the largest rank's staging takes, in two halves of the limit or in all of it. The
 * workspace is 2/3 of the limit at 3 rounds, 3/4 at more. */
static void check_limit_used(const limited_world *wanted, int64_t limit, bool cpu, int64_t nentries,
                             const reshard_entry *entries) {
  limited_world w = *wanted;
  w.limit = limit;
  w.cpu = cpu;
  plan_world(&w, nentries, entries);
  int64_t least = w.most <= w.limit ? 1 : rs_ceil_div((w.cpu ? 1 : 2) * w.most, w.limit);
  print_message("%-23.23s %-19.19s %3lld ranks %8lld KiB: %6lld rounds, %6lld at least; %5.1f %% used\n", w.src, w.dst,
                (long long)w.world, (long long)(w.limit >> 10), (long long)w.rounds, (long long)least,
                100.0 * (double)w.used / (double)w.limit);
  if (w.rounds > least + least / 4)
    fail_msg("%lld rounds, %lld are the least", (long long)w.rounds, (long long)least);
  if (w.rounds > 1 && w.used < (w.rounds <= 3 ? w.limit / 3 * 2 - 4096 : w.limit / 4 * 3))
    fail_msg("%lld bytes are used in %lld rounds", (long long)w.used, (long long)w.rounds);
}

static void check_limits_used(const limited_world *w, int64_t nentries, const reshard_entry *entries) {
  for (int64_t limit = 64 << 20; limit <= 1 << 30; limit *= 2)
    check_limit_used(w, limit, false, nentries, entries);
  for (int64_t limit = 64 << 10; limit <= 1 << 20; limit *= 4)
    check_limit_used(w, limit, true, nentries, entries);
}

CASE(rounds_use_the_limit_of_one_tensor) {
  static const limited_world cases[] = {
      {.src = "chunk(0)", .dst = "chunk(1)", .world = 8},
      {.src = "chunk(0;0-7)", .dst = "chunk(1;8-15)", .world = 16},
      {.src = "chunk(0)", .dst = "chunk(1)", .world = 64},
      {.src = "mesh(4x2;S0,S1)", .dst = "mesh(2x4;S1,S0)", .world = 8},
      {.src = "mesh(4x4;S0,S1)", .dst = "mesh(2x8;S0,S1)", .world = 16},
      {.src = "chunk(0)", .dst = "cyclic(2x4;512x512)", .world = 8},
      {.src = "boxes(0:[0,0]+[32768,65536];1:[32768,0]+[400,65536];2:[33168,0]+[32368,65536])",
       .dst = "chunk(1)",
       .world = 8},
      {.src = "boxes(0:[0,0]+[65536,36000];1:[0,36000]+[65536,28000];2:[0,64000]+[65536,1536])",
       .dst = "chunk(0)",
       .world = 16},
  };
  static const int64_t shape[2] = {65536, 65536}; /* 16 GiB */
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    reshard_layout src, dst;
    assert_int_equal(reshard_layout_parse(cases[i].src, 2, shape, cases[i].world, &src), RESHARD_SUCCESS);
    assert_int_equal(reshard_layout_parse(cases[i].dst, 2, shape, cases[i].world, &dst), RESHARD_SUCCESS);
    reshard_entry entry = {RESHARD_ENTRY_INIT, .src = src, .dst = dst, .dtype = RESHARD_F32};
    check_limits_used(&cases[i], 1, &entry);
    reshard_layout_release(src);
    reshard_layout_release(dst);
  }
}

static reshard_rules load_rules(const char *name) {
  char path[4096];
  reshard_rules rules = NULL;
  snprintf(path, sizeof path, "%s/bench/models/rules/%s", getenv("SOURCE"), name);
  if (reshard_rules_load(path, &rules) != RESHARD_SUCCESS)
    fail_msg("%s: %s", path, reshard_last_error());
  return rules;
}

/* A mixture of experts, thousands of tensors: FSDP over 8 ranks to TP over the same. */
CASE(rounds_use_the_limit_of_a_whole_model) {
  reshard_model model;
  reshard_rules rules[2] = {load_rules("fsdp.rules"), load_rules("tp.rules")};
  assert_int_equal(reshard_rules_set_size(rules[1], "tp", 8, NULL), RESHARD_SUCCESS);
  assert_int_equal(reshard_model_preset("qwen3-30b-a3b", &model), RESHARD_SUCCESS);
  int64_t n = reshard_model_count(model);
  reshard_entry *entries = cli_alloc(n, sizeof *entries);
  for (int64_t i = 0; i < n; i++) {
    reshard_model_tensor t;
    reshard_layout sides[2];
    assert_int_equal(reshard_model_get(model, i, &t), RESHARD_SUCCESS);
    for (int side = 0; side < 2; side++)
      if (reshard_rules_layout(rules[side], t.name, t.ndim, t.shape, 8, &sides[side]) != RESHARD_SUCCESS)
        fail_msg("%s: %s", t.name, reshard_last_error());
    entries[i] = (reshard_entry){RESHARD_ENTRY_INIT, .src = sides[0], .dst = sides[1], .dtype = t.dtype};
  }
  const limited_world w = {.src = "qwen3-30b-a3b, FSDP 8", .dst = "TP 8", .world = 8};
  check_limits_used(&w, n, entries);
  for (int64_t i = 0; i < n; i++) {
    reshard_layout_release((reshard_layout)entries[i].src);
    reshard_layout_release((reshard_layout)entries[i].dst);
  }
  free(entries);
  reshard_model_free(model);
  reshard_rules_free(rules[0]);
  reshard_rules_free(rules[1]);
}

RUN_CASES
