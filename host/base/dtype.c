#include "base/dtype.h"
#include "base/base.h"

#include <reshard/dtype.h>

#include <string.h>
#include <strings.h>

static const struct {
  const char *name;        /* ours */
  const char *safetensors; /* theirs; c128 has none */
  size_t size;
} dtypes[RESHARD_DTYPE_COUNT] = {
    [RESHARD_BOOL] = {"bool", "BOOL", 1},
    [RESHARD_U8] = {"u8", "U8", 1},
    [RESHARD_I8] = {"i8", "I8", 1},
    [RESHARD_U16] = {"u16", "U16", 2},
    [RESHARD_I16] = {"i16", "I16", 2},
    [RESHARD_U32] = {"u32", "U32", 4},
    [RESHARD_I32] = {"i32", "I32", 4},
    [RESHARD_U64] = {"u64", "U64", 8},
    [RESHARD_I64] = {"i64", "I64", 8},
    [RESHARD_F8_E4M3] = {"f8_e4m3", "F8_E4M3", 1},
    [RESHARD_F8_E5M2] = {"f8_e5m2", "F8_E5M2", 1},
    [RESHARD_F8_E8M0] = {"f8_e8m0", "F8_E8M0", 1},
    [RESHARD_F16] = {"f16", "F16", 2},
    [RESHARD_BF16] = {"bf16", "BF16", 2},
    [RESHARD_F32] = {"f32", "F32", 4},
    [RESHARD_F64] = {"f64", "F64", 8},
    [RESHARD_C64] = {"c64", "C64", 8},
    [RESHARD_C128] = {"c128", NULL, 16},
};

static bool is_known_dtype(reshard_dtype dtype) { return (int)dtype > 0 && (int)dtype < RESHARD_DTYPE_COUNT; }

size_t reshard_dtype_size(reshard_dtype dtype) { return is_known_dtype(dtype) ? dtypes[dtype].size : 0; }

const char *reshard_dtype_string(reshard_dtype dtype) { return is_known_dtype(dtype) ? dtypes[dtype].name : "none"; }

bool rs_cast_knows(reshard_dtype dtype) {
  return dtype == RESHARD_F64 || dtype == RESHARD_F32 || dtype == RESHARD_F16 || dtype == RESHARD_BF16 ||
         dtype == RESHARD_F8_E4M3 || dtype == RESHARD_F8_E5M2;
}

bool rs_cast_supported(reshard_dtype from, reshard_dtype to) {
  return from != to && rs_cast_knows(from) && rs_cast_knows(to);
}

reshard_status reshard_dtype_parse(const char *text, reshard_dtype *dtype) {
  RS_TRY(RS_GIVEN("reshard_dtype_parse", text, dtype));
  for (int i = 1; i < RESHARD_DTYPE_COUNT; i++) {
    if (strcmp(text, dtypes[i].name) == 0 ||
        (dtypes[i].safetensors != NULL && strcmp(text, dtypes[i].safetensors) == 0)) {
      *dtype = (reshard_dtype)i;
      return RESHARD_SUCCESS;
    }
  }
  char names[256];
  rs_text list = {.at = names, .size = sizeof names};
  for (int i = 1; i < RESHARD_DTYPE_COUNT; i++)
    rs_text_add(&list, " %s", dtypes[i].name);
  return rs_error(RESHARD_ERROR_INVALID, "unknown dtype '%.64s'; known are%s", text, names);
}
