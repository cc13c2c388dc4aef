/* .safetensors files and directories of them: what is read, and what is refused. Indexes are in test_index.c, the
 * checks of a header that a model shares in test_models.c. */
#include "file/format/safetensors.h"
#include "support/fixtures/case.h"
#include "support/fixtures/scratch.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#define T SCRATCH_TENSOR

static reshard_model_tensor tensor_at(reshard_checkpoint checkpoint, int64_t i) {
  reshard_model_tensor tensor;
  assert_int_equal(reshard_model_get(reshard_checkpoint_model(checkpoint), i, &tensor), RESHARD_SUCCESS);
  return tensor;
}

/* A U8 tensor must be `size` bytes of a file's data from `from` on. */
static void check_bytes(reshard_checkpoint checkpoint, const char *name, size_t size, size_t from, int seed) {
  int64_t i = -1;
  unsigned char bytes[256], *buffer = bytes;
  reshard_layout layout;
  assert_int_equal(reshard_checkpoint_find(checkpoint, name, &i), RESHARD_SUCCESS);
  reshard_model_tensor tensor = tensor_at(checkpoint, i);
  assert_string_equal(tensor.name, name);
  assert_int_equal(reshard_layout_create_single(tensor.ndim, tensor.shape, 1, 0, &layout), RESHARD_SUCCESS);
  memset(bytes, 0xEE, sizeof bytes);
  assert_int_equal(reshard_checkpoint_read(checkpoint, i, layout, 0, 1, (void *const *)&buffer), RESHARD_SUCCESS);
  for (size_t b = 0; b < size; b++)
    assert_int_equal(bytes[b], scratch_byte(from + b, seed));
  assert_int_equal(bytes[size], 0xEE);
  reshard_layout_release(layout);
}

CASE(file_is_read_with_all_its_fields) {
  scratch_safetensors(
      "a.safetensors",
      "{\"__metadata__\":{\"format\":\"pt\",\"note\":\"\"}," T("b", "BF16", "[2,3]", "[8,20]") "," T(
          "a", "F64", "[]", "[0,8]") "," T("e", "U8", "[0]", "[20,20]") "," T("c", "U8", "[5]", "[20,25]") "}   ",
      25, 3);
  reshard_checkpoint checkpoint = scratch_open("a.safetensors");
  reshard_checkpoint_info info;
  assert_int_equal(reshard_checkpoint_get_info(checkpoint, &info), RESHARD_SUCCESS);
  assert_int_equal(info.format, RESHARD_FORMAT_SAFETENSORS);
  assert_int_equal(info.tensors, 4);
  assert_int_equal(info.files, 1);
  assert_int_equal(info.bytes, 25);
  assert_int_equal(info.stored_bytes, 25);
  assert_int_equal(info.world, 1);
  assert_int_equal(info.described, 0);
  assert_string_equal(tensor_at(checkpoint, 0).name, "b");
  assert_string_equal(tensor_at(checkpoint, 2).name, "e");
  check_bytes(checkpoint, "b", 12, 8, 3);
  check_bytes(checkpoint, "a", 8, 0, 3);
  check_bytes(checkpoint, "e", 0, 0, 3);
  check_bytes(checkpoint, "c", 5, 20, 3);
  reshard_checkpoint_close(checkpoint);
  reshard_checkpoint_close(NULL);
}

