/* Box copies that convert numbers: casts, and f8_e4m3 with a scale for each block of numbers.
 *
 * A tile is a number of equal boxes of rows and columns. As many lanes as it takes share a box, and hold all of its
 * numbers in registers, as f32. The largest magnitude of one that gets a scale comes by shuffles, between warps by
 * shared memory. Half of a box that registers cannot hold waits in shared memory: so a block that gets a scale is read
 * once. Small boxes are held several at a time, so that a thread has as many loads under way as for a large one.
 *
 * There is a load for each dtype and a store for each, and no code for a pair. Numbers of up to 4 bytes go in units of
 * 4 where these are whole and the wider side is aligned to them. Values that stand behind scales in messages begin
 * anywhere: a side that is not aligned goes by bytes. All others go one by one, four a unit, which are as many apart as
 * lanes share the box.
 *
 * Transposed boxes are loaded along lines of the source, change hands in shared memory, and are stored along lines of
 * the destination. */
#include "kernels/box_convert_device.cuh"

using namespace rs_box;

namespace {

constexpr uint32_t UNITS = RS_BOX_CONVERT_UNITS;
constexpr uint32_t NUMBERS = 4 * UNITS; /* that a thread holds */

/* --- Numbers in memory --- */

/* Four numbers at an address that is aligned to as many. */
template <int Bytes> __device__ __forceinline__ void load_four(uint32_t *code, const char *at) {
  if constexpr (Bytes == 4) {
    const uint4 v = load<uint4>(at);
    code[0] = v.x, code[1] = v.y, code[2] = v.z, code[3] = v.w;
  } else if constexpr (Bytes == 2) {
    const uint2 v = load<uint2>(at);
    code[0] = v.x & 0xffff, code[1] = v.x >> 16, code[2] = v.y & 0xffff, code[3] = v.y >> 16;
  } else {
    const uint32_t v = load<uint32_t>(at);
#pragma unroll
    for (int i = 0; i < 4; i++)
      code[i] = v >> 8 * i & 0xff;
  }
}
template <int Bytes> __device__ __forceinline__ void store_four(char *at, const uint32_t *code) {
  if constexpr (Bytes == 4)
    store(at, make_uint4(code[0], code[1], code[2], code[3]));
  else if constexpr (Bytes == 2)
    store(at, make_uint2(code[0] | code[1] << 16, code[2] | code[3] << 16));
  else
    store(at, code[0] | code[1] << 8 | code[2] << 16 | code[3] << 24);
}

__device__ __forceinline__ uint32_t bytes_of(int dtype) {
  return dtype == RESHARD_F32 ? 4 : dtype == RESHARD_F16 || dtype == RESHARD_BF16 ? 2 : 1;
}

/* --- Boxes --- */

/* Makes the compiler compute again what it has of a number: addresses of loads would stay in registers until stores. */
__device__ __forceinline__ uint32_t anew(uint32_t number) {
#ifdef __CUDA_ARCH__
  asm volatile("" : "+r"(number));
#endif
  return number;
}

/* Keeps accesses that come before it before those behind it: addresses of all at once would take too many registers. */
__device__ __forceinline__ void finish() {
#ifdef __CUDA_ARCH__
  asm volatile("" ::: "memory");
#endif
}

/* Calls each(i, at, line, place) for the units that a thread has of boxes from `first` on, in their turns from `begin`
 * on, or for their numbers: i is the first one's of those that the thread holds, `at` its address on a side, `line` and
 * `place` are where it is there. */
template <bool Source, bool Whole, typename Each>
__device__ __forceinline__ void each_unit(const convert_tile &t, uint32_t first, uint32_t begin, Each each) {
  constexpr uint32_t PARTS = Whole ? 1 : 4;
  const convert_loops &l = *t.loops;
  const uint32_t lane = threadIdx.x & ((1u << t.lanes) - 1), last_turn = (1u << t.turns) - 1;
  const uint32_t items = Source ? l.scales.n : l.shape.items, magic = Source ? l.scales.magic : l.shape.magic;
  char *at = nullptr;
  uint32_t box = anew(first) + (threadIdx.x >> t.lanes);
  begin = anew(begin);
#pragma unroll
  for (uint32_t k = 0; k < UNITS; k++) {
    const uint32_t turn = (begin + k) & last_turn;
    if (k == 0 || turn == 0) {
      box += k == 0 ? 0 : blockDim.x >> t.lanes;
      at = find_box<Source>(t, box);
    }
    if (!Whole)
      finish();
#pragma unroll
    for (uint32_t i = 0; i < PARTS; i++) {
      const uint32_t item = ((turn * PARTS + i) << t.lanes) + lane;
      if (box < t.boxes && item < l.rows.n) {
        const uint32_t line = rs_box_divide(item, magic), place = (item - line * items) * (4 / PARTS);
        each(4 * k + i,
             at + line * (Source ? l.rows.src : l.rows.dst) + place * (Source ? l.columns.src : l.columns.dst), line,
             place);
      }
    }
  }
}

/* A side's numbers, of `bytes` 1, 2 or 4. One that is not aligned goes by bytes. */
template <bool Whole>
__device__ __forceinline__ void load_codes(const convert_tile &t, uint32_t first, uint32_t begin, uint32_t bytes,
                                           bool aligned, uint32_t (&code)[NUMBERS]) {
  if (Whole && aligned) {
    each_unit<true, Whole>(t, first, begin, [&](uint32_t at, const char *from, uint32_t, uint32_t) {
      if (bytes == 4)
        load_four<4>(code + at, from);
      else if (bytes == 2)
        load_four<2>(code + at, from);
      else
        load_four<1>(code + at, from);
    });
    return;
  }
  const uint32_t step = aligned ? bytes : 1;
#pragma unroll 1
  for (uint32_t part = 0; part < bytes; part += step)
    each_unit<true, Whole>(t, first, begin, [&](uint32_t at, const char *from, uint32_t, uint32_t) {
#pragma unroll
      for (uint32_t i = 0; i < (Whole ? 4 : 1); i++)
        code[at + i] |= load_code(from + i * bytes + part, step) << 8 * part;
    });
}
template <bool Whole>
__device__ __forceinline__ void store_codes(const convert_tile &t, uint32_t first, uint32_t begin, uint32_t bytes,
                                            bool aligned, const uint32_t (&code)[NUMBERS]) {
  if (Whole && aligned) {
    each_unit<false, Whole>(t, first, begin, [&](uint32_t at, char *to, uint32_t, uint32_t) {
      if (bytes == 4)
        store_four<4>(to, code + at);
      else if (bytes == 2)
        store_four<2>(to, code + at);
      else
        store_four<1>(to, code + at);
    });
    return;
  }
  const uint32_t step = aligned ? bytes : 1;
#pragma unroll 1
  for (uint32_t part = 0; part < bytes; part += step)
    each_unit<false, Whole>(t, first, begin, [&](uint32_t at, char *to, uint32_t, uint32_t) {
#pragma unroll
      for (uint32_t i = 0; i < (Whole ? 4 : 1); i++)
        store_code(to + i * bytes + part, code[at + i] >> 8 * part, step);
    });
}

/* Numbers of f64, as f32. */
__device__ __forceinline__ void load_doubles(const convert_tile &t, uint32_t first, uint32_t begin, bool aligned,
                                             bool odd, float (&v)[NUMBERS]) {
  each_unit<true, false>(t, first, begin, [&](uint32_t at, const char *from, uint32_t, uint32_t) {
    uint64_t code = 0;
    if (aligned) {
      const uint2 words = load<uint2>(from);
      code = static_cast<uint64_t>(words.y) << 32 | words.x;
    } else {
#pragma unroll 1
      for (int i = 0; i < 8; i++)
        code |= static_cast<uint64_t>(load<uint8_t>(from + i)) << 8 * i;
    }
    v[at] = rs_number_of<RS_F64>(code, odd);
  });
}
__device__ __forceinline__ void store_doubles(const convert_tile &t, uint32_t first, uint32_t begin, bool aligned,
                                              const float (&v)[NUMBERS]) {
  each_unit<false, false>(t, first, begin, [&](uint32_t at, char *to, uint32_t, uint32_t) {
    const uint64_t code = rs_code_of<RS_F64>(v[at]);
    if (aligned) {
      store(to, make_uint2(static_cast<uint32_t>(code), static_cast<uint32_t>(code >> 32)));
    } else {
#pragma unroll 1
      for (int i = 0; i < 8; i++)
        store(to + i, static_cast<uint8_t>(code >> 8 * i));
    }
  });
}

template <int From> __device__ __forceinline__ void numbers_of(const uint32_t (&code)[NUMBERS], float (&v)[NUMBERS]) {
#pragma unroll
  for (uint32_t i = 0; i < NUMBERS; i++)
    v[i] = rs_number_of<From>(code[i], false);
}
template <int To> __device__ __forceinline__ void codes_of(const float (&v)[NUMBERS], uint32_t (&code)[NUMBERS]) {
#pragma unroll
  for (uint32_t i = 0; i < NUMBERS; i++)
    code[i] = static_cast<uint32_t>(rs_code_of<To>(v[i]));
}

/* Of units of 4 the wider side always is aligned. */
template <bool Whole>
__device__ __forceinline__ void load_numbers(const convert_tile &t, uint32_t first, uint32_t begin,
                                             float (&v)[NUMBERS]) {
  const int from = t.loops->shape.from;
  const bool aligned = (t.loops->shape.grain & 1) != 0;
  if (!Whole && from == RESHARD_F64) {
    load_doubles(t, first, begin, aligned, t.loops->shape.to != RESHARD_F32, v);
    return;
  }
  uint32_t code[NUMBERS] = {};
  load_codes<Whole>(t, first, begin, bytes_of(from), aligned, code);
  switch (from) {
  case RESHARD_F8_E4M3: numbers_of<RS_E4M3>(code, v); break;
  case RESHARD_F8_E5M2: numbers_of<RS_E5M2>(code, v); break;
  case RESHARD_F16: numbers_of<RS_F16>(code, v); break;
  case RESHARD_BF16: numbers_of<RS_BF16>(code, v); break;
  default: numbers_of<RS_F32>(code, v); break;
  }
}
template <bool Whole>
__device__ __forceinline__ void store_numbers(const convert_tile &t, uint32_t first, uint32_t begin,
                                              const float (&v)[NUMBERS]) {
  const int to = t.loops->shape.to;
  const bool aligned = (t.loops->shape.grain & 2) != 0;
  if (!Whole && to == RESHARD_F64) {
    store_doubles(t, first, begin, aligned, v);
    return;
  }
  uint32_t code[NUMBERS];
  switch (to) {
  case RESHARD_F8_E4M3: codes_of<RS_E4M3>(v, code); break;
  case RESHARD_F8_E5M2: codes_of<RS_E5M2>(v, code); break;
  case RESHARD_F16: codes_of<RS_F16>(v, code); break;
  case RESHARD_BF16: codes_of<RS_BF16>(v, code); break;
  default: codes_of<RS_F32>(v, code); break;
  }
  store_codes<Whole>(t, first, begin, bytes_of(to), aligned, code);
}

/* Of a transposed box, which is held whole: from numbers as they were loaded to those that are to be stored. */
template <bool Whole>
__device__ __forceinline__ void turn_box(const convert_tile &t, uint32_t first, float *kept, float (&v)[NUMBERS]) {
  constexpr uint32_t line = RS_BOX_CONVERT_TURNED + 1; /* odd: neighbours are in other banks both ways */
  each_unit<true, Whole>(t, first, 0, [&](uint32_t at, const char *, uint32_t column, uint32_t row) {
#pragma unroll
    for (uint32_t i = 0; i < (Whole ? 4 : 1); i++)
      kept[(row + i) * line + column] = v[at + i];
  });
  __syncthreads();
  each_unit<false, Whole>(t, first, 0, [&](uint32_t at, const char *, uint32_t row, uint32_t column) {
#pragma unroll
    for (uint32_t i = 0; i < (Whole ? 4 : 1); i++)
      v[at + i] = kept[row * line + column + i];
  });
}

/* --- A tile --- */

/* Boxes from `first` on that are held at one time; or one of more turns, some after others. A box that gets a scale has
 * two times of them at most, of which the first waits in shared memory. */
template <bool Whole>
__device__ __forceinline__ void convert_held(const convert_tile &t, uint32_t first, const uint32_t *closed,
                                             uint32_t *room, float *kept) {
  const rs_box_shape &shape = t.loops->shape;
  const bool scales = shape.scale != 0, makes = scales && shape.to == RESHARD_F8_E4M3;
  const uint32_t turns = 1u << t.turns;
  const bool waits = makes && turns > UNITS;
  uint32_t most[UNITS] = {};
  float by[UNITS];
#pragma unroll 1
  for (uint32_t begin = 0; begin < turns; begin += UNITS) {
    float v[NUMBERS] = {};
    load_numbers<Whole>(t, first, begin, v);
    const bool stored = !is_closed(closed);
    if (makes)
#pragma unroll
      for (uint32_t i = 0; i < NUMBERS; i++)
        most[i / 4] = max(most[i / 4], rs_bits(v[i]) & 0x7fffffffu);
    if (waits && begin == 0) {
#pragma unroll
      for (uint32_t i = 0; i < NUMBERS; i++)
        kept[i * blockDim.x + threadIdx.x] = v[i];
      continue;
    }
    if (makes) {
      find_most(t, room, most);
      find_factors<true>(t, first, stored, most, by);
    } else if (scales && begin == 0) {
      find_factors<false>(t, first, false, most, by);
    }
    if (shape.turned)
      turn_box<Whole>(t, first, kept, v);
#pragma unroll 1
    for (uint32_t at = begin; true; at = 0) {
      if (scales)
#pragma unroll
        for (uint32_t i = 0; i < NUMBERS; i++)
          v[i] = v[i] * by[i / 4];
      if (stored)
        store_numbers<Whole>(t, first, at, v);
      if (!waits || at == 0)
        break;
#pragma unroll
      for (uint32_t i = 0; i < NUMBERS; i++)
        v[i] = kept[i * blockDim.x + threadIdx.x];
    }
  }
}

template <bool Whole>
__device__ __forceinline__ void convert_boxes(const convert_tile &t, const uint32_t *closed, uint32_t *room,
                                              float *kept) {
  const uint32_t together = (blockDim.x >> t.lanes) * max(1u, UNITS >> t.turns);
  for (uint32_t first = 0; first < t.boxes; first += together)
    convert_held<Whole>(t, first, closed, room, kept);
}

__device__ __forceinline__ void convert(const rs_box_batch &batch, uint32_t at) {
  RS_SHARED(convert_loops, loops, [1]);
  RS_SHARED(uint32_t, room, [RS_BOX_CONVERT_THREADS / 32]);
  RS_SHARED_DYNAMIC(float, kept);
  const convert_tile t = open_tile(batch, at, loops);
  if (loops[0].shape.kind == RS_BOX_CONVERT_4)
    convert_boxes<true>(t, batch.closed_late, room, kept);
  else
    convert_boxes<false>(t, batch.closed_late, room, kept);
}

__global__ static void __launch_bounds__(RS_BOX_CONVERT_THREADS, 1)
    copy_converts(RS_GRID_CONSTANT(rs_box_batch) batch, uint32_t first) {
  if (!is_closed(batch.closed))
    convert(batch, first + blockIdx.x);
}

} // namespace

extern "C" int rs_box_convert_load(void) {
  const int error = rs_launch_load(copy_converts);
  return error != cudaSuccess ? error : rs_launch_shared(copy_converts, RS_BOX_CONVERT_KEPT);
}

/* Where blocks are limited there are as many launches as that takes: a loop over tiles would take registers. */
extern "C" int rs_box_convert_launch(const rs_box_batch *batch, uint32_t most, void *stream) {
  uint32_t threads = RS_BOX_THREADS, kept = 0; /* as much as the largest box takes */
  for (uint32_t k = 0; k < batch->nparts; k++) {
    threads = max(threads, batch->part[k].threads);
    kept = max(kept, batch->part[k].kept);
  }
  int error = cudaSuccess;
  for (uint32_t first = 0, blocks; first < batch->tiles && error == cudaSuccess; first += blocks) {
    blocks = most > 0 ? min(batch->tiles - first, most) : batch->tiles;
    error = rs_launch(copy_converts, dim3(blocks), dim3(threads), kept, stream, *batch, first);
  }
  return error;
}
