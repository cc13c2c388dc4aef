/* Casts: numbers of one dtype to another, for many tensors in one launch.
 *
 * A part of the table is `rows` of contiguous numbers. A row is divided in slots of V numbers, which are 16 bytes of
 * the wider dtype: a warp reads and writes whole lines. The first slot begins at the last place before the row where
 * both sides are aligned. So all slots but the ends are one load and one store. Where no place is aligned on both
 * sides, V is 1.
 *
 * The slots of a part make items, the items of all parts are cut in tiles, and a block takes a tile: it finds its part
 * by bisection in the table. That is a parameter of the kernel: nothing is uploaded, and a captured launch has it in
 * the graph. A longer list has its table in memory of the device, for one launch as well. A thread loads several items
 * before it stores the first, to have enough bytes on their way. Which dtypes a part has is the same for a whole block,
 * so one kernel has all pairs. */
#include "kernels/cast.h"

#include "kernels/cast_device.cuh"

#include <reshard/dtype.h>

#ifndef RS_CAST_MOST /* tests compile this file with less, too */
#define RS_CAST_MOST INT32_MAX
#endif

namespace {

constexpr int64_t ITEMS_MOST = RS_CAST_MOST; /* of a part: what rs_divider takes */

__global__ void __launch_bounds__(THREADS) cast(RS_GRID_CONSTANT(table) t) {
  cast_tile(t.parts, t.nparts, t.first + blockIdx.x);
}

__global__ void __launch_bounds__(THREADS) cast_listed(const part *parts, uint32_t nparts, uint32_t first) {
  cast_tile(parts, nparts, first + blockIdx.x);
}

/* --- On the host: the table --------------------------------------------------------------------------------------*/

int number_of(int32_t dtype) {
  switch (dtype) {
  case RESHARD_F8_E4M3: return RS_E4M3;
  case RESHARD_F8_E5M2: return RS_E5M2;
  case RESHARD_F16: return RS_F16;
  case RESHARD_BF16: return RS_BF16;
  case RESHARD_F32: return RS_F32;
  case RESHARD_F64: return RS_F64;
  default: return -1;
  }
}

/* Slots of a tile; 0: there is no cast of the pair. */
int tile_slots(int from, int to) {
  switch (pair_of(from, to)) {
#define RS_CAST_CASE(from, to) \
  case pair_of(from, to): return THREADS * ITEMS;
    RS_CAST_PAIRS(RS_CAST_CASE)
#undef RS_CAST_CASE
  }
  return 0;
}

/* A part while it is laid out: it may be cut in two. */
struct cast_piece {
  const char *src;
  char *dst;
  int64_t elements;
  rs_axis loops[LOOPS];
  int nloops, from, to;
};

/* Innermost first: the one with the smallest step in the destination. Loops of one step are dropped. */
void sort_loops(int n, const rs_axis *axes, cast_piece *to) {
  auto step = [](const rs_axis &l) { return l.dst < 0 ? -l.dst : l.dst; };
  to->nloops = 0;
  for (int i = n; i-- > 0;) {
    if (axes[i].n == 1)
      continue;
    int at = to->nloops++;
    for (; at > 0 && step(to->loops[at - 1]) > step(axes[i]); at--)
      to->loops[at] = to->loops[at - 1];
    to->loops[at] = axes[i];
  }
}

/* Numbers between the last place where both sides are aligned to slots of V and the first number; -1: there is none,
 * or not for all rows. */
int aligned_head(const cast_piece &p, int v) {
  int in = rs_number_bytes(p.from), out = rs_number_bytes(p.to);
  auto off = [v](int64_t value, int bytes) { return value & (v * bytes - 1); };
  for (int i = 0; i < p.nloops; i++)
    if (off(p.loops[i].src, in) != 0 || off(p.loops[i].dst, out) != 0)
      return -1;
  int64_t head = off(static_cast<int64_t>(reinterpret_cast<uintptr_t>(p.src)), in);
  return head * out == off(static_cast<int64_t>(reinterpret_cast<uintptr_t>(p.dst)), out) * in && head % in == 0
             ? static_cast<int>(head / in)
             : -1;
}

/* All of a part but its place in the table. */
part lay_out(const cast_piece &p) {
  int v = slot_numbers(p.from, p.to), head = p.elements >= v ? aligned_head(p, v) : -1;
  part to = {};
  to.wide = head >= 0;
  to.head = static_cast<uint8_t>(head < 0 ? 0 : head);
  to.src = p.src - to.head * rs_number_bytes(p.from);
  to.dst = p.dst - to.head * rs_number_bytes(p.to);
  to.elements = p.elements;
  to.pair = static_cast<uint8_t>(pair_of(p.from, p.to));
  to.nloops = static_cast<uint8_t>(p.nloops);
  to.in = static_cast<uint8_t>(__builtin_ctz(static_cast<unsigned>(rs_number_bytes(p.from))));
  to.out = static_cast<uint8_t>(__builtin_ctz(static_cast<unsigned>(rs_number_bytes(p.to))));
  to.ragged = to.head != 0 || p.elements % v != 0;
  to.tile = static_cast<uint16_t>(to.wide ? tile_slots(p.from, p.to) : THREADS * NUMBERS);
  int64_t slots = to.wide ? (to.head + p.elements + v - 1) / v : p.elements;
  to.items = slots;
  for (int i = 0; i < p.nloops; i++)
    to.items = to.items > INT64_MAX / p.loops[i].n ? INT64_MAX : to.items * p.loops[i].n;
  if (to.items <= ITEMS_MOST)
    to.slots = rs_divider_make(static_cast<uint32_t>(slots));
  return to;
}

/* Cuts a piece in two until its items can be counted: the outermost loop, or the numbers of a row. Calls put(piece,
 * part) for each result. Stops at an error. */
template <typename Put> int cut(const cast_piece &p, Put &&put) {
  part to = lay_out(p);
  if (to.items <= ITEMS_MOST)
    return put(p, to);
  cast_piece first = p, second = p;
  rs_axis *outer = p.nloops > 0 ? &first.loops[p.nloops - 1] : nullptr;
  int64_t n = outer != nullptr ? outer->n : p.elements, half = n / 2;
  (outer != nullptr ? outer->n : first.elements) = half;
  (outer != nullptr ? second.loops[p.nloops - 1].n : second.elements) = n - half;
  second.src += half * (outer != nullptr ? outer->src : rs_number_bytes(p.from));
  second.dst += half * (outer != nullptr ? outer->dst : rs_number_bytes(p.to));
  if (outer != nullptr && half == 1)
    first.nloops--;
  if (outer != nullptr && n - half == 1)
    second.nloops--;
  int error = cut(first, put);
  return error != cudaSuccess ? error : cut(second, put);
}

/* All parts of a list of casts. */
template <typename Put> int each_part(int64_t n, const rs_cast *casts, const rs_axis *axes, Put &&put) {
  for (int64_t i = 0; i < n; i++) {
    cast_piece p = {};
    p.src = casts[i].src;
    p.dst = casts[i].dst;
    p.elements = casts[i].elements;
    p.from = number_of(casts[i].from);
    p.to = number_of(casts[i].to);
    if (p.from < 0 || p.to < 0 || tile_slots(p.from, p.to) == 0 || casts[i].naxes > LOOPS)
      return cudaErrorInvalidValue;
    if (p.elements == 0)
      continue;
    sort_loops(casts[i].naxes, axes + casts[i].axes, &p);
    int error = cut(p, put);
    if (error != cudaSuccess)
      return error;
  }
  return cudaSuccess;
}

int64_t tiles_of(const part &p) { return (p.items + p.tile - 1) / p.tile; }

/* Puts a part and its loops behind those that are there; `tiles` with its own. */
void put_part(const cast_piece &p, part to, uint32_t tiles, part *at, cast_loop *loops, uint32_t nloops) {
  to.end = tiles;
  to.loops = static_cast<uint32_t>(reinterpret_cast<char *>(loops + nloops) - reinterpret_cast<char *>(at));
  *at = to;
  for (int i = 0; i < p.nloops; i++)
    loops[nloops + static_cast<uint32_t>(i)] =
        cast_loop{p.loops[i].src, p.loops[i].dst, rs_divider_make(static_cast<uint32_t>(p.loops[i].n)), 0};
}

} // namespace

