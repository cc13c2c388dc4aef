/* One string, or rules, for many tensors. */
#include "file/model/layouts.h"

#include "base/dtype.h"
#include "base/text.h"
#include "file/model/model.h"
#include "file/model/rules.h"

/* Puts the side before the last error. */
static reshard_status error_of_side(const rs_layouts *l, reshard_status status) {
  return l->name == NULL ? status : rs_error(status, "%s: %s", l->name, reshard_last_error());
}

reshard_status rs_layouts_get(rs_layouts *l, const char *tensor, int ndim, const int64_t *shape, int64_t world,
                              reshard_layout *layout) {
  const char *text = l->text;
  char quoted[RS_QUOTE], shown[RS_SHAPE_TEXT];
  int64_t line = 0, number;
  reshard_status status = l->rules != NULL ? reshard_rules_match(l->rules, tensor, &text, &line) : RESHARD_SUCCESS;
  if (status != RESHARD_SUCCESS)
    return error_of_side(l, status);
  status = rs_layout_cache_text(&l->cache, text, !l->alone || l->rules != NULL, ndim, shape, world, &number);
  if (status == RESHARD_SUCCESS) {
    *layout = reshard_layout_retain(l->cache.made.at[number]);
    return RESHARD_SUCCESS;
  }
  if (!l->alone)
    rs_error(status, "tensor '%s' of shape %s: %s", rs_quote(quoted, sizeof quoted, tensor),
             rs_shape_text(shown, ndim, shape), reshard_last_error());
  if (l->rules != NULL)
    rs_rules_error(l->rules, line, status);
  return error_of_side(l, status);
}

static bool has_elements(reshard_layout layout, int64_t rank) {
  reshard_array_info info;
  return rs_layout_arrays(layout, rank) > 0 && reshard_layout_array(layout, rank, 0, &info) == RESHARD_SUCCESS &&
         info.elements > 0;
}

/* One flat piece has the one element. */
reshard_status rs_layouts_whole(rs_layouts *l, const char *tensor, int ndim, const int64_t *shape, int64_t world,
                                reshard_layout *layout) {
  char text[256];
  reshard_layout scalar = NULL;
  RS_TRY(rs_layouts_get(l, tensor, 0, NULL, world, &scalar));
  bool flat = scalar->kind == RESHARD_LAYOUT_FLAT;
  int64_t rank = 0;
  reshard_status status = reshard_layout_print(scalar, text, sizeof text, NULL);
  while (flat && rank < world - 1 && !has_elements(scalar, rank))
    rank++;
  reshard_layout_release(scalar);
  RS_THEN(status, flat ? reshard_layout_create_single(ndim, shape, world, rank, layout)
                       : reshard_layout_parse(text, ndim, shape, world, layout));
  return status;
}

reshard_status rs_layouts_error(const rs_layouts *l, const char *tensor, reshard_status status) {
  rs_saved_error saved = {.status = RESHARD_SUCCESS};
  int64_t line = 0;
  rs_error_save(&saved, status);
  bool ruled = l->rules != NULL && reshard_rules_match(l->rules, tensor, NULL, &line) == RESHARD_SUCCESS;
  (void)rs_error_restore(&saved);
  return error_of_side(l, ruled ? rs_rules_error(l->rules, line, status) : status);
}

reshard_status rs_layouts_dtype(const rs_layouts *l, const char *tensor, reshard_dtype is, uint8_t packed,
                                bool converts, reshard_dtype *dtype, reshard_blocks *blocks) {
  char quoted[RS_QUOTE];
  *dtype = RESHARD_DTYPE_NONE;
  if (blocks != NULL)
    *blocks = (reshard_blocks){0};
  reshard_status status = l->rules != NULL ? reshard_rules_dtype(l->rules, tensor, dtype, blocks) : RESHARD_SUCCESS;
  if (status != RESHARD_SUCCESS)
    return error_of_side(l, status);
  if (*dtype == RESHARD_DTYPE_NONE || (*dtype == is && packed == 0) ||
      (converts && packed == 0 && rs_cast_supported(is, *dtype)))
    return RESHARD_SUCCESS;
  rs_error(RESHARD_ERROR_INVALID, converts ? "tensor '%s' is %s: no cast from it to %s" : "tensor '%s' is %s, not %s",
           rs_quote(quoted, sizeof quoted, tensor), rs_type_text(is, packed), reshard_dtype_string(*dtype));
  return rs_layouts_error(l, tensor, RESHARD_ERROR_INVALID);
}

reshard_status rs_layouts_check(const rs_layouts *l, reshard_model model, int64_t world) {
  reshard_status status = l->rules != NULL ? reshard_rules_check(l->rules, model, world) : RESHARD_SUCCESS;
  return status == RESHARD_SUCCESS ? status : error_of_side(l, status);
}

bool rs_layout_repeats_scalar(reshard_layout layout) { return layout->ndim == 0 && layout->replicas > 1; }
