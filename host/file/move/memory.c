/* A caller's memory as a store, and what a rank of it holds as regions. */
#include "file/move/move.h"

#include <stdlib.h>
#include <string.h>

reshard_status rs_memory_views(const char *what, reshard_layout layout, int64_t rank, reshard_dtype dtype,
                               void *const *buffers, rs_views *views) {
  int64_t arrays = rs_layout_arrays(layout, rank), width = (int64_t)reshard_dtype_size(dtype);
  RS_TRY(rs_vec_reserve(views, views->n + arrays));
  for (int64_t a = 0; a < arrays; a++) {
    reshard_array_info info;
    rs_view *view = &views->at[views->n++];
    *view = (rs_view){0};
    RS_TRY(reshard_layout_array(layout, rank, a, &info));
    if (info.elements == 0)
      continue;
    if (buffers == NULL || buffers[info.buffer] == NULL)
      return rs_error(RESHARD_ERROR_INVALID, "%s: buffer %lld is NULL", what, (long long)info.buffer);
    view->at = (char *)buffers[info.buffer] + info.offset * width;
    for (int d = 0; d < layout->ndim; d++)
      view->strides[d] = info.strides[d] * width;
  }
  return RESHARD_SUCCESS;
}

reshard_status rs_memory_add_tensor(rs_store *s, reshard_dtype dtype, reshard_layout layout) {
  if (s->model == NULL)
    RS_TRY(rs_model_new(&s->model));
  RS_TRY(rs_vec_reserve(&s->tensors, s->tensors.n + 1));
  RS_TRY(rs_model_add(s->model, "memory", "", 0, dtype, layout->ndim, layout->shape));
  s->tensors.at[s->tensors.n++] = (rs_stored_tensor){.layout = reshard_layout_retain(layout), .first = s->arrays.n};
  return RESHARD_SUCCESS;
}

reshard_status rs_memory_add_arrays(rs_store *s, int64_t rank, const rs_view *views) {
  rs_stored_tensor *t = &s->tensors.at[s->tensors.n - 1];
  int64_t arrays = rs_layout_arrays(t->layout, rank);
  RS_TRY(rs_vec_reserve(&s->arrays, s->arrays.n + arrays));
  RS_TRY(rs_vec_reserve(&s->views, s->arrays.n + arrays));
  for (int64_t a = 0; a < arrays; a++) {
    reshard_array_info info;
    RS_TRY(reshard_layout_array(t->layout, rank, a, &info));
    if (info.elements == 0)
      continue;
    s->views.at[s->arrays.n] = views[a];
    s->arrays.at[s->arrays.n++] = (rs_stored_array){.rank = rank, .index = a};
    t->count++;
  }
  s->views.n = s->arrays.n;
  return RESHARD_SUCCESS;
}

static reshard_status add_route(int64_t from, int64_t to, int ndim, const reshard_box *box, rs_copy_regions *regions) {
  RS_TRY(rs_vec_reserve(regions, regions->n + 1));
  rs_copy_region *r = &regions->at[regions->n++];
  *r = (rs_copy_region){.src = from, .dst = to};
  for (int d = 0; d < ndim; d++) {
    r->src_offset[d] = r->dst_offset[d] = box->offset[d];
    r->src_extent[d] = r->dst_extent[d] = box->extent[d];
    r->permutation[d] = d;
  }
  return RESHARD_SUCCESS;
}

reshard_status rs_whole_region(int64_t from, const rs_store *dst, int64_t to, rs_copy_regions *regions) {
  reshard_layout layout = dst->tensors.at[to].layout;
  reshard_box all = {{0}, {0}};
  memcpy(all.extent, layout->shape, (size_t)layout->ndim * sizeof *layout->shape);
  return add_route(from, to, layout->ndim, &all, regions);
}

/* A tensor of the shape that the region has of its source, on rank 0, in a file of zeros. */
static reshard_status add_zeros(rs_store *s, reshard_dtype dtype, const rs_copy_region *r, int ndst) {
  int ndim = 0;
  reshard_layout layout = NULL;
  for (int d = 0; d < ndst; d++)
    ndim += r->permutation[d] >= 0;
  RS_TRY(rs_vec_reserve(&s->tensors, s->tensors.n + 1));
  RS_TRY(rs_vec_reserve(&s->arrays, s->arrays.n + 1));
  RS_TRY(rs_vec_reserve(&s->blocks, s->blocks.n + 1));
  RS_TRY(reshard_layout_create_single(ndim, r->src_extent, 1, 0, &layout));
  RS_TRY_OR(rs_model_add(s->model, "zeros", "zeros", 5, dtype, ndim, r->src_extent), reshard_layout_release(layout));
  s->blocks.at[s->blocks.n] = (rs_stored_block){0, (int32_t)(s->files.n - 1)};
  s->arrays.at[s->arrays.n] = (rs_stored_array){.first = s->blocks.n++, .count = 1};
  s->tensors.at[s->tensors.n++] = (rs_stored_tensor){.layout = layout, .first = s->arrays.n++, .count = 1};
  return RESHARD_SUCCESS;
}

