/* Lists of box copies, and of casts, in canonical form.
 *
 * Loops of one step vanish. A loop that continues its inner neighbour on both sides is merged into it, and the
 * innermost loop is merged into the run. The loops that remain tell the shape of the copy: no loop means one contiguous
 * run. */
#include "device/copies.h"

#include <stdlib.h>
#include <string.h>

/* True where a step of `outer` continues after the last step of `inner` on both sides. */
static bool axis_continues(const rs_axis *outer, const rs_axis *inner) {
  int64_t src, dst;
  return !__builtin_mul_overflow(inner->src, inner->n, &src) && src == outer->src &&
         !__builtin_mul_overflow(inner->dst, inner->n, &dst) && dst == outer->dst;
}

int32_t rs_axes_merge(int naxes, const rs_axis *axes, int64_t src, int64_t dst, rs_axis *kept, int64_t *run) {
  int32_t n = 0; /* innermost first, then turned round */
  *run = 1;
  for (int i = naxes - 1; i >= 0; i--) {
    const rs_axis *axis = &axes[i];
    if (axis->n == 1)
      continue;
    if (n == 0 && axis->src == *run * src && axis->dst == *run * dst)
      *run *= axis->n;
    else if (n > 0 && axis_continues(axis, &kept[n - 1]))
      kept[n - 1].n *= axis->n;
    else
      kept[n++] = *axis;
  }
  for (int32_t i = 0; i < n / 2; i++) {
    rs_axis swap = kept[i];
    kept[i] = kept[n - 1 - i];
    kept[n - 1 - i] = swap;
  }
  return n;
}

static reshard_status copy_overflow(void) {
  return rs_error(RESHARD_ERROR_INVALID, "a copy has more than %lld bytes", (long long)INT64_MAX);
}

/* copy: all but run and axes. to: bytes of an element of the destination. */
static reshard_status add_copy(rs_copies *copies, rs_copy copy, int64_t to, int naxes, const rs_axis *axes) {
  int64_t bytes = copy.element, most = rs_max(copy.element, to);
  for (int i = 0; i < naxes; i++)
    if (axes[i].n == 0)
      return RESHARD_SUCCESS;
  for (int i = 0; i < naxes; i++)
    if (!rs_mul(most, axes[i].n, &most))
      return copy_overflow();
  for (int i = 0; i < naxes; i++)
    bytes *= axes[i].n;
  int64_t total;
  if (!rs_add(copies->bytes, bytes, &total))
    return copy_overflow();
  RS_TRY(rs_vec_reserve(&copies->copy, copies->copy.n + 1));
  RS_TRY(rs_vec_reserve(&copies->axis, copies->axis.n + naxes));

  rs_axis *kept = copies->axis.at == NULL ? NULL : copies->axis.at + copies->axis.n;
  copy.axes = copies->axis.n;
  copy.naxes = rs_axes_merge(naxes, axes, copy.element, to, kept, &copy.run);
  copy.run *= copy.element;
  copy.peer = copies->peer;
  copies->copy.at[copies->copy.n++] = copy;
  copies->axis.n += copy.naxes;
  copies->bytes = total;
  return RESHARD_SUCCESS;
}

reshard_status rs_copies_add(rs_copies *copies, const char *src, char *dst, int32_t element, int naxes,
                             const rs_axis *axes) {
  return add_copy(copies, (rs_copy){.src = src, .dst = dst, .element = element}, element, naxes, axes);
}

reshard_status rs_copies_convert(rs_copies *copies, const char *src, char *dst, reshard_dtype from, reshard_dtype to,
                                 int naxes, const rs_axis *axes) {
  if (!rs_cast_supported(from, to))
    return rs_error(RESHARD_ERROR_UNSUPPORTED, "no cast from %s to %s", reshard_dtype_string(from),
                    reshard_dtype_string(to));
  rs_copy copy = {.src = src, .dst = dst, .element = (int32_t)reshard_dtype_size(from), .from = from, .to = to};
  return add_copy(copies, copy, (int64_t)reshard_dtype_size(to), naxes, axes);
}

