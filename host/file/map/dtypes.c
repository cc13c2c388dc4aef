/* Dtypes of a target, chosen for each tensor alone, and then judged by pairs: a tensor of FP8 and its scales.
 *
 * Quantised checkpoints store NAME in f8_e4m3 and, in NAME_scale_inv, the number that each block is multiplied by.
 * Neither means anything without the other, so neither is converted by itself. */
#include "file/map/dtypes.h"

#include "base/dtype.h"
#include "base/text.h"
#include "file/model/model.h"

#include <stdlib.h>

#define SCALES "_scale_inv"

typedef struct chooser {
  const rs_dtype_choice *choice;
  reshard_model target;
  reshard_dtype *to; /* by tensor of the target */
  bool any;          /* some dtype is said */
  int64_t unconverted;
} chooser;

reshard_status rs_dtypes_check(reshard_dtype dtype) {
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
      RS_TRY(rs_layouts_dtype(choice->src, rs_model_name(choice->source, tensor), t->dtype, t->packed, false, &said));
  }
  return RESHARD_SUCCESS;
}

static reshard_status choose_dtype(chooser *c, int64_t i) {
  const rs_model_tensor *t = &c->target->tensors.at[i];
  const rs_dtype_choice *choice = c->choice;
  reshard_dtype said;
  RS_TRY(rs_layouts_dtype(choice->dst, rs_model_name(c->target, i), t->dtype, t->packed, true, &said));
  c->to[i] = said != RESHARD_DTYPE_NONE ? said : t->dtype;
  c->any = c->any || said != RESHARD_DTYPE_NONE || t->cast || choice->dtype != RESHARD_DTYPE_NONE;
  if (said != RESHARD_DTYPE_NONE || t->cast || choice->dtype == RESHARD_DTYPE_NONE)
    return RESHARD_SUCCESS;
  bool numbers = t->packed == 0 && rs_cast_knows(t->dtype);
  c->to[i] = numbers ? choice->dtype : t->dtype;
  c->unconverted += !numbers;
  return RESHARD_SUCCESS;
}

/* Leaves a tensor of a pair as it is; a rule cannot say otherwise. */
static reshard_status keep_dtype(chooser *c, int64_t i, int64_t other) {
  const char *name = rs_model_name(c->target, i), *beside = rs_model_name(c->target, other);
  const rs_model_tensor *t = &c->target->tensors.at[i];
  char quoted[RS_QUOTE], also[RS_QUOTE];
  reshard_dtype said;
  if (c->to[i] == t->dtype)
    return RESHARD_SUCCESS;
  RS_TRY(rs_layouts_dtype(c->choice->dst, name, t->dtype, t->packed, true, &said));
  if (said != RESHARD_DTYPE_NONE) {
    rs_error(RESHARD_ERROR_INVALID, "tensor '%s' is %s beside '%s': neither is converted by itself to %s",
             rs_quote(quoted, sizeof quoted, name), reshard_dtype_string(t->dtype), rs_quote(also, sizeof also, beside),
             reshard_dtype_string(said));
    return rs_layouts_error(c->choice->dst, name, RESHARD_ERROR_INVALID);
  }
  c->to[i] = t->dtype;
  c->unconverted++;
  return RESHARD_SUCCESS;
}

/* The tensor that a name says to have the scales of; -1: none. */
static int64_t find_named(const rs_names *names, const char *scales) {
  return rs_ends(scales, SCALES) ? rs_names_find(names, scales, strlen(scales) - strlen(SCALES)) : -1;
}