CASE(wrong_arguments_are_invalid) {
  scratch_safetensors("a.safetensors", "{" T("a", "U8", "[2,3]", "[0,6]") "}", 6, 0);
  reshard_checkpoint checkpoint = scratch_open("a.safetensors");
  reshard_checkpoint_info info;
  reshard_layout layout, other;
  static const int64_t shape[2] = {2, 3}, turned[2] = {3, 2};
  int64_t tensor;
  unsigned char bytes[8], *buffer = bytes, *none = NULL;
  void *const *buffers = (void *const *)&buffer;
  assert_int_equal(reshard_layout_create_single(2, shape, 2, 1, &layout), RESHARD_SUCCESS);
  assert_int_equal(reshard_layout_create_single(2, turned, 1, 0, &other), RESHARD_SUCCESS);
  assert_int_equal(reshard_checkpoint_open(NULL, &checkpoint), RESHARD_ERROR_INVALID);
  assert_int_equal(reshard_checkpoint_open("x", NULL), RESHARD_ERROR_INVALID);
  assert_int_equal(reshard_checkpoint_get_info(NULL, &info), RESHARD_ERROR_INVALID);
  assert_int_equal(reshard_checkpoint_get_info(checkpoint, NULL), RESHARD_ERROR_INVALID);
  assert_null(reshard_checkpoint_model(NULL));
  assert_int_equal(reshard_checkpoint_find(checkpoint, NULL, &tensor), RESHARD_ERROR_INVALID);
  assert_int_equal(reshard_checkpoint_layout(checkpoint, 1, &layout), RESHARD_ERROR_INVALID);
  assert_int_equal(reshard_checkpoint_layout(checkpoint, -1, &layout), RESHARD_ERROR_INVALID);
  assert_int_equal(reshard_checkpoint_read(checkpoint, 1, layout, 1, 1, buffers), RESHARD_ERROR_INVALID);
  assert_int_equal(reshard_checkpoint_read(checkpoint, 0, NULL, 1, 1, buffers), RESHARD_ERROR_INVALID);
  assert_int_equal(reshard_checkpoint_read(checkpoint, 0, layout, 2, 1, buffers), RESHARD_ERROR_INVALID);
  assert_int_equal(reshard_checkpoint_read(checkpoint, 0, layout, 1, -1, buffers), RESHARD_ERROR_INVALID);
  assert_int_equal(reshard_checkpoint_read(checkpoint, 0, layout, 1, 1, NULL), RESHARD_ERROR_INVALID);
  assert_int_equal(reshard_checkpoint_read(checkpoint, 0, layout, 1, 1, (void *const *)&none), RESHARD_ERROR_INVALID);
  assert_int_equal(reshard_checkpoint_read(checkpoint, 0, other, 0, 1, buffers), RESHARD_ERROR_INVALID);
  assert_non_null(strstr(reshard_last_error(), "3x2"));
  assert_int_equal(reshard_checkpoint_read(checkpoint, 0, layout, 0, 1, NULL), RESHARD_SUCCESS); /* holds nothing */
  assert_int_equal(reshard_checkpoint_read(checkpoint, 0, layout, 1, 1, buffers), RESHARD_SUCCESS);
  assert_int_equal(bytes[5], scratch_byte(5, 0));
  reshard_layout_release(layout);
  reshard_layout_release(other);
  reshard_checkpoint_close(checkpoint);
  assert_string_equal(reshard_file_format_string(RESHARD_FORMAT_NPY), "npy");
  assert_string_equal(reshard_file_format_string(RESHARD_FORMAT_SAFETENSORS), "safetensors");
  assert_string_equal(reshard_file_format_string(RESHARD_FORMAT_WHOLE), "whole");
  assert_string_equal(reshard_file_format_string(RESHARD_FORMAT_SHARDS), "shards");
  assert_string_equal(reshard_file_format_string((reshard_file_format)99), "unknown");
}

static void refused_header(const char *header, size_t data, reshard_status status, const char *first,
                           const char *second) {
  scratch_safetensors("a.safetensors", header, data, 0);
  scratch_refused("a.safetensors", status, first, second);
}

