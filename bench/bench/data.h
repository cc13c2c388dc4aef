/* Data of a benchmark: memory for all ranks, every element stamped, and the check of what arrived. */
#ifndef BENCH_DATA_H
#define BENCH_DATA_H

#include "bench/cli/workload.h"
#include "bench/launch/session.h"

/* The buffers of the ranks here that share a device, in one piece of memory, so that a straight copy of it is what ours
 * is compared with. */
typedef struct bench_arena {
  rs_device *device;     /* of streams; NULL: the host's memory */
  unsigned char *memory; /* where the ranks' arrays are; those of set i at i * extent */
  unsigned char *host;   /* one set on the host, to be filled and looked at; on the CPU it is `memory` */
  int64_t extent;        /* of a set, with the gaps that align */
} bench_arena;

typedef struct bench_side {
  int64_t bytes; /* of elements, of all ranks of the world; of one set */
  int64_t sets;  /* of buffers with the same data; 1 on the CPU */
  int64_t narenas, locals;
  bench_arena *arena;
  int64_t *first;       /* [locals + 1]: buffers of local rank l are [first[l], first[l + 1]) of a set */
  int64_t *begin;       /* [locals + 1]: where l's buffers begin in its place */
  int64_t *end;         /* [locals + 1] */
  int64_t *offset;      /* of a buffer in its place */
  void **buffer;        /* [sets][first[locals]]: addresses for the library */
  unsigned char **host; /* those of one set on the host */
} bench_side;

/* The local ranks' memory, on the session's GPUs, in turn, or on the host: what a set takes of it, and the memory. */
void bench_side_create(const workload *w, const session *s, bool source, bench_side *out);
void bench_side_alloc(bench_side *side, int64_t sets);
/* Ends the program with status 1 and the numbers where both sides together take more than is available, on the host or
 * on a GPU: before either has taken any. */
void bench_sides_check_memory(const session *s, const bench_side *src, const bench_side *dst, int64_t sets);
void bench_side_free(bench_side *side);

/* Of a local rank, in all sets; stream: one of its device. All return when it is done. Stamps every element that the
 * rank's buffers hold: a value from tensor and global index. */
void bench_fill(const workload *w, const session *s, bool source, const bench_side *side, int64_t local, void *stream);
/* Number of elements of its buffers that do not have their stamp. */
int64_t bench_wrong(const workload *w, const session *s, bool source, const bench_side *side, int64_t local,
                    void *stream);
/* Overwrites its buffers. */
void bench_poison(const bench_side *side, int64_t local, void *stream);

#endif
