/* Kernels of the tests of the virtual GPU. */
#ifndef PLANTED_H
#define PLANTED_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* c[i * step] = a[i] + b[i] for i < n, by blocks of 32 threads; a cudaError_t. */
int planted_add(const int *a, const int *b, int *c, int64_t n, int64_t step, void *stream);
/* Each block of 64 numbers is reversed, through shared memory, in place. */
int planted_reverse(int *at, int64_t n, void *stream);
/* *sum += at[i], by atomics. */
int planted_sum(const int *at, int64_t n, int *sum, void *stream);
/* to = from by asynchronous bulk copies through shared memory, 256 bytes a block. */
int planted_bulk(char *to, const char *from, int64_t n, void *stream);

/* Copies n 16-byte vectors, by plain loads and stores. */
int planted_vectors(void *to, const void *from, int64_t n, void *stream);

/* to = from, n bytes; then *flag = value, as a store that releases. Awaited: first until *flag is `value`, as loads
 * that acquire, or with no wait for it. */
int planted_publish(char *to, const char *from, int64_t n, unsigned *flag, unsigned value, void *stream);
int planted_await(char *to, const char *from, int64_t n, unsigned *flag, unsigned value, int wait, void *stream);

/* to = from, n bytes, which are loaded before *flag is; nothing is stored when that is not 0, but with `anyway`. */
int planted_late(char *to, const char *from, int64_t n, const unsigned *flag, int anyway, void *stream);

/* Writes to an address that no memory has; never ends. */
int planted_wild(uintptr_t at, void *stream);
int planted_endless(int *at, void *stream);

#ifdef __cplusplus
}
#endif
#endif
