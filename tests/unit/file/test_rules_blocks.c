/* Rules beside a whole model: blocks with their scales against an oracle by elements, and what each line takes. */
#include "bench/cli/util.h"
#include "bench/verify/random.h"
#include "file/model/model.h"
#include "support/fixtures/case.h"
#include "support/fixtures/expect.h"
#include "support/fixtures/scale.h"

#include <stdlib.h>
#include <string.h>

static void add_tensor(reshard_model model, const char *name, reshard_dtype dtype, int ndim, int64_t a, int64_t b,
                       int64_t c) {
  const int64_t shape[3] = {a, b, c};
  CLI_TRY("", rs_model_add(model, "test", name, strlen(name), dtype, ndim, shape));
}

static reshard_rules parse_rules(const char *text) {
  reshard_rules rules;
  CLI_TRY("", reshard_rules_parse(text, "x.rules", &rules));
  return rules;
}

static reshard_rules shipped_rules(const char *name) {
  char path[4096];
  reshard_rules rules;
  snprintf(path, sizeof path, "%s/bench/models/rules/%s.rules", getenv("SOURCE") ? getenv("SOURCE") : ".", name);
  CLI_TRY("", reshard_rules_load(path, &rules));
  return rules;
}

/* --- The oracle --------------------------------------------------------------------------------------------------- */

/* Indices of a rank in a dim, in the order of its array: their number. */
static int64_t list_indices(reshard_layout layout, int64_t rank, int dim, int64_t *out) {
  int64_t arrays, count, n = 0;
  reshard_interval run;
  CLI_TRY("", reshard_layout_array_count(layout, rank, &arrays));
  for (int64_t i = 0, runs = 1; i < runs && arrays > 0; i++) {
    CLI_TRY("", reshard_layout_array_intervals(layout, rank, 0, dim, i, 1, &run, &runs));
    count = runs > i ? run.end - run.begin : 0;
    for (int64_t k = 0; k < count; k++)
      out[n++] = run.begin + k;
  }
  return n;
}

/* A kernel takes the scale of local index l by number l / block of its own. And no block is in two parts. */
static bool scales_fit(reshard_layout of, reshard_layout scales, int ndim, const int64_t *shape, const int64_t *block) {
  static int64_t a[1 << 16], b[1 << 16];
  for (int64_t rank = 0; rank < reshard_layout_world(of); rank++) {
    bool empty = false;
    for (int d = 0; d < ndim; d++)
      empty |= list_indices(of, rank, d, a) == 0;
    for (int d = 0; d < ndim && !empty; d++) {
      int64_t n = list_indices(of, rank, d, a), m = list_indices(scales, rank, d, b);
      for (int64_t l = 0; l < n; l++) {
        bool starts = l == 0 || a[l] != a[l - 1] + 1, ends = l == n - 1 || a[l + 1] != a[l] + 1;
        if ((starts && a[l] % block[d] != 0) || (ends && (a[l] + 1) % block[d] != 0 && a[l] + 1 != shape[d]))
          return false;
        if (l / block[d] >= m || b[l / block[d]] != a[l] / block[d])
          return false;
      }
    }
  }
  return true;
}

typedef struct outcomes {
  int64_t fit, refused;
} outcomes;

/* The check's answer for one pair is the oracle's. */
static void check_pair(reshard_rules rules, const char *name, const char *scales, int ndim, const int64_t *shape,
                       const int64_t *block, int64_t world, outcomes *seen) {
  reshard_model model;
  reshard_layout a, b;
  int64_t blocks[3];
  for (int d = 0; d < ndim; d++)
    blocks[d] = rs_ceil_div(shape[d], block[d]);
  CLI_TRY("", rs_model_new(&model));
  CLI_TRY("", rs_model_add(model, "test", scales, strlen(scales), RESHARD_F32, ndim, blocks));
  CLI_TRY("", rs_model_add(model, "test", name, strlen(name), RESHARD_F8_E4M3, ndim, shape));
  CLI_TRY("", reshard_rules_layout(rules, name, ndim, shape, world, &a));
  CLI_TRY("", reshard_rules_layout(rules, scales, ndim, blocks, world, &b));
  bool fit = scales_fit(a, b, ndim, shape, block);
  reshard_status status = reshard_rules_check(rules, model, world);
  if (status != (fit ? RESHARD_SUCCESS : RESHARD_ERROR_INVALID)) {
    char text[512];
    CLI_TRY("", reshard_layout_print(a, text, sizeof text, NULL));
    fail_msg("%s of %lldx%lld, blocks %lldx%lld, %s: status %d, the oracle says %d", name, (long long)shape[0],
             (long long)shape[1], (long long)block[0], (long long)block[1], text, status, fit);
  }
  const char *error = reshard_last_error();
  if (!fit && (strstr(error, name) == NULL || strstr(error, "rank ") == NULL || strstr(error, scales) == NULL))
    fail_msg("no tensor, rank or scales in: %s", error);
  seen->fit += fit;
  seen->refused += !fit;
  reshard_layout_release(a);
  reshard_layout_release(b);
  reshard_model_free(model);
}

