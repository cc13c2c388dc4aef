/* Tensors of a dtype that nobody knows, in files of every form: what a map, an index or leave_out leaves out is no
 * error, and whoever moves one is told tensor, dtype and file. */
#include "support/fixtures/case.h"
#include "support/fixtures/expect.h"
#include "support/fixtures/scratch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define T SCRATCH_TENSOR

enum { PLAIN, LEAVE_OUT };

static reshard_status convert_with(const char *in, const char *src, const char *map_text, int leave_out,
                                   reshard_convert_report *report) {
  reshard_convert_options options = RESHARD_CONVERT_OPTIONS_DEFAULTS;
  options.force = options.verify = 1;
  options.src = src;
  options.leave_out = leave_out;
  if (map_text != NULL)
    GOOD(reshard_map_parse(map_text, "m", &options.map));
  reshard_status status = reshard_convert(scratch_path(in), scratch_path("out.safetensors"), &options, report);
  reshard_map_free(options.map);
  return status;
}

/* "k" of 6 bytes is there and the same; "w" is not. */
static void check_known(const char *in, const char *src, const char *map_text, int leave_out, int64_t left_bytes) {
  reshard_convert_report report;
  size_t size;
  GOOD(convert_with(in, src, map_text, leave_out, &report));
  assert_int_equal(report.tensors, 1);
  assert_int_equal(report.source.left_out_tensors, left_bytes > 0);
  assert_int_equal(report.source.left_out_bytes, left_bytes);
  char *bytes = scratch_read("out.safetensors", &size);
  assert_memory_equal(bytes + size - 6, "abcdef", 6);
  assert_non_null(strstr(bytes + 8, T("k", "U8", "[6]", "[0,6]")));
  free(bytes);
}

/* All ways to move "w", which is in a file; each names tensor, dtype and file, and leaves no output. */
static void check_refused(const char *in, const char *src, const char *file) {
  static const char *const maps[] = {NULL,
                                     "* = *",
                                     "x = w\ndrop(k)",
                                     "x = concat(0; w, w)\ndrop(k)",
                                     "x = concat(0; zeros():4, w)\n* = *",
                                     "x = transpose(w)\n* = *",
                                     "x = stack(w)\n* = *",
                                     "concat(0; a, b) = w\n* = *",
                                     "concat(0; a:1, drop():1) = w\n* = *",
                                     "transpose(x) = w\n* = *",
                                     "x = concat(0; k, w)"};
  char part[256];
  scratch_remove("out.safetensors");
  snprintf(part, sizeof part, "file '%s': tensor 'w': unknown dtype 'X9'", scratch_path(file));
  for (size_t i = 0; i < sizeof maps / sizeof *maps; i++)
    FAILS_WITH(convert_with(in, src, maps[i], PLAIN, NULL), RESHARD_ERROR_INVALID, part);
  assert_null(strstr(scratch_list(""), "out"));
}

static void check_forms(const char *in, const char *src, const char *file, int64_t left_bytes) {
  check_known(in, src, "drop(w)\n* = *", PLAIN, 0);
  check_known(in, src, "k = k\ndrop(*)", PLAIN, 0);
  check_known(in, src, NULL, LEAVE_OUT, left_bytes);
  check_refused(in, src, file);
}

/* Header and data of a safetensors file. */
static void write_file(const char *name, const char *header, const char *data) {
  char bytes[1024];
  size_t n = strlen(header), size = strlen(data);
  for (int i = 0; i < 8; i++)
    bytes[i] = (char)(n >> 8 * i);
  memcpy(bytes + 8, header, n);
  memcpy(bytes + 8 + n, data, size);
  scratch_write(name, bytes, 8 + n + size);
}

static const char both[] = "{" T("k", "U8", "[6]", "[0,6]") "," T("w", "X9", "[3,5]", "[6,13]") "}";
static const char known[] = "{" T("k", "U8", "[6]", "[0,6]") "}", only[] = "{" T("w", "X9", "[3,5]", "[0,7]") "}";

CASE(one_file_moves_what_the_map_keeps) {
  static const char *const shapes[] = {"[3,5]", "[]", "[0]", "[7]", "[1,1,1,1,1,1,1,1,1,1]", "[-4]", "[9999999]"};
  for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) { /* which nobody can judge */
    char header[256];
    snprintf(header, sizeof header,
             "{" T("w", "X9", "%s", "[6,13]") "," T("k", "U8", "[6]", "[0,6]") ",\"__metadata__\":{\"w\":\"a\"}}",
             shapes[i]);
    write_file("in.safetensors", header, "abcdef1234567");
    check_forms("in.safetensors", NULL, "in.safetensors", 7);
  }
  check_known("in.safetensors", "flat(0,1)", "drop(w)\n* = *", PLAIN, 0);
}

