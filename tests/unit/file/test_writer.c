/* Writers: what is in the files, byte for byte as the Python packages have it, and what is refused. */
#include "support/fixtures/scratch.h"

#include "file/write/writer.h"
#include "support/fixtures/case.h"
#include "support/fixtures/expect.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A tensor that is to be written: element e has bytes of scratch_byte from seed 0, at its global row-major number. */
typedef struct wanted {
  const char *name;
  reshard_dtype dtype;
  int ndim;
  int64_t shape[3];
  const char *layout;
} wanted;

enum { MOST = 16 };

static int64_t make_tensors(int64_t n, const wanted *wanted, int64_t world, reshard_writer_tensor *tensors) {
  for (int64_t i = 0; i < n; i++) {
    tensors[i] = (reshard_writer_tensor){wanted[i].name, wanted[i].dtype, NULL};
    if (reshard_layout_parse(wanted[i].layout, wanted[i].ndim, wanted[i].shape, world, &tensors[i].layout) !=
        RESHARD_SUCCESS)
      fail_msg("%s: %s", wanted[i].layout, reshard_last_error());
  }
  return n;
}

static void release_layouts(int64_t n, reshard_writer_tensor *tensors) {
  for (int64_t i = 0; i < n; i++)
    reshard_layout_release(tensors[i].layout);
}

static reshard_status create_writer(const char *name, int64_t n, const wanted *wanted, int64_t world,
                                    reshard_writer_options options, reshard_writer *writer) {
  reshard_writer_tensor tensors[MOST];
  options.size = RESHARD_WRITER_OPTIONS_INIT;
  make_tensors(n, wanted, world, tensors);
  reshard_status status = reshard_writer_create(scratch_path(name), n, tensors, &options, writer);
  release_layouts(n, tensors);
  return status;
}

/* Global row-major number of element e of an array. */
static int64_t element_of(reshard_layout layout, int64_t rank, int64_t array, const reshard_array_info *info,
                          int64_t e) {
  int64_t at = 0, stride = 1;
  for (int d = reshard_layout_ndim(layout) - 1; d >= 0; d--) {
    int64_t local = e % info->shape[d], count;
    reshard_interval runs[128];
    GOOD(reshard_layout_array_intervals(layout, rank, array, d, 0, 128, runs, &count));
    int64_t r = 0;
    for (; local >= runs[r].end - runs[r].begin; r++)
      local -= runs[r].end - runs[r].begin;
    at += (runs[r].begin + local) * stride;
    stride *= reshard_layout_shape(layout)[d];
    e /= info->shape[d];
  }
  return at;
}

static void put_rank(reshard_writer writer, int64_t i, const wanted *w, int64_t world, int64_t rank) {
  reshard_layout layout;
  size_t width = reshard_dtype_size(w->dtype);
  GOOD(reshard_layout_parse(w->layout, w->ndim, w->shape, world, &layout));
  unsigned char *memory[MOST] = {NULL};
  int64_t arrays, elements;
  for (int64_t b = 0; b < MOST; b++)
    if (reshard_layout_buffer_elements(layout, rank, b, &elements) == RESHARD_SUCCESS)
      memory[b] = malloc((size_t)elements * width + 1);
  GOOD(reshard_layout_array_count(layout, rank, &arrays));
  for (int64_t a = 0; a < arrays; a++) {
    reshard_array_info info;
    GOOD(reshard_layout_array(layout, rank, a, &info));
    for (int64_t e = 0; e < info.elements; e++)
      for (size_t x = 0; x < width; x++)
        memory[info.buffer][(size_t)(info.offset + e) * width + x] =
            scratch_byte((size_t)element_of(layout, rank, a, &info, e) * width + x, 0);
  }
  if (reshard_writer_put(writer, i, rank, (const void *const *)memory) != RESHARD_SUCCESS)
    fail_msg("%s: %s", w->name, reshard_last_error());
  for (int64_t b = 0; b < MOST; b++)
    free(memory[b]);
  reshard_layout_release(layout);
}

