/* Small kernels with which the executor is tested. Launchers as in kernels/: a cudaError_t each. */
#ifndef SIMT_PROBES_H
#define SIMT_PROBES_H

#include "kernels/box_copy.h"
#include "kernels/cast.h"

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* out[i] = a number made of all coordinates of the thread and its block. */
int probe_coordinates(uint64_t *out, const unsigned grid[3], const unsigned block[3]);
/* out[y][x] = in[x][y], n x n, in tiles in shared memory. */
int probe_transpose(const float *in, float *out, int n);
/* The same without its barrier: wrong on purpose. */
int probe_transpose_unordered(const float *in, float *out, int n);
/* out[block] = sum of in over the block's `threads` elements: shuffles, shared memory, a vote. */
int probe_sum(const uint32_t *in, uint32_t *out, unsigned blocks, unsigned threads);
/* One byte from [0, bytes) of dynamic shared memory, before anybody has written there. */
int probe_dynamic(size_t bytes, size_t at, unsigned char *out, int ask_first);
/* Results of each warp function in each lane: out[32 * k + lane]. */
int probe_warp(uint32_t *out);

enum probe_mistake {
  PROBE_RETURN,           /* some threads return before a barrier */
  PROBE_OTHER_BARRIER,    /* threads wait at two places */
  PROBE_WARP_MASK,        /* a lane calls with a mask that it is not in */
  PROBE_WARP_MISSING,     /* a lane of the mask never comes */
  PROBE_WARP_OVERLAP,     /* two masks with a common lane */
  PROBE_MISALIGNED,       /* 16 bytes at an address that is not a multiple */
  PROBE_MISALIGNED_PLAIN, /* the same, by a plain store */
  PROBE_SHARED_SIZE,      /* more than 48 KiB of static shared memory */
  PROBE_MBARRIER,         /* fewer bytes than were announced */
  PROBE_UNFENCED,         /* a bulk copy before the fence */
  PROBE_BULK_STORE,       /* ends before its source was read */
};
int probe_wrong(enum probe_mistake mistake, uint32_t *memory);

/* Copies n blocks of 256 bytes from in to out over shared memory: by cp.async, by bulk copies with an mbarrier, by
 * bulk stores. wait: with the waits that it takes; without them out gets what shared memory held before. */
int probe_async(const unsigned char *in, unsigned char *out, unsigned blocks, int wait);
int probe_bulk(const unsigned char *in, unsigned char *out, unsigned blocks, int wait);

/* least[0] = the least of in, by atomics of all threads; count[0] += how many were even. */
int probe_atomics(const uint64_t *in, unsigned n, uint64_t *least, uint32_t *count);

/* kernels/cast.cu and index_select.cu compiled with small limits: lists are cut in many launches. */
int rs_cast_launch_small(int64_t n, const rs_cast *casts, const rs_axis *axes, uint32_t most, void *stream);
size_t rs_cast_table_measure_small(int64_t n, const rs_cast *casts, const rs_axis *axes, rs_cast_table *table);
void rs_cast_table_write_small(const rs_cast_table *table, int64_t n, const rs_cast *casts, const rs_axis *axes,
                               void *host);
int rs_cast_table_launch_small(const rs_cast_table *table, const void *memory, uint32_t most, void *stream);
int rs_index_select_launch_small(const rs_select *job, rs_select_fault *fault, uint32_t most, void *stream);

#ifdef __cplusplus
}
#endif
#endif
