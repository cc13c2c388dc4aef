/* Lists of box copies in canonical form.
 *
 * Loops of one step vanish. A loop that continues its inner neighbour on both sides is merged into it, and the
 * innermost loop is merged into the run. The loops that remain tell the shape of the copy: no loop means one contiguous
 * run. */
#include "device/copies.h"

#include <stdlib.h>

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

void rs_copies_clear(rs_copies *copies) {
  copies->copy.n = copies->axis.n = 0;
  copies->bytes = 0;
  copies->peer = 0;
  copies->staging = copies->deal = false;
}

void rs_copies_free(rs_copies *copies) {
  free(copies->copy.at);
  free(copies->axis.at);
  *copies = (rs_copies){.staging = copies->staging};
}
