/* Types of safetensors that are moved as bytes: F4, F6 and F8 without a negative zero, cut, joined and mapped. */
#include "file/read/checkpoint.h"
#include "support/fixtures/case.h"
#include "support/fixtures/scratch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
  const char *name;
  int bytes, elements;
} types[] = {{"F4", 1, 2}, {"F6_E2M3", 3, 4}, {"F6_E3M2", 3, 4}, {"F8_E4M3FNUZ", 1, 1}, {"F8_E5M2FNUZ", 1, 1}};
enum { TYPES = sizeof types / sizeof *types, ROWS = 6 };

static reshard_status convert(const char *in, const char *out, const char *dst, int64_t world, const char *map_text) {
  reshard_convert_options options = RESHARD_CONVERT_OPTIONS_DEFAULTS;
  options.dst = dst;
  options.world = world;
  options.force = options.verify = 1;
  options.index_bytes = strcmp(out, "index") == 0 ? 200 : 0;
  if (map_text != NULL)
    assert_int_equal(reshard_map_parse(map_text, "m", &options.map), RESHARD_SUCCESS);
  reshard_status status = reshard_convert(scratch_path(in), scratch_path(out), &options, NULL);
  reshard_map_free(options.map);
  return status;
}

static void packed_good(reshard_status status) {
  if (status != RESHARD_SUCCESS)
    fail_msg("%s", reshard_last_error());
}

static void packed_refused(reshard_status is, reshard_status should, const char *text) {
  if (is != should || strstr(reshard_last_error(), text) == NULL)
    fail_msg("expected %s with '%s', got %s: %s", reshard_status_string(should), text, reshard_status_string(is),
             reshard_last_error());
}

/* "w" of ROWS x columns elements, and "s" of 3 bytes behind it. */
static int64_t write_source(int type, int64_t columns) {
  char header[512];
  int64_t n = ROWS * columns / types[type].elements * types[type].bytes;
  snprintf(header, sizeof header,
           "{\"w\":{\"dtype\":\"%s\",\"shape\":[%d,%lld],\"data_offsets\":[0,%lld]},"
           "\"s\":{\"dtype\":\"F8_E8M0\",\"shape\":[3],\"data_offsets\":[%lld,%lld]}}",
           types[type].name, ROWS, (long long)columns, (long long)n, (long long)n, (long long)n + 3);
  scratch_safetensors("in.safetensors", header, (size_t)n + 3, type);
  return n;
}

/* The header of a file has the text, and its data the bytes that the source has from `from` on, seed `type`. */
static void check_file(const char *path, const char *text, size_t n, size_t from, int type) {
  size_t size;
  unsigned char *bytes = scratch_read(path, &size);
  bytes[size - n - 1] = '\0';
  if (strstr((char *)bytes + 8, text) == NULL)
    fail_msg("%s: no %s in %s", path, text, bytes + 8);
  for (size_t i = 1; i < n; i++) /* the first gave way to the NUL's neighbour */
    assert_int_equal(bytes[size - n + i], scratch_byte(from + i, type));
  free(bytes);
}

/* Cut by each layout, cut again, joined, and the same. */
CASE(packed_types_are_cut_and_joined_as_bytes) {
  static const char *const layouts[] = {"chunk(0)", "chunk(1)",        "mesh(2x2;S0,S1)", "mesh(4;R)",
                                        "flat()",   "cyclic(2x2;2x3)", "rank(2)",         "mesh(2x2;S1,S1)"};
  for (int type = 0; type < TYPES; type += 1 + (type > 0)) { /* one of each size */
    for (int64_t columns = 8; columns <= 12; columns += 4) {
      write_source(type, columns);
      packed_good(convert("in.safetensors", "first.safetensors", NULL, 0, NULL));
      size_t size;
      unsigned char *first = scratch_read("first.safetensors", &size);
      for (size_t l = 0; l < sizeof layouts / sizeof *layouts; l++) {
        char rules_text[128];
        reshard_convert_options options = RESHARD_CONVERT_OPTIONS_DEFAULTS;
        snprintf(rules_text, sizeof rules_text, "w %s\n* mesh(4;R)\n", layouts[l]);
        if (reshard_rules_parse(rules_text, NULL, &options.dst_rules) != RESHARD_SUCCESS)
          continue;
        options.world = 4;
        options.force = options.verify = 1;
        reshard_status status = reshard_convert(scratch_path("in.safetensors"), scratch_path("cut"), &options, NULL);
        reshard_rules_free(options.dst_rules);
        packed_good(status);
        packed_good(convert("cut", "again", "mesh(3;R)", 3, NULL));
        packed_good(convert("again", "index", NULL, 0, NULL));
        packed_good(convert("index", "back.safetensors", NULL, 0, NULL));
        size_t back_size;
        unsigned char *back = scratch_read("back.safetensors", &back_size);
        assert_int_equal(back_size, size);
        assert_memory_equal(back, first, size);
        free(back);
      }
      free(first);
    }
  }
}

