/* Lists of casts. */
#ifndef RS_DEVICE_CASTS_H
#define RS_DEVICE_CASTS_H

#include "base/base.h"
#include "base/dtype.h"
#include "device/pods.h"

/* Casts of one list may run in any order and at the same time. */
typedef struct rs_casts {
  RS_VEC(rs_cast) cast;
  RS_VEC(rs_axis) axis;
} rs_casts;
/* Appends a cast with loops (outermost first, byte strides), merging loops and elements as rs_copies_add does. n == 0
 * in any axis adds nothing. RESHARD_ERROR_UNSUPPORTED where rs_cast_supported says no. */
reshard_status rs_casts_add(rs_casts *casts, const char *src, char *dst, reshard_dtype from, reshard_dtype to,
                            int naxes, const rs_axis *axes);
void rs_casts_free(rs_casts *casts);

#endif
