/* Rules: patterns, precedence, errors with their place, and the rule files that come with the program. */
#include "support/fixtures/case.h"
#include "support/fixtures/expect.h"
#include "support/fixtures/scale.h"
#include "support/fixtures/temporary.h"
#include <reshard/file.h>

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static reshard_rules parse_rules(const char *text) {
  reshard_rules rules;
  if (reshard_rules_parse(text, "text", &rules) != RESHARD_SUCCESS)
    fail_msg("'%s': %s", text, reshard_last_error());
  return rules;
}

/* Line of the rule that a name meets, 0 for none. */
static int64_t line_of(reshard_rules rules, const char *name) {
  int64_t line;
  return reshard_rules_match(rules, name, NULL, &line) == RESHARD_SUCCESS ? line : 0;
}

static int matches_tensor(const char *pattern, const char *name) {
  char text[256];
  snprintf(text, sizeof text, "%s rank(0)\n", pattern);
  reshard_rules rules = parse_rules(text);
  int64_t line = line_of(rules, name);
  reshard_rules_free(rules);
  return line == 1;
}

CASE(patterns_match_as_globs) {
  static const struct {
    const char *pattern, *name;
    int expected;
  } cases[] = {
      {"*", "", 1},
      {"*", "model.a/b", 1},
      {"", "", 0},
      {"a", "a", 1},
      {"a", "b", 0},
      {"a", "aa", 0},
      {"aa", "a", 0},
      {"a*", "a", 1},
      {"a*", "abc", 1},
      {"*c", "abc", 1},
      {"*b", "abc", 0},
      {"a*c", "abcbc", 1},
      {"a*b*c", "axbxc", 1},
      {"a*b*c", "axcxb", 0},
      {"**a**", "bab", 1},
      {"*ab", "aab", 1},
      {"*aab", "aaab", 1},
      {"?", "a", 1},
      {"?", "", 0},
      {"a?c", "a.c", 1},
      {"*?", "", 0},
      {"?*?", "a", 0},
      {"?*?", "ab", 1},
      {"[ab]", "b", 1},
      {"[ab]", "c", 0},
      {"[!ab]", "c", 1},
      {"[^ab]", "a", 0},
      {"[a-c]x", "bx", 1},
      {"[a-c]", "d", 0},
      {"[]]", "]", 1},
      {"[!]]", "]", 0},
      {"[a-]", "-", 1},
      {"[\\]]", "]", 1},
      {"[0-9a-f]", "e", 1},
      {"\\*", "*", 1},
      {"\\*", "a", 0},
      {"a]", "a]", 1},
      {"*[0-9]", "layer.12", 1},
      {"*[0-9].w", "layer.1.12.w", 1},
      {"\\[a]", "[a]", 1},
      {"*.1[0-5].*", "l.1.e.14.w", 1},
      {"*.1[0-5].*", "l.1.e.16.w", 0},
      {"*.1[0-5].*", "l.1.e.1.w", 0},
      {"*.experts.?.*", "m.shared_experts.1.w", 0},
      {"*.experts.?.*", "m.experts.1.w", 1},
      {"*a*a*a*a*a*a*a*b", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", 0},
      {"*\xff*", "a\xff", 1},
      {"[\x80-\xff]", "\xc3", 1},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
    if (*cases[i].pattern != '\0' && matches_tensor(cases[i].pattern, cases[i].name) != cases[i].expected)
      fail_msg("pattern '%s' on '%s': expected %d", cases[i].pattern, cases[i].name, cases[i].expected);
}

/* The slow and obvious matcher, on all short patterns of stars and letters. */
static int slow_match(const char *pattern, const char *name) {
  if (*pattern == '\0')
    return *name == '\0';
  if (*pattern == '*')
    return slow_match(pattern + 1, name) || (*name != '\0' && slow_match(pattern, name + 1));
  return *name != '\0' && (*pattern == '?' || *pattern == *name) && slow_match(pattern + 1, name + 1);
}

CASE(test_all_short_patterns) {
  static const char symbols[] = "*?ab";
  for (int p = 0; p < 4 * 4 * 4 * 4 * 4; p++) {
    char pattern[6] = {0};
    int length = 1 + p % 5;
    for (int i = 0, rest = p; i < length; i++, rest /= 4)
      pattern[i] = symbols[rest % 4];
    char text[32];
    snprintf(text, sizeof text, "%s rank(0)", pattern);
    reshard_rules rules = parse_rules(text);
    for (int n = 0; n < 127; n++) {
      char name[8] = {0};
      int k = 0;
      for (int bits = n + 1; bits > 1; bits /= 2)
        name[k++] = (char)('a' + bits % 2);
      if ((line_of(rules, name) == 1) != slow_match(pattern, name))
        fail_msg("pattern '%s' on '%s': expected %d", pattern, name, slow_match(pattern, name));
    }
    reshard_rules_free(rules);
  }
}

CASE(first_matching_line_counts) {
  reshard_rules rules = parse_rules("\xef\xbb\xbf# comment\r\n"
                                    "\r\n"
                                    "  *.q.weight\t mesh(tp=4;S0)   # first\r\n"
                                    " # second\n"
                                    "*.weight     rank(2) #\n"
                                    "a#b rank(5)\n"
                                    "*b rank(7)");
  const char *layout;
  int64_t line, world;
  GOOD(reshard_rules_match(rules, "l.q.weight", &layout, &line));
  assert_string_equal(layout, "mesh(tp=4;S0)");
  assert_int_equal(line, 3);
  GOOD(reshard_rules_match(rules, "l.k.weight", &layout, NULL));
  assert_string_equal(layout, "rank(2)");
  assert_int_equal(line_of(rules, "l.k.weight"), 5);
  assert_int_equal(line_of(rules, "a#b"), 6);
  assert_int_equal(line_of(rules, "b"), 7);
  FAILS_WITH(reshard_rules_match(rules, "l.norm", &layout, &line), RESHARD_ERROR_INVALID, "l.norm");
  assert_non_null(strstr(reshard_last_error(), "text"));
  GOOD(reshard_rules_world(rules, &world));
  assert_int_equal(world, 8);
  reshard_rules_free(rules);
  rules = parse_rules("# nothing\n");
  assert_int_equal(line_of(rules, "a"), 0);
  GOOD(reshard_rules_world(rules, &world));
  assert_int_equal(world, 0);
  reshard_rules_free(rules);
}

static void refused_rules(const char *text, reshard_status expected, const char *place) {
  reshard_rules untouched = (reshard_rules)&expected, rules = untouched;
  reshard_status status = reshard_rules_parse(text, "x.rules", &rules);
  if (status != expected || strncmp(reshard_last_error(), place, strlen(place)) != 0)
    fail_msg("'%s': expected status %d at %s, got %d: %s", text, expected, place, status, reshard_last_error());
  assert_ptr_equal(rules, untouched);
}

CASE(wrong_rules_are_refused_with_line_and_column) {
  refused_rules("a", RESHARD_ERROR_INVALID, "x.rules:1:2: ");
  refused_rules("\n\n  abc   # rank(0)", RESHARD_ERROR_INVALID, "x.rules:3:6: ");
  refused_rules("a[b rank(0)", RESHARD_ERROR_INVALID, "x.rules:1:2: ");
  refused_rules("a[] rank(0)", RESHARD_ERROR_INVALID, "x.rules:1:2: ");
  refused_rules("* rank(0)\na.[9-0].* rank(0)", RESHARD_ERROR_INVALID, "x.rules:2:3: ");
  refused_rules("[[:digit:]] rank(0)", RESHARD_ERROR_INVALID, "x.rules:1:1: ");
  refused_rules("a\\ rank(0)", RESHARD_ERROR_INVALID, "x.rules:1:2: ");
  refused_rules("* rank(0)\n *  mush(2;S0)", RESHARD_ERROR_INVALID, "x.rules:2:5: ");
  refused_rules("*  mesh(2;Psum)", RESHARD_ERROR_UNSUPPORTED, "x.rules:1:4: ");
  refused_rules("*  boxes(@/no/such/file)", RESHARD_ERROR_INVALID, "x.rules:1:4: ");
  refused_rules("# one\n* rank(0)  bf17 # no", RESHARD_ERROR_INVALID, "x.rules:2:12: unknown dtype 'bf17'");
  refused_rules("* rank(0) bf16 f32", RESHARD_ERROR_INVALID, "x.rules:1:11: unknown dtype 'bf16 f32'");
  refused_rules("* rank(0)bf16", RESHARD_ERROR_INVALID, "x.rules:1:3: ");
  refused_rules("* bf16", RESHARD_ERROR_INVALID, "x.rules:1:3: ");
  reshard_rules rules;
  reshard_layout layout;
  int64_t shape[2] = {8, 8}, world;
  FAILS_WITH(reshard_rules_load("/no/such.rules", &rules), RESHARD_ERROR_INVALID, "/no/such.rules");
  assert_int_equal(reshard_rules_load("/tmp", &rules), RESHARD_ERROR_INVALID);
  assert_int_equal(reshard_rules_load(NULL, &rules), RESHARD_ERROR_INVALID);
  assert_int_equal(reshard_rules_load("x", NULL), RESHARD_ERROR_INVALID);
  assert_int_equal(reshard_rules_parse(NULL, NULL, &rules), RESHARD_ERROR_INVALID);
  assert_int_equal(reshard_rules_parse("", NULL, NULL), RESHARD_ERROR_INVALID);
  assert_int_equal(reshard_rules_match(NULL, "a", NULL, NULL), RESHARD_ERROR_INVALID);
  assert_int_equal(reshard_rules_world(NULL, &world), RESHARD_ERROR_INVALID);
  assert_int_equal(reshard_rules_layout(NULL, "a", 2, shape, 8, &layout), RESHARD_ERROR_INVALID);
  reshard_rules_free(NULL);
  assert_int_equal(reshard_rules_parse("x", NULL, &rules), RESHARD_ERROR_INVALID);
  assert_int_equal(strncmp(reshard_last_error(), "rules:1:", 8), 0);
}

CASE(rules_say_dtypes_behind_their_layouts) {
  static const struct {
    const char *name;
    reshard_dtype dtype;
    const char *layout;
  } cases[] = {{"a", RESHARD_BF16, "rank(0)"},
               {"b", RESHARD_F8_E4M3, "mesh(2;S0)"},
               {"experts.1", RESHARD_I64, "rank(1/2)"},
               {"e", RESHARD_DTYPE_NONE, "rank(1)"},
               {"q", RESHARD_F32, "rank(0)"},
               {"q_scale", RESHARD_DTYPE_NONE, "rank(0)"}}; /* scales have the layout alone */
  reshard_rules rules = parse_rules("a rank(0)\tBF16 # one\nb mesh(2;S0)   f8_e4m3\r\nexperts.* rank(experts.#/2) i64\n"
                                    "e rank(1)\nq rank(0) f32\nblocks _scale 2x2\n");
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    reshard_dtype dtype = RESHARD_U8;
    const char *layout = NULL;
    GOOD(reshard_rules_dtype(rules, cases[i].name, &dtype, NULL));
    assert_int_equal(dtype, cases[i].dtype);
    GOOD(reshard_rules_match(rules, cases[i].name, &layout, NULL));
    assert_string_equal(layout, cases[i].layout);
  }
  reshard_dtype dtype = RESHARD_U8;
  assert_int_equal(reshard_rules_dtype(rules, "none", &dtype, NULL), RESHARD_ERROR_INVALID);
  assert_int_equal(dtype, RESHARD_U8);
  reshard_rules_free(rules);
}

CASE(rule_file_is_read_or_refused_by_name) {
  char path[TEMPORARY_PATH];
  snprintf(path, sizeof path, "%s/reshard-rules-%ld", temporary(), (long)getpid());
  FILE *file = fopen(path, "wb");
  assert_non_null(file);
  fputs("* rank(0)\nx y", file);
  fputc('\0', file);
  fclose(file);
  reshard_rules rules;
  FAILS_WITH(reshard_rules_load(path, &rules), RESHARD_ERROR_INVALID, "byte 13 is NUL");
  unlink(path);
}

CASE(rules_give_each_tensor_its_layout) {
  reshard_rules rules = parse_rules("*.w mesh(tp=4;S0)\n*.b chunk(0)\n* mesh(2x2;S1,R)\n");
  reshard_layout layout;
  int64_t shape[2] = {10, 6}, rows[1] = {10};
  GOOD(reshard_rules_layout(rules, "a.w", 2, shape, 0, &layout));
  assert_int_equal(reshard_layout_world(layout), 4);
  assert_int_equal(reshard_layout_get_kind(layout), RESHARD_LAYOUT_MESH);
  reshard_layout_release(layout);
  GOOD(reshard_rules_layout(rules, "a.b", 1, rows, 3, &layout));
  assert_int_equal(reshard_layout_world(layout), 3);
  reshard_layout_release(layout);
  assert_int_equal(reshard_rules_layout(rules, "a.c", 1, rows, 4, &layout), RESHARD_ERROR_INVALID);
  const char *text = reshard_last_error();
  if (strncmp(text, "text:3:3: ", 10) != 0 || strstr(text, "'a.c'") == NULL)
    fail_msg("place or tensor is missing: %s", text);
  reshard_rules_free(rules);
}

static reshard_rules shipped_rules(const char *name) {
  char path[4096];
  snprintf(path, sizeof path, "%s/bench/models/rules/%s.rules", getenv("SOURCE") ? getenv("SOURCE") : ".", name);
  reshard_rules rules;
  if (reshard_rules_load(path, &rules) != RESHARD_SUCCESS)
    fail_msg("%s", reshard_last_error());
  return rules;
}

/* Every shipped file of rules on every preset: each tensor has a layout. */
CASE(shipped_rules_give_every_preset_a_layout) {
  static const struct {
    const char *file, *sizes[2];
    int64_t world[3];
  } files[] = {{"fsdp", {NULL}, {1, 8, 64}},          {"tp", {NULL}, {1, 2, 8}},
               {"tp-kv-4", {NULL}, {4, 8, 12}},       {"flat", {NULL}, {1, 3, 8}},
               {"fsdp-tp", {"tp", NULL}, {2, 4, 64}}, {"hsdp", {"replica", NULL}, {2, 6, 16}},
               {"ep-128", {NULL}, {1, 8, 48}},        {"ep-256", {NULL}, {2, 8, 300}}};
  for (size_t f = 0; f < 3 * (sizeof files / sizeof *files); f += (size_t)test_one_in(5)) {
    reshard_rules rules = shipped_rules(files[f / 3].file);
    int64_t world = -1;
    GOOD(reshard_rules_world(rules, &world));
    assert_int_equal(world, 0); /* no number of ranks is in them */
    for (int i = 0; i < 2 && files[f / 3].sizes[i] != NULL; i++)
      GOOD(reshard_rules_set_size(rules, files[f / 3].sizes[i], 2, NULL));
    world = files[f / 3].world[f % 3];
    const char *preset;
    for (int64_t p = 0; (preset = reshard_model_preset_name(p)) != NULL; p++) {
      reshard_model model;
      if (strcmp(files[f / 3].file, "ep-128") == 0 && strcmp(preset, "deepseek-v3") == 0)
        continue; /* it has 256 experts */
      GOOD(reshard_model_preset(preset, &model));
      for (int64_t i = 0; i < reshard_model_count(model); i++) {
        reshard_model_tensor tensor;
        reshard_layout layout;
        GOOD(reshard_model_get(model, i, &tensor));
        if ((i % 37 != 0 || f % 3 != 0) && i > 1000) { /* the experts are many and alike */
          assert_int_not_equal(line_of(rules, tensor.name), 0);
          continue;
        }
        if (reshard_rules_layout(rules, tensor.name, tensor.ndim, tensor.shape, world, &layout) != RESHARD_SUCCESS)
          fail_msg("%s", reshard_last_error());
        reshard_layout_release(layout);
      }
      reshard_model_free(model);
    }
    reshard_rules_free(rules);
  }
}

/* Shipped rules of engines on the fused model of each preset, and before it is fused, where experts are not apart. */
CASE(fused_rules_cut_every_preset_over_1_to_16_ranks) {
  static const struct {
    const char *preset, *map, *qkv; /* of 16 ranks a group */
  } fused[] = {{"llama-3.1-8b", "llama-fuse", "mesh(tp=16@0-15;S0{4096,1024/8,1024/8})"},
               {"llama-3.1-70b", "llama-fuse", "mesh(tp=16@0-15;S0{8192,1024/8,1024/8})"},
               {"qwen3-30b-a3b", "qwen3-fuse", "mesh(ep=2,tp=16@0-31;R,S0{4096,512/4,512/4})"},
               {"qwen3-235b-a22b", "qwen3-fuse", "mesh(ep=2,tp=16@0-31;R,S0{8192,512/4,512/4})"},
               {"deepseek-v3", "deepseek-fuse", NULL}};
  static const char *const files[] = {"llama-8b-fused", "llama-70b-fused", "qwen3-30b-fused", "qwen3-235b-fused",
                                      "deepseek-v3-fused"};
  for (size_t f = 0; f < sizeof fused / sizeof *fused; f++) {
    char path[4096];
    reshard_model model, engine;
    reshard_map map;
    snprintf(path, sizeof path, "%s/bench/models/maps/%s.map", getenv("SOURCE") ? getenv("SOURCE") : ".", fused[f].map);
    GOOD(reshard_model_preset(fused[f].preset, &model));
    GOOD(reshard_map_load(path, &map));
    if (reshard_map_model(map, model, &engine) != RESHARD_SUCCESS)
      fail_msg("%s", reshard_last_error());
    assert_int_equal(reshard_model_bytes(engine), reshard_model_bytes(model));
    int64_t groups = f < 2 ? 1 : 2, parts = 0;
    for (int64_t tp = 1; tp <= 16; tp *= 2) {
      reshard_rules rules = shipped_rules(files[f]);
      if (groups > 1)
        GOOD(reshard_rules_set_size(rules, "ep", groups, NULL));
      if (reshard_rules_check(rules, engine, groups * tp) != RESHARD_SUCCESS)
        fail_msg("%s", reshard_last_error());
      for (int64_t i = 0; i < reshard_model_count(engine); i++) {
        reshard_model_tensor t;
        reshard_layout layout;
        char text[128];
        GOOD(reshard_model_get(engine, i, &t));
        if (reshard_rules_layout(rules, t.name, t.ndim, t.shape, groups * tp, &layout) != RESHARD_SUCCESS)
          fail_msg("%s", reshard_last_error());
        GOOD(reshard_layout_print(layout, text, sizeof text, NULL));
        parts += strchr(text, '{') != NULL;
        if (tp == 16 && strstr(t.name, "qkv_proj.weight") != NULL)
          assert_string_equal(text, fused[f].qkv);
        reshard_layout_release(layout);
      }
      reshard_rules_free(rules);
    }
    assert_true(parts > 100);
    reshard_map_free(map);
    reshard_model_free(engine);
    reshard_model_free(model);
  }
}

static void check_layout(reshard_rules rules, const char *name, const char *expected) {
  const char *layout;
  if (reshard_rules_match(rules, name, &layout, NULL) != RESHARD_SUCCESS)
    fail_msg("%s", reshard_last_error());
  if (strcmp(layout, expected) != 0)
    fail_msg("%s: expected %s, got %s", name, expected, layout);
}

static void check_rank(reshard_rules rules, const char *name, int64_t world, int64_t expected) {
  const int64_t shape[] = {4};
  reshard_layout layout;
  char text[64];
  if (reshard_rules_layout(rules, name, 1, shape, world, &layout) != RESHARD_SUCCESS)
    fail_msg("%s", reshard_last_error());
  GOOD(reshard_layout_print(layout, text, sizeof text, NULL));
  char wanted[32];
  snprintf(wanted, sizeof wanted, "rank(%lld)", (long long)expected);
  assert_string_equal(text, wanted);
  reshard_layout_release(layout);
}

/* The shipped files cut what they say they cut. */
CASE(test_shipped_choices) {
  reshard_rules rules = shipped_rules("tp");
  check_layout(rules, "model.embed_tokens.weight", "mesh(tp;S0)");
  check_layout(rules, "model.layers.61.embed_tokens.weight", "mesh(tp;S0)");
  check_layout(rules, "lm_head.weight", "mesh(tp;S0)");
  check_layout(rules, "model.layers.3.self_attn.q_proj.weight", "mesh(tp;S0)");
  check_layout(rules, "model.layers.3.self_attn.q_proj.bias", "mesh(tp;S0)");
  check_layout(rules, "model.layers.3.self_attn.o_proj.weight", "mesh(tp;S1)");
  check_layout(rules, "model.layers.3.self_attn.o_proj.bias", "mesh(tp;R)");
  check_layout(rules, "model.layers.3.mlp.experts.7.down_proj.weight_scale_inv", "mesh(tp;S1)");
  check_layout(rules, "model.layers.3.mlp.shared_experts.up_proj.weight", "mesh(tp;S0)");
  check_layout(rules, "model.layers.3.self_attn.kv_b_proj.weight_scale_inv", "mesh(tp;S0)");
  check_layout(rules, "model.layers.3.self_attn.q_a_proj.weight", "mesh(tp;R)");
  check_layout(rules, "model.layers.3.mlp.gate.weight", "mesh(tp;R)");
  check_layout(rules, "model.norm.weight", "mesh(tp;R)");
  reshard_rules_free(rules);
  rules = shipped_rules("tp-kv-4");
  check_layout(rules, "model.layers.3.self_attn.k_proj.weight", "mesh(tp;S0/4)");
  check_layout(rules, "model.layers.3.self_attn.k_norm.weight", "mesh(tp;R)");
  reshard_rules_free(rules);
  for (int experts = 128; experts <= 256; experts *= 2) {
    rules = shipped_rules(experts == 128 ? "ep-128" : "ep-256");
    for (int e = 0; e < experts; e++) {
      char name[64];
      snprintf(name, sizeof name, "model.layers.5.mlp.experts.%d.up_proj.weight", e);
      check_rank(rules, name, 8, e / (experts / 8));
      check_rank(rules, name, 48, e / (experts == 128 ? 3 : 6)); /* ceil(128 / 48), ceil(256 / 48) */
    }
    check_layout(rules, "model.layers.3.mlp.shared_experts.up_proj.weight", "mesh(tp;S0)");
    char beyond[64];
    const char *layout = "as it was";
    snprintf(beyond, sizeof beyond, "model.layers.5.mlp.experts.%d.up_proj.weight", experts);
    assert_int_equal(reshard_rules_match(rules, beyond, &layout, NULL), RESHARD_ERROR_INVALID);
    assert_string_equal(layout, "as it was");
    assert_non_null(strstr(reshard_last_error(), "has no number below"));
    reshard_rules_free(rules);
  }
}

/* rank(TEXT#/N) goes by the last number behind the text. */
CASE(numbered_ranks_go_by_the_last_number) {
  reshard_rules rules;
  GOOD(reshard_rules_parse("* rank(e.#/4)  # comment", NULL, &rules));
  check_rank(rules, "e.3", 4, 3);
  check_rank(rules, "e.1.e.2.e.x", 4, 2);
  check_rank(rules, "e.03", 2, 1);
  const char *layout;
  assert_int_equal(reshard_rules_match(rules, "e.x", &layout, NULL), RESHARD_ERROR_INVALID);
  assert_int_equal(reshard_rules_match(rules, "e.4", &layout, NULL), RESHARD_ERROR_INVALID);
  assert_int_equal(reshard_rules_match(rules, "e.99999999999999999999", &layout, NULL), RESHARD_ERROR_INVALID);
  reshard_rules_free(rules);
  refused_rules("* rank(#/4)", RESHARD_ERROR_INVALID, "x.rules:1:8: ");
  refused_rules("* rank(e.#)", RESHARD_ERROR_INVALID, "x.rules:1:10: ");
  refused_rules("* rank(e.#/0)", RESHARD_ERROR_INVALID, "x.rules:1:10: ");
  refused_rules("* rank(e.#/65537)", RESHARD_ERROR_INVALID, "x.rules:1:10: ");
  refused_rules("* rank(e.#/4)x", RESHARD_ERROR_INVALID, "x.rules:1:10: ");
}

/* mesh(RxP@FIRST-LAST;R,TEXT#/N): piece by number, one rank of each of R replicas. */
CASE(numbered_mesh_has_a_rank_of_each_replica) {
  reshard_rules rules;
  int64_t world = -1, changed = -1;
  GOOD(reshard_rules_parse("a.* mesh(2x3@10-15;R,e.#/7)\n* mesh(1x2@4-5;R,e.#/2)", NULL, &rules));
  GOOD(reshard_rules_world(rules, &world));
  assert_int_equal(world, 16);
  GOOD(reshard_rules_set_size(rules, "tp", 4, &changed));
  assert_int_equal(changed, 0);
  for (int e = 0; e < 7; e++) {
    char name[16], layout[32];
    snprintf(name, sizeof name, "a.e.%d", e);
    snprintf(layout, sizeof layout, "mesh(2@%d,%d;R)", 10 + e / 3, 13 + e / 3);
    check_layout(rules, name, layout);
  }
  check_layout(rules, "e.1", "mesh(1@5;R)");
  assert_int_equal(reshard_rules_match(rules, "a.e.7", NULL, NULL), RESHARD_ERROR_INVALID);
  reshard_rules_free(rules);
  refused_rules("* mesh(2x3@10-14;R,e.#/7)", RESHARD_ERROR_INVALID, "x.rules:1:3: ");
  refused_rules("* mesh(2x3@10-15;S0,e.#/7)", RESHARD_ERROR_INVALID, "x.rules:1:3: ");
  refused_rules("* mesh(2x3@10-15;R,#/7)", RESHARD_ERROR_INVALID, "x.rules:1:20: ");
  refused_rules("* mesh(2x3@10-15;R,e.#/0)", RESHARD_ERROR_INVALID, "x.rules:1:22: ");
}

/* The rules of training jobs name their ranks, and take their model as a whole. */
CASE(rules_of_training_jobs_name_all_their_ranks) {
  static const struct {
    const char *file, *preset;
    int64_t world;
  } jobs[] = {{"dsv3-ep16-pp4", "deepseek-v3", 128}, {"qwen3-ep16-pp4", "qwen3-235b-a22b", 64}};
  for (size_t j = 0; j < sizeof jobs / sizeof *jobs; j++) {
    reshard_rules rules = shipped_rules(jobs[j].file);
    reshard_model model;
    int64_t world = -1;
    bool used[128] = {false};
    GOOD(reshard_rules_world(rules, &world));
    assert_int_equal(world, jobs[j].world);
    GOOD(reshard_model_preset(jobs[j].preset, &model));
    for (int64_t i = 0; i < reshard_model_count(model); i += i % 5 == 0 ? 1 : 31) {
      reshard_model_tensor t;
      reshard_layout layout;
      GOOD(reshard_model_get(model, i, &t));
      if (reshard_rules_layout(rules, t.name, t.ndim, t.shape, world, &layout) != RESHARD_SUCCESS)
        fail_msg("%s", reshard_last_error());
      for (int64_t r = 0; r < world; r++) {
        int64_t arrays = 0;
        GOOD(reshard_layout_array_count(layout, r, &arrays));
        used[r] |= arrays > 0;
      }
      reshard_layout_release(layout);
    }
    for (int64_t r = 0; r < world; r++)
      assert_true(used[r]);
    reshard_model_free(model);
    reshard_rules_free(rules);
  }
}

/* Sizes go where a mesh dim has none, into every rule or into none. */
CASE(test_set_size) {
  reshard_rules rules;
  int64_t changed = -1, world = -1;
  GOOD(reshard_rules_parse("a mesh( dp , tp;S0,R)\nb mesh(tp=2;R)\nc mesh(dp@3-5;S0)\nd chunk(0)\n", NULL, &rules));
  GOOD(reshard_rules_set_size(rules, "tp", 4, &changed));
  assert_int_equal(changed, 1);
  check_layout(rules, "a", "mesh( dp , tp=4;S0,R)");
  check_layout(rules, "b", "mesh(tp=2;R)");
  assert_int_equal(reshard_rules_set_size(rules, "dp", 2, &changed), RESHARD_ERROR_INVALID); /* c names three ranks */
  check_layout(rules, "a", "mesh( dp , tp=4;S0,R)");
  assert_int_equal(changed, 1);
  GOOD(reshard_rules_set_size(rules, "dp", 3, &changed));
  assert_int_equal(changed, 2);
  check_layout(rules, "a", "mesh( dp=3 , tp=4;S0,R)");
  check_layout(rules, "c", "mesh(dp=3@3-5;S0)");
  GOOD(reshard_rules_world(rules, &world));
  assert_int_equal(world, 12);
  GOOD(reshard_rules_set_size(rules, "dp", 9, &changed)); /* none is left */
  assert_int_equal(changed, 0);
  assert_int_equal(reshard_rules_set_size(rules, "dp", 0, &changed), RESHARD_ERROR_INVALID);
  assert_int_equal(reshard_rules_set_size(rules, NULL, 2, &changed), RESHARD_ERROR_INVALID);
  assert_int_equal(reshard_rules_set_size(NULL, "dp", 2, &changed), RESHARD_ERROR_INVALID);
  reshard_rules_free(rules);
}

RUN_CASES
