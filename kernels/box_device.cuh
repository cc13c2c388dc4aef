/* Common parts of the box copy kernels: loads and stores by width, the tile of a block, a contiguous piece. */
#ifndef RS_KERNELS_BOX_DEVICE_CUH
#define RS_KERNELS_BOX_DEVICE_CUH

#include "kernels/box_copy.h"
#include "kernels/launch.h"

namespace rs_box {

/* That an address is of global memory is more than the compiler knows when it comes out of a table. */
template <typename T> static __device__ __forceinline__ T *global(T *p) {
#ifdef __CUDA_ARCH__
  __builtin_assume(__isGlobal(p));
#endif
  return p;
}

/* Without hints to the caches: on an H200 each of them (evict first, not in the first level) makes large copies slower,
 * loads by 5 to 10 %, stores by 1 to 3 %. */
template <typename T> static __device__ __forceinline__ T load(const char *at) {
  return *global(reinterpret_cast<const T *>(at));
}
template <typename T> static __device__ __forceinline__ void store(char *at, T value) {
  *global(reinterpret_cast<T *>(at)) = value;
}

/* A word that a meeting on another stream may store. */
static __device__ __forceinline__ uint32_t load_relaxed(const uint32_t *at) {
#ifdef __CUDA_ARCH__
  uint32_t value;
  asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(at));
  return value;
#else
  return __atomic_load_n(at, __ATOMIC_ACQUIRE);
#endif
}

/* A flag that closes copies; not 0 when nothing is to be copied: the barrier before has failed. */
static __device__ __forceinline__ uint32_t load_closed(const uint32_t *closed) {
  return closed != nullptr ? load_relaxed(closed) : 0;
}
static __device__ __forceinline__ bool is_closed(const uint32_t *closed) { return load_closed(closed) != 0; }
/* The same for one of a thread's batches of loads, from item `base` on, when they are under way: asked in the first. */
static __device__ __forceinline__ bool is_closed_late(const uint32_t *closed, uint32_t base) {
  return base < RS_BOX_THREADS && is_closed(closed);
}

/* Tile t of a batch, and the part that it is of: see rs_box_batch. */
static __device__ __forceinline__ rs_box_tile find_tile(const rs_box_batch &batch, uint32_t t, uint32_t *part) {
  uint32_t k = 0;
  while (k + 1 < batch.nparts && batch.part[k + 1].begin <= t)
    k++;
  uint32_t left = batch.nparts - k, turn = t - batch.part[k].begin;
  if (left > 1) {
    uint32_t rounds = turn / left;
    *part = k + (turn - rounds * left);
    turn = rounds;
  } else {
    *part = k;
  }
  return batch.part[*part].tiles[turn + (k > 0 ? batch.part[k - 1].count : 0)];
}

/* A shape, by loads that are under way together: were its fields read where they are needed, each decision that is made
 * of one would wait for a load of its own. Shapes are aligned to 16. */
static __device__ __forceinline__ rs_box_shape load_shape(const rs_box_shape *at) {
  static_assert(sizeof(rs_box_shape) == 64, "four loads");
  uint4 words[4];
#pragma unroll
  for (int i = 0; i < 4; i++)
    words[i] = load<uint4>(reinterpret_cast<const char *>(at) + 16 * i);
  rs_box_shape shape;
  memcpy(&shape, words, sizeof shape);
  return shape;
}

static __device__ __forceinline__ uint32_t modulo_16(const char *p) {
  return static_cast<uint32_t>(reinterpret_cast<uintptr_t>(p)) & 15;
}

/* Aligned 16 bytes of a row's destination that are whole, and can be made from aligned 16 bytes of the source. These,
 * one or two, lie in the row. What is before and behind them, at most 31 bytes each, goes by smaller units. */
struct slots {
  uint32_t head, n; /* bytes before the first one; how many */
  uint32_t shift;   /* source address modulo 16 at each of them */
};
static __device__ __forceinline__ slots find_slots(const char *src, const char *dst, uint32_t bytes) {
  slots s;
  s.head = min((16 - modulo_16(dst)) & 15, bytes);
  s.n = (bytes - s.head) / 16;
  s.shift = modulo_16(src + s.head);
  if (s.n > 0 && s.head < s.shift) { /* the first pair would begin before the row */
    s.head += 16;
    s.n--;
  }
  if (s.n > 0 && s.shift > 0 && bytes - s.head - 16 * s.n + s.shift < 16) /* the last pair would end behind it */
    s.n--;
  return s;
}