static void write_all(const char *name, int64_t n, const wanted *wanted, int64_t world,
                      reshard_writer_options options) {
  reshard_writer writer;
  if (create_writer(name, n, wanted, world, options, &writer) != RESHARD_SUCCESS)
    fail_msg("%s: %s", name, reshard_last_error());
  for (int64_t i = 0; i < n; i++)
    for (int64_t rank = 0; rank < world; rank++)
      put_rank(writer, i, &wanted[i], world, rank);
  if (reshard_writer_commit(writer) != RESHARD_SUCCESS)
    fail_msg("%s: %s", name, reshard_last_error());
}

/* A file is this text, and then the bytes of these seeds. */
static void check_file(const char *name, const char *head, size_t n, size_t data) {
  size_t size;
  unsigned char *bytes = scratch_read(name, &size);
  assert_int_equal(size, n + data);
  if (memcmp(bytes, head, n) != 0)
    fail_msg("%s: '%.*s', not '%.*s'", name, (int)n - 8, (const char *)bytes + 8, (int)n - 8, head + 8);
  for (size_t i = 0; i < data; i++)
    assert_int_equal(bytes[n + i], scratch_byte(i, 0));
  free(bytes);
}

CASE(npy_files_are_those_of_numpy) {
  static const struct {
    wanted what;
    const char *header;
    int spaces;
  } cases[] = {
      /* numpy.save of numpy 2.4 */
      {{"a", RESHARD_F32, 2, {3, 4}, "rank(0)"}, "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }", 58},
      {{"a", RESHARD_U8, 1, {7}, "flat(1)"}, "{'descr': '|u1', 'fortran_order': False, 'shape': (7,), }", 60},
      {{"a", RESHARD_C128, 0, {0}, "rank(1)"}, "{'descr': '<c16', 'fortran_order': False, 'shape': (), }", 61},
      {{"a", RESHARD_BOOL, 3, {0, 2, 1000000000000}, "chunk(1)"},
       "{'descr': '|b1', 'fortran_order': False, 'shape': (0, 2, 1000000000000), }",
       43},
      {{"a", RESHARD_I64, 2, {3, 5}, "cyclic(1x1@1;2x2)"},
       "{'descr': '<i8', 'fortran_order': False, 'shape': (3, 5), }",
       58},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    char head[256] = "\x93NUMPY\1\0v";
    int n = 10 + snprintf(head + 10, sizeof head - 10, "%s%*s\n", cases[i].header, cases[i].spaces, "");
    assert_int_equal(n, 128);
    const wanted *w = &cases[i].what;
    int64_t elements = 1;
    for (int d = 0; d < w->ndim; d++)
      elements *= w->shape[d];
    write_all("a.npy", 1, w, 2, (reshard_writer_options){.force = 1});
    check_file("a.npy", head, 128, (size_t)elements * reshard_dtype_size(w->dtype));
  }
  assert_string_equal(scratch_list(""), "a.npy");
  scratch_remove("a.npy");
}

