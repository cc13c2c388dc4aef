#include "bench/verify/case_binding.h"

#include "bench/cli/naive_cast.h"
#include "bench/cli/naive_scaled.h"
#include "bench/launch/session.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define POISON 0xdb

static uint64_t stamp_key(const case_plan *c, int64_t entry, int generation) {
  return rng_mix(c->seed + (uint64_t)entry * 0x9e3779b97f4a7c15u + (uint64_t)generation * 0xd1b54a32d192ed03u);
}

/* Strides with gaps, permuted, some negative. Returns the elements spanned; *first is the position of element 0. */
static int64_t draw_strides(rng *r, const oracle_buffer *buffer, int64_t *stride, int64_t *first) {
  int order[RESHARD_MAX_DIMS], n = buffer->ndim;
  for (int d = 0; d < n; d++)
    order[d] = n - 1 - d;
  if (rng_one_in(r, 2))
    for (int i = 0; i < n; i++) {
      int j = (int)rng_in(r, i, n - 1), t = order[i];
      order[i] = order[j];
      order[j] = t;
    }
  int64_t step = rng_one_in(r, 3) ? rng_in(r, 1, 3) : 1, last = 0, room = 4 * buffer->n + 64;
  *first = 0;
  for (int i = 0; i < n; i++) {
    int64_t extent = buffer->shape[order[i]], *s = &stride[order[i]];
    *s = extent == 1 && rng_one_in(r, 2) ? rng_in(r, -5, 100) : step; /* never walked */
    if (extent > 1 && rng_one_in(r, 10)) {
      *s = -step;
      *first += step * (extent - 1);
    }
    last += step * (extent - 1);
    step *= extent;
    if (step < room && rng_one_in(r, 3))
      step += rng_below(r, 4);
  }
  return last + 1;
}

static void set_contiguous(const oracle_buffer *buffer, int64_t *stride) {
  int64_t step = 1;
  for (int d = buffer->ndim - 1; d >= 0; d--) {
    stride[d] = step;
    step *= buffer->shape[d];
  }
}