/* Headers have elements, and pieces begin where bytes end; else the tensor is whole on each rank. */
CASE(pieces_begin_where_bytes_end) {
  char text[256];
  for (int type = 0; type < TYPES; type++) {
    int64_t n = write_source(type, 8);
    packed_good(convert("in.safetensors", "cut", "chunk(1)", 2, "drop(s)\n* = *"));
    snprintf(text, sizeof text, "\"w\":{\"dtype\":\"%s\",\"shape\":[6,4],\"data_offsets\":[0,%lld]}", types[type].name,
             (long long)n / 2);
    for (int rank = 1; rank <= 2; rank++) {
      char path[128], saved[64];
      snprintf(path, sizeof path, "cut/shard-0000%d-model-00001-of-00001.safetensors", rank);
      snprintf(saved, sizeof saved, "saved_offsets\\\": [0, %d]", 4 * (rank - 1));
      check_file(path, text, 0, 0, type);
      check_file(path, saved, 0, 0, type);
    }
    packed_good(convert("in.safetensors", "cut", "chunk(0)", 2, "drop(s)\n* = *"));
    snprintf(text, sizeof text, "\"w\":{\"dtype\":\"%s\",\"shape\":[3,8],", types[type].name);
    check_file("cut/shard-00002-model-00001-of-00001.safetensors", text, (size_t)n / 2, (size_t)n / 2, type);
    if (types[type].bytes < 3)
      continue;
    packed_good(convert("in.safetensors", "cut", "chunk(1)", 4, "drop(s)\n* = *")); /* 6 bytes a row, 2 a rank */
    for (int rank = 1; rank <= 4; rank++) {
      char path[128];
      snprintf(path, sizeof path, "cut/shard-0000%d-model-00001-of-00001.safetensors", rank);
      snprintf(text, sizeof text, "\"w\":{\"dtype\":\"%s\",\"shape\":[6,8],", types[type].name);
      check_file(path, text, (size_t)n, 0, type);
    }
  }
}

CASE(maps_move_packed_types_by_whole_bytes) {
  for (int type = 0; type < TYPES; type++) {
    bool shares = types[type].elements > 1;
    int64_t n = write_source(type, 8);
    packed_good(convert("in.safetensors", "out.safetensors", NULL, 0, "x.w = w\ndrop(s)"));
    check_file("out.safetensors", "\"x.w\"", (size_t)n, 0, type);
    packed_good(convert("in.safetensors", "out.safetensors", NULL, 0, "concat(0; drop():2, w) = w\ndrop(s)"));
    check_file("out.safetensors", "\"shape\":[4,8]", (size_t)(n / 3 * 2), (size_t)n / 3, type);
    packed_good(convert("in.safetensors", "out.safetensors", NULL, 0, "w = concat(0; w, w)\ndrop(s)"));
    check_file("out.safetensors", "\"shape\":[12,8]", (size_t)n, 0, type);
    packed_good(convert("in.safetensors", "out.safetensors", NULL, 0, "drop(w)\n* = *")); /* its type is not judged */
    check_file("out.safetensors", "F8_E8M0", 3, (size_t)n, type);
    reshard_status turned = convert("in.safetensors", "out.safetensors", NULL, 0, "w = transpose(w)\n* = *");
    if (shares)
      packed_refused(turned, RESHARD_ERROR_INVALID, types[type].name);
    else
      packed_good(turned);
    packed_refused(convert("in.safetensors", "out.npy", NULL, 0, "drop(s)\n* = *"), RESHARD_ERROR_INVALID,
                   types[type].name);
  }
  /* Zeros beside F6: whole groups of four elements, which share three bytes, on either side. */
  scratch_safetensors("in.safetensors", "{" SCRATCH_TENSOR("w", "F6_E2M3", "[2,8]", "[0,12]") "}", 12, 3);
  for (int bytes = 1; bytes <= 6; bytes++) {
    static const char *const maps[] = {"w = concat(1; w, zeros():%d)", "w = concat(1; zeros():%d, w)"};
    for (int side = 0; side < 2; side++) {
      char map[64], shape[64];
      snprintf(map, sizeof map, maps[side], bytes);
      snprintf(shape, sizeof shape, "\"F6_E2M3\",\"shape\":[2,%d]", 8 + bytes / 3 * 4);
      reshard_status status = convert("in.safetensors", "out.safetensors", NULL, 0, map);
      if (bytes % 3 == 0) {
        packed_good(status);
        check_file("out.safetensors", shape, 0, 0, 3);
      } else {
        packed_refused(status, RESHARD_ERROR_INVALID, "F6_E2M3");
      }
    }
  }
  packed_good(convert("in.safetensors", "out.safetensors", NULL, 0, "w = concat(0; zeros():1, w, zeros():2)"));
  check_file("out.safetensors", "\"shape\":[5,8]", 0, 0, 3);
  packed_refused(convert("in.safetensors", "out.safetensors", NULL, 0, "w = concat(1; w, zeros():2, w, zeros():1)"),
                 RESHARD_ERROR_INVALID, "zeros between elements that share bytes");
  scratch_safetensors(
      "in.safetensors",
      "{" SCRATCH_TENSOR("a", "F4", "[2,4]", "[0,4]") "," SCRATCH_TENSOR("b", "U8", "[2,2]", "[4,8]") "}", 8, 1);
  packed_refused(convert("in.safetensors", "out.safetensors", NULL, 0, "x = concat(0; a, b)"), RESHARD_ERROR_INVALID,
                 "do not fit");
}

