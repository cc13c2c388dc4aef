/* Barriers of GPUs of processes: a kernel that returns when those of its peers have come as far. Plain C.
 *
 * Each process has flags in memory of its GPU, one for each rank, which the others have opened. To meet is to store the
 * number of the barrier in one's flag at each peer, and what it is for. Then one polls one's own flags until the peers
 * have stored theirs. Each pair of ranks counts its barriers, since not all of them meet each time. The numbers are
 * kept in memory of the GPU and advanced by the kernel, so that a graph can hold it. Stores release what the stream has
 * done before, loads acquire what the peers have done.
 *
 * A barrier fails when its communicator has ended, or when a peer has not come by the deadline. It fails as soon as one
 * has come for something else, whoever is still to come. It is closed then: later ones do nothing, and copies that are
 * told of it (rs_box_batch) copy nothing. All barriers of a communicator on a GPU are closed by one flag: what one was
 * to wait for is not there for later ones either. */
#ifndef RS_KERNELS_BARRIER_H
#define RS_KERNELS_BARRIER_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* In memory of the GPU, all 0 at first; the flags of the ranks follow it. */
typedef struct rs_barrier_state {
  int64_t since; /* time at which the kernel began that is there, in ns; 0: none is */
} rs_barrier_state;

/* This rank's flag at a peer, and the peer's here: the number of a barrier, and above it the key. */
typedef struct rs_barrier_peer {
  uint64_t *theirs;
  const uint64_t *ours;
  int64_t rank;
  uint32_t number; /* of the last barrier with it that was held */
  uint32_t unused;
} rs_barrier_peer;

enum { RS_BARRIER_SOME = 1024 }; /* most peers of which a barrier takes some */

typedef struct rs_barrier {
  rs_barrier_state *state;
  uint32_t *closed;       /* in memory of the GPU, 0 at first: 1 once one has failed */
  rs_barrier_peer *peers; /* [n] in memory of the GPU */
  const int64_t *ended;   /* in memory of the host: not 0 once the communicator has ended */
  int64_t *late;          /* there: 1 + the rank of a peer that did not come; less than 0: of one with another key */
  int64_t timeout_ns;     /* 0: none */
  uint32_t n;
  uint32_t wait; /* 0: stores alone, for tests */
  uint32_t some; /* 1: only those of the first RS_BARRIER_SOME peers that have their bit set */
  uint32_t key;  /* that all who meet have, or have come for different things */
  uint32_t bits[RS_BARRIER_SOME / 32];
} rs_barrier;

int rs_barrier_load(void);
int rs_barrier_launch(const rs_barrier *barrier, void *stream); /* a cudaError_t */

#ifdef __cplusplus
}
#endif
#endif