CASE(safetensors_files_are_those_of_python) {
  static const wanted tensors[] = {{"w.10", RESHARD_F32, 1, {2}, "rank(0)"},
                                   {"w.9", RESHARD_F32, 0, {0}, "mesh(3;R)"},
                                   {"\xc3\xa9\"\\\x1f", RESHARD_U8, 1, {3}, "rank(2)"},
                                   {"none", RESHARD_I64, 2, {0, 4}, "chunk(1)"},
                                   {"half", RESHARD_BF16, 2, {1, 1}, "boxes(replicated;1:[0,0]+[1,1];2:[0,0]+[1,1])"}};
  /* safetensors 0.8, metadata {"format": "pt"} */
  static const char expected[] =
      "\x48\1\0\0\0\0\0\0{\"__metadata__\":{\"format\":\"pt\"},\"none\":{\"dtype\":\"I64\",\"shape\":[0,4],\"data_"
      "offsets\":[0,0]},"
      "\"w.10\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
      "\"w.9\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[8,12]},"
      "\"half\":{\"dtype\":\"BF16\",\"shape\":[1,1],\"data_offsets\":[12,14]},"
      "\"\xc3\xa9\\\"\\\\\\u001f\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[14,17]}} ";
  write_all("a.safetensors", 5, tensors, 3, (reshard_writer_options){.no_digests = 1});
  size_t size, head = sizeof expected - 1;
  unsigned char *bytes = scratch_read("a.safetensors", &size);
  assert_int_equal(size, head + 17);
  assert_memory_equal(bytes, expected, head);
  static const size_t begin[] = {0, 8, 12, 14, 17};
  for (int t = 0; t < 4; t++)
    for (size_t i = begin[t]; i < begin[t + 1]; i++)
      assert_int_equal(bytes[head + i], scratch_byte(i - begin[t], 0));
  free(bytes);
  scratch_remove("a.safetensors");

  write_all("none.safetensors", 0, NULL, 1, (reshard_writer_options){.no_digests = 1});
  check_file("none.safetensors", " \0\0\0\0\0\0\0{\"__metadata__\":{\"format\":\"pt\"}}", 40, 0);
  scratch_remove("none.safetensors");

  /* the order of the data: dtypes as safetensors sorts them, then names by their bytes */
  static const reshard_dtype order[] = {RESHARD_U64,     RESHARD_I64,     RESHARD_F64, RESHARD_C64,
                                        RESHARD_F32,     RESHARD_U32,     RESHARD_I32, RESHARD_BF16,
                                        RESHARD_F16,     RESHARD_U16,     RESHARD_I16, RESHARD_F8_E8M0,
                                        RESHARD_F8_E4M3, RESHARD_F8_E5M2, RESHARD_I8,  RESHARD_U8};
  wanted many[MOST];
  char names[MOST][8];
  for (int i = 0; i < MOST; i++) {
    snprintf(names[i], sizeof names[i], "t%d", i);
    many[(i * 5 + 3) % MOST] = (wanted){names[i], order[i], 1, {1}, "rank(0)"};
  }
  write_all("b.safetensors", MOST, many, 1, (reshard_writer_options){0});
  bytes = scratch_read("b.safetensors", &size);
  const char *at = (const char *)bytes + 8;
  for (int i = 0; i < MOST; i++) {
    char key[16];
    snprintf(key, sizeof key, "\"t%d\":", i);
    const char *found = strstr((const char *)bytes + 8, key);
    assert_true(found > at);
    at = found;
  }
  free(bytes);
  scratch_remove("b.safetensors");
}

CASE(index_cuts_files_at_the_bytes_said) {
  static const wanted tensors[] = {{"b", RESHARD_F32, 1, {50}, "rank(0)"},
                                   {"large", RESHARD_F32, 1, {1000}, "rank(0)"},
                                   {"a\xc3\xa9", RESHARD_F32, 1, {50}, "rank(0)"},
                                   {"c", RESHARD_F32, 1, {100}, "rank(0)"}};
  write_all("whole", 4, tensors, 1, (reshard_writer_options){.index_bytes = 850, .no_digests = 1});
  assert_string_equal(scratch_list("whole"), "model-00001-of-00003.safetensors model-00002-of-00003.safetensors "
                                             "model-00003-of-00003.safetensors model.safetensors.index.json");
  static const char index[] = "{\n  \"metadata\": {\n    \"total_size\": 4800\n  },\n  \"weight_map\": {\n"
                              "    \"a\\u00e9\": \"model-00001-of-00003.safetensors\",\n"
                              "    \"b\": \"model-00001-of-00003.safetensors\",\n"
                              "    \"c\": \"model-00003-of-00003.safetensors\",\n"
                              "    \"large\": \"model-00002-of-00003.safetensors\"\n  }\n}\n";
  check_file("whole/model.safetensors.index.json", index, sizeof index - 1, 0);
  size_t size;
  unsigned char *bytes = scratch_read("whole/model-00001-of-00003.safetensors", &size);
  assert_true(size <= 850);
  free(bytes);
  reshard_checkpoint checkpoint = scratch_open("whole");
  reshard_checkpoint_info info;
  GOOD(reshard_checkpoint_get_info(checkpoint, &info));
  assert_true(info.format == RESHARD_FORMAT_WHOLE && info.tensors == 4 && info.files == 3 && info.bytes == 4800);
  reshard_checkpoint_close(checkpoint);
  scratch_remove("whole");
}

