/* Box copies, rows in the order of the destination.
 *
 * A block takes one tile, so that the hardware gives SMs work as they are done. Several blocks share an SM, and each
 * thread issues several loads before its first store: that keeps the memory busy while other blocks find their tile and
 * wait for their loads. A tile is either a contiguous piece, or rows over loops. Items of a tile are units of a row, or
 * 16 bytes of it. Threads take them one after the other in the order of the destination, whatever the length of a row:
 * neighbouring threads store to neighbouring bytes, and load from neighbouring ones as far as a row goes.
 *
 * A short row is worth copying in units to which everything is aligned: no ends, no branches. A longer one goes by
 * aligned 16 bytes of its destination (slots). Where the source is aligned alike a slot is one load. Elsewhere it is
 * put together from two, which costs arithmetic and first-level cache but no more memory traffic. The ends are done
 * in a loop of their own in the largest unit that everything is aligned to. */
#include "kernels/box_device.cuh"

using namespace rs_box;

namespace {

struct row_ends {
  const char *src;
  char *dst;
};

/* Loops of a tile: the innermost and the outermost in registers, those between in shared memory. Most tiles have one
 * loop alone, and more loads in flight for it. */
template <bool Nested> struct tile_loops {
  static constexpr bool nested = Nested;
  row_ends base;
  int64_t outer_src, outer_dst;
  uint32_t inside;
  rs_box_axis inner;
  const rs_box_axis *more;
  const uint32_t *closed; /* rs_box_batch.closed_late */

  __device__ __forceinline__ tile_loops(const rs_box_tile &tile, const rs_box_shape &shape, const rs_box_axis *between,
                                        const uint32_t *closed)
      : base{tile.src, tile.dst}, outer_src(shape.outer_src), outer_dst(shape.outer_dst), inside(shape.inside),
        inner(shape.inner), more(between), closed(closed) {}

  /* Rows of the tile, when the outermost loop goes round count times. */
  __device__ __forceinline__ uint32_t rows(uint32_t count) const {
    if (Nested)
      count *= inner.n;
#pragma unroll 1
    for (uint32_t k = 1; Nested && k < inside; k++)
      count *= more[k - 1].n;
    return count;
  }

  __device__ __forceinline__ void step(row_ends *p, uint32_t *r, const rs_box_axis &axis) const {
    uint32_t q = rs_box_divide(*r, axis.magic), i = *r - q * axis.n;
    p->src += i * axis.src;
    p->dst += i * axis.dst;
    *r = q;
  }

  __device__ __forceinline__ row_ends row(uint32_t r) const {
    row_ends p = base;
    if (Nested)
      step(&p, &r, inner);
#pragma unroll 1
    for (uint32_t k = 1; Nested && k < inside; k++)
      step(&p, &r, more[k - 1]);
    p.src += r * outer_src;
    p.dst += r * outer_dst;
    return p;
  }
};

template <uint32_t RowLoads, int Width, typename Loops>
__device__ __forceinline__ void copy_units(const Loops &l, const rs_box_shape &shape, uint32_t count) {
  using T = typename rs_unit<Width>::type;
  constexpr uint32_t Loads = (Width < 8 ? 2 : 1) * RowLoads - (Loops::nested ? 1 : 0);
  const uint32_t items = shape.items, magic = shape.magic, n = l.rows(count) * items;
  for (uint32_t base = threadIdx.x; base < n; base += RS_BOX_THREADS * Loads) {
    T v[Loads] = {};
    char *to[Loads] = {};
#pragma unroll
    for (uint32_t u = 0; u < Loads; u++) {
      uint32_t i = base + u * RS_BOX_THREADS;
      if (i < n) {
        uint32_t r = rs_box_divide(i, magic), column = i - r * items;
        row_ends p = l.row(r);
        v[u] = load<false, T>(p.src + column * Width);
        to[u] = p.dst + column * Width;
      }
    }
    if (is_closed_late(l.closed, base))
      return;
#pragma unroll
    for (uint32_t u = 0; u < Loads; u++)
      if (base + u * RS_BOX_THREADS < n)
        store<false>(to[u], v[u]);
  }
}

/* Whole slots of rows. Agree: no row is shifted. */
template <uint32_t RowLoads, bool Agree, typename Loops>
__device__ __forceinline__ void copy_row_slots(const Loops &l, const rs_box_shape &shape, uint32_t count) {
  constexpr uint32_t Loads = Agree ? RowLoads - (Loops::nested ? 1 : 0) : RowLoads / 2;
  const uint32_t items = shape.items, magic = shape.magic, run = shape.run, n = l.rows(count) * items;
  for (uint32_t base = threadIdx.x; base < n; base += RS_BOX_THREADS * Loads) {
    uint4 a[Loads] = {}, b[Agree ? 1 : Loads] = {};
    uint32_t shift[Agree ? 1 : Loads] = {};
    char *to[Loads] = {};
#pragma unroll
    for (uint32_t u = 0; u < Loads; u++) {
      uint32_t i = base + u * RS_BOX_THREADS;
      if (i < n) {
        uint32_t r = rs_box_divide(i, magic), slot = i - r * items;
        row_ends p = l.row(r);
        slots s = find_slots(p.src, p.dst, run);
        if (slot < s.n) {
          const char *from = p.src + s.head + slot * 16;
          to[u] = p.dst + s.head + slot * 16;
          if (Agree) {
            a[u] = load<false, uint4>(from);
          } else {
            shift[u] = s.shift;
            a[u] = load<false, uint4>(from - s.shift);
            if (s.shift > 0)
              b[u] = load<false, uint4>(from - s.shift + 16);
          }
        }
      }
    }
    if (is_closed_late(l.closed, base))
      return;
#pragma unroll
    for (uint32_t u = 0; u < Loads; u++)
      if (to[u] != nullptr)
        store<false>(to[u], Agree ? a[u] : shifted(a[u], b[u], shift[u]));
  }
}

/* Copies the bytes before and behind the slots of rows: 32 each, as far as there are so many, in units of Width. */
template <int Width, typename Loops>
__device__ __forceinline__ void copy_ends(const Loops &l, const rs_box_shape &shape, uint32_t count) {
  using T = typename rs_unit<Width>::type;
  constexpr uint32_t each = 32 / Width;
  const uint32_t run = shape.run, n = l.rows(count) * 2 * each;
  constexpr uint32_t Loads = 3;
  for (uint32_t base = threadIdx.x; base < n; base += RS_BOX_THREADS * Loads) {
    T v[Loads] = {};
    char *to[Loads] = {};
#pragma unroll
    for (uint32_t u = 0; u < Loads; u++) {
      uint32_t i = base + u * RS_BOX_THREADS;
      if (i < n) {
        row_ends p = l.row(i / (2 * each));
        slots s = find_slots(p.src, p.dst, run);
        uint32_t at = i % each * Width, end = s.head;
        if (i / each % 2 == 1) {
          at += s.head + 16 * s.n;
          end = run;
        }
        if (at < end) {
          v[u] = load<false, T>(p.src + at);
          to[u] = p.dst + at;
        }
      }
    }
    if (is_closed_late(l.closed, base))
      return;
#pragma unroll
    for (uint32_t u = 0; u < Loads; u++)
      if (to[u] != nullptr)
        store<false>(to[u], v[u]);
  }
}

template <uint32_t RowLoads, typename Loops>
__device__ __forceinline__ void copy_slot_rows(const Loops &l, const rs_box_shape &shape, uint32_t count) {
  if (shape.agree && modulo_16(l.base.src) == modulo_16(l.base.dst))
    copy_row_slots<RowLoads, true>(l, shape, count);
  else
    copy_row_slots<RowLoads, false>(l, shape, count);
  switch (shape.grain) {
  case 0: copy_ends<1>(l, shape, count); break;
  case 1: copy_ends<2>(l, shape, count); break;
  case 2: copy_ends<4>(l, shape, count); break;
  case 3: copy_ends<8>(l, shape, count); break;
  default: break; /* rows are whole slots */
  }
}

template <uint32_t RowLoads, bool Nested>
__device__ __forceinline__ void copy_shape(const rs_box_tile &tile, const rs_box_shape &shape,
                                           const rs_box_axis *between, const uint32_t *closed) {
  const tile_loops<Nested> l(tile, shape, between, closed);
  switch (shape.kind) {
  case RS_BOX_UNITS_1: copy_units<RowLoads, 1>(l, shape, tile.count); break;
  case RS_BOX_UNITS_2: copy_units<RowLoads, 2>(l, shape, tile.count); break;
  case RS_BOX_UNITS_4: copy_units<RowLoads, 4>(l, shape, tile.count); break;
  case RS_BOX_UNITS_8: copy_units<RowLoads, 8>(l, shape, tile.count); break;
  case RS_BOX_UNITS_16: copy_units<RowLoads, 16>(l, shape, tile.count); break;
  default: copy_slot_rows<RowLoads>(l, shape, tile.count); break;
  }
}

/* Brings the loops between to shared memory, where each element of the tile asks for them. */
__device__ __forceinline__ void keep_loops(rs_box_axis *between, const rs_box_shape &shape, const rs_box_axis *axes) {
  static_assert(sizeof(rs_box_axis) == 24, "three loads");
  const uint32_t n = 3 * (shape.inside - 1);
  if (threadIdx.x < n)
    reinterpret_cast<uint2 *>(between)[threadIdx.x] =
        load<false, uint2>(reinterpret_cast<const char *>(axes + shape.more) + 8 * threadIdx.x);
  __syncthreads();
}

template <uint32_t RowLoads> __device__ __forceinline__ void copy_tile(const rs_box_batch &batch, uint32_t t) {
  RS_SHARED(rs_box_axis, between, [RS_BOX_LOOPS - 2]);
  uint32_t k;
  const rs_box_tile tile = find_tile(batch, t, &k);
  if (tile.shape == RS_BOX_CONTIGUOUS) {
    if (batch.part[k].streaming)
      copy_contiguous<true>(tile.src, tile.dst, tile.count, batch.closed_late);
    else
      copy_contiguous<false>(tile.src, tile.dst, tile.count, batch.closed_late);
    return;
  }
  const rs_box_shape shape = load_shape(batch.part[k].shapes + tile.shape);
  if (shape.inside > 1)
    keep_loops(between, shape, batch.part[k].axes);
  if (shape.inside == 0)
    copy_shape<RowLoads, false>(tile, shape, nullptr, batch.closed_late);
  else
    copy_shape<RowLoads, true>(tile, shape, between, batch.closed_late);
}

/* Blocks of an SM: more loads take more registers. */
template <uint32_t RowLoads> constexpr int row_blocks = RowLoads > RS_BOX_ROW_LOADS ? RS_BOX_BLOCKS / 2 : RS_BOX_BLOCKS;

template <uint32_t RowLoads>
__global__ static void __launch_bounds__(RS_BOX_THREADS, row_blocks<RowLoads>)
    copy_rows(RS_GRID_CONSTANT(rs_box_batch) batch) {
  if (!is_closed(batch.closed))
    copy_tile<RowLoads>(batch, blockIdx.x);
}

/* Fewer blocks than tiles: kernels of their own, so that the others need no loop. */
template <uint32_t RowLoads>
__global__ static void __launch_bounds__(RS_BOX_THREADS, row_blocks<RowLoads>)
    copy_rows_limited(RS_GRID_CONSTANT(rs_box_batch) batch) {
  if (is_closed(batch.closed))
    return;
  for (uint32_t t = blockIdx.x; t < batch.tiles; t += gridDim.x) {
    copy_tile<RowLoads>(batch, t);
    __syncthreads(); /* before the next tile's loops come into shared memory */
  }
}

template <uint32_t RowLoads> int load_rows() {
  int error = rs_launch_load(copy_rows<RowLoads>);
  return error != cudaSuccess ? error : rs_launch_load(copy_rows_limited<RowLoads>);
}

template <uint32_t RowLoads> int launch_rows(const rs_box_batch &batch, uint32_t most, void *stream) {
  const dim3 block(RS_BOX_THREADS);
  return most > 0 && most < batch.tiles ? rs_launch(copy_rows_limited<RowLoads>, dim3(most), block, 0, stream, batch)
                                        : rs_launch(copy_rows<RowLoads>, dim3(batch.tiles), block, 0, stream, batch);
}

__device__ __forceinline__ void copy_span_tile(const rs_box_spans &spans, uint32_t t) {
  uint32_t low = 0, high = spans.n - 1; /* the first one that ends behind the tile */
  while (low < high) {
    uint32_t middle = (low + high) / 2;
    if (spans.span[middle].end <= t)
      low = middle + 1;
    else
      high = middle;
  }
  const rs_box_span &span = spans.span[low];
  const int64_t piece = t - (low > 0 ? spans.span[low - 1].end : 0);
  const int64_t begin = rs_box_piece_begin(span.dst, spans.tile, piece);
  const int64_t end = min(rs_box_piece_begin(span.dst, spans.tile, piece + 1), span.bytes);
  if (spans.streaming)
    copy_contiguous<true>(span.src + begin, span.dst + begin, static_cast<uint32_t>(end - begin), nullptr);
  else
    copy_contiguous<false>(span.src + begin, span.dst + begin, static_cast<uint32_t>(end - begin), nullptr);
}

__global__ static void __launch_bounds__(RS_BOX_THREADS, RS_BOX_BLOCKS)
    copy_spans(RS_GRID_CONSTANT(rs_box_spans) spans) {
  if (!is_closed(spans.closed))
    copy_span_tile(spans, blockIdx.x);
}

__global__ static void __launch_bounds__(RS_BOX_THREADS, RS_BOX_BLOCKS)
    copy_spans_limited(RS_GRID_CONSTANT(rs_box_spans) spans) {
  if (is_closed(spans.closed))
    return;
  for (uint32_t t = blockIdx.x; t < spans.span[spans.n - 1].end; t += gridDim.x)
    copy_span_tile(spans, t);
}

} // namespace

