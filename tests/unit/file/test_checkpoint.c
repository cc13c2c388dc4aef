/* Directories of shards: made by hand here, as PyTorch's distributed checkpoint writes them and as this library does;
 * ranks, layouts and data, and sets that do not fit together. */
#include "support/fixtures/scratch.h"

#include "file/read/checkpoint.h"
#include "support/fixtures/case.h"
#include "support/fixtures/expect.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define T SCRATCH_TENSOR

static void set_text(char *to, size_t size, const char *text) {
  size_t n = 0;
  for (; *text != '\0' && n + 3 < size; text++) { /* JSON in a JSON string */
    if (*text == '"')
      to[n++] = '\\';
    to[n++] = *text;
  }
  to[n] = '\0';
}

/* A file of shards: tensors as in a header, DCP_SHARDING_INFO and reshard as plain JSON texts (NULL: none). Byte i of
 * the data is scratch_byte(i, seed). */
static void write_shards(const char *name, const char *tensors, const char *sharding, const char *reshard, size_t data,
                         int seed) {
  static char header[32768], inner[8192];
  size_t at = (size_t)sprintf(header, "{\"__metadata__\":{\"format\":\"pt\"");
  if (sharding != NULL) {
    set_text(inner, sizeof inner, sharding);
    at += (size_t)sprintf(header + at, ",\"DCP_VERSION\":\"1.0\",\"DCP_SHARDING_INFO\":\"%s\"", inner);
  }
  if (reshard != NULL) {
    set_text(inner, sizeof inner, reshard);
    at += (size_t)sprintf(header + at, ",\"reshard\":\"%s\"", inner);
  }
  sprintf(header + at, "}%s%s}", *tensors != '\0' ? "," : "", tensors);
  scratch_safetensors(name, header, data, seed);
}

/* One U8 tensor "w". */
static void write_shard(const char *name, const char *shape, size_t bytes, const char *offsets, const char *reshard,
                        int seed) {
  char tensor[256], sharding[256];
  snprintf(tensor, sizeof tensor, "\"w\":{\"dtype\":\"U8\",\"shape\":%s,\"data_offsets\":[0,%zu]}", shape, bytes);
  snprintf(sharding, sizeof sharding, "{\"w\": {\"saved_offsets\": %s}}", offsets);
  write_shards(name, tensor, sharding, reshard, bytes, seed);
}

static void check_layout(reshard_checkpoint checkpoint, const char *name, const char *should) {
  int64_t i;
  reshard_layout layout;
  char text[4096];
  GOOD(reshard_checkpoint_find(checkpoint, name, &i));
  GOOD(reshard_checkpoint_layout(checkpoint, i, &layout));
  GOOD(reshard_layout_print(layout, text, sizeof text, NULL));
  assert_string_equal(text, should);
  reshard_layout_release(layout);
}

static reshard_checkpoint_info info_of(reshard_checkpoint checkpoint) {
  reshard_checkpoint_info info;
  GOOD(reshard_checkpoint_get_info(checkpoint, &info));
  return info;
}

/* All of a tensor of bytes, row-major. */
static void read_all(reshard_checkpoint checkpoint, const char *name, unsigned char *bytes) {
  int64_t i;
  reshard_layout layout;
  reshard_model_tensor t;
  GOOD(reshard_checkpoint_find(checkpoint, name, &i));
  GOOD(reshard_model_get(reshard_checkpoint_model(checkpoint), i, &t));
  GOOD(reshard_layout_create_single(t.ndim, t.shape, 1, 0, &layout));
  if (reshard_checkpoint_read(checkpoint, i, layout, 0, 1, (void *const *)&bytes) != RESHARD_SUCCESS)
    fail_msg("%s", reshard_last_error());
  reshard_layout_release(layout);
}

