/* Filling and checking memory of a GPU, for tests and for `-c`. All in the order of stream; results are numbers in
 * memory of the device. Memory may have any alignment, except that elements are aligned to their width. A cudaError_t
 * each. Plain C. */
#ifndef RS_KERNELS_FILL_H
#define RS_KERNELS_FILL_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* byte i = pattern[i % 16]: a value of 1, 2, 4, 8 or 16 bytes that is repeated; poison; zeros. */
int rs_fill_launch(void *dst, size_t bytes, const unsigned char pattern[16], void *stream);

/* Element i, of 1, 2, 4 or 8 bytes, = the high bits of (key + first + i) x an odd constant: what tells where a number
 * belongs (bench/bench/data.c fills the CPU's memory so). Elements of 16 bytes are two of 8. */
int rs_stamp_launch(void *dst, int width, int64_t n, uint64_t key, int64_t first, void *stream);
/* *wrong += how many elements of the same differ. */
int rs_stamp_check_launch(const void *at, int width, int64_t n, uint64_t key, int64_t first, uint64_t *wrong,
                          void *stream);

/* *sum += a sum over all bytes and their places, modulo 2^64: equal for equal memory, whatever its alignment; as good
 * as surely another one where a byte differs or two are exchanged. */
int rs_checksum_launch(const void *at, size_t bytes, uint64_t *sum, void *stream);
/* The same of memory of the host. */
uint64_t rs_checksum_host(const void *at, size_t bytes);

#ifdef __cplusplus
}
#endif
#endif
