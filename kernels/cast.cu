/* Casts: numbers of one dtype to another, for many tensors in one launch.
 *
 * A part of the table is `rows` of contiguous numbers. A row is divided in slots of V numbers, V of the wider dtype
 * being 16 bytes, so that a warp reads and writes whole lines; the first slot begins at the last place before the row
 * where both sides are aligned, so that all slots but the ends are one load and one store. Where no place is aligned on
 * both sides, V is 1.
 *
 * The slots of a part make items, the items of all parts are cut in tiles, and a block takes a tile: it finds its part
 * by bisection in the table. That is a parameter of the kernel: nothing is uploaded, and a captured launch has it in
 * the graph. A longer list has its table in memory of the device, for one launch as well. A thread loads several items
 * before it stores the first, to have enough bytes on their way. Which dtypes a part has is the same for a whole block,
 * so one kernel has all pairs. */
#include "kernels/cast.h"

#include "kernels/divide.cuh"
#include "kernels/numbers.cuh"

#include <reshard/dtype.h>

namespace {

enum {
  THREADS = 256,
  NUMBERS = 4, /* of a thread, one by one */
  LOOPS = 12   /* most of one part */
};
#ifndef RS_CAST_MOST /* tests compile this file with less, too */
#define RS_CAST_MOST INT32_MAX
#endif
constexpr int64_t ITEMS_MOST = RS_CAST_MOST; /* of a part: what rs_divider takes */

struct loop {
  int64_t src, dst;
  rs_divider n;
  uint32_t unused;
};

struct part {
  const char *src; /* of slot 0 of row 0 */
  char *dst;
  int64_t elements;
  int64_t items;
  uint32_t end;     /* tiles of the parts up to this one */
  uint32_t loops;   /* bytes from here to the first one; innermost first */
  rs_divider slots; /* of a row */
  uint16_t tile;    /* items of one */
  uint8_t nloops, pair;
  uint8_t in, out; /* log2 of the bytes of a number */
  uint8_t head;    /* numbers of slot 0 before the row */
  uint8_t wide;    /* V > 1, */
  uint8_t ragged;  /* and not all slots are whole */
};

/* 16 KiB: enough for most lists in one launch, and passed within some microseconds. */
enum { PARTS = RS_PARAMETER_BYTES > 4096 ? 200 : 40, TABLE_LOOPS = RS_PARAMETER_BYTES > 4096 ? 96 : 32 };
struct table {
  uint32_t nparts, nloops;
  uint32_t first, unused; /* tile of the first block */
  part parts[PARTS];
  loop loops[TABLE_LOOPS];
};
static_assert(sizeof(table) <= RS_PARAMETER_BYTES, "a table is a parameter");

/* The pairs of dtypes, in the order in which the kernel is instantiated. */
/* clang-format off */
#define RS_CAST_PAIRS(P)                                   \
  P(RS_F32, RS_BF16) P(RS_BF16, RS_F32)                    \
  P(RS_F32, RS_F16) P(RS_F16, RS_F32)                      \
  P(RS_F16, RS_BF16) P(RS_BF16, RS_F16)                    \
  P(RS_F64, RS_F32) P(RS_F32, RS_F64)                      \
  P(RS_F64, RS_F16) P(RS_F16, RS_F64)                      \
  P(RS_F64, RS_BF16) P(RS_BF16, RS_F64)                    \
  P(RS_F32, RS_E4M3) P(RS_E4M3, RS_F32)                    \
  P(RS_F32, RS_E5M2) P(RS_E5M2, RS_F32)                    \
  P(RS_F16, RS_E4M3) P(RS_E4M3, RS_F16)                    \
  P(RS_F16, RS_E5M2) P(RS_E5M2, RS_F16)                    \
  P(RS_BF16, RS_E4M3) P(RS_E4M3, RS_BF16)                  \
  P(RS_BF16, RS_E5M2) P(RS_E5M2, RS_BF16)                  \
  P(RS_F64, RS_E4M3) P(RS_E4M3, RS_F64)                    \
  P(RS_F64, RS_E5M2) P(RS_E5M2, RS_F64)                    \
  P(RS_E4M3, RS_E5M2) P(RS_E5M2, RS_E4M3)
/* clang-format on */

__host__ __device__ constexpr int pair_of(int from, int to) { return from * RS_NUMBERS + to; }

/* Numbers of a slot, and items of a thread. */
__host__ __device__ constexpr int slot_numbers(int from, int to) {
  return 16 / (rs_number_bytes(from) > rs_number_bytes(to) ? rs_number_bytes(from) : rs_number_bytes(to));
}
__host__ __device__ constexpr int thread_items(int from, int to) {
  int loaded = slot_numbers(from, to) * rs_number_bytes(from); // bytes of an item
  return loaded >= 16 ? 4 : loaded >= 8 ? 6 : 8;
}

/* Memory of `Bytes` bytes, loaded and stored whole. */
template <int Bytes> struct chunk;
template <> struct chunk<2> { typedef uint16_t type; };
template <> struct chunk<4> { typedef uint32_t type; };
template <> struct chunk<8> { typedef uint2 type; };
template <> struct chunk<16> { typedef uint4 type; };

/* Up to 16 bytes as words, of which the code of a number is taken or put. */
struct words {
  uint32_t at[4];
};
__device__ __forceinline__ void unpack(uint16_t v, words *w) { w->at[0] = v; }
__device__ __forceinline__ void unpack(uint32_t v, words *w) { w->at[0] = v; }
__device__ __forceinline__ void unpack(uint2 v, words *w) { w->at[0] = v.x, w->at[1] = v.y; }
__device__ __forceinline__ void unpack(uint4 v, words *w) {
  w->at[0] = v.x, w->at[1] = v.y, w->at[2] = v.z, w->at[3] = v.w;
}
__device__ __forceinline__ void pack(const words &w, uint16_t *v) { *v = static_cast<uint16_t>(w.at[0]); }
__device__ __forceinline__ void pack(const words &w, uint32_t *v) { *v = w.at[0]; }
__device__ __forceinline__ void pack(const words &w, uint2 *v) { *v = make_uint2(w.at[0], w.at[1]); }
__device__ __forceinline__ void pack(const words &w, uint4 *v) { *v = make_uint4(w.at[0], w.at[1], w.at[2], w.at[3]); }

template <int Bytes> __device__ __forceinline__ uint64_t take(const words &w, int i) {
  if (Bytes == 8)
    return static_cast<uint64_t>(w.at[2 * i + 1]) << 32 | w.at[2 * i];
  int bit = 8 * Bytes * i;
  return w.at[bit / 32] >> bit % 32 & (0xffffffffu >> (32 - 8 * Bytes) % 32);
}
template <int Bytes> __device__ __forceinline__ void put(words *w, int i, uint64_t code) {
  if (Bytes == 8) {
    w->at[2 * i] = static_cast<uint32_t>(code);
    w->at[2 * i + 1] = static_cast<uint32_t>(code >> 32);
    return;
  }
  int bit = 8 * Bytes * i;
  w->at[bit / 32] |= static_cast<uint32_t>(code) << bit % 32;
}

/* Where the numbers of an item are, in bytes from the part's: number 0 of its slot. */
struct place {
  int64_t src, dst, number; /* number: in the row */
};
__device__ __forceinline__ const loop *loops_of(const part &p) {
  return reinterpret_cast<const loop *>(reinterpret_cast<const char *>(&p) + p.loops);
}
__device__ __forceinline__ place find(const part &p, const loop *loops, int64_t item, int v, int in, int out) {
  place at = {0, 0, item * v};
  if (p.nloops > 0) {
    uint32_t rest, row = rs_divide(p.slots, static_cast<uint32_t>(item), &rest);
    at.number = static_cast<int64_t>(rest) * v;
#pragma unroll 1
    for (int i = 0; i < p.nloops; i++) {
      row = rs_divide(loops[i].n, row, &rest);
      at.src += rest * loops[i].src;
      at.dst += rest * loops[i].dst;
    }
  }
  at.src += at.number * in;
  at.dst += at.number * out;
  return at;
}

/* The items of a tile that are whole slots. */
template <int From, int To> __attribute__((noinline)) __device__ void cast_slots(const part &listed, uint32_t tile) {
  constexpr int N = thread_items(From, To), IN = rs_number_bytes(From), OUT = rs_number_bytes(To);
  constexpr int V = slot_numbers(From, To);
  typedef typename chunk<V * IN>::type in_chunk;
  typedef typename chunk<V * OUT>::type out_chunk;
  const part p = listed; // in registers: else each item waits for one field after the other before its load begins
  const loop *loops = loops_of(listed);
  int64_t first = static_cast<int64_t>(tile) * (N * THREADS) + threadIdx.x;
  in_chunk in[N];
  out_chunk *to[N];
#pragma unroll
  for (int i = 0; i < N; i++) {
    int64_t item = first + i * THREADS;
    to[i] = nullptr;
    if (item >= p.items)
      continue;
    place at = find(p, loops, item, V, IN, OUT);
    if (at.number < p.head || at.number + V > p.head + p.elements)
      continue;
    in[i] = __ldcs(reinterpret_cast<const in_chunk *>(p.src + at.src));
    to[i] = reinterpret_cast<out_chunk *>(p.dst + at.dst);
  }
#pragma unroll
  for (int i = 0; i < N; i++) {
    if (to[i] == nullptr)
      continue;
    words codes, out = {};
    unpack(in[i], &codes);
#pragma unroll
    for (int k = 0; k < V; k++)
      put<OUT>(&out, k, rs_convert<From, To>(take<IN>(codes, k)));
    pack(out, to[i]);
  }
}

/* --- Numbers one by one: of any pair, by a switch for each side --------------------------------------------------*/

__device__ __forceinline__ uint64_t load_number(const char *at, int bytes) {
  switch (bytes) {
  case 1: return *reinterpret_cast<const uint8_t *>(at);
  case 2: return *reinterpret_cast<const uint16_t *>(at);
  case 4: return *reinterpret_cast<const uint32_t *>(at);
  default: return *reinterpret_cast<const uint64_t *>(at);
  }
}
__device__ __forceinline__ void store_number(char *at, int bytes, uint64_t code) {
  switch (bytes) {
  case 1: *reinterpret_cast<uint8_t *>(at) = static_cast<uint8_t>(code); break;
  case 2: *reinterpret_cast<uint16_t *>(at) = static_cast<uint16_t>(code); break;
  case 4: *reinterpret_cast<uint32_t *>(at) = static_cast<uint32_t>(code); break;
  default: *reinterpret_cast<uint64_t *>(at) = code;
  }
}

__attribute__((noinline)) __device__ uint64_t convert_any(uint64_t code, int pair) {
  switch (pair) {
#define RS_CAST_CASE(from, to) \
  case pair_of(from, to): return rs_convert<from, to>(code);
    RS_CAST_PAIRS(RS_CAST_CASE)
#undef RS_CAST_CASE
  }
  return 0;
}

/* All numbers of a part that is not aligned: a slot is one number. */
__attribute__((noinline)) __device__ void cast_numbers(const part &p, uint32_t tile, int in, int out) {
  constexpr int N = NUMBERS;
  int64_t first = static_cast<int64_t>(tile) * (N * THREADS) + threadIdx.x;
  uint64_t codes[N];
  char *to[N];
#pragma unroll
  for (int i = 0; i < N; i++) {
    int64_t item = first + i * THREADS;
    to[i] = nullptr;
    if (item >= p.items)
      continue;
    place at = find(p, loops_of(p), item, 1, in, out);
    codes[i] = load_number(p.src + at.src, in);
    to[i] = p.dst + at.dst;
  }
#pragma unroll
  for (int i = 0; i < N; i++)
    if (to[i] != nullptr)
      store_number(to[i], out, convert_any(codes[i], p.pair));
}

/* The slots that a row's ends are in: of each row the first and the last one, by the threads of this tile. */
__attribute__((noinline)) __device__ void cast_ends(const part &p, uint32_t tile, int items, int in, int out) {
  int v = 16 / (in > out ? in : out);
  int64_t from = static_cast<int64_t>(tile) * items;
  for (int64_t item = from + threadIdx.x; item < min(from + items, p.items); item += THREADS) {
    place at = find(p, loops_of(p), item, v, in, out);
    int64_t begin = max(p.head - at.number, static_cast<int64_t>(0));
    int64_t end = min(p.head + p.elements - at.number, static_cast<int64_t>(v));
    if (end - begin == v)
      continue;
    for (int64_t k = begin; k < end; k++)
      store_number(p.dst + at.dst + k * out, out, convert_any(load_number(p.src + at.src + k * in, in), p.pair));
  }
}

__device__ __forceinline__ void cast_tile(const part *parts, uint32_t nparts, uint32_t t) {
  uint32_t low = 0, high = nparts - 1;
  while (low < high) {
    uint32_t middle = (low + high) / 2;
    if (parts[middle].end > t)
      high = middle;
    else
      low = middle + 1;
  }
  const part &p = parts[low];
  uint32_t tile = t - (low == 0 ? 0 : parts[low - 1].end);
  int in = 1 << p.in, out = 1 << p.out;
  if (!p.wide) {
    cast_numbers(p, tile, in, out);
    return;
  }
  bool last = (static_cast<int64_t>(tile) + 1) * p.tile >= p.items;
  if (p.ragged && (p.nloops > 0 || tile == 0 || last)) // a single row has two ends
    cast_ends(p, tile, p.tile, in, out);
  switch (p.pair) {
#define RS_CAST_CASE(from, to) \
  case pair_of(from, to): cast_slots<from, to>(p, tile); break;
    RS_CAST_PAIRS(RS_CAST_CASE)
#undef RS_CAST_CASE
  }
}

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
  case pair_of(from, to): return THREADS * thread_items(from, to);
    RS_CAST_PAIRS(RS_CAST_CASE)
#undef RS_CAST_CASE
  }
  return 0;
}

