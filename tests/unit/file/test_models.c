/* Presets against the published checkpoints; models from files, good and bad. */
#include "support/fixtures/case.h"
#include "support/fixtures/expect.h"
#include "support/fixtures/temporary.h"
#include <reshard/file.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char path[TEMPORARY_PATH];

static void write_file(const char *suffix, const void *bytes, size_t size) {
  snprintf(path, sizeof path, "%s/reshard-models-%ld%s", temporary(), (long)getpid(), suffix);
  FILE *file = fopen(path, "wb");
  assert_non_null(file);
  assert_int_equal(fwrite(bytes, 1, size, file), size);
  assert_int_equal(fclose(file), 0);
}

static void write_header(uint64_t length, const char *header, size_t data) {
  char *bytes = calloc(1, 8 + strlen(header) + data);
  assert_non_null(bytes);
  for (int i = 0; i < 8; i++)
    bytes[i] = (char)(length >> 8 * i);
  memcpy(bytes + 8, header, strlen(header));
  write_file(".safetensors", bytes, 8 + strlen(header) + data);
  free(bytes);
}

/* The file must be refused with a text that has all of the pieces. */
static void refused_model(const char *first, const char *second) {
  reshard_model untouched = (reshard_model)&path, model = untouched;
  reshard_status status = reshard_model_load(path, &model);
  if (status != RESHARD_ERROR_INVALID || strstr(reshard_last_error(), first) == NULL ||
      strstr(reshard_last_error(), second) == NULL || strchr(reshard_last_error(), '\n') != NULL)
    fail_msg("expected '%s' and '%s', got status %d: %s", first, second, status, reshard_last_error());
  assert_ptr_equal(model, untouched);
  unlink(path);
}

static void refused_list(const char *text, const char *first, const char *second) {
  write_file(".json", text, strlen(text));
  refused_model(first, second);
}

static void refused_header(const char *header, size_t data, const char *first, const char *second) {
  write_header(strlen(header), header, data);
  refused_model(first, second);
}

static int find_tensor(reshard_model model, const char *name, reshard_model_tensor *tensor) {
  for (int64_t i = 0; i < reshard_model_count(model); i++) {
    GOOD(reshard_model_get(model, i, tensor));
    if (strcmp(tensor->name, name) == 0)
      return 1;
  }
  return 0;
}

typedef struct expected {
  const char *name;
  reshard_dtype dtype;
  int ndim;
  int64_t rows, columns;
} expected;

static void check_preset(const char *name, int64_t count, int64_t bytes, const expected *tensors) {
  reshard_model model;
  GOOD(reshard_model_preset(name, &model));
  assert_int_equal(reshard_model_count(model), count);
  assert_int_equal(reshard_model_bytes(model), bytes);
  for (const expected *e = tensors; e->name != NULL; e++) {
    reshard_model_tensor tensor;
    if (!find_tensor(model, e->name, &tensor))
      fail_msg("%s has no %s", name, e->name);
    assert_int_equal(tensor.dtype, e->dtype);
    assert_int_equal(tensor.ndim, e->ndim);
    assert_int_equal(tensor.shape[0], e->rows);
    if (e->ndim == 2)
      assert_int_equal(tensor.shape[1], e->columns);
  }
  reshard_model_free(model);
}

CASE(llama_preset_is_the_published_one) {
  check_preset("llama-3.1-8b", 291, 16060522496,
               (expected[]){{"model.embed_tokens.weight", RESHARD_BF16, 2, 128256, 4096},
                            {"model.layers.31.self_attn.k_proj.weight", RESHARD_BF16, 2, 1024, 4096},
                            {"model.layers.0.mlp.down_proj.weight", RESHARD_BF16, 2, 4096, 14336},
                            {"model.norm.weight", RESHARD_BF16, 1, 4096, 0},
                            {0}});
  check_preset("llama-3.1-70b", 723, 141107412992,
               (expected[]){{"lm_head.weight", RESHARD_BF16, 2, 128256, 8192},
                            {"model.layers.79.mlp.gate_proj.weight", RESHARD_BF16, 2, 28672, 8192},
                            {"model.layers.79.input_layernorm.weight", RESHARD_BF16, 1, 8192, 0},
                            {0}});
}

