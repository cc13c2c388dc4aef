/* Stands in for the CUDA toolkit's header of this name where kernels are compiled by a plain C++17 compiler: language,
 * vector types, built-in variables and functions, as far as kernels/ uses them, and the other half of kernels/launch.h.
 * Functions that have to know of other threads are in executor.cc. */
#ifndef SIMT_CUDA_RUNTIME_H
#define SIMT_CUDA_RUNTIME_H

#include "simt.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <new>
#include <tuple>
#include <type_traits>
#include <utility>

/* --- Language ----------------------------------------------------------------------------------------------------*/
#define __global__
#define __device__
#define __host__
#define __constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))

using std::max;
using std::min;

/* --- Types -------------------------------------------------------------------------------------------------------*/
/* Copied whole, as the GPU does, and so seen as one access where accesses are watched. */
template <typename T> struct simt_whole {
  typedef unsigned char type __attribute__((vector_size(sizeof(T)), may_alias));
};
#define SIMT_PLAIN __attribute__((always_inline, no_sanitize("alignment"))) /* whoever has the address looks at it */
template <typename T> SIMT_PLAIN inline void simt_copy(T *to, const T *from) {
  *reinterpret_cast<typename simt_whole<T>::type *>(to) = *reinterpret_cast<const typename simt_whole<T>::type *>(from);
}
#define SIMT_COPIES(name) \
  name() = default; \
  SIMT_PLAIN name(const name &from) { simt_copy(this, &from); } \
  SIMT_PLAIN name &operator=(const name &from) { \
    simt_copy(this, &from); \
    return *this; \
  }
#define SIMT_VECTORS(name, type, a2, a4) \
  struct name##1 { \
    type x; \
  }; \
  struct __align__(a2) name##2 { \
    type x, y; \
    SIMT_COPIES(name##2) \
    SIMT_PLAIN name##2(type x, type y) : x(x), y(y) {} \
  }; \
  struct name##3 { \
    type x, y, z; \
  }; \
  struct __align__(a4) name##4 { \
    type x, y, z, w; \
    SIMT_COPIES(name##4) \
    SIMT_PLAIN name##4(type x, type y, type z, type w) : x(x), y(y), z(z), w(w) {} \
  }; \
  inline name##1 make_##name##1(type x) { return {x}; } \
  inline name##2 make_##name##2(type x, type y) { return {x, y}; } \
  inline name##3 make_##name##3(type x, type y, type z) { return {x, y, z}; } \
  inline name##4 make_##name##4(type x, type y, type z, type w) { return {x, y, z, w}; }
SIMT_VECTORS(char, signed char, 2, 4)
SIMT_VECTORS(uchar, unsigned char, 2, 4)
SIMT_VECTORS(short, short, 4, 8)
SIMT_VECTORS(ushort, unsigned short, 4, 8)
SIMT_VECTORS(int, int, 8, 16)
SIMT_VECTORS(uint, unsigned, 8, 16)
SIMT_VECTORS(long, long, 16, 16)
SIMT_VECTORS(ulong, unsigned long, 16, 16)
SIMT_VECTORS(longlong, long long, 16, 16)
SIMT_VECTORS(ulonglong, unsigned long long, 16, 16)
SIMT_VECTORS(float, float, 8, 16)
SIMT_VECTORS(double, double, 16, 16)
#undef SIMT_VECTORS
#undef SIMT_COPIES

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

typedef struct CUstream_st *cudaStream_t;
typedef int cudaError_t;
enum {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorInvalidConfiguration = 9,
  cudaErrorMemoryAllocation = 2,
  cudaErrorMisalignedAddress = 716,
  cudaErrorLaunchFailure = 719
};

/* --- Built-in variables: of the thread that runs now -------------------------------------------------------------*/
extern __thread uint3 threadIdx, blockIdx;
extern __thread dim3 blockDim, gridDim;
enum { warpSize = 32 };