CASE(test_bad_headers) {
  const reshard_status bad = RESHARD_ERROR_INVALID;
  refused_header("{\"__metadata__\":false}", 0, bad, "__metadata__", "no object");
  refused_header("{\"__metadata__\":{\"a\":null}}", 0, bad, "'a'", "no string");
  refused_header("{\"__metadata__\":[]}", 0, bad, "__metadata__", "a.safetensors");
  refused_header("{\"__metadata__\":{\"a\":1}}", 0, bad, "'a'", "no string");
  refused_header("{\"__metadata__\":{\"a\":{\"b\":\"c\"}}}", 0, bad, "'a'", "no string");
  refused_header("{" T("a", "U8", "[4]", "[0,4]") "," T("b", "U8", "[4]", "[3,7]") "}", 7, bad, "'b'", "byte 3");
  refused_header("{" T("a", "U8", "[4]", "[0,4]") "," T("a", "U8", "[4]", "[4,8]") "}", 8, bad, "duplicate", "\"a\"");
  refused_header("{" T("a", "U8", "[4]", "[0,9223372036854775807]") "}", 4, bad, "'a'", "4 bytes of data");
  refused_header("{" T("a", "U8", "[9223372036854775807]", "[0,9223372036854775807]") "}", 4, bad, "'a'", "4 bytes");
  refused_header("{" T("a", "U8", "[4]", "[0,4]") "} x", 4, bad, "line 1", "end of file");
  refused_header("{" T("a\\u0000b", "U8", "[4]", "[0,4]") "}", 4, bad, "line 1", "a.safetensors");
  refused_header("{" T("\xff", "U8", "[4]", "[0,4]") "}", 4, bad, "line 1", "byte 0xff");
  refused_header("{" T("new\\nline\x7f", "U8", "[4]", "[0,5]") "}", 5, bad, "'new?line?'", "need 4");
  refused_header("", 0, bad, "line 1", "a.safetensors");

  char *deep = malloc(200001);
  assert_non_null(deep);
  memset(deep, '[', 200000);
  deep[200000] = '\0';
  memcpy(deep, "{\"a\":", 5);
  refused_header(deep, 0, bad, "line 1", "depth");
  free(deep);
}

/* Headers that end in zeros, spaces before them or not: the error says how many. Metadata that is null is none. */
CASE(zeros_behind_a_header_are_counted_in_the_error) {
  static const char good[] = "{\"__metadata__\":null," T("a", "U8", "[4]", "[0,4]") "}";
  unsigned char bytes[256];
  char text[64];
  for (size_t spaces = 0; spaces < 3; spaces++) {
    for (size_t zeros = 0; zeros < 10; zeros++) {
      size_t n = sizeof good - 1 + spaces + zeros;
      memset(bytes, 0, sizeof bytes);
      bytes[0] = (unsigned char)n;
      memcpy(bytes + 8, good, sizeof good - 1);
      memset(bytes + 8 + sizeof good - 1, ' ', spaces);
      scratch_write("a.safetensors", bytes, 8 + n + 4);
      snprintf(text, sizeof text, "padded with %zu zero bytes", zeros);
      if (zeros > 0)
        scratch_refused("a.safetensors", RESHARD_ERROR_INVALID, text, "spaces");
      else
        reshard_checkpoint_close(scratch_open("a.safetensors"));
    }
  }
}

/* Cut off after every byte, and with every byte of the length changed. */
CASE(file_cut_or_changed_in_length_is_refused) {
  static const char header[] = "{" T("a", "U8", "[4]", "[0,4]") "," T("b", "U16", "[2]", "[4,8]") "}";
  scratch_safetensors("whole.safetensors", header, 8, 0);
  size_t size;
  unsigned char *bytes = scratch_read("whole.safetensors", &size);
  assert_int_equal(size, 8 + sizeof header - 1 + 8);
  for (size_t n = 0; n < size; n++) {
    scratch_write("a.safetensors", bytes, n);
    scratch_refused("a.safetensors", RESHARD_ERROR_INVALID, "a.safetensors'", "");
  }
  bytes[size] = 0;
  scratch_write("a.safetensors", bytes, size + 1);
  scratch_refused("a.safetensors", RESHARD_ERROR_INVALID, "byte 8", "has 9");
  for (int i = 0; i < 8; i++) {
    bytes[i] ^= 0x80;
    scratch_write("a.safetensors", bytes, size);
    scratch_refused("a.safetensors", RESHARD_ERROR_INVALID, "a.safetensors'", "");
    bytes[i] ^= 0x80;
  }
  free(bytes);
}

