/* Common parts of kernels that convert numbers: a tile of boxes, and the scale of a box. */
#ifndef RS_KERNELS_BOX_CONVERT_DEVICE_CUH
#define RS_KERNELS_BOX_CONVERT_DEVICE_CUH

#include "kernels/box_convert.h"
#include "kernels/box_device.cuh"
#include "kernels/numbers.cuh"

#include <reshard/dtype.h>

namespace rs_box {

/* A tile in shared memory: its shape, the entries of that (rs_box_shape.more), and its own. */
struct convert_loops {
  rs_box_shape shape;
  rs_box_axis rows, columns, scales, tile;
  const char *src;
  char *dst;
};

struct convert_tile {
  const convert_loops *loops;
  uint32_t boxes;
  uint32_t lanes, turns; /* log2 of lanes of a box, and of the units of it that each of them has */
  __device__ __forceinline__ bool has_small_scales() const { return loops->shape.scale == RESHARD_F8_E8M0; }
};

/* The address of a box's first number on a side. */
template <bool Source> static __device__ __forceinline__ char *find_box(const convert_tile &t, uint32_t box) {
  const rs_box_shape &s = t.loops->shape;
  const uint32_t outer = rs_box_divide(box, s.inner.magic), inner = box - outer * s.inner.n;
  return Source ? const_cast<char *>(t.loops->src) + inner * s.inner.src + outer * s.outer_src
                : t.loops->dst + inner * s.inner.dst + outer * s.outer_dst;
}
static __device__ __forceinline__ char *find_scale(const convert_tile &t, uint32_t box) {
  const rs_box_axis &inner_loop = t.loops->shape.inner;
  const uint32_t outer = rs_box_divide(box, inner_loop.magic), inner = box - outer * inner_loop.n;
  return reinterpret_cast<char *>(t.loops->tile.src) + inner * t.loops->scales.src + outer * t.loops->scales.dst;
}

/* The tile of a block, in shared memory. */
static __device__ __forceinline__ convert_tile open_tile(const rs_box_batch &batch, uint32_t at, convert_loops *loops) {
  static_assert(sizeof(rs_box_shape) == 64 && sizeof(rs_box_axis) == 24, "loads of 8 bytes: 8, and 3 each");
  uint32_t k;
  const rs_box_tile tile = find_tile(batch, at, &k);
  const rs_box_shape *shape = batch.part[k].shapes + tile.shape;
  if (threadIdx.x < 20) {
    const uint32_t word = threadIdx.x < 8 ? threadIdx.x : threadIdx.x < 17 ? threadIdx.x - 8 : threadIdx.x - 17;
    const rs_box_axis *axes = batch.part[k].axes;
    const char *from = reinterpret_cast<const char *>(shape);
    if (threadIdx.x >= 8)
      from = reinterpret_cast<const char *>(
          axes + (threadIdx.x < 17 ? load<uint32_t>(from + offsetof(rs_box_shape, more)) : tile.count));
    reinterpret_cast<uint2 *>(loops)[threadIdx.x] = load<uint2>(from + 8 * word);
  } else if (threadIdx.x == 20) {
    loops[0].src = tile.src;
    loops[0].dst = tile.dst;
  }
  __syncthreads();
  return {loops, loops[0].tile.n * loops[0].shape.inner.n, loops[0].columns.n, loops[0].columns.magic};
}

/* --- Numbers in memory --- */

/* A code of 1, 2 or 4 bytes, at an address that is aligned to them. */
static __device__ __forceinline__ uint32_t load_code(const char *at, uint32_t bytes) {
  return bytes == 1 ? load<uint8_t>(at) : bytes == 2 ? load<uint16_t>(at) : load<uint32_t>(at);
}
static __device__ __forceinline__ void store_code(char *at, uint32_t code, uint32_t bytes) {
  if (bytes == 1)
    store(at, static_cast<uint8_t>(code));
  else if (bytes == 2)
    store(at, static_cast<uint16_t>(code));
  else
    store(at, code);
}

/* --- Scales --- */

/* Scales need not be aligned: one that is not goes by bytes. */
static __device__ __forceinline__ float load_scale(const char *at, bool small) {
  const uint32_t bytes = small ? 1 : 4, step = modulo_16(at) % bytes == 0 ? bytes : 1;
  uint32_t code = 0;
#pragma unroll 1
  for (uint32_t part = 0; part < bytes; part += step)
    code |= load_code(at + part, step) << 8 * part;
  return small ? rs_float_of_e8m0(code) : rs_float(code);
}
static __device__ __forceinline__ void store_scale(char *at, uint32_t code, bool small) {
  const uint32_t bytes = small ? 1 : 4, step = modulo_16(at) % bytes == 0 ? bytes : 1;
#pragma unroll 1
  for (uint32_t part = 0; part < bytes; part += step)
    store_code(at + part, code >> 8 * part, step);
}

/* The largest of a box of which each thread has one: of all its warps. */
template <typename Tile>
static __device__ __forceinline__ uint32_t find_most_of_warps(const Tile &t, uint32_t *room, uint32_t most) {
  const uint32_t warps = 1u << (t.lanes - 5), begin = threadIdx.x / 32 & ~(warps - 1);
  if (threadIdx.x % 32 == 0)
    room[threadIdx.x / 32] = most;
  __syncthreads();
  for (uint32_t i = 0; i < warps; i++)
    most = max(most, room[begin + i]);
  __syncthreads();
  return most;
}

/* From the largest magnitude of what each lane has of a box to that of the box, by the bits, whose order is that of
 * numbers, NaN above all. */
template <typename Tile>
static __device__ __forceinline__ uint32_t find_most_of_box(const Tile &t, uint32_t *room, uint32_t most) {
#pragma unroll 1
  for (uint32_t apart = 1; apart < 32 && apart < 1u << t.lanes; apart *= 2)
    most = max(most, __shfl_xor_sync(0xffffffff, most, apart));
  return t.lanes > 5 ? find_most_of_warps(t, room, most) : most;
}

/* The same from that of each unit, which may be of some boxes. */
template <typename Tile, uint32_t N>
static __device__ __forceinline__ void find_most(const Tile &t, uint32_t *room, uint32_t (&most)[N]) {
#pragma unroll
  for (uint32_t apart = 1; apart < N; apart *= 2)
    if (1u << t.turns > apart)
#pragma unroll
      for (uint32_t k = 0; k < N; k++)
        if ((k & apart) == 0)
          most[k] = most[k + apart] = max(most[k], most[k + apart]);
#pragma unroll 1
  for (uint32_t apart = 1; apart < 32 && apart < 1u << t.lanes; apart *= 2)
#pragma unroll
    for (uint32_t k = 0; k < N; k++)
      most[k] = max(most[k], __shfl_xor_sync(0xffffffff, most[k], apart));
  if (t.lanes > 5) { /* warps of a box, of which each thread has one alone */
    most[0] = find_most_of_warps(t, room, most[0]);
#pragma unroll
    for (uint32_t k = 1; k < N; k++)
      most[k] = most[0];
  }
}

/* Sets by[k] to what numbers of unit k are multiplied by. N lanes that are neighbours share a box, and each finds that
 * of one unit's box: it makes the scale, and the first lane of each box stores it; or loads it. */
template <bool Makes, typename Tile, uint32_t N>
static __device__ __forceinline__ void find_factors(const Tile &t, uint32_t first, bool stored,
                                                    const uint32_t (&most)[N], float (&by)[N]) {
  const bool small = t.has_small_scales();
  const uint32_t unit = threadIdx.x % N, lane = threadIdx.x & ((1u << t.lanes) - 1);
  const uint32_t box = first + (threadIdx.x >> t.lanes) + (unit >> t.turns) * (blockDim.x >> t.lanes);
  char *at = find_scale(t, min(box, t.boxes - 1));
  float factor;
  if (Makes) {
    uint32_t mine = most[0], code;
#pragma unroll
    for (uint32_t k = 1; k < N; k++)
      mine = k == unit ? most[k] : mine;
    factor = small ? rs_scale_e8m0(mine, &code) : rs_scale_f32(mine, &code);
    if (stored && lane < N && (unit & ((1u << t.turns) - 1)) == 0 && box < t.boxes)
      store_scale(at, code, small);
  } else {
    factor = load_scale(at, small);
  }
#pragma unroll
  for (uint32_t k = 0; k < N; k++)
    by[k] = __shfl_sync(0xffffffff, factor, static_cast<int>(k), N);
}

} // namespace rs_box

#endif