/* The bytes of each piece, at its place in its file, are those of its box; an error tells how many pieces there are. */
static void check_stored(reshard_checkpoint checkpoint, const char *name, int64_t pieces) {
  const char *file;
  reshard_box box;
  reshard_model_tensor t;
  int64_t tensor, offset, n = 0;
  GOOD(reshard_checkpoint_find(checkpoint, name, &tensor));
  GOOD(reshard_model_get(reshard_checkpoint_model(checkpoint), tensor, &t));
  for (; reshard_checkpoint_stored(checkpoint, tensor, n, &file, &offset, &box) == RESHARD_SUCCESS; n++) {
    unsigned char bytes[64];
    size_t size, elements = 1;
    for (int d = 0; d < t.ndim; d++)
      elements *= (size_t)box.extent[d];
    GOOD(reshard_checkpoint_read_box(checkpoint, tensor, &box, 1, bytes));
    FILE *f = fopen(file, "rb");
    assert_non_null(f);
    unsigned char there[64];
    assert_int_equal(fseek(f, (long)offset, SEEK_SET), 0);
    size = fread(there, 1, elements * reshard_dtype_size(t.dtype), f);
    fclose(f);
    assert_int_equal(size, elements * reshard_dtype_size(t.dtype));
    assert_memory_equal(there, bytes, size);
  }
  char text[64];
  snprintf(text, sizeof text, "piece %d of %d", (int)pieces, (int)pieces);
  assert_int_equal(n, pieces);
  assert_non_null(strstr(reshard_last_error(), text));
  assert_int_equal(reshard_checkpoint_stored(checkpoint, tensor, -1, &file, &offset, &box), RESHARD_ERROR_INVALID);
}

/* PyTorch's: 5 x 3 cut in rows 2, 2, 1 and nothing, a scalar in one file, and a tensor without elements. */
CASE(shapes_of_foreign_shards_are_inferred) {
  scratch_directory("d");
  write_shards("d/a.safetensors", T("w", "U8", "[2,3]", "[0,6]") "," T("s", "F32", "[]", "[6,10]"),
               "{\"w\": {\"saved_offsets\": [0, 0]}, \"s\": {\"saved_offsets\": []}}", NULL, 10, 1);
  write_shards("d/b.safetensors", T("e", "U8", "[0,7]", "[0,0]") "," T("w", "U8", "[2,3]", "[0,6]"),
               "{\"w\": {\"saved_offsets\": [2, 0]}, \"e\": {\"saved_offsets\": [0, 0]}}", NULL, 6, 2);
  write_shard("d/c.safetensors", "[1,3]", 3, "[4, 0]", NULL, 3);
  write_shard("d/d.safetensors", "[0,3]", 0, "[5, 0]", NULL, 4);
  reshard_checkpoint checkpoint = scratch_open("d");
  reshard_checkpoint_info info = info_of(checkpoint);
  assert_int_equal(info.format, RESHARD_FORMAT_SHARDS);
  assert_int_equal(info.tensors, 3);
  assert_int_equal(info.files, 4);
  assert_int_equal(info.world, 4);
  assert_int_equal(info.described, 0);
  assert_int_equal(info.bytes, 19);
  assert_int_equal(info.stored_bytes, 19);
  check_layout(checkpoint, "w", "boxes(0:[0,0]+[2,3];1:[2,0]+[2,3];2:[4,0]+[1,3])");
  check_layout(checkpoint, "s", "boxes(0:[]+[])");
  check_layout(checkpoint, "e", "boxes(1:[0,0]+[0,7])");
  check_stored(checkpoint, "w", 3);
  check_stored(checkpoint, "s", 1);
  check_stored(checkpoint, "e", 0);
  unsigned char bytes[32];
  read_all(checkpoint, "w", bytes);
  for (int i = 0; i < 15; i++)
    assert_int_equal(bytes[i], scratch_byte((size_t)(i % 6), 1 + i / 6));
  read_all(checkpoint, "s", bytes);
  assert_int_equal(bytes[3], scratch_byte(9, 1));
  reshard_checkpoint_close(checkpoint);
}

/* A set whose files say nothing of replicas: equal boxes are read once. */
CASE(equal_boxes_are_read_once) {
  scratch_directory("d");
  write_shard("d/0.safetensors", "[2]", 2, "[0]", NULL, 1);
  write_shard("d/1.safetensors", "[2]", 2, "[0]", NULL, 2);
  write_shard("d/2.safetensors", "[3]", 3, "[2]", NULL, 3);
  reshard_checkpoint checkpoint = scratch_open("d");
  check_layout(checkpoint, "w", "boxes(replicated;0:[0]+[2];1:[0]+[2];2:[2]+[3])");
  assert_int_equal(info_of(checkpoint).stored_bytes, 7);
  assert_int_equal(info_of(checkpoint).bytes, 5);
  unsigned char bytes[8];
  read_all(checkpoint, "w", bytes);
  assert_int_equal(bytes[0], scratch_byte(0, 1));
  assert_int_equal(bytes[4], scratch_byte(2, 3));
  assert_int_equal(checkpoint->store.tensors.at[0].count, 2);
  assert_null(rs_store_find(&checkpoint->store, 0, 1, 0));
  reshard_checkpoint_close(checkpoint);
  GOOD(rs_checkpoint_open(scratch_path("d"), &(rs_checkpoint_options){.gaps_allowed = true}, &checkpoint));
  assert_int_equal(checkpoint->store.tensors.at[0].count, 3);
  assert_non_null(rs_store_find(&checkpoint->store, 0, 1, 0));
  reshard_checkpoint_close(checkpoint);
}