#define NAME(r, j, k) "shard-0000" r "-model-0000" j "-of-0000" k ".safetensors"

/* Header and data of one file of shards; the "reshard" text is told with its quotes escaped once. */
static void check_shard(const char *name, const char *sharding, const char *reshard, const char *entries) {
  char path[128], text[16384], escaped[4096];
  size_t size, n = 0;
  for (const char *c = reshard; *c != '\0'; c++) {
    if (*c == '"' || *c == '\\')
      escaped[n++] = '\\';
    escaped[n++] = *c;
  }
  escaped[n] = '\0';
  snprintf(text, sizeof text,
           "{\"__metadata__\":{\"DCP_SHARDING_INFO\":\"%s\",\"DCP_VERSION\":\"1.0\",\"format\":\"pt\",\"reshard\":\"%"
           "s\"}%s}",
           sharding, escaped, entries);
  snprintf(path, sizeof path, "s/%s", name);
  unsigned char *bytes = scratch_read(path, &size);
  size_t length = bytes[0] | (size_t)bytes[1] << 8;
  assert_true(length % 8 == 0 && size >= 8 + length && length >= strlen(text) && length < strlen(text) + 8);
  for (size_t i = strlen(text); i < length; i++)
    assert_int_equal(bytes[8 + i], ' ');
  bytes[8 + strlen(text)] = '\0';
  assert_string_equal((const char *)bytes + 8, text);
  free(bytes);
}

#define COMMON(files, shapes, layouts) \
  "{\"version\":1,\"world\":3,\"files\":[" files "],\"shapes\":{" shapes "},\"layout\":{" layouts "}"

CASE(shards_have_names_offsets_and_data) {
  static const wanted tensors[] = {{"a\xc3\xa9\"", RESHARD_F32, 2, {4, 3}, "chunk(0;1,0)"},
                                   {"b", RESHARD_U8, 1, {7}, "cyclic(2;2)"},
                                   {"e", RESHARD_F16, 2, {0, 3}, "rank(1)"}};
  write_all("s", 3, tensors, 3, (reshard_writer_options){.no_digests = 1});
  assert_string_equal(scratch_list("s"),
                      NAME("1", "1", "2") " " NAME("1", "2", "2") " " NAME("2", "1", "2") " " NAME("2", "2", "2"));
  static const char reshard[] = COMMON(
      "\"" NAME("1", "1", "2") "\",\"" NAME("1", "2", "2") "\",\"" NAME("2", "1", "2") "\",\"" NAME("2", "2", "2") "\"",
      "\"a\\u00e9\\\"\":[4,3],\"b\":[7],\"e\":[0,3]",
      "\"a\\u00e9\\\"\":\"chunk(0;1-0)\",\"b\":\"cyclic(2@0-1;2)\",\"e\":\"rank(1)\"") "}";
  check_shard(NAME("1", "1", "2"),
              "{\\\"a\\\\u00e9\\\\\\\"\\\": {\\\"saved_offsets\\\": [2, 0]}, \\\"b\\\": {\\\"saved_offsets\\\": [0]}}",
              reshard,
              ",\"a\xc3\xa9\\\"\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]},"
              "\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[24,26]}");
  check_shard(NAME("1", "2", "2"), "{\\\"b\\\": {\\\"saved_offsets\\\": [4]}}", reshard,
              ",\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}");
  check_shard(
      NAME("2", "1", "2"),
      "{\\\"a\\\\u00e9\\\\\\\"\\\": {\\\"saved_offsets\\\": [0, 0]}, \\\"e\\\": {\\\"saved_offsets\\\": [0, 0]}, "
      "\\\"b\\\": {\\\"saved_offsets\\\": [2]}}",
      reshard,
      ",\"a\xc3\xa9\\\"\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]},"
      "\"e\":{\"dtype\":\"F16\",\"shape\":[0,3],\"data_offsets\":[24,24]},"
      "\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[24,26]}");
  scratch_remove("s");

  write_all("s", 0, NULL, 1, (reshard_writer_options){.no_digests = 1}); /* there must be something to read */
  assert_string_equal(scratch_list("s"), NAME("1", "1", "1"));
  check_shard(NAME("1", "1", "1"), "{}",
              "{\"version\":1,\"world\":1,\"files\":[\"" NAME("1", "1", "1") "\"],\"shapes\":{},\"layout\":{}}", "");
  scratch_remove("s");
}