/* Calls launch(first, blocks) for all tiles, `most` of them at a time. A loop over tiles in the kernel would hold twice
 * the registers. */
template <typename Launch> static int launch_tiles(uint32_t tiles, uint32_t most, Launch launch) {
  int error = cudaSuccess;
  for (uint32_t first = 0, blocks; first < tiles && error == cudaSuccess; first += blocks) {
    blocks = most > 0 ? min(tiles - first, most) : tiles;
    error = launch(first, dim3(blocks));
  }
  return error;
}

extern "C" int rs_cast_launch(int64_t n, const rs_cast *casts, const rs_axis *axes, uint32_t most, void *stream) {
  table t;
  uint32_t tiles = 0;
  t.nparts = t.nloops = t.unused = 0;
  auto flush = [&] {
    int error = launch_tiles(tiles, most, [&](uint32_t first, dim3 blocks) {
      t.first = first;
      return rs_launch(cast, blocks, dim3(THREADS), 0, stream, t);
    });
    t.nparts = t.nloops = tiles = 0;
    return error;
  };
  int error = each_part(n, casts, axes, [&](const cast_piece &p, const part &to) {
    int flushed = cudaSuccess;
    if (t.nparts == PARTS || t.nloops + p.nloops > TABLE_LOOPS)
      flushed = flush();
    tiles += static_cast<uint32_t>(tiles_of(to));
    put_part(p, to, tiles, &t.parts[t.nparts++], t.loops, t.nloops);
    t.nloops += p.nloops;
    return flushed;
  });
  return error != cudaSuccess ? error : flush();
}

