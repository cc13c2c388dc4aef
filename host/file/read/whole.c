/* Checkpoints of whole tensors: each lies in one piece in one file, held by rank 0. */
#include "file/read/open.h"

#include "base/text.h"

#include <string.h>

/* Appends a tensor and, where it has elements, its place. */
reshard_status rs_open_add(rs_opening *opening, rs_layout_cache *layouts, const rs_whole_tensor *whole) {
  rs_store *s = &opening->checkpoint->store;
  const reshard_model_tensor *t = &whole->tensor;
  int64_t shape[RESHARD_MAX_DIMS], number, i = s->tensors.n;
  char where[RS_WHERE];
  for (int d = 0; d < t->ndim; d++)
    shape[d] = t->shape[whole->reversed ? t->ndim - 1 - d : d];
  RS_TRY(rs_model_add(s->model, rs_opening_where(opening, whole->file, where), t->name, strlen(t->name), t->dtype,
                      t->ndim, t->shape));
  RS_TRY(rs_layout_cache_single(layouts, t->ndim, shape, &number));
  RS_TRY(rs_vec_reserve(&s->tensors, i + 1));
  RS_TRY(rs_vec_reserve(&s->arrays, s->arrays.n + 1));
  RS_TRY(rs_vec_reserve(&s->blocks, s->blocks.n + 1));
  reshard_layout layout = layouts->made.at[number];
  bool stored = layout->elements > 0;
  s->tensors.at[s->tensors.n++] = (rs_stored_tensor){reshard_layout_retain(layout), .first = s->arrays.n,
                                                     .count = stored, .reversed = whole->reversed};
  if (stored) {
    s->arrays.at[s->arrays.n++] = (rs_stored_array){.first = s->blocks.n, .count = 1};
    s->blocks.at[s->blocks.n++] = (rs_stored_block){whole->offset, (int32_t)whole->file};
  }
  return RESHARD_SUCCESS;
}

/* The file in which tensor i is, counted over all headers. */
static int64_t file_of_tensor(const rs_opening *opening, int64_t i) {
  int64_t file = 0;
  for (; i >= opening->headers[file].model->tensors.n; file++)
    i -= opening->headers[file].model->tensors.n;
  return file;
}

static reshard_status add_file_tensors(rs_opening *opening, rs_layout_cache *layouts, int64_t file) {
  rs_names *names = &opening->checkpoint->names;
  const rs_safetensors *header = &opening->headers[file];
  char quoted[RS_QUOTE], first[RS_QUOTE], second[RS_QUOTE];
  for (int64_t i = 0; i < header->model->tensors.n; i++) {
    rs_whole_tensor whole = {.file = file, .offset = header->offsets.at[i]};
    int64_t number, before = names->all.n;
    RS_TRY(reshard_model_get(header->model, i, &whole.tensor));
    RS_TRY(rs_names_put(names, whole.tensor.name, strlen(whole.tensor.name), &number));
    if (number < before)
      return rs_error(RESHARD_ERROR_INVALID, "%s: files '%s' and '%s' both have a tensor '%s'", opening->where,
                      rs_quote(first, sizeof first, rs_opening_name(opening, file_of_tensor(opening, number))),
                      rs_quote(second, sizeof second, rs_opening_name(opening, file)),
                      rs_quote(quoted, sizeof quoted, whole.tensor.name));
    RS_TRY(rs_open_add(opening, layouts, &whole));
  }
  opening->checkpoint->info.stored_bytes += header->model->bytes;
  return RESHARD_SUCCESS;
}

reshard_status rs_open_whole(rs_opening *opening) {
  reshard_status status = RESHARD_SUCCESS;
  rs_layout_cache layouts = {0};
  for (int64_t f = 0; f < opening->checkpoint->store.files.n && status == RESHARD_SUCCESS; f++)
    status = add_file_tensors(opening, &layouts, f);
  rs_layout_cache_free(&layouts);
  opening->checkpoint->info.world = 1;
  return status;
}