CASE(random_blocks_and_scales_match_an_oracle) {
  static const char *const layouts[] = {"chunk(0)",        "chunk(1)",
                                        "chunk(-1;1,0)",   "mesh(2;S0)",
                                        "mesh(2x2;S0,S1)", "mesh(2x2;S0,S0)",
                                        "mesh(4;S0*2)",    "mesh(2x2;S0*2,S0)",
                                        "mesh(2x2;R,S1)",  "mesh(3;R)",
                                        "rank(1)",         "cyclic(2x1;4x4)",
                                        "cyclic(2x2;1x2)", "mesh(a=2,b=2;S0,S0;order=b,a)",
                                        "mesh(3;S1*3)"};
  rng r;
  outcomes seen = {0, 0};
  rng_seed(&r, 128);
  for (int64_t i = test_scaled(4000, 400); i > 0; i--) {
    char text[256];
    int64_t block[2] = {rng_in(&r, 1, 6), rng_in(&r, 1, 6)};
    int64_t shape[2] = {rng_in(&r, 1, 8) * (rng_one_in(&r, 3) ? 1 : block[0]), /* mostly of whole blocks */
                        rng_in(&r, 1, 8) * (rng_one_in(&r, 3) ? 1 : block[1])};
    snprintf(text, sizeof text, "blocks .s %lldx%lld\n* %s\n", (long long)block[0], (long long)block[1],
             layouts[rng_below(&r, sizeof layouts / sizeof *layouts)]);
    reshard_rules rules = parse_rules(text);
    check_pair(rules, "w", "w.s", 2, shape, block, rng_in(&r, 4, 5), &seen);
    reshard_rules_free(rules);
  }
  assert_true(seen.fit > 50 && seen.refused > 50);
}

/* One layer of Qwen3-30B-A3B in block FP8 with 8 experts, over TP 1 to 16, under each rule file that cuts by tensor
 * parallelism: a rank has the scales of its rows by their local index, or the check refuses. */
CASE(test_qwen_layer) {
  static const struct {
    const char *name;
    int64_t rows, columns;
  } weights[] = {{"self_attn.q_proj", 4096, 2048},       {"self_attn.k_proj", 512, 2048},
                 {"self_attn.v_proj", 512, 2048},        {"self_attn.o_proj", 2048, 4096},
                 {"mlp.experts.0.gate_proj", 768, 2048}, {"mlp.experts.3.up_proj", 768, 2048},
                 {"mlp.experts.7.down_proj", 2048, 768}};
  static const char *const files[] = {"tp", "tp-kv-4", "ep-128", "fsdp-tp"};
  static const int64_t block[2] = {128, 128};
  outcomes tp = {0, 0};
  for (size_t f = 0; f < sizeof files / sizeof *files; f++)
    for (int64_t world = 1; world <= 16; world++) {
      bool four = strcmp(files[f], "tp-kv-4") == 0;
      reshard_rules rules = shipped_rules(files[f]);
      if (strcmp(files[f], "fsdp-tp") == 0)
        CLI_TRY("", reshard_rules_set_size(rules, "fsdp", 1, NULL));
      for (size_t i = 0; i < sizeof weights / sizeof *weights && (!four || world % 4 == 0); i++) {
        char name[96], scales[128];
        int64_t shape[2] = {weights[i].rows, weights[i].columns};
        outcomes seen = {0, 0};
        snprintf(name, sizeof name, "model.layers.9.%s.weight", weights[i].name);
        snprintf(scales, sizeof scales, "%s_scale_inv", name);
        check_pair(rules, name, scales, 2, shape, block, world, &seen);
        bool experts = strstr(name, "experts") != NULL;
        if (f == 0 && experts) /* 768 is 6 blocks */
          assert_int_equal(seen.fit, world == 1 || world == 2 || world == 3 || world == 6);
        if (f == 0 && strstr(name, "k_proj") != NULL)
          assert_int_equal(seen.fit, world == 1 || world == 2 || world == 4);
        if (four && strstr(name, "k_proj") != NULL) /* a whole head each */
          assert_int_equal(seen.fit, 1);
        if (strcmp(files[f], "ep-128") == 0 && experts)
          assert_int_equal(seen.fit, 1);
        tp.fit += f == 0 ? seen.fit : 0;
        tp.refused += f == 0 ? seen.refused : 0;
      }
      reshard_rules_free(rules);
    }
  assert_true(tp.fit > 10 && tp.refused > 10);
}

