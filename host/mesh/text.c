/* Meshes and their dims as text. The grammar, and the functions that read it, are those of layout strings. */
#include "mesh/mesh.h"

#include "layout/text/spec.h"

#include <stdlib.h>
#include <string.h>

static reshard_status build_mesh(const rs_scan *scan, rs_spec *spec, reshard_comm comm, int64_t world,
                                 reshard_mesh *mesh) {
  if (spec->extents.n > RESHARD_MAX_DIMS)
    return rs_scan_error(scan, scan->begin, RESHARD_ERROR_INVALID, "%lld mesh dims, 1 to %d are allowed",
                         (long long)spec->extents.n, RESHARD_MAX_DIMS);
  int64_t *ranks = NULL, nranks = 0, all = spec->given > 0 ? spec->given : spec->named;
  char **names = NULL;
  if (all == 0)
    return rs_scan_error(scan, scan->begin, RESHARD_ERROR_INVALID, "a mesh dim has no size, and no world is given");
  RS_TRY(rs_spec_sizes(scan, spec, all));
  reshard_status status = rs_spec_expand(scan, spec, all, &ranks, &nranks);
  RS_THEN(status, rs_spec_names(spec, &names));
  if (status == RESHARD_SUCCESS) {
    status = reshard_mesh_create(comm, world, (int)spec->extents.n, spec->extents.at, (const char *const *)names,
                                 nranks, ranks, mesh);
    if (status == RESHARD_ERROR_INVALID)
      status = rs_scan_whole(scan, status);
  }
  free(names);
  free(ranks);
  return status;
}

reshard_status reshard_mesh_parse(reshard_comm comm, int64_t world, const char *text, reshard_mesh *mesh) {
  RS_TRY(RS_GIVEN("reshard_mesh_parse", text, mesh));
  rs_scan scan = {.begin = text, .end = text + strlen(text), .at = text, .what = "mesh"};
  rs_spec spec = {.ndim = -1, .given = comm != NULL ? comm->size : rs_max(0, world)};
  reshard_status status = rs_spec_mesh(&scan, &spec);
  if (status == RESHARD_SUCCESS && rs_scan_peek(&scan) != '\0')
    status = rs_scan_error(&scan, scan.at, RESHARD_ERROR_INVALID, "expected the end of the mesh");
  RS_THEN(status, build_mesh(&scan, &spec, comm, world, mesh));
  rs_spec_free(&spec);
  return status;
}

/* Prints ranks as the longest ranges, up or down, found run by run. shown: stops where the buffer is full. */
static void print_ranks(rs_text *text, const struct reshard_mesh_s *m, bool shown) {
  int64_t known, run = rs_mesh_run(m, &known);
  for (int64_t i = 0, end; i < m->size && !(shown && text->length >= text->size); i = end) {
    int64_t first = rs_mesh_rank_at(m, rs_mesh_position(m, i)), step = run > 1 ? known : 0;
    int64_t last = first + step * (run - 1);
    for (end = i + run; end < m->size; end += run) {
      int64_t next = rs_mesh_rank_at(m, rs_mesh_position(m, end));
      if (step == 0)
        step = next == last - 1 ? -1 : 1;
      if (next != last + step)
        break;
      last += step * run;
    }
    rs_text_add(text, last == first ? "%s%lld" : "%s%lld-%lld", i > 0 ? "," : "@", (long long)first, (long long)last);
  }
}

static void print_mesh(rs_text *text, const struct reshard_mesh_s *m, bool shown) {
  for (int d = 0; d < m->ndim; d++)
    if (m->names[d] != NULL)
      rs_text_add(text, "%s%s=%lld", d > 0 ? "," : "", m->names[d], (long long)m->shape[d]);
    else
      rs_text_add(text, "%s%lld", d > 0 ? "x" : "", (long long)m->shape[d]);
  print_ranks(text, m, shown);
}

reshard_status reshard_mesh_print(reshard_mesh mesh, char *buffer, size_t size, size_t *needed) {
  if (mesh == NULL || (buffer == NULL && size > 0))
    return rs_error_null("reshard_mesh_print", mesh == NULL ? "mesh" : "text");
  rs_text text = {.at = buffer, .size = size};
  print_mesh(&text, mesh, false);
  return rs_text_finish(&text, needed);
}

