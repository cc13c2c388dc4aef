/* A copy of a box, element by element. */
#ifndef TESTS_ORACLE_BOX_COPY_H
#define TESTS_ORACLE_BOX_COPY_H

#include "device/pods.h"

#include <string.h>

static inline void oracle_box_copy(const char *src, char *dst, int32_t element, int naxes, const rs_axis *axes) {
  if (naxes == 0) {
    memcpy(dst, src, (size_t)element);
    return;
  }
  for (int64_t i = 0; i < axes->n; i++)
    oracle_box_copy(src + i * axes->src, dst + i * axes->dst, element, naxes - 1, axes + 1);
}

#endif