/* --- Lines of blocks ---------------------------------------------------------------------------------------------- */

static void check_refused(const char *text, reshard_model model, int64_t world, const char *place, const char *error) {
  reshard_rules rules = parse_rules(text);
  assert_int_equal(reshard_rules_check(rules, model, world), RESHARD_ERROR_INVALID);
  if (strncmp(reshard_last_error(), place, strlen(place)) != 0 || strstr(reshard_last_error(), error) == NULL)
    fail_msg("'%s' and '%s' are not in: %s", place, error, reshard_last_error());
  reshard_rules_free(rules);
}

CASE(blocks_that_no_world_fits_are_refused) {
  static const char rules_text[] = "\nblocks _scale_inv 128x128  # of the last dims\n*.w chunk(0)\n* chunk(1)\n";
  static const struct {
    int ndim, scales_ndim;
    int64_t shape[3], scales[3];
    int64_t world; /* that fits; 0: none does */
    const char *error;
  } cases[] = {
      {2, 2, {768, 256}, {6, 2}, 3, ""},
      {2, 2, {767, 200}, {6, 2}, 2, ""},       /* the last block is not whole */
      {3, 3, {5, 256, 256}, {5, 2, 2}, 5, ""}, /* stacked experts */
      {2, 0, {768, 256}, {0}, 8, ""},          /* one scale for all */
      {2, 2, {768, 256}, {3, 2}, 0, "has not one scale for each block of 128x128 of 'a.w' of 768x256"},
      {2, 1, {768, 256}, {1}, 0, "'a.w_scale_inv' of shape 1 has not one scale"},
      {1, 1, {768}, {6}, 0, "has not one scale for each block"},
      {2, 2, {768, 256}, {6, 2}, -8, "tensor 'a.w': rank 0 has rows [0,96), which cut a block of 128 (128x128, scales"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    const int64_t *s = cases[i].shape, *t = cases[i].scales;
    reshard_model model;
    CLI_TRY("", rs_model_new(&model));
    add_tensor(model, "other", RESHARD_F32, 2, 7, 7, 0);
    add_tensor(model, "a.w_scale_inv", RESHARD_F32, cases[i].scales_ndim, t[0], t[1], t[2]);
    add_tensor(model, "a.w", RESHARD_F8_E4M3, cases[i].ndim, s[0], s[1], s[2]);
    add_tensor(model, "alone_scale_inv", RESHARD_F32, 1, 5, 0, 0); /* what it is of is elsewhere */
    if (cases[i].world > 0) {
      reshard_rules rules = parse_rules(rules_text);
      CLI_TRY("", reshard_rules_check(rules, model, cases[i].world));
      reshard_rules_free(rules);
    } else
      check_refused(rules_text, model, cases[i].world < 0 ? -cases[i].world : 2, "x.rules:2:19: ", cases[i].error);
    reshard_model_free(model);
  }
}

/* Equal layouts of other blocks are looked at, too: 8 rows in blocks of 4 and of 5 have 2 scales each. */
CASE(test_two_blocks) {
  reshard_model model;
  CLI_TRY("", rs_model_new(&model));
  add_tensor(model, "a", RESHARD_F32, 1, 8, 0, 0);
  add_tensor(model, "a.four", RESHARD_F32, 1, 2, 0, 0);
  add_tensor(model, "b", RESHARD_F32, 1, 8, 0, 0);
  reshard_rules rules = parse_rules("blocks .four 4\nblocks .five 5\n* chunk(0)\n");
  CLI_TRY("", reshard_rules_check(rules, model, 2));
  add_tensor(model, "b.five", RESHARD_F32, 1, 2, 0, 0);
  BAD(reshard_rules_check(rules, model, 2), "x.rules:2:14: tensor 'b': rank 0 has rows [0,4), which cut a block of 5 "
                                            "(5, scales in 'b.five')");
  reshard_rules_free(rules);
  reshard_model_free(model);
}

/* Scales follow their tensor's rule, not one of their own; a tensor named "blocks" may have a rule. */
CASE(scales_follow_the_rule_of_their_tensor) {
  reshard_rules rules =
      parse_rules("*.s rank(3)\nblocks .s 4\n*.w chunk(0)\nblocks chunk(1)\n*.q refuse(packed (4 bits))\n"
                  "blocks   _inv\t 2x3 # x\n* rank(0)");
  static const struct {
    const char *name, *layout;
    int64_t line;
  } matches[] = {{"a.w", "chunk(0)", 3},    {"a.w.s", "chunk(0)", 3},      {"a.s", "rank(0)", 7}, {".s", "rank(3)", 1},
                 {"blocks", "chunk(1)", 4}, {"blocks_inv", "chunk(1)", 4}, {"_inv", "rank(0)", 7}};
  const char *layout;
  int64_t line, world;
  for (size_t i = 0; i < sizeof matches / sizeof *matches; i++) {
    CLI_TRY("", reshard_rules_match(rules, matches[i].name, &layout, &line));
    if (strcmp(layout, matches[i].layout) != 0 || line != matches[i].line)
      fail_msg("%s: %s of line %lld", matches[i].name, layout, (long long)line);
  }
  for (int i = 0; i < 2; i++) {
    assert_int_equal(reshard_rules_match(rules, i == 0 ? "a.q" : "a.q_inv", &layout, &line), RESHARD_ERROR_INVALID);
    if (strcmp(reshard_last_error(), i == 0 ? "x.rules:5:5: tensor 'a.q': packed (4 bits)"
                                            : "x.rules:5:5: tensor 'a.q_inv': packed (4 bits)") != 0)
      fail_msg("%s", reshard_last_error());
  }
  CLI_TRY("", reshard_rules_world(rules, &world));
  assert_int_equal(world, 4);
  reshard_rules_free(rules);
  static const struct {
    const char *text, *place;
  } bad[] = {{"blocks _s", "x.rules:1:10: "},     {"\nblocks _s 128x", "x.rules:2:15: "},
             {"blocks _s 0", "x.rules:1:11: "},   {"blocks _s 12y", "x.rules:1:11: "},
             {"blocks _s 4 4", "x.rules:1:11: "}, {"blocks _s 1x1x1x1x1x1x1x1x1", "x.rules:1:27: "},
             {"blocks", "x.rules:1:7: "},         {"blocks # x", "x.rules:1:7: "},
             {"* refuse()", "x.rules:1:3: "},     {"* refuse(x", "x.rules:1:3: "}};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    reshard_status status = reshard_rules_parse(bad[i].text, "x.rules", &rules);
    if (status != RESHARD_ERROR_INVALID || strncmp(reshard_last_error(), bad[i].place, strlen(bad[i].place)) != 0)
      fail_msg("'%s': status %d: %s", bad[i].text, status, reshard_last_error());
  }
}