/* More than 64 boxes: whole, with intervals; a list of boxes stays as it is; what is equal is stored once. */
CASE(test_many_boxes) {
  static const wanted cyclic = {"a", RESHARD_U8, 2, {18, 18}, "cyclic(2x1;1x1)"},
                      fine = {"a", RESHARD_U8, 2, {130, 2}, "cyclic(2x1;1x2)"};
  reshard_writer writer;
  rs_writer_report report;
  assert_int_equal(create_writer("s", 1, &cyclic, 3, (reshard_writer_options){0}, &writer), RESHARD_SUCCESS);
  rs_writer_get_report(writer, &report);
  assert_true(report.whole_arrays == 0 && report.files == 18 && report.bytes == 18 * 18);
  reshard_writer_abandon(writer);
  write_all("s", 1, &fine, 3, (reshard_writer_options){.no_digests = 1});
  assert_string_equal(scratch_list("s"), NAME("1", "1", "1") " " NAME("2", "1", "1"));
  char reshard[2048], *at = reshard;
  at += sprintf(at, "%s",
                COMMON("\"" NAME("1", "1", "1") "\",\"" NAME("2", "1", "1") "\"", "\"a\":[130,2]",
                       "\"a\":\"cyclic(2x1@0-1;1x2)\"") ",\"intervals\":{\"a\":[[");
  for (int i = 0; i < 65; i++)
    at += sprintf(at, "%s[%d,%d]", i > 0 ? "," : "", 2 * i + 1, 2 * i + 2);
  sprintf(at, "],[[0,2]]]}}");
  check_shard(NAME("2", "1", "1"), "{\\\"a\\\": {\\\"saved_offsets\\\": [1, 0]}}", reshard,
              ",\"a\":{\"dtype\":\"U8\",\"shape\":[65,2],\"data_offsets\":[0,130]}");
  scratch_remove("s");

  char boxes[4096] = "boxes(";
  for (int i = 0; i < 70; i++)
    sprintf(boxes + strlen(boxes), "%s0:[%d]+[%d]", i > 0 ? ";" : "", i, i != 5);
  strcat(boxes, ")");
  wanted listed = {"a", RESHARD_U8, 1, {70}, boxes};
  assert_int_equal(create_writer("s", 1, &listed, 3, (reshard_writer_options){0}, &writer), RESHARD_SUCCESS);
  rs_writer_get_report(writer, &report);
  assert_true(report.whole_arrays == 0 && report.files == 69 && report.bytes == 69); /* the empty box is none */
  reshard_writer_abandon(writer);
}

CASE(replicas_are_stored_once) {
  static const wanted tensors[] = {{"a", RESHARD_U8, 1, {6}, "mesh(3@2-0;R)"},
                                   {"b", RESHARD_U8, 1, {6}, "boxes(replicated;1:[0]+[3];2:[0]+[3];2:[3]+[3])"},
                                   {"c", RESHARD_U8, 1, {6}, "flat()"}};
  reshard_writer writer;
  rs_writer_report report;
  for (int dedup = 0; dedup < 2; dedup++) {
    assert_int_equal(create_writer("s", 3, tensors, 3, (reshard_writer_options){.dedup = dedup}, &writer),
                     RESHARD_SUCCESS);
    rs_writer_get_report(writer, &report);
    assert_true(report.format == RESHARD_FORMAT_SHARDS);
    assert_int_equal(report.bytes, dedup ? 18 : 18 + 9 + 6);
    assert_int_equal(report.files, dedup ? 3 : 4);
    const rs_store *store = rs_writer_store(writer);
    assert_true((rs_store_find(store, 0, 0, 0) != NULL) && (rs_store_find(store, 0, 2, 0) != NULL) == !dedup);
    assert_true((rs_store_find(store, 1, 2, 0) != NULL) == !dedup && rs_store_find(store, 1, 2, 1) != NULL);
    assert_non_null(strstr(rs_writer_path(writer), "/.s.reshard-"));
    for (int64_t i = 0; i < 3; i++)
      for (int64_t rank = 0; rank < 3; rank++)
        put_rank(writer, i, &tensors[i], 3, rank);
    GOOD(reshard_writer_commit(writer));
    reshard_checkpoint checkpoint = scratch_open("s");
    for (int64_t i = 0; i < 3; i++) {
      unsigned char bytes[6];
      reshard_layout whole;
      GOOD(reshard_layout_parse("rank(0)", 1, tensors[i].shape, 1, &whole));
      GOOD(reshard_checkpoint_read(checkpoint, i, whole, 0, 1, (void *const[]){bytes}));
      for (size_t x = 0; x < 6; x++)
        assert_int_equal(bytes[x], scratch_byte(x, 0));
      reshard_layout_release(whole);
    }
    reshard_checkpoint_close(checkpoint);
    scratch_remove("s");
  }
}