CASE(gaps_and_overlaps_are_named) {
  static const struct {
    const char *shape;
    size_t bytes;
    const char *offsets, *first, *second;
  } cases[] = {
      {"[2]", 2, "[3]", "no box holds [2,3)", "'w'"},
      {"[3]", 3, "[1]", "overlap at [1,2)", "'w'"},
      {"[0]", 0, "[3]", "no box holds [2,3)", "'w'"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    scratch_directory("d");
    write_shard("d/0.safetensors", "[2]", 2, "[0]", NULL, 1);
    write_shard("d/1.safetensors", cases[i].shape, cases[i].bytes, cases[i].offsets, NULL, 2);
    scratch_refused("d", RESHARD_ERROR_INVALID, cases[i].first, cases[i].second);
    reshard_checkpoint checkpoint;
    GOOD(rs_checkpoint_open(scratch_path("d"), &(rs_checkpoint_options){.gaps_allowed = true}, &checkpoint));
    assert_int_equal(checkpoint->store.tensors.at[0].count, cases[i].bytes > 0 ? 2 : 1);
    reshard_checkpoint_close(checkpoint);
  }
  scratch_remove("d/1.safetensors"); /* one file alone is a set too */
  reshard_checkpoint checkpoint = scratch_open("d/0.safetensors");
  assert_int_equal(info_of(checkpoint).format, RESHARD_FORMAT_SHARDS);
  reshard_checkpoint_close(checkpoint);
  write_shard("d/0.safetensors", "[2]", 2, "[3]", NULL, 1);
  scratch_refused("d/0.safetensors", RESHARD_ERROR_INVALID, "no box holds [0,3)", "'w'");
}

static void refused_shard(const char *shape, size_t bytes, const char *offsets, const char *first, const char *second) {
  scratch_directory("d");
  write_shard("d/0.safetensors", "[2,3]", 6, "[0,0]", NULL, 1);
  write_shard("d/1.safetensors", shape, bytes, offsets, NULL, 2);
  scratch_refused("d", RESHARD_ERROR_INVALID, first, second);
}

CASE(test_bad_offsets) {
  refused_shard("[2,3]", 6, "[2]", "1 saved_offsets", "1.safetensors'");
  refused_shard("[2,3]", 6, "[2,0,0]", "3 saved_offsets", "'w'");
  refused_shard("[2,3]", 6, "[-2,0]", "saved_offsets[0]", "0 or more");
  refused_shard("[2,3]", 6, "[2,\"0\"]", "saved_offsets[1]", "'w'");
  refused_shard("[2,3]", 6, "[2.0,0]", "saved_offsets[0]", "'w'");
  refused_shard("[2,3]", 6, "{}", "saved_offsets", "'w'");
  refused_shard("[2,3]", 6, "[9223372036854775807,0]", "overflows", "9223372036854775807");
  refused_shard("[2,3]", 6, "[9223372036854775805,0]", "overflow", "'w'"); /* a shape of too many elements */
  refused_shard("[2,3]", 6, "[99999999999999999999,0]", "DCP_SHARDING_INFO", "line 1");
  refused_shard("[2]", 2, "[2]", "1 dims", "0.safetensors' it has 2");
  scratch_directory("d");
  write_shard("d/0.safetensors", "[2]", 2, "[0]", NULL, 1);
  write_shards("d/1.safetensors", T("w", "I8", "[2]", "[0,2]"), "{\"w\": {\"saved_offsets\": [2]}}", NULL, 2, 0);
  scratch_refused("d", RESHARD_ERROR_INVALID, "is i8", "0.safetensors' it is u8");
  write_shards("d/1.safetensors", T("w", "U8", "[2]", "[0,2]"), "{\"v\": {\"saved_offsets\": [2]}}", NULL, 2, 0);
  scratch_refused("d", RESHARD_ERROR_INVALID, "saved_offsets", "'w'");
  write_shards("d/1.safetensors", T("w", "U8", "[2]", "[0,2]"), "[]", NULL, 2, 0);
  scratch_refused("d", RESHARD_ERROR_INVALID, "DCP_SHARDING_INFO", "no JSON object");
  write_shards("d/1.safetensors", T("w", "U8", "[2]", "[0,2]"), "{", NULL, 2, 0);
  scratch_refused("d", RESHARD_ERROR_INVALID, "DCP_SHARDING_INFO", "line 1");
  write_shards("d/1.safetensors", T("w", "U8", "[2]", "[0,2]"), NULL, NULL, 2, 0);
  scratch_refused("d", RESHARD_ERROR_INVALID, "'0.safetensors' is one of shards", "'1.safetensors' is not");
}

/* Metadata as this library writes it. %s: files. */
#define SET(world, files, shape, layout) \
  "{\"version\":1,\"world\":" world ",\"files\":[" files "],\"shapes\":{\"w\":" shape "},\"layout\":{\"w\":\"" layout \
  "\"}}"
#define AB   "\"a.safetensors\",\"b.safetensors\""
#define ROWS SET("4", AB, "[4,3]", "mesh(2@3,1;S0)")

static void write_rows(const char *first, const char *second) {
  scratch_directory("d");
  write_shard("d/a.safetensors", "[2,3]", 6, "[0,0]", first, 1);
  write_shard("d/b.safetensors", "[2,3]", 6, "[2,0]", second, 2);
}

static void refused_set(const char *text, const char *first, const char *second) {
  write_rows(text, text);
  scratch_refused("d", RESHARD_ERROR_INVALID, first, second);
}

CASE(described_sets_keep_layout_and_world) {
  write_rows(ROWS, ROWS);
  reshard_checkpoint checkpoint = scratch_open("d");
  assert_int_equal(info_of(checkpoint).described, 1);
  assert_int_equal(info_of(checkpoint).world, 4);
  check_layout(checkpoint, "w", "boxes(1:[2,0]+[2,3];3:[0,0]+[2,3])"); /* ranks by the layout, not by the names */
  unsigned char bytes[16];
  read_all(checkpoint, "w", bytes);
  for (int i = 0; i < 12; i++)
    assert_int_equal(bytes[i], scratch_byte((size_t)(i % 6), 1 + i / 6));
  reshard_checkpoint_close(checkpoint);

  /* The same in other words. */
  write_rows(ROWS,
             "{\"shapes\": {\"w\": [4, 3]}, \"layout\": {\"w\": \"mesh(2@3,1;S0)\"}, \"world\": 4, \"version\": 1, "
             "\"files\": [" AB "]}");
  reshard_checkpoint_close(scratch_open("d"));

  write_rows(ROWS, NULL);
  scratch_refused("d", RESHARD_ERROR_INVALID, "'a.safetensors' has reshard metadata", "'b.safetensors' has none");
  write_rows(ROWS, SET("5", AB, "[4,3]", "mesh(2@3,1;S0)"));
  scratch_refused("d", RESHARD_ERROR_INVALID, "'a.safetensors' and 'b.safetensors'", "\"world\"");
  write_rows(ROWS, SET("4", "\"a.safetensors\"", "[4,3]", "mesh(2@3,1;S0)"));
  scratch_refused("d", RESHARD_ERROR_INVALID, "'a.safetensors' and 'b.safetensors'", "\"files\"");
  write_rows(ROWS, SET("4", AB, "[4,4]", "mesh(2@3,1;S0)"));
  scratch_refused("d", RESHARD_ERROR_INVALID, "'a.safetensors' and 'b.safetensors'", "\"shapes\"");
  write_rows(ROWS, SET("4", AB, "[4,3]", "mesh(2@3,2;S0)"));
  scratch_refused("d", RESHARD_ERROR_INVALID, "'a.safetensors' and 'b.safetensors'", "\"layout\"");
  write_rows(ROWS, "{\"version\":2}");
  scratch_refused("d", RESHARD_ERROR_UNSUPPORTED, "version 2", "b.safetensors'");
}

CASE(test_bad_sets) {
  refused_set("", "reshard metadata", "line 1");
  refused_set("[]", "reshard metadata", "version");
  refused_set("{\"version\":\"1\"}", "version", "reshard metadata");
  refused_set("{\"version\":1}", "world", "reshard metadata");
  refused_set("{\"version\":1,\"world\":2,\"intervals\":3}", "intervals", "reshard metadata");
  refused_set(SET("0", AB, "[4,3]", "mesh(2;S0)"), "world", "1048576");
  refused_set(SET("99999999", AB, "[4,3]", "mesh(2;S0)"), "world", "1048576");
  refused_set(SET("\"2\"", AB, "[4,3]", "mesh(2;S0)"), "world", "");
  refused_set(SET("1", AB, "[4,3]", "mesh(2;S0)"), "'w'", "world");
  refused_set(SET("2", AB ",\"c.safetensors\"", "[4,3]", "mesh(2;S0)"), "'c.safetensors' is missing", "names 3 files");
  refused_set(SET("2", AB ",\"a.safetensors\"", "[4,3]", "mesh(2;S0)"), "'a.safetensors' is missing", "names 3 files");
  refused_set(SET("2", "\"a.safetensors\"", "[4,3]", "mesh(2;S0)"), "'b.safetensors' is none of the set", "names 1");
  refused_set(SET("2", "3", "[4,3]", "mesh(2;S0)"), "\"files\"", "no string");
  refused_set("{\"version\":1,\"world\":2,\"files\":3}", "\"files\"", "no list");
  refused_set("{\"version\":1,\"world\":2,\"files\":[" AB "]}", "\"shapes\"", "no object");
  refused_set("{\"version\":1,\"world\":2,\"files\":[" AB "],\"shapes\":{}}", "\"layout\"", "no object");
  refused_set("{\"version\":1,\"world\":2,\"files\":[" AB "],\"shapes\":{},\"layout\":{}}", "'w'",
              "not in its reshard metadata");
  refused_set("{\"version\":1,\"world\":2,\"files\":[" AB "],\"shapes\":{\"w\":[4,3]},\"layout\":{}}", "1 shapes",
              "0 layouts");
  refused_set("{\"version\":1,\"world\":2,\"files\":[" AB "],\"shapes\":{\"w\":[4,3]},\"layout\":{\"v\":\"\"}}", "'w'",
              "no layout");
  refused_set("{\"version\":1,\"world\":2,\"files\":[" AB
              "],\"shapes\":{\"w\":[4,3],\"v\":[2]},\"layout\":{\"w\":\"mesh(2;S0)\",\"v\":\"chunk(0)\"}}",
              "'v'", "in no file");
  refused_set(SET("2", AB, "[4,-3]", "mesh(2;S0)"), "'w'", "0 or more");
  refused_set(SET("2", AB, "[1,1,1,1,1,1,1,1,1]", "mesh(2;S0)"), "'w'", "at most 8");
  refused_set(SET("2", AB, "[4294967296,4294967296]", "mesh(2;S0)"), "'w'", "overflows");
  refused_set(SET("2", AB, "[4,3]", "mush(2;S0)"), "'w'", "mush");
  refused_set(SET("2", AB, "[4,3]", "boxes(@/dev/zero)"), "'w'", "another file");
  refused_set(SET("2", AB, "[4,3]", "boxes(replicated;@/dev/zero)"), "'w'", "another file");
  refused_set(SET("2", AB, "[12]", "mesh(2;S0)"), "2 dims", "it has 1");
  refused_set(SET("2", AB, "[3,3]", "mesh(2;S0)"), "saved offset 2", "which has 3");
  refused_set(SET("2", AB, "[5,3]", "mesh(2;S0)"), "no box holds [4,5)", "'w'"); /* the end is not inferred */
  refused_set(SET("2", AB, "[4,3]", "boxes(0:[0,0]+[2,3];1:[2,1]+[2,2])"), "[2,4)x[0,3)", "no box of the layout");
  refused_set(SET("3", AB, "[4,3]", "flat()"), "[0,2)x[0,3)", "no box of the layout");
}

/* Shards of one rank in several files, replicas in any order of names, and a rank that has nothing. */
CASE(shards_of_one_rank_may_be_in_several_files) {
  /* StridedShard(0, 3) over 2 of 6 elements: rows 0, 2, 4 on ranks 4 and 1; 1, 3, 5 on ranks 2 and 0. */
  static const int at[2][6] = {{0, 2, 4, 1, 3, 5}, {5, 3, 1, 4, 2, 0}};
  for (int order = 0; order < 2; order++) {
    char name[64], offsets[64], set[1024], files[768] = "";
    scratch_directory("d");
    for (int f = 0; f < 12; f++)
      sprintf(files + strlen(files), "%s\"%02d.safetensors\"", f > 0 ? "," : "", f);
    snprintf(set, sizeof set,
             "{\"version\":1,\"world\":5,\"files\":[%s],\"shapes\":{\"w\":[6]},\"layout\":{\"w\":"
             "\"mesh(2x2@4,1,2,0;S0*3,R)\"}}",
             files);
    for (int f = 0; f < 12; f++) {
      snprintf(name, sizeof name, "d/%02d.safetensors", f);
      snprintf(offsets, sizeof offsets, "[%d]", at[order][f % 6]);
      write_shard(name, "[1]", 1, offsets, set, at[order][f % 6]);
    }
    reshard_checkpoint checkpoint = scratch_open("d");
    check_layout(checkpoint, "w",
                 order == 0 ? "boxes(replicated;0:[1]+[1];0:[3]+[1];0:[5]+[1];1:[0]+[1];1:[2]+[1];1:[4]+[1];"
                              "2:[1]+[1];2:[3]+[1];2:[5]+[1];4:[0]+[1];4:[2]+[1];4:[4]+[1])"
                            : "boxes(replicated;0:[5]+[1];0:[3]+[1];0:[1]+[1];1:[4]+[1];1:[2]+[1];1:[0]+[1];"
                              "2:[5]+[1];2:[3]+[1];2:[1]+[1];4:[4]+[1];4:[2]+[1];4:[0]+[1])");
    unsigned char bytes[8];
    read_all(checkpoint, "w", bytes);
    for (int i = 0; i < 6; i++)
      assert_int_equal(bytes[i], scratch_byte(0, i));
    reshard_checkpoint_close(checkpoint);
  }
}

/* Arrays stored whole. Rows 0, 2 and 1, 3 of 4 x 3, by ranks 0 and 1. */
#define INTERVALS(runs) \
  "{\"version\":1,\"world\":2,\"files\":[" AB "],\"shapes\":{\"w\":[4,3]},\"layout\":{\"w\":\"cyclic(2x1;1x3)\"}," \
  "\"intervals\":{\"w\":" runs "}}"
#define EVEN INTERVALS("[[[0,1],[2,3]],[[0,3]]]")
#define ODD  INTERVALS("[[[1,2],[3,4]],[[0,3]]]")

static void write_arrays(const char *first, const char *second, const char *offsets) {
  scratch_directory("d");
  write_shard("d/a.safetensors", "[2,3]", 6, offsets, first, 1);
  write_shard("d/b.safetensors", "[2,3]", 6, "[0,0]", second, 2);
}

CASE(test_whole_arrays) {
  write_arrays(ODD, EVEN, "[1,0]");
  reshard_checkpoint checkpoint = scratch_open("d");
  check_layout(checkpoint, "w", "cyclic(2x1@0-1;1x3)");
  unsigned char bytes[16];
  read_all(checkpoint, "w", bytes);
  for (int i = 0; i < 12; i++)
    assert_int_equal(bytes[i], scratch_byte((size_t)(i / 6 * 3 + i % 3), i / 3 % 2 == 0 ? 2 : 1));
  reshard_checkpoint_close(checkpoint);

  static const char *const wrong[] = {
      "[[[1,2]],[[0,3]]]",       "[[[1,2],[3,4]],[[0,2]]]",       "[[[1,2],[3,5]],[[0,3]]]",
      "[[[3,4],[1,2]],[[0,3]]]", "[[[1,2],[3,4]],[[0,3],[3,3]]]", "[[[1,3]],[[0,3]]]"};
  char text[1024];
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
    snprintf(text, sizeof text, INTERVALS("%s"), wrong[i]);
    write_arrays(text, EVEN, "[1,0]");
    scratch_refused("d", RESHARD_ERROR_INVALID, "a.safetensors': tensor 'w'", "the intervals are not those");
  }
  static const char *const malformed[] = {"[[[1,2],[3,4]]]", "3", "[[[1],[3,4]],[[0,3]]]", "[[[1,2.5]],[[0,3]]]",
                                          "[3,[[0,3]]]"};
  for (size_t i = 0; i < sizeof malformed / sizeof *malformed; i++) {
    snprintf(text, sizeof text, INTERVALS("%s"), malformed[i]);
    write_arrays(text, EVEN, "[1,0]");
    scratch_refused("d", RESHARD_ERROR_INVALID, "a.safetensors': tensor 'w'", "inter");
  }
  write_arrays(ODD, EVEN, "[3,0]"); /* of the same array, but not its first */
  scratch_refused("d", RESHARD_ERROR_INVALID, "saved offset 3", "which has 4");
  write_arrays(EVEN, EVEN, "[0,0]");
  scratch_refused("d", RESHARD_ERROR_INVALID, "more files have its boxes", "than its layouts have ranks");
  write_arrays(ODD, EVEN, "[0,0]");
  scratch_refused("d", RESHARD_ERROR_INVALID, "more files have its boxes", "than its layouts have ranks");
  scratch_directory("d");
  write_shard("d/a.safetensors", "[2,3]", 6, "[1,0]", SET("2", AB, "[4,3]", "cyclic(2x1;1x3)"), 1);
  write_shard("d/b.safetensors", "[2,3]", 6, "[0,0]", EVEN, 2);
  scratch_refused("d", RESHARD_ERROR_INVALID, "[1,3)x[0,3) is no box", "rank 1");
  write_shards("d/a.safetensors", T("v", "U8", "[2]", "[0,2]"), "{\"v\": {\"saved_offsets\": [0]}}", ODD, 2, 1);
  scratch_refused("d", RESHARD_ERROR_INVALID, "'v'", "not in its reshard metadata");
  write_shards("d/a.safetensors", "", "{}", ODD, 0, 1);
  scratch_refused("d", RESHARD_ERROR_INVALID, "a.safetensors'", "not in the file");
  write_shards("d/a.safetensors", "", "{}", SET("2", AB, "[4,3]", "cyclic(2x1;1x3)"), 0, 1);
  scratch_refused("d", RESHARD_ERROR_INVALID, "'w'", "6 of 12 elements are in no file");
  GOOD(rs_checkpoint_open(scratch_path("d"), &(rs_checkpoint_options){.gaps_allowed = true}, &checkpoint));
  assert_int_equal(checkpoint->store.tensors.at[0].count, 1);
  reshard_checkpoint_close(checkpoint);
}