/* Files of GPTQ and AWQ have other cuts, and the others refuse them. */
CASE(packed_quantised_files_have_rules_of_their_own) {
  static const char *const refusing[] = {"tp", "tp-kv-4", "fsdp-tp", "ep-128", "ep-256"};
  static const struct {
    const char *name, *gptq, *awq;
  } cuts[] = {
      {"l.0.q_proj.qweight", "mesh(tp;S1)", "mesh(tp;S1)"}, {"l.0.q_proj.g_idx", "mesh(tp;R)", "mesh(tp;R)"},
      {"l.0.up_proj.qzeros", "mesh(tp;S1)", "mesh(tp;S1)"}, {"l.0.v_proj.scales", "mesh(tp;S1)", "mesh(tp;S1)"},
      {"l.0.o_proj.qweight", "mesh(tp;S0)", "mesh(tp;S0)"}, {"l.0.down_proj.scales", "mesh(tp;S0)", "mesh(tp;S0)"},
      {"l.0.down_proj.g_idx", "mesh(tp;S0)", "mesh(tp;R)"}, {"l.0.k_proj.bias", "mesh(tp;S0)", "mesh(tp;S0)"},
      {"l.0.o_proj.bias", "mesh(tp;R)", "mesh(tp;R)"},      {"l.0.o_proj.weight", "mesh(tp;S1)", "mesh(tp;S1)"},
      {"lm_head.weight", "mesh(tp;S0)", "mesh(tp;S0)"},     {"norm.weight", "mesh(tp;R)", "mesh(tp;R)"}};
  const char *layout;
  for (size_t f = 0; f < sizeof refusing / sizeof *refusing; f++) {
    reshard_rules rules = shipped_rules(refusing[f]);
    for (int i = 0; i < 4; i++) {
      static const char *const names[] = {"m.0.q_proj.qweight", "m.0.o_proj.qzeros", "m.3.down_proj.qweight",
                                          "m.mlp.shared_experts.up_proj.qzeros"};
      FAILS_WITH(reshard_rules_match(rules, names[i], &layout, NULL), RESHARD_ERROR_INVALID, names[i]);
      assert_non_null(strstr(reshard_last_error(), "@tp-gptq, @tp-awq"));
    }
    reshard_rules_free(rules);
  }
  for (int awq = 0; awq < 2; awq++) {
    reshard_rules rules = shipped_rules(awq ? "tp-awq" : "tp-gptq");
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
      CLI_TRY("", reshard_rules_match(rules, cuts[i].name, &layout, NULL));
      assert_string_equal(layout, awq ? cuts[i].awq : cuts[i].gptq);
    }
    reshard_rules_free(rules);
  }
}