/* NAME, and its scales. */
static reshard_status judge_pair(chooser *c, int64_t values, int64_t scales) {
  const rs_model_tensor *v = &c->target->tensors.at[values], *s = &c->target->tensors.at[scales];
  char a[RS_QUOTE], b[RS_QUOTE];
  rs_quote(a, sizeof a, rs_model_name(c->target, values));
  rs_quote(b, sizeof b, rs_model_name(c->target, scales));
  if (v->cast || s->cast)
    return rs_error(RESHARD_ERROR_INVALID,
                    "the map casts '%s' beside '%s': scales belong to the values they were made of", v->cast ? a : b,
                    v->cast ? b : a);
  bool asked = c->choice->dtype != RESHARD_DTYPE_NONE || c->to[values] != v->dtype || c->to[scales] != s->dtype;
  if (!asked || v->packed != 0 || !rs_cast_knows(v->dtype))
    return RESHARD_SUCCESS;
  if (reshard_dtype_size(v->dtype) > 1)
    return rs_error(RESHARD_ERROR_INVALID, "tensor '%s' is %s and has scales, '%s', which only FP8 has", a,
                    reshard_dtype_string(v->dtype), b);
  if (reshard_dtype_size(c->to[values]) > 1)
    return rs_error(RESHARD_ERROR_UNSUPPORTED,
                    "tensor '%s' is %s with scales in '%s': conversion to %s multiplies by them, which is not done yet",
                    a, reshard_dtype_string(v->dtype), b, reshard_dtype_string(c->to[values]));
  RS_TRY(keep_dtype(c, values, scales));
  return keep_dtype(c, scales, values);
}

static reshard_status judge_pairs(chooser *c) {
  rs_names names = {0};
  int64_t n = c->any ? c->target->tensors.n : 0, number;
  reshard_status status = rs_names_reserve(&names, n);
  for (int64_t i = 0; i < n && status == RESHARD_SUCCESS; i++)
    status = rs_names_put(&names, rs_model_name(c->target, i), strlen(rs_model_name(c->target, i)), &number);
  for (int64_t i = 0; i < n && status == RESHARD_SUCCESS; i++) {
    int64_t of = find_named(&names, rs_model_name(c->target, i));
    if (of >= 0)
      status = judge_pair(c, of, i);
  }
  rs_names_free(&names);
  return status;
}

/* Tensors of which a part is converted. */
static reshard_status count_converted(const chooser *c, int64_t *converted) {
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

static bool is_fp8(reshard_dtype dtype) { return dtype == RESHARD_F8_E4M3 || dtype == RESHARD_F8_E5M2; }

reshard_status rs_dtypes_partner(const rs_names *names, const struct reshard_model_s *model, int64_t tensor,
                                 int64_t *other) {
  const char *name = rs_model_name(model, tensor);
  int64_t values = find_named(names, name);
  *other = values >= 0 && is_fp8(model->tensors.at[values].dtype) ? values : -1;
  if (*other >= 0 || !is_fp8(model->tensors.at[tensor].dtype))
    return RESHARD_SUCCESS;
  rs_text scales = {.grows = true};
  rs_text_add(&scales, "%s" SCALES, name);
  if (scales.status == RESHARD_SUCCESS)
    *other = rs_names_find(names, scales.at, scales.length);
  reshard_status status = scales.status;
  free(scales.at);
  return status;
}

reshard_status rs_dtypes_choose(const rs_dtype_choice *choice, reshard_model target, int64_t *converted,
                                int64_t *unconverted) {
  chooser c = {.choice = choice, .target = target};
  RS_TRY(check_source(choice));
  RS_TRY(rs_alloc(&c.to, target->tensors.n, sizeof *c.to));
  reshard_status status = RESHARD_SUCCESS;
  for (int64_t i = 0; i < target->tensors.n && status == RESHARD_SUCCESS; i++)
    status = choose_dtype(&c, i);
  RS_THEN(status, judge_pairs(&c));
  for (int64_t i = 0; i < target->tensors.n && status == RESHARD_SUCCESS; i++)
    if (c.to[i] != target->tensors.at[i].dtype)
      status = rs_model_set_dtype(target, "target", i, c.to[i]);
  free(c.to);
  RS_THEN(status, count_converted(&c, converted));
  if (status == RESHARD_SUCCESS)
    *unconverted = c.unconverted;
  return status;
}