/* Where the last dim ends within a byte the tensor is whole on each rank of its layout, or on the first of flat pieces,
 * with the shape that it had. */
CASE(last_dim_within_a_byte_stays_whole) {
  static const char *const layouts[] = {"chunk(0)", "chunk(1)", "mesh(3;R)", "mesh(3;S1)",
                                        "rank(1)",  "flat()",   "flat(2-0)"};
  static const struct {
    const char *type, *shape;
    int bytes;
  } cases[] = {{"F4", "[2,3]", 3},      {"F4", "[2,1,5]", 5}, {"F6_E2M3", "[4,3]", 9},
               {"F6_E3M2", "[2,2]", 3}, {"F4", "[0,3]", 0},   {"F6_E2M3", "[2,10]", 15}};
  char header[512], text[128];
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    size_t size, n = (size_t)cases[i].bytes;
    snprintf(header, sizeof header, "{\"w\":{\"dtype\":\"%s\",\"shape\":%s,\"data_offsets\":[0,%zu]}}", cases[i].type,
             cases[i].shape, n);
    scratch_safetensors("in.safetensors", header, n, 7);
    snprintf(text, sizeof text, "\"x\":{\"dtype\":\"%s\",\"shape\":%s,", cases[i].type, cases[i].shape);
    packed_good(convert("in.safetensors", "first.safetensors", NULL, 0, "x = w"));
    check_file("first.safetensors", text, n, 0, 7);
    unsigned char *first = scratch_read("first.safetensors", &size);
    for (size_t l = 0; l < sizeof layouts / sizeof *layouts; l++) {
      packed_good(convert("in.safetensors", "cut", layouts[l], 3, "x = w"));
      for (int rank = 1; rank <= 3 && n > 0; rank++) {
        static const int alone[] = {0, 0, 0, 0, 2, 1, 3};
        char path[128];
        snprintf(path, sizeof path, "cut/shard-0000%d-model-00001-of-00001.safetensors", rank);
        if (alone[l] == 0 || alone[l] == rank)
          check_file(path, text, n, 0, 7);
        else
          assert_null(strstr(scratch_list("cut"), strchr(path, '/') + 1));
      }
      packed_good(convert("cut", "again", "chunk(0)", 2, NULL));
      packed_good(convert("again", "back.safetensors", NULL, 0, NULL));
      size_t back_size;
      unsigned char *back = scratch_read("back.safetensors", &back_size);
      assert_int_equal(back_size, size);
      assert_memory_equal(back, first, size);
      free(back);
    }
    free(first);
    if (n > 0)
      packed_refused(convert("in.safetensors", "out.safetensors", NULL, 0, "x = concat(0; w, w)"),
                     RESHARD_ERROR_INVALID, "ends within a byte");
  }
}

/* Data and shapes that do not go together. */
CASE(data_that_do_not_fit_the_shape_are_refused) {
  scratch_safetensors("a.safetensors", "{" SCRATCH_TENSOR("a", "F4", "[8]", "[0,8]") "}", 8, 0);
  scratch_refused("a.safetensors", RESHARD_ERROR_INVALID, "'a'", "need 4");
  scratch_safetensors("a.safetensors", "{" SCRATCH_TENSOR("a", "F6_E3M2", "[8]", "[0,8]") "}", 8, 0);
  scratch_refused("a.safetensors", RESHARD_ERROR_INVALID, "'a'", "need 6");
  scratch_safetensors("a.safetensors", "{" SCRATCH_TENSOR("a", "F4", "[3,3]", "[0,5]") "}", 5, 0);
  scratch_refused("a.safetensors", RESHARD_ERROR_INVALID, "'a'", "end within a byte");
  scratch_safetensors("a.safetensors", "{" SCRATCH_TENSOR("a", "F4", "[]", "[0,1]") "}", 1, 0);
  scratch_refused("a.safetensors", RESHARD_ERROR_INVALID, "'a'", "end within a byte");
  scratch_safetensors("a.safetensors", "{" SCRATCH_TENSOR("a", "F6_E2M3", "[2,2]", "[0,4]") "}", 4, 0);
  scratch_refused("a.safetensors", RESHARD_ERROR_INVALID, "'a'", "need 3");
}

RUN_JSON_CASES(scratch_setup, scratch_teardown)