static void refused_writer(const char *name, int64_t n, const wanted *wanted, reshard_writer_options options,
                           reshard_status status, const char *first, const char *second) {
  reshard_writer untouched = (reshard_writer)&untouched, writer = untouched;
  reshard_status is = create_writer(name, n, wanted, 2, options, &writer);
  if (is != status || strstr(reshard_last_error(), first) == NULL || strstr(reshard_last_error(), second) == NULL ||
      strchr(reshard_last_error(), '\n') != NULL)
    fail_msg("expected %s with '%s' and '%s', got %s: %s", reshard_status_string(status), first, second,
             reshard_status_string(is), is != RESHARD_SUCCESS ? reshard_last_error() : "");
  assert_ptr_equal(writer, untouched);
  assert_string_equal(scratch_list(""), ""); /* nothing is left */
}

CASE(wrong_names_dtypes_and_layouts_are_refused) {
  const reshard_writer_options none = {0};
  static const wanted good = {"x", RESHARD_F32, 1, {4}, "rank(0)"}, bf16 = {"x", RESHARD_BF16, 1, {4}, "rank(0)"},
                      c128 = {"odd", RESHARD_C128, 1, {4}, "rank(0)"}, cut = {"cut", RESHARD_F32, 1, {4}, "chunk(0)"},
                      huge = {"x", RESHARD_U8, 2, {(int64_t)1 << 30, (int64_t)1 << 31}, "rank(0)"},
                      twice[] = {{"same", RESHARD_F32, 1, {4}, "rank(0)"}, {"same", RESHARD_F32, 1, {5}, "rank(0)"}},
                      halves = {"h", RESHARD_F32, 1, {4}, "boxes(0:[0]+[2];0:[2]+[2])"};
  refused_writer("a.npy", 2, twice, none, RESHARD_ERROR_INVALID, "a.npy", "one tensor, not 2");
  refused_writer("a.npy", 0, NULL, none, RESHARD_ERROR_INVALID, "a.npy", "one tensor, not 0");
  refused_writer("a.npy", 1, &bf16, none, RESHARD_ERROR_INVALID, "'x'", "bf16");
  refused_writer("a.npy", 1, &cut, none, RESHARD_ERROR_INVALID, "'cut'", "chunk(0;0-1)");
  refused_writer("a.safetensors", 1, &cut, none, RESHARD_ERROR_INVALID, "'cut'", "layout");
  refused_writer("a.safetensors", 1, &halves, none, RESHARD_ERROR_INVALID, "'h'", "one array");
  refused_writer("a", 1, &cut, (reshard_writer_options){.index_bytes = 100}, RESHARD_ERROR_INVALID, "'cut'", "layout");
  refused_writer("a.safetensors", 1, &c128, none, RESHARD_ERROR_UNSUPPORTED, "'odd'", "c128");
  refused_writer("a", 1, &c128, none, RESHARD_ERROR_UNSUPPORTED, "'odd'", "c128");
  refused_writer("a", 2, twice, none, RESHARD_ERROR_INVALID, "0 and 1", "'same'");
  refused_writer("a.npy", 1, &good, (reshard_writer_options){.index_bytes = 1}, RESHARD_ERROR_INVALID, "index", "1");
  refused_writer("a", 1, &good, (reshard_writer_options){.index_bytes = -1}, RESHARD_ERROR_INVALID, "index",
                 "negative");
  refused_writer("a", 1, &huge, none, RESHARD_ERROR_SYSTEM, "a'", " bytes are needed, ");
  static const char *const names[] = {"", "__metadata__", "a\xff", "a\xc0\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    wanted w = good;
    w.name = names[i];
    refused_writer("a", 1, &w, none, RESHARD_ERROR_INVALID, "tensor 0", "no name");
  }

  reshard_writer writer;
  reshard_writer_tensor tensors[2];
  const reshard_writer_options options = {.size = RESHARD_WRITER_OPTIONS_INIT}, wrong = {.size = 1};
  const wanted two[] = {{"y", RESHARD_F32, 1, {4}, "rank(0)"}, {"x", RESHARD_F32, 1, {4}, "rank(0)"}};
  const char *path = scratch_path("a");
  make_tensors(2, two, 2, tensors);
  assert_int_equal(reshard_writer_create(NULL, 1, tensors, &options, &writer), RESHARD_ERROR_INVALID);
  assert_int_equal(reshard_writer_create(path, 1, NULL, &options, &writer), RESHARD_ERROR_INVALID);
  assert_int_equal(reshard_writer_create(path, -1, tensors, &options, &writer), RESHARD_ERROR_INVALID);
  assert_int_equal(reshard_writer_create(path, 1, tensors, &options, NULL), RESHARD_ERROR_INVALID);
  assert_int_equal(reshard_writer_create(path, 1, tensors, &wrong, &writer), RESHARD_ERROR_INVALID);
  reshard_layout_release(tensors[1].layout);
  GOOD(reshard_layout_parse("rank(0)", 1, two[1].shape, 3, &tensors[1].layout));
  FAILS_WITH(reshard_writer_create(path, 2, tensors, &options, &writer), RESHARD_ERROR_INVALID, "3 ranks");
  tensors[1].dtype = RESHARD_DTYPE_NONE;
  assert_int_equal(reshard_writer_create(path, 2, tensors, &options, &writer), RESHARD_ERROR_INVALID);
  release_layouts(2, tensors);
  assert_string_equal(scratch_list(""), "");
}

