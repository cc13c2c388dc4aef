/* Conversions of checkpoints to another dtype: each pair of dtypes in each format against the exact cast; what says a
 * dtype, and before what; what stays as it is, and what is refused. */
#include "support/fixtures/case.h"
#include "support/fixtures/expect.h"
#include "support/fixtures/scratch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define T SCRATCH_TENSOR
enum { ROWS = 37, COLUMNS = 11, ELEMENTS = ROWS * COLUMNS, NUMBERS = 6 };
static const reshard_dtype numbers[NUMBERS] = {RESHARD_F64,  RESHARD_F32,     RESHARD_F16,
                                               RESHARD_BF16, RESHARD_F8_E4M3, RESHARD_F8_E5M2};

static char notes[2048];
static void take_note(void *user, const char *text) {
  (void)user;
  strncat(notes, text, sizeof notes - strlen(notes) - 1);
}

static reshard_status run_convert(const char *in, const char *out, reshard_dtype dtype, reshard_rules src,
                                  reshard_rules dst, reshard_map map, reshard_convert_report *report) {
  bool shards = strstr(out, "shards") != NULL;
  reshard_convert_options o = RESHARD_CONVERT_OPTIONS_DEFAULTS;
  o.dtype = dtype;
  o.src_rules = src;
  o.dst_rules = dst;
  o.map = map;
  o.dst = dst == NULL && shards ? "flat(0-3)" : NULL;
  o.force = o.verify = 1;
  o.index_bytes = strstr(out, "index") != NULL ? 2000 : 0;
  o.note = take_note;
  notes[0] = '\0';
  return reshard_convert(scratch_path(in), scratch_path(out), &o, report);
}

/* One tensor of each dtype with casts, "f32" of f32, and two without. */
static void write_numbers(const char *name) {
  static const char *const safetensors[NUMBERS] = {"F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2"};
  char header[2048] = "{\"__metadata__\":{\"f32\":\"of that tensor\"},";
  size_t at = 0;
  for (int i = 0; i < NUMBERS; i++) {
    size_t end = at + ELEMENTS * reshard_dtype_size(numbers[i]), used = strlen(header);
    snprintf(header + used, sizeof header - used,
             "\"%s\":{\"dtype\":\"%s\",\"shape\":[37,11],\"data_offsets\":[%zu,%zu]},",
             reshard_dtype_string(numbers[i]), safetensors[i], at, end);
    at = end;
  }
  size_t used = strlen(header);
  snprintf(header + used, sizeof header - used,
           "\"ids\":{\"dtype\":\"I64\",\"shape\":[5,3],\"data_offsets\":[%zu,%zu]},"
           "\"mask\":{\"dtype\":\"BOOL\",\"shape\":[8],\"data_offsets\":[%zu,%zu]}}",
           at, at + 120, at + 120, at + 128);
  scratch_safetensors(name, header, at + 128, 3);
}

CASE(every_pair_of_dtypes_converts_in_every_format) {
  static const char *const outs[] = {"out.safetensors", "index", "shards"};
  reshard_convert_report report;
  write_numbers("in.safetensors");
  for (int to = 0; to < NUMBERS; to++)
    for (int o = 0; o < 3; o++) {
      if (run_convert("in.safetensors", outs[o], numbers[to], NULL, NULL, NULL, &report) != RESHARD_SUCCESS)
        fail_msg("%s: %s", outs[o], reshard_last_error());
      assert_int_equal(report.converted, NUMBERS - 1);
      assert_int_equal(report.unconverted, 2);
      if (o < 2) /* all that was written, but for replicas */
        assert_int_equal(report.bytes, (int64_t)(NUMBERS * ELEMENTS * reshard_dtype_size(numbers[to]) + 128));
      assert_true((strstr(notes, "'f32' of \"__metadata__\" is left out") == NULL) == (numbers[to] == RESHARD_F32));
      for (int from = 0; from < NUMBERS; from++)
        scratch_check_cast("in.safetensors", outs[o], reshard_dtype_string(numbers[from]), RESHARD_DTYPE_NONE,
                           numbers[to]);
      if (o < 2)
        continue; /* back from shards, as a trainer takes them */
      assert_int_equal(run_convert("shards", "back.safetensors", RESHARD_F32, NULL, NULL, NULL, NULL), RESHARD_SUCCESS);
      for (int from = 0; from < NUMBERS; from++)
        scratch_check_cast("in.safetensors", "back.safetensors", reshard_dtype_string(numbers[from]), numbers[to],
                           RESHARD_F32);
    }
}

static reshard_rules rules_of(const char *text) {
  reshard_rules rules = NULL;
  if (text != NULL && reshard_rules_parse(text, "r", &rules) != RESHARD_SUCCESS)
    fail_msg("%s", reshard_last_error());
  return rules;
}

