#include "file/model/json_tensor.h"

#ifdef RS_HAVE_JANSSON

#include "base/text.h"

#include <string.h>

/* Types that safetensors knows and this library has not: elements of less than a byte, and 8-bit floats without a
 * negative zero. Source: the format's Dtype, version 0.8. */
static bool is_unknown_dtype(const char *dtype) {
  static const char *const names[] = {"F4", "F6_E2M3", "F6_E3M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++)
    if (strcmp(dtype, names[i]) == 0)
      return true;
  return false;
}

reshard_status rs_json_tensor(reshard_model model, const char *where, const char *name, json_t *object,
                              int64_t *bytes) {
  char quoted[RS_QUOTE], other[RS_QUOTE];
  rs_quote(quoted, sizeof quoted, name);
  json_t *dtype_text = json_object_get(object, "dtype"), *extents = json_object_get(object, "shape");
  if (*name == '\0')
    return rs_error(RESHARD_ERROR_INVALID, "%s: a tensor has the empty name", where);
  if (!json_is_string(dtype_text) || !json_is_array(extents))
    return rs_error(RESHARD_ERROR_INVALID, "%s: tensor '%s': \"%s\" is missing or no %s", where, quoted,
                    !json_is_string(dtype_text) ? "dtype" : "shape", !json_is_string(dtype_text) ? "string" : "list");
  reshard_dtype dtype;
  const char *text = json_string_value(dtype_text);
  if (reshard_dtype_parse(text, &dtype) != RESHARD_SUCCESS) {
    rs_quote(other, sizeof other, text);
    if (is_unknown_dtype(text))
      return rs_error(RESHARD_ERROR_UNSUPPORTED, "%s: tensor '%s': this library has no dtype '%s'", where, quoted,
                      other);
    return rs_error(RESHARD_ERROR_INVALID, "%s: tensor '%s': unknown dtype '%s'", where, quoted, other);
  }
  size_t ndim = json_array_size(extents);
  if (ndim > RESHARD_MAX_DIMS)
    return rs_error(RESHARD_ERROR_INVALID, "%s: tensor '%s': %zu dims, %d is the most", where, quoted, ndim,
                    RESHARD_MAX_DIMS);
  int64_t shape[RESHARD_MAX_DIMS];
  for (size_t d = 0; d < ndim; d++) {
    json_t *extent = json_array_get(extents, d);
    if (!json_is_integer(extent))
      return rs_error(RESHARD_ERROR_INVALID, "%s: tensor '%s': shape[%zu] is no integer", where, quoted, d);
    shape[d] = json_integer_value(extent);
  }
  int64_t before = model->bytes;
  RS_TRY(rs_model_add(model, where, name, strlen(name), dtype, (int)ndim, shape));
  if (bytes != NULL)
    *bytes = model->bytes - before;
  return RESHARD_SUCCESS;
}

#endif
