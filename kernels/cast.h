/* Casts on a GPU: many tensors in one launch, their table a parameter of the kernel. Plain C. */
#ifndef RS_KERNELS_CAST_H
#define RS_KERNELS_CAST_H

#include "device/pods.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Casts whose loops are in axes, as in rs_casts; both are read before it returns. Addresses and strides of each are
 * multiples of the size of a number. One launch for as many casts as fit in a kernel's parameters (200 with CUDA 12.1
 * and newer), or two, ... in the order of stream. A cudaError_t: also cudaErrorInvalidValue for a pair of dtypes that
 * has no cast. */
int rs_cast_launch(int64_t n, const rs_cast *casts, const rs_axis *axes, void *stream);

#ifdef __cplusplus
}
#endif
#endif
