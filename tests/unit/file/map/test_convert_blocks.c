/* Conversions of checkpoints to FP8 with scales and back, against f32 arithmetic written again and bits that PyTorch
 * made; layouts, rules and maps around them; what is refused. */
#include "bench/cli/naive_cast.h"
#include "bench/cli/naive_scaled.h"
#include "support/fixtures/case.h"
#include "support/fixtures/expect.h"
#include "support/fixtures/scratch.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct options {
  const char *dtype, *src, *dst, *map, *layout;
} options;

static reshard_convert_report report;

static reshard_status run_convert(const char *in, const char *out, options with) {
  reshard_convert_options o = RESHARD_CONVERT_OPTIONS_DEFAULTS;
  if (with.dtype != NULL)
    GOOD(reshard_dtype_parse_blocks(with.dtype, &o.dtype, &o.blocks));
  if (with.src != NULL)
    GOOD(reshard_rules_parse(with.src, "r", &o.src_rules));
  if (with.dst != NULL)
    GOOD(reshard_rules_parse(with.dst, "r", &o.dst_rules));
  if (with.map != NULL)
    GOOD(reshard_map_parse(with.map, "m", &o.map));
  o.dst = with.layout;
  o.force = o.verify = 1;
  reshard_status status = reshard_convert(scratch_path(in), scratch_path(out), &o, &report);
  reshard_rules_free(o.src_rules);
  reshard_rules_free(o.dst_rules);
  reshard_map_free(o.map);
  return status;
}

static void must_convert(const char *in, const char *out, options with) {
  if (run_convert(in, out, with) != RESHARD_SUCCESS)
    fail_msg("%s to %s: %s", in, out, reshard_last_error());
}

/* A matrix, or a list of them, of any dtype in a file of its own. */
typedef struct matrices {
  reshard_dtype dtype;
  int64_t n, rows, columns;
} matrices;

static void write_file(const char *name, const char *header, const void *data, size_t bytes) {
  size_t length = strlen(header);
  char *file = malloc(8 + length + bytes + 1);
  assert_non_null(file);
  for (int i = 0; i < 8; i++)
    file[i] = (char)((uint64_t)length >> 8 * i);
  memcpy(file + 8, header, length);
  memcpy(file + 8 + length, data, bytes);
  scratch_write(name, file, 8 + length + bytes);
  free(file);
}

static const char *name_of(reshard_dtype dtype) {
  return dtype == RESHARD_F32 ? "F32" : dtype == RESHARD_F16 ? "F16" : "BF16";
}

/* Bits of all kinds, so that some blocks have NaN and infinity; blocks of zeros; and ordinary numbers. Every
 * second block of 128 rows has ordinary numbers alone: blocks with NaN all have one scale, whichever is read. */
static char *write_numbers(const char *file, matrices m) {
  int64_t elements = m.n * m.rows * m.columns, width = (int64_t)reshard_dtype_size(m.dtype);
  char header[256], shape[96], *data = malloc((size_t)(elements * width));
  assert_non_null(data);
  uint32_t state = 12345;
  for (int64_t i = 0; i < elements; i++) {
    int64_t row = i / m.columns % m.rows;
    state = state * 1664525 + 1013904223;
    uint32_t bits = state ^ state >> 15;
    bool ordinary = m.rows >= 128 && (row / 128 + i % m.columns / 128) % 2 == 0;
    if (ordinary || row % 16 < 12) { /* exponents around 1 */
      bits = (bits & 0x807fffff) | (120 + (bits >> 23 & 15)) << 23;
      bits = row % 16 == 11 ? 0 : (uint32_t)naive_cast(RESHARD_F32, m.dtype, bits);
    }
    memcpy(data + i * width, &bits, (size_t)width);
  }
  snprintf(shape, sizeof shape, "%lld,%lld,%lld", (long long)m.n, (long long)m.rows, (long long)m.columns);
  snprintf(header, sizeof header, "{\"w\":{\"dtype\":\"%s\",\"shape\":[%s],\"data_offsets\":[0,%lld]}}",
           name_of(m.dtype), m.n > 1 ? shape : strchr(shape, ',') + 1, (long long)(elements * width));
  write_file(file, header, data, (size_t)(elements * width));
  return data;
}

