/* Calls of all ranks are compared, their tensors and leaves listed, and the writer made. */
#include "state/save_contents.h"

#include "base/text.h"
#include "file/map/dtypes.h"

#include <stdlib.h>

reshard_status rs_save_check_calls(int64_t n, void **all) {
  return rs_state_calls_check("saves", "to", n, (rs_state_call *const *)all);
}

/* exchanged_before: exchanged tensors before it. */
static reshard_status add_tensor(rs_save_contents *m, const rs_state_path *p, int64_t *exchanged_before) {
  reshard_writer_tensor tensor = {p->leaf->path, rs_state_leaf_dtype(p->leaf), NULL};
  RS_TRY(rs_vec_reserve(&m->tensors, m->tensors.n + 1));
  if (p->exchanged)
    tensor.layout = reshard_layout_retain(m->mine->exchanged.tensors[(*exchanged_before)++].made->local.layout);
  else if (rs_state_leaf_is_sharded(p->leaf)) /* on all ranks alike */
    tensor.layout =
        reshard_layout_retain(rs_state_leaves_find(&m->mine->base.leaves, tensor.name)->sharded->local.layout);
  else
    RS_TRY(reshard_layout_create_single(rs_state_leaf_ndim(p->leaf), rs_state_leaf_shape(p->leaf), m->n, p->rank,
                                        &tensor.layout));
  m->tensors.at[m->tensors.n++] = tensor;
  return RESHARD_SUCCESS;
}

/* Gives the tensors the dtypes that the files have. */
static reshard_status choose_dtypes(rs_save_contents *m) {
  const rs_layouts none = {0};
  rs_copy_regions regions = {0};
  const rs_dtype_choice choice = {
      .regions = &regions, .src = &none, .dst = &none, .dtype = m->mine->options.dtype, .blocks = &(reshard_blocks){0}};
  reshard_model model = NULL;
  reshard_convert_report report = {0};
  reshard_status status = rs_model_new(&model);
  for (int64_t i = 0; i < m->tensors.n && status == RESHARD_SUCCESS; i++) {
    const reshard_writer_tensor *t = &m->tensors.at[i];
    status = rs_model_add(model, "state", t->name, strlen(t->name), t->dtype, t->layout->ndim, t->layout->shape);
  }
  RS_THEN(status, rs_dtypes_choose(&choice, model, &report));
  m->unconverted = report.unconverted;
  for (int64_t i = 0; i < m->tensors.n && status == RESHARD_SUCCESS; i++) {
    m->converted += m->tensors.at[i].dtype != model->tensors.at[i].dtype;
    m->tensors.at[i].dtype = model->tensors.at[i].dtype;
  }
  reshard_model_free(model);
  return status;
}

static reshard_status list_contents(rs_save_contents *m) {
  int64_t exchanged_before = 0;
  for (int64_t i = 0; i < m->paths.all.n; i++) {
    const rs_state_path *p = &m->paths.all.at[i];
    if (rs_state_leaf_is_tensor(p->leaf)) {
      RS_TRY(add_tensor(m, p, &exchanged_before));
      continue;
    }
    rs_state_json_add(&m->leaves, p->leaf);
    RS_TRY(m->leaves.text.status);
  }
  return m->mine->options.dtype != RESHARD_DTYPE_NONE ? choose_dtypes(m) : RESHARD_SUCCESS;
}

reshard_status rs_save_create_writer(rs_save_contents *m, rs_shared_writer *s) {
  const rs_save_call *c = m->mine;
  const reshard_writer_options options = {
      .size = RESHARD_WRITER_OPTIONS_INIT, .force = c->options.force, .dedup = 1, .no_digests = c->options.no_digests};
  rs_writer_report written;
  RS_TRY(reshard_writer_create(c->base.directory, m->tensors.n, m->tensors.at, &options, &s->writer));
  if (m->leaves.text.length > 0) {
    rs_leaves_json_end(&m->leaves, !c->options.no_digests);
    RS_TRY(rs_writer_attach(s->writer, RS_STATE_JSON, &m->leaves.text));
  }
  rs_writer_get_report(s->writer, &written);
  s->report.tensors = m->tensors.n;
  s->report.files = written.files;
  s->report.bytes = written.bytes;
  s->report.converted = m->converted;
  s->report.unconverted = m->unconverted;
  s->report.reserve_seconds = written.reserve_seconds;
  return RESHARD_SUCCESS;
}

static bool is_directory(const char *path) { return !rs_ends(path, ".safetensors") && !rs_ends(path, ".npy"); }

reshard_status rs_save_compare_calls(rs_save_contents *m) {
  rs_save_call *const *c = m->calls;
  char where[RS_WHERE];
  RS_TRY(rs_save_check_calls(m->n, (void **)m->calls));
  for (int64_t r = 1; r < m->n; r++) {
    if (!c[0]->options.force != !c[r]->options.force)
      return rs_error(RESHARD_ERROR_MISMATCH, "rank 0 saves with force %d, rank %lld with %d", c[0]->options.force,
                      (long long)r, c[r]->options.force);
    if (!c[0]->options.no_digests != !c[r]->options.no_digests)
      return rs_error(RESHARD_ERROR_MISMATCH, "rank 0 saves with no_digests %d, rank %lld with %d",
                      c[0]->options.no_digests, (long long)r, c[r]->options.no_digests);
    if (c[0]->options.dtype != c[r]->options.dtype)
      return rs_error(RESHARD_ERROR_MISMATCH, "rank 0 saves with dtype %s, rank %lld with %s",
                      reshard_dtype_string(c[0]->options.dtype), (long long)r,
                      reshard_dtype_string(c[r]->options.dtype));
  }
  RS_TRY(rs_state_paths_compare(m->n, (rs_state_call *const *)m->calls, &m->paths));
  if (!is_directory(c[0]->base.directory))
    return rs_error(RESHARD_ERROR_INVALID, "%s: a state dict is saved to a directory, this is the name of a file",
                    rs_where(where, "output", c[0]->base.directory));
  if (m->paths.exchanged == m->mine->exchanged.n)
    return list_contents(m);
  return m->mine->exchanged.n == 0 ? rs_exchanged_leaves_list(&m->paths, &m->exchanged)
                                   : rs_error(RESHARD_ERROR_INTERNAL, "%lld tensors were exchanged, and not %lld",
                                              (long long)m->mine->exchanged.n, (long long)m->paths.exchanged);
}

void rs_save_contents_free(rs_save_contents *m) {
  for (int64_t i = 0; i < m->tensors.n; i++)
    reshard_layout_release(m->tensors.at[i].layout);
  free(m->tensors.at);
  free(m->leaves.text.at);
  rs_state_paths_free(&m->paths);
  rs_exchanged_leaves_free(&m->exchanged);
}
