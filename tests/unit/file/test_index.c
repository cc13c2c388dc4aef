/* Indexes: random ones, over files in subfolders, with tensors twice and more than are listed; each field wrong once.
 * Sets of files without an index. */
#include "file/read/checkpoint.h"
#include "support/fixtures/case.h"
#include "support/fixtures/expect.h"
#include "support/fixtures/scratch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define T SCRATCH_TENSOR

enum { FILES = 4, TENSORS = 9, CASES = 40 };
static const char *const file_names[FILES] = {"a.safetensors", "sub/b.safetensors", "sub/deep/c.safetensors",
                                              "z-00001-of-00001.safetensors"};

/* The same files by other paths. */
static const char *const spelled[FILES] = {"./a.safetensors", "sub//b.safetensors", "./sub/.//deep/./c.safetensors",
                                           ".//./z-00001-of-00001.safetensors"};

static void write_text(const char *name, const char *text) { scratch_write(name, text, strlen(text)); }

/* The first byte of a U8 tensor. */
static int first_byte(reshard_checkpoint checkpoint, int64_t i) {
  unsigned char bytes[TENSORS + 2], *buffer = bytes;
  reshard_model_tensor tensor;
  reshard_layout layout;
  assert_int_equal(reshard_model_get(reshard_checkpoint_model(checkpoint), i, &tensor), RESHARD_SUCCESS);
  assert_int_equal(reshard_layout_create_single(tensor.ndim, tensor.shape, 1, 0, &layout), RESHARD_SUCCESS);
  assert_int_equal(reshard_checkpoint_read(checkpoint, i, layout, 0, 1, (void *const *)&buffer), RESHARD_SUCCESS);
  reshard_layout_release(layout);
  return bytes[0];
}

/* Which file has which tensor, and which the index gives it to; -1: not listed. */
typedef struct random_index {
  bool has[FILES][TENSORS];
  int listed[TENSORS];
} random_index;

static random_index draw_index(void) {
  random_index r = {.listed = {0}};
  for (int t = 0; t < TENSORS; t++) {
    int owner = rand() % FILES;
    r.listed[t] = rand() % 4 > 0 ? owner : -1;
    for (int f = 0; f < FILES; f++)
      r.has[f][t] = f == owner || rand() % 3 == 0;
  }
  return r;
}

/* Tensor t has t + 1 bytes, in a file of seed f. Returns where each begins in its file. */
static void write_files(const random_index *r, int begin[FILES][TENSORS]) {
  char header[2048], name[64];
  scratch_directory("d");
  mkdir(scratch_path("d/sub"), 0777);
  mkdir(scratch_path("d/sub/deep"), 0777);
  for (int f = 0; f < FILES; f++) {
    int at = 0;
    size_t n = (size_t)sprintf(header, "{\"__metadata__\":{}");
    for (int t = 0; t < TENSORS; t++) {
      if (!r->has[f][t])
        continue;
      n += (size_t)sprintf(header + n, "," T("t%d", "U8", "[%d]", "[%d,%d]"), t, t + 1, at, at + t + 1);
      begin[f][t] = at;
      at += t + 1;
    }
    strcpy(header + n, "}");
    snprintf(name, sizeof name, "d/%s", file_names[f]);
    scratch_safetensors(name, header, (size_t)at, f);
  }
}

static void check_index(const char *path, const random_index *r, int begin[FILES][TENSORS]) {
  reshard_checkpoint checkpoint = scratch_open(path);
  reshard_checkpoint_info info;
  char name[16];
  int listed = 0, bytes = 0, there = 0, files = 0;
  bool used[FILES] = {false};
  assert_int_equal(reshard_checkpoint_get_info(checkpoint, &info), RESHARD_SUCCESS);
  for (int t = 0; t < TENSORS; t++) {
    int64_t i;
    snprintf(name, sizeof name, "t%d", t);
    reshard_status found = reshard_checkpoint_find(checkpoint, name, &i);
    assert_int_equal(found, r->listed[t] >= 0 ? RESHARD_SUCCESS : RESHARD_ERROR_INVALID);
    if (r->listed[t] < 0)
      continue;
    assert_int_equal(first_byte(checkpoint, i), scratch_byte((size_t)begin[r->listed[t]][t], r->listed[t]));
    used[r->listed[t]] = true;
    listed++;
    bytes += t + 1;
  }
  for (int f = 0; f < FILES; f++)
    for (int t = 0; t < TENSORS; t++)
      there += used[f] && r->has[f][t];
  for (int f = 0; f < FILES; f++)
    files += used[f];
  assert_int_equal(info.tensors, listed);
  assert_int_equal(info.bytes, bytes);
  assert_int_equal(info.stored_bytes, bytes);
  assert_int_equal(info.files, files);
  assert_int_equal(info.unlisted, there - listed);
  assert_int_equal(info.format, RESHARD_FORMAT_WHOLE);
  assert_int_equal(checkpoint->notes.n, 0);
  reshard_checkpoint_close(checkpoint);
}