/* --- Use ---------------------------------------------------------------------------------------------------------- */

typedef struct use_list {
  char text[1024];
  int64_t n, most, tensors, bytes;
} use_list;

static int add_use(void *user, const reshard_rule_use *use) {
  use_list *list = user;
  rs_text text = {.at = list->text, .size = sizeof list->text, .length = strlen(list->text)};
  rs_text_add(&text, "%s:%lld %s %s %lld %lld %s %lld\n", use->file, (long long)use->line, use->pattern, use->layout,
              (long long)use->tensors, (long long)use->bytes, use->largest != NULL ? use->largest : "-",
              (long long)use->largest_bytes);
  list->tensors += use->tensors;
  list->bytes += use->bytes;
  return ++list->n == list->most;
}

CASE(each_line_tells_what_it_took) {
  reshard_rules rules = parse_rules("*.wq mesh(2;S0)  # none\n*.w chunk(0)\nblocks _inv 2x2\n*.z rank(1)\n* rank(0)\n");
  reshard_model model;
  CLI_TRY("", rs_model_new(&model));
  add_tensor(model, "a.w", RESHARD_F32, 2, 4, 4, 0);
  add_tensor(model, "b.w", RESHARD_BF16, 2, 8, 8, 0);
  add_tensor(model, "b.w_inv", RESHARD_F32, 2, 4, 4, 0);
  add_tensor(model, "norm", RESHARD_F32, 1, 3, 0, 0);
  add_tensor(model, "step", RESHARD_I64, 0, 0, 0, 0);
  add_tensor(model, "e", RESHARD_F32, 1, 3, 0, 0);
  use_list list = {.most = 0};
  CLI_TRY("", reshard_rules_use(rules, model, add_use, &list));
  assert_string_equal(list.text, "x.rules:1 *.wq mesh(2;S0) 0 0 - 0\n"
                                 "x.rules:2 *.w chunk(0) 2 192 b.w 128\n"
                                 "x.rules:3 blocks _inv 2x2 1 64 b.w_inv 64\n"
                                 "x.rules:4 *.z rank(1) 0 0 - 0\n"
                                 "x.rules:5 * rank(0) 3 32 norm 12\n");
  assert_int_equal(list.tensors, reshard_model_count(model));
  assert_int_equal(list.bytes, reshard_model_bytes(model));
  list = (use_list){.most = 2};
  CLI_TRY("", reshard_rules_use(rules, model, add_use, &list));
  assert_int_equal(list.n, 2);
  reshard_rules_free(rules);
  rules = parse_rules("*.w chunk(0)\n");
  list = (use_list){.most = 0};
  FAILS_WITH(reshard_rules_use(rules, model, add_use, &list), RESHARD_ERROR_INVALID, "'b.w_inv'");
  assert_int_equal(list.n, 0);
  reshard_rules_free(rules);
  reshard_model_free(model);
}

RUN_CASES