/* Scale of the block of one element, by the definition: each number of it is looked at. */
static float scale_of(const char *data, matrices m, int64_t matrix, int64_t row, int64_t column, int64_t rows,
                      int64_t columns, reshard_dtype scales) {
  float most = 0;
  for (int64_t r = row / rows * rows; r < m.rows && r < row / rows * rows + rows; r++)
    for (int64_t c = column / columns * columns; c < m.columns && c < column / columns * columns + columns; c++)
      most = naive_most(most, naive_wide(data, m.dtype, (matrix * m.rows + r) * m.columns + c));
  return naive_scale(most, scales);
}

static bool same_float(float a, float b) { return isnan(a) ? isnan(b) : memcmp(&a, &b, sizeof a) == 0; }

/* Compares values and scales of a file with the definition; and what comes back of them. */
static void check_blocks(const char *in, const char *data, matrices m, int64_t rows, int64_t columns, bool power,
                         const char *back) {
  reshard_model_tensor v, s, w = {.dtype = RESHARD_F32};
  int64_t nv, ns, nw, across = (m.columns + columns - 1) / columns, down = (m.rows + rows - 1) / rows;
  char *values = scratch_tensor(in, "w", &v, &nv), *scales = scratch_tensor(in, "w_scale_inv", &s, &ns);
  char *wide = back != NULL ? scratch_tensor(back, "w", &w, &nw) : NULL;
  assert_int_equal(v.dtype, RESHARD_F8_E4M3);
  assert_int_equal(s.dtype, power ? RESHARD_F8_E8M0 : RESHARD_F32);
  assert_int_equal(ns, m.n * across * down);
  for (int64_t i = 0; i < nv; i++) {
    int64_t matrix = i / m.columns / m.rows, r = i / m.columns % m.rows, c = i % m.columns;
    float is = naive_stored_scale(scales, s.dtype, (matrix * down + r / rows) * across + c / columns);
    if (r % rows == 0 && c % columns == 0) {
      float scale = scale_of(data, m, matrix, r, c, rows, columns, s.dtype);
      if (!same_float(is, scale))
        fail_msg("%s: block of %lld,%lld: scale %a, not %a", in, (long long)r, (long long)c, (double)is, (double)scale);
    }
    uint32_t wanted = naive_scaled(naive_wide(data, m.dtype, i), is);
    if ((uint8_t)values[i] != wanted && !((values[i] & 0x7f) == 0x7f && (wanted & 0x7f) == 0x7f))
      fail_msg("%s: %lld,%lld: 0x%02x, not 0x%02x", in, (long long)r, (long long)c, (uint8_t)values[i], wanted);
    if (wide == NULL)
      continue;
    uint32_t rounded = naive_unscaled((uint8_t)values[i], is, w.dtype);
    float want = naive_wide(&rounded, w.dtype, 0), found = naive_wide(wide, w.dtype, i);
    if (!same_float(found, want))
      fail_msg("%s: %lld,%lld: %a, not %a", back, (long long)r, (long long)c, (double)found, (double)want);
  }
  free(values);
  free(scales);
  free(wide);
}

/* Rows end in short blocks, on both sides of what is done together; a block is a row; blocks fill rows of a list. */
CASE(blocks_become_values_and_scales_and_come_back_by_definition) {
  static const struct {
    matrices m;
    int64_t rows, columns;
    const char *dtype, *back;
  } cases[] = {
      {{RESHARD_F32, 1, 300, 517}, 128, 128, "f8_e4m3/128x128", "bf16"},
      {{RESHARD_BF16, 1, 130, 4224}, 128, 128, "f8_e4m3/128x128:e8m0", "f32"},
      {{RESHARD_F16, 3, 70, 96}, 32, 64, "f8_e4m3/32x64", "f16"},
      {{RESHARD_F32, 1, 33, 9000}, 1, 32, "f8_e4m3/1x32:e8m0", "f32"},
      {{RESHARD_BF16, 2, 9, 300}, 1, 128, "f8_e4m3/1x128", "bf16"},
      {{RESHARD_F32, 1, 17, 2048}, 1, 2048, "f8_e4m3/1x2048", "f16"},
  };
  static const char *const sets[] = {"scalar", "avx2", "avx512"};
  for (size_t k = 0; k < 3 * sizeof cases / sizeof *cases; k++) {
    size_t i = k / 3;
    bool power = strstr(cases[i].dtype, ":e8m0") != NULL;
    char *data = write_numbers("in.safetensors", cases[i].m);
    assert_int_equal(setenv("RESHARD_ISA", sets[k % 3], 1), 0);
    reshard_status status = run_convert("in.safetensors", "q.safetensors", (options){.dtype = cases[i].dtype});
    if (status == RESHARD_ERROR_UNSUPPORTED && strstr(reshard_last_error(), sets[k % 3]) != NULL) {
      free(data);
      continue; /* instructions that this machine lacks */
    }
    if (status != RESHARD_SUCCESS)
      fail_msg("%s", reshard_last_error());
    assert_int_equal(report.scaled, 1);
    assert_int_equal(report.converted, 1);
    assert_int_equal(report.unconverted, 0);
    must_convert("q.safetensors", "back.safetensors", (options){.dtype = cases[i].back});
    assert_int_equal(report.tensors, 1);
    assert_int_equal(report.unconverted, 0);
    check_blocks("q.safetensors", data, cases[i].m, cases[i].rows, cases[i].columns, power, "back.safetensors");
    free(data);
  }
  unsetenv("RESHARD_ISA");
}