CASE(qwen3_presets_are_the_published_ones) {
  check_preset("qwen3-30b-a3b", 18867, 61064245248,
               (expected[]){{"model.layers.0.self_attn.q_proj.weight", RESHARD_BF16, 2, 4096, 2048},
                            {"model.layers.47.mlp.experts.127.up_proj.weight", RESHARD_BF16, 2, 768, 2048},
                            {"model.layers.47.mlp.gate.weight", RESHARD_BF16, 2, 128, 2048},
                            {0}});
  check_preset("qwen3-235b-a22b", 36945, 470187269120,
               (expected[]){{"model.layers.93.self_attn.o_proj.weight", RESHARD_BF16, 2, 4096, 8192},
                            {"model.layers.93.self_attn.q_norm.weight", RESHARD_BF16, 1, 128, 0},
                            {"model.layers.1.mlp.experts.0.down_proj.weight", RESHARD_BF16, 2, 4096, 1536},
                            {0}});
}

CASE(deepseek_preset_is_the_published_one) {
  check_preset("deepseek-v3", 91991, 688574839360,
               (expected[]){{"model.layers.0.self_attn.q_b_proj.weight", RESHARD_F8_E4M3, 2, 24576, 1536},
                            {"model.layers.0.self_attn.kv_a_proj_with_mqa.weight_scale_inv", RESHARD_F32, 2, 5, 56},
                            {"model.layers.2.mlp.up_proj.weight", RESHARD_F8_E4M3, 2, 18432, 7168},
                            {"model.layers.60.mlp.gate.e_score_correction_bias", RESHARD_F32, 1, 256, 0},
                            {"model.layers.3.mlp.shared_experts.down_proj.weight", RESHARD_F8_E4M3, 2, 7168, 2048},
                            {"model.layers.61.eh_proj.weight", RESHARD_BF16, 2, 7168, 14336},
                            {"model.layers.61.mlp.experts.255.down_proj.weight_scale_inv", RESHARD_F32, 2, 56, 16},
                            {"model.layers.61.shared_head.head.weight", RESHARD_BF16, 2, 129280, 7168},
                            {0}});
  /* Elements per dtype, as the model hub counts them. */
  int64_t elements[RESHARD_DTYPE_COUNT] = {0};
  reshard_model model;
  GOOD(reshard_model_preset("deepseek-v3", &model));
  for (int64_t i = 0; i < reshard_model_count(model); i++) {
    reshard_model_tensor tensor;
    GOOD(reshard_model_get(model, i, &tensor));
    elements[tensor.dtype] += tensor.shape[0] * (tensor.ndim == 2 ? tensor.shape[1] : 1);
  }
  reshard_model_free(model);
  assert_int_equal(elements[RESHARD_F8_E4M3], 680571043840);
  assert_int_equal(elements[RESHARD_BF16], 3918786560);
  assert_int_equal(elements[RESHARD_F32], 41555600);
}

CASE(test_preset_names) {
  int64_t n = 0;
  for (const char *name; (name = reshard_model_preset_name(n)) != NULL; n++) {
    reshard_model model;
    GOOD(reshard_model_open(name, &model));
    reshard_model_free(model);
  }
  assert_int_equal(n, 5);
  assert_null(reshard_model_preset_name(-1));
  reshard_model model;
  FAILS_WITH(reshard_model_preset("llama-4", &model), RESHARD_ERROR_INVALID, "llama-3.1-70b");
  FAILS_WITH(reshard_model_open("no-such-model", &model), RESHARD_ERROR_INVALID, "no-such-model");
  assert_non_null(strstr(reshard_last_error(), "qwen3-30b-a3b"));
  assert_int_not_equal(reshard_model_open("/no/such.json", &model), RESHARD_SUCCESS);
  assert_non_null(strstr(reshard_last_error(), "/no/such.json"));
}

CASE(wrong_arguments_are_invalid) {
  reshard_model model;
  reshard_model_tensor tensor;
  assert_int_equal(reshard_model_preset(NULL, &model), RESHARD_ERROR_INVALID);
  assert_int_equal(reshard_model_preset("deepseek-v3", NULL), RESHARD_ERROR_INVALID);
  assert_int_equal(reshard_model_load(NULL, &model), RESHARD_ERROR_INVALID);
  assert_int_equal(reshard_model_load("x", NULL), RESHARD_ERROR_INVALID);
  assert_int_equal(reshard_model_open(NULL, &model), RESHARD_ERROR_INVALID);
  assert_int_equal(reshard_model_get(NULL, 0, &tensor), RESHARD_ERROR_INVALID);
  assert_int_equal(reshard_model_count(NULL), 0);
  assert_int_equal(reshard_model_bytes(NULL), 0);
  reshard_model_free(NULL);
  GOOD(reshard_model_preset("llama-3.1-8b", &model));
  assert_int_equal(reshard_model_get(model, 291, &tensor), RESHARD_ERROR_INVALID);
  assert_int_equal(reshard_model_get(model, -1, &tensor), RESHARD_ERROR_INVALID);
  assert_int_equal(reshard_model_get(model, 0, NULL), RESHARD_ERROR_INVALID);
  reshard_model_free(model);
}

