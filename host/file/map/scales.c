/* Scales of a target: made, multiplied by, or kept beside their values. */
#include "file/map/scales.h"

#include "base/dtype.h"
#include "base/text.h"
#include "file/model/model.h"

#include <stdlib.h>

int64_t rs_scales_of(const rs_names *names, const char *scales) {
  return rs_ends(scales, RS_SCALES) ? rs_names_find(names, scales, strlen(scales) - strlen(RS_SCALES)) : -1;
}

reshard_status rs_scales_find(const rs_names *names, const char *values, int64_t *scales) {
  rs_text name = {.grows = true};
  rs_text_add(&name, "%s" RS_SCALES, values);
  if (name.status == RESHARD_SUCCESS)
    *scales = rs_names_find(names, name.at, name.length);
  reshard_status status = name.status;
  free(name.at);
  return status;
}

static bool is_fp8(reshard_dtype dtype) { return dtype == RESHARD_F8_E4M3 || dtype == RESHARD_F8_E5M2; }

reshard_status rs_dtypes_partner(const rs_names *names, const struct reshard_model_s *model, int64_t tensor,
                                 int64_t *other) {
  const char *name = rs_model_name(model, tensor);
  int64_t values = rs_scales_of(names, name);
  *other = values >= 0 && is_fp8(model->tensors.at[values].dtype) ? values : -1;
  if (*other >= 0 || !is_fp8(model->tensors.at[tensor].dtype))
    return RESHARD_SUCCESS;
  return rs_scales_find(names, name, other);
}

/* Appends the scales of a tensor to the target. */
static reshard_status add_scales(rs_chooser *c, int64_t i) {
  rs_text name = {.grows = true};
  int64_t shape[RESHARD_MAX_DIMS];
  reshard_blocks b = c->to[i].blocks;
  int ndim = c->target->tensors.at[i].ndim;
  for (int d = 0; d < ndim; d++)
    shape[d] = rs_ceil_div(c->target->tensors.at[i].shape[d], rs_blocks_extent(&b, ndim, d));
  rs_text_add(&name, "%s" RS_SCALES, rs_model_name(c->target, i));
  reshard_status status = name.status;
  RS_THEN(status, rs_model_add(c->target, "target", name.at, name.length, b.scales, ndim, shape));
  c->to[i].scales = c->target->tensors.n - 1;
  free(name.at);
  return status;
}

/* A part of values that get scales, which other parts do not share. */
static reshard_status set_made(const rs_chooser *c, rs_copy_region *r) {
  const rs_model_tensor *t = &c->target->tensors.at[r->dst];
  reshard_dtype from = r->src >= 0 ? c->choice->source->tensors.at[r->src].dtype : RESHARD_F32;
  char quoted[RS_QUOTE], text[RS_BLOCKS_TEXT];
  r->blocks = c->to[r->dst].blocks;
  r->scales = c->to[r->dst].scales;
  rs_quote(quoted, sizeof quoted, rs_model_name(c->target, r->dst));
  rs_blocks_text(text, &r->blocks);
  if (!rs_blocks_know(from))
    return rs_error(RESHARD_ERROR_INVALID, "tensor '%s' is made of %s: %s is made of f32, f16 and bf16", quoted,
                    reshard_dtype_string(from), text);
  for (int d = 0; d < t->ndim; d++) {
    int64_t block = rs_blocks_extent(&r->blocks, t->ndim, d), end = r->dst_offset[d] + r->dst_extent[d];
    if (end % block != 0 && end != t->shape[d]) /* a part that begins in a block follows such a one */
      return rs_error(RESHARD_ERROR_INVALID, "tensor '%s': the map cuts dim %d at %lld, in a block of %lld (%s)",
                      quoted, d, (long long)end, (long long)block, text);
  }
  return RESHARD_SUCCESS;
}

/* The extent of blocks, of which n indices have m: all of them, or a power of two; 0: neither. */
static int64_t find_extent(int64_t n, int64_t m) {
  if (m <= 1)
    return m == rs_min(n, 1) ? rs_max(n, 1) : 0;
  for (int64_t block = 1; block <= n; block *= 2)
    if (rs_ceil_div(n, block) == m)
      return block;
  return 0;
}

