/* Filling and checking: memory is taken as words, one a thread and step, in strides of the whole grid.
 *
 * A checksum is the sum over all words of mix(word, place), so the order of the sum does not matter: each thread sums
 * what it meets, a warp adds by shuffles, a block over shared memory, and blocks by one atomic addition each. Words are
 * those of the address modulo 8 = 0 shifted to begin at byte 0 of the memory, so the alignment does not matter either.
 */
#include "kernels/fill.h"

#include "kernels/launch.h"

namespace {

enum { THREADS = 256, BLOCKS = 2048, WARPS = THREADS / 32 };

/* As many blocks as there is work for, and enough to fill any GPU. */
dim3 blocks_for(int64_t steps) {
  int64_t blocks = (steps + THREADS - 1) / THREADS;
  return dim3(static_cast<unsigned>(blocks < BLOCKS ? blocks : static_cast<int64_t>(BLOCKS)));
}
__device__ __forceinline__ int64_t first_step() { return static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x; }
__device__ __forceinline__ int64_t all_threads() { return static_cast<int64_t>(gridDim.x) * THREADS; }

/* --- Patterns ----------------------------------------------------------------------------------------------------*/
struct pattern {
  unsigned char at[16]; /* as it is at an address that is a multiple of 16 */
};

__global__ void __launch_bounds__(THREADS) fill(char *dst, int64_t bytes, RS_GRID_CONSTANT(pattern) p) {
  int64_t head = static_cast<int64_t>(-reinterpret_cast<uintptr_t>(dst) & 15);
  head = head < bytes ? head : bytes;
  int64_t whole = (bytes - head) / 16, tail = head + whole * 16;
  uint4 value;
  memcpy(&value, p.at, sizeof value);
  for (int64_t i = first_step(); i < whole; i += all_threads())
    reinterpret_cast<uint4 *>(dst + head)[i] = value;
  if (blockIdx.x == 0) { // the ends are shorter than 16 bytes each
    int64_t i = threadIdx.x < 16 ? threadIdx.x : tail + threadIdx.x - 16;
    if (threadIdx.x < 16 ? i < head : i < bytes)
      dst[i] = static_cast<char>(p.at[reinterpret_cast<uintptr_t>(dst + i) & 15]);
  }
}

/* --- Stamps ------------------------------------------------------------------------------------------------------*/
__device__ __forceinline__ uint64_t stamp(uint64_t key, int64_t index) {
  return (key + static_cast<uint64_t>(index)) * 0x9e3779b97f4a7c15u;
}
template <typename T> __device__ __forceinline__ T stamp_of(uint64_t key, int64_t index) {
  return static_cast<T>(stamp(key, index) >> (64 - 8 * sizeof(T)));
}

template <typename T> __global__ void __launch_bounds__(THREADS) write_stamps(T *dst, int64_t n, uint64_t key) {
  for (int64_t i = first_step(); i < n; i += all_threads())
    dst[i] = stamp_of<T>(key, i);
}

/* The sum of the threads' numbers, in each of them. */
__device__ __forceinline__ uint64_t block_sum(uint64_t x) {
  RS_SHARED(uint64_t, warps, [WARPS]);
  for (int step = 16; step > 0; step /= 2)
    x += __shfl_down_sync(0xffffffffu, x, step);
  if (threadIdx.x % 32 == 0)
    warps[threadIdx.x / 32] = x;
  __syncthreads();
  x = 0;
  for (int i = 0; i < WARPS; i++)
    x += warps[i];
  return x;
}

__device__ __forceinline__ void add_block_sum(uint64_t x, uint64_t *sum) {
  x = block_sum(x);
  if (threadIdx.x == 0)
    atomicAdd(reinterpret_cast<unsigned long long *>(sum), static_cast<unsigned long long>(x));
}

/* parts: 2 where an element is two stamps of 8 bytes. */
template <typename T>
__global__ void __launch_bounds__(THREADS)
    count_wrong(const T *at, int64_t n, int parts, uint64_t key, uint64_t *wrong) {
  uint64_t count = 0;
  for (int64_t i = first_step(); i < n; i += all_threads()) {
    bool same = true;
    for (int k = 0; k < parts; k++)
      same = same && at[i * parts + k] == stamp_of<T>(key, i * parts + k);
    count += !same;
  }
  add_block_sum(count, wrong);
}

/* --- Checksums ---------------------------------------------------------------------------------------------------*/
__host__ __device__ inline uint64_t mix(uint64_t word, int64_t place) {
  uint64_t x = word ^ (static_cast<uint64_t>(place) + 1) * 0x9e3779b97f4a7c15u;
  x = (x ^ x >> 32) * 0xd6e8feb86659fd93u;
  x = (x ^ x >> 32) * 0xd6e8feb86659fd93u;
  return x ^ x >> 32;
}

/* Bytes [8 i, 8 i + 8) of the memory, 0 behind its end. */
__host__ __device__ inline uint64_t word_at(const unsigned char *at, int64_t bytes, int64_t i) {
  uint64_t word = 0;
  for (int k = 0; k < 8 && 8 * i + k < bytes; k++)
    word |= static_cast<uint64_t>(at[8 * i + k]) << 8 * k;
  return word;
}

__global__ void __launch_bounds__(THREADS) checksum(const unsigned char *at, int64_t bytes, uint64_t *sum) {
  bool aligned = reinterpret_cast<uintptr_t>(at) % 8 == 0;
  uint64_t x = 0;
  for (int64_t i = first_step(); i < (bytes + 7) / 8; i += all_threads())
    x += mix(aligned && 8 * i + 8 <= bytes ? reinterpret_cast<const uint64_t *>(at)[i] : word_at(at, bytes, i), i);
  add_block_sum(x, sum);
}

template <typename T> int launch_stamp(void *dst, int64_t n, uint64_t key, void *stream) {
  return rs_launch(write_stamps<T>, blocks_for(n), dim3(THREADS), 0, stream, static_cast<T *>(dst), n, key);
}
template <typename T>
int launch_check(const void *at, int64_t n, int parts, uint64_t key, uint64_t *wrong, void *stream) {
  return rs_launch(count_wrong<T>, blocks_for(n), dim3(THREADS), 0, stream, static_cast<const T *>(at), n, parts, key,
                   wrong);
}

} // namespace