/* One rank's array is stored whole, the other's in boxes of its own files. */
CASE(test_mixed_arrays) {
#define ABC AB ",\"c.safetensors\""
#define MIXED(more) \
  "{\"version\":1,\"world\":2,\"files\":[" ABC "],\"shapes\":{\"w\":[4,3]},\"layout\":{\"w\":" \
  "\"cyclic(2x1;1x3)\"}" more "}"
  static const char plain[] = MIXED(""), whole[] = MIXED(",\"intervals\":{\"w\":[[[0,1],[2,3]],[[0,3]]]}");
  scratch_directory("d");
  write_shard("d/a.safetensors", "[1,3]", 3, "[3,0]", plain, 1);
  write_shard("d/b.safetensors", "[1,3]", 3, "[1,0]", plain, 2);
  write_shard("d/c.safetensors", "[2,3]", 6, "[0,0]", whole, 3);
  reshard_checkpoint checkpoint = scratch_open("d");
  unsigned char bytes[16];
  read_all(checkpoint, "w", bytes);
  for (int x = 0; x < 3; x++) {
    assert_int_equal(bytes[x], scratch_byte((size_t)x, 3));
    assert_int_equal(bytes[3 + x], scratch_byte((size_t)x, 2));
    assert_int_equal(bytes[6 + x], scratch_byte((size_t)(3 + x), 3));
    assert_int_equal(bytes[9 + x], scratch_byte((size_t)x, 1));
  }
  reshard_checkpoint_close(checkpoint);
  write_shard("d/b.safetensors", "[1,2]", 2, "[1,0]", plain, 2);
  scratch_refused("d", RESHARD_ERROR_INVALID, "b.safetensors'", "is no box");
  write_shard("d/b.safetensors", "[0,3]", 0, "[1,0]", plain, 2);
  scratch_refused("d", RESHARD_ERROR_INVALID, "1 blocks of rank 1", "has 2");
}

