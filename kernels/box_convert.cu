/* Box copies that convert numbers: casts, and f8_e4m3 with a scale for each block of numbers.
 *
 * A tile is a number of equal boxes of rows and columns. As many lanes as it takes share a box, and hold all of its
 * numbers in registers, as f32: so a block that gets a scale is read once. Its largest magnitude comes by shuffles,
 * between warps by shared memory. Small boxes are held several at a time, so that a thread has as many loads under way
 * as for a large one.
 *
 * There is a load for each dtype and a store for each, and no code for a pair. Numbers of up to 4 bytes go in units of
 * 4 where these are whole and the wider side is aligned to them. Values that stand behind scales in messages begin
 * anywhere: a side that is not aligned goes by bytes. All others go one by one. A box that is more than lanes hold then
 * takes several turns, and is read twice where it gets a scale. */
#include "kernels/box_device.cuh"
#include "kernels/numbers.cuh"

#include <reshard/dtype.h>

using namespace rs_box;

namespace {

constexpr uint32_t UNITS = RS_BOX_CONVERT_UNITS;

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
};

/* Addresses of a box's first number on both sides. */
struct box_place {
  const char *src;
  char *dst;
};

__device__ __forceinline__ box_place find_box(const convert_tile &t, uint32_t box) {
  const rs_box_shape &s = t.loops->shape;
  const uint32_t outer = rs_box_divide(box, s.inner.magic), inner = box - outer * s.inner.n;
  return {t.loops->src + inner * s.inner.src + outer * s.outer_src,
          t.loops->dst + inner * s.inner.dst + outer * s.outer_dst};
}
__device__ __forceinline__ char *find_scale(const convert_tile &t, uint32_t box) {
  const rs_box_axis &inner_loop = t.loops->shape.inner;
  const uint32_t outer = rs_box_divide(box, inner_loop.magic), inner = box - outer * inner_loop.n;
  return reinterpret_cast<char *>(t.loops->tile.src) + inner * t.loops->scales.src + outer * t.loops->scales.dst;
}

/* --- Numbers in memory --- */

/* Bytes of a number that is not aligned come one after the other: all at once would take more registers than there are.
 */

template <int Bytes> __device__ __forceinline__ uint64_t load_code(const char *at, bool aligned) {
  if constexpr (Bytes == 8) {
    if (aligned) {
      const uint2 v = load<false, uint2>(at);
      return static_cast<uint64_t>(v.y) << 32 | v.x;
    }
  } else if (Bytes == 1 || aligned) {
    return load<false, typename rs_unit<Bytes>::type>(at);
  }
  uint64_t code = 0;
  at = global(at);
#pragma unroll 1
  for (int i = 0; i < Bytes; i++)
    code |= static_cast<uint64_t>(load<false, uint8_t>(at + i)) << 8 * i;
  return code;
}
template <int Bytes> __device__ __forceinline__ void store_code(char *at, uint64_t code, bool aligned) {
  if (Bytes == 1 || aligned) {
    if constexpr (Bytes == 8)
      store<false>(at, make_uint2(static_cast<uint32_t>(code), static_cast<uint32_t>(code >> 32)));
    else
      store<false>(at, static_cast<typename rs_unit<Bytes>::type>(code));
    return;
  }
  at = global(at);
#pragma unroll 1
  for (int i = 0; i < Bytes; i++)
    store<false>(at + i, static_cast<uint8_t>(code >> 8 * i));
}

/* Four numbers at an address that is aligned to as many. */
template <int Bytes> __device__ __forceinline__ void load_four(uint64_t (&code)[4], const char *at) {
  if constexpr (Bytes == 4) {
    const uint4 v = load<false, uint4>(at);
    code[0] = v.x, code[1] = v.y, code[2] = v.z, code[3] = v.w;
  } else if constexpr (Bytes == 2) {
    const uint2 v = load<false, uint2>(at);
    code[0] = v.x & 0xffff, code[1] = v.x >> 16, code[2] = v.y & 0xffff, code[3] = v.y >> 16;
  } else {
    const uint32_t v = load<false, uint32_t>(at);
#pragma unroll
    for (int i = 0; i < 4; i++)
      code[i] = v >> 8 * i & 0xff;
  }
}
template <int Bytes> __device__ __forceinline__ void store_four(char *at, const uint64_t (&code)[4]) {
  uint32_t low[4];
#pragma unroll
  for (int i = 0; i < 4; i++)
    low[i] = static_cast<uint32_t>(code[i]);
  if constexpr (Bytes == 4)
    store<false>(at, make_uint4(low[0], low[1], low[2], low[3]));
  else if constexpr (Bytes == 2)
    store<false>(at, make_uint2(low[0] | low[1] << 16, low[2] | low[3] << 16));
  else
    store<false>(at, low[0] | low[1] << 8 | low[2] << 16 | low[3] << 24);
}