void case_binding_make(const case_plan *c, int64_t rank, bool source, int number, case_binding *b) {
  rng r;
  rng_seed(&r, c->seed * 1000003 + (uint64_t)(rank * 64 + number * 2 + source));
  rng common; /* drawn alike on all ranks: whether this binding is plain, so that messages can go in place */
  rng_seed(&common, c->seed * 1000033 + (uint64_t)(number * 2 + source));
  bool plain = rng_one_in(&common, 2) || c->plain;
  *b = (case_binding){.bytes = 64 + rng_below(&r, 64)};
  for (int64_t e = 0; e < c->nentries; e++) {
    const case_side *side = source ? &c->entry[e].src : &c->entry[e].dst;
    b->n += (side->buffers.first[rank + 1] - side->buffers.first[rank]) << (side->scales.buffer != NULL);
  }
  b->place = cli_alloc(b->n, sizeof *b->place);
  b->pointer = cli_alloc(b->n, sizeof *b->pointer);
  b->stride_list = cli_alloc(b->n, sizeof *b->stride_list);
  int64_t n = 0;
  for (int64_t e = 0; e < c->nentries; e++) {
    const case_side *side = source ? &c->entry[e].src : &c->entry[e].dst;
    bool strides_allowed = !(side->described.kind == RESHARD_LAYOUT_FLAT && side->described.ndim != 1);
    int64_t first_buffer = side->buffers.first[rank], count = side->buffers.first[rank + 1] - first_buffer;
    bool scaled = side->scales.buffer != NULL;
    for (int64_t i = 0; i < count << scaled; i++, n++) {
      case_buffer *p = &b->place[n];
      p->entry = e;
      p->scales = i >= count;
      p->buffer = &(p->scales ? &side->scales : &side->buffers)->buffer[first_buffer + i % count];
      p->places = scaled && !p->scales ? &side->places.buffer[first_buffer + i] : NULL;
      p->scales_at = n + count;
      p->dtype = p->scales ? c->entry[e].scales : source ? c->entry[e].dtype : c->entry[e].dst_dtype;
      p->width = reshard_dtype_size(p->dtype);
      set_contiguous(p->buffer, p->stride);
      if (p->buffer->n == 0 && rng_one_in(&r, 2)) {
        p->offset = -1;
        continue;
      }
      int64_t span = p->buffer->n, first = 0;
      if (!plain && strides_allowed && p->buffer->n > 0 && rng_one_in(&r, 2))
        span = draw_strides(&r, p->buffer, p->stride, &first);
      if (span != p->buffer->n || first != 0 || (strides_allowed && rng_one_in(&r, 4)))
        b->stride_list[n] = p->stride;
      for (int d = 0; span == p->buffer->n && d < p->buffer->ndim; d++) { /* permuted without a gap */
        int64_t c_stride[RESHARD_MAX_DIMS];
        set_contiguous(p->buffer, c_stride);
        if (p->stride[d] != c_stride[d])
          b->stride_list[n] = p->stride;
      }
      b->bytes += rng_one_in(&r, 2) ? (-b->bytes) & 63 : rng_below(&r, 48);
      p->offset = b->bytes + first * (int64_t)p->width;
      b->bytes += span * (int64_t)p->width + rng_below(&r, 32);
    }
  }
  b->bytes += 64;
  b->arena = aligned_alloc(64, (size_t)(b->bytes + 63) & ~(size_t)63);
  b->image = aligned_alloc(64, (size_t)(b->bytes + 63) & ~(size_t)63);
  if (b->arena == NULL || b->image == NULL)
    cli_exit(EXIT_FAILED, "out of memory: %lld bytes refused", (long long)b->bytes);
  for (int64_t i = 0; i < b->n; i++)
    b->pointer[i] = b->place[i].offset < 0 ? NULL : b->arena + b->place[i].offset;
}

reshard_status case_binding_to_device(case_binding *b, rs_device *device) {
  RS_TRY(session_alloc(device, b->bytes, (void **)&b->memory));
  b->device = device;
  for (int64_t i = 0; i < b->n; i++)
    if (b->pointer[i] != NULL)
      b->pointer[i] = b->memory + b->place[i].offset;
  return RESHARD_SUCCESS;
}

reshard_status case_binding_copy(case_binding *b, bool to_device, void *stream) {
  if (b->device == NULL)
    return RESHARD_SUCCESS;
  RS_TRY(b->device->memory->memcpy(b->device, to_device ? b->memory : b->arena, to_device ? b->arena : b->memory,
                                   (size_t)b->bytes, stream));
  return b->device->streams->synchronize(b->device, stream);
}

void case_binding_free(case_binding *b) {
  if (b->device != NULL)
    session_free(b->device, b->memory);
  free(b->arena);
  free(b->image);
  free(b->place);
  free(b->pointer);
  free(b->stride_list);
  *b = (case_binding){0};
}

/* Position in the arena of the next element in row-major order of the local shape; at counts up from all zeros. */
static int64_t advance_position(const case_buffer *p, int64_t *at, int64_t position) {
  for (int d = p->buffer->ndim - 1; d >= 0; d--) {
    position += p->stride[d] * (int64_t)p->width;
    if (++at[d] < p->buffer->shape[d])
      return position;
    position -= p->stride[d] * (int64_t)p->width * at[d];
    at[d] = 0;
  }
  return position;
}

/* Bits of a scale of a source. */
static uint32_t stamp_scale(const case_entry *e, uint64_t key, int64_t block) {
  uint64_t drawn = rng_mix(key ^ (uint64_t)block);
  float scale = ldexpf((float)(1 + drawn % 4095), (int)(drawn >> 32 & 31) - 24);
  return e->scales == RESHARD_F8_E8M0 ? (uint32_t)(1 + drawn % 254) : naive_scale_bits(scale, RESHARD_F32);
}