/* 16 bytes from byte `shift` on of two times 16. */
static __device__ __forceinline__ uint4 shifted(uint4 a, uint4 b, uint32_t shift) {
  uint32_t w[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
  if (shift & 8) {
#pragma unroll
    for (int i = 0; i < 6; i++)
      w[i] = w[i + 2];
  }
  if (shift & 4) {
#pragma unroll
    for (int i = 0; i < 5; i++)
      w[i] = w[i + 1];
  }
  uint32_t bits = shift % 4 * 8;
  return make_uint4(__funnelshift_r(w[0], w[1], bits), __funnelshift_r(w[1], w[2], bits),
                    __funnelshift_r(w[2], w[3], bits), __funnelshift_r(w[3], w[4], bits));
}

/* Whole slots of a contiguous piece, by all threads of the block: src and dst are those of the first one. Here and
 * below `closed` is rs_box_batch.closed_late. */
template <int Loads>
static __device__ __forceinline__ void copy_slots(const char *src, char *dst, uint32_t n, const uint32_t *closed) {
  for (uint32_t base = threadIdx.x; base < n; base += RS_BOX_THREADS * Loads) {
    uint4 v[Loads] = {};
#pragma unroll
    for (uint32_t u = 0; u < Loads; u++)
      if (base + u * RS_BOX_THREADS < n)
        v[u] = load<uint4>(src + (base + u * RS_BOX_THREADS) * 16);
    if (is_closed_late(closed, base))
      return;
#pragma unroll
    for (uint32_t u = 0; u < Loads; u++)
      if (base + u * RS_BOX_THREADS < n)
        store(dst + (base + u * RS_BOX_THREADS) * 16, v[u]);
  }
}

/* The same where the source is not aligned: the second load of a pair is the neighbour's first, from the first-level
 * cache. */
template <int Loads>
static __device__ __forceinline__ void copy_shifted_slots(const char *src, char *dst, uint32_t n, uint32_t shift,
                                                          const uint32_t *closed) {
  const char *from = src - shift;
  for (uint32_t base = threadIdx.x; base < n; base += RS_BOX_THREADS * Loads) {
    uint4 a[Loads] = {}, b[Loads] = {};
#pragma unroll
    for (uint32_t u = 0; u < Loads; u++)
      if (base + u * RS_BOX_THREADS < n) {
        a[u] = load<uint4>(from + (base + u * RS_BOX_THREADS) * 16);
        b[u] = load<uint4>(from + (base + u * RS_BOX_THREADS) * 16 + 16);
      }
    if (is_closed_late(closed, base))
      return;
#pragma unroll
    for (uint32_t u = 0; u < Loads; u++)
      if (base + u * RS_BOX_THREADS < n)
        store(dst + (base + u * RS_BOX_THREADS) * 16, shifted(a[u], b[u], shift));
  }
}

static __device__ __forceinline__ void copy_contiguous(const char *src, char *dst, uint32_t bytes,
                                                       const uint32_t *closed) {
  slots s = find_slots(src, dst, bytes);
  if (s.shift == 0)
    copy_slots<RS_BOX_LINE_LOADS>(src + s.head, dst + s.head, s.n, closed);
  else
    copy_shifted_slots<RS_BOX_SHIFT_LOADS>(src + s.head, dst + s.head, s.n, s.shift, closed);
  /* The ends, a byte a thread. */
  uint32_t tail = s.head + 16 * s.n;
  uint32_t at = threadIdx.x < 32 ? threadIdx.x : tail + threadIdx.x - 32;
  if (threadIdx.x < 64 && at < (threadIdx.x < 32 ? s.head : bytes)) {
    const uint8_t end = load<uint8_t>(src + at);
    if (!is_closed(closed))
      store(dst + at, end);
  }
}

} // namespace rs_box

#endif
