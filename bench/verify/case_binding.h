/* Memory of one rank for one side of a case: buffers with guards between them, at odd addresses, some strided. An image
 * of the expected memory lets one comparison check every element, gap and guard. */
#ifndef BENCH_CASE_BINDING_H
#define BENCH_CASE_BINDING_H

#include "bench/verify/case_make.h"

#include "device/device.h"

typedef struct case_buffer {
  int64_t entry;
  const oracle_buffer *buffer;
  const oracle_buffer *places; /* of each value's scale in buffer scales_at; NULL: the buffer has no such values */
  int64_t scales_at;
  bool scales;         /* the buffer has scales */
  reshard_dtype dtype; /* of this side */
  size_t width;
  int64_t offset;                   /* of its first element in the arena; -1: nothing held, NULL pointer */
  int64_t stride[RESHARD_MAX_DIMS]; /* in elements */
} case_buffer;

typedef struct case_binding {
  unsigned char *arena, *image;
  int64_t bytes;
  int64_t n; /* buffers */
  case_buffer *place;
  void **pointer;
  const int64_t **stride_list; /* NULL elements: contiguous */
  rs_device *device;           /* where the arena's double is; NULL: there is none */
  unsigned char *memory;
} case_binding;

/* Draws addresses and strides for rank's buffers of all sources (or destinations). The random numbers depend on the
 * case's seed, the rank, the side and `number`. */
void case_binding_make(const case_plan *c, int64_t rank, bool source, int number, case_binding *out);
void case_binding_free(case_binding *b);
/* Puts the buffers on a device of streams, or on one that other processes reach: the arena gets a double there, to
 * which the pointers go from now on. */
reshard_status case_binding_to_device(case_binding *b, rs_device *device);
/* The whole arena to its double, or back, in the order of stream: done when it returns. Nothing where there is none. */
reshard_status case_binding_copy(case_binding *b, bool to_device, void *stream);

/* Content of the arena before an execute: poison, and in a source the stamps of a generation of data. */
typedef enum case_fill { FILL_SOURCE, FILL_DESTINATION, FILL_REVERSED } case_fill;
/* SOURCE: arena and image hold the data. DESTINATION: the arena is poison, the image has the expected result. REVERSED:
 * as DESTINATION, but for source buffers that the reverse plan fills. */
void case_binding_fill(const case_plan *c, case_binding *b, case_fill fill, int generation);

/* True where arena and image agree; else writes the first difference to why. */
bool case_binding_check(const case_plan *c, const case_binding *b, case_fill fill, int generation, int64_t rank,
                        rs_text *why);

#endif