void rs_block_box_turn(rs_block_box *box) {
  int64_t *pairs[] = {box->n, box->block, box->skip, box->wide_stride, box->value_stride, box->scale_stride};
  for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
    int64_t first = pairs[i][0];
    pairs[i][0] = pairs[i][1];
    pairs[i][1] = first;
  }
}

/* Bytes that a step reads: of the blocks that it meets the scales, too, where it is back. */
static bool count_read(const rs_block_box *b, bool back, int64_t *bytes) {
  int64_t blocks = 1, width = back ? 1 : (int64_t)reshard_dtype_size(b->wide_dtype);
  for (int i = 0; i < 2; i++)
    blocks *= rs_ceil_div(b->skip[i] + b->n[i], b->block[i]);
  return rs_mul(b->n[0], b->n[1], bytes) && rs_mul(*bytes, width, bytes) &&
         rs_add(*bytes, back ? blocks * (int64_t)reshard_dtype_size(b->scale_dtype) : 0, bytes);
}

/* One box of rows, repeated over loops. */
static reshard_status add_scaled(rs_copies *copies, const rs_block_box *box, bool back, int naxes,
                                 const rs_block_axis *axes) {
  int64_t bytes;
  bool fits = count_read(box, back, &bytes);
  int64_t step = bytes;
  for (int i = 0; i < naxes; i++)
    fits = fits && rs_mul(bytes, axes[i].n, &bytes);
  if (bytes == 0)
    return RESHARD_SUCCESS;
  if (!fits || !rs_add(copies->bytes, bytes, &bytes))
    return copy_overflow();
  RS_TRY(rs_vec_reserve(&copies->copy, copies->copy.n + 1));
  RS_TRY(rs_vec_reserve(&copies->axis, copies->axis.n + naxes));
  RS_TRY(rs_vec_reserve(&copies->scaled, copies->scaled.n + 1));
  rs_copy copy = {.src = back ? box->values : box->wide,
                  .dst = back ? box->wide : box->values,
                  .run = step,
                  .axes = copies->axis.n,
                  .element = back ? 1 : (int32_t)reshard_dtype_size(box->wide_dtype),
                  .from = back ? RESHARD_F8_E4M3 : box->wide_dtype,
                  .to = back ? box->wide_dtype : RESHARD_F8_E4M3,
                  .peer = copies->peer};
  rs_scaled *scaled = &copies->scaled.at[copies->scaled.n++];
  scaled->box = *box;
  for (int i = 0; i < naxes; i++) {
    if (axes[i].n == 1)
      continue;
    scaled->step[copy.naxes++] = axes[i].scales;
    copies->axis.at[copies->axis.n++] =
        (rs_axis){axes[i].n, back ? axes[i].values : axes[i].wide, back ? axes[i].wide : axes[i].values};
  }
  copy.scaled = (int32_t)copies->scaled.n;
  copies->copy.at[copies->copy.n++] = copy;
  copies->bytes = bytes;
  return RESHARD_SUCCESS;
}

/* Rows of blocks are one loop more, which threads share: those of a first block that is begun, and of a last one that
 * is not ended, are copies of their own. */
reshard_status rs_copies_scale(rs_copies *copies, const rs_block_box *box, bool back, int naxes,
                               const rs_block_axis *axes) {
  return rs_copies_scale_rows(copies, box, box->block[0], back, naxes, axes);
}

reshard_status rs_copies_scale_rows(rs_copies *copies, const rs_block_box *box, int64_t unit, bool back, int naxes,
                                    const rs_block_axis *axes) {
  rs_block_axis all[2 * RESHARD_MAX_DIMS + 1];
  int64_t head = box->skip[0] > 0 ? rs_min(box->block[0] - box->skip[0], box->n[0]) : 0;
  int64_t rows[3] = {head, unit, (box->n[0] - head) % unit};
  int64_t times[3] = {head > 0, (box->n[0] - head) / unit, rows[2] > 0};
  rs_block_box part = *box;
  memcpy(all, axes, (size_t)naxes * sizeof *axes);
  for (int i = 0; i < 3; i++) {
    if (times[i] == 0)
      continue;
    part.n[0] = rows[i];
    all[naxes] = (rs_block_axis){times[i], rows[i] * box->wide_stride[0], rows[i] * box->value_stride[0],
                                 rs_ceil_div(rows[i], box->block[0]) * box->scale_stride[0]};
    RS_TRY(add_scaled(copies, &part, back, naxes + 1, all));
    part.wide += times[i] * all[naxes].wide;
    part.values += times[i] * all[naxes].values;
    part.scales += times[i] * all[naxes].scales;
    part.skip[0] = 0;
  }
  return RESHARD_SUCCESS;
}