/* JSON may be left out of the build. Then every load says so. */
static int has_json(void) {
  reshard_model model;
  write_file(".json", "[]", 2);
  reshard_status status = reshard_model_load(path, &model);
  unlink(path);
  if (status == RESHARD_ERROR_UNSUPPORTED) {
    assert_non_null(strstr(reshard_last_error(), "jansson"));
    return 0;
  }
  GOOD(status);
  assert_int_equal(reshard_model_count(model), 0);
  reshard_model_free(model);
  return 1;
}

CASE(json_list_is_read_or_refused_with_its_place) {
  if (!has_json())
    skip();
  static const char text[] = "[{\"name\": \"a.w\", \"shape\": [3, 5], \"dtype\": \"bf16\", \"note\": 1},\n"
                             " {\"name\": \"scalar\", \"shape\": [], \"dtype\": \"F64\"},\n"
                             " {\"name\": \"none\", \"shape\": [0, 7], \"dtype\": \"i64\"}]\n";
  write_file(".json", text, strlen(text));
  reshard_model model;
  GOOD(reshard_model_open(path, &model));
  unlink(path);
  reshard_model_tensor tensor;
  assert_int_equal(reshard_model_count(model), 3);
  assert_int_equal(reshard_model_bytes(model), 38);
  GOOD(reshard_model_get(model, 0, &tensor));
  assert_string_equal(tensor.name, "a.w");
  assert_int_equal(tensor.dtype, RESHARD_BF16);
  assert_int_equal(tensor.ndim, 2);
  assert_int_equal(tensor.shape[1], 5);
  GOOD(reshard_model_get(model, 1, &tensor));
  assert_int_equal(tensor.ndim, 0);
  assert_int_equal(tensor.dtype, RESHARD_F64);
  reshard_model_free(model);
}

CASE(test_bad_lists) {
  if (!has_json())
    skip();
  refused_list("[{\"name\": \"a\",\n \"shape\": [3 5], \"dtype\": \"f32\"}]", "line 2", "column 1");
  refused_list("", ".json'", "line 1");
  refused_list("[] x", "line 1", "end of file");
  refused_list("{\"name\": \"a\"}", "a list of", "dtype");
  refused_list("[3]", "item 0", "no object");
  refused_list("[{\"shape\": [3], \"dtype\": \"f32\"}]", "item 0", "name");
  refused_list("[{\"name\": \"\", \"shape\": [3], \"dtype\": \"f32\"}]", "empty name", "");
  refused_list("[{\"name\": \"a\", \"dtype\": \"f32\"}]", "'a'", "shape");
  refused_list("[{\"name\": \"a\", \"shape\": 3, \"dtype\": \"f32\"}]", "'a'", "shape");
  refused_list("[{\"name\": \"a\", \"shape\": [3]}]", "'a'", "dtype");
  refused_list("[{\"name\": \"a\", \"shape\": [3], \"dtype\": 4}]", "'a'", "dtype");
  refused_list("[{\"name\": \"a\", \"shape\": [3], \"dtype\": \"f33\"}]", "'a'", "'f33'");
  refused_list("[{\"name\": \"a\", \"shape\": [3.5], \"dtype\": \"f32\"}]", "'a'", "shape[0]");
  refused_list("[{\"name\": \"a\", \"shape\": [3, -1], \"dtype\": \"f32\"}]", "'a'", "-1");
  refused_list("[{\"name\": \"a\", \"shape\": [1,1,1,1,1,1,1,1,1], \"dtype\": \"f32\"}]", "'a'", "9 dims");
  refused_list("[{\"name\": \"a\", \"shape\": [4294967296, 4294967296], \"dtype\": \"u8\"}]", "'a'", "overflows");
  refused_list("[{\"name\": \"a\", \"shape\": [4611686018427387904], \"dtype\": \"f32\"}]", "'a'", "overflows");
  refused_list("[{\"name\": \"a\", \"shape\": [0, 4294967296, 4294967296], \"dtype\": \"u8\"}]", "'a'", "overflows");
  refused_list("[{\"name\": \"a\", \"shape\": [99999999999999999999], \"dtype\": \"u8\"}]", "line 1", "integer");
  refused_list("[{\"name\": \"a\", \"shape\": [4611686018427387904], \"dtype\": \"u8\"},"
               "{\"name\": \"b\", \"shape\": [4611686018427387904], \"dtype\": \"u8\"}]",
               "'b'", "2^63");
  refused_list("[{\"name\": \"a\", \"shape\": [3], \"dtype\": \"u8\"},"
               "{\"name\": \"b\", \"shape\": [3], \"dtype\": \"u8\"},"
               "{\"name\": \"a\", \"shape\": [4], \"dtype\": \"u8\"}]",
               "'a'", "0 and 2");
  refused_list("[{\"name\": \"new\\nline\", \"shape\": 3, \"dtype\": \"u8\"}]", "'new?line'", "shape");
  refused_list("[{\"name\": \"a\", \"name\": \"b\", \"shape\": [3], \"dtype\": \"u8\"}]", "line 1", "duplicate");
  snprintf(path, sizeof path, "%s/reshard-models-missing.json", temporary());
  refused_model(path, "No such file");
  snprintf(path, sizeof path, "%s/reshard-models-missing.safetensors", temporary());
  refused_model(path, "No such file");
  snprintf(path, sizeof path, "%s/reshard-models-empty", temporary());
  assert_int_equal(mkdir(path, 0700), 0);
  refused_model(path, "directory");
  rmdir(path);
}

