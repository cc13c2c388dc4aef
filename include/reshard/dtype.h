/* Element types. Copies look at the width alone. Casts, files and comparisons between ranks look at the type. */
#ifndef RESHARD_DTYPE_H
#define RESHARD_DTYPE_H

#include <reshard/status.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum reshard_dtype {
  RESHARD_DTYPE_NONE = 0, /* not set; as a second, optional dtype: the same as the first */
  RESHARD_BOOL,
  RESHARD_U8,
  RESHARD_I8,
  RESHARD_U16,
  RESHARD_I16,
  RESHARD_U32,
  RESHARD_I32,
  RESHARD_U64,
  RESHARD_I64,
  RESHARD_F8_E4M3,
  RESHARD_F8_E5M2,
  RESHARD_F8_E8M0,
  RESHARD_F16,
  RESHARD_BF16,
  RESHARD_F32,
  RESHARD_F64,
  RESHARD_C64,
  RESHARD_C128,
  RESHARD_DTYPE_COUNT
} reshard_dtype;

/* Bytes of one element: 1, 2, 4, 8 or 16. 0 for RESHARD_DTYPE_NONE and unknown values. */
RESHARD_API size_t reshard_dtype_size(reshard_dtype dtype);

/* "bf16", "f8_e4m3", ... "none" for RESHARD_DTYPE_NONE and unknown values. Static lifetime. */
RESHARD_API const char *reshard_dtype_string(reshard_dtype dtype);

/* Reads a name in our spelling ("bf16") or that of safetensors ("BF16", "F8_E4M3"). Errors: RESHARD_ERROR_INVALID with
 * the text and the list of names. */
RESHARD_API reshard_status reshard_dtype_parse(const char *text, reshard_dtype *dtype);

/* Scales of f8_e4m3: one for each block of the last two dims, at most 32,768 elements. Blocks at the end of a dim are
 * shorter. A number is the product of its value and its scale. */
typedef struct reshard_blocks {
  int64_t rows, columns; /* 0: there are no scales */
  reshard_dtype scales;  /* RESHARD_F32; or RESHARD_F8_E8M0: powers of two */
} reshard_blocks;

/* Reads a name as reshard_dtype_parse, or "f8_e4m3/128x128", whose scales are f32, or "f8_e4m3/1x32:e8m0". Errors:
 * RESHARD_ERROR_INVALID; RESHARD_ERROR_UNSUPPORTED: blocks of more elements, with their number. */
RESHARD_API reshard_status reshard_dtype_parse_blocks(const char *text, reshard_dtype *dtype, reshard_blocks *blocks);

#ifdef __cplusplus
}
#endif
#endif
