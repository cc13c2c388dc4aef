/* Entries of "__metadata__" that are the owner's: kept by every conversion, united over files, and following tensors
 * through maps. */
#define _GNU_SOURCE /* memmem */
#include "file/carry.h"
#include "support/fixtures/case.h"
#include "support/fixtures/scratch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define T SCRATCH_TENSOR

static char notes[4096];

static void take_note(void *user, const char *text) {
  strncat(notes, text, sizeof notes - strlen(notes) - 2);
  strcat(notes, "\n");
}

static void convert(const char *in, const char *out, const char *dst, int64_t world, reshard_map map) {
  reshard_convert_options options = RESHARD_CONVERT_OPTIONS_DEFAULTS;
  options.dst = dst;
  options.world = world;
  options.map = map;
  options.force = options.verify = 1;
  options.index_bytes = strstr(out, "index") != NULL ? 300 : 0;
  options.note = take_note;
  notes[0] = '\0';
  if (reshard_convert(scratch_path(in), scratch_path(out), &options, NULL) != RESHARD_SUCCESS)
    fail_msg("%s to %s: %s", in, out, reshard_last_error());
}

/* The checkpoint must have these entries, "key=value" each, and no others. */
static void check_metadata(const char *path, const char *const *entries) {
  reshard_checkpoint checkpoint = scratch_open(path);
  reshard_checkpoint_info info;
  const char *key = NULL, *value = NULL;
  int64_t n = 0;
  char entry[512];
  assert_int_equal(reshard_checkpoint_get_info(checkpoint, &info), RESHARD_SUCCESS);
  for (; entries[n] != NULL; n++) {
    bool found = false;
    for (int64_t i = 0; i < info.metadata && !found; i++) {
      assert_int_equal(reshard_checkpoint_metadata(checkpoint, i, &key, &value), RESHARD_SUCCESS);
      snprintf(entry, sizeof entry, "%s=%s", key, value);
      found = strcmp(entry, entries[n]) == 0;
    }
    if (!found)
      fail_msg("%s: no entry %s", path, entries[n]);
  }
  assert_int_equal(info.metadata, n);
  assert_int_equal(reshard_checkpoint_metadata(checkpoint, n, &key, &value), RESHARD_ERROR_INVALID);
  assert_int_equal(reshard_checkpoint_metadata(checkpoint, -1, &key, &value), RESHARD_ERROR_INVALID);
  reshard_checkpoint_close(checkpoint);
}

#define LIST(...) \
  (const char *const[]) { __VA_ARGS__, NULL }

#define ODD "\"quote \\\" \\\\ \\n \\u00e9\":\"{\\\"reshard_digests\\\":\\\"\\u0001\\\"}\",\"\":\"\",\"empty\":\"\""
#define OWN "\"DCP_VERSION\":\"9\""
static const char odd[] = "quote \" \\ \n \xc3\xa9={\"reshard_digests\":\"\x01\"}";

/* Through whole files, an index, shards of each kind of layout, and back. */
CASE(owner_metadata_survive_every_conversion) {
  static const char *const formats[] = {"", "\"format\":\"pt\",", "\"format\":\"mlx\","};
  static const char *const layouts[] = {"mesh(2;R)", "rank(1)", "mesh(2x2;R,R)", "rank(0)"};
  char header[1024];
  for (size_t f = 0; f < 3; f++) {
    snprintf(header, sizeof header,
             "{\"__metadata__\":{%s" ODD "," OWN "}," T("a", "U8", "[4,3]", "[0,12]") "," T(
                 "b", "F32", "[]", "[12,16]") "," T("c", "I8", "[300]", "[16,316]") "}",
             formats[f]);
    scratch_safetensors("in.safetensors", header, 316, 5);
    const char *const *wanted = LIST(odd, "=", "empty=", f == 2 ? "format=mlx" : "format=pt");
    check_metadata("in.safetensors", f == 0 ? LIST(odd, "=", "empty=") : wanted);
    convert("in.safetensors", "out.safetensors", NULL, 0, NULL);
    check_metadata("out.safetensors", wanted);
    convert("in.safetensors", "index", NULL, 0, NULL);
    check_metadata("index", wanted);
    for (size_t l = 0; l < sizeof layouts / sizeof *layouts; l++) {
      size_t size;
      convert(l % 2 == 0 ? "index" : "in.safetensors", "shards", layouts[l], 4, NULL);
      check_metadata("shards", wanted);
      convert("shards", "cut", layouts[(l + 1) % 4], 4, NULL);
      const char *names = scratch_list("cut");
      char path[128], *text;
      snprintf(path, sizeof path, "cut/%.*s", (int)strcspn(names, " "), names);
      text = scratch_read(path, &size);
      assert_non_null(memmem(text, size, "\"format\":\"pt\"", 13)); /* as PyTorch's reader wants it */
      assert_non_null(memmem(text, size, "\"DCP_VERSION\":\"1.0\"", 19));
      assert_null(memmem(text, size, "\"DCP_VERSION\":\"9\"", 17));
      free(text);
      convert("cut", "back.safetensors", NULL, 0, NULL);
      check_metadata("back.safetensors", wanted);
      char *first = scratch_read("out.safetensors", &size), *second = scratch_read("back.safetensors", &size);
      assert_memory_equal(first, second, size);
      free(first);
      free(second);
      assert_string_equal(notes, "");
    }
  }
}

