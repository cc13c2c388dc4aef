#include "kernels/launch.h"

#include "planted.h"

static __global__ void add(const int *a, const int *b, int *c, int64_t n, int64_t step) {
  int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n)
    c[i * step] = a[i] + b[i];
}

int planted_add(const int *a, const int *b, int *c, int64_t n, int64_t step, void *stream) {
  return rs_launch(add, dim3((unsigned)((n + 31) / 32)), dim3(32), 0, stream, a, b, c, n, step);
}

static __global__ void reverse(int *at) {
  RS_SHARED(int, tile, [64]);
  int *block = at + (int64_t)blockIdx.x * 64;
  tile[threadIdx.x] = block[threadIdx.x];
  __syncthreads();
  block[threadIdx.x] = tile[63 - threadIdx.x];
}

int planted_reverse(int *at, int64_t n, void *stream) {
  return rs_launch(reverse, dim3((unsigned)(n / 64)), dim3(64), 0, stream, at);
}

static __global__ void sum(const int *at, int64_t n, int *to) {
  for (int64_t i = threadIdx.x; i < n; i += blockDim.x)
    atomicAdd(to, at[i]);
}

int planted_sum(const int *at, int64_t n, int *to, void *stream) {
  return rs_launch(sum, dim3(1), dim3(32), 0, stream, at, n, to);
}

static __global__ void bulk(char *to, const char *from) {
  RS_SHARED_DYNAMIC(char, tile);
  RS_SHARED(uint64_t, barrier, [1]);
  int64_t at = (int64_t)blockIdx.x * 256;
  if (threadIdx.x == 0) {
    simt::mbarrier_init(barrier, 1);
    simt::proxy_fence();
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    simt::mbarrier_arrive_expect(barrier, 256);
    simt::bulk_load(tile, from + at, 256, barrier);
  }
  simt::mbarrier_wait(barrier, 0);
  if (threadIdx.x == 0) {
    simt::bulk_store(to + at, tile, 256);
    simt::bulk_commit();
    simt::bulk_wait(0);
  }
}

int planted_bulk(char *to, const char *from, int64_t n, void *stream) {
  return rs_launch(bulk, dim3((unsigned)(n / 256)), dim3(32), 256, stream, to, from);
}

static __global__ void vectors(uint4 *to, const uint4 *from, int64_t n) {
  for (int64_t i = threadIdx.x; i < n; i += blockDim.x)
    to[i] = from[i];
}

int planted_vectors(void *to, const void *from, int64_t n, void *stream) {
  return rs_launch(vectors, dim3(1), dim3(32), 0, stream, static_cast<uint4 *>(to), static_cast<const uint4 *>(from),
                   n);
}

static __global__ void wild(uintptr_t at) { *reinterpret_cast<int *>(at + threadIdx.x * sizeof(int)) = 1; }

int planted_wild(uintptr_t at, void *stream) { return rs_launch(wild, dim3(2), dim3(32), 0, stream, at); }

static __global__ void endless(int *at) {
  for (volatile int *watched = at; *watched >= 0;) {
  }
}

int planted_endless(int *at, void *stream) { return rs_launch(endless, dim3(1), dim3(2), 0, stream, at); }

static __global__ void publish(char *to, const char *from, int64_t n, unsigned *flag, unsigned value) {
  for (int64_t i = threadIdx.x; i < n; i += blockDim.x)
    to[i] = from[i];
  __syncthreads();
  if (threadIdx.x == 0)
    __atomic_store_n(flag, value, __ATOMIC_RELEASE);
}

int planted_publish(char *to, const char *from, int64_t n, unsigned *flag, unsigned value, void *stream) {
  return rs_launch(publish, dim3(1), dim3(32), 0, stream, to, from, n, flag, value);
}

static __global__ void await(char *to, const char *from, int64_t n, unsigned *flag, unsigned value, int wait) {
  while (wait && __atomic_load_n(flag, __ATOMIC_ACQUIRE) != value)
    __nanosleep(100);
  for (int64_t i = threadIdx.x; i < n; i += blockDim.x)
    to[i] = from[i];
}

int planted_await(char *to, const char *from, int64_t n, unsigned *flag, unsigned value, int wait, void *stream) {
  return rs_launch(await, dim3(1), dim3(32), 0, stream, to, from, n, flag, value, wait);
}

static __global__ void late(char *to, const char *from, int64_t n, const unsigned *flag, int anyway) {
  for (int64_t i = threadIdx.x; i < n; i += blockDim.x) {
    const char byte = from[i];
    if (__atomic_load_n(flag, __ATOMIC_ACQUIRE) == 0 || (anyway && i == 0))
      to[i] = byte;
  }
}

int planted_late(char *to, const char *from, int64_t n, const unsigned *flag, int anyway, void *stream) {
  return rs_launch(late, dim3(1), dim3(32), 0, stream, to, from, n, flag, anyway);
}
