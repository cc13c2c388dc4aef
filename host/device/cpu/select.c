/* Selection along a dim, as box copies.
 *
 * A selection is a list of box copies that differ in their place along the dim alone. Indices that follow one another
 * are one copy. So are three and more with a constant step: every other row, one row many times, rows backwards. Such a
 * copy has a loop over the dim with that step in the source. Other indices are one copy each. The device does with them
 * what it does with any list: merges, sorts for the cache, divides over the threads. Long lists go to it in batches, so
 * that memory stays bounded however long the index is. */
#include "device/cpu/memory.h"

#include <stdlib.h>
#include <string.h>

enum { BATCH = 1 << 16 }; /* copies */

static int64_t index_at(const rs_select *s, int64_t i) {
  const char *at = s->index + i * s->index_stride;
  if (s->index_bytes == 4) {
    int32_t narrow;
    memcpy(&narrow, at, sizeof narrow);
    return narrow;
  }
  int64_t wide;
  memcpy(&wide, at, sizeof wide);
  return wide;
}

static rs_select_fault find_fault(const rs_select *s) {
  for (int64_t i = 0; i < s->count; i++) {
    int64_t value = index_at(s, i);
    if (value < 0 || value >= s->extent)
      return (rs_select_fault){i, value};
  }
  return (rs_select_fault){-1, 0};
}

/* Counts the indices from the i-th on that go into one copy, and finds the step between them. */
static int64_t count_progression(const rs_select *s, int64_t i, int64_t *step) {
  int64_t count = 1, first = index_at(s, i);
  *step = 1;
  if (i + 1 == s->count)
    return 1;
  *step = index_at(s, i + 1) - first;
  while (i + count < s->count && index_at(s, i + count) == first + count * *step)
    count++;
  return count >= 3 || *step == 1 ? count : 1;
}

/* Adds a copy in which the dim stands before the loops whose steps in dst are shorter. */
static reshard_status add_copy(const rs_select *s, int64_t i, int64_t count, int64_t step, rs_copies *copies) {
  rs_axis axes[RESHARD_MAX_DIMS + 2];
  int n = 0, loop = 0;
  while (loop < s->naxes && llabs(s->axes[loop].dst) >= llabs(s->dst_stride))
    axes[n++] = s->axes[loop++];
  axes[n++] = (rs_axis){count, s->src_stride * step, s->dst_stride};
  while (loop < s->naxes)
    axes[n++] = s->axes[loop++];
  axes[n++] = (rs_axis){s->run / s->element, s->element, s->element};
  return rs_copies_add(copies, s->src + index_at(s, i) * s->src_stride, s->dst + i * s->dst_stride, s->element, n,
                       axes);
}

static reshard_status run_copies(rs_device *device, const rs_copies *copies, int64_t total) {
  rs_program *program;
  RS_TRY(device->work->compile(device, copies, total, &program));
  reshard_status status = device->work->run(device, 1, &program, NULL);
  device->work->release(device, program);
  return status;
}

reshard_status rs_cpu_select(rs_device *device, const rs_select *s, rs_select_fault *fault, void *stream) {
  (void)stream;
  if (fault != NULL) {
    *fault = find_fault(s);
    if (fault->position >= 0)
      return RESHARD_SUCCESS;
  }
  int64_t total = s->run * s->count, step;
  for (int d = 0; d < s->naxes; d++)
    total *= s->axes[d].n;
  rs_copies copies = {0};
  reshard_status status = RESHARD_SUCCESS;
  for (int64_t i = 0, count; i < s->count && total > 0; i += count) {
    count = count_progression(s, i, &step);
    RS_TRY_GOTO(status, add_copy(s, i, count, step, &copies), done);
    if (copies.copy.n < BATCH && i + count < s->count)
      continue;
    RS_TRY_GOTO(status, run_copies(device, &copies, total), done);
    rs_copies_clear(&copies);
  }
done:
  rs_copies_free(&copies);
  return status;
}