CASE(files_touched_after_opening_are_noticed) {
  write_rows(ROWS, ROWS);
  reshard_checkpoint checkpoint = scratch_open("d");
  GOOD(rs_checkpoint_unchanged(checkpoint));
  struct timespec later[2] = {{1, 0}, {4102444800, 0}};
  assert_int_equal(utimensat(AT_FDCWD, scratch_path("d/b.safetensors"), later, 0), 0);
  FAILS_WITH(rs_checkpoint_unchanged(checkpoint), RESHARD_ERROR_SYSTEM, "b.safetensors' changed");
  assert_int_equal(truncate(scratch_path("d/a.safetensors"), 100), 0);
  FAILS_WITH(rs_checkpoint_unchanged(checkpoint), RESHARD_ERROR_SYSTEM, "a.safetensors' changed");
  assert_non_null(strstr(reshard_last_error(), "100 now"));
  unsigned char bytes[16], *buffer = bytes;
  reshard_layout layout;
  static const int64_t shape[2] = {4, 3};
  GOOD(reshard_layout_create_single(2, shape, 1, 0, &layout));
  FAILS_WITH(reshard_checkpoint_read(checkpoint, 0, layout, 0, 1, (void *const *)&buffer), RESHARD_ERROR_SYSTEM,
             "a.safetensors'");
  reshard_layout_release(layout);
  reshard_checkpoint_close(checkpoint);
}

