/* Meetings of GPUs of processes: a kernel that returns when those of its peers have come as far. Plain C.
 *
 * Each process has words in memory of its GPU, one for each rank, which the others have opened. To meet is to store the
 * number of the meeting in one's word at each peer, and what it is for. Then one polls one's own words until the peers
 * have stored theirs. Each pair of ranks counts its meetings, since not all of them meet each time. The numbers are
 * kept in memory of the GPU and advanced by the kernel, so that a graph can hold it. Stores release what the stream has
 * done before, loads acquire what the peers have done.
 *
 * A meeting fails when its communicator has ended, or when a peer has not come by the deadline. It fails as soon as one
 * has come for something else, whoever is still to come. It is closed then: later ones do nothing, and copies that are
 * told of it (rs_box_batch) copy nothing. All meetings of a communicator on a GPU are closed by one word: what one was
 * to wait for is not there for later ones either. */
#ifndef RS_KERNELS_MEET_H
#define RS_KERNELS_MEET_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* In memory of the GPU, all 0 at first; the words of the ranks follow it. */
typedef struct rs_meet_state {
  int64_t since; /* time at which the kernel began that is there, in ns; 0: none is */
} rs_meet_state;

/* This rank's word at a peer, and the peer's here: the number of a meeting, and above it the subject. */
typedef struct rs_meet_peer {
  uint64_t *theirs;
  const uint64_t *ours;
  int64_t rank;
  uint32_t number; /* of the last meeting with it that was held */
  uint32_t unused;
} rs_meet_peer;

enum { RS_MEET_SOME = 1024 }; /* most peers of which a meeting takes some */

typedef struct rs_meet {
  rs_meet_state *state;
  uint32_t *closed;     /* in memory of the GPU, 0 at first: 1 once one has failed */
  rs_meet_peer *peers;  /* [n] in memory of the GPU */
  const int64_t *ended; /* in memory of the host: not 0 once the communicator has ended */
  int64_t *late;        /* there: 1 + the rank of a peer that did not come; less than 0: of one with another subject */
  int64_t timeout_ns;   /* 0: none */
  uint32_t n;
  uint32_t wait;    /* 0: stores alone, for tests */
  uint32_t some;    /* 1: only those of the first RS_MEET_SOME peers that have their bit set */
  uint32_t subject; /* that all who meet have, or have come for different things */
  uint32_t bits[RS_MEET_SOME / 32];
} rs_meet;

int rs_meet_load(void);
int rs_meet_launch(const rs_meet *meet, void *stream); /* a cudaError_t */

#ifdef __cplusplus
}
#endif
#endif