/* A part while it is laid out: it may be cut in two. */
struct piece {
  const char *src;
  char *dst;
  int64_t elements;
  rs_axis loops[LOOPS];
  int nloops, from, to;
};

/* Innermost first: the one with the smallest step in the destination. Loops of one step are dropped. */
void sort_loops(int n, const rs_axis *axes, piece *to) {
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
int aligned_head(const piece &p, int v) {
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
part lay_out(const piece &p) {
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

/* Cuts a piece in two until its items can be counted - the outermost loop, or the numbers of a row - and calls
 * put(piece, part) for each result. Stops at an error. */
template <typename Put> int cut(const piece &p, Put &&put) {
  part to = lay_out(p);
  if (to.items <= ITEMS_MOST)
    return put(p, to);
  piece first = p, second = p;
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
    piece p = {};
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
void put_part(const piece &p, part to, uint32_t tiles, part *at, loop *loops, uint32_t nloops) {
  to.end = tiles;
  to.loops = static_cast<uint32_t>(reinterpret_cast<char *>(loops + nloops) - reinterpret_cast<char *>(at));
  *at = to;
  for (int i = 0; i < p.nloops; i++)
    loops[nloops + static_cast<uint32_t>(i)] =
        loop{p.loops[i].src, p.loops[i].dst, rs_divider_make(static_cast<uint32_t>(p.loops[i].n)), 0};
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
  int error = each_part(n, casts, axes, [&](const piece &p, const part &to) {
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
  int error = each_part(n, casts, axes, [&](const piece &p, const part &to) {
    tiles += tiles_of(to);
    t.parts++;
    t.loops += static_cast<uint32_t>(p.nloops);
    return tiles > INT32_MAX ? cudaErrorInvalidValue : cudaSuccess;
  });
  if (error != cudaSuccess || (t.parts <= PARTS && t.loops <= TABLE_LOOPS))
    return 0;
  size_t bytes = t.parts * sizeof(part) + t.loops * sizeof(loop);
  if (bytes > UINT32_MAX)
    return 0;
  t.tiles = static_cast<uint32_t>(tiles);
  *measured = t;
  return bytes;
}

extern "C" void rs_cast_table_write(const rs_cast_table *t, int64_t n, const rs_cast *casts, const rs_axis *axes,
                                    void *host) {
  part *parts = static_cast<part *>(host);
  loop *loops = reinterpret_cast<loop *>(parts + t->parts);
  uint32_t tiles = 0, nparts = 0, nloops = 0;
  (void)each_part(n, casts, axes, [&](const piece &p, const part &to) {
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