/* A file of ours cut off after every byte. */
CASE(file_cut_after_any_byte_is_refused) {
  write_rows(ROWS, ROWS);
  size_t size;
  char *bytes = scratch_read("d/a.safetensors", &size);
  for (size_t n = 0; n < size; n++) {
    scratch_write("d/a.safetensors", bytes, n);
    scratch_refused("d", RESHARD_ERROR_INVALID, "a.safetensors'", "");
  }
  free(bytes);
}

/* Maps a tensor of bytes. */
static const void *map_of(reshard_checkpoint checkpoint, const char *name) {
  const void *data = &data;
  int64_t i;
  GOOD(reshard_checkpoint_find(checkpoint, name, &i));
  GOOD(reshard_checkpoint_map(checkpoint, i, &data));
  return data;
}

/* Of a page and more, at no multiple of a page, and nothing. The file is another one by then; and the checkpoint is
 * closed. */
CASE(maps_are_of_the_file_that_was_opened) {
  static const char header[] = "{" T("big", "U8", "[3,3000]", "[5,9005]") "," T("small", "U8", "[5]", "[0,5]") "," T(
      "none", "U8", "[0,7]", "[9005,9005]") "," T("last", "U8", "[2]", "[9005,9007]") "}";
  static const struct {
    const char *name;
    size_t begin, bytes;
  } tensors[] = {{"big", 5, 9000}, {"small", 0, 5}, {"last", 9005, 2}};
  const void *data[3];
  scratch_safetensors("m.safetensors", header, 9007, 1);
  scratch_safetensors("other.safetensors", header, 9007, 2);
  reshard_checkpoint checkpoint = scratch_open("m.safetensors");
  assert_int_equal(rename(scratch_path("other.safetensors"), scratch_path("m.safetensors")), 0);
  for (int i = 0; i < 3; i++)
    data[i] = map_of(checkpoint, tensors[i].name);
  assert_null(map_of(checkpoint, "none"));
  reshard_checkpoint_close(checkpoint);
  for (int i = 0; i < 3; i++) {
    for (size_t b = 0; b < tensors[i].bytes; b++)
      assert_int_equal(((const unsigned char *)data[i])[b], scratch_byte(tensors[i].begin + b, 1));
    reshard_checkpoint_unmap(data[i], tensors[i].bytes);
  }
  reshard_checkpoint_unmap(NULL, 0);
}