/* --- Boxes --- */

/* Makes the compiler compute again what it has of a number: addresses of loads would stay in registers until stores. */
__device__ __forceinline__ uint32_t anew(uint32_t number) {
#ifdef __CUDA_ARCH__
  asm volatile("" : "+r"(number));
#endif
  return number;
}

/* Calls each(k, src, dst) for the units that a thread has of boxes from `first` on, in their turns from `begin` on. */
template <int V, typename Each>
__device__ __forceinline__ void each_unit(const convert_tile &t, uint32_t first, uint32_t begin, Each each) {
  const uint32_t lane = threadIdx.x & ((1u << t.lanes) - 1), last_turn = (1u << t.turns) - 1;
  box_place place = {};
  uint32_t box = anew(first) + (threadIdx.x >> t.lanes);
  begin = anew(begin);
#pragma unroll
  for (uint32_t k = 0; k < UNITS; k++) {
    const uint32_t turn = (begin + k) & last_turn, unit = (turn << t.lanes) + lane;
    if (k == 0 || turn == 0) {
      box += k == 0 ? 0 : blockDim.x >> t.lanes;
      place = find_box(t, box);
    }
    if (box < t.boxes && unit < t.loops->rows.n) {
      const uint32_t row = rs_box_divide(unit, t.loops->shape.magic);
      const uint32_t column = (unit - row * t.loops->shape.items) * V;
      each(k, place.src + row * t.loops->rows.src + column * t.loops->columns.src,
           place.dst + row * t.loops->rows.dst + column * t.loops->columns.dst);
    }
  }
}

template <int From, int V>
__device__ __forceinline__ void load_units(const convert_tile &t, uint32_t first, uint32_t begin,
                                           float (&v)[UNITS * V]) {
  constexpr int bytes = rs_number_bytes(From);
  const bool aligned = V * bytes == 16 || (t.loops->shape.grain & 1) != 0, odd = t.loops->shape.to != RESHARD_F32;
  each_unit<V>(t, first, begin, [&](uint32_t k, const char *at, char *) {
    uint64_t code[4];
    if (V == 4 && aligned)
      load_four<bytes>(code, at);
#pragma unroll
    for (int i = 0; i < V; i++) {
      if (V == 1 || !aligned)
        code[i] = load_code<bytes>(at + i * bytes, V == 1 && aligned);
      v[k * V + i] = rs_number_of<From>(code[i], odd);
    }
  });
}

template <int To, int V>
__device__ __forceinline__ void store_units(const convert_tile &t, uint32_t first, uint32_t begin,
                                            const float (&v)[UNITS * V]) {
  constexpr int bytes = rs_number_bytes(To);
  const bool aligned = V * bytes == 16 || (t.loops->shape.grain & 2) != 0; /* the wider side always is */
  each_unit<V>(t, first, begin, [&](uint32_t k, const char *, char *at) {
    uint64_t code[4];
#pragma unroll
    for (int i = 0; i < V; i++) {
      code[i] = rs_code_of<To>(v[k * V + i]);
      if (V == 1 || !aligned)
        store_code<bytes>(at + i * bytes, code[i], V == 1 && aligned);
    }
    if (V == 4 && aligned)
      store_four<bytes>(at, code);
  });
}

