/* Dtypes of a target, chosen for each tensor alone, and then judged by pairs: a tensor of FP8 and its scales.
 *
 * Quantised checkpoints store NAME in f8_e4m3 and, in NAME_scale_inv, the number that each block is multiplied by.
 * Neither means anything without the other, so neither is converted by itself. */
#include "file/map/scales.h"

#include "base/dtype.h"
#include "base/text.h"
#include "file/model/model.h"

#include <stdlib.h>

reshard_status rs_dtypes_check(reshard_dtype dtype, const reshard_blocks *blocks) {
  if (blocks->rows != 0 && dtype != RESHARD_F8_E4M3)
    return rs_error(RESHARD_ERROR_INVALID, "dtype %s: f8_e4m3 alone has blocks with scales",
                    reshard_dtype_string(dtype));
  if (blocks->rows != 0)
    RS_TRY(rs_blocks_check("dtype f8_e4m3", blocks));
  return dtype == RESHARD_DTYPE_NONE || rs_cast_knows(dtype)
             ? RESHARD_SUCCESS
             : rs_error(RESHARD_ERROR_INVALID,
                        "dtype %s: numbers are converted to f64, f32, f16, bf16, f8_e4m3 and f8_e5m2 alone",
                        reshard_dtype_string(dtype));
}

/* A source's rule may say the dtype that its tensor has. */
static reshard_status check_source(const rs_dtype_choice *choice) {
  for (int64_t i = 0; choice->src->rules != NULL && i < choice->regions->n; i++) {
    int64_t tensor = choice->regions->at[i].src;
    const rs_model_tensor *t = tensor >= 0 ? &choice->source->tensors.at[tensor] : NULL;
    reshard_dtype said;
    if (t != NULL)
      RS_TRY(rs_layouts_dtype(choice->src, rs_model_name(choice->source, tensor), t->dtype, t->packed, false, &said,
                              NULL));
  }
  return RESHARD_SUCCESS;
}

/* Matrices, or a list of them, of a dtype that scales are made for. */
static bool takes_scales(const rs_model_tensor *t) {
  bool known = rs_blocks_know(t->dtype) || (t->cast && t->dtype == RESHARD_F8_E4M3); /* which is made of others */
  return t->packed == 0 && known && (t->ndim == 2 || t->ndim == 3);
}

/* A rule says that a tensor has blocks: it is to get them, or has them. */
static reshard_status check_rule(rs_chooser *c, int64_t i) {
  const rs_model_tensor *t = &c->target->tensors.at[i];
  const char *name = rs_model_name(c->target, i);
  char quoted[RS_QUOTE], shape[RS_SHAPE_TEXT], blocks[RS_BLOCKS_TEXT];
  if (takes_scales(t) || (t->dtype == RESHARD_F8_E4M3 && !t->cast))
    return RESHARD_SUCCESS;
  rs_error(RESHARD_ERROR_INVALID, "tensor '%s' is %s of shape %s: %s is for f32, f16 and bf16 of 2 dims, or 3",
           rs_quote(quoted, sizeof quoted, name), rs_type_text(t->dtype, t->packed),
           rs_shape_text(shape, t->ndim, t->shape), rs_blocks_text(blocks, &c->to[i].blocks));
  return rs_layouts_error(c->choice->dst, name, RESHARD_ERROR_INVALID);
}

