/* Box copies whose fast dims differ: transposes of elements of 1 to 16 bytes.
 *
 * A block takes a tile, contiguous along i in the source and along j in the destination, through shared memory: loads
 * and stores are both along lines. Elements below 4 bytes go in words of 4. A thread loads the words of as many rows as
 * a word has elements. It transposes this small square in registers, and stores words that lie along j. A tile is kept
 * by i, in rows of words along j.
 *
 * Banks: a warp stores words of 32 neighbouring (groups of) i at one j, and loads 32 neighbouring j at one i. Word j of
 * row i is kept at j ^ (i / elements of a word), modulo 32: distinct banks in both directions, without padding.
 *
 * Where rows are not aligned to words of 4, the aligned words of each row are loaded or stored, and shifted between
 * lanes that are neighbours. What these leave out at an end of a row, less than a word, goes element by element: a lane
 * has an end of a row, so that a warp moves those of all its rows at once. */
#include "kernels/box_device.cuh"

using namespace rs_box;

namespace {

template <int Element> struct tiling {
  using word = typename rs_unit<(Element < 4 ? 4 : Element)>::type;
  using element = typename rs_unit<Element>::type;
  static constexpr int in_word = sizeof(word) / Element;                /* elements */
  static constexpr int columns = RS_BOX_TRANSPOSE_J(Element) / in_word; /* words of a row, along j */
  static constexpr int ni = RS_BOX_TRANSPOSE_I(Element);
  static constexpr int warps = RS_BOX_THREADS / 32,
                       strips = ni / (32 * in_word); /* of a row, that a warp loads at once */
  static constexpr int loads = columns * strips / warps, stores = ni * (columns / 32) / warps;
  static_assert(columns % 32 == 0, "a warp stores words of 32 neighbours");
  static_assert(ni % (32 * in_word) == 0, "a warp loads words of 32 neighbours");

  static __device__ __forceinline__ int at(int i, int column) { return i * columns + (column ^ (i / in_word % 32)); }
};

/* Words of rows j to words of rows i. */
static __device__ __forceinline__ void transpose(uint32_t (&w)[4]) {
  uint32_t a = __byte_perm(w[0], w[1], 0x5140), b = __byte_perm(w[2], w[3], 0x5140);
  uint32_t c = __byte_perm(w[0], w[1], 0x7362), d = __byte_perm(w[2], w[3], 0x7362);
  w[0] = __byte_perm(a, b, 0x5410);
  w[1] = __byte_perm(a, b, 0x7632);
  w[2] = __byte_perm(c, d, 0x5410);
  w[3] = __byte_perm(c, d, 0x7632);
}
static __device__ __forceinline__ void transpose(uint32_t (&w)[2]) {
  uint32_t a = w[0], b = w[1];
  w[0] = __byte_perm(a, b, 0x5410);
  w[1] = __byte_perm(a, b, 0x7632);
}
template <typename T> static __device__ __forceinline__ void transpose(T (&)[1]) {}

/* --- Rows that are not aligned to words --- */

__device__ __forceinline__ int modulo_4(const char *p) { return static_cast<int>(modulo_16(p)) & 3; }

/* Bytes of a row, from begin on, that aligned words leave out at an end of a warp's part of it. */
struct row_end {
  int begin, end;
};

/* Of a row of n bytes whose address is `shift` modulo 4, and 128 bytes of it from `first` on. */
__device__ __forceinline__ row_end find_end(int shift, int n, int first, bool last) {
  const int begun = first > 0 ? first : min(-shift & 3, n); /* a short row has but the first end */
  if (!last)
    return {0, first > 0 ? 0 : begun};
  return {max(min(n - ((shift + n) & 3), first + 128 - shift), begun), min(n, first + 128)};
}

/* An end of a row of the source, by one lane of a warp: row j, and elements i from there on. */
template <int Element> struct loaded_end {
  int i, j, n;
  typename tiling<Element>::element at[tiling<Element>::in_word - 1];
};

template <int Element>
__device__ __forceinline__ loaded_end<Element> load_unaligned(uint32_t (&w)[tiling<Element>::loads][4 / Element],
                                                              const rs_box_tile &tile, int64_t src_j,
                                                              const uint32_t *closed, uint32_t *unstored) {
  using S = tiling<Element>;
  constexpr int Q = S::in_word;
  static_assert(S::loads * Q == 16, "a lane has one of two ends");
  const int ni = tile.count & 0xffff, nj = tile.count >> 16, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int item = warp + lane / 2 / Q * S::warps;
  loaded_end<Element> l = {0, item / S::strips * Q + lane / 2 % Q, 0, {}};
  const char *row = tile.src + l.j * src_j;
  const row_end e = find_end(modulo_4(row), l.j < nj ? ni * Element : 0, item % S::strips * 128, lane % 2 == 1);
  l.i = e.begin / Element;
  l.n = (e.end - e.begin) / Element;
#pragma unroll
  for (int i = 0; i < Q - 1; i++)
    if (i < l.n)
      l.at[i] = load<typename S::element>(row + e.begin + i * Element);
  /* Row q of item k is (q + k * rows) further than the first; the shift of that, and what a row more adds. */
  constexpr int rows = S::warps / S::strips * Q;
  const int first = warp / S::strips * Q, at = (warp % S::strips * 32 + lane) * 4, left = ni * Element - 4 - at;
  const int step = static_cast<int>(src_j) & 3, origin = modulo_4(tile.src) + first * step;
  const char *from = tile.src + first * src_j + at;
#pragma unroll
  for (int k = 0; k < S::loads; k++)
#pragma unroll
    for (int q = 0; q < Q; q++) {
      const int j = k * rows + q, shift = (origin + j * step) & 3;
      if (first + j < nj && at >= shift && left + shift >= 0)
        w[k][q] = load<uint32_t>(from + j * src_j - shift);
    }
  *unstored = load_closed(closed);
#pragma unroll
  for (int k = 0; k < S::loads; k++)
#pragma unroll
    for (int q = 0; q < Q; q++) /* the next lane has the rest of a word */
      w[k][q] = __funnelshift_r(w[k][q], __shfl_down_sync(0xffffffff, w[k][q], 1),
                                8 * ((origin + (k * rows + q) * step) & 3));
  return l;
}

template <int Element>
__device__ __forceinline__ void store_unaligned(const uint32_t *kept, const rs_box_tile &tile, int64_t dst_i, int ni) {
  using S = tiling<Element>;
  static_assert(S::columns == 32 && S::stores == 16, "a warp stores a row, and a lane has one of two ends");
  const int n = (tile.count >> 16) * Element, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll 4
  for (int k = 0; k < S::stores; k++) {
    const int i = warp + k * S::warps;
    char *row = tile.dst + i * dst_i;
    const int shift = modulo_4(row), at = lane * 4 - shift;
    const uint32_t word = kept[S::at(i, lane)], before = __shfl_up_sync(0xffffffff, word, 1);
    if (i < ni && at >= 0 && at + 4 <= n)
      store(row + at, __funnelshift_l(before, word, 8 * shift));
  }
  const int i = warp + lane / 2 * S::warps;
  char *row = tile.dst + i * dst_i;
  const row_end e = find_end(modulo_4(row), i < ni ? n : 0, 0, lane % 2 == 1);
  for (int at = e.begin; at < e.end; at += Element)
    store(row + at, static_cast<typename S::element>(kept[S::at(i, at / 4)] >> 8 * (at % 4)));
}

/* --- A tile --- */

template <int Element>
__device__ __forceinline__ void transpose_tile(char *room, const rs_box_tile &tile, int64_t src_j, int64_t dst_i,
                                               const uint32_t *closed) {
  using S = tiling<Element>;
  using word = typename S::word;
  constexpr int Q = S::in_word;
  word *kept = reinterpret_cast<word *>(room);
  const int ni = tile.count & 0xffff, nj = tile.count >> 16;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  constexpr uintptr_t low = sizeof(word) - 1;

  word w[S::loads][Q] = {};
  [[maybe_unused]] loaded_end<(Element < 4 ? Element : 2)> end = {};
  uint32_t unstored = 0; /* of `closed`, which comes beside the tile */
  if (((reinterpret_cast<uintptr_t>(tile.src) | static_cast<uintptr_t>(src_j)) & low) == 0 && ni % Q == 0) {
#pragma unroll
    for (int k = 0; k < S::loads; k++) { /* a warp goes down the columns, so that loads of the block are neighbours */
      int item = warp + k * S::warps, i = (item % S::strips * 32 + lane) * Q, j = item / S::strips * Q;
#pragma unroll
      for (int q = 0; q < Q; q++)
        if (i < ni && j + q < nj)
          w[k][q] = load<word>(tile.src + (j + q) * src_j + i * Element);
    }
    unstored = load_closed(closed);
  } else if constexpr (Q > 1) {
    end = load_unaligned<Element>(w, tile, src_j, closed, &unstored);
  }
#pragma unroll
  for (int k = 0; k < S::loads; k++) {
    int item = warp + k * S::warps, i = (item % S::strips * 32 + lane) * Q, column = item / S::strips;
    transpose(w[k]);
#pragma unroll
    for (int q = 0; q < Q; q++)
      kept[S::at(i + q, column)] = w[k][q];
  }
  if constexpr (Q > 1) {
    __syncwarp();
    for (int i = 0; i < Q - 1; i++)
      if (i < end.n)
        reinterpret_cast<typename S::element *>(kept)[S::at(end.i + i, end.j / Q) * Q + end.j % Q] = end.at[i];
  }

  __syncthreads();

  const int stored = unstored != 0 ? 0 : ni; /* rows */
  if (((reinterpret_cast<uintptr_t>(tile.dst) | static_cast<uintptr_t>(dst_i)) & low) == 0 && nj % Q == 0) {
    word w[S::stores];
#pragma unroll
    for (int k = 0; k < S::stores; k++) {
      int item = warp + k * S::warps;
      w[k] = kept[S::at(item / (S::columns / 32), item % (S::columns / 32) * 32 + lane)];
    }
#pragma unroll
    for (int k = 0; k < S::stores; k++) {
      int item = warp + k * S::warps, i = item / (S::columns / 32), column = item % (S::columns / 32) * 32 + lane;
      if (i < stored && column * Q < nj)
        store(tile.dst + i * dst_i + column * static_cast<int>(sizeof(word)), w[k]);
    }
  } else if constexpr (Q > 1) {
    store_unaligned<Element>(kept, tile, dst_i, stored);
  }
}

__device__ __forceinline__ void copy_tile(char *at, const rs_box_batch &batch, uint32_t t) {
  uint32_t k;
  const rs_box_tile tile = find_tile(batch, t, &k);
  const rs_box_shape &shape = batch.part[k].shapes[tile.shape];
  const int64_t src_j = shape.inner.src, dst_i = shape.outer_dst;
  switch (shape.run) {
  case 1: transpose_tile<1>(at, tile, src_j, dst_i, batch.closed_late); break;
  case 2: transpose_tile<2>(at, tile, src_j, dst_i, batch.closed_late); break;
  case 4: transpose_tile<4>(at, tile, src_j, dst_i, batch.closed_late); break;
  case 8: transpose_tile<8>(at, tile, src_j, dst_i, batch.closed_late); break;
  default: transpose_tile<16>(at, tile, src_j, dst_i, batch.closed_late); break;
  }
}

__global__ static void __launch_bounds__(RS_BOX_THREADS, RS_BOX_TRANSPOSE_BLOCKS)
    copy_transposes(RS_GRID_CONSTANT(rs_box_batch) batch) {
  RS_SHARED(uint4, room, [RS_BOX_TRANSPOSE_TILE / 16]);
  if (!is_closed(batch.closed))
    copy_tile(reinterpret_cast<char *>(room), batch, blockIdx.x);
}

/* Fewer blocks than tiles; the loop takes registers that a block more on an SM would not leave. */
__global__ static void __launch_bounds__(RS_BOX_THREADS, RS_BOX_TRANSPOSE_BLOCKS - 1)
    copy_transposes_limited(RS_GRID_CONSTANT(rs_box_batch) batch) {
  RS_SHARED(uint4, room, [RS_BOX_TRANSPOSE_TILE / 16]);
  if (is_closed(batch.closed))
    return;
  for (uint32_t t = blockIdx.x; t < batch.tiles; t += gridDim.x) {
    copy_tile(reinterpret_cast<char *>(room), batch, t);
    __syncthreads(); /* before the next tile comes into the room */
  }
}

} // namespace

extern "C" int rs_box_transpose_load(void) {
  int error = rs_launch_load(copy_transposes);
  return error != cudaSuccess ? error : rs_launch_load(copy_transposes_limited);
}

extern "C" int rs_box_transpose_launch(const rs_box_batch *batch, uint32_t most, void *stream) {
  const dim3 block(RS_BOX_THREADS);
  return most > 0 && most < batch->tiles ? rs_launch(copy_transposes_limited, dim3(most), block, 0, stream, *batch)
                                         : rs_launch(copy_transposes, dim3(batch->tiles), block, 0, stream, *batch);
}