template <int V>
__device__ __forceinline__ void load_any(const convert_tile &t, int from, uint32_t first, uint32_t begin,
                                         float (&v)[UNITS * V]) {
  switch (from) {
  case RESHARD_F8_E4M3: load_units<RS_E4M3, V>(t, first, begin, v); break;
  case RESHARD_F8_E5M2: load_units<RS_E5M2, V>(t, first, begin, v); break;
  case RESHARD_F16: load_units<RS_F16, V>(t, first, begin, v); break;
  case RESHARD_BF16: load_units<RS_BF16, V>(t, first, begin, v); break;
  case RESHARD_F32: load_units<RS_F32, V>(t, first, begin, v); break;
  default:
    if constexpr (V == 1)
      load_units<RS_F64, V>(t, first, begin, v);
  }
}
template <int V>
__device__ __forceinline__ void store_any(const convert_tile &t, int to, uint32_t first, uint32_t begin,
                                          const float (&v)[UNITS * V]) {
  switch (to) {
  case RESHARD_F8_E4M3: store_units<RS_E4M3, V>(t, first, begin, v); break;
  case RESHARD_F8_E5M2: store_units<RS_E5M2, V>(t, first, begin, v); break;
  case RESHARD_F16: store_units<RS_F16, V>(t, first, begin, v); break;
  case RESHARD_BF16: store_units<RS_BF16, V>(t, first, begin, v); break;
  case RESHARD_F32: store_units<RS_F32, V>(t, first, begin, v); break;
  default:
    if constexpr (V == 1)
      store_units<RS_F64, V>(t, first, begin, v);
  }
}

/* --- Scales --- */

/* From the largest magnitude of each unit to that of its box, by the bits, whose order is that of numbers, NaN above
 * all. */
__device__ __forceinline__ void find_most(const convert_tile &t, uint32_t *room, uint32_t (&most)[UNITS]) {
#pragma unroll
  for (uint32_t apart = 1; apart < UNITS; apart *= 2)
    if (1u << t.turns > apart)
#pragma unroll
      for (uint32_t k = 0; k < UNITS; k++)
        if ((k & apart) == 0)
          most[k] = most[k + apart] = max(most[k], most[k + apart]);
#pragma unroll 1
  for (uint32_t apart = 1; apart < 32 && apart < 1u << t.lanes; apart *= 2)
#pragma unroll
    for (uint32_t k = 0; k < UNITS; k++)
      most[k] = max(most[k], __shfl_xor_sync(0xffffffff, most[k], apart));
  if (t.lanes > 5) { /* warps of a box, of which each thread has one alone */
    const uint32_t warps = 1u << (t.lanes - 5), begin = threadIdx.x / 32 & ~(warps - 1);
    room[threadIdx.x / 32] = most[0];
    __syncthreads();
    for (uint32_t i = 0; i < warps; i++)
      most[0] = max(most[0], room[begin + i]);
    __syncthreads();
#pragma unroll
    for (uint32_t k = 1; k < UNITS; k++)
      most[k] = most[0];
  }
}

/* Sets by[k] to what numbers of unit k are multiplied by. UNITS lanes that are neighbours share a box, and each finds
 * that of one unit's box: it makes the scale, and the first lane of each box stores it; or loads it. */
template <bool Makes>
__device__ __forceinline__ void find_factors(const convert_tile &t, uint32_t first, bool stored,
                                             const uint32_t (&most)[UNITS], float (&by)[UNITS]) {
  const bool small = t.loops->shape.scale == RESHARD_F8_E8M0;
  const uint32_t unit = threadIdx.x % UNITS, lane = threadIdx.x & ((1u << t.lanes) - 1);
  const uint32_t box = first + (threadIdx.x >> t.lanes) + (unit >> t.turns) * (blockDim.x >> t.lanes);
  char *at = find_scale(t, min(box, t.boxes - 1));
  const bool aligned = modulo_16(at) % 4 == 0;
  float factor;
  if (Makes) {
    uint32_t mine = most[0], code;
#pragma unroll
    for (uint32_t k = 1; k < UNITS; k++)
      mine = k == unit ? most[k] : mine;
    factor = small ? rs_scale_e8m0(mine, &code) : rs_scale_f32(mine, &code);
    if (stored && lane < UNITS && (unit & ((1u << t.turns) - 1)) == 0 && box < t.boxes) {
      if (small)
        store<false>(at, static_cast<uint8_t>(code));
      else
        store_code<4>(at, code, aligned);
    }
  } else {
    factor =
        small ? rs_float_of_e8m0(load<false, uint8_t>(at)) : rs_float(static_cast<uint32_t>(load_code<4>(at, aligned)));
  }
#pragma unroll
  for (uint32_t k = 0; k < UNITS; k++)
    by[k] = __shfl_sync(0xffffffff, factor, static_cast<int>(k), UNITS);
}

