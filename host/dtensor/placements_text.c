/* Placements as text. */
#include "dtensor/dtensor.h"

#include "layout/parts.h"
#include "layout/text/spec.h"

#include <string.h>

/* Copies the mesh's dims, as a layout string has them before its `;`. */
static reshard_status copy_dims(reshard_mesh mesh, rs_spec *spec) {
  RS_TRY(rs_vec_reserve(&spec->extents, mesh->ndim));
  RS_TRY(rs_vec_reserve(&spec->names, mesh->ndim));
  for (int m = 0; m < mesh->ndim; m++) {
    spec->extents.at[spec->extents.n++] = mesh->shape[m];
    if (mesh->names[m] != NULL)
      spec->names.at[spec->names.n++] = (rs_spec_name){mesh->names[m], strlen(mesh->names[m])};
  }
  return RESHARD_SUCCESS;
}

reshard_status reshard_placements_parse(const char *text, reshard_mesh mesh, reshard_placement *placements,
                                        int *order) {
  RS_TRY(RS_GIVEN("reshard_placements_parse", text, mesh, placements, order));
  rs_scan scan = {.begin = text, .end = text + strlen(text), .at = text, .what = "placements"};
  rs_spec spec = {.ndim = -1};
  reshard_status status = copy_dims(mesh, &spec);
  RS_THEN(status, rs_spec_placements(&scan, &spec));
  if (status == RESHARD_SUCCESS && rs_scan_peek(&scan) != '\0')
    status = rs_scan_error(&scan, scan.at, RESHARD_ERROR_INVALID, "expected the end of the placements");
  if (status == RESHARD_SUCCESS && spec.parts.n > 0)
    status = rs_scan_error(&scan, scan.at, RESHARD_ERROR_UNSUPPORTED,
                           "parts ({...}, /n) need memory of their own: fill in `parts` of a reshard_placement");
  for (int m = 0; m < mesh->ndim && status == RESHARD_SUCCESS; m++) {
    placements[m] = spec.placements.at[m];
    order[m] = spec.order.n > 0 ? spec.order.at[m] : m;
  }
  rs_spec_free(&spec);
  return status;
}

const char *rs_placements_text(char buffer[RS_PLACEMENTS_TEXT], reshard_mesh mesh, const reshard_placement *placements,
                               const int *order) {
  rs_text text = {.at = buffer, .size = RS_PLACEMENTS_TEXT};
  bool ordered = false;
  for (int m = 0; m < mesh->ndim; m++) {
    const reshard_placement *p = &placements[m];
    rs_text_add(&text, m > 0 ? "," : "");
    if (p->kind == RESHARD_PLACEMENT_REPLICATE)
      rs_text_add(&text, "R");
    else
      rs_text_add(&text, "S%d", p->dim);
    if (p->kind == RESHARD_PLACEMENT_STRIDED_SHARD)
      rs_text_add(&text, "*%lld", (long long)p->split_factor);
    rs_parts_text(&text, p);
    ordered |= order != NULL && order[m] != m;
  }
  for (int i = 0; i < mesh->ndim && ordered; i++) {
    rs_text_add(&text, i == 0 ? ";order=" : ",");
    if (mesh->names[0] != NULL)
      rs_text_add(&text, "%s", mesh->names[order[i]]);
    else
      rs_text_add(&text, "%d", order[i]);
  }
  if (text.length >= RS_PLACEMENTS_TEXT)
    memcpy(buffer + RS_PLACEMENTS_TEXT - 4, "...", 4);
  return buffer;
}
