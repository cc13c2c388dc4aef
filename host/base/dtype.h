/* Element types that hold numbers, which casts convert. */
#ifndef RS_BASE_DTYPE_H
#define RS_BASE_DTYPE_H

#include <reshard/dtype.h>

#include <stdbool.h>

/* True for f64, f32, f16, bf16, f8_e4m3 and f8_e5m2, which hold numbers. Integers, complex numbers and f8_e8m0 (scales)
 * have no casts. */
bool rs_cast_knows(reshard_dtype dtype);
/* True between all that rs_cast_knows. A dtype to itself is no cast. */
bool rs_cast_supported(reshard_dtype from, reshard_dtype to);

enum { RS_MOST_OF_BLOCK = 32768 }; /* elements */
/* True for f32, f16 and bf16, which FP8 with scales is made of. */
static inline bool rs_blocks_know(reshard_dtype wide) {
  return wide == RESHARD_F32 || wide == RESHARD_F16 || wide == RESHARD_BF16;
}
/* RESHARD_ERROR_INVALID or RESHARD_ERROR_UNSUPPORTED, with the numbers; what ("tensor 'w'") begins the text. */
reshard_status rs_blocks_check(const char *what, const reshard_blocks *blocks);
#define RS_BLOCKS_TEXT 64
/* "f8_e4m3/128x128:e8m0" */
const char *rs_blocks_text(char text[RS_BLOCKS_TEXT], const reshard_blocks *blocks);

#endif