static reshard_map map_of(const char *text) {
  reshard_map map = NULL;
  if (text != NULL && reshard_map_parse(text, "m", &map) != RESHARD_SUCCESS)
    fail_msg("%s", reshard_last_error());
  return map;
}

/* A rule is before a map's cast, which is before the dtype of all; and numbers are converted once. */
CASE(nearest_word_on_a_dtype_counts) {
  reshard_rules rules = rules_of("f64 rank(0) f8_e4m3\nf16 rank(0) F16\nids rank(0) i64\n* rank(0)\n");
  reshard_map map = map_of("f64 = cast(bf16; f64)\nbf16 = cast(f64; bf16)\n* = *\n");
  reshard_convert_report report;
  write_numbers("in.safetensors");
  if (run_convert("in.safetensors", "out.safetensors", RESHARD_F32, NULL, rules, map, &report) != RESHARD_SUCCESS)
    fail_msg("%s", reshard_last_error());
  scratch_check_cast("in.safetensors", "out.safetensors", "f64", RESHARD_DTYPE_NONE, RESHARD_F8_E4M3);
  scratch_check_cast("in.safetensors", "out.safetensors", "f16", RESHARD_DTYPE_NONE, RESHARD_F16);
  scratch_check_cast("in.safetensors", "out.safetensors", "bf16", RESHARD_DTYPE_NONE, RESHARD_F64);
  scratch_check_cast("in.safetensors", "out.safetensors", "f8_e5m2", RESHARD_DTYPE_NONE, RESHARD_F32);
  assert_int_equal(report.converted, 4);
  assert_int_equal(report.unconverted, 1); /* mask: ids have a rule */
  reshard_rules_free(rules);
  reshard_map_free(map);
}

#define VALUES(dtype, bytes)    T("w", dtype, "[2,4]", "[0," bytes "]")
#define SCALES(dtype, from, to) T("w_scale_inv", dtype, "[1,1]", "[" from "," to "]")

/* Quantised models stay as they are, whatever else is converted. */
CASE(fp8_and_its_scales_stay_together) {
  reshard_convert_report report;
  scratch_safetensors("q.safetensors",
                      "{" VALUES("F8_E4M3", "8") "," SCALES("F32", "8", "12") "," T("x", "F32", "[2]", "[12,20]") "}",
                      20, 1);
  assert_int_equal(run_convert("q.safetensors", "out.safetensors", RESHARD_F8_E5M2, NULL, NULL, NULL, &report),
                   RESHARD_SUCCESS);
  assert_int_equal(report.converted, 1);
  assert_int_equal(report.unconverted, 2);
  scratch_check_cast("q.safetensors", "out.safetensors", "w", RESHARD_DTYPE_NONE, RESHARD_F8_E4M3);
  scratch_check_cast("q.safetensors", "out.safetensors", "w_scale_inv", RESHARD_DTYPE_NONE, RESHARD_F32);
  scratch_check_cast("q.safetensors", "out.safetensors", "x", RESHARD_DTYPE_NONE, RESHARD_F8_E5M2);
  /* a rule that says what is there already says nothing */
  reshard_rules rules = rules_of("w rank(0) f8_e4m3\nx rank(0) bf16\n* rank(0)\n");
  assert_int_equal(run_convert("q.safetensors", "out.safetensors", RESHARD_DTYPE_NONE, NULL, rules, NULL, &report),
                   RESHARD_SUCCESS);
  assert_int_equal(report.converted, 1);
  reshard_rules_free(rules);
}