reshard_status rs_zero_regions(rs_store *src, reshard_model target, rs_copy_regions *regions) {
  bool begun = false;
  for (int64_t i = 0; i < regions->n; i++) {
    rs_copy_region *r = &regions->at[i];
    const rs_model_tensor *t = &target->tensors.at[r->dst];
    if (r->src >= 0)
      continue;
    if (!begun) {
      rs_file file = {.fd = -1, .zeros = true, .size = INT64_MAX};
      RS_TRY(rs_vec_reserve(&src->files, src->files.n + 1));
      RS_TRY(rs_alloc_copy(&file.path, "zeros", 6, 1));
      src->files.at[src->files.n++] = file;
      begun = true;
    }
    RS_TRY(add_zeros(src, r->blocks.rows > 0 ? RESHARD_F32 : t->dtype, r, t->ndim));
    r->src = src->tensors.n - 1;
  }
  return RESHARD_SUCCESS;
}

/* The runs of an array, dim after dim: those of dim d are runs[first[d]] up to runs[first[d + 1]]. bounds: of each dim
 * only one, from the first index to the last. */
typedef struct array_runs {
  RS_VEC(reshard_interval) runs;
  int64_t first[RESHARD_MAX_DIMS + 1];
} array_runs;

static reshard_status list_runs(reshard_layout layout, int64_t rank, int64_t array, bool bounds, array_runs *out) {
  out->runs.n = 0;
  for (int d = 0; d < layout->ndim; d++) {
    int64_t n;
    out->first[d] = out->runs.n;
    RS_TRY(reshard_layout_array_intervals(layout, rank, array, d, 0, 0, NULL, &n));
    RS_TRY(rs_vec_reserve(&out->runs, out->runs.n + n));
    reshard_interval *runs = out->runs.at + out->runs.n;
    RS_TRY(reshard_layout_array_intervals(layout, rank, array, d, 0, n, runs, &n));
    if (bounds) {
      runs[0].end = runs[n - 1].end;
      n = 1;
    }
    out->runs.n += n;
  }
  out->first[layout->ndim] = out->runs.n;
  return RESHARD_SUCCESS;
}

/* A region for each box of the product of the runs. */
static reshard_status add_boxes(int64_t from, int64_t to, int ndim, const array_runs *r, rs_copy_regions *regions) {
  int64_t at[RESHARD_MAX_DIMS];
  memcpy(at, r->first, sizeof at);
  for (;;) {
    reshard_box box;
    for (int d = 0; d < ndim; d++) {
      box.offset[d] = r->runs.at[at[d]].begin;
      box.extent[d] = r->runs.at[at[d]].end - box.offset[d];
    }
    RS_TRY(add_route(from, to, ndim, &box, regions));
    int d = ndim - 1;
    while (d >= 0 && ++at[d] == r->first[d + 1]) {
      at[d] = r->first[d];
      d--;
    }
    if (d < 0)
      return RESHARD_SUCCESS;
  }
}

reshard_status rs_rank_regions(const rs_store *src, int64_t from, const rs_store *dst, int64_t to, int64_t rank,
                               rs_copy_regions *regions) {
  reshard_layout layout = dst->tensors.at[to].layout, other = src->tensors.at[from].layout;
  bool same = !src->tensors.at[from].reversed && reshard_layout_equal(layout, other);
  int64_t arrays = rs_layout_arrays(layout, rank);
  array_runs runs = {0};
  reshard_status status = RESHARD_SUCCESS;
  for (int64_t a = 0; a < arrays && status == RESHARD_SUCCESS; a++) {
    reshard_array_info info;
    RS_TRY_GOTO(status, reshard_layout_array(layout, rank, a, &info), done);
    if (info.elements == 0)
      continue;
    RS_TRY_GOTO(status, list_runs(layout, rank, a, same, &runs), done);
    status = add_boxes(from, to, layout->ndim, &runs, regions);
  }
done:
  free(runs.runs.at);
  return status;
}