#define TENSOR(name, dtype, shape, offsets) \
  "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"

CASE(safetensors_header_is_read_or_refused) {
  if (!has_json())
    skip();
  static const char header[] =
      "{\"__metadata__\":{\"format\":\"pt\"}," TENSOR("b", "BF16", "[2,3]", "[8,20]") "," TENSOR(
          "a", "F64", "[]", "[0,8]") "," TENSOR("e", "U8", "[0]", "[20,20]") "}   ";
  write_header(strlen(header), header, 20);
  reshard_model model;
  GOOD(reshard_model_load(path, &model));
  unlink(path);
  assert_int_equal(reshard_model_count(model), 3);
  assert_int_equal(reshard_model_bytes(model), 20);
  reshard_model_tensor tensor;
  GOOD(reshard_model_get(model, 0, &tensor));
  assert_string_equal(tensor.name, "b");
  assert_int_equal(tensor.dtype, RESHARD_BF16);
  assert_int_equal(tensor.shape[1], 3);
  reshard_model_free(model);
}

CASE(test_bad_headers) {
  if (!has_json())
    skip();
  write_file(".safetensors", "abc", 3);
  refused_model("3 bytes", ".safetensors");
  write_header(100, "{}", 0);
  refused_model("header of 100 bytes", "file of 10");
  write_header(UINT64_MAX, "{}", 0);
  refused_model("header of 18446744073709551615 bytes", "");
  refused_header("[]", 0, "no JSON object", "");
  refused_header("{\"a\":", 0, "line 1", "column");
  refused_header("{\"a\":3}", 0, "'a'", "no object");
  refused_header("{\"a\":{\"dtype\":\"U8\",\"shape\":[1]}}", 1, "'a'", "data_offsets");
  refused_header("{" TENSOR("a", "U8", "[1]", "[0]") "}", 1, "'a'", "data_offsets");
  refused_header("{" TENSOR("a", "U8", "[1]", "[0,1.5]") "}", 1, "'a'", "data_offsets");
  refused_header("{" TENSOR("a", "U8", "[4]", "[4,0]") "}", 4, "'a'", "[4, 0]");
  refused_header("{" TENSOR("a", "U8", "[4]", "[-4,0]") "}", 4, "'a'", "[-4, 0]");
  refused_header("{" TENSOR("a", "F32", "[4]", "[0,16]") "}", 15, "'a'", "15 bytes of data");
  refused_header("{" TENSOR("a", "F32", "[4]", "[0,15]") "}", 15, "'a'", "need 16");
  refused_header("{" TENSOR("a", "U8", "[4]", "[0,4]") "," TENSOR("b", "U8", "[4]", "[3,7]") "}", 7, "'b'", "byte 3");
  refused_header("{" TENSOR("a", "U8", "[4]", "[0,4]") "," TENSOR("b", "U8", "[4]", "[5,9]") "}", 9, "'b'", "byte 5");
  refused_header("{" TENSOR("a", "U8", "[4]", "[0,4]") "}", 6, "end at byte 4", "has 6");
  refused_header("{" TENSOR("a", "U8", "[1]", "[0,1]") "," TENSOR("a", "U8", "[1]", "[0,1]") "}", 1, "duplicate",
                 "\"a\"");
}

RUN_CASES