/* Bits of an element of f8_e4m3 with scales, whose block has this largest magnitude; or of one made of it. */
static uint64_t scale_element(const case_entry *e, uint64_t key, int64_t element, float most,
                              const unsigned char *bytes) {
  if (e->dtype != RESHARD_F8_E4M3)
    return naive_scaled(naive_wide(bytes, e->dtype, 0), naive_scale(most, e->scales));
  uint32_t scale = stamp_scale(e, key, case_block_of(e, &e->src, element));
  return naive_unscaled(bytes[0], naive_stored_scale(&scale, e->scales, 0), e->dst_dtype);
}

/* Bytes of a source element as a buffer should have it: converted where the entry converts, and once more on the way
 * back. */
static void put_element(const case_entry *e, const case_buffer *p, case_fill fill, uint64_t key, int64_t element,
                        float most, unsigned char *at) {
  unsigned char bytes[16] = {0};
  uint64_t bits = 0;
  case_stamp(e, key, element, bytes);
  memcpy(&bits, bytes, sizeof bits); /* little-endian, as the dtypes of files */
  if (p->scales)
    bits = stamp_scale(e, key, element);
  else if (fill != FILL_SOURCE && e->scales != RESHARD_DTYPE_NONE)
    bits = scale_element(e, key, element, most, bytes);
  else if (fill != FILL_SOURCE && e->dtype != e->dst_dtype)
    bits = naive_cast(e->dtype, e->dst_dtype, bits);
  if (fill == FILL_REVERSED && e->dtype != e->dst_dtype)
    bits = naive_cast(e->dst_dtype, e->dtype, bits);
  memcpy(bytes, &bits, sizeof bits);
  memcpy(at, bytes, p->width);
}

/* The largest magnitude of each block of a buffer; below 0 where nothing of the block is in the region. */
static float *find_most(const case_plan *c, const case_binding *b, const case_buffer *p, uint64_t key) {
  const case_entry *e = &c->entry[p->entry];
  const oracle_buffer *scales = b->place[p->scales_at].buffer;
  float *most = cli_alloc(scales->n, sizeof *most);
  for (int64_t k = 0; k < scales->n; k++)
    most[k] = -1;
  for (int64_t k = 0; k < p->buffer->n; k++)
    if (p->buffer->index[k] >= 0) {
      unsigned char bytes[16] = {0};
      float *known = &most[p->places->index[k]];
      case_stamp(e, key, p->buffer->index[k], bytes);
      *known = naive_most(*known, naive_wide(bytes, e->dtype, 0));
    }
  return most;
}

/* Scales of a destination. */
static void put_scales(const case_plan *c, case_binding *b, const case_buffer *p, const float *most) {
  int64_t at[RESHARD_MAX_DIMS] = {0}, position = p->offset;
  reshard_dtype dtype = c->entry[p->entry].scales;
  for (int64_t k = 0; k < p->buffer->n; k++, position = advance_position(p, at, position))
    if (!(most[k] < 0)) {
      uint32_t bits = naive_scale_bits(naive_scale(most[k], dtype), dtype);
      memcpy(b->image + position, &bits, p->width);
    }
}

void case_binding_fill(const case_plan *c, case_binding *b, case_fill fill, int generation) {
  memset(b->image, POISON, (size_t)b->bytes);
  if (fill != FILL_SOURCE)
    memset(b->arena, POISON, (size_t)b->bytes);
  for (int64_t i = 0; i < b->n; i++) {
    const case_buffer *p = &b->place[i];
    const case_entry *entry = &c->entry[p->entry];
    uint64_t key = stamp_key(c, p->entry, generation);
    int64_t at[RESHARD_MAX_DIMS] = {0}, position = p->offset;
    float *most = p->places != NULL && fill == FILL_DESTINATION ? find_most(c, b, p, key) : NULL;
    for (int64_t k = 0; k < p->buffer->n && !(p->scales && fill == FILL_DESTINATION);
         k++, position = advance_position(p, at, position)) {
      int64_t element = p->buffer->index[k];
      if (element >= 0 && (fill != FILL_REVERSED || case_in_region(entry, element)))
        put_element(entry, p, fill, key, element, most != NULL ? most[p->places->index[k]] : 0, b->image + position);
    }
    if (most != NULL)
      put_scales(c, b, &b->place[p->scales_at], most);
    free(most);
  }
  if (fill == FILL_SOURCE)
    memcpy(b->arena, b->image, (size_t)b->bytes);
}