/* PyTorch 2.15, by the lines of DeepGEMM's per_token_cast_to_fp8 with blocks of 8: ordinary numbers; subnormal ones and
 * those below 1e-4; NaN; infinity; large ones. */
CASE(bits_are_those_that_pytorch_made) {
  static const uint32_t in[5][8] = {
      {0xbfbaec7f, 0xbfe7de14, 0xbfd64f18, 0x40002a27, 0xbf179d63, 0x40ba81d9, 0xc086903b, 0xc0126936},
      {0x00000000, 0x80000000, 0x00000001, 0x800116c2, 0x34a10fb0, 0xb727c5ac, 0x38d18167, 0x36a7c5ac},
      {0x3f800000, 0x7fc00000, 0xc0000000, 0x00000000, 0x43e00000, 0xf149f2ca, 0x3a83126f, 0x40e00000},
      {0x7f800000, 0x3f800000, 0xff800000, 0x00000000, 0x7f61b1e6, 0xc0000000, 0x006ce3ee, 0x40a00000},
      {0x605aff04, 0xe09bf9a0, 0xe0418603, 0x00000000, 0x00000000, 0x00000000, 0x00000000, 0x00000000}};
  static const uint32_t scales[2][5] = {{0x3c5526af, 0x346facad, 0x7fc00000, 0x7f800000, 0x5c3241db},
                                        {0x3c800000, 0x34800000, 0x7f000000, 0x7f000000, 0x5c800000}};
  static const uint8_t codes[2][5][8] = {{{0xee, 0xf1, 0xf0, 0x72, 0xe3, 0x7e, 0xfa, 0xf3},
                                          {0x00, 0x80, 0x00, 0x80, 0x3b, 0xe3, 0x7e, 0x5b},
                                          {0x7f, 0x7f, 0x7f, 0x7f, 0x7f, 0x7f, 0x7f, 0x7f},
                                          {0x7f, 0x00, 0x7f, 0x00, 0x00, 0x80, 0x00, 0x00},
                                          {0x7a, 0xfe, 0xf9, 0x00, 0x00, 0x00, 0x00, 0x00}},
                                         {{0xec, 0xee, 0xed, 0x70, 0xe1, 0x7c, 0xf8, 0xf1},
                                          {0x00, 0x80, 0x00, 0x80, 0x3a, 0xe2, 0x7d, 0x5a},
                                          {0x00, 0x7f, 0x80, 0x00, 0x00, 0x80, 0x00, 0x00},
                                          {0x7e, 0x00, 0xfe, 0x00, 0x3e, 0x80, 0x00, 0x00},
                                          {0x76, 0xfa, 0xf4, 0x00, 0x00, 0x00, 0x00, 0x00}}};
  write_file("torch.safetensors", "{\"w\":{\"dtype\":\"F32\",\"shape\":[5,8],\"data_offsets\":[0,160]}}", in, 160);
  for (int power = 0; power < 2; power++) {
    reshard_model_tensor t;
    int64_t n;
    must_convert("torch.safetensors", "q.safetensors", (options){.dtype = power ? "f8_e4m3/1x8:e8m0" : "f8_e4m3/1x8"});
    char *values = scratch_tensor("q.safetensors", "w", &t, &n);
    char *made = scratch_tensor("q.safetensors", "w_scale_inv", &t, &n);
    assert_memory_equal(values, codes[power], 40);
    for (int i = 0; i < 5; i++)
      assert_true(same_float(naive_stored_scale(made, power ? RESHARD_F8_E8M0 : RESHARD_F32, i),
                             naive_wide(&scales[power][i], RESHARD_F32, 0)));
    free(values);
    free(made);
  }
}