static void refuse_map(const char *name, const char *tensor, const char *text) {
  const void *data = name;
  int64_t i;
  reshard_checkpoint checkpoint = scratch_open(name);
  GOOD(reshard_checkpoint_find(checkpoint, tensor, &i));
  FAILS_WITH(reshard_checkpoint_map(checkpoint, i, &data), RESHARD_ERROR_UNSUPPORTED, text);
  assert_ptr_equal(data, name);
  reshard_checkpoint_close(checkpoint);
}

CASE(what_no_piece_has_whole_is_not_mapped) {
  write_rows(ROWS, ROWS);
  refuse_map("d", "w", "tensor 'w' lies in 2 pieces, none of them whole: read it");
  reshard_checkpoint checkpoint = scratch_open("d");
  const void *data;
  FAILS_WITH(reshard_checkpoint_map(checkpoint, 1, &data), RESHARD_ERROR_INVALID, "tensor 1 of a checkpoint with 1");
  reshard_checkpoint_close(checkpoint);
  scratch_safetensors("m.safetensors", "{" T("w", "U8", "[5000]", "[0,5000]") "}", 5000, 1);
  checkpoint = scratch_open("m.safetensors");
  assert_int_equal(truncate(scratch_path("m.safetensors"), 4096), 0);
  FAILS_WITH(reshard_checkpoint_map(checkpoint, 0, &data), RESHARD_ERROR_SYSTEM, " when it was opened, 4096 now");
  reshard_checkpoint_close(checkpoint);
}

RUN_JSON_CASES(scratch_setup, scratch_teardown)
