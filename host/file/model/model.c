/* A model is a list in two arrays: the tensors, and their names end to end, so that the 91,991 tensors of the largest
 * preset are a handful of allocations. Names move while the list grows, hence offsets; they are pointers only for who
 * reads the finished model. */
#include "file/model/model.h"

#include "base/text.h"
#include "file/ground/names.h"

#include <stdlib.h>
#include <string.h>

const rs_packed_type rs_packed_types[RS_PACKED_TYPES] = {
    {NULL, NULL, 1, 1},      {"F4", "float4_e2m1fn_x2", 1, 2},         {"F6_E2M3", NULL, 3, 4},
    {"F6_E3M2", NULL, 3, 4}, {"F8_E4M3FNUZ", "float8_e4m3fnuz", 1, 1}, {"F8_E5M2FNUZ", "float8_e5m2fnuz", 1, 1},
};

uint8_t rs_packed_find(const char *name) {
  uint8_t i = RS_PACKED_TYPES - 1;
  while (i > 0 && strcmp(name, rs_packed_types[i].name) != 0)
    i--;
  return i;
}

reshard_status rs_model_new(reshard_model *model) { return rs_alloc_zero(model, 1, sizeof **model); }

void reshard_model_free(reshard_model model) {
  if (model == NULL)
    return;
  free(model->names.at);
  free(model->tensors.at);
  free(model);
}

reshard_status rs_tensor_bytes(int ndim, const int64_t *shape, size_t width, int64_t *bytes) {
  char text[RS_SHAPE_TEXT];
  int64_t all = (int64_t)width;
  bool empty = false;
  for (int d = 0; d < ndim; d++) {
    if (shape[d] < 0)
      return rs_error(RESHARD_ERROR_INVALID, "extent %lld of dim %d is negative", (long long)shape[d], d);
    empty = empty || shape[d] == 0;
    if (!rs_mul(all, rs_max(shape[d], 1), &all))
      return rs_error(RESHARD_ERROR_INVALID, "shape %s of %zu-byte elements overflows 2^63 bytes",
                      rs_shape_text(text, ndim, shape), width);
  }
  *bytes = empty ? 0 : all;
  return RESHARD_SUCCESS;
}

/* *total = bytes of the model, of which `before` go, with a tensor. */
static reshard_status add_bytes(reshard_model model, const char *what, const char *name, reshard_dtype dtype, int ndim,
                                const int64_t *shape, int64_t before, int64_t *total) {
  char quoted[RS_QUOTE];
  int64_t bytes = 0;
  if (rs_tensor_bytes(ndim, shape, rs_stored_width(dtype), &bytes) != RESHARD_SUCCESS)
    return rs_error(RESHARD_ERROR_INVALID, "%s: tensor '%s': %s", what, rs_quote(quoted, sizeof quoted, name),
                    reshard_last_error());
  if (!rs_add(model->bytes - before, bytes, total))
    return rs_error(RESHARD_ERROR_INVALID, "%s: with tensor '%s' the model has more than 2^63 bytes", what,
                    rs_quote(quoted, sizeof quoted, name));
  return RESHARD_SUCCESS;
}

reshard_status rs_model_set_dtype(reshard_model model, const char *what, int64_t tensor, reshard_dtype dtype) {
  rs_model_tensor *t = &model->tensors.at[tensor];
  int64_t before = 0;
  RS_TRY(rs_tensor_bytes(t->ndim, t->shape, reshard_dtype_size(t->dtype), &before));
  RS_TRY(add_bytes(model, what, rs_model_name(model, tensor), dtype, t->ndim, t->shape, before, &model->bytes));
  t->dtype = dtype;
  return RESHARD_SUCCESS;
}

reshard_status rs_model_add(reshard_model model, const char *what, const char *name, size_t length, reshard_dtype dtype,
                            int ndim, const int64_t *shape) {
  int64_t total = 0;
  RS_TRY(add_bytes(model, what, name, dtype, ndim, shape, 0, &total));
  RS_TRY(rs_vec_reserve(&model->tensors, model->tensors.n + 1));
  RS_TRY(rs_vec_reserve(&model->names, model->names.n + (int64_t)length + 1));
  rs_model_tensor *tensor = &model->tensors.at[model->tensors.n++];
  *tensor = (rs_model_tensor){.name = model->names.n, .dtype = dtype, .ndim = ndim};
  for (int d = 0; d < ndim; d++)
    tensor->shape[d] = shape[d];
  memcpy(model->names.at + model->names.n, name, length);
  model->names.at[model->names.n + (int64_t)length] = '\0';
  model->names.n += (int64_t)length + 1;
  model->bytes = total;
  return RESHARD_SUCCESS;
}

reshard_status rs_model_check_dtype(const struct reshard_model_s *model, int64_t tensor) {
  const char *name = rs_model_name(model, tensor);
  if (model->tensors.at[tensor].dtype != RESHARD_DTYPE_NONE)
    return RESHARD_SUCCESS;
  return rs_error(RESHARD_ERROR_INVALID, "%s", name + strlen(name) + 1);
}

reshard_status rs_model_unknown(const char *where, const char *name, const char *dtype, char **both) {
  char quoted[RS_QUOTE], other[RS_QUOTE];
  rs_text made = {.grows = true};
  rs_text_bytes(&made, name, strlen(name) + 1);
  rs_text_add(&made, "%s: tensor '%s': unknown dtype '%s'", where, rs_quote(quoted, sizeof quoted, name),
              rs_quote(other, sizeof other, dtype));
  if (made.status == RESHARD_SUCCESS)
    *both = made.at;
  else
    free(made.at);
  return made.status;
}

reshard_status rs_model_check_names(reshard_model model, const char *what) {
  rs_names names = {0};
  reshard_status status = rs_names_reserve(&names, model->tensors.n);
  for (int64_t i = 0, number; i < model->tensors.n && status == RESHARD_SUCCESS; i++) {
    const char *name = rs_model_name(model, i);
    char quoted[RS_QUOTE];
    status = rs_names_put(&names, name, strlen(name), &number);
    if (status == RESHARD_SUCCESS && number < i)
      status = rs_error(RESHARD_ERROR_INVALID, "%s: tensors %lld and %lld are both named '%s'", what, (long long)number,
                        (long long)i, rs_quote(quoted, sizeof quoted, name));
  }
  rs_names_free(&names);
  return status;
}

int64_t reshard_model_count(reshard_model model) { return model != NULL ? model->tensors.n : 0; }

int64_t reshard_model_bytes(reshard_model model) { return model != NULL ? model->bytes : 0; }

reshard_status reshard_model_get(reshard_model model, int64_t i, reshard_model_tensor *tensor) {
  RS_TRY(RS_GIVEN("reshard_model_get", model, tensor));
  if (i < 0 || i >= model->tensors.n)
    return rs_error(RESHARD_ERROR_INVALID, "reshard_model_get: tensor %lld of a model with %lld", (long long)i,
                    (long long)model->tensors.n);
  const rs_model_tensor *from = &model->tensors.at[i];
  *tensor = (reshard_model_tensor){.name = model->names.at + from->name, .dtype = from->dtype, .ndim = from->ndim};
  memcpy(tensor->shape, from->shape, sizeof from->shape);
  return RESHARD_SUCCESS;
}
