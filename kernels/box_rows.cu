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

/* Loops of a tile: the innermost and the outermost in registers, those between in shared memory. Most tiles have one or
 * two loops (Inside 0 and 1), and more loads in flight for these; Inside 2 is one or more inside. */
template <int Inside> struct tile_loops {
  static constexpr bool nested = Inside > 0, deep = Inside > 1;
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
    if (nested)
      count *= inner.n;
#pragma unroll 1
    for (uint32_t k = 1; deep && k < inside; k++)
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
    if (nested)
      step(&p, &r, inner);
#pragma unroll 1
    for (uint32_t k = 1; deep && k < inside; k++)
      step(&p, &r, more[k - 1]);
    p.src += r * outer_src;
    p.dst += r * outer_dst;
    return p;
  }
};

template <uint32_t RowLoads, int Width, typename Loops>
__device__ __forceinline__ void copy_units(const Loops &l, const rs_box_shape &shape, uint32_t count) {
  using T = typename rs_unit<Width>::type;
  constexpr uint32_t Loads = (Width < 8 ? 2 : 1) * RowLoads - (Loops::deep ? 1 : 0);
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
        v[u] = load<T>(p.src + column * Width);
        to[u] = p.dst + column * Width;
      }
    }
    if (is_closed_late(l.closed, base))
      return;
#pragma unroll
    for (uint32_t u = 0; u < Loads; u++)
      if (base + u * RS_BOX_THREADS < n)
        store(to[u], v[u]);
  }
}

/* The ends of a row, as a lane has them: units of Width bytes before its first slot and behind its last. */
template <int Width, uint32_t Units> struct lane_ends {
  using T = typename rs_unit<Width>::type;
  T head[Units], tail[Units];
};
template <uint32_t Lanes, int Width> using ends_of = lane_ends<Width, (32 / Width + Lanes - 1) / Lanes>;

template <uint32_t Lanes, int Width, uint32_t Units>
__device__ __forceinline__ void load_ends(lane_ends<Width, Units> *ends, const char *src, const slots &s,
                                          uint32_t run) {
  using T = typename rs_unit<Width>::type;
  const uint32_t lane = threadIdx.x % Lanes, tail = s.head + 16 * s.n;
#pragma unroll
  for (uint32_t k = 0; k < Units; k++) {
    const uint32_t at = (lane + k * Lanes) * Width;
    if (at < s.head)
      ends->head[k] = load<T>(src + at);
    if (tail + at < run)
      ends->tail[k] = load<T>(src + tail + at);
  }
}

template <uint32_t Lanes, int Width, uint32_t Units>
__device__ __forceinline__ void store_ends(const lane_ends<Width, Units> &ends, char *dst, const slots &s,
                                           uint32_t run) {
  const uint32_t lane = threadIdx.x % Lanes, tail = s.head + 16 * s.n;
#pragma unroll
  for (uint32_t k = 0; k < Units; k++) {
    const uint32_t at = (lane + k * Lanes) * Width;
    if (at < s.head)
      store(dst + at, ends.head[k]);
    if (tail + at < run)
      store(dst + tail + at, ends.tail[k]);
  }
}

/* Rows of at most a slot for each of so many lanes, that are neighbours. */
template <uint32_t Rows, uint32_t Lanes, int Width, typename Loops>
__device__ __forceinline__ void copy_short_rows(const Loops &l, uint32_t run, uint32_t count) {
  constexpr uint32_t Groups = RS_BOX_THREADS / Lanes;
  const uint32_t n = l.rows(count), lane = threadIdx.x % Lanes;
  for (uint32_t first = threadIdx.x / Lanes; first < n; first += Groups * Rows) {
    uint4 a[Rows] = {}, b[Rows] = {};
    ends_of<Lanes, Width> ends[Rows] = {};
    char *to[Rows] = {};
    slots s[Rows] = {};
#pragma unroll
    for (uint32_t r = 0; r < Rows; r++) {
      if (first + r * Groups < n) {
        const row_ends p = l.row(first + r * Groups);
        to[r] = p.dst;
        s[r] = find_slots(p.src, p.dst, run);
        const char *from = p.src + s[r].head - s[r].shift + lane * 16;
        if (lane < s[r].n) {
          a[r] = load<uint4>(from);
          if (s[r].shift > 0)
            b[r] = load<uint4>(from + 16);
        }
        load_ends<Lanes>(&ends[r], p.src, s[r], run);
      }
    }
    if (is_closed_late(l.closed, first < Groups ? 0 : RS_BOX_THREADS))
      return;
#pragma unroll
    for (uint32_t r = 0; r < Rows; r++) {
      if (to[r] != nullptr) {
        store_ends<Lanes>(ends[r], to[r], s[r], run);
        if (lane < s[r].n)
          store(to[r] + s[r].head + lane * 16, shifted(a[r], b[r], s[r].shift));
      }
    }
  }
}

