/* Lists of casts, in the canonical form of copies. */
#include "device/casts.h"
#include "device/copies.h"

#include <stdlib.h>

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
