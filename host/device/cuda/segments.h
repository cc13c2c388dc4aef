/* Memory of a GPU that other processes of the node can map: the storage of devices made with `shared`.
 *
 * A segment is physical memory of its own, which descriptors stand for, at addresses of its own. It is exported each
 * time that somebody asks for a descriptor: a process has few of them. A process that has a segment mapped keeps its
 * memory, also after the owner has freed it, until it closes that.
 *
 * Fabric handles (CU_MEM_HANDLE_TYPE_FABRIC) are not used. CUDA's driver API has them for processes of the same or of
 * different nodes, the latter "connected via the NVSwitch fabric" (CUmemFabricHandle). Processes that open a segment
 * are of one node, where they would get the same memory by them. But cuMemCreate refuses them to a user who has no IMEX
 * channel. Nor does a handle keep memory while it travels, as a descriptor does. NCCL, too, takes descriptors unless
 * ranks are on several nodes (ncclMnnvlCheck). A communicator over nodes that NVLink connects would need them. */
#ifndef RS_DEVICE_CUDA_SEGMENTS_H
#define RS_DEVICE_CUDA_SEGMENTS_H

#include "device/cuda/cuda.h"

/* Makes storage of the device shared from now on. RESHARD_ERROR_UNSUPPORTED where the driver has no such memory. */
reshard_status rs_cuda_share(rs_cuda *cuda);

/* In the tables of a shared device: alloc_async and free_async. Whole granules are segments, all else is as on other
 * devices. Freeing a segment waits for the stream: the driver unmaps in no stream's order. */
reshard_status rs_cuda_segment_alloc(rs_device *device, size_t bytes, void *stream, void **memory);
void rs_cuda_segment_free(rs_device *device, void *memory, void *stream);

/* Rounds bytes up to whole granules. */
reshard_status rs_cuda_segment_round(rs_device *device, size_t *bytes);
/* A segment of so many bytes, which are whole granules, on any device, for what is no storage. Freeing it waits for
 * nothing: nothing of this process uses it any more. NULL is allowed there. */
reshard_status rs_cuda_segment_create(rs_device *device, size_t bytes, void **memory);
void rs_cuda_segment_destroy(rs_device *device, void *memory);

/* Finds the segment that has all of [begin, end). */
void rs_cuda_segment_find(const rs_cuda *cuda, const void *begin, const void *end, rs_exported_memory *memory,
                          int64_t *inside, bool *found);
/* Of a segment that was found: whether it is there still, and a descriptor, which the caller closes. */
bool rs_cuda_segment_there(uint64_t number);
uint64_t rs_cuda_segments_freed(void); /* as often as one was */
reshard_status rs_cuda_segment_file(rs_device *device, uint64_t number, int *fd);

/* Maps a segment of another process by its descriptor, which stays the caller's, for kernels of the device. */
reshard_status rs_cuda_segment_open(rs_device *device, const rs_exported_memory *memory, int fd, void **at);
void rs_cuda_segment_close(rs_device *device, const rs_exported_memory *memory, void *at);

/* Lets kernels of GPU `by` reach all segments of a GPU that there are. The handles' lock is held. */
reshard_status rs_cuda_segments_let(int gpu, int by);

#endif
