/* Canonical layout strings: what spec.c reads back to an equal layout, and prints again to the same string. */
#include "layout/parts.h"

static void print_ranks(rs_text *text, const rs_ranks *ranks) {
  for (int64_t i = 0; i < ranks->nranges; i++) {
    const rs_rank_range *range = &ranks->ranges[i];
    rs_text_string(text, i > 0 ? "," : "");
    rs_text_number(text, range->first);
    if (range->count > 1) {
      rs_text_string(text, "-");
      rs_text_number(text, range->first + (range->count - 1) * range->step);
    }
  }
}

static void print_mesh_dim(rs_text *text, const struct reshard_layout_s *l, int m) {
  if (l->names != NULL)
    rs_text_string(text, l->names[m]);
  else
    rs_text_number(text, m);
}

static void print_mesh(rs_text *text, const struct reshard_layout_s *l) {
  for (int m = 0; m < l->mesh_ndim; m++) {
    rs_text_string(text, m == 0 ? "" : l->names != NULL ? "," : "x");
    if (l->names != NULL) {
      rs_text_string(text, l->names[m]);
      rs_text_string(text, "=");
    }
    rs_text_number(text, l->mesh_shape[m]);
  }
  rs_text_string(text, "@");
  print_ranks(text, &l->ranks);
  for (int m = 0; m < l->mesh_ndim; m++) {
    const reshard_placement *p = &l->placements[m];
    rs_text_string(text, m == 0 ? ";" : ",");
    rs_text_string(text, p->kind == RESHARD_PLACEMENT_REPLICATE ? "R" : "S");
    if (p->kind != RESHARD_PLACEMENT_REPLICATE)
      rs_text_number(text, p->dim);
    if (p->kind == RESHARD_PLACEMENT_STRIDED_SHARD) {
      rs_text_string(text, "*");
      rs_text_number(text, p->split_factor);
    }
    rs_parts_text(text, p);
  }
  bool plain = true;
  for (int m = 0; l->order != NULL && m < l->mesh_ndim; m++)
    plain &= l->order[m] == m;
  for (int m = 0; !plain && m < l->mesh_ndim; m++) {
    rs_text_string(text, m == 0 ? ";order=" : ",");
    print_mesh_dim(text, l, l->order[m]);
  }
}

static void print_boxes(rs_text *text, const rs_boxes *b) {
  rs_text_string(text, b->replicated ? "replicated;" : "");
  for (int64_t i = 0; i < b->n; i++) {
    const int64_t *lo = rs_boxes_lo(b, i), *hi = rs_boxes_hi(b, i);
    int64_t extent[RESHARD_MAX_DIMS];
    for (int d = 0; d < b->ndim; d++)
      extent[d] = hi[d] - lo[d];
    rs_text_string(text, i > 0 ? ";" : "");
    rs_text_number(text, b->ranks[i]);
    rs_text_string(text, ":[");
    rs_text_numbers(text, b->ndim, lo, ",");
    rs_text_string(text, "]+[");
    rs_text_numbers(text, b->ndim, extent, ",");
    rs_text_string(text, "]");
  }
}

void rs_layout_print(reshard_layout l, rs_text *text) {
  static const char *const name[RESHARD_LAYOUT_KIND_COUNT] = {"chunk(", "mesh(", "cyclic(", "rank(", "flat(", "boxes("};
  rs_text_string(text, name[l->kind]);
  switch (l->kind) {
  case RESHARD_LAYOUT_CHUNK:
    rs_text_number(text, l->chunk_dim);
    rs_text_string(text, ";");
    print_ranks(text, &l->ranks);
    break;
  case RESHARD_LAYOUT_MESH: print_mesh(text, l); break;
  case RESHARD_LAYOUT_CYCLIC:
    rs_text_numbers(text, l->ndim, l->mesh_shape, "x");
    rs_text_string(text, "@");
    print_ranks(text, &l->ranks);
    rs_text_string(text, ";");
    rs_text_numbers(text, l->ndim, l->block, "x");
    break;
  case RESHARD_LAYOUT_SINGLE:
  case RESHARD_LAYOUT_FLAT: print_ranks(text, &l->ranks); break;
  case RESHARD_LAYOUT_BOXES: print_boxes(text, l->boxes); break;
  case RESHARD_LAYOUT_KIND_COUNT: break;
  }
  rs_text_string(text, ")");
}

reshard_status reshard_layout_print(reshard_layout l, char *buffer, size_t size, size_t *needed) {
  if (l == NULL || (buffer == NULL && size > 0))
    return rs_error(RESHARD_ERROR_INVALID, "reshard_layout_print: NULL argument");
  rs_text text = {.at = buffer, .size = size};
  rs_layout_print(l, &text);
  return rs_text_finish(&text, needed);
}
