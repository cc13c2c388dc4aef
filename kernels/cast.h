/* Casts on a GPU: many tensors in one launch, their table a parameter of the kernel or in memory of the device. Plain
 * C. */
#ifndef RS_KERNELS_CAST_H
#define RS_KERNELS_CAST_H

#include "device/pods.h"

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Casts whose loops are in axes, as in rs_casts; both are read before it returns. Addresses and strides of each are
 * multiples of the size of a number. One launch for as many casts as fit in a kernel's parameters (200 with CUDA 12.1
 * and newer), or two, ... in the order of stream. most: of blocks in a launch, then there are as many launches as that
 * takes; 0: no limit. A cudaError_t: also cudaErrorInvalidValue for a pair of dtypes that has no cast. */
int rs_cast_launch(int64_t n, const rs_cast *casts, const rs_axis *axes, uint32_t most, void *stream);

/* A longer list: its table is measured, written by the host, brought to memory of the device, and launched from there,
 * in one launch. */
typedef struct rs_cast_table {
  uint32_t parts, loops, tiles;
} rs_cast_table;
/* Bytes of the table. 0: the list is for rs_cast_launch, which does it in one launch, refuses it, or divides it where
 * it is too large for one. */
size_t rs_cast_table_measure(int64_t n, const rs_cast *casts, const rs_axis *axes, rs_cast_table *table);
/* Writes the table of the same list, at an address that is a multiple of 8. */
void rs_cast_table_write(const rs_cast_table *table, int64_t n, const rs_cast *casts, const rs_axis *axes, void *host);
/* memory: of the device, with what was written. It is read when the launch runs. most: as above. A cudaError_t. */
int rs_cast_table_launch(const rs_cast_table *table, const void *memory, uint32_t most, void *stream);

#ifdef __cplusplus
}
#endif
#endif
