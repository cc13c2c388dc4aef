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

#endif