CASE(what_has_no_meaning_is_refused_and_nothing_is_written) {
  static const char quantised[] = "{" VALUES("F8_E4M3", "8") "," SCALES("F32", "8", "12") "}",
                    wide[] = "{" VALUES("BF16", "16") "," SCALES("F32", "16", "20") "}",
                    plain[] = "{" T("a", "I64", "[2]", "[0,16]") "," T("b", "F32", "[1]", "[16,20]") "}",
                    packed[] = "{" T("p", "F4", "[4]", "[0,2]") "," T("b", "F32", "[1]", "[2,6]") "}";
  static const struct {
    const char *header;
    size_t bytes;
    reshard_dtype dtype;
    const char *src, *dst, *map;
    reshard_status status;
    const char *text;
  } cases[] = {
      {plain, 20, RESHARD_I32, NULL, NULL, NULL, RESHARD_ERROR_INVALID,
       "dtype i32: numbers are converted to f64, f32, f16, bf16, f8_e4m3 and f8_e5m2 alone"},
      {plain, 20, RESHARD_F8_E8M0, NULL, NULL, NULL, RESHARD_ERROR_INVALID, "dtype f8_e8m0: "},
      {plain, 20, 0, NULL, "b rank(0)\n* rank(0) bf16\n", NULL, RESHARD_ERROR_INVALID,
       "dst: r:2:3: tensor 'a' is i64: no cast from it to bf16"},
      {plain, 20, RESHARD_BF16, NULL, "b rank(0) i32\n* rank(0)\n", NULL, RESHARD_ERROR_INVALID,
       "dst: r:1:3: tensor 'b' is f32: no cast from it to i32"},
      {plain, 20, 0, "* rank(0)\tf16 # it is not\n", NULL, "drop(a)\nb = b", RESHARD_ERROR_INVALID,
       "src: r:1:3: tensor 'b' is f32, not f16"},
      {packed, 6, 0, NULL, "p rank(0) bf16\n* rank(0)\n", NULL, RESHARD_ERROR_INVALID,
       "dst: r:1:3: tensor 'p' is F4: no cast from it to bf16"},
      {plain, 20, 0, NULL, NULL, "a = cast(f32; a)\nb = b", RESHARD_ERROR_INVALID,
       "m:1:5: cast: no cast to f32: 2 i64 ('a')"},
      {quantised, 12, RESHARD_F64, NULL, NULL, NULL, RESHARD_ERROR_UNSUPPORTED,
       "tensor 'w' is f8_e4m3 with scales in 'w_scale_inv': "},
      {quantised, 12, 0, NULL, "w_* rank(0) bf16\n* rank(0)\n", NULL, RESHARD_ERROR_INVALID,
       "dst: r:1:5: tensor 'w_scale_inv' is f32 beside 'w': neither is converted by itself to bf16"},
      {quantised, 12, 0, NULL, "w rank(0) f8_e5m2\n* rank(0)\n", NULL, RESHARD_ERROR_INVALID,
       "dst: r:1:3: tensor 'w' is f8_e4m3 beside 'w_scale_inv': neither is converted by itself to f8_e5m2"},
      {quantised, 12, 0, NULL, NULL, "w = cast(f64; w)\n* = *", RESHARD_ERROR_INVALID,
       "the map casts 'w' beside 'w_scale_inv'"},
      {quantised, 12, 0, NULL, NULL, "w_scale_inv = cast(bf16; w_scale_inv)\n* = *", RESHARD_ERROR_INVALID,
       "the map casts 'w_scale_inv' beside 'w'"},
      {wide, 20, RESHARD_F32, NULL, NULL, NULL, RESHARD_ERROR_INVALID,
       "tensor 'w' is bf16 and has scales, 'w_scale_inv', which only FP8 has"},
      {wide, 20, RESHARD_BF16, NULL, NULL, NULL, RESHARD_ERROR_INVALID, "tensor 'w' is bf16 and has scales"},
      {wide, 20, 0, NULL, "w rank(0) f8_e4m3\n* rank(0)\n", NULL, RESHARD_ERROR_INVALID,
       "tensor 'w' is bf16 and has scales"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    reshard_rules src = rules_of(cases[i].src), dst = rules_of(cases[i].dst);
    reshard_map map = map_of(cases[i].map);
    reshard_convert_report report = {.tensors = -5};
    scratch_safetensors("bad.safetensors", cases[i].header, cases[i].bytes, 2);
    reshard_status status = run_convert("bad.safetensors", "none.safetensors", cases[i].dtype, src, dst, map, &report);
    if (status != cases[i].status || strstr(reshard_last_error(), cases[i].text) != reshard_last_error())
      fail_msg("case %zu: status %d: %s", i, status, reshard_last_error());
    assert_int_equal(report.tensors, -5);
    assert_null(strstr(scratch_list(""), "none"));
    reshard_rules_free(src);
    reshard_rules_free(dst);
    reshard_map_free(map);
  }
  /* moved as it is, nothing of it is asked; also where another tensor is cast */
  assert_int_equal(run_convert("bad.safetensors", "out.safetensors", RESHARD_DTYPE_NONE, NULL, NULL, NULL, NULL),
                   RESHARD_SUCCESS);
  scratch_safetensors("beside.safetensors",
                      "{" VALUES("BF16", "16") "," SCALES("F32", "16", "20") "," T("a", "F32", "[1]", "[20,24]") "}",
                      24, 2);
  reshard_rules rules = rules_of("a rank(0) bf16\n* rank(0)\n");
  reshard_convert_report report;
  GOOD(run_convert("beside.safetensors", "cast.safetensors", RESHARD_DTYPE_NONE, NULL, rules, NULL, &report));
  assert_int_equal(report.converted, 1);
  reshard_rules_free(rules);
}

int main(void) {
#ifndef RS_HAVE_JANSSON
  return 77;
#else
  return case_list_run(__FILE__, scratch_setup, scratch_teardown);
#endif
}
