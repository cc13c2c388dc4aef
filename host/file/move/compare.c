/* Data that is read back, compared with what was written. */
#include "base/text.h"
#include "file/move/batch.h"

#include <string.h>

/* The file that has an index of an array. */
static const rs_file *file_of_index(const rs_store *store, reshard_layout layout, const rs_stored_array *array,
                                    const int64_t *index) {
  int32_t j = 0;
  for (; j < array->count - 1; j++) {
    reshard_box box;
    int64_t first[RESHARD_MAX_DIMS];
    bool inside = rs_array_box(layout, array->rank, array->index, j, &box, first) == RESHARD_SUCCESS;
    for (int d = 0; d < layout->ndim && inside; d++)
      inside = index[d] >= first[d] && index[d] < first[d] + box.extent[d];
    if (inside)
      break;
  }
  return &store->files.at[store->blocks.at[array->first + j].file];
}

reshard_status rs_tile_compare(rs_batch *b, int64_t tensor, const rs_tile_part *p, const rs_stored_array *array) {
  const rs_store *store = b->move->dst;
  RS_TRY(rs_vec_reserve(&b->compared, p->bytes));
  RS_TRY(rs_store_read(store, tensor, array, p->lo, p->extent, b->compared.at, &b->scratch));
  if (memcmp(p->data, b->compared.at, (size_t)p->bytes) == 0)
    return RESHARD_SUCCESS;
  int64_t at = 0, index[RESHARD_MAX_DIMS];
  while (p->data[at] == b->compared.at[at])
    at++;
  reshard_layout layout = store->tensors.at[tensor].layout;
  int ndim = layout->ndim;
  int64_t element = at / (int64_t)reshard_dtype_size(store->model->tensors.at[tensor].dtype);
  char quoted[RS_QUOTE], where[RS_WHERE], text[RS_SHAPE_TEXT];
  for (int d = ndim - 1; d >= 0; d--) {
    index[d] = p->lo[d] + element % p->extent[d];
    element /= p->extent[d];
  }
  const rs_file *file = file_of_index(store, layout, array, index);
  return rs_error(RESHARD_ERROR_CORRUPT,
                  "tensor '%s': %s: rank %lld: index %s is 0x%02x when read back, 0x%02x was written",
                  rs_quote(quoted, sizeof quoted, rs_model_name(store->model, tensor)),
                  rs_where(where, "file", file->path != NULL ? file->path : "memory"), (long long)p->rank,
                  rs_shape_text(text, ndim, index), (unsigned char)b->compared.at[at], (unsigned char)p->data[at]);
}