/* Ranks that have whole blocks, from ranks that cut them, and joined again: the same bits as in one file. */
CASE(layouts_on_either_side_change_no_bit) {
  static const char *const layouts[] = {"mesh(4;S0)", "mesh(2x2;S1,R)", "cyclic(2x1;128x400)", "mesh(2;S0{256,256})"};
  matrices m = {RESHARD_F32, 1, 512, 400};
  char *data = write_numbers("in.safetensors", m);
  must_convert("in.safetensors", "flat-shards", (options){.layout = "flat(0-2)"});
  for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) {
    must_convert("flat-shards", "q-shards",
                 (options){.dtype = i == 1 ? "f8_e4m3/128x200" : "f8_e4m3/128x128", .layout = layouts[i]});
    must_convert("q-shards", "q.safetensors", (options){0});
    must_convert("q-shards", "back-shards", (options){.dtype = "bf16", .layout = "flat(0-4)", .src = NULL});
    must_convert("back-shards", "back.safetensors", (options){0});
    check_blocks("q.safetensors", data, m, 128, i == 1 ? 200 : 128, false, i == 1 ? NULL : "back.safetensors");
    scratch_remove("q-shards");
    scratch_remove("back-shards");
  }
  free(data);
}

/* Values and scales would travel where both sides have whole blocks, else the wide dtype, either way. */
CASE(bytes_between_ranks_are_those_of_what_would_travel) {
  static const struct {
    const char *src, *dst;
    int64_t rows; /* that change their rank, of 4 x 128 */
    bool whole;
  } cases[] = {{"chunk(0;0,1)", "chunk(0;1,0)", 512, true},
               {"chunk(0;0-2)", "chunk(0;0,1)", (256 - 171) + (512 - 342), false},
               {"mesh(2;S0)", "mesh(2;S0)", 0, true}};
  matrices m = {RESHARD_F32, 1, 512, 256};
  free(write_numbers("in.safetensors", m));
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    reshard_convert_options o = RESHARD_CONVERT_OPTIONS_DEFAULTS;
    o.src = cases[i].src;
    o.dst = cases[i].dst;
    o.world = 3;
    o.force = 1;
    GOOD(reshard_dtype_parse_blocks("f8_e4m3/128x128", &o.dtype, &o.blocks));
    GOOD(reshard_convert(scratch_path("in.safetensors"), scratch_path("q-shards"), &o, &report));
    int64_t wire = cases[i].rows * 256 * (cases[i].whole ? 1 : 4) + (cases[i].whole ? cases[i].rows / 128 * 2 * 4 : 0);
    assert_int_equal(report.wire_bytes, wire);
    if (!cases[i].whole) /* the way back reads shards that have whole blocks */
      continue;
    must_convert("q-shards", "q.safetensors", (options){0});
    o.blocks = (reshard_blocks){0};
    o.dtype = RESHARD_BF16;
    GOOD(reshard_convert(scratch_path("q.safetensors"), scratch_path("back-shards"), &o, &report));
    assert_int_equal(report.wire_bytes, wire);
  }
  scratch_remove("q-shards");
  scratch_remove("back-shards");
}

/* Blocks are those of the target: of two tensors one behind the other, of a transpose. Values that are put together
 * are multiplied by the scales of the tensors that they come from. */