/* Longer rows, a warp each. */
template <uint32_t RowLoads, int Width, typename Loops>
__device__ __forceinline__ void copy_long_rows(const Loops &l, uint32_t run, uint32_t count) {
  constexpr uint32_t Loads = RowLoads - (Loops::deep ? 1 : 0);
  const uint32_t n = l.rows(count), lane = threadIdx.x % 32;
  for (uint32_t row = threadIdx.x / 32; row < n; row += RS_BOX_THREADS / 32) {
    const row_ends p = l.row(row);
    const slots s = find_slots(p.src, p.dst, run);
    ends_of<32, Width> ends = {};
    load_ends<32>(&ends, p.src, s, run);
    const uint32_t closed = row < RS_BOX_THREADS / 32 ? load_closed(l.closed) : 0; /* comes beside the data */
    const char *from = p.src + s.head - s.shift;
    char *to = p.dst + s.head;
    for (uint32_t slot = lane; slot < s.n; slot += 32 * Loads) {
      uint4 a[Loads] = {}, b[Loads] = {};
#pragma unroll
      for (uint32_t k = 0; k < Loads; k++)
        if (slot + k * 32 < s.n) {
          a[k] = load<uint4>(from + (slot + k * 32) * 16);
          if (s.shift > 0)
            b[k] = load<uint4>(from + (slot + k * 32) * 16 + 16);
        }
      if (closed != 0)
        return;
#pragma unroll
      for (uint32_t k = 0; k < Loads; k++)
        if (slot + k * 32 < s.n)
          store(to + (slot + k * 32) * 16, shifted(a[k], b[k], s.shift));
    }
    if (closed == 0)
      store_ends<32>(ends, p.dst, s, run);
  }
}

template <uint32_t RowLoads, int Width, typename Loops>
__device__ __forceinline__ void copy_slot_rows(const Loops &l, uint32_t run, uint32_t count) {
  if (run < 17 * 16)
    copy_short_rows<RowLoads / 2, 16, Width>(l, run, count);
  else if (run < 33 * 16)
    copy_short_rows<RowLoads / 2, 32, Width>(l, run, count);
  else
    copy_long_rows<RowLoads, Width>(l, run, count);
}

template <uint32_t RowLoads, bool Slots, int Inside>
__device__ __forceinline__ void copy_shape(const rs_box_tile &tile, const rs_box_shape &shape,
                                           const rs_box_axis *between, const uint32_t *closed) {
  const tile_loops<Inside> l(tile, shape, between, closed);
  switch (shape.kind) {
  case RS_BOX_UNITS_1: copy_units<RowLoads, 1>(l, shape, tile.count); break;
  case RS_BOX_UNITS_2: copy_units<RowLoads, 2>(l, shape, tile.count); break;
  case RS_BOX_UNITS_4: copy_units<RowLoads, 4>(l, shape, tile.count); break;
  case RS_BOX_UNITS_8: copy_units<RowLoads, 8>(l, shape, tile.count); break;
  case RS_BOX_UNITS_16: copy_units<RowLoads, 16>(l, shape, tile.count); break;
  default:
    if constexpr (Slots) {
      switch (shape.grain) {
      case 0: copy_slot_rows<RowLoads, 1>(l, shape.run, tile.count); break;
      case 1: copy_slot_rows<RowLoads, 2>(l, shape.run, tile.count); break;
      default: copy_slot_rows<RowLoads, 4>(l, shape.run, tile.count); break;
      }
    }
  }
}