CASE(directory_of_files_and_an_index_that_overrules_one) {
  scratch_directory("d");
  write_file("d/a.safetensors", known, "abcdef");
  write_file("d/b.safetensors", only, "1234567");
  check_forms("d", NULL, "d/b.safetensors", 7);
  static const char index[] = "{\"weight_map\":{\"k\":\"a.safetensors\",\"w\":\"b.safetensors\"}}";
  scratch_write("d/model.safetensors.index.json", index, strlen(index));
  check_forms("d", NULL, "d/b.safetensors", 7);
  static const char without[] = "{\"weight_map\":{\"k\":\"a.safetensors\"}}";
  scratch_write("d/model.safetensors.index.json", without, strlen(without));
  write_file("d/a.safetensors", both, "abcdef1234567");
  check_known("d", NULL, NULL, PLAIN, 0);
  static const char other[] = "{\"weight_map\":{\"k\":\"a.safetensors\",\"w\":\"c.safetensors\"}}";
  scratch_write("d/model.safetensors.index.json", other, strlen(other));
  write_file("d/c.safetensors", "{" T("w", "U16", "[1]", "[0,2]") "}", "xy");
  reshard_convert_report report;
  GOOD(convert_with("d", NULL, NULL, PLAIN, &report)); /* its w is the known one */
  assert_int_equal(report.tensors, 2);
  assert_int_equal(report.source.unlisted, 1);
  scratch_remove("d");
}

/* PyTorch's shards, which say where each begins. */
CASE(shards_without_our_metadata) {
  static const char format[] = "{" T("k", "U8", "[3]", "[0,3]") "," T(
      "w", "X9", "[1,5]",
      "[3,7]") ",\"__metadata__\":{\"DCP_SHARDING_INFO\":\"{\\\"k\\\":{\\\"saved_offsets\\\":[%d]},\\\"w\\\":{"
               "\\\"saved_offsets\\\":[%d,0]}}\"}}";
  scratch_directory("s");
  for (int f = 0; f < 2; f++) {
    char header[512], name[64];
    snprintf(header, sizeof header, format, 3 * f, f);
    snprintf(name, sizeof name, "s/shard-0000%d.safetensors", f);
    write_file(name, header, f == 0 ? "abc1234" : "def5678");
  }
  check_forms("s", NULL, "s/shard-00000.safetensors", 8);
  scratch_remove("s");
}

/* Ours, by a writer that knew the dtype. */
CASE(shards_with_our_metadata) {
  static const char *const layouts[] = {"chunk(0)", "chunk(1)", "cyclic(3x1;1x1)", "mesh(3;R)", "flat()"};
  static const int64_t left[] = {600, 600, 600, 1800, 600};
  for (size_t l = 0; l < sizeof layouts / sizeof *layouts; l++) {
    reshard_convert_options options = RESHARD_CONVERT_OPTIONS_DEFAULTS;
    char rules[64];
    scratch_safetensors("in.safetensors", "{" T("k", "U8", "[6]", "[0,6]") "," T("w", "I16", "[300,1]", "[6,606]") "}",
                        606, 0);
    size_t size;
    char *bytes = scratch_read("in.safetensors", &size);
    memcpy(bytes + size - 606, "abcdef", 6);
    scratch_write("in.safetensors", bytes, size);
    free(bytes);
    snprintf(rules, sizeof rules, "w %s\nk mesh(3;S0)\n", layouts[l]);
    GOOD(reshard_rules_parse(rules, NULL, &options.dst_rules));
    options.world = 3;
    options.no_digests = 1;
    GOOD(reshard_convert(scratch_path("in.safetensors"), scratch_path("s"), &options, NULL));
    reshard_rules_free(options.dst_rules);
    const char *first = NULL;
    for (int f = 1; f <= 3; f++) {
      char name[64], *at;
      snprintf(name, sizeof name, "s/shard-0000%d-model-00001-of-00001.safetensors", f);
      bytes = scratch_read(name, &size);
      for (size_t i = 8; i < size && bytes[i] != '\0'; i++)
        if ((at = strstr(bytes + i, "\"I16\"")) != NULL)
          memcpy(at, "\"X9\" ", 5);
      if (first == NULL && strstr(bytes + 8, "\"X9\"") != NULL)
        first = f == 1 ? "s/shard-00001-model-00001-of-00001.safetensors"
                       : "s/shard-00002-model-00001-of-00001.safetensors";
      scratch_write(name, bytes, size);
      free(bytes);
    }
    check_forms("s", NULL, first, left[l]);
    scratch_remove("s");
  }
}