CASE(directory_of_whole_tensors_is_one_checkpoint) {
  scratch_directory("d");
  scratch_safetensors("d/two.safetensors", "{" T("b", "U8", "[2,2]", "[0,4]") "," T("a", "U8", "[3]", "[4,7]") "}", 7,
                      1);
  scratch_safetensors("d/one.safetensors", "{" T("c", "U8", "[5]", "[0,5]") "}", 5, 2);
  scratch_write("d/config.json", "{}", 2);
  scratch_write("d/.hidden.safetensors", "", 0);
  scratch_write("d/.index.safetensors.index.json", "", 0);
  for (int slash = 0; slash < 2; slash++) {
    reshard_checkpoint checkpoint = scratch_open(slash ? "d/" : "d");
    reshard_checkpoint_info info;
    assert_int_equal(reshard_checkpoint_get_info(checkpoint, &info), RESHARD_SUCCESS);
    assert_int_equal(info.format, RESHARD_FORMAT_WHOLE);
    assert_int_equal(info.tensors, 3);
    assert_int_equal(info.files, 2);
    assert_int_equal(info.bytes, 12);
    assert_string_equal(tensor_at(checkpoint, 0).name, "c");
    assert_string_equal(tensor_at(checkpoint, 1).name, "b");
    check_bytes(checkpoint, "a", 3, 4, 1);
    check_bytes(checkpoint, "b", 4, 0, 1);
    check_bytes(checkpoint, "c", 5, 0, 2);
    reshard_checkpoint_close(checkpoint);
  }
  scratch_safetensors("d/three.safetensors", "{" T("d", "U8", "[1]", "[0,1]") "," T("a", "U8", "[1]", "[1,2]") "}", 2,
                      0);
  scratch_refused("d", RESHARD_ERROR_INVALID, "'three.safetensors' and 'two.safetensors'", "'a'");
  scratch_safetensors("d/three.safetensors", "{" T("d", "U8", "[1]", "[0,1]") "}", 3, 0);
  scratch_refused("d", RESHARD_ERROR_INVALID, "d/three.safetensors'", "has 3");
  scratch_remove("d/three.safetensors");
  assert_int_equal(mkdir(scratch_path("d/four.safetensors"), 0777), 0);
  scratch_refused("d", RESHARD_ERROR_INVALID, "d/four.safetensors'", "no regular file");
  scratch_remove("d/four.safetensors");
  assert_int_equal(mkfifo(scratch_path("d/pipe.safetensors"), 0666), 0);
  scratch_refused("d", RESHARD_ERROR_INVALID, "d/pipe.safetensors'", "no regular file");
  scratch_remove("d/pipe.safetensors");
  assert_int_equal(symlink("one.safetensors", scratch_path("d/again.safetensors")), 0);
  scratch_refused("d", RESHARD_ERROR_INVALID, "'again.safetensors' and 'one.safetensors'", "'c'");
  scratch_remove("d/again.safetensors");
  assert_int_equal(symlink("nowhere", scratch_path("d/dangling.safetensors")), 0);
  scratch_refused("d", RESHARD_ERROR_INVALID, "d/dangling.safetensors'", "No such file");
}

CASE(directories_without_checkpoints_are_refused) {
  scratch_directory("d");
  scratch_refused("d", RESHARD_ERROR_INVALID, "without .safetensors or .distcp files", "d'");
  scratch_write("d/model.npy", "", 0);
  scratch_refused("d", RESHARD_ERROR_INVALID, "without .safetensors or .distcp files", "d'");
  scratch_write("d/__0_0.distcp", "", 0);
  scratch_refused("d", RESHARD_ERROR_INVALID, "'__0_0.distcp'", "no .metadata");
  scratch_remove("d/__0_0.distcp");
  scratch_write("d/__0.metadata", "", 0);
  scratch_refused("d", RESHARD_ERROR_INVALID, "'__0.metadata'", "each rank has saved by itself");
  scratch_write("d/.metadata", "", 0);
  scratch_refused("d", RESHARD_ERROR_INVALID, "d/.metadata'", "byte 0 of the pickle: it ends");
  scratch_write("d/a.safetensors", "", 0);
  scratch_refused("d", RESHARD_ERROR_INVALID, "'a.safetensors'", "which is the checkpoint");
  scratch_remove("d");
  scratch_refused("d", RESHARD_ERROR_INVALID, "d'", "No such file");
  scratch_write("d", "", 0);
  scratch_refused("d/x", RESHARD_ERROR_INVALID, "d/x'", "Not a directory");
  scratch_remove("d");
  if (geteuid() != 0) {
    scratch_directory("d");
    assert_int_equal(chmod(scratch_path("d"), 0), 0);
    scratch_refused("d", RESHARD_ERROR_SYSTEM, "d'", "ermission");
    assert_int_equal(chmod(scratch_path("d"), 0777), 0);
  }
}

