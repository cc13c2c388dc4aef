/* .npy files: what numpy writes, in both orders and all versions, and what is none. */
#include "file/read/checkpoint.h"
#include "support/fixtures/case.h"
#include "support/fixtures/expect.h"
#include "support/fixtures/scratch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A file of version 1 or, with 4 bytes of length, 2 or 3. */
static size_t make_npy(unsigned char *bytes, int version, const char *header, size_t data) {
  size_t length = strlen(header), at = version == 1 ? 10 : 12;
  memcpy(bytes, "\x93NUMPY", 6);
  bytes[6] = (unsigned char)version;
  bytes[7] = 0;
  for (size_t i = 8; i < at; i++)
    bytes[i] = (unsigned char)(length >> 8 * (i - 8));
  memcpy(bytes + at, header, length);
  for (size_t i = 0; i < data; i++)
    bytes[at + length + i] = scratch_byte(i, 0);
  return at + length + data;
}

static void write_npy(int version, const char *header, size_t data) {
  static unsigned char bytes[1 << 16];
  scratch_write("a.npy", bytes, make_npy(bytes, version, header, data));
}

static void refused_npy(const char *header, size_t data, const char *first, const char *second) {
  write_npy(1, header, data);
  scratch_refused("a.npy", RESHARD_ERROR_INVALID, first, second);
}

#define C_ORDER "'fortran_order': False, "
#define F_ORDER "'fortran_order': True, "

CASE(numpy_files_of_all_versions_are_read) {
  static const struct {
    int version;
    const char *header;
    reshard_dtype dtype;
    int ndim;
    int64_t shape[3], bytes;
  } cases[] = {
      {1, "{'descr': '<f4', " C_ORDER "'shape': (3, 4), }      \n", RESHARD_F32, 2, {3, 4}, 48},
      {2, "{'descr': '<f4', " C_ORDER "'shape': (3, 4), }\n", RESHARD_F32, 2, {3, 4}, 48},
      {3, "{'descr': '<f4', " C_ORDER "'shape': (3, 4), }\n", RESHARD_F32, 2, {3, 4}, 48},
      {1, "{'shape':(3,),\"descr\":\"|b1\",'fortran_order':True}", RESHARD_BOOL, 1, {3}, 3},
      {1, "  { 'descr' : '|u1' , 'fortran_order' : False , 'shape' : ( ) } ", RESHARD_U8, 0, {0}, 1},
      {1, "{'descr': '|i1', " C_ORDER "'shape': (2L, 3L,)}", RESHARD_I8, 2, {2, 3}, 6},
      {1, "{'descr': '<u2', " C_ORDER "'shape': (5,)}", RESHARD_U16, 1, {5}, 10},
      {1, "{'descr': '<i2', " C_ORDER "'shape': (5,)}", RESHARD_I16, 1, {5}, 10},
      {1, "{'descr': '<u4', " C_ORDER "'shape': (5,)}", RESHARD_U32, 1, {5}, 20},
      {1, "{'descr': '=i4', " C_ORDER "'shape': (5,)}", RESHARD_I32, 1, {5}, 20},
      {1, "{'descr': '<u8', " C_ORDER "'shape': (5,)}", RESHARD_U64, 1, {5}, 40},
      {1, "{'descr': '<i8', " C_ORDER "'shape': (5,)}", RESHARD_I64, 1, {5}, 40},
      {1, "{'descr': '<f2', " C_ORDER "'shape': (5,)}", RESHARD_F16, 1, {5}, 10},
      {1, "{'descr': '<f8', " C_ORDER "'shape': (5,)}", RESHARD_F64, 1, {5}, 40},
      {1, "{'descr': '<c8', " C_ORDER "'shape': (5,)}", RESHARD_C64, 1, {5}, 40},
      {1, "{'descr': '<c16', " F_ORDER "'shape': (2, 1, 3)}", RESHARD_C128, 3, {2, 1, 3}, 96},
      {1, "{'descr': '<f4', " F_ORDER "'shape': (3, 0)}", RESHARD_F32, 2, {3, 0}, 0},
      {1, "{'descr': '|u1', " C_ORDER "'shape': (19, 90)}", RESHARD_U8, 2, {19, 90}, 1710},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    write_npy(cases[i].version, cases[i].header, (size_t)cases[i].bytes);
    reshard_checkpoint checkpoint = scratch_open("a.npy");
    reshard_checkpoint_info info;
    GOOD(reshard_checkpoint_get_info(checkpoint, &info));
    assert_int_equal(info.format, RESHARD_FORMAT_NPY);
    assert_int_equal(info.tensors, 1);
    assert_int_equal(info.files, 1);
    assert_int_equal(info.world, 1);
    assert_int_equal(info.bytes, cases[i].bytes);
    assert_int_equal(info.stored_bytes, cases[i].bytes);
    reshard_model_tensor tensor;
    GOOD(reshard_model_get(reshard_checkpoint_model(checkpoint), 0, &tensor));
    assert_string_equal(tensor.name, "tensor");
    assert_int_equal(tensor.dtype, cases[i].dtype);
    assert_int_equal(tensor.ndim, cases[i].ndim);
    assert_memory_equal(tensor.shape, cases[i].shape, (size_t)tensor.ndim * sizeof *tensor.shape);
    reshard_layout layout;
    char text[64];
    GOOD(reshard_checkpoint_layout(checkpoint, 0, &layout));
    GOOD(reshard_layout_print(layout, text, sizeof text, NULL));
    assert_string_equal(text, "rank(0)");
    assert_memory_equal(reshard_layout_shape(layout), cases[i].shape, (size_t)tensor.ndim * sizeof *tensor.shape);
    reshard_layout_release(layout);
    reshard_checkpoint_close(checkpoint);
  }
}