/* --- Calls of the scheduler (executor.cc) ------------------------------------------------------------------------*/
namespace simt {
struct site { /* where in the kernel's source */
  const char *file;
  int line;
};
void pause(); /* of a thread that polls */
void block_barrier(site at);
int block_vote(site at, int predicate, char kind); /* '|', '&', '+' */
void warp_barrier(unsigned mask, site at);
/* Every lane of the mask brings a value and sees those of all: lanes[i] is lane i's until the next operation. */
const uint64_t *warp_exchange(unsigned mask, uint64_t value, site at);
/* The block's copy of an array in shared memory: `key` tells declarations apart. */
void *shared_array(const void *key, size_t bytes, size_t alignment);
void *shared_dynamic(void);
int launch(simt_launch *launch);
int allow_shared(const void *kernel, size_t bytes);
int load_code(); /* is counted */

/* cp.async: as late as the hardware may be. The bytes are there when the wait returns and not before. */
void async_copy(void *shared, const void *global, size_t bytes);
void async_commit();
void async_wait(int groups_in_flight);
/* mbarrier and bulk copies to shared memory: likewise. One phase ends when `count` threads have arrived and all bytes
 * that they announced have come. */
void mbarrier_init(uint64_t *barrier, unsigned count);
void proxy_fence(); /* between initialising an mbarrier and the first bulk copy with it */
void mbarrier_arrive_expect(uint64_t *barrier, unsigned bytes);
void mbarrier_arrive(uint64_t *barrier);
void mbarrier_wait(uint64_t *barrier, unsigned parity, site at = {__builtin_FILE(), __builtin_LINE()});
void bulk_load(void *shared, const void *global, size_t bytes, uint64_t *barrier);
/* Bulk copies from shared memory, in groups of the thread: the source is read when bulk_wait_read returns. */
void bulk_store(void *global, const void *shared, size_t bytes);
void bulk_commit();
void bulk_wait_read(int groups_in_flight);
void bulk_wait(int groups_in_flight);
} // namespace simt

#define SIMT_HERE simt::site at = {__builtin_FILE(), __builtin_LINE()}

inline void __syncthreads(SIMT_HERE) { simt::block_barrier(at); }
inline int __syncthreads_or(int p, SIMT_HERE) { return simt::block_vote(at, p, '|'); }
inline int __syncthreads_and(int p, SIMT_HERE) { return simt::block_vote(at, p, '&'); }
inline int __syncthreads_count(int p, SIMT_HERE) { return simt::block_vote(at, p, '+'); }
inline void __syncwarp(unsigned mask = 0xffffffffu, SIMT_HERE) { simt::warp_barrier(mask, at); }
inline void __nanosleep(unsigned) { simt::pause(); }
inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void __threadfence_block() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void __threadfence_system() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }

namespace simt {
inline unsigned lane() { return (threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) % 32; }
/* The number of a lane, in memory of the executor: a checker of what kernels read knows nothing of it. */
__attribute__((no_sanitize("thread"))) inline uint64_t given(const uint64_t *lanes, int i) { return lanes[i]; }
template <typename T> T shuffle(unsigned mask, T value, int from, site at) {
  static_assert(sizeof(T) <= 8, "shuffles are of at most 8 bytes");
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  bits = given(warp_exchange(mask, bits, at), from);
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
} // namespace simt

template <typename T> T __shfl_sync(unsigned mask, T value, int from, int width = 32, SIMT_HERE) {
  int lane = static_cast<int>(simt::lane());
  return simt::shuffle(mask, value, (lane & ~(width - 1)) | (from & (width - 1)), at);
}
template <typename T> T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32, SIMT_HERE) {
  int lane = static_cast<int>(simt::lane()), from = lane - static_cast<int>(delta);
  return simt::shuffle(mask, value, from < (lane & ~(width - 1)) ? lane : from, at);
}
template <typename T> T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32, SIMT_HERE) {
  int lane = static_cast<int>(simt::lane()), from = lane + static_cast<int>(delta);
  return simt::shuffle(mask, value, from > (lane | (width - 1)) ? lane : from, at);
}
template <typename T> T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32, SIMT_HERE) {
  int lane = static_cast<int>(simt::lane()), from = lane ^ bits;
  return simt::shuffle(mask, value, from > (lane | (width - 1)) ? lane : from, at);
}
inline unsigned __ballot_sync(unsigned mask, int predicate, SIMT_HERE) {
  const uint64_t *lanes = simt::warp_exchange(mask, predicate != 0, at);
  unsigned bits = 0;
  for (int i = 0; i < 32; i++)
    if (mask >> i & 1 && simt::given(lanes, i) != 0)
      bits |= 1u << i;
  return bits;
}
inline int __any_sync(unsigned mask, int predicate, SIMT_HERE) {
  const uint64_t *lanes = simt::warp_exchange(mask, predicate != 0, at);
  for (int i = 0; i < 32; i++)
    if (mask >> i & 1 && simt::given(lanes, i) != 0)
      return 1;
  return 0;
}
inline int __all_sync(unsigned mask, int predicate, SIMT_HERE) {
  const uint64_t *lanes = simt::warp_exchange(mask, predicate == 0, at);
  for (int i = 0; i < 32; i++)
    if (mask >> i & 1 && simt::given(lanes, i) != 0)
      return 0;
  return 1;
}