/* A part of values that are multiplied by the scales of the tensor that they come from. */
static reshard_status set_multiplied(const rs_chooser *c, rs_copy_region *r) {
  const struct reshard_model_s *source = c->choice->source;
  char a[RS_QUOTE], b[RS_QUOTE], shapes[2][RS_SHAPE_TEXT];
  const char *name = r->src >= 0 ? rs_model_name(source, r->src) : "";
  reshard_dtype said;
  if (r->src < 0 || source->tensors.at[r->src].dtype != RESHARD_F8_E4M3) /* zeros stay zeros */
    return RESHARD_SUCCESS;
  const rs_model_tensor *v = &source->tensors.at[r->src], *s;
  RS_TRY(rs_layouts_dtype(c->choice->src, name, v->dtype, v->packed, false, &said, &r->blocks));
  RS_TRY(rs_scales_find(c->choice->names, name, &r->scales));
  rs_quote(a, sizeof a, name);
  if (r->scales < 0 && c->target->tensors.at[r->dst].cast) { /* beside parts that have scales */
    r->blocks.rows = 0;
    return RESHARD_SUCCESS;
  }
  if (r->scales < 0)
    return rs_error(RESHARD_ERROR_INVALID, "tensor '%s': its scales, '%s%s', are missing", a, a, RS_SCALES);
  s = &source->tensors.at[r->scales];
  rs_quote(b, sizeof b, rs_model_name(source, r->scales));
  if (s->packed != 0 || (s->dtype != RESHARD_F32 && s->dtype != RESHARD_F8_E8M0))
    return rs_error(RESHARD_ERROR_INVALID, "scales '%s' are %s, not f32 or f8_e8m0", b,
                    rs_type_text(s->dtype, s->packed));
  bool fits = (v->ndim == 2 || v->ndim == 3) && s->ndim == v->ndim;
  if (fits && r->blocks.rows == 0) {
    r->blocks.rows = find_extent(v->shape[v->ndim - 2], s->shape[v->ndim - 2]);
    r->blocks.columns = find_extent(v->shape[v->ndim - 1], s->shape[v->ndim - 1]);
    fits = r->blocks.rows > 0 && r->blocks.columns > 0;
  }
  r->blocks.scales = s->dtype;
  for (int d = 0; d < v->ndim && fits; d++)
    fits = s->shape[d] == rs_ceil_div(v->shape[d], rs_blocks_extent(&r->blocks, v->ndim, d));
  return fits
             ? RESHARD_SUCCESS
             : rs_error(RESHARD_ERROR_INVALID,
                        "scales '%s' of shape %s are not one for each block of '%s' of %s; a rule of the source can "
                        "say other blocks than powers of two",
                        b, rs_shape_text(shapes[0], s->ndim, s->shape), a, rs_shape_text(shapes[1], v->ndim, v->shape));
}

/* Leaves out tensors of the target and their regions. */
static reshard_status leave_out(rs_chooser *c, int64_t n) {
  int64_t *number, kept = 0;
  RS_TRY(rs_alloc(&number, c->target->tensors.n, sizeof *number));
  for (int64_t i = 0; i < c->target->tensors.n; i++) {
    bool stays = i >= n || !c->to[i].left_out;
    number[i] = stays ? kept : -1;
    const rs_model_tensor *t = &c->target->tensors.at[i];
    int64_t bytes = 0;
    if (!stays) /* they fit, as a model's */
      rs_tensor_bytes(t->ndim, t->shape, reshard_dtype_size(t->dtype), &bytes);
    c->target->bytes -= bytes;
    if (stays)
      c->target->tensors.at[kept++] = *t;
  }
  c->target->tensors.n = kept;
  rs_copy_regions *regions = c->choice->regions;
  kept = 0;
  for (int64_t i = 0; i < regions->n; i++) {
    rs_copy_region r = regions->at[i];
    r.dst = number[r.dst];
    if (r.dst < 0)
      continue;
    if (rs_region_scaled(&r, c->target->tensors.at[r.dst].dtype))
      r.scales = number[r.scales];
    regions->at[kept++] = r;
  }
  regions->n = kept;
  free(number);
  return RESHARD_SUCCESS;
}

/* Scales that are made and multiplied by. */
reshard_status rs_scales_settle(rs_chooser *c, int64_t *scaled) {
  int64_t n = c->target->tensors.n;
  bool any = false;
  for (int64_t i = 0; i < n; i++) {
    const rs_model_tensor *t = &c->target->tensors.at[i];
    bool made = c->to[i].blocks.rows > 0 && (t->dtype != RESHARD_F8_E4M3 || t->cast);
    if (!made)
      c->to[i].blocks.rows = 0;
    else
      RS_TRY(add_scales(c, i));
    *scaled += made;
    any = any || made || c->to[i].multiplied;
  }
  for (int64_t i = 0; i < c->choice->regions->n && any; i++) {
    rs_copy_region *r = &c->choice->regions->at[i];
    if (c->to[r->dst].blocks.rows > 0)
      RS_TRY(set_made(c, r));
    else if (c->to[r->dst].multiplied)
      RS_TRY(set_multiplied(c, r));
  }
  for (int64_t i = 0; i < n; i++)
    if (c->to[i].to != c->target->tensors.at[i].dtype)
      RS_TRY(rs_model_set_dtype(c->target, "target", i, c->to[i].to));
  return any ? leave_out(c, n) : RESHARD_SUCCESS;
}
