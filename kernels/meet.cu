/* One block; its threads take peers in turn. All have stored before one polls, since a peer may wait for any of them.
 * Nothing that was stored is taken back, and numbers change only when all have come. So the kernel may be run again
 * from its start, as the tests' executor does with kernels that poll. */
#include "kernels/meet.h"

#include "kernels/launch.h"

#include <time.h>

namespace {

enum { THREADS = 128, NAP_NS = 200 };

/* Memory that kernels of several streams store to and load from: the flag of a GPU, and words of several processes. */
__device__ __forceinline__ void store_flag(uint32_t *at, uint32_t value) {
#ifdef __CUDA_ARCH__
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(at), "r"(value) : "memory");
#else
  __atomic_store_n(at, value, __ATOMIC_RELEASE);
#endif
}

__device__ __forceinline__ uint32_t load_flag(const uint32_t *at) {
#ifdef __CUDA_ARCH__
  uint32_t value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
  return value;
#else
  return __atomic_load_n(at, __ATOMIC_ACQUIRE);
#endif
}

__device__ __forceinline__ void store_word(uint64_t *at, uint64_t value) {
#ifdef __CUDA_ARCH__
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(at), "l"(value) : "memory");
#else
  __atomic_store_n(at, value, __ATOMIC_RELEASE);
#endif
}

__device__ __forceinline__ uint64_t load_word(const uint64_t *at) {
#ifdef __CUDA_ARCH__
  uint64_t value;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(at) : "memory");
  return value;
#else
  return __atomic_load_n(at, __ATOMIC_ACQUIRE);
#endif
}

__device__ __forceinline__ int64_t now_ns() {
#ifdef __CUDA_ARCH__
  int64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
#else
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<int64_t>(t.tv_sec) * 1000000000 + t.tv_nsec;
#endif
}

/* Outcome of a wait for a peer. */
enum outcome { CAME, ENDED, LATE, DIFFERS };

/* A peer that is a meeting ahead has found the subjects of this one equal. */
__device__ outcome await_peer(const rs_meet &meet, const rs_meet_peer &peer, uint32_t number, int64_t since) {
  uint64_t word;
  while (static_cast<int32_t>(static_cast<uint32_t>(word = load_word(peer.ours)) - number) < 0) {
    if (*const_cast<const volatile int64_t *>(meet.ended) != 0)
      return ENDED;
    if (meet.timeout_ns > 0 && now_ns() - since > meet.timeout_ns)
      return LATE;
    __nanosleep(NAP_NS);
  }
  return static_cast<uint32_t>(word) == number && word >> 32 != meet.subject ? DIFFERS : CAME;
}

/* By all threads of the block. A peer with another subject counts: this rank may wait in vain for more beside it. */
__device__ void tell_host(const rs_meet &meet, outcome found, int64_t rank) {
  const bool differs = __syncthreads_or(found == DIFFERS) != 0;
  if (found == DIFFERS || (found == LATE && !differs)) {
    *const_cast<volatile int64_t *>(meet.late) = differs ? -(1 + rank) : 1 + rank;
    __threadfence_system();
  }
}

/* The next peer of a thread that is met, from i on; n: there is none. */
__device__ uint32_t next_peer(const rs_meet &meet, uint32_t i) {
  while (i < meet.n && meet.some != 0 && (meet.bits[i / 32] >> i % 32 & 1) == 0)
    i += THREADS;
  return i;
}

__global__ void __launch_bounds__(THREADS) meet_peers(RS_GRID_CONSTANT(rs_meet) meet) {
  rs_meet_state *state = meet.state;
  rs_meet_peer *peers = meet.peers;
  const uint32_t first = next_peer(meet, threadIdx.x);
  if (load_flag(&state->closed) != 0)
    return;
  if (threadIdx.x == 0 && state->since == 0)
    state->since = now_ns();
  __threadfence_system();
  for (uint32_t i = first; i < meet.n; i = next_peer(meet, i + THREADS))
    store_word(peers[i].theirs, static_cast<uint64_t>(meet.subject) << 32 | (peers[i].number + 1));
  __syncthreads();
  const int64_t since = state->since;
  outcome found = CAME;
  int64_t rank = 0;
  for (uint32_t i = first; i < meet.n && found == CAME && meet.wait != 0; i = next_peer(meet, i + THREADS)) {
    found = await_peer(meet, peers[i], peers[i].number + 1, since);
    rank = peers[i].rank;
  }
  const bool failed = __syncthreads_or(found != CAME) != 0;
  if (failed)
    tell_host(meet, found, rank);
  for (uint32_t i = first; i < meet.n && !failed; i = next_peer(meet, i + THREADS))
    peers[i].number++;
  if (threadIdx.x != 0)
    return;
  state->since = 0;
  if (failed)
    store_flag(&state->closed, 1); /* copies on other streams may look at it */
}

} // namespace

extern "C" int rs_meet_load(void) { return rs_launch_load(meet_peers); }

extern "C" int rs_meet_launch(const rs_meet *meet, void *stream) {
  return rs_launch(meet_peers, dim3(1), dim3(THREADS), 0, stream, *meet);
}