extern "C" size_t rs_cast_table_measure(int64_t n, const rs_cast *casts, const rs_axis *axes, rs_cast_table *measured) {
  int64_t loops = 0, tiles = 0;
  for (int64_t i = 0; i < n; i++)
    loops += casts[i].naxes;
  if (n <= PARTS && loops <= TABLE_LOOPS)
    return 0;
  rs_cast_table t = {0, 0, 0};
  int error = each_part(n, casts, axes, [&](const cast_piece &p, const part &to) {
    tiles += tiles_of(to);
    t.parts++;
    t.loops += static_cast<uint32_t>(p.nloops);
    return tiles > INT32_MAX ? cudaErrorInvalidValue : cudaSuccess;
  });
  if (error != cudaSuccess || (t.parts <= PARTS && t.loops <= TABLE_LOOPS))
    return 0;
  size_t bytes = t.parts * sizeof(part) + t.loops * sizeof(cast_loop);
  if (bytes > UINT32_MAX)
    return 0;
  t.tiles = static_cast<uint32_t>(tiles);
  *measured = t;
  return bytes;
}

extern "C" void rs_cast_table_write(const rs_cast_table *t, int64_t n, const rs_cast *casts, const rs_axis *axes,
                                    void *host) {
  part *parts = static_cast<part *>(host);
  cast_loop *loops = reinterpret_cast<cast_loop *>(parts + t->parts);
  uint32_t tiles = 0, nparts = 0, nloops = 0;
  (void)each_part(n, casts, axes, [&](const cast_piece &p, const part &to) {
    tiles += static_cast<uint32_t>(tiles_of(to));
    put_part(p, to, tiles, &parts[nparts++], loops, nloops);
    nloops += static_cast<uint32_t>(p.nloops);
    return cudaSuccess;
  });
}

extern "C" int rs_cast_table_launch(const rs_cast_table *t, const void *memory, uint32_t most, void *stream) {
  const part *parts = static_cast<const part *>(memory);
  return launch_tiles(t->tiles, most, [&](uint32_t first, dim3 blocks) {
    return rs_launch(cast_listed, blocks, dim3(THREADS), 0, stream, parts, t->parts, first);
  });
}