extern "C" int rs_fill_launch(void *dst, size_t bytes, const unsigned char bytes_of[16], void *stream) {
  pattern p;
  size_t at = reinterpret_cast<uintptr_t>(dst);
  for (size_t i = 0; i < 16; i++)
    p.at[(at + i) % 16] = bytes_of[i];
  if (bytes == 0)
    return cudaSuccess;
  int64_t n = static_cast<int64_t>(bytes);
  return rs_launch(fill, blocks_for(n / 16 + 1), dim3(THREADS), 0, stream, static_cast<char *>(dst), n, p);
}

extern "C" int rs_stamp_launch(void *dst, int width, int64_t n, uint64_t key, int64_t first, void *stream) {
  switch (width) {
  case 1: return launch_stamp<uint8_t>(dst, n, key + static_cast<uint64_t>(first), stream);
  case 2: return launch_stamp<uint16_t>(dst, n, key + static_cast<uint64_t>(first), stream);
  case 4: return launch_stamp<uint32_t>(dst, n, key + static_cast<uint64_t>(first), stream);
  case 8: return launch_stamp<uint64_t>(dst, n, key + static_cast<uint64_t>(first), stream);
  case 16: return launch_stamp<uint64_t>(dst, 2 * n, key + 2 * static_cast<uint64_t>(first), stream);
  default: return cudaErrorInvalidValue;
  }
}

extern "C" int rs_stamp_check_launch(const void *at, int width, int64_t n, uint64_t key, int64_t first, uint64_t *wrong,
                                     void *stream) {
  uint64_t from = static_cast<uint64_t>(first);
  switch (width) {
  case 1: return launch_check<uint8_t>(at, n, 1, key + from, wrong, stream);
  case 2: return launch_check<uint16_t>(at, n, 1, key + from, wrong, stream);
  case 4: return launch_check<uint32_t>(at, n, 1, key + from, wrong, stream);
  case 8: return launch_check<uint64_t>(at, n, 1, key + from, wrong, stream);
  case 16: return launch_check<uint64_t>(at, n, 2, key + 2 * from, wrong, stream);
  default: return cudaErrorInvalidValue;
  }
}

extern "C" int rs_checksum_launch(const void *at, size_t bytes, uint64_t *sum, void *stream) {
  int64_t n = static_cast<int64_t>(bytes);
  return rs_launch(checksum, blocks_for((n + 7) / 8), dim3(THREADS), 0, stream, static_cast<const unsigned char *>(at),
                   n, sum);
}

extern "C" uint64_t rs_checksum_host(const void *at, size_t bytes) {
  uint64_t sum = 0;
  int64_t n = static_cast<int64_t>(bytes);
  for (int64_t i = 0; i < (n + 7) / 8; i++)
    sum += mix(word_at(static_cast<const unsigned char *>(at), n, i), i);
  return sum;
}