CASE(arrays_are_put_in_any_order_and_once_each) {
  static const wanted tensors[] = {{"a", RESHARD_U8, 1, {6}, "chunk(0)"}, {"b", RESHARD_U8, 1, {0}, "chunk(0)"}};
  reshard_writer writer;
  unsigned char bytes[6] = {0};
  const void *const buffers[] = {bytes}, *const nulls[] = {NULL};
  assert_int_equal(create_writer("s", 2, tensors, 2, (reshard_writer_options){0}, &writer), RESHARD_SUCCESS);
  assert_int_equal(reshard_writer_put(NULL, 0, 0, buffers), RESHARD_ERROR_INVALID);
  assert_int_equal(reshard_writer_put(writer, 2, 0, buffers), RESHARD_ERROR_INVALID);
  assert_int_equal(reshard_writer_put(writer, -1, 0, buffers), RESHARD_ERROR_INVALID);
  FAILS_WITH(reshard_writer_put(writer, 0, 2, buffers), RESHARD_ERROR_INVALID, "'a': rank 2 of 2");
  assert_int_equal(reshard_writer_put(writer, 0, 1, nulls), RESHARD_ERROR_INVALID);
  assert_int_equal(reshard_writer_put(writer, 0, 1, NULL), RESHARD_ERROR_INVALID);
  GOOD(reshard_writer_put(writer, 1, 1, nulls)); /* holds nothing */
  GOOD(reshard_writer_put(writer, 0, 0, buffers));
  FAILS_WITH(reshard_writer_commit(writer), RESHARD_ERROR_INVALID, "'a'");
  assert_non_null(strstr(reshard_last_error(), "rank 1"));
  assert_string_equal(scratch_list(""), "");
  assert_int_equal(reshard_writer_commit(NULL), RESHARD_ERROR_INVALID);
  reshard_writer_abandon(NULL);
}

RUN_CASES_WITH(scratch_setup, scratch_teardown)