/* More files than may be open. */
CASE(test_many_files) {
  enum { FILES = 40 };
  struct rlimit old, few;
  char name[64], header[128];
  scratch_directory("d");
  for (int f = 0; f < FILES; f++) {
    snprintf(name, sizeof name, "d/%02d.safetensors", f);
    snprintf(header, sizeof header, "{" T("t%d", "U8", "[1]", "[0,1]") "}", f);
    scratch_safetensors(name, header, 1, f);
  }
  reshard_checkpoint checkpoint = scratch_open("d");
  for (int f = 0; f < FILES; f++) {
    snprintf(name, sizeof name, "t%d", f);
    check_bytes(checkpoint, name, 1, 0, f);
  }
  reshard_checkpoint_close(checkpoint);
  assert_int_equal(getrlimit(RLIMIT_NOFILE, &old), 0);
  few = old;
  few.rlim_cur = 24;
  assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
  scratch_refused("d", RESHARD_ERROR_SYSTEM, "one of 40", "24 open");
  assert_int_equal(setrlimit(RLIMIT_NOFILE, &old), 0);
}

/* Headers that are long enough for threads. The error is the first file's. */
CASE(long_headers_by_threads_have_the_first_error) {
  enum { FILES = 5, TENSORS = 4000 };
  char name[64], *header = malloc(TENSORS * 128);
  assert_non_null(header);
  scratch_directory("d");
  for (int f = 0; f < FILES; f++) {
    size_t at = 0;
    for (int t = 0; t < TENSORS; t++)
      at += (size_t)sprintf(header + at, "%c" T("layers.%d.experts.%d.weight", "U8", "[2]", "[%d,%d]"),
                            t > 0 ? ',' : '{', f, t, 2 * t, 2 * t + 2);
    strcpy(header + at, "}");
    snprintf(name, sizeof name, "d/%d.safetensors", f);
    scratch_safetensors(name, header, 2 * TENSORS, f);
  }
  reshard_checkpoint checkpoint = scratch_open("d");
  for (int t = 0; t < FILES * TENSORS; t += 37) {
    snprintf(name, sizeof name, "layers.%d.experts.%d.weight", t / TENSORS, t % TENSORS);
    int64_t number = -1;
    assert_int_equal(reshard_checkpoint_find(checkpoint, name, &number), RESHARD_SUCCESS);
    assert_int_equal(number, t);
    if (t % 5 == 0)
      check_bytes(checkpoint, name, 2, (size_t)(2 * (t % TENSORS)), t / TENSORS);
  }
  reshard_checkpoint_close(checkpoint);
  header[strlen(header) - 1] = ' ';
  for (int f = FILES - 1; f >= 0; f -= 2) {
    snprintf(name, sizeof name, "d/%d.safetensors", f);
    scratch_safetensors(name, header, 2 * TENSORS, f);
    scratch_refused("d", RESHARD_ERROR_INVALID, name, "line 1");
  }
  free(header);
}

/* The longest place that an error begins with leaves room for what is wrong there. */
CASE(test_long_place) {
  char where[RS_WHERE], text[RS_WHERE + 64], sharding[] = "[]";
  struct reshard_model_s model = {.bytes = 0};
  rs_safetensors header = {.model = &model, .sharding = sharding};
  memset(where, 'x', sizeof where - 1);
  where[sizeof where - 1] = '\0';
  assert_int_equal(rs_safetensors_read_sharding(where, &header), RESHARD_ERROR_INVALID);
  snprintf(text, sizeof text, "%s: DCP_SHARDING_INFO is no JSON object", where);
  assert_string_equal(reshard_last_error(), text);
}

RUN_JSON_CASES(scratch_setup, scratch_teardown)
