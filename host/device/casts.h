/* Lists of casts. */
#ifndef RS_DEVICE_CASTS_H
#define RS_DEVICE_CASTS_H

#include "base/base.h"
#include "device/pods.h"

#include <reshard/dtype.h>

/* Casts of one list may run in any order and at the same time. */
typedef struct rs_casts {
  RS_VEC(rs_cast) cast;
  RS_VEC(rs_axis) axis;
} rs_casts;
/* True for f64, f32, f16, bf16, f8_e4m3 and f8_e5m2, which hold numbers. Integers, complex numbers and f8_e8m0 (scales)
 * have no casts. */
bool rs_cast_knows(reshard_dtype dtype);
/* True between all that rs_cast_knows. A dtype to itself is no cast. */
bool rs_cast_supported(reshard_dtype from, reshard_dtype to);
/* Appends a cast with loops (outermost first, byte strides), merging loops and elements as rs_copies_add does. n == 0
 * in any axis adds nothing. RESHARD_ERROR_UNSUPPORTED where rs_cast_supported says no. */
reshard_status rs_casts_add(rs_casts *casts, const char *src, char *dst, reshard_dtype from, reshard_dtype to,
                            int naxes, const rs_axis *axes);
void rs_casts_free(rs_casts *casts);

#endif