/* Every element of every part, whichever order it is stored in. */
CASE(any_part_is_read_in_either_order) {
  static const int64_t shape[3] = {4, 5, 3};
  for (int fortran = 0; fortran < 2; fortran++) {
    write_npy(1,
              fortran ? "{'descr': '<u2', " F_ORDER "'shape': (4, 5, 3), }"
                      : "{'descr': '<u2', " C_ORDER "'shape': (4, 5, 3), }",
              120);
    reshard_checkpoint checkpoint = scratch_open("a.npy");
    static const char *const texts[] = {"rank(0)", "boxes(0:[1,2,0]+[2,3,3])", "cyclic(2x1x2;1x1x1)", "flat(0-2)"};
    for (size_t t = 0; t < sizeof texts / sizeof *texts; t++) {
      reshard_layout layout;
      GOOD(reshard_layout_parse(texts[t], 3, shape, 4, &layout));
      for (int64_t rank = 0; rank < 4; rank++) {
        unsigned char memory[256], *buffer = memory;
        int64_t arrays = 0;
        memset(memory, 0xEE, sizeof memory);
        GOOD(reshard_checkpoint_read(checkpoint, 0, layout, rank, 1, (void *const *)&buffer));
        GOOD(reshard_layout_array_count(layout, rank, &arrays));
        size_t at = 0;
        for (int64_t a = 0; a < arrays; a++) {
          reshard_interval runs[3][8];
          int64_t n[3];
          for (int d = 0; d < 3; d++)
            GOOD(reshard_layout_array_intervals(layout, rank, a, d, 0, 8, runs[d], &n[d]));
#define EACH(d, x) \
  for (int64_t r##d = 0; r##d < n[d]; r##d++) \
    for (int64_t x = runs[d][r##d].begin; x < runs[d][r##d].end; x++)
          EACH(0, x) EACH(1, y) EACH(2, z) {
            size_t element = (size_t)(fortran ? x + 4 * (y + 5 * z) : (x * 5 + y) * 3 + z);
            assert_int_equal(memory[at++], scratch_byte(2 * element, 0));
            assert_int_equal(memory[at++], scratch_byte(2 * element + 1, 0));
          }
        }
        assert_int_equal(memory[at], 0xEE);
      }
      reshard_layout_release(layout);
    }
    reshard_checkpoint_close(checkpoint);
  }
}

CASE(test_bad_headers) {
  refused_npy("", 0, "a.npy'", "'{'");
  refused_npy("{", 0, "a key", "");
  refused_npy("{}", 0, "'descr'", "missing");
  refused_npy("{'descr': '<f4', " C_ORDER "}", 4, "'shape'", "missing");
  refused_npy("{'descr': '<f4', 'shape': ()}", 4, "'fortran_order'", "missing");
  refused_npy("{'descr': '<f4', " C_ORDER C_ORDER "'shape': ()}", 4, "'fortran_order'", "twice");
  refused_npy("{'descr': '<f4', " C_ORDER "'shape': (), 'more': 1}", 4, "'more'", "unknown");
  refused_npy("{'descr': '<f4' " C_ORDER "'shape': ()}", 4, "','", "fortran");
  refused_npy("{'descr' '<f4', " C_ORDER "'shape': ()}", 4, "':'", "<f4");
  refused_npy("{'descr': '<f4', " C_ORDER "'shape': ()} x", 4, "nothing", "'x'");
  refused_npy("{'descr': '<f4, " C_ORDER "'shape': ()}", 4, "descr", "<f4, ");
  refused_npy("{descr: '<f4', " C_ORDER "'shape': ()}", 4, "a key", "descr:");
  refused_npy("{'descr': '<f4', 'fortran_order': 0, 'shape': ()}", 4, "True or False", "0, 'shape'");
  refused_npy("{'descr': '<f4', " C_ORDER "'shape': (3)}", 12, "(3)", "tuple");
  refused_npy("{'descr': '<f4', " C_ORDER "'shape': 3}", 12, "'('", "3}");
  refused_npy("{'descr': '<f4', " C_ORDER "'shape': (3 4)}", 48, "','", "4)}");
  refused_npy("{'descr': '<f4', " C_ORDER "'shape': (,)}", 4, "an extent", ",)}");
  refused_npy("{'descr': '<f4', " C_ORDER "'shape': (-3,)}", 4, "an extent", "-3");
  refused_npy("{'descr': '<f4', " C_ORDER "'shape': (3", 12, "','", "before ''");
  refused_npy("{'descr': '<f4', " C_ORDER "'shape': (3.5,)}", 4, "','", ".5");
  refused_npy("{'descr': '<f4', " C_ORDER "'shape': (9223372036854775808,)}", 4, "2^63", "");
  refused_npy("{'descr': '<f4', " C_ORDER "'shape': (4611686018427387904,)}", 4, "overflows", "a.npy");
  refused_npy("{'descr': '<f4', " C_ORDER "'shape': (0, 4294967296, 4294967296)}", 0, "overflows", "");
  refused_npy("{'descr': '<f4', " C_ORDER "'shape': (1,1,1,1,1,1,1,1,1)}", 4, "9 dims", "8");
  refused_npy("{'descr': '<f4', " C_ORDER "'shape': (3,)}", 11, "11 bytes", "needs 12");
  refused_npy("{'descr': '<f4', " C_ORDER "'shape': (3,)}", 13, "13 bytes", "needs 12");
  refused_npy("{'descr': '<f4', " C_ORDER "'shape': (\n\n)} \x01", 4, "nothing", "?");
}

CASE(unknown_dtypes_are_refused) {
  static const char *const unknown[] = {"|O",      "<f16", "<V2", ">V2", "<V",  "|S3", "<U4",
                                        "<M8[ns]", "f4",   "<f",  "",    "|f4", "<u3"};
  char header[128];
  for (size_t i = 0; i < sizeof unknown / sizeof *unknown; i++) {
    snprintf(header, sizeof header, "{'descr': '%s', " C_ORDER "'shape': ()}", unknown[i]);
    refused_npy(header, 4, "descr", unknown[i]);
  }
  refused_npy("{'descr': [('x', '<f4'), ('y', '<i4')], " C_ORDER "'shape': ()}", 8, "structured", "[('x', '<f4')");
  write_npy(1, "{'descr': '>f4', " C_ORDER "'shape': ()}", 4);
  scratch_refused("a.npy", RESHARD_ERROR_UNSUPPORTED, "big-endian", "'>f4'");
  static const char nul[] = "{'descr': '?f4', 'fortran_order': False, 'shape': ()}";
  static unsigned char bytes[256];
  size_t size = make_npy(bytes, 1, nul, 4);
  *(char *)memchr(bytes, '?', size) = '\0';
  scratch_write("a.npy", bytes, size);
  scratch_refused("a.npy", RESHARD_ERROR_INVALID, "descr", "unknown");
}

/* Raw bytes of every width as every dtype, and as none. */
CASE(raw_bytes_of_each_width_are_read_as_the_dtype_said) {
  static const char *const descr[] = {"|V1", "<V2", "=V4", "|V8", "<V16"};
  char header[128], given[32];
  for (size_t i = 0; i < sizeof descr / sizeof *descr; i++) {
    size_t width = (size_t)1 << i;
    snprintf(header, sizeof header, "{'descr': '%s', " C_ORDER "'shape': (3,)}", descr[i]);
    refused_npy(header, 3 * width, descr[i], i == 0 ? "--source-dtype f8_e4m3" : "--source-dtype bf16");
    for (int d = 1; d < RESHARD_DTYPE_COUNT; d++) {
      rs_checkpoint_options options = {.source_dtype = (reshard_dtype)d};
      reshard_checkpoint checkpoint = NULL;
      reshard_status status = rs_checkpoint_open(scratch_path("a.npy"), &options, &checkpoint);
      if (reshard_dtype_size(options.source_dtype) != width) {
        assert_int_equal(status, RESHARD_ERROR_INVALID);
        snprintf(given, sizeof given, "--source-dtype %s has", reshard_dtype_string(options.source_dtype));
        assert_non_null(strstr(reshard_last_error(), given));
        continue;
      }
      reshard_model_tensor tensor;
      GOOD(status);
      GOOD(reshard_model_get(reshard_checkpoint_model(checkpoint), 0, &tensor));
      assert_int_equal(tensor.dtype, options.source_dtype);
      assert_int_equal(reshard_model_bytes(reshard_checkpoint_model(checkpoint)), 3 * width);
      reshard_checkpoint_close(checkpoint);
    }
  }
  /* A file that says its type has no other, and no other format has one. */
  reshard_checkpoint checkpoint = NULL;
  const rs_checkpoint_options bf16 = {.source_dtype = RESHARD_BF16}, f16 = {.source_dtype = RESHARD_F16};
  write_npy(1, "{'descr': '<f2', " C_ORDER "'shape': (3,)}", 6);
  FAILS_WITH(rs_checkpoint_open(scratch_path("a.npy"), &bf16, &checkpoint), RESHARD_ERROR_INVALID,
             "--source-dtype is bf16, the file says f16");
  GOOD(rs_checkpoint_open(scratch_path("a.npy"), &f16, &checkpoint));
  reshard_checkpoint_close(checkpoint);
  scratch_safetensors("a.safetensors", "{}", 0, 0);
  if (rs_checkpoint_open(scratch_path("a.safetensors"), &bf16, &checkpoint) != RESHARD_ERROR_UNSUPPORTED)
    assert_non_null(strstr(reshard_last_error(), "for an .npy file of raw bytes, this is safetensors"));
}

CASE(test_bad_files) {
  static unsigned char bytes[512];
  for (int version = 1; version <= 3; version++) {
    size_t size = make_npy(bytes, version, "{'descr': '<f4', " C_ORDER "'shape': (3, 2), }   \n", 24);
    for (size_t n = 0; n < size; n++) { /* cut off after every byte */
      scratch_write("a.npy", bytes, n);
      scratch_refused("a.npy", RESHARD_ERROR_INVALID, "a.npy'", "");
    }
    bytes[8] = 0xff;
    bytes[9] = 0xff;
    scratch_write("a.npy", bytes, size);
    scratch_refused("a.npy", RESHARD_ERROR_INVALID, "header of 65535", "");
  }
  size_t size = make_npy(bytes, 4, "{'descr': '<f4', " C_ORDER "'shape': ()}", 4);
  scratch_write("a.npy", bytes, size);
  scratch_refused("a.npy", RESHARD_ERROR_INVALID, "version 4.0", "");
  bytes[11] = 0xff;
  bytes[6] = 2;
  scratch_write("a.npy", bytes, size);
  scratch_refused("a.npy", RESHARD_ERROR_INVALID, "header of 4278", "");
  scratch_write("a.npy", "PK\3\4 is not numpy's own", 23);
  scratch_refused("a.npy", RESHARD_ERROR_INVALID, "NUMPY", "");
  scratch_remove("a.npy");
  scratch_refused("a.npy", RESHARD_ERROR_INVALID, "a.npy'", "No such file");
}

/* The first bytes tell the format: a writer's temporary has no telling name. */
CASE(first_bytes_tell_the_format) {
  static unsigned char bytes[256];
  size_t size = make_npy(bytes, 1, "{'descr': '<f4', " C_ORDER "'shape': ()}", 4);
  scratch_write(".b.npy.part", bytes, size);
  reshard_checkpoint checkpoint = scratch_open(".b.npy.part");
  int64_t tensor = -1;
  GOOD(reshard_checkpoint_find(checkpoint, "tensor", &tensor));
  assert_int_equal(tensor, 0);
  FAILS_WITH(reshard_checkpoint_find(checkpoint, "Tensor", &tensor), RESHARD_ERROR_INVALID, "'Tensor'");
  reshard_checkpoint_close(checkpoint);
  scratch_write("text.txt", "hello, this is a text", 21);
  scratch_refused("text.txt", RESHARD_ERROR_INVALID, "text.txt'", "neither");
  scratch_write("empty", "", 0);
  scratch_refused("empty", RESHARD_ERROR_INVALID, "empty'", "neither");
}

RUN_CASES_WITH(scratch_setup, scratch_teardown)