/* As text; the entry `wrong` (-1: none) has another value, or another name where it is NULL. */
static void write_index(const char *path, const random_index *r, int wrong, const char *value) {
  char text[2048];
  size_t n = (size_t)sprintf(text, "{\"metadata\":{\"total_size\":\"?\"},\"weight_map\":{");
  const char *comma = "";
  for (int t = 0; t < TENSORS; t++) {
    if (r->listed[t] < 0)
      continue;
    n += (size_t)sprintf(text + n, "%s\"%s%d\":", comma, t == wrong && value == NULL ? "other" : "t", t);
    if (t == wrong && value != NULL)
      n += (size_t)sprintf(text + n, "%s", value);
    else
      n += (size_t)sprintf(text + n, "\"%s\"", (rand() % 2 > 0 ? spelled : file_names)[r->listed[t]]);
    comma = ",";
  }
  strcpy(text + n, "}}");
  write_text(path, text);
}

CASE(random_indexes_give_each_tensor_to_its_file) {
  srand(39);
  for (int i = 0; i < CASES; i++) {
    random_index r = draw_index();
    int begin[FILES][TENSORS];
    write_files(&r, begin);
    write_index("d/model.safetensors.index.json", &r, -1, NULL);
    write_index("d/other.index.fp16.json", &r, -1, NULL);
    check_index("d", &r, begin);
    check_index("d/model.safetensors.index.json", &r, begin);
    check_index("d/other.index.fp16.json", &r, begin);
    reshard_model model;
    reshard_check_report report;
    assert_int_equal(reshard_model_load(scratch_path("d/other.index.fp16.json"), &model), RESHARD_SUCCESS);
    assert_in_range(reshard_model_count(model), 0, TENSORS);
    reshard_model_free(model);
    assert_int_equal(reshard_checkpoint_check(scratch_path("d/other.index.fp16.json"), NULL, &report), RESHARD_SUCCESS);
    assert_in_range(report.files, 0, FILES);
    scratch_remove("d");
  }
}

/* Each entry has each wrong value once, and the error names index, tensor, and what is wrong. */
CASE(test_wrong_entries) {
  static const char *const values[][2] = {{"1", "no string"},
                                          {"null", "no string"},
                                          {"[\"a.safetensors\"]", "no string"},
                                          {"{}", "no string"},
                                          {"\"\"", "no relative path"},
                                          {"\"/etc/a.safetensors\"", "'/etc/a.safetensors' is no relative path"},
                                          {"\"..\"", "no relative path"},
                                          {"\"../d/a.safetensors\"", "no relative path"},
                                          {"\"sub/../a.safetensors\"", "no relative path"},
                                          {"\"sub/..\"", "no relative path"},
                                          {"\"none.safetensors\"", "there is no file 'none.safetensors'"},
                                          {"\"a.safetensors/x\"", "there is no file 'a.safetensors/x'"},
                                          {"\"sub\"", "no regular file"},
                                          {"\".//\"", "no regular file"},
                                          {"\"empty.safetensors\"", "'empty.safetensors' has no tensor"},
                                          {"\"text.safetensors\"", "too few"}};
  random_index r = {.listed = {0}};
  int begin[FILES][TENSORS];
  char tensor[32];
  for (int t = 0; t < TENSORS; t++) {
    r.listed[t] = t % FILES;
    r.has[t % FILES][t] = true;
  }
  write_files(&r, begin);
  scratch_safetensors("d/empty.safetensors", "{}", 0, 0);
  write_text("d/text.safetensors", "text");
  for (int t = 0; t < TENSORS; t++) {
    snprintf(tensor, sizeof tensor, "'t%d'", t);
    for (size_t v = 0; v < sizeof values / sizeof *values; v++) {
      bool file = strstr(values[v][1], "regular") != NULL || strstr(values[v][1], "few") != NULL;
      write_index("d/model.safetensors.index.json", &r, t, values[v][0]);
      scratch_refused("d", RESHARD_ERROR_INVALID, values[v][1], file ? "d/" : tensor);
    }
    write_index("d/model.safetensors.index.json", &r, t, NULL);
    snprintf(tensor, sizeof tensor, "'other%d'", t);
    scratch_refused("d", RESHARD_ERROR_INVALID, file_names[t % FILES], tensor);
  }
  /* A file whose tensor is gone from it, though another file has one of its name. */
  r.listed[1] = 0;
  write_index("d/model.safetensors.index.json", &r, -1, NULL);
  scratch_refused("d", RESHARD_ERROR_INVALID, "file 'a.safetensors' has no tensor 't1'", "d'");
}

