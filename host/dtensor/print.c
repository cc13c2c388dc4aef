/* A DTensor drawn as text.
 *
 * One or two dims are a grid. A dim falls into bands: runs of indices of one part. The field of two bands names the
 * ranks that have their parts. More dims, many ranks and many bands are a list of the first ranks. */
#include "dtensor/group.h"

enum { MOST_RANKS = 64, MOST_BANDS = 64, MOST_INTERVALS = 8, FIELD = 512 };

typedef struct band {
  int64_t begin, end, part;
} band;

typedef struct drawn_grid {
  const struct reshard_layout_s *layout;
  reshard_comm comm; /* whose ranks are drawn by their global numbers; NULL: of a dry mesh */
  int64_t n[2];      /* bands of dim 0 and 1; a tensor of one dim has it as its columns */
  band bands[2][MOST_BANDS];
  rs_holder holders[MOST_RANKS];
} drawn_grid;

/* -1: too many. */
static int64_t find_bands(const rs_dim *dim, band *bands) {
  int64_t n = 0;
  for (int64_t i = 0, part, local, run; i < dim->n; i += run) {
    rs_dim_locate(dim, i, &part, &local, &run);
    if (n > 0 && bands[n - 1].part == part) {
      bands[n - 1].end = i + run;
      continue;
    }
    if (n == MOST_BANDS)
      return -1;
    bands[n++] = (band){i, i + run, part};
  }
  return n;
}

static bool make_grid(const struct reshard_layout_s *l, reshard_comm comm, drawn_grid *g) {
  if ((l->ndim != 1 && l->ndim != 2) || l->ranks.n > MOST_RANKS)
    return false;
  *g = (drawn_grid){.layout = l, .comm = comm, .n = {1, 1}, .bands = {{{0, 0, 0}}}};
  for (int d = 0; d < l->ndim; d++) {
    int side = l->ndim == 1 ? 1 : d;
    g->n[side] = find_bands(&l->dim[d], g->bands[side]);
    if (g->n[side] < 0)
      return false;
  }
  return true;
}

static int64_t global_rank(reshard_comm comm, int64_t rank) { return comm != NULL ? rs_comm_global(comm, rank) : rank; }

/* 0-3,7 */
static void add_ranks(rs_text *text, reshard_comm comm, const rs_holder *holders, int64_t n) {
  for (int64_t i = 0, end, first, last; i < n; i = end) {
    first = last = global_rank(comm, holders[i].rank);
    for (end = i + 1; end < n && global_rank(comm, holders[end].rank) == last + 1; end++)
      last++;
    rs_text_add(text, end - i > 1 ? "%s%lld-%lld" : "%s%lld", i > 0 ? "," : "", (long long)first, (long long)last);
  }
}

static const char *band_text(char field[FIELD], const band *b) {
  rs_text text = {.at = field, .size = FIELD};
  rs_text_add(&text, "[%lld,%lld)", (long long)b->begin, (long long)b->end);
  return field;
}

static const char *field_text(char field[FIELD], drawn_grid *g, int64_t row, int64_t column) {
  const struct reshard_layout_s *l = g->layout;
  int64_t cell = g->bands[1][column].part;
  if (l->ndim == 2)
    cell += g->bands[0][row].part * l->dim[1].parts;
  rs_text text = {.at = field, .size = FIELD};
  add_ranks(&text, g->comm, rs_layout_holders(l, cell, g->holders), rs_layout_holder_count(l, cell));
  return field;
}

static int text_width(const char *text) {
  int n = 0;
  while (text[n] != '\0')
    n++;
  return n;
}

/* Widths of the fields of a column and of its head; column -1: of the heads of the rows. */
static int column_width(drawn_grid *g, int64_t column) {
  char field[FIELD];
  int width = column >= 0 ? text_width(band_text(field, &g->bands[1][column])) : 0;
  for (int64_t row = 0; row < g->n[0]; row++) {
    const char *text = column >= 0            ? field_text(field, g, row, column)
                       : g->layout->ndim == 2 ? band_text(field, &g->bands[0][row])
                                              : "";
    width = (int)rs_max(width, text_width(text));
  }
  return width;
}

static void draw_grid(rs_text *text, drawn_grid *g) {
  char field[FIELD];
  int first = column_width(g, -1), widths[MOST_BANDS];
  for (int64_t c = 0; c < g->n[1]; c++)
    widths[c] = column_width(g, c);
  for (int64_t row = -1; row < g->n[0]; row++) {
    rs_text_add(text, "%*s", first, row >= 0 && g->layout->ndim == 2 ? band_text(field, &g->bands[0][row]) : "");
    for (int64_t c = 0; c < g->n[1]; c++) {
      const char *at = row < 0 ? band_text(field, &g->bands[1][c]) : field_text(field, g, row, c);
      rs_text_add(text, "%s%-*s", first > 0 || c > 0 ? "  " : "", c + 1 < g->n[1] ? widths[c] : 0, at);
    }
    rs_text_add(text, "\n");
  }
}