/* --- Atomics: relaxed, as CUDA's ---------------------------------------------------------------------------------*/
template <typename T> T atomicAdd(T *at, T value) { return __atomic_fetch_add(at, value, __ATOMIC_RELAXED); }
template <typename T> T atomicOr(T *at, T value) { return __atomic_fetch_or(at, value, __ATOMIC_RELAXED); }
template <typename T> T atomicAnd(T *at, T value) { return __atomic_fetch_and(at, value, __ATOMIC_RELAXED); }
template <typename T> T atomicXor(T *at, T value) { return __atomic_fetch_xor(at, value, __ATOMIC_RELAXED); }
template <typename T> T atomicExch(T *at, T value) { return __atomic_exchange_n(at, value, __ATOMIC_RELAXED); }
template <typename T> T atomicCAS(T *at, T expected, T value) {
  __atomic_compare_exchange_n(at, &expected, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
  return expected;
}
template <typename T> T atomicMin(T *at, T value) {
  T old = __atomic_load_n(at, __ATOMIC_RELAXED);
  while (value < old && !__atomic_compare_exchange_n(at, &old, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
  return old;
}
template <typename T> T atomicMax(T *at, T value) {
  T old = __atomic_load_n(at, __ATOMIC_RELAXED);
  while (old < value && !__atomic_compare_exchange_n(at, &old, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
  return old;
}

/* --- Loads and stores with hints. The address must be aligned to the type, as on the GPU; kernels are compiled so that
 * any other access is checked, too (executor.cc). --------------------------------------------------------------*/
namespace simt {
void misaligned(const void *address, size_t bytes, site at);
template <typename T> const T &aligned(const T *p, site at) {
  if (reinterpret_cast<uintptr_t>(p) % sizeof(T) != 0)
    misaligned(p, sizeof(T), at);
  return *p;
}
} // namespace simt
#define SIMT_LOAD(name) \
  template <typename T> T name(const T *p, SIMT_HERE) { return simt::aligned(p, at); }
SIMT_LOAD(__ldg)
SIMT_LOAD(__ldca)
SIMT_LOAD(__ldcg)
SIMT_LOAD(__ldcs)
SIMT_LOAD(__ldlu)
SIMT_LOAD(__ldcv)
#undef SIMT_LOAD
#define SIMT_STORE(name) \
  template <typename T> void name(T *p, T value, SIMT_HERE) { const_cast<T &>(simt::aligned(p, at)) = value; }
SIMT_STORE(__stwb)
SIMT_STORE(__stcg)
SIMT_STORE(__stcs)
SIMT_STORE(__stwt)
#undef SIMT_STORE

/* --- Arithmetic --------------------------------------------------------------------------------------------------*/
inline unsigned __umulhi(unsigned a, unsigned b) { return static_cast<unsigned>(static_cast<uint64_t>(a) * b >> 32); }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return static_cast<unsigned long long>(static_cast<unsigned __int128>(a) * b >> 64);
}
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz(static_cast<unsigned>(x)); }
inline int __clzll(long long x) { return x == 0 ? 64 : __builtin_clzll(static_cast<unsigned long long>(x)); }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
namespace simt {
template <typename To, typename From> To bits(From from) {
  static_assert(sizeof(To) == sizeof(From), "equal sizes");
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}
} // namespace simt
inline unsigned __float_as_uint(float x) { return simt::bits<unsigned>(x); }
inline int __float_as_int(float x) { return simt::bits<int>(x); }
inline float __uint_as_float(unsigned x) { return simt::bits<float>(x); }
inline float __int_as_float(int x) { return simt::bits<float>(x); }
inline long long __double_as_longlong(double x) { return simt::bits<long long>(x); }
inline double __longlong_as_double(long long x) { return simt::bits<double>(x); }
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
  uint64_t both = static_cast<uint64_t>(b) << 32 | a;
  unsigned out = 0;
  for (int i = 0; i < 4; i++)
    out |= static_cast<unsigned>(both >> (selector >> 4 * i & 7) * 8 & 0xff) << 8 * i;
  return out;
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
  return static_cast<unsigned>((static_cast<uint64_t>(high) << 32 | low) >> (shift & 31));
}
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) {
  return static_cast<unsigned>((static_cast<uint64_t>(high) << 32 | low) << (shift & 31) >> 32);
}

/* --- The other half of kernels/launch.h --------------------------------------------------------------------------*/
#define RS_GRID_CONSTANT(type) const type &
#define RS_SHARED(type, name, dims) \
  static char simt_key_##name; \
  typedef type simt_type_##name dims; \
  simt_type_##name &name = *static_cast<simt_type_##name *>( \
      simt::shared_array(&simt_key_##name, sizeof(simt_type_##name), alignof(simt_type_##name)))
#define RS_SHARED_DYNAMIC(type, name) type *name = static_cast<type *>(simt::shared_dynamic())

namespace simt {
/* A launch with copies of its arguments; the executor knows only the base and `body`. */
struct launch_base : simt_launch {
  virtual void body() const = 0; /* one CUDA thread */
  virtual ~launch_base() = default;
};
template <typename... P> struct launch_of final : launch_base {
  void (*function)(P...);
  std::tuple<std::decay_t<P>...> values;
  const void *pointers[sizeof...(P) + 1];
  size_t sizes[sizeof...(P) + 1];
  template <typename... A>
  launch_of(void (*function)(P...), A &&...a) : function(function), values(std::forward<A>(a)...) {
    point(std::index_sequence_for<P...>());
  }
  template <size_t... I> void point(std::index_sequence<I...>) {
    ((pointers[I] = &std::get<I>(values), sizes[I] = sizeof(std::get<I>(values))), ...);
    nargs = sizeof...(P);
    args = pointers;
    arg_bytes = sizes;
  }
  void body() const override { std::apply(function, values); }
};
} // namespace simt

template <typename... P, typename... A>
static int simt_launch_named(const char *name, void (*kernel)(P...), dim3 grid, dim3 block, size_t shared, void *stream,
                             A &&...arguments) {
  static_assert(sizeof...(P) == sizeof...(A), "as many arguments as parameters");
  static_assert((sizeof(std::decay_t<P>) + ... + 0) <= 32764, "RS_PARAMETER_BYTES");
  if (grid.x == 0 || grid.y == 0 || grid.z == 0)
    return cudaSuccess;
  auto *made = new (std::nothrow) simt::launch_of<P...>(kernel, std::forward<A>(arguments)...);
  if (made == nullptr)
    return cudaErrorMemoryAllocation;
  made->name = name;
  made->kernel = reinterpret_cast<const void *>(kernel);
  const dim3 *dims[2] = {&grid, &block};
  unsigned *to[2] = {made->grid, made->block};
  for (int i = 0; i < 2; i++)
    to[i][0] = dims[i]->x, to[i][1] = dims[i]->y, to[i][2] = dims[i]->z;
  made->shared = shared;
  made->object_bytes = sizeof *made;
  made->stream = stream;
  return simt::launch(made);
}
/* The text of the call names the kernel. */
#define rs_launch(...) simt_launch_named(#__VA_ARGS__, __VA_ARGS__)
template <typename... P> static int rs_launch_load(void (*)(P...)) { return simt::load_code(); }
template <typename... P> static int rs_launch_shared(void (*kernel)(P...), size_t bytes) {
  return simt::allow_shared(reinterpret_cast<const void *>(kernel), bytes);
}

#endif