/* Files that agree, and that do not. */
CASE(metadata_of_files_are_united_or_left_out) {
  scratch_directory("d");
  scratch_safetensors(
      "d/m-1-of-3.safetensors",
      "{\"__metadata__\":{\"same\":\"1\",\"x\":\"1\",\"y\":\"1\",\"one\":\"1\"}," T("a", "U8", "[1]", "[0,1]") "}", 1,
      1);
  scratch_safetensors("d/m-2-of-3.safetensors",
                      "{\"__metadata__\":{\"same\":\"1\",\"x\":\"2\",\"y\":\"1\"}," T("b", "U8", "[1]", "[0,1]") "}", 1,
                      1);
  scratch_safetensors(
      "d/m-3-of-3.safetensors",
      "{\"__metadata__\":{\"same\":\"1\",\"x\":\"1\",\"y\":\"\",\"three\":\"3\"}," T("c", "U8", "[1]", "[0,1]") "}", 1,
      1);
  check_metadata("d", LIST("same=1", "one=1", "three=3"));
  convert("d", "out.safetensors", NULL, 0, NULL);
  check_metadata("out.safetensors", LIST("same=1", "one=1", "three=3", "format=pt"));
  assert_non_null(strstr(notes, "m-2-of-3.safetensors': 'x' of"));
  assert_non_null(strstr(notes, "m-3-of-3.safetensors': 'y' of"));
  assert_int_equal(strchr(strchr(notes, '\n') + 1, '\n')[1], '\0'); /* each once */
  /* An .npy file has no place for it. */
  scratch_safetensors("in.safetensors",
                      "{\"__metadata__\":{\"format\":\"pt\",\"x\":\"1\"}," T("a", "U8", "[1]", "[0,1]") "}", 1, 1);
  convert("in.safetensors", "out.npy", NULL, 0, NULL);
  assert_non_null(strstr(notes, "1 entries"));
}

static void check_map(const char *text, const char *const *entries, const char *note) {
  reshard_map map;
  assert_int_equal(reshard_map_parse(text, NULL, &map), RESHARD_SUCCESS);
  convert("in.safetensors", "out.safetensors", NULL, 0, map);
  reshard_map_free(map);
  check_metadata("out.safetensors", entries);
  if (note == NULL ? notes[0] != '\0' : strstr(notes, note) == NULL)
    fail_msg("%s: '%s' is noted", text, notes);
}

CASE(metadata_follow_tensors_through_maps) {
  scratch_safetensors(
      "in.safetensors",
      "{\"__metadata__\":{\"a\":\"A\",\"b\":\"B\",\"note\":\"N\",\"format\":\"pt\"}," T(
          "a", "U8", "[2,2]", "[0,4]") "," T("b", "U8", "[2,2]", "[4,8]") "," T("c", "U8", "[2,2]", "[8,12]") "}",
      12, 1);
  check_map("* = *", LIST("a=A", "b=B", "note=N", "format=pt"), NULL);
  check_map("layer.* = *", LIST("layer.a=A", "layer.b=B", "note=N", "format=pt"), NULL);
  check_map("a = b\nb = a\n* = *", LIST("a=B", "b=A", "note=N", "format=pt"), NULL);
  check_map("a = c\nc = a\n* = *", LIST("c=A", "b=B", "note=N", "format=pt"), NULL);
  check_map("x = a\ny = a\n* = *", LIST("x=A", "y=A", "b=B", "note=N", "format=pt"), NULL);
  check_map("drop(a)\n* = *", LIST("b=B", "note=N", "format=pt"), NULL);
  check_map("ab = concat(0; a, b)\n* = *", LIST("note=N", "format=pt"),
            "'a' of \"__metadata__\" is left out: 'ab' has");
  check_map("ac = stack(a, c)\n* = *", LIST("b=B", "note=N", "format=pt"), "'a' of");
  check_map("concat(0; x:1, y:1) = a\n* = *", LIST("b=B", "note=N", "format=pt"), "'a' of");
  check_map("t = transpose(b)\n* = *", LIST("a=A", "note=N", "format=pt"), "'b' of");
  check_map("x = a\nab = concat(0; a, b)\n* = *", LIST("x=A", "note=N", "format=pt"), "'b' of");
  check_map("note = a\n* = *", LIST("b=B", "format=pt"), "'note' of \"__metadata__\" has two values by the map");
  check_map("x = concat(0; a)\n* = *", LIST("x=A", "b=B", "note=N", "format=pt"), NULL);
}