/* Brings the loops between to shared memory, where each element of the tile asks for them. */
__device__ __forceinline__ void keep_loops(rs_box_axis *between, const rs_box_shape &shape, const rs_box_axis *axes) {
  static_assert(sizeof(rs_box_axis) == 24, "three loads");
  const uint32_t n = 3 * (shape.inside - 1);
  if (threadIdx.x < n)
    reinterpret_cast<uint2 *>(between)[threadIdx.x] =
        load<uint2>(reinterpret_cast<const char *>(axes + shape.more) + 8 * threadIdx.x);
  __syncthreads();
}

/* Slots: the batch has tiles of that kind. */
template <uint32_t RowLoads, bool Slots>
__device__ __forceinline__ void copy_tile(const rs_box_batch &batch, uint32_t t) {
  RS_SHARED(rs_box_axis, between, [RS_BOX_LOOPS - 2]);
  uint32_t k;
  const rs_box_tile tile = find_tile(batch, t, &k);
  if (tile.shape == RS_BOX_CONTIGUOUS) {
    copy_contiguous(tile.src, tile.dst, tile.count, batch.closed_late);
    return;
  }
  const rs_box_shape shape = load_shape(batch.part[k].shapes + tile.shape);
  if (shape.inside > 1)
    keep_loops(between, shape, batch.part[k].axes);
  if (shape.inside == 0)
    copy_shape<RowLoads, Slots, 0>(tile, shape, nullptr, batch.closed_late);
  else if (shape.inside == 1 && !Slots)
    copy_shape<RowLoads, false, 1>(tile, shape, nullptr, batch.closed_late);
  else
    copy_shape<RowLoads, Slots, 2>(tile, shape, between, batch.closed_late);
}

/* Blocks of an SM: more loads take more registers. */
template <uint32_t RowLoads> constexpr int row_blocks = RowLoads > RS_BOX_ROW_LOADS ? RS_BOX_BLOCKS / 2 : RS_BOX_BLOCKS;

/* A kernel of its own for rows by slots: the compiler makes the others slower beside them. */
template <uint32_t RowLoads, bool Slots>
__global__ static void __launch_bounds__(RS_BOX_THREADS, row_blocks<RowLoads>)
    copy_rows(RS_GRID_CONSTANT(rs_box_batch) batch) {
  if (!is_closed(batch.closed))
    copy_tile<RowLoads, Slots>(batch, blockIdx.x);
}

/* Fewer blocks than tiles: kernels of their own, so that the others need no loop. */
template <uint32_t RowLoads>
__global__ static void __launch_bounds__(RS_BOX_THREADS, row_blocks<RowLoads>)
    copy_rows_limited(RS_GRID_CONSTANT(rs_box_batch) batch) {
  if (is_closed(batch.closed))
    return;
  for (uint32_t t = blockIdx.x; t < batch.tiles; t += gridDim.x) {
    copy_tile<RowLoads, true>(batch, t);
    __syncthreads(); /* before the next tile's loops come into shared memory */
  }
}

template <uint32_t RowLoads> int load_rows() {
  int error = rs_launch_load(copy_rows<RowLoads, false>);
  if (error == cudaSuccess)
    error = rs_launch_load(copy_rows<RowLoads, true>);
  return error != cudaSuccess ? error : rs_launch_load(copy_rows_limited<RowLoads>);
}

template <uint32_t RowLoads> int launch_rows(const rs_box_batch &batch, uint32_t most, void *stream) {
  const dim3 grid(batch.tiles), block(RS_BOX_THREADS);
  bool slots = false;
  for (uint32_t k = 0; k < batch.nparts; k++)
    slots |= batch.part[k].slots != 0;
  if (most > 0 && most < batch.tiles)
    return rs_launch(copy_rows_limited<RowLoads>, dim3(most), block, 0, stream, batch);
  return slots ? rs_launch(copy_rows<RowLoads, true>, grid, block, 0, stream, batch)
               : rs_launch(copy_rows<RowLoads, false>, grid, block, 0, stream, batch);
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
  copy_contiguous(span.src + begin, span.dst + begin, static_cast<uint32_t>(end - begin), nullptr);
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