extern "C" int rs_box_rows_load(void) {
  int error = load_rows<RS_BOX_ROW_LOADS>();
  if (error == cudaSuccess)
    error = load_rows<RS_BOX_ROW_LOADS_FEW>();
  if (error == cudaSuccess)
    error = load_rows<RS_BOX_ROW_LOADS_MANY>();
  if (error == cudaSuccess)
    error = rs_launch_load(copy_spans);
  return error != cudaSuccess ? error : rs_launch_load(copy_spans_limited);
}

extern "C" int rs_box_rows_launch(const rs_box_batch *batch, uint32_t most, void *stream) {
  switch (batch->loads) {
  case RS_BOX_ROW_LOADS_FEW: return launch_rows<RS_BOX_ROW_LOADS_FEW>(*batch, most, stream);
  case RS_BOX_ROW_LOADS_MANY: return launch_rows<RS_BOX_ROW_LOADS_MANY>(*batch, most, stream);
  default: return launch_rows<RS_BOX_ROW_LOADS>(*batch, most, stream);
  }
}

extern "C" int rs_box_spans_launch(const rs_box_spans *spans, uint32_t most, void *stream) {
  const uint32_t tiles = spans->n == 0 ? 0 : spans->span[spans->n - 1].end;
  const dim3 block(RS_BOX_THREADS);
  return most > 0 && most < tiles ? rs_launch(copy_spans_limited, dim3(most), block, 0, stream, *spans)
                                  : rs_launch(copy_spans, dim3(tiles), block, 0, stream, *spans);
}