CASE(files_of_ranks) {
  scratch_directory("r");
  write_file("r/model-rank-0-part-0.safetensors", "{" T("k", "U8", "[3]", "[0,3]") "," T("w", "X9", "[2]", "[3,6]") "}",
             "abc123");
  write_file("r/model-rank-1-part-0.safetensors", "{" T("k", "U8", "[3]", "[0,3]") "," T("w", "X9", "[3]", "[3,7]") "}",
             "def4567");
  check_forms("r", "chunk(0)", "r/model-rank-0-part-0.safetensors", 7);
  scratch_remove("r");
}

CASE(reads_of_one_are_refused_and_of_others_are_not) {
  int64_t shape[] = {3, 5}, tensor;
  reshard_checkpoint_info info;
  reshard_model_tensor t;
  reshard_layout layout;
  reshard_model model;
  char bytes[16];
  void *to = bytes;
  write_file("in.safetensors", both, "abcdef1234567");
  reshard_checkpoint checkpoint = scratch_open("in.safetensors");
  GOOD(reshard_checkpoint_get_info(checkpoint, &info));
  assert_int_equal(info.tensors, 2);
  assert_int_equal(info.bytes, 13);
  GOOD(reshard_checkpoint_find(checkpoint, "w", &tensor));
  GOOD(reshard_model_get(reshard_checkpoint_model(checkpoint), tensor, &t));
  assert_int_equal(t.dtype, RESHARD_DTYPE_NONE);
  for (int ndim = 1; ndim <= 2; ndim++) { /* its bytes, or the shape that the file says */
    GOOD(reshard_layout_create_single(ndim, ndim == 1 ? t.shape : shape, 1, 0, &layout));
    FAILS_WITH(reshard_checkpoint_read(checkpoint, tensor, layout, 0, 1, &to), RESHARD_ERROR_INVALID,
               "in.safetensors': tensor 'w': unknown dtype 'X9'");
    reshard_layout_release(layout);
  }
  GOOD(reshard_checkpoint_find(checkpoint, "k", &tensor));
  GOOD(reshard_checkpoint_layout(checkpoint, tensor, &layout));
  GOOD(reshard_checkpoint_read(checkpoint, tensor, layout, 0, 1, &to));
  assert_memory_equal(bytes, "abcdef", 6);
  reshard_layout_release(layout);
  reshard_checkpoint_close(checkpoint);
  GOOD(reshard_model_load(scratch_path("in.safetensors"), &model));
  FAILS_WITH(reshard_map_model(NULL, model, &model), RESHARD_ERROR_INVALID, "tensor 'w': unknown dtype 'X9'");
  reshard_model_free(model);
}

/* The types of safetensors that are bytes keep their names where files of ranks are joined. */
CASE(files_of_ranks_keep_packed_types) {
  static const struct {
    const char *part[2], *is;
  } cases[] = {
      {{T("k", "F4", "[3,4]", "[0,6]"), T("k", "F4", "[3,4]", "[0,6]")}, "\"F4\",\"shape\":[6,4]"},
      {{T("k", "F6_E2M3", "[2,4]", "[0,6]"), T("k", "F6_E2M3", "[2,4]", "[0,6]")}, "\"F6_E2M3\",\"shape\":[4,4]"},
      {{T("k", "F8_E5M2FNUZ", "[6]", "[0,6]"), T("k", "F8_E5M2FNUZ", "[6]", "[0,6]")},
       "\"F8_E5M2FNUZ\",\"shape\":[12]"},
      {{T("k", "F4", "[4,3]", "[0,6]"), T("k", "F4", "[4,3]", "[0,6]")}, "\"F4\",\"shape\":[4,3]"}, /* whole on each */
  };
  scratch_directory("r");
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    size_t size;
    char header[256];
    for (int r = 0; r < 2; r++) {
      snprintf(header, sizeof header, "{%s}", cases[i].part[r]);
      write_file(r == 0 ? "r/model-rank-0-part-0.safetensors" : "r/model-rank-1-part-0.safetensors", header,
                 i == 3 || r == 0 ? "abcdef" : "ghijkl");
    }
    GOOD(convert_with("r", "chunk(0)", NULL, PLAIN, NULL));
    char *bytes = scratch_read("out.safetensors", &size);
    if (strstr(bytes + 8, cases[i].is) == NULL)
      fail_msg("no %s in %s", cases[i].is, bytes + 8);
    assert_memory_equal(bytes + size - (i == 3 ? 6 : 12), "abcdefghijkl", i == 3 ? 6 : 12);
    free(bytes);
  }
  write_file("r/model-rank-1-part-0.safetensors", "{" T("k", "U8", "[4,3]", "[0,12]") "}", "abcdefghijkl");
  FAILS_WITH(convert_with("r", "chunk(0)", NULL, PLAIN, NULL), RESHARD_ERROR_INVALID, "F4");
  scratch_remove("r");
}

RUN_JSON_CASES(scratch_setup, scratch_teardown)