const char *rs_mesh_text(char buffer[RS_MESH_TEXT], const struct reshard_mesh_s *mesh) {
  rs_text text = {.at = buffer, .size = RS_MESH_TEXT};
  print_mesh(&text, mesh, true);
  if (text.length >= RS_MESH_TEXT)
    memcpy(buffer + RS_MESH_TEXT - 4, "...", 4);
  return buffer;
}

/* --- Dims -------------------------------------------------------------------------------------------------------- */

static reshard_status error_unknown_dim(const rs_scan *scan, const struct reshard_mesh_s *m, const char *word,
                                        size_t length) {
  char list[256] = "";
  rs_text text = {.at = list, .size = sizeof list};
  for (int d = 0; d < m->ndim && m->names[d] != NULL; d++)
    rs_text_add(&text, "%s%.40s", d > 0 ? ", " : "", m->names[d]);
  if (m->names[0] == NULL)
    rs_text_add(&text, "none: its dims are 0..%d", m->ndim - 1);
  return rs_scan_error(scan, word, RESHARD_ERROR_INVALID, "the mesh has no dim named %.*s; names: %s",
                       (int)rs_min((int64_t)length, 64), word, list);
}

static reshard_status scan_dim(rs_scan *scan, const struct reshard_mesh_s *m, int *dim) {
  const char *word;
  size_t length = rs_scan_word(scan, &word);
  if (length == 0) {
    int64_t number;
    RS_TRY(rs_scan_signed(scan, "a mesh dim", &number));
    if (number < -m->ndim || number >= m->ndim)
      return rs_scan_error(scan, word, RESHARD_ERROR_INVALID, "mesh dim %lld of %d", (long long)number, m->ndim);
    *dim = (int)(number < 0 ? number + m->ndim : number);
    return RESHARD_SUCCESS;
  }
  for (int d = 0; d < m->ndim; d++)
    if (m->names[d] != NULL && strlen(m->names[d]) == length && memcmp(m->names[d], word, length) == 0) {
      *dim = d;
      return RESHARD_SUCCESS;
    }
  return error_unknown_dim(scan, m, word, length);
}

static reshard_status scan_dims(const struct reshard_mesh_s *m, const char *text, bool one, int *dims, int *n) {
  rs_scan scan = {.begin = text, .end = text + strlen(text), .at = text, .what = one ? "mesh dim" : "mesh dims"};
  *n = 0;
  do {
    int dim = 0;
    rs_scan_skip(&scan);
    const char *here = scan.at;
    RS_TRY(scan_dim(&scan, m, &dim));
    for (int i = 0; i < *n; i++)
      if (dims[i] == dim)
        return rs_scan_error(&scan, here, RESHARD_ERROR_INVALID, "mesh dim %d stands twice", dim);
    dims[(*n)++] = dim;
  } while (!one && rs_scan_take(&scan, ','));
  if (rs_scan_peek(&scan) != '\0')
    return rs_scan_error(&scan, scan.at, RESHARD_ERROR_INVALID,
                         one ? "expected one mesh dim" : "expected ',' or the end");
  return RESHARD_SUCCESS;
}

reshard_status rs_mesh_dims(const struct reshard_mesh_s *m, const char *text, int *dims, int *n) {
  if (text != NULL)
    return scan_dims(m, text, false, dims, n);
  for (*n = 0; *n < m->ndim; ++*n)
    dims[*n] = *n;
  return RESHARD_SUCCESS;
}

reshard_status rs_mesh_one_dim(const struct reshard_mesh_s *m, const char *text, int *dim) {
  int one[RESHARD_MAX_DIMS], n;
  if (text == NULL)
    return rs_error(RESHARD_ERROR_INVALID, "the mesh dim is NULL");
  RS_TRY(scan_dims(m, text, true, one, &n));
  *dim = one[0];
  return RESHARD_SUCCESS;
}

reshard_status reshard_mesh_dim(reshard_mesh mesh, const char *dim, int *number) {
  RS_TRY(RS_GIVEN("reshard_mesh_dim", mesh, number));
  int found = 0;
  RS_TRY(rs_mesh_one_dim(mesh, dim, &found));
  *number = found;
  return RESHARD_SUCCESS;
}