static void add_hex(rs_text *t, const unsigned char *bytes, size_t n) {
  for (size_t i = 0; i < n; i++)
    cli_add(t, "%02x", bytes[i]);
}

/* Every NaN is right for a scale where one is wanted: those of f32 stay as they are drawn. */
static void accept_nans(const case_plan *c, const case_binding *b) {
  for (int64_t i = 0; c->scaled && i < b->n; i++) {
    const case_buffer *p = &b->place[i];
    int64_t at[RESHARD_MAX_DIMS] = {0}, position = p->offset;
    for (int64_t k = 0; p->scales && p->dtype == RESHARD_F32 && k < p->buffer->n;
         k++, position = advance_position(p, at, position))
      if (isnan(naive_wide(b->arena + position, RESHARD_F32, 0)) &&
          isnan(naive_wide(b->image + position, RESHARD_F32, 0)))
        memcpy(b->image + position, b->arena + position, p->width);
  }
}

bool case_binding_check(const case_plan *c, const case_binding *b, case_fill fill, int generation, int64_t rank,
                        rs_text *why) {
  accept_nans(c, b);
  if (memcmp(b->arena, b->image, (size_t)b->bytes) == 0)
    return true;
  const char *side = fill == FILL_DESTINATION ? "dst" : "src";
  int64_t first_buffer = 0;
  for (int64_t i = 0; i < b->n; i++) {
    const case_buffer *p = &b->place[i];
    first_buffer = i > 0 && b->place[i - 1].entry != p->entry ? i : first_buffer;
    int64_t at[RESHARD_MAX_DIMS] = {0}, position = p->offset;
    for (int64_t k = 0; k < p->buffer->n; k++, position = advance_position(p, at, position)) {
      if (memcmp(b->arena + position, b->image + position, p->width) == 0)
        continue;
      cli_add(why, "rank %lld, entry %lld, %s array %lld, local index ", (long long)rank, (long long)p->entry, side,
              (long long)(i - first_buffer));
      rs_text_list(why, p->buffer->ndim, at);
      cli_add(why, " of shape ");
      rs_text_list(why, p->buffer->ndim, p->buffer->shape);
      if (fill == FILL_SOURCE)
        cli_add(why, ": the source was written to");
      else if (p->scales)
        cli_add(why, ": is of block %lld", (long long)p->buffer->index[k]);
      else if (p->buffer->index[k] < 0)
        cli_add(why, ": lies outside the region but was written to");
      else
        cli_add(why, ": should be source element %lld", (long long)p->buffer->index[k]);
      cli_add(why, " (has ");
      add_hex(why, b->arena + position, p->width);
      cli_add(why, ", should have ");
      add_hex(why, b->image + position, p->width);
      cli_add(why, ", generation %d)", generation);
      return false;
    }
  }
  for (int64_t i = 0; i < b->bytes; i++)
    if (b->arena[i] != b->image[i]) {
      int64_t nearest = 0;
      for (int64_t k = 0; k < b->n; k++)
        if (b->place[k].offset >= 0 && b->place[k].offset <= i)
          nearest = k;
      cli_add(
          why,
          "rank %lld: a gap or guard byte of the %s memory was written to, %lld bytes after the begin of buffer %lld",
          (long long)rank, side, b->n > 0 ? (long long)(i - b->place[nearest].offset) : 0, (long long)nearest);
      break;
    }
  return false;
}
