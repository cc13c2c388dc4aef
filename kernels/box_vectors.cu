/* Box copies that convert numbers, in units of 16 bytes of the wider side.
 *
 * Tiles are as those of box_convert.cu. Here columns are dense, and all units whole and aligned on both sides, those of
 * 8 bytes to 4 at least: a warp loads and stores whole sectors. A thread loads 8 units of a box, or 4 of some, before
 * it uses the first. It holds them as they lie in memory. There is a function for each pair of dtypes: what they share
 * are words of codes, and of these two numbers at a time become f32 and codes of the destination. So 32 KiB of the
 * wider side take 256 threads, and a block of 128 x 128 numbers 256 or 512. */
#include "kernels/box_convert_device.cuh"

using namespace rs_box;

namespace {

constexpr uint32_t VECTORS = RS_BOX_CONVERT_VECTORS;
constexpr uint32_t AHEAD = RS_BOX_CONVERT_AHEAD;

struct vectors_shared {
  rs_box_vectors of;
  rs_box_axis tile; /* its entry */
  uint32_t room[RS_BOX_CONVERT_THREADS / 32];
  __align__(16) float kept[RS_BOX_CONVERT_TURNED * RS_BOX_CONVERT_TURNED]; /* where there are transposed boxes */
};

__host__ __device__ constexpr int number_of(int dtype) {
  return dtype == RESHARD_F8_E4M3   ? RS_E4M3
         : dtype == RESHARD_F8_E5M2 ? RS_E5M2
         : dtype == RESHARD_F16     ? RS_F16
         : dtype == RESHARD_BF16    ? RS_BF16
                                    : RS_F32;
}

struct vector_tile {
  const rs_box_vectors *of; /* in shared memory */
  const char *src;
  char *dst;
  char *scales;
  uint32_t boxes, lanes, turns;
  __device__ __forceinline__ bool has_small_scales() const { return of->scale == RESHARD_F8_E8M0; }
};

__device__ __forceinline__ char *find_scale(const vector_tile &t, uint32_t box) {
  const uint32_t outer = rs_box_divide(box, t.of->inner_magic), inner = box - outer * t.of->inner_n;
  return t.scales + static_cast<int32_t>(inner * static_cast<uint32_t>(t.of->inner_scales) +
                                         outer * static_cast<uint32_t>(t.of->outer_scales));
}

__device__ __forceinline__ void prefetch(const void *at) {
#ifdef __CUDA_ARCH__
  asm volatile("prefetch.global.L2 [%0];" ::"l"(at));
#else
  (void)at;
#endif
}

__device__ __forceinline__ vector_tile open_vectors(const rs_box_batch &batch, uint32_t at, vectors_shared *shared) {
  static_assert(sizeof(rs_box_vectors) == 72 && sizeof(rs_box_axis) == 24, "loads of 8 bytes: 9 and 3");
  uint32_t k;
  const rs_box_tile tile = find_tile(batch, at, &k);
  const rs_box_axis *axes = batch.part[k].axes;
  if (threadIdx.x < 12) {
    const char *from = reinterpret_cast<const char *>(axes + (threadIdx.x < 9 ? tile.shape : tile.count - 3));
    reinterpret_cast<uint2 *>(shared)[threadIdx.x] = load<uint2>(from + 8 * threadIdx.x);
  }
  if (threadIdx.x == 32 && batch.nparts == 1 && at + AHEAD < batch.tiles) {
    prefetch(batch.part[0].tiles + at + AHEAD);
    prefetch(axes + tile.count + AHEAD);
  }
  __syncthreads();
  return {&shared->of,
          tile.src,
          tile.dst,
          reinterpret_cast<char *>(shared->tile.src),
          shared->tile.n * shared->of.inner_n,
          shared->of.lanes,
          shared->of.turns};
}

/* clang-format off */
#define RS_CONVERT_PAIRS(P)                                                                   \
  P(RESHARD_F32, RESHARD_BF16) P(RESHARD_BF16, RESHARD_F32)                                   \
  P(RESHARD_F32, RESHARD_F16) P(RESHARD_F16, RESHARD_F32)                                     \
  P(RESHARD_F32, RESHARD_F8_E4M3) P(RESHARD_F8_E4M3, RESHARD_F32)                             \
  P(RESHARD_F32, RESHARD_F8_E5M2) P(RESHARD_F8_E5M2, RESHARD_F32)                             \
  P(RESHARD_F16, RESHARD_BF16) P(RESHARD_BF16, RESHARD_F16)                                   \
  P(RESHARD_F16, RESHARD_F8_E4M3) P(RESHARD_F8_E4M3, RESHARD_F16)                             \
  P(RESHARD_F16, RESHARD_F8_E5M2) P(RESHARD_F8_E5M2, RESHARD_F16)                             \
  P(RESHARD_BF16, RESHARD_F8_E4M3) P(RESHARD_F8_E4M3, RESHARD_BF16)                           \
  P(RESHARD_BF16, RESHARD_F8_E5M2) P(RESHARD_F8_E5M2, RESHARD_BF16)
#define RS_SCALED_PAIRS(P)                                                                    \
  P(RESHARD_F32, RESHARD_F8_E4M3) P(RESHARD_F8_E4M3, RESHARD_F32)                             \
  P(RESHARD_F16, RESHARD_F8_E4M3) P(RESHARD_F8_E4M3, RESHARD_F16)                             \
  P(RESHARD_BF16, RESHARD_F8_E4M3) P(RESHARD_F8_E4M3, RESHARD_BF16)
/* clang-format on */

/* A unit on a side; or each of two words by itself. */
template <int Words> __device__ __forceinline__ void load_words(uint32_t *words, const char *at, bool split) {
  if constexpr (Words == 4) {
    const uint4 v = load<uint4>(at);
    words[0] = v.x, words[1] = v.y, words[2] = v.z, words[3] = v.w;
  } else if (Words == 2 && !split) {
    const uint2 v = load<uint2>(at);
    words[0] = v.x, words[1] = v.y;
  } else {
#pragma unroll
    for (int i = 0; i < Words; i++)
      words[i] = load<uint32_t>(at + 4 * i);
  }
}
template <int Words> __device__ __forceinline__ void store_words(char *at, const uint32_t *words, bool split) {
  if constexpr (Words == 4) {
    store(at, make_uint4(words[0], words[1], words[2], words[3]));
  } else if (Words == 2 && !split) {
    store(at, make_uint2(words[0], words[1]));
  } else {
#pragma unroll
    for (int i = 0; i < Words; i++)
      store(at + 4 * i, words[i]);
  }
}

/* The larger of both halves, each. */
__device__ __forceinline__ uint32_t larger_halves(uint32_t a, uint32_t b) {
#ifdef __CUDA_ARCH__
  return __vmaxu2(a, b);
#else
  return max(a & 0xffff, b & 0xffff) | max(a >> 16, b >> 16) << 16;
#endif
}
/* The largest magnitude of numbers, by the bits of an f32: that of codes of 16 bits is found among codes. */
template <int From, int Words> __device__ __forceinline__ uint32_t most_of(const uint32_t *words, uint32_t most) {
#pragma unroll
  for (int i = 0; i < Words; i++)
    most = From == RS_F32 ? max(most, words[i] & 0x7fffffffu) : larger_halves(most, words[i] & 0x7fff7fffu);
  return most;
}
template <int From> __device__ __forceinline__ uint32_t widen_most(uint32_t most) {
  return From == RS_F32 ? most : rs_bits(rs_number_of<From>(max(most & 0xffff, most >> 16), false));
}

/* The scale of a box of all units that a thread has, of which its first lane stores it. */
__device__ __forceinline__ float make_scale(const vector_tile &t, uint32_t box, uint32_t most, bool stored) {
  const bool small = t.has_small_scales();
  uint32_t code;
  const float factor = small ? rs_scale_e8m0(most, &code) : rs_scale_f32(most, &code);
  if (stored && (threadIdx.x & ((1u << t.lanes) - 1)) == 0 && box < t.boxes)
    store_scale(find_scale(t, box), code, small);
  return factor;
}

/* Makes the compiler compute again what it has of a number: all that places units would stay in registers. */
__device__ __forceinline__ uint32_t anew(uint32_t number) {
#ifdef __CUDA_ARCH__
  asm volatile("" : "+r"(number));
#endif
  return number;
}

/* Unit k of a thread on a side: bytes from the tile's address, its box, and where it is in that. */
struct vector_place {
  uint32_t k;
  int32_t offset;
  uint32_t box, line, place;
};

/* Bytes from a tile's address to a box. */
template <bool Source> __device__ __forceinline__ uint32_t find_vectors(const rs_box_vectors &v, uint32_t box) {
  const uint32_t outer = rs_box_divide(box, v.inner_magic), inner = box - outer * v.inner_n;
  return inner * static_cast<uint32_t>(Source ? v.inner_src : v.inner_dst) +
         outer * static_cast<uint32_t>(Source ? v.outer_src : v.outer_dst);
}

/* Calls each(place) for the N units that a thread has of a box. From one to the next it is as far for all but for those
 * that are in the next line. */
template <bool Source, uint32_t N, int Bytes, typename Each>
__device__ __forceinline__ void each_vector(const vector_tile &t, uint32_t first, Each each) {
  const rs_box_vectors &v = *t.of;
  const uint32_t items = Source ? v.from_items : v.items, magic = Source ? v.from_magic : v.magic;
  const uint32_t lanes = 1u << t.lanes, lane = anew(threadIdx.x) & (lanes - 1),
                 box = anew(first) + (threadIdx.x >> t.lanes);
  const uint32_t lines = rs_box_divide(lanes, magic), places = lanes - lines * items;
  const uint32_t line_step = static_cast<uint32_t>(Source ? v.line_src : v.line_dst);
  const uint32_t step = lines * line_step + places * Bytes, wrapped = line_step - items * Bytes;
  const uint32_t units = box < t.boxes ? v.units : 0;
  vector_place p = {0, 0, box, rs_box_divide(lane, magic), 0};
  p.place = lane - p.line * items;
  uint32_t offset = find_vectors<Source>(v, box) + p.line * line_step + p.place * Bytes;
#pragma unroll
  for (; p.k < N; p.k++) {
    p.offset = static_cast<int32_t>(offset);
    if (lane + p.k * lanes < units)
      each(p);
    p.line += lines;
    p.place += places;
    offset += step;
    if (p.place >= items) {
      p.place -= items;
      p.line++;
      offset += wrapped;
    }
  }
}

/* The same of some boxes. */
template <bool Source, uint32_t N, int Bytes, typename Each>
__device__ __forceinline__ void each_vector_of_several(const vector_tile &t, uint32_t first, Each each) {
  const rs_box_vectors &v = *t.of;
  const uint32_t lane = anew(threadIdx.x) & ((1u << t.lanes) - 1), last_turn = (1u << t.turns) - 1;
  uint32_t box = anew(first) + (threadIdx.x >> t.lanes), begin = 0;
#pragma unroll
  for (uint32_t k = 0; k < N; k++) {
    const uint32_t turn = k & last_turn;
    if (k == 0 || turn == 0) {
      box += k == 0 ? 0 : blockDim.x >> t.lanes;
      begin = find_vectors<Source>(v, box);
    }
    const uint32_t item = (turn << t.lanes) + lane, line = rs_box_divide(item, v.magic);
    const uint32_t place = item - line * v.items;
    const uint32_t offset = begin + line * static_cast<uint32_t>(Source ? v.line_src : v.line_dst) + place * Bytes;
    if (box < t.boxes && item < v.units)
      each(vector_place{k, static_cast<int32_t>(offset), box, line, place});
  }
}

template <bool Source, bool Several, uint32_t N, int Bytes, typename Each>
__device__ __forceinline__ void each_vector_of(const vector_tile &t, uint32_t first, Each each) {
  if (Several)
    each_vector_of_several<Source, N, Bytes>(t, first, each);
  else
    each_vector<Source, N, Bytes>(t, first, each);
}

template <int From, int To, bool Scales, bool Several>
__device__ __forceinline__ void convert_vectors_held(const vector_tile &t, uint32_t first, const uint32_t *closed,
                                                     uint32_t *room) {
  constexpr uint32_t N = Several ? VECTORS / 2 : VECTORS;
  constexpr int V = 16 / rs_number_bytes(From > To ? From : To); /* wider ones have larger numbers */
  constexpr int IN = V * rs_number_bytes(From), OUT = V * rs_number_bytes(To);
  constexpr bool MAKES = Scales && To == RS_E4M3;
  const bool small = t.has_small_scales();
  uint32_t words[N][IN / 4] = {};
  float by[Several ? N : 1] = {};
  if (Scales && !MAKES && !Several && first + (threadIdx.x >> t.lanes) < t.boxes)
    by[0] = load_scale(find_scale(t, first + (threadIdx.x >> t.lanes)), small);
  each_vector_of<true, Several, N, IN>(t, first, [&](vector_place p) {
    load_words<IN / 4>(words[p.k], t.src + p.offset, t.of->split);
    if (Scales && !MAKES && Several)
      by[p.k] = load_scale(find_scale(t, p.box), small);
  });
  const bool stored = !is_closed(closed);
  if constexpr (MAKES) {
    uint32_t most[Several ? N : 1] = {};
#pragma unroll
    for (uint32_t k = 0; k < N; k++)
      most[Several ? k : 0] = most_of<From, IN / 4>(words[k], most[Several ? k : 0]);
    if constexpr (Several) {
#pragma unroll
      for (uint32_t k = 0; k < N; k++)
        most[k] = widen_most<From>(most[k]);
      find_most(t, room, most);
      find_factors<true>(t, first, stored, most, by);
    } else {
      const uint32_t all = find_most_of_box(t, room, widen_most<From>(most[0]));
      by[0] = make_scale(t, first + (threadIdx.x >> t.lanes), all, stored);
    }
  }
  if (stored)
    each_vector_of<false, Several, N, OUT>(t, first, [&](vector_place p) {
      uint32_t made[OUT / 4];
      rs_convert_words<From, To, V, Scales>(words[p.k], made, by[Several ? p.k : 0]);
      store_words<OUT / 4>(t.dst + p.offset, made, t.of->split);
    });
}

/* Transposed boxes, in units of 4 numbers on both sides: loaded along lines of the source, all of a tile together, and
 * stored along lines of the destination. In between one stands in shared memory as f32, rows of 64, of which the fours
 * change places so that neighbours are in other banks both ways. */
template <int From, int To>
__device__ __forceinline__ void turn_vectors(vector_tile t, const uint32_t *closed, float *kept) {
  constexpr uint32_t N = RS_BOX_CONVERT_TURNED * RS_BOX_CONVERT_TURNED / 4 / RS_BOX_THREADS;
  constexpr uint32_t BOXES = RS_BOX_CONVERT_TURNED_BOXES;
  constexpr int IN = 4 * rs_number_bytes(From), OUT = 4 * rs_number_bytes(To);
  const uint32_t boxes = t.boxes;
  uint32_t words[BOXES][N][IN / 4] = {};
#pragma unroll
  for (uint32_t b = 0; b < BOXES; b++) {
    t.boxes = min(b + 1, boxes); /* by those threads alone that have the first one */
    each_vector<true, N, IN>(t, b, [&](vector_place p) { load_words<IN / 4>(words[b][p.k], t.src + p.offset, false); });
  }
  const bool stored = !is_closed(closed);
#pragma unroll
  for (uint32_t b = 0; b < BOXES; b++) {
    t.boxes = min(b + 1, boxes);
    if (b > 0)
      __syncthreads();
    each_vector<true, N, IN>(t, b, [&](vector_place p) {
      uint32_t numbers[4];
      rs_convert_words<From, RS_F32, 4, false>(words[b][p.k], numbers, 1);
#pragma unroll
      for (uint32_t i = 0; i < 4; i++)
        kept[(4 * p.place + i) * RS_BOX_CONVERT_TURNED + (p.line ^ 4 * p.place)] = rs_float(numbers[i]);
    });
    __syncthreads();
    if (stored)
      each_vector<false, N, OUT>(t, b, [&](vector_place p) {
        const float4 four =
            *reinterpret_cast<const float4 *>(kept + p.line * RS_BOX_CONVERT_TURNED + 4 * (p.place ^ p.line / 4));
        const uint32_t numbers[4] = {rs_bits(four.x), rs_bits(four.y), rs_bits(four.z), rs_bits(four.w)};
        uint32_t made[OUT / 4];
        rs_convert_words<RS_F32, To, 4, false>(numbers, made, 1);
        store_words<OUT / 4>(t.dst + p.offset, made, false);
      });
  }
}

template <int From, int To, bool Scales>
__device__ __forceinline__ void convert_vectors(const vector_tile &t, const uint32_t *closed, uint32_t *room,
                                                float *kept) {
  if (!Scales && t.of->turned) {
    turn_vectors<From, To>(t, closed, kept);
    return;
  }
  if (1u << t.turns >= VECTORS) {
    for (uint32_t first = 0; first < t.boxes; first += blockDim.x >> t.lanes)
      convert_vectors_held<From, To, Scales, false>(t, first, closed, room);
  } else {
    for (uint32_t first = 0; first < t.boxes; first += (blockDim.x >> t.lanes) * (VECTORS / 2 >> t.turns))
      convert_vectors_held<From, To, Scales, true>(t, first, closed, room);
  }
}

__host__ __device__ constexpr int pair_of(int from, int to, bool scales) { return from << 16 | to << 8 | scales; }
__device__ __forceinline__ void convert_pair(const vector_tile &t, const uint32_t *closed, vectors_shared *shared) {
  switch (pair_of(t.of->from, t.of->to, t.of->scale != 0)) {
#define RS_CONVERT_CASE(from, to) \
  case pair_of(from, to, false): \
    convert_vectors<number_of(from), number_of(to), false>(t, closed, shared->room, shared->kept); \
    break;
    RS_CONVERT_PAIRS(RS_CONVERT_CASE)
#undef RS_CONVERT_CASE
#define RS_SCALED_CASE(from, to) \
  case pair_of(from, to, true): \
    convert_vectors<number_of(from), number_of(to), true>(t, closed, shared->room, shared->kept); \
    break;
    RS_SCALED_PAIRS(RS_SCALED_CASE)
#undef RS_SCALED_CASE
  }
}

__global__ static void __launch_bounds__(RS_BOX_CONVERT_THREADS, 1)
    copy_vectors(RS_GRID_CONSTANT(rs_box_batch) batch, uint32_t first) {
  RS_SHARED_DYNAMIC(vectors_shared, shared);
  if (!is_closed(batch.closed))
    convert_pair(open_vectors(batch, first + blockIdx.x, shared), batch.closed_late, shared);
}

} // namespace

extern "C" int rs_box_vectors_load(void) { return rs_launch_load(copy_vectors); }

/* Where blocks are limited there are as many launches as that takes: a loop over tiles would take registers. */
extern "C" int rs_box_vectors_launch(const rs_box_batch *batch, uint32_t most, void *stream) {
  uint32_t threads = RS_BOX_THREADS, kept = 0; /* as much as the largest box takes */
  for (uint32_t k = 0; k < batch->nparts; k++) {
    threads = max(threads, batch->part[k].vector_threads);
    kept = max(kept, batch->part[k].kept);
  }
  const size_t shared = kept > 0 ? sizeof(vectors_shared) : offsetof(vectors_shared, kept);
  int error = cudaSuccess;
  for (uint32_t first = 0, blocks; first < batch->tiles && error == cudaSuccess; first += blocks) {
    blocks = most > 0 ? min(batch->tiles - first, most) : batch->tiles;
    error = rs_launch(copy_vectors, dim3(blocks), dim3(threads), shared, stream, *batch, first);
  }
  return error;
}