CASE(maps_make_blocks_of_what_they_put_together) {
  matrices m = {RESHARD_BF16, 1, 192, 256}, twice = {RESHARD_BF16, 1, 384, 256}, turned = {RESHARD_BF16, 1, 256, 192};
  char *data = write_numbers("in.safetensors", m), *other = malloc(2 * 192 * 256 * 2);
  assert_non_null(other);
  options blocks = {.dtype = "f8_e4m3/64x128"};
  must_convert("in.safetensors", "single.safetensors", blocks);
  must_convert("single.safetensors", "back.safetensors",
               (options){.dtype = "bf16", .map = "w = concat(0; w, w)\n* = *\n"});
  blocks.map = "w = concat(0; w, w)\n";
  must_convert("in.safetensors", "q.safetensors", blocks);
  memcpy(other, data, 192 * 256 * 2);
  memcpy(other + 192 * 256 * 2, data, 192 * 256 * 2);
  check_blocks("q.safetensors", other, twice, 64, 128, false, "back.safetensors");
  blocks.map = "w = transpose(w)\n";
  must_convert("in.safetensors", "q.safetensors", blocks);
  for (int64_t r = 0; r < 192; r++)
    for (int64_t c = 0; c < 256; c++)
      memcpy(other + (c * 192 + r) * 2, data + (r * 256 + c) * 2, 2);
  check_blocks("q.safetensors", other, turned, 64, 128, false, NULL);
  free(data);
  free(other);
}

/* The same by casts of maps, whatever stands around them; the way back takes the scales, too. */
CASE(casts_of_maps_make_blocks_and_multiply_by_scales) {
  static const struct {
    const char *there, *back;
    bool power;
  } cases[] = {
      {"w = cast(f8_e4m3/64x128; concat(0; w, w))\n", "w = cast(bf16; w)\n", false},
      {"w = concat(0; cast(f8_e4m3/64x128:e8m0; w), cast(f8_e4m3/64x128:e8m0; w))\n", "* = cast(f32; *)\n", true},
      {"w = concat(0; cast(f8_e4m3/64x128:f32; w), cast( f8_e4m3/64x128 ; w))",
       "w = transpose(cast(f16; transpose(w)))", false},
  };
  matrices m = {RESHARD_BF16, 1, 192, 256}, twice = {RESHARD_BF16, 1, 384, 256};
  char *data = write_numbers("in.safetensors", m), *both = malloc(2 * 192 * 256 * 2);
  assert_non_null(both);
  memcpy(both, data, 192 * 256 * 2);
  memcpy(both + 192 * 256 * 2, data, 192 * 256 * 2);
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    must_convert("in.safetensors", "q.safetensors", (options){.map = cases[i].there});
    assert_int_equal(report.scaled, 1);
    must_convert("q.safetensors", "back.safetensors", (options){.map = cases[i].back});
    assert_int_equal(report.tensors, 1);
    check_blocks("q.safetensors", both, twice, 64, 128, cases[i].power, "back.safetensors");
  }
  must_convert("in.safetensors", "q.safetensors", (options){.map = "w = cast(f8_e4m3/64x128; w)\n"});
  must_convert("q.safetensors", "back.safetensors", (options){.map = "concat(0; a:64, w:128) = cast(bf16; w)"});
  must_convert("in.safetensors", "q.safetensors",
               (options){.map = "concat(0; a:64, w:128) = cast(f8_e4m3/64x128; w)\n"});
  assert_int_equal(report.scaled, 2);
  check_blocks("q.safetensors", data + 64 * 256 * 2, (matrices){RESHARD_BF16, 1, 128, 256}, 64, 128, false,
               "back.safetensors");
  free(data);
  free(both);
}

#define T SCRATCH_TENSOR
#define MIXED \
  "{" T("w", "BF16", "[4,8]", "[0,64]") "," T("v", "F32", "[4]", "[64,80]") "," T( \
      "i", "I64", "[1,2]", "[80,96]") "," T("d", "F64", "[2,2]", "[96,128]") "}"
#define PAIR "{" T("w", "F8_E4M3", "[4,8]", "[0,32]") "," T("w_scale_inv", "F32", "[2,2]", "[32,48]") "}"