/* Ranks of the mesh that have no elements, ascending. */
static void add_idle(rs_text *text, reshard_comm comm, const struct reshard_layout_s *l) {
  rs_holder idle[MOST_RANKS];
  int64_t n = 0;
  for (int64_t r = 0; r < l->world && n < MOST_RANKS; r++) {
    int64_t part[RESHARD_MAX_DIMS], elements = 1;
    if (rs_ranks_find(&l->ranks, r) < 0)
      continue;
    rs_layout_cell_shape(l, rs_layout_cell(l, r, 0), part);
    for (int d = 0; d < l->ndim; d++)
      elements *= part[d];
    if (elements == 0)
      idle[n++].rank = r;
  }
  if (n == 0)
    return;
  rs_text_add(text, "no elements: ");
  add_ranks(text, comm, idle, n);
  rs_text_add(text, "\n");
}

/* [0,2)+[4,6)x[0,7) */
static reshard_status add_product(rs_text *text, reshard_comm comm, reshard_layout l, int64_t rank) {
  reshard_interval intervals[MOST_INTERVALS];
  rs_text_add(text, "rank %lld: %s", (long long)global_rank(comm, rank), l->ndim == 0 ? "[]" : "");
  for (int d = 0; d < l->ndim; d++) {
    int64_t n;
    RS_TRY(reshard_layout_array_intervals(l, rank, 0, d, 0, MOST_INTERVALS, intervals, &n));
    rs_text_add(text, "%s%s", d > 0 ? "x" : "", n == 0 ? "[)" : "");
    for (int64_t i = 0; i < n && i < MOST_INTERVALS; i++)
      rs_text_add(text, "%s[%lld,%lld)", i > 0 ? "+" : "", (long long)intervals[i].begin, (long long)intervals[i].end);
    if (n > MOST_INTERVALS)
      rs_text_add(text, "+...");
  }
  rs_text_add(text, "\n");
  return RESHARD_SUCCESS;
}

static reshard_status draw_list(rs_text *text, reshard_comm comm, reshard_mesh mesh, reshard_layout l) {
  for (int64_t i = 0; i < mesh->size && i < MOST_RANKS; i++)
    RS_TRY(add_product(text, comm, l, rs_mesh_rank_at(mesh, rs_mesh_position(mesh, i))));
  if (mesh->size > MOST_RANKS)
    rs_text_add(text, "and %lld more ranks\n", (long long)(mesh->size - MOST_RANKS));
  return RESHARD_SUCCESS;
}

reshard_status reshard_dtensor_print(reshard_dtensor tensor, char *buffer, size_t size, size_t *needed) {
  if (tensor == NULL || (buffer == NULL && size > 0))
    return rs_error(RESHARD_ERROR_INVALID, "reshard_dtensor_print: NULL argument");
  const reshard_placing placing = {tensor->mesh, tensor->local.layout->placements, tensor->order};
  reshard_layout l = tensor->local.layout;
  const reshard_comm comm = tensor->mesh->root->comm;
  const bool parted = comm != NULL && comm->global_ranks != NULL;
  char mesh[RS_MESH_TEXT], placements[RS_PLACEMENTS_TEXT], shape[RS_SHAPE_TEXT], ranks[RS_MESH_TEXT];
  rs_text text = {.at = buffer, .size = size};
  drawn_grid g;
  RS_TRY(rs_placing_layout("reshard_dtensor_print", tensor->given, &placing, l->ndim, l->shape, &l)); /* mesh's ranks */
  rs_text_add(&text, "%s %s over %s%s%s, %s\n", reshard_dtype_string(tensor->properties.dtype),
              rs_shape_text(shape, l->ndim, l->shape), rs_mesh_text(mesh, tensor->mesh),
              parted ? " of global ranks " : "",
              parted ? rs_list_text(ranks, sizeof ranks, comm->size, comm->global_ranks) : "",
              rs_placements_text(placements, tensor->mesh, l->placements, tensor->order));
  reshard_status status = RESHARD_SUCCESS;
  if (make_grid(l, comm, &g)) {
    if (l->elements > 0)
      draw_grid(&text, &g);
    add_idle(&text, comm, l);
  } else {
    status = draw_list(&text, comm, tensor->mesh, l);
  }
  reshard_layout_release(l);
  RS_TRY(status);
  return rs_text_finish(&text, needed);
}
