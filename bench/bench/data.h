/* Data of a benchmark: memory for all ranks, a stamp for every element, and the check of a result. */
#ifndef BENCH_DATA_H
#define BENCH_DATA_H

#include "bench/cli/workload.h"
#include "bench/launch/session.h"

/* The buffers of the local ranks that share a device, in one arena. So one straight copy of the arena can be compared
 * with the reshard. */
typedef struct bench_arena {
  rs_device *device;     /* of streams; NULL: the host's memory */
  rs_device *shared;     /* a CPU whose storage the host's memory is, for other processes; NULL: it is private */
  unsigned char *memory; /* where the ranks' arrays are; those of set i at i * extent */
  unsigned char *host;   /* one set on the host, to be filled and looked at; on the CPU it is `memory` */
  int64_t extent;        /* of a set, with the gaps that align */
} bench_arena;

typedef struct bench_side {
  int64_t bytes; /* of elements, of all ranks of the world; of one set */
  int64_t moved; /* half of what is read and written for them: as many, but where elements are converted */
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

/* Computes the offsets of the local ranks' buffers (create), then takes the memory of so many sets (alloc). It is on
 * the session's GPUs in turn, or on the host. Each buffer begins `shift` elements behind an aligned address. */
void bench_side_create(const workload *w, const session *s, bool source, int64_t shift, bench_side *out);
void bench_side_alloc(bench_side *side, int64_t sets);
/* Tells whether both sides together fit in what is available, on the host and on the GPUs; before either has taken any.
 * Where they do not, why says so in words with the numbers, and a --scale with which they would. */
bool bench_sides_fit(const session *s, const bench_side *src, const bench_side *dst, int64_t sets, char *why,
                     size_t size);
void bench_side_free(bench_side *side);

/* The three functions below act on a local rank's buffers in all sets, through a stream of its device. They return when
 * the work is done.
 *
 * bench_fill stamps every element with a value made from tensor and global index. */
void bench_fill(const workload *w, const session *s, bool source, const bench_side *side, int64_t local, void *stream);
/* Returns the number of elements without their stamp. */
int64_t bench_wrong(const workload *w, const session *s, bool source, const bench_side *side, int64_t local,
                    void *stream);
/* Overwrites the buffers. */
void bench_poison(const bench_side *side, int64_t local, void *stream);

#endif
