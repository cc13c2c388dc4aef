/* One block; its threads take peers in turn. All have stored before one polls, since a peer may wait for any of them.
 * Nothing that was stored is taken back, and numbers change only when all have come. The host is told of another
 * key before the barrier is closed. So the kernel may be run again from its start, as the tests' executor does with
 * kernels that poll. */
#include "kernels/barrier.h"

#include "kernels/launch.h"

#include <time.h>

namespace {

enum { THREADS = 128, NAP_NS = 200, LOOK_EVERY = 16 };

/* Memory that kernels of several streams store to and load from: the flag of a GPU, and flags of several processes. */
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

/* Outcome of a wait for peers. Of those of several peers the last one of this list counts. */
enum outcome { CAME, MISSING, ENDED, LATE, DIFFERS };

/* The next peer of a thread that is met, from i on; n: there is none. */
__device__ uint32_t next_peer(const rs_barrier &barrier, uint32_t i) {
  while (i < barrier.n && barrier.some != 0 && (barrier.bits[i / 32] >> i % 32 & 1) == 0)
    i += THREADS;
  return i;
}

/* A peer that is a barrier ahead has found the keys of this one equal. */
__device__ outcome look_at_peer(const rs_barrier &barrier, const rs_barrier_peer &peer) {
  const uint64_t flag = load_word(peer.ours);
  const uint32_t number = peer.number + 1, held = static_cast<uint32_t>(flag);
  if (static_cast<int32_t>(held - number) < 0)
    return MISSING;
  return held == number && flag >> 32 != barrier.key ? DIFFERS : CAME;
}

/* Has the communicator ended, or another thread or barrier closed this one? */
__device__ bool is_ended(const rs_barrier &barrier) {
  return *const_cast<const volatile int64_t *>(barrier.ended) != 0 || load_flag(barrier.closed) != 0;
}

/* Awaits the peers of a thread, and looks at all of them each time: behind one that never comes may be one with another
 * key. *rank: of that one, else of the first that is missing. The host's flag comes over its bus, which takes
 * longer than a poll: it is looked at now and then, and before a peer is called late. */
__device__ outcome await_peers(const rs_barrier &barrier, uint32_t first, const rs_barrier_peer &mine, int64_t *rank) {
  for (uint32_t polls = 1;; polls++) {
    outcome found = CAME;
    for (uint32_t i = first; i < barrier.n; i = next_peer(barrier, i + THREADS)) {
      const rs_barrier_peer peer = i == first ? mine : barrier.peers[i];
      const outcome one = look_at_peer(barrier, peer);
      if (one > found) {
        found = one;
        *rank = peer.rank;
      }
    }
    if (found != MISSING)
      return found;
    const bool late = barrier.timeout_ns > 0 && now_ns() - barrier.state->since > barrier.timeout_ns;
    if ((late || polls % LOOK_EVERY == 0) && is_ended(barrier))
      return ENDED;
    if (late)
      return LATE;
    __nanosleep(NAP_NS);
  }
}

__device__ void tell_host(const rs_barrier &barrier, int64_t late) {
  *const_cast<volatile int64_t *>(barrier.late) = late;
  __threadfence_system();
}

__global__ void __launch_bounds__(THREADS) barrier_peers(RS_GRID_CONSTANT(rs_barrier) barrier) {
  rs_barrier_state *state = barrier.state;
  rs_barrier_peer *peers = barrier.peers;
  const uint32_t first = next_peer(barrier, threadIdx.x);
  /* Loads that do not wait for each other: what is behind the first load that acquires waits for that. */
  const rs_barrier_peer mine = first < barrier.n ? peers[first] : rs_barrier_peer{};
  const bool begins = threadIdx.x == 0 && state->since == 0;
  if (load_flag(barrier.closed) != 0)
    return;
  for (uint32_t i = first; i < barrier.n; i = next_peer(barrier, i + THREADS)) {
    const rs_barrier_peer peer = i == first ? mine : peers[i];
    store_word(peer.theirs, static_cast<uint64_t>(barrier.key) << 32 | (peer.number + 1));
  }
  if (begins) /* behind what releases, which waits for stores before it */
    state->since = now_ns();
  __syncthreads();
  int64_t rank = 0;
  const outcome found = barrier.wait != 0 ? await_peers(barrier, first, mine, &rank) : CAME;
  if (found == DIFFERS) { /* at once: the other threads may wait in vain, and leave when they see it */
    tell_host(barrier, -(1 + rank));
    store_flag(barrier.closed, 1);
  }
  const bool failed = __syncthreads_or(found != CAME) != 0;
  if (failed && __syncthreads_or(found == DIFFERS) == 0 && found == LATE)
    tell_host(barrier, 1 + rank);
  for (uint32_t i = first; i < barrier.n && !failed; i = next_peer(barrier, i + THREADS))
    peers[i].number = (i == first ? mine : peers[i]).number + 1;
  if (threadIdx.x != 0)
    return;
  state->since = 0;
  if (failed)
    store_flag(barrier.closed, 1); /* copies on other streams may look at it */
}

} // namespace

extern "C" int rs_barrier_load(void) { return rs_launch_load(barrier_peers); }

extern "C" int rs_barrier_launch(const rs_barrier *barrier, void *stream) {
  return rs_launch(barrier_peers, dim3(1), dim3(THREADS), 0, stream, *barrier);
}
