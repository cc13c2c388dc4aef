#include "base/dtype.h"
#include "base/base.h"

#include <reshard/dtype.h>

#include <stdio.h>
#include <stdlib.h>
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

reshard_status rs_blocks_check(const char *what, const reshard_blocks *b) {
  int64_t elements;
  if (b->rows < 1 || b->columns < 1)
    return rs_error(RESHARD_ERROR_INVALID, "%s: a block of %lld x %lld", what, (long long)b->rows,
                    (long long)b->columns);
  if (b->scales != RESHARD_F32 && b->scales != RESHARD_F8_E8M0)
    return rs_error(RESHARD_ERROR_INVALID, "%s: scales are f32 or f8_e8m0, not %s", what,
                    reshard_dtype_string(b->scales));
  if (!rs_mul(b->rows, b->columns, &elements) || elements > RS_MOST_OF_BLOCK)
    return rs_error(RESHARD_ERROR_UNSUPPORTED, "%s: a block of %lld x %lld has more than %d elements", what,
                    (long long)b->rows, (long long)b->columns, RS_MOST_OF_BLOCK);
  return RESHARD_SUCCESS;
}

const char *rs_blocks_text(char text[RS_BLOCKS_TEXT], const reshard_blocks *b) {
  snprintf(text, RS_BLOCKS_TEXT, "f8_e4m3/%lldx%lld%s", (long long)b->rows, (long long)b->columns,
           b->scales == RESHARD_F8_E8M0 ? ":e8m0" : "");
  return text;
}

/* "128x128:e8m0": an extent and what is behind it. */
static int64_t read_extent(const char **at) {
  char *end = (char *)*at;
  long long extent = **at >= '1' && **at <= '9' ? strtoll(*at, &end, 10) : 0;
  *at = end;
  return extent;
}

static bool read_blocks(const char *at, reshard_blocks *b) {
  b->rows = read_extent(&at);
  if (b->rows == 0 || *at++ != 'x')
    return false;
  b->columns = read_extent(&at);
  b->scales = strcmp(at, ":e8m0") == 0 || strcmp(at, ":f8_e8m0") == 0 ? RESHARD_F8_E8M0 : RESHARD_F32;
  return b->columns > 0 && (*at == '\0' || b->scales == RESHARD_F8_E8M0 || strcmp(at, ":f32") == 0);
}

reshard_status reshard_dtype_parse_blocks(const char *text, reshard_dtype *dtype, reshard_blocks *blocks) {
  RS_TRY(RS_GIVEN("reshard_dtype_parse_blocks", text, dtype, blocks));
  reshard_blocks b = {0};
  char name[16], what[80];
  const char *slash = strchr(text, '/');
  reshard_dtype read;
  if (slash == NULL) {
    RS_TRY(reshard_dtype_parse(text, &read));
  } else {
    snprintf(name, sizeof name, "%.*s", (int)(slash - text < 15 ? slash - text : 15), text);
    RS_TRY(reshard_dtype_parse(name, &read));
    if (read != RESHARD_F8_E4M3)
      return rs_error(RESHARD_ERROR_INVALID, "'%.64s': f8_e4m3 alone has blocks with scales", text);
    if (!read_blocks(slash + 1, &b))
      return rs_error(RESHARD_ERROR_INVALID, "'%.64s': blocks are as in f8_e4m3/128x128 or f8_e4m3/1x32:e8m0", text);
    snprintf(what, sizeof what, "'%.64s'", text);
    RS_TRY(rs_blocks_check(what, &b));
  }
  *dtype = read;
  *blocks = b;
  return RESHARD_SUCCESS;
}