static reshard_status choose_dtype(rs_chooser *c, int64_t i) {
  const rs_model_tensor *t = &c->target->tensors.at[i];
  const rs_dtype_choice *choice = c->choice;
  rs_chosen *to = &c->to[i];
  reshard_dtype said;
  RS_TRY(rs_layouts_dtype(choice->dst, rs_model_name(c->target, i), t->dtype, t->packed, true, &said, &to->blocks));
  to->to = said != RESHARD_DTYPE_NONE ? said : t->dtype;
  to->multiplied = t->multiplied;
  if (said == RESHARD_DTYPE_NONE)
    to->blocks = t->blocks;
  if (t->multiplied && !rs_blocks_know(to->to)) {
    char quoted[RS_QUOTE];
    const char *name = rs_model_name(c->target, i);
    rs_error(RESHARD_ERROR_UNSUPPORTED,
             "tensor '%s': the map multiplies f8_e4m3 by its scales, to f32, f16 or bf16, not to %s",
             rs_quote(quoted, sizeof quoted, name), reshard_dtype_string(to->to));
    return rs_layouts_error(choice->dst, name, RESHARD_ERROR_UNSUPPORTED);
  }
  c->any = c->any || said != RESHARD_DTYPE_NONE || t->cast || choice->dtype != RESHARD_DTYPE_NONE;
  if (to->blocks.rows > 0)
    return check_rule(c, i);
  if (said != RESHARD_DTYPE_NONE || t->cast || choice->dtype == RESHARD_DTYPE_NONE)
    return RESHARD_SUCCESS;
  bool scaled = choice->blocks->rows > 0,
       numbers = scaled ? takes_scales(t) : t->packed == 0 && rs_cast_knows(t->dtype);
  if (scaled && numbers)
    to->blocks = *choice->blocks;
  to->to = numbers ? choice->dtype : t->dtype;
  to->unconverted = !numbers;
  return RESHARD_SUCCESS;
}

/* Leaves a tensor of a pair as it is; a rule cannot say otherwise. */
static reshard_status keep_dtype(rs_chooser *c, int64_t i, int64_t other) {
  const char *name = rs_model_name(c->target, i), *beside = rs_model_name(c->target, other);
  const rs_model_tensor *t = &c->target->tensors.at[i];
  char quoted[RS_QUOTE], also[RS_QUOTE];
  reshard_dtype said;
  if (c->to[i].to == t->dtype)
    return RESHARD_SUCCESS;
  RS_TRY(rs_layouts_dtype(c->choice->dst, name, t->dtype, t->packed, true, &said, NULL));
  if (said != RESHARD_DTYPE_NONE) {
    rs_error(RESHARD_ERROR_INVALID, "tensor '%s' is %s beside '%s': neither is converted by itself to %s",
             rs_quote(quoted, sizeof quoted, name), reshard_dtype_string(t->dtype), rs_quote(also, sizeof also, beside),
             reshard_dtype_string(said));
    return rs_layouts_error(c->choice->dst, name, RESHARD_ERROR_INVALID);
  }
  c->to[i].to = t->dtype;
  c->to[i].blocks.rows = 0;
  c->to[i].unconverted = true;
  return RESHARD_SUCCESS;
}

/* NAME, and its scales. */
static reshard_status judge_pair(rs_chooser *c, int64_t values, int64_t scales) {
  const rs_model_tensor *v = &c->target->tensors.at[values], *s = &c->target->tensors.at[scales];
  rs_chosen *to = &c->to[values];
  char a[RS_QUOTE], b[RS_QUOTE];
  rs_quote(a, sizeof a, rs_model_name(c->target, values));
  rs_quote(b, sizeof b, rs_model_name(c->target, scales));
  if (v->cast || s->cast)
    return rs_error(RESHARD_ERROR_INVALID,
                    "the map casts '%s' beside '%s': scales belong to the values they were made of", v->cast ? a : b,
                    v->cast ? b : a);
  bool asked = c->choice->dtype != RESHARD_DTYPE_NONE || to->to != v->dtype || c->to[scales].to != s->dtype;
  if (!asked || v->packed != 0 || !rs_cast_knows(v->dtype))
    return RESHARD_SUCCESS;
  if (reshard_dtype_size(v->dtype) > 1)
    return rs_error(RESHARD_ERROR_INVALID, "tensor '%s' is %s and has scales, '%s', which only FP8 has", a,
                    reshard_dtype_string(v->dtype), b);
  if (v->dtype == RESHARD_F8_E4M3 && rs_blocks_know(to->to) && c->choice->source != NULL) {
    to->multiplied = c->to[scales].left_out = true;
    return RESHARD_SUCCESS;
  }
  if (reshard_dtype_size(to->to) > 1)
    return rs_error(RESHARD_ERROR_UNSUPPORTED,
                    "tensor '%s' is %s with scales in '%s': files alone, f8_e4m3 alone are multiplied by them, to f32, "
                    "f16 or bf16, not to %s",
                    a, reshard_dtype_string(v->dtype), b, reshard_dtype_string(to->to));
  RS_TRY(keep_dtype(c, values, scales));
  return keep_dtype(c, scales, values);
}

