/* Selection along one dim on a GPU. Plain C. */
#ifndef RS_KERNELS_INDEX_SELECT_H
#define RS_KERNELS_INDEX_SELECT_H

#include "device/pods.h"

#ifdef __cplusplus
extern "C" {
#endif

/* In the order of stream. index and its stride are aligned to index_bytes. fault: NULL, or in memory of the device; an
 * index out of range is then not followed, and what it stands for is not written. most: of blocks in a launch, then
 * there are as many launches as that takes; 0: no limit. A cudaError_t. */
int rs_index_select_launch(const rs_select *job, rs_select_fault *fault, uint32_t most, void *stream);

#ifdef __cplusplus
}
#endif
#endif