reshard_status rs_copies_append(rs_copies *all, const rs_copies *more) {
  int64_t axes = all->axis.n, scaled = all->scaled.n;
  RS_TRY(rs_vec_reserve(&all->copy, all->copy.n + more->copy.n));
  RS_TRY(rs_vec_reserve(&all->axis, axes + more->axis.n));
  RS_TRY(rs_vec_reserve(&all->scaled, scaled + more->scaled.n));
  for (int64_t i = 0; i < more->copy.n; i++) {
    rs_copy *copy = &all->copy.at[all->copy.n++];
    *copy = more->copy.at[i];
    copy->axes += axes;
    copy->scaled += copy->scaled > 0 ? (int32_t)scaled : 0;
  }
  if (more->axis.n > 0)
    memcpy(all->axis.at + axes, more->axis.at, (size_t)more->axis.n * sizeof *more->axis.at);
  if (more->scaled.n > 0)
    memcpy(all->scaled.at + scaled, more->scaled.at, (size_t)more->scaled.n * sizeof *more->scaled.at);
  all->axis.n += more->axis.n;
  all->scaled.n += more->scaled.n;
  all->bytes += more->bytes;
  return RESHARD_SUCCESS;
}

void rs_copies_clear(rs_copies *copies) {
  copies->copy.n = copies->axis.n = copies->scaled.n = 0;
  copies->bytes = 0;
  copies->peer = 0;
  copies->staging = copies->deal = false;
}

void rs_copies_free(rs_copies *copies) {
  free(copies->copy.at);
  free(copies->axis.at);
  free(copies->scaled.at);
  *copies = (rs_copies){.staging = copies->staging};
}

/* --- Casts -------------------------------------------------------------------------------------------------------- */

reshard_status rs_casts_add(rs_casts *casts, const char *src, char *dst, reshard_dtype from, reshard_dtype to,
                            int naxes, const rs_axis *axes) {
  if (!rs_cast_supported(from, to))
    return rs_error(RESHARD_ERROR_UNSUPPORTED, "no cast from %s to %s", reshard_dtype_string(from),
                    reshard_dtype_string(to));
  int64_t src_bytes = (int64_t)reshard_dtype_size(from), dst_bytes = (int64_t)reshard_dtype_size(to);
  int64_t bytes = src_bytes + dst_bytes;
  for (int i = 0; i < naxes; i++)
    if (axes[i].n == 0)
      return RESHARD_SUCCESS;
  for (int i = 0; i < naxes; i++)
    if (!rs_mul(bytes, axes[i].n, &bytes))
      return rs_error(RESHARD_ERROR_INVALID, "a cast has more than %lld bytes", (long long)INT64_MAX);
  RS_TRY(rs_vec_reserve(&casts->cast, casts->cast.n + 1));
  RS_TRY(rs_vec_reserve(&casts->axis, casts->axis.n + naxes));
  rs_axis *kept = casts->axis.at == NULL ? NULL : casts->axis.at + casts->axis.n;
  rs_cast cast = {.src = src, .dst = dst, .axes = casts->axis.n, .from = from, .to = to};
  cast.naxes = rs_axes_merge(naxes, axes, src_bytes, dst_bytes, kept, &cast.elements);
  casts->cast.at[casts->cast.n++] = cast;
  casts->axis.n += cast.naxes;
  return RESHARD_SUCCESS;
}

void rs_casts_free(rs_casts *casts) {
  free(casts->cast.at);
  free(casts->axis.at);
  *casts = (rs_casts){0};
}