/* --- A tile --- */

/* Boxes from `first` on that are held at one time; or one that is not held whole, some turns after others: first for
 * its scale alone, where it gets one. */
template <int V>
__device__ __forceinline__ void convert_held(const convert_tile &t, uint32_t first, const uint32_t *closed,
                                             uint32_t *room) {
  const rs_box_shape &shape = t.loops->shape;
  const bool scales = shape.scale != 0, makes = scales && shape.to == RESHARD_F8_E4M3;
  const uint32_t turns = max(1u << t.turns, UNITS);
  uint32_t most[UNITS] = {};
  float by[UNITS];
#pragma unroll 1
  for (bool ahead = makes && turns > UNITS; true; ahead = false) {
#pragma unroll 1
    for (uint32_t begin = 0; begin < turns; begin += UNITS) {
      float v[UNITS * V] = {};
      load_any<V>(t, shape.from, first, begin, v);
      const bool stored = !is_closed(closed);
      if (makes)
#pragma unroll
        for (uint32_t i = 0; i < UNITS * V; i++)
          most[i / V] = max(most[i / V], rs_bits(v[i]) & 0x7fffffffu);
      if (ahead)
        continue;
      if (makes && begin == 0) {
        find_most(t, room, most);
        find_factors<true>(t, first, stored, most, by);
      } else if (scales && begin == 0) {
        find_factors<false>(t, first, false, most, by);
      }
      if (scales)
#pragma unroll
        for (uint32_t i = 0; i < UNITS * V; i++)
          v[i] = v[i] * by[i / V];
      if (stored)
        store_any<V>(t, shape.to, first, begin, v);
    }
    if (!ahead)
      return;
  }
}

template <int V>
__device__ __forceinline__ void convert_boxes(const convert_tile &t, const uint32_t *closed, uint32_t *room) {
  const uint32_t together = (blockDim.x >> t.lanes) * max(1u, UNITS >> t.turns);
  for (uint32_t first = 0; first < t.boxes; first += together)
    convert_held<V>(t, first, closed, room);
}

__device__ __forceinline__ void convert(const rs_box_batch &batch, uint32_t at) {
  RS_SHARED(convert_loops, loops, [1]);
  RS_SHARED(uint32_t, room, [RS_BOX_CONVERT_THREADS / 32]);
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
          axes + (threadIdx.x < 17 ? load<false, uint32_t>(from + offsetof(rs_box_shape, more)) : tile.count));
    reinterpret_cast<uint2 *>(loops)[threadIdx.x] = load<false, uint2>(from + 8 * word);
  } else if (threadIdx.x == 20) {
    loops[0].src = tile.src;
    loops[0].dst = tile.dst;
  }
  __syncthreads();
  const convert_tile t = {loops, loops[0].tile.n * loops[0].shape.inner.n, loops[0].columns.n, loops[0].columns.magic};
  if (loops[0].shape.kind == RS_BOX_CONVERT_4)
    convert_boxes<4>(t, batch.closed_late, room);
  else
    convert_boxes<1>(t, batch.closed_late, room);
}

__global__ static void __launch_bounds__(RS_BOX_CONVERT_THREADS, 1)
    copy_converts(RS_GRID_CONSTANT(rs_box_batch) batch, uint32_t first) {
  if (!is_closed(batch.closed))
    convert(batch, first + blockIdx.x);
}

} // namespace

extern "C" int rs_box_convert_load(void) { return rs_launch_load(copy_converts); }

/* Where blocks are limited there are as many launches as that takes: a loop over tiles would take registers. */
extern "C" int rs_box_convert_launch(const rs_box_batch *batch, uint32_t most, void *stream) {
  uint32_t threads = RS_BOX_THREADS; /* as many as the largest box takes */
  for (uint32_t k = 0; k < batch->nparts; k++)
    threads = max(threads, batch->part[k].threads);
  int error = cudaSuccess;
  for (uint32_t first = 0, blocks; first < batch->tiles && error == cudaSuccess; first += blocks) {
    blocks = most > 0 ? min(batch->tiles - first, most) : batch->tiles;
    error = rs_launch(copy_converts, dim3(blocks), dim3(threads), 0, stream, *batch, first);
  }
  return error;
}