CASE(what_takes_no_scales_stays_and_a_rule_goes_first) {
  reshard_model_tensor t;
  int64_t n;
  scratch_safetensors("in.safetensors", MIXED, 128, 1);
  must_convert("in.safetensors", "q.safetensors", (options){.dtype = "f8_e4m3/2x4"});
  assert_int_equal(report.scaled, 1);
  assert_int_equal(report.unconverted, 3);
  assert_int_equal(report.tensors, 5);
  free(scratch_tensor("q.safetensors", "w_scale_inv", &t, &n));
  assert_int_equal(n, 4);
  must_convert("in.safetensors", "q.safetensors",
               (options){.dtype = "bf16", .dst = "w rank(0) f8_e4m3/4x1:e8m0\n* rank(0)\n"});
  free(scratch_tensor("q.safetensors", "w_scale_inv", &t, &n));
  assert_int_equal(n, 8);
  assert_int_equal(t.dtype, RESHARD_F8_E8M0);
  free(scratch_tensor("q.safetensors", "v", &t, &n));
  assert_int_equal(t.dtype, RESHARD_BF16);
  /* a pair stays as it is, of whatever blocks; a rule of the source says those that no power of two gives */
  scratch_safetensors("pair.safetensors", PAIR, 48, 1);
  must_convert("pair.safetensors", "q.safetensors", (options){.dtype = "f8_e4m3/4x8"});
  assert_int_equal(report.unconverted, 2);
  scratch_safetensors("odd.safetensors",
                      "{" T("w", "F8_E4M3", "[9,8]", "[0,72]") "," T("w_scale_inv", "F32", "[3,2]", "[72,96]") "}", 96,
                      1);
  must_convert("odd.safetensors", "q.safetensors",
               (options){.dtype = "bf16", .src = "w rank(0) f8_e4m3/3x4\n* rank(0)\n"});
  assert_int_equal(report.tensors, 1);
}

/* Names of what a map makes of a file, with ' ' between. */
static const char *list_made(const char *file, const char *text) {
  static char names[256];
  reshard_model source, target;
  reshard_map map;
  GOOD(reshard_map_parse(text, "m", &map));
  GOOD(reshard_model_open(scratch_path(file), &source));
  if (reshard_map_model(map, source, &target) != RESHARD_SUCCESS)
    fail_msg("%s: %s", text, reshard_last_error());
  names[0] = '\0';
  for (int64_t i = 0; i < reshard_model_count(target); i++) {
    reshard_model_tensor t;
    GOOD(reshard_model_get(target, i, &t));
    snprintf(names + strlen(names), sizeof names - strlen(names), "%s %s ", t.name, reshard_dtype_string(t.dtype));
  }
  reshard_model_free(source);
  reshard_model_free(target);
  reshard_map_free(map);
  return names;
}

CASE(models_of_maps_have_scales_that_casts_make_and_lack_those_they_take) {
  reshard_model_tensor t;
  int64_t n;
  scratch_safetensors("in.safetensors", MIXED, 128, 1);
  assert_string_equal(list_made("in.safetensors", "a = cast(f8_e4m3/2x4:e8m0; w)\n* = *\n"),
                      "a f8_e4m3 v f32 i i64 d f64 a_scale_inv f8_e8m0 ");
  scratch_safetensors("pair.safetensors",
                      "{" T("w_scale_inv", "F32", "[2,2]", "[0,16]") "," T("w", "F8_E4M3", "[4,8]", "[16,48]") "," T(
                          "x", "F8_E4M3", "[4,8]", "[48,80]") "}",
                      80, 1);
  assert_string_equal(list_made("pair.safetensors", "* = *"), "w_scale_inv f32 w f8_e4m3 x f8_e4m3 ");
  assert_string_equal(list_made("pair.safetensors", "a.* = cast(bf16; *)"), "a.w bf16 a.x bf16 ");
  assert_string_equal(list_made("pair.safetensors", "y = concat(0; cast(f32; x), cast(f32; w))"), "y f32 ");
  /* a rule goes before the cast */
  options with = {.map = "w = cast(f8_e4m3/2x4; w)\n* = *\n", .dst = "w rank(0) f8_e4m3/4x8\n* rank(0)\n"};
  must_convert("in.safetensors", "q.safetensors", with);
  free(scratch_tensor("q.safetensors", "w_scale_inv", &t, &n));
  assert_int_equal(n, 1);
  with.dst = "w rank(0) f16\n* rank(0)\n";
  must_convert("in.safetensors", "q.safetensors", with);
  assert_int_equal(report.scaled, 0);
  free(scratch_tensor("q.safetensors", "w", &t, &n));
  assert_int_equal(t.dtype, RESHARD_F16);
}

