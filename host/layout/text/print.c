/* Canonical layout strings: what parse.c reads back to an equal layout, and prints again to the same string. */
#include "layout/layout.h"

#include <string.h>

/* rs_text_add formats; a million boxes want less ceremony. */
static void add_text(rs_text *text, const char *from, size_t n) {
  for (size_t i = 0; i < n; i++, text->length++)
    if (text->length + 1 < text->size)
      text->at[text->length] = from[i];
}

static void add_string(rs_text *text, const char *from) { add_text(text, from, strlen(from)); }

static void add_number(rs_text *text, int64_t n) {
  char digits[20];
  size_t at = sizeof digits;
  do
    digits[--at] = (char)('0' + n % 10);
  while ((n /= 10) > 0);
  add_text(text, digits + at, sizeof digits - at);
}

static void print_ranks(rs_text *text, const rs_ranks *ranks) {
  for (int64_t i = 0; i < ranks->nranges; i++) {
    const rs_rank_range *range = &ranks->ranges[i];
    add_string(text, i > 0 ? "," : "");
    add_number(text, range->first);
    if (range->count > 1) {
      add_string(text, "-");
      add_number(text, range->first + (range->count - 1) * range->step);
    }
  }
}

static void print_numbers(rs_text *text, int64_t n, const int64_t *numbers, const char *between) {
  for (int64_t i = 0; i < n; i++) {
    add_string(text, i > 0 ? between : "");
    add_number(text, numbers[i]);
  }
}

static void print_mesh_dim(rs_text *text, const struct reshard_layout_s *l, int m) {
  if (l->names != NULL)
    add_string(text, l->names[m]);
  else
    add_number(text, m);
}

static void print_mesh(rs_text *text, const struct reshard_layout_s *l) {
  for (int m = 0; m < l->mesh_ndim; m++) {
    add_string(text, m == 0 ? "" : l->names != NULL ? "," : "x");
    if (l->names != NULL) {
      add_string(text, l->names[m]);
      add_string(text, "=");
    }
    add_number(text, l->mesh_shape[m]);
  }
  add_string(text, "@");
  print_ranks(text, &l->ranks);
  for (int m = 0; m < l->mesh_ndim; m++) {
    const reshard_placement *p = &l->placements[m];
    add_string(text, m == 0 ? ";" : ",");
    add_string(text, p->kind == RESHARD_PLACEMENT_REPLICATE ? "R" : "S");
    if (p->kind != RESHARD_PLACEMENT_REPLICATE)
      add_number(text, p->dim);
    if (p->kind == RESHARD_PLACEMENT_STRIDED_SHARD) {
      add_string(text, "*");
      add_number(text, p->split_factor);
    }
  }
  bool plain = true;
  for (int m = 0; l->order != NULL && m < l->mesh_ndim; m++)
    plain &= l->order[m] == m;
  for (int m = 0; !plain && m < l->mesh_ndim; m++) {
    add_string(text, m == 0 ? ";order=" : ",");
    print_mesh_dim(text, l, l->order[m]);
  }
}

static void print_boxes(rs_text *text, const rs_boxes *b) {
  add_string(text, b->replicated ? "replicated;" : "");
  for (int64_t i = 0; i < b->n; i++) {
    const int64_t *lo = rs_boxes_lo(b, i), *hi = rs_boxes_hi(b, i);
    int64_t extent[RESHARD_MAX_DIMS];
    for (int d = 0; d < b->ndim; d++)
      extent[d] = hi[d] - lo[d];
    add_string(text, i > 0 ? ";" : "");
    add_number(text, b->ranks[i]);
    add_string(text, ":[");
    print_numbers(text, b->ndim, lo, ",");
    add_string(text, "]+[");
    print_numbers(text, b->ndim, extent, ",");
    add_string(text, "]");
  }
}

reshard_status reshard_layout_print(reshard_layout l, char *buffer, size_t size, size_t *needed) {
  if (l == NULL || (buffer == NULL && size > 0))
    return rs_error(RESHARD_ERROR_INVALID, "reshard_layout_print: NULL argument");
  static const char *const name[RESHARD_LAYOUT_KIND_COUNT] = {"chunk(", "mesh(", "cyclic(", "rank(", "flat(", "boxes("};
  rs_text text = {buffer, size, 0};
  add_string(&text, name[l->kind]);
  switch (l->kind) {
  case RESHARD_LAYOUT_CHUNK:
    add_number(&text, l->chunk_dim);
    add_string(&text, ";");
    print_ranks(&text, &l->ranks);
    break;
  case RESHARD_LAYOUT_MESH: print_mesh(&text, l); break;
  case RESHARD_LAYOUT_CYCLIC:
    print_numbers(&text, l->ndim, l->mesh_shape, "x");
    add_string(&text, "@");
    print_ranks(&text, &l->ranks);
    add_string(&text, ";");
    print_numbers(&text, l->ndim, l->block, "x");
    break;
  case RESHARD_LAYOUT_SINGLE:
  case RESHARD_LAYOUT_FLAT: print_ranks(&text, &l->ranks); break;
  case RESHARD_LAYOUT_BOXES: print_boxes(&text, l->boxes); break;
  case RESHARD_LAYOUT_KIND_COUNT: break;
  }
  add_string(&text, ")");
  if (size > 0)
    buffer[text.length < size ? text.length : size - 1] = '\0';
  return rs_text_finish(&text, needed);
}