/* Scales and values that lack the others. */
static reshard_status judge_single(rs_chooser *c, int64_t i, bool has_scales) {
  const rs_model_tensor *t = &c->target->tensors.at[i];
  const char *name = rs_model_name(c->target, i);
  char quoted[RS_QUOTE], blocks[RS_BLOCKS_TEXT];
  rs_quote(quoted, sizeof quoted, name);
  if (rs_ends(name, RS_SCALES) && c->to[i].to != t->dtype)
    return rs_error(RESHARD_ERROR_INVALID, "tensor '%s' has scales: the values of that name without '%s' are missing",
                    quoted, RS_SCALES);
  if (c->to[i].blocks.rows == 0 || t->dtype != RESHARD_F8_E4M3 || has_scales || t->cast)
    return RESHARD_SUCCESS;
  rs_error(RESHARD_ERROR_INVALID, "tensor '%s' is f8_e4m3, and to be %s: its scales, '%s%s', are missing", quoted,
           rs_blocks_text(blocks, &c->to[i].blocks), quoted, RS_SCALES);
  return rs_layouts_error(c->choice->dst, name, RESHARD_ERROR_INVALID);
}

static reshard_status judge_pairs(rs_chooser *c) {
  rs_names names = {0};
  int64_t n = c->any ? c->target->tensors.n : 0, number;
  reshard_status status = rs_names_reserve(&names, n);
  for (int64_t i = 0; i < n && status == RESHARD_SUCCESS; i++)
    status = rs_names_put(&names, rs_model_name(c->target, i), strlen(rs_model_name(c->target, i)), &number);
  for (int64_t i = 0; i < n && status == RESHARD_SUCCESS; i++) {
    int64_t of = rs_scales_of(&names, rs_model_name(c->target, i)), scales = -1;
    if (of >= 0)
      status = judge_pair(c, of, i);
    else
      status = rs_scales_find(&names, rs_model_name(c->target, i), &scales);
    if (of < 0 && status == RESHARD_SUCCESS)
      status = judge_single(c, i, scales >= 0);
  }
  rs_names_free(&names);
  return status;
}

/* Tensors of which a part is converted. */
static reshard_status count_converted(const rs_chooser *c, int64_t *converted) {
  bool *seen;
  RS_TRY(rs_alloc_zero(&seen, c->target->tensors.n, sizeof *seen));
  *converted = 0;
  for (int64_t i = 0; i < c->choice->regions->n; i++) {
    const rs_copy_region *r = &c->choice->regions->at[i];
    if (r->src < 0 || seen[r->dst] ||
        c->choice->source->tensors.at[r->src].dtype == c->target->tensors.at[r->dst].dtype)
      continue;
    seen[r->dst] = true;
    ++*converted;
  }
  free(seen);
  return RESHARD_SUCCESS;
}

reshard_status rs_dtypes_choose(const rs_dtype_choice *choice, reshard_model target, reshard_convert_report *report) {
  rs_chooser c = {.choice = choice, .target = target};
  RS_TRY(check_source(choice));
  RS_TRY(rs_alloc_zero(&c.to, target->tensors.n, sizeof *c.to));
  reshard_status status = RESHARD_SUCCESS;
  int64_t n = target->tensors.n;
  for (int64_t i = 0; i < n && status == RESHARD_SUCCESS; i++)
    status = choose_dtype(&c, i);
  RS_THEN(status, judge_pairs(&c));
  RS_THEN(status, rs_scales_settle(&c, &report->scaled));
  RS_THEN(status, count_converted(&c, &report->converted));
  if (status == RESHARD_SUCCESS)
    report->unconverted = 0;
  for (int64_t i = 0; i < n && status == RESHARD_SUCCESS; i++)
    report->unconverted += c.to[i].unconverted && !c.to[i].left_out;
  free(c.to);
  return status;
}
