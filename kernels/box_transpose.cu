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
 * Where strides or edges do not allow words of 4, the elements of a word are loaded or stored one by one. */
#include "kernels/box_device.cuh"

using namespace rs_box;

namespace {

template <int Element> struct tiling {
  using word = typename rs_unit<(Element < 4 ? 4 : Element)>::type;
  using element = typename rs_unit<Element>::type;
  static constexpr int in_word = sizeof(word) / Element;                /* elements */
  static constexpr int columns = RS_BOX_TRANSPOSE_J(Element) / in_word; /* words of a row, along j */
  static constexpr int ni = RS_BOX_TRANSPOSE_I(Element);
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

/* A word that may be unaligned, or as much of it as n elements are. */
template <int Element> __device__ __forceinline__ uint32_t gather(const char *src, int n) {
  uint32_t w = 0;
#pragma unroll
  for (int k = 0; k < tiling<Element>::in_word; k++)
    if (k < n)
      w |= static_cast<uint32_t>(load<false, typename tiling<Element>::element>(src + k * Element)) << 8 * Element * k;
  return w;
}
template <int Element> __device__ __forceinline__ void scatter(char *dst, uint32_t w, int n) {
  for (int k = 0; k < n; k++)
    store<false>(dst + k * Element, static_cast<typename tiling<Element>::element>(w >> 8 * Element * k));
}

template <int Element>
__device__ __forceinline__ void transpose_tile(char *room, const rs_box_tile &tile, int64_t src_j, int64_t dst_i) {
  using S = tiling<Element>;
  using word = typename S::word;
  constexpr int Q = S::in_word, warps = RS_BOX_THREADS / 32, strips = S::ni / (32 * Q);
  constexpr int loads = S::columns * strips / warps, stores = S::ni * (S::columns / 32) / warps;
  word *kept = reinterpret_cast<word *>(room);
  const int ni = tile.count & 0xffff, nj = tile.count >> 16;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  constexpr uintptr_t low = sizeof(word) - 1;

  word w[loads][Q] = {};
  if (((reinterpret_cast<uintptr_t>(tile.src) | static_cast<uintptr_t>(src_j)) & low) == 0 && ni % Q == 0) {
#pragma unroll
    for (int k = 0; k < loads; k++) { /* a warp goes down the columns, so that loads of the block are neighbours */
      int item = warp + k * warps, i = (item % strips * 32 + lane) * Q, j = item / strips * Q;
#pragma unroll
      for (int q = 0; q < Q; q++)
        if (i < ni && j + q < nj)
          w[k][q] = load<false, word>(tile.src + (j + q) * src_j + i * Element);
    }
  } else if constexpr (Q > 1) {
#pragma unroll
    for (int k = 0; k < loads; k++) {
      int item = warp + k * warps, i = (item % strips * 32 + lane) * Q, j = item / strips * Q;
#pragma unroll
      for (int q = 0; q < Q; q++)
        w[k][q] = gather<Element>(tile.src + (j + q) * src_j + i * Element, j + q < nj ? ni - i : 0);
    }
  }
#pragma unroll
  for (int k = 0; k < loads; k++) {
    int item = warp + k * warps, i = (item % strips * 32 + lane) * Q, column = item / strips;
    transpose(w[k]);
#pragma unroll
    for (int q = 0; q < Q; q++)
      kept[S::at(i + q, column)] = w[k][q];
  }

  __syncthreads();

  if (((reinterpret_cast<uintptr_t>(tile.dst) | static_cast<uintptr_t>(dst_i)) & low) == 0 && nj % Q == 0) {
    word w[stores];
#pragma unroll
    for (int k = 0; k < stores; k++) {
      int item = warp + k * warps;
      w[k] = kept[S::at(item / (S::columns / 32), item % (S::columns / 32) * 32 + lane)];
    }
#pragma unroll
    for (int k = 0; k < stores; k++) {
      int item = warp + k * warps, i = item / (S::columns / 32), column = item % (S::columns / 32) * 32 + lane;
      if (i < ni && column * Q < nj)
        store<false>(tile.dst + i * dst_i + column * static_cast<int>(sizeof(word)), w[k]);
    }
  } else if constexpr (Q > 1) {
    for (int item = warp; item < ni * (S::columns / 32); item += warps) {
      int i = item / (S::columns / 32), column = item % (S::columns / 32) * 32 + lane;
      scatter<Element>(tile.dst + i * dst_i + column * static_cast<int>(sizeof(word)), kept[S::at(i, column)],
                       min(nj - column * Q, Q));
    }
  }
}

__device__ __forceinline__ void copy_tile(char *at, const rs_box_batch &batch, uint32_t t) {
  uint32_t k;
  const rs_box_tile tile = find_tile(batch, t, &k);
  const rs_box_shape &shape = batch.part[k].shapes[tile.shape];
  const int64_t src_j = shape.inner.src, dst_i = shape.outer_dst;
  switch (shape.run) {
  case 1: transpose_tile<1>(at, tile, src_j, dst_i); break;
  case 2: transpose_tile<2>(at, tile, src_j, dst_i); break;
  case 4: transpose_tile<4>(at, tile, src_j, dst_i); break;
  case 8: transpose_tile<8>(at, tile, src_j, dst_i); break;
  default: transpose_tile<16>(at, tile, src_j, dst_i); break;
  }
}

__global__ static void __launch_bounds__(RS_BOX_THREADS, RS_BOX_TRANSPOSE_BLOCKS)
    copy_transposes(RS_GRID_CONSTANT(rs_box_batch) batch) {
  RS_SHARED(uint4, room, [RS_BOX_TRANSPOSE_TILE / 16]);
  if (!is_closed(batch))
    copy_tile(reinterpret_cast<char *>(room), batch, blockIdx.x);
}

/* Fewer blocks than tiles; the loop takes registers that a block more on an SM would not leave. */
__global__ static void __launch_bounds__(RS_BOX_THREADS, RS_BOX_TRANSPOSE_BLOCKS - 1)
    copy_transposes_limited(RS_GRID_CONSTANT(rs_box_batch) batch) {
  RS_SHARED(uint4, room, [RS_BOX_TRANSPOSE_TILE / 16]);
  if (is_closed(batch))
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