static reshard_status create(const char *path, int64_t n, const reshard_text_pair *metadata) {
  reshard_writer writer = NULL;
  reshard_writer_tensor tensor = {"x", RESHARD_U8, NULL};
  reshard_writer_options options = RESHARD_WRITER_OPTIONS_DEFAULTS;
  options.nmetadata = n;
  options.metadata = metadata;
  options.force = 1;
  assert_int_equal(reshard_layout_parse("rank(0)", 1, (const int64_t[]){3}, 1, &tensor.layout), RESHARD_SUCCESS);
  reshard_status status = reshard_writer_create(scratch_path(path), 1, &tensor, &options, &writer);
  reshard_layout_release(tensor.layout);
  if (status != RESHARD_SUCCESS)
    return status;
  assert_int_equal(reshard_writer_put(writer, 0, 0, (const void *const[]){"abc"}), RESHARD_SUCCESS);
  return reshard_writer_commit(writer);
}

CASE(writer_takes_metadata_and_refuses_bad_ones) {
  const reshard_text_pair good[] = {{"z", "1"}, {"a", ""}, {"format", "np"}};
  assert_int_equal(create("w.safetensors", 3, good), RESHARD_SUCCESS);
  check_metadata("w.safetensors", LIST("z=1", "a=", "format=np"));
  assert_int_equal(create("w", 3, good), RESHARD_SUCCESS);
  check_metadata("w", LIST("z=1", "a=", "format=np"));
  static const struct {
    reshard_text_pair pairs[2];
    const char *error;
  } wrong[] = {{{{"a", "1"}, {"a", "1"}}, "'a' is there twice"},
               {{{"a", "1"}, {NULL, "1"}}, "metadata 1: key or value is NULL"},
               {{{"a", NULL}, {"b", "1"}}, "metadata 0: key or value is NULL"},
               {{{"a", "\xff"}, {"b", "1"}}, "'a': key or value is no UTF-8"},
               {{{"a\xc3", ""}, {"b", "1"}}, "no UTF-8"},
               {{{"a", ""}, {"reshard", "{}"}}, "'reshard': the writer makes"},
               {{{"a", ""}, {"reshard_digests", "{}"}}, "'reshard_digests'"},
               {{{"a", ""}, {"DCP_VERSION", "1.0"}}, "'DCP_VERSION'"},
               {{{"a", ""}, {"DCP_SHARDING_INFO", "{}"}}, "'DCP_SHARDING_INFO'"}};
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
    assert_int_equal(create("bad.safetensors", 2, wrong[i].pairs), RESHARD_ERROR_INVALID);
    assert_non_null(strstr(reshard_last_error(), wrong[i].error));
  }
  assert_int_equal(create("bad.npy", 1, good), RESHARD_ERROR_INVALID);
  assert_int_equal(create("bad.safetensors", 1, NULL), RESHARD_ERROR_INVALID);
  assert_int_equal(create("bad.safetensors", -1, good), RESHARD_ERROR_INVALID);
}

/* Metadata that is read back must be what was carried: one entry less, more, or of another value is found. */
CASE(metadata_that_differ_after_writing_are_found) {
  const reshard_text_pair pairs[] = {{"a", "1"}, {"b", "2"}};
  bool differs;
  assert_int_equal(create("w.safetensors", 2, pairs), RESHARD_SUCCESS);
  reshard_checkpoint back = scratch_open("w.safetensors");
  static const struct {
    const char *b;
    int more;
    reshard_status status;
  } cases[] = {{"2", 0, RESHARD_SUCCESS},
               {"3", 0, RESHARD_ERROR_CORRUPT},
               {"2", 1, RESHARD_ERROR_CORRUPT},
               {NULL, 0, RESHARD_ERROR_CORRUPT},
               {NULL, 1, RESHARD_ERROR_CORRUPT}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    rs_text_pairs carried = {0};
    assert_int_equal(rs_text_pairs_put(&carried, "a", "1", &differs), RESHARD_SUCCESS);
    if (cases[i].b != NULL)
      assert_int_equal(rs_text_pairs_put(&carried, "b", cases[i].b, &differs), RESHARD_SUCCESS);
    if (cases[i].more)
      assert_int_equal(rs_text_pairs_put(&carried, "c", "3", &differs), RESHARD_SUCCESS);
    assert_int_equal(rs_carry_compare(&carried, back), cases[i].status);
    rs_text_pairs_free(&carried);
  }
  reshard_checkpoint_close(back);
}

RUN_JSON_CASES(scratch_setup, scratch_teardown)