static void refused_text(const char *text, const char *first, const char *second) {
  write_text("d/model.safetensors.index.json", text);
  scratch_refused("d", RESHARD_ERROR_INVALID, first, second);
}

CASE(test_wrong_text) {
  static const char good[] = "{\"metadata\":{\"total_size\":9},\"weight_map\":{\"c\":\"one.safetensors\"}}";
  scratch_remove("d");
  scratch_directory("d");
  scratch_safetensors("d/one.safetensors", "{" T("c", "U8", "[5]", "[0,5]") "}", 5, 2);
  for (size_t n = 0; n < sizeof good - 1; n++) { /* cut off after every byte */
    scratch_write("d/model.safetensors.index.json", good, n);
    scratch_refused("d", RESHARD_ERROR_INVALID, "line 1", "index.json'");
  }
  write_text("d/model.safetensors.index.json", good);
  reshard_checkpoint_close(scratch_open("d"));
  static const char *const maps[] = {"[]",
                                     "{}",
                                     "3",
                                     "\"x\"",
                                     "{\"weight_map\":[]}",
                                     "{\"weight_map\":null}",
                                     "{\"weight_map\":\"one.safetensors\"}",
                                     "{\"weight-map\":{}}"};
  for (size_t i = 0; i < sizeof maps / sizeof *maps; i++)
    refused_text(maps[i], i == 2 || i == 3 ? "line 1" : "\"weight_map\" is missing or no object", "index.json'");
  refused_text("{\"weight_map\":{\"c\":\"one.safetensors\",\"c\":\"one.safetensors\"}}", "duplicate", "line 1");
  /* One of no tensors holds none. */
  write_text("d/model.safetensors.index.json", "{\"weight_map\":{}}");
  reshard_checkpoint checkpoint = scratch_open("d");
  assert_int_equal(reshard_model_count(reshard_checkpoint_model(checkpoint)), 0);
  assert_int_equal(checkpoint->info.unlisted, 1);
  assert_int_equal(checkpoint->info.files, 1);
  reshard_checkpoint_close(checkpoint);
  scratch_remove("d/model.safetensors.index.json");
  assert_int_equal(mkfifo(scratch_path("d/model.safetensors.index.json"), 0666), 0);
  scratch_refused("d", RESHARD_ERROR_INVALID, "index", "no regular file");
}

/* Of several the usual name counts; one alone has any name; a variant is named itself. */
CASE(usual_index_counts_among_several) {
  static const char one[] = "{\"weight_map\":{\"c\":\"one.safetensors\"}}";
  static const char two[] = "{\"weight_map\":{\"c\":\"two.safetensors\"}}";
  scratch_remove("d");
  scratch_directory("d");
  scratch_safetensors("d/one.safetensors", "{" T("c", "U8", "[5]", "[0,5]") "}", 5, 2);
  scratch_safetensors("d/two.safetensors", "{" T("c", "U8", "[5]", "[0,5]") "}", 5, 3);
  scratch_refused("d", RESHARD_ERROR_INVALID, "'one.safetensors' and 'two.safetensors' both", "d/FILE'");
  write_text("d/model.safetensors.index.fp16.json", two);
  scratch_refused("d", RESHARD_ERROR_INVALID, "both have a tensor 'c'", "d/model.safetensors.index.fp16.json'");
  write_text("d/x.safetensors.index.json", "not read");
  scratch_refused("d", RESHARD_ERROR_INVALID, "x.safetensors.index.json'", "line 1");
  write_text("d/model.safetensors.index.json", one);
  const char *const names[] = {"d", "d/model.safetensors.index.json", "d/model.safetensors.index.fp16.json",
                               "d/two.safetensors"};
  for (int i = 0; i < 4; i++) {
    reshard_checkpoint checkpoint = scratch_open(names[i]);
    assert_int_equal(first_byte(checkpoint, 0), scratch_byte(0, i < 2 ? 2 : 3));
    reshard_checkpoint_close(checkpoint);
  }
  scratch_remove("d/model.safetensors.index.json");
  write_text("d/y.safetensors.index.json", one);
  scratch_refused("d", RESHARD_ERROR_INVALID, "x.safetensors.index.json'", "y.safetensors.index.json'");
  scratch_remove("d/x.safetensors.index.json");
  reshard_checkpoint_close(scratch_open("d"));
  /* No file is in the directory itself. */
  scratch_remove("d");
  scratch_directory("d");
  write_text("d/model.safetensors.index.fp16.json", two);
  scratch_refused("d", RESHARD_ERROR_INVALID, "without .safetensors", "'model.safetensors.index.fp16.json' itself");
}

