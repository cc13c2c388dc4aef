/* The toolkit's own copy of many contiguous runs, cub::DeviceMemcpy::Batched, as a rival of the box copy. Plain C. */
#ifndef MICRO_CUB_COPY_H
#define MICRO_CUB_COPY_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Bytes of device memory that a batch of n runs needs beside its tables. */
int rs_cub_copy_workspace(int64_t n, size_t *bytes);
/* Run i: sizes[i] bytes from srcs[i] to dsts[i]. The three tables and the workspace are in memory of the device and are
 * used until stream has passed. No run overlaps a destination. In the order of stream; n below 2^32; a cudaError_t. */
int rs_cub_copy_launch(int64_t n, const void *const *srcs, void *const *dsts, const uint64_t *sizes, void *workspace,
                       size_t workspace_bytes, void *stream);

#ifdef __cplusplus
}
#endif
#endif
