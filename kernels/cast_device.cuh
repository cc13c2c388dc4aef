/* The device's part of casts: the table of a launch, and the tile of a block. */
#ifndef RS_KERNELS_CAST_DEVICE_CUH
#define RS_KERNELS_CAST_DEVICE_CUH

#include "kernels/divide.cuh"
#include "kernels/launch.h"
#include "kernels/numbers.cuh"

namespace {

enum {
  THREADS = 512,
  ITEMS = 4,   /* of a thread: slots, */
  NUMBERS = 4, /* or numbers one by one */
  LOOPS = 12   /* most of one part */
};

struct cast_loop {
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
  cast_loop loops[TABLE_LOOPS];
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

/* Numbers of a slot. */
__host__ __device__ constexpr int slot_numbers(int from, int to) {
  return 16 / (rs_number_bytes(from) > rs_number_bytes(to) ? rs_number_bytes(from) : rs_number_bytes(to));
}

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

/* Tables say of no address that it is one of global memory. */
template <typename T> __device__ __forceinline__ T *in_global(T *p) {
#ifdef __CUDA_ARCH__
  __builtin_assume(__isGlobal(p));
#endif
  return p;
}

/* The numbers of a slot. */
template <int From, int To, typename In, typename Out> __device__ __forceinline__ void cast_slot(In in, Out *to) {
  constexpr int V = slot_numbers(From, To);
  words codes, out = {};
  unpack(in, &codes);
  if constexpr (From == RS_F64 || To == RS_F64) {
#pragma unroll
    for (int k = 0; k < V; k++)
      put<rs_number_bytes(To)>(&out, k, rs_convert<From, To>(take<rs_number_bytes(From)>(codes, k)));
  } else {
    rs_convert_words<From, To, V, false>(codes.at, out.at, 1);
  }
  pack(out, in_global(to));
}

/* Offsets of the numbers of an item, in bytes from the part's: number 0 of its slot. */
struct item_place {
  int64_t src, dst, number; /* number: in the row */
};
__device__ __forceinline__ const cast_loop *loops_of(const part &p) {
  return reinterpret_cast<const cast_loop *>(reinterpret_cast<const char *>(&p) + p.loops);
}
__device__ __forceinline__ item_place find(const part &p, const cast_loop *loops, int64_t item, int v, int in,
                                           int out) {
  item_place at = {0, 0, item * v};
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
  constexpr int N = ITEMS, IN = rs_number_bytes(From), OUT = rs_number_bytes(To);
  constexpr int V = slot_numbers(From, To);
  typedef typename rs_unit<V * IN>::type in_chunk;
  typedef typename rs_unit<V * OUT>::type out_chunk;
  const part p = listed; // in registers: else each item waits for one field after the other before its load begins
  const cast_loop *loops = loops_of(listed);
  int64_t first = static_cast<int64_t>(tile) * (N * THREADS) + threadIdx.x;
  in_chunk in[N];
  out_chunk *to[N];
#pragma unroll
  for (int i = 0; i < N; i++) {
    int64_t item = first + i * THREADS;
    to[i] = nullptr;
    if (item >= p.items)
      continue;
    item_place at = find(p, loops, item, V, IN, OUT);
    if (at.number < p.head || at.number + V > p.head + p.elements)
      continue;
    in[i] = *in_global(reinterpret_cast<const in_chunk *>(p.src + at.src));
    to[i] = reinterpret_cast<out_chunk *>(p.dst + at.dst);
  }
#pragma unroll
  for (int i = 0; i < N; i++) {
    if (to[i] == nullptr)
      continue;
    cast_slot<From, To>(in[i], to[i]);
  }
}

/* A tile of whole slots, one behind the other. */
template <int From, int To> __attribute__((noinline)) __device__ void cast_tile_whole(const char *src, char *dst) {
  constexpr int N = ITEMS, V = slot_numbers(From, To);
  typedef typename rs_unit<V * rs_number_bytes(From)>::type in_chunk;
  typedef typename rs_unit<V * rs_number_bytes(To)>::type out_chunk;
  const in_chunk *from = reinterpret_cast<const in_chunk *>(src) + threadIdx.x;
  out_chunk *to = reinterpret_cast<out_chunk *>(dst) + threadIdx.x;
  in_chunk in[N];
#pragma unroll
  for (int i = 0; i < N; i++)
    in[i] = *in_global(from + i * THREADS);
#pragma unroll
  for (int i = 0; i < N; i++)
    cast_slot<From, To>(in[i], to + i * THREADS);
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
    item_place at = find(p, loops_of(p), item, 1, in, out);
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
    item_place at = find(p, loops_of(p), item, v, in, out);
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
  const int64_t slot = static_cast<int64_t>(tile) * p.tile, v = 16 / max(in, out);
  const bool whole = p.nloops == 0 && (tile > 0 || p.head == 0) && (slot + p.tile) * v <= p.head + p.elements;
  const char *src = p.src + slot * v * in;
  char *dst = p.dst + slot * v * out;
  bool last = (static_cast<int64_t>(tile) + 1) * p.tile >= p.items;
  if (!whole && p.ragged && (p.nloops > 0 || tile == 0 || last)) // a single row has two ends
    cast_ends(p, tile, p.tile, in, out);
  switch (p.pair) {
#define RS_CAST_CASE(from, to) \
  case pair_of(from, to): whole ? cast_tile_whole<from, to>(src, dst) : cast_slots<from, to>(p, tile); break;
    RS_CAST_PAIRS(RS_CAST_CASE)
#undef RS_CAST_CASE
  }
}

} // namespace

#endif