CASE(blocks_that_mean_nothing_are_refused_and_nothing_is_written) {
  static const struct {
    const char *header;
    int bytes;
    options with;
    reshard_status status;
    const char *text;
  } cases[] = {
      {MIXED,
       128,
       {.dst = "v rank(0) f8_e4m3/2x4\n* rank(0)\n"},
       RESHARD_ERROR_INVALID,
       "dst: r:1:3: tensor 'v' is f32 of shape 4: f8_e4m3/2x4 is for f32, f16 and bf16 of 2 dims, or 3"},
      {MIXED,
       128,
       {.dst = "d rank(0) f8_e4m3/2x4\n* rank(0)\n"},
       RESHARD_ERROR_INVALID,
       "dst: r:1:3: tensor 'd' is f64"},
      {MIXED,
       128,
       {.dst = "w mesh(2;S0) f8_e4m3/3x4\n* rank(0)\n"},
       RESHARD_ERROR_INVALID,
       "dst: tensor 'w': dim 0: rank 0's part begins or ends at 2, in a block of 3 (f8_e4m3/3x4)"},
      {MIXED,
       128,
       {.dtype = "f8_e4m3/3x4", .map = "w = concat(0; w, w)\n* = *"},
       RESHARD_ERROR_INVALID,
       "tensor 'w': the map cuts dim 0 at 4, in a block of 3 (f8_e4m3/3x4)"},
      {"{" T("w", "BF16", "[4,8]", "[0,64]") "," T("w_scale_inv", "F32", "[2,2]", "[64,80]") "}",
       80,
       {.dtype = "f8_e4m3/2x4"},
       RESHARD_ERROR_INVALID,
       "tensor 'w' is bf16 and has scales, 'w_scale_inv'"},
      {"{" T("w_scale_inv", "F32", "[2,2]", "[0,16]") "}",
       16,
       {.dtype = "f8_e4m3/2x4"},
       RESHARD_ERROR_INVALID,
       "tensor 'w_scale_inv' has scales: the values of that name without '_scale_inv' are missing"},
      {"{" T("w", "F8_E4M3", "[4,8]", "[0,32]") "}",
       32,
       {.dst = "* rank(0) f8_e4m3/2x4\n"},
       RESHARD_ERROR_INVALID,
       "dst: r:1:3: tensor 'w' is f8_e4m3, and to be f8_e4m3/2x4: its scales, 'w_scale_inv', are missing"},
      {"{" T("w", "F8_E4M3", "[4,8]", "[0,32]") "," T("w_scale_inv", "BF16", "[2,2]", "[32,40]") "}",
       40,
       {.dtype = "bf16"},
       RESHARD_ERROR_INVALID,
       "scales 'w_scale_inv' are bf16, not f32 or f8_e8m0"},
      {"{" T("w", "F8_E4M3", "[4,8]", "[0,32]") "," T("w_scale_inv", "F32", "[3,2]", "[32,56]") "}",
       56,
       {.dtype = "bf16"},
       RESHARD_ERROR_INVALID,
       "scales 'w_scale_inv' of shape 3x2 are not one for each block of 'w'"},
      {"{" T("w", "F8_E4M3", "[4,8]", "[0,32]") "," T("w_scale_inv", "F32", "[2]", "[32,40]") "}",
       40,
       {.dtype = "f32"},
       RESHARD_ERROR_INVALID,
       "scales 'w_scale_inv' of shape 2 are not one for each block of 'w'"},
      {PAIR,
       48,
       {.dtype = "bf16", .src = "w rank(0) f8_e4m3/4x4\n* rank(0)\n"},
       RESHARD_ERROR_INVALID,
       "scales 'w_scale_inv' of shape 2x2 are not one for each block of 'w'"},
      {MIXED,
       128,
       {.map = "w = cast(f8_e4m3/2x4; d)\n"},
       RESHARD_ERROR_INVALID,
       "m:1:5: cast: f8_e4m3/2x4 is made of f32, f16 and bf16, not of 2x2 f64 ('d')"},
      {MIXED,
       128,
       {.map = "* = *\nv2 = cast(f8_e4m3/2x4:e8m0; v)\n"},
       RESHARD_ERROR_INVALID,
       "m:2: f8_e4m3/2x4:e8m0 is of 2 dims, or 3: 4 f8_e4m3/2x4:e8m0 ('v')"},
      {MIXED,
       128,
       {.map = "w = concat(0; cast(f8_e4m3/2x4; w), cast(f8_e4m3; w))\n"},
       RESHARD_ERROR_INVALID,
       "m:1:5: concat along dim 0: 4x8 f8_e4m3/2x4 ('w') and 4x8 f8_e4m3 ('w') do not fit"},
      {PAIR,
       48,
       {.map = "w_scale_inv = w_scale_inv\nw = cast(bf16; w)\n"},
       RESHARD_ERROR_INVALID,
       "the map casts 'w' beside 'w_scale_inv'"},
      {PAIR,
       48,
       {.map = "w = cast(bf16; w)\n", .dst = "* rank(0) f8_e5m2\n"},
       RESHARD_ERROR_UNSUPPORTED,
       "dst: r:1:3: tensor 'w': the map multiplies f8_e4m3 by its scales, to f32, f16 or bf16, not to f8_e5m2"},
      {PAIR, 48, {.dtype = "f64"}, RESHARD_ERROR_UNSUPPORTED, "tensor 'w' is f8_e4m3 with scales in 'w_scale_inv'"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    scratch_safetensors("bad.safetensors", cases[i].header, (size_t)cases[i].bytes, 2);
    reshard_status status = run_convert("bad.safetensors", "none.safetensors", cases[i].with);
    if (status != cases[i].status || strstr(reshard_last_error(), cases[i].text) != reshard_last_error())
      fail_msg("case %zu: status %d: %s", i, status, status == RESHARD_SUCCESS ? "" : reshard_last_error());
    assert_null(strstr(scratch_list(""), "none"));
  }
}

CASE(names_of_blocks_are_read_and_checked) {
  static const struct {
    const char *text;
    reshard_status status;
    int64_t rows, columns;
    reshard_dtype scales;
  } cases[] = {
      {"f8_e4m3/128x128", RESHARD_SUCCESS, 128, 128, RESHARD_F32},
      {"F8_E4M3/1x32:e8m0", RESHARD_SUCCESS, 1, 32, RESHARD_F8_E8M0},
      {"f8_e4m3/1x32768:f32", RESHARD_SUCCESS, 1, 32768, RESHARD_F32},
      {"bf16", RESHARD_SUCCESS, 0, 0, RESHARD_DTYPE_NONE},
      {"f8_e4m3/1x32769", RESHARD_ERROR_UNSUPPORTED, 0, 0, 0},
      {"f8_e4m3/256x129", RESHARD_ERROR_UNSUPPORTED, 0, 0, 0},
      {"f8_e4m3/9223372036854775807x2", RESHARD_ERROR_UNSUPPORTED, 0, 0, 0},
      {"f8_e5m2/128x128", RESHARD_ERROR_INVALID, 0, 0, 0},
      {"f8_e4m3/", RESHARD_ERROR_INVALID, 0, 0, 0},
      {"f8_e4m3/128", RESHARD_ERROR_INVALID, 0, 0, 0},
      {"f8_e4m3/0x128", RESHARD_ERROR_INVALID, 0, 0, 0},
      {"f8_e4m3/-1x128", RESHARD_ERROR_INVALID, 0, 0, 0},
      {"f8_e4m3/128x128:bf16", RESHARD_ERROR_INVALID, 0, 0, 0},
      {"f8_e4m3/128x128x2", RESHARD_ERROR_INVALID, 0, 0, 0},
      {"f8/128x128", RESHARD_ERROR_INVALID, 0, 0, 0},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    reshard_dtype dtype = RESHARD_U8;
    reshard_blocks b = {-1, -1, RESHARD_U8};
    if (reshard_dtype_parse_blocks(cases[i].text, &dtype, &b) != cases[i].status)
      fail_msg("%s: %s", cases[i].text, reshard_last_error());
    bool read = cases[i].status == RESHARD_SUCCESS;
    assert_int_equal(b.rows, read ? cases[i].rows : -1);
    assert_int_equal(b.columns, read ? cases[i].columns : -1);
    assert_int_equal(b.scales, read ? cases[i].scales : RESHARD_U8);
    assert_true((dtype == RESHARD_U8) == !read);
  }
  reshard_convert_options o = RESHARD_CONVERT_OPTIONS_DEFAULTS;
  o.dtype = RESHARD_F8_E4M3;
  o.blocks = (reshard_blocks){-1, 128, RESHARD_F32}; /* which no text says */
  assert_int_equal(reshard_convert(scratch_path("in.safetensors"), scratch_path("out.safetensors"), &o, &report),
                   RESHARD_ERROR_INVALID);
  assert_non_null(strstr(reshard_last_error(), "a block of -1 x 128"));
}

int main(void) {
#ifndef RS_HAVE_JANSSON
  return 77;
#else
  return case_list_run(__FILE__, scratch_setup, scratch_teardown);
#endif
}