/* The name of each file stands for its set: files whose number in `of` is one. */
static void check_names(const char *const *names, const char *of) {
  char name[64], note[64];
  for (int i = 0; names[i] != NULL; i++) {
    reshard_checkpoint_info info;
    reshard_model model;
    int64_t tensor;
    int files = 0;
    snprintf(name, sizeof name, "d/%s.safetensors", names[i]);
    reshard_checkpoint checkpoint = scratch_open(name);
    GOOD(reshard_checkpoint_get_info(checkpoint, &info));
    GOOD(reshard_model_load(scratch_path(name), &model));
    for (int j = 0; names[j] != NULL; j++) {
      snprintf(name, sizeof name, "t%d", j);
      assert_int_equal(reshard_checkpoint_find(checkpoint, name, &tensor) == RESHARD_SUCCESS, of[i] == of[j]);
      if (of[i] == of[j])
        assert_int_equal(first_byte(checkpoint, tensor), scratch_byte(0, j));
      files += of[i] == of[j];
    }
    assert_int_equal(info.files, files);
    assert_int_equal(reshard_model_count(model), files);
    snprintf(note, sizeof note, "is one of %d files of the set '", files);
    assert_int_equal(checkpoint->notes.n > 0, files > 1);
    if (files > 1)
      assert_non_null(strstr(checkpoint->notes.at, note));
    reshard_model_free(model);
    reshard_checkpoint_close(checkpoint);
  }
}

/* Files of these names, of which each has a tensor of its own: how many sets they are, by the notes. */
static void check_sets(const char *const *names, const char *of, const char *const *sets) {
  char name[64], header[128], line[128];
  int n = 0, told = 0;
  scratch_remove("d");
  scratch_directory("d");
  for (int i = 0; names[i] != NULL; i++) {
    snprintf(name, sizeof name, "d/%s.safetensors", names[i]);
    snprintf(header, sizeof header, "{" T("t%d", "U8", "[%d]", "[0,%d]") "}", i, i + 1, i + 1);
    scratch_safetensors(name, header, (size_t)i + 1, i);
  }
  reshard_checkpoint checkpoint = scratch_open("d");
  while (sets[n] != NULL)
    n++;
  for (int64_t at = 0; at < checkpoint->notes.n; at += (int64_t)strlen(checkpoint->notes.at + at) + 1, told++) {
    const char *note = checkpoint->notes.at + at;
    snprintf(line, sizeof line, told == 0 ? "has no index, and files of %d sets" : "set '", n);
    assert_non_null(strstr(note, line));
    assert_non_null(strstr(note, told == 0 ? "d/FILE'" : sets[told - 1]));
  }
  assert_int_equal(told, n > 0 ? n + 1 : 0);
  reshard_checkpoint_close(checkpoint);
  check_names(names, of);
}

#define LIST(...) \
  (const char *const[]) { __VA_ARGS__, NULL }

CASE(sets_without_index_are_found_by_their_names) {
  static const char *const none[] = {NULL};
  check_sets(LIST("model"), "a", none);
  check_sets(LIST("model-1-of-3", "model-2-of-3", "model-3-of-3"), "aaa", none);
  check_sets(LIST("a-b-00001-of-00002.fp16", "a-b-00002-of-00002.fp16"), "aa", none);
  check_sets(LIST("model-1-of-2", "model-2-of-2", "model"), "aab",
             LIST("'model-*-of-*.safetensors': 2 files, 2 tensors, 3 bytes",
                  "'model.safetensors': 1 file, 1 tensor, 3 bytes"));
  check_sets(LIST("x-of-2", "y-of-2"), "ab", LIST("'x-of-2.safetensors': 1 file", "'y-of-2.safetensors': 1 file"));
  check_sets(LIST("m-1-of-1", "n-1-of-1"), "ab", LIST("'m-*-of-*.safetensors': 1 file", "'n-*-of-*.safetensors'"));
  check_sets(LIST("m-1-of-x", "m-2-of-x"), "ab", LIST("'m-1-of-x.safetensors': 1 file", "'m-2-of-x.safetensors'"));
  check_sets(LIST("m-1-of-2", "m-1-of-2.ema", "m-2-of-2", "m-2-of-2.ema"), "abab",
             LIST("'m-*-of-*.ema.safetensors': 2 files", "'m-*-of-*.safetensors': 2 files"));
  /* One without tensors is no second model. */
  scratch_remove("d");
  scratch_directory("d");
  scratch_safetensors("d/a.safetensors", "{" T("c", "U8", "[5]", "[0,5]") "}", 5, 2);
  scratch_safetensors("d/b.safetensors", "{}", 0, 3);
  reshard_checkpoint checkpoint = scratch_open("d");
  assert_int_equal(checkpoint->notes.n, 0);
  reshard_checkpoint_close(checkpoint);
}

RUN_JSON_CASES(scratch_setup, scratch_teardown)
