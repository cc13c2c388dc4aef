/* The holders of a tensor's elements, drawn: a rectangle over two of its dims, each region in its rank's colour.
 *
 * The begins and ends of all runs in either layout cut the two dims. Between neighbouring cuts the holders are the
 * same, so that a tensor of any size is a small table of cells. Of too many cuts the picture shows the first. */
#include "bench/cli/svg.h"
#include "bench/plan/svg.h"

#include <stdlib.h>

#define MOST_CUTS 30

typedef struct dim_cuts {
  int dim; /* -1: none */
  int64_t extent;
  int64_t shown; /* of the extent */
  int64_t n, cap;
  int64_t *at; /* ascending, at[0] = 0, at[n - 1] = shown */
} dim_cuts;

typedef struct cell_table {
  dim_cuts down, across;
  uint32_t *src, *dst; /* per cell a bit per rank */
} cell_table;

static int compare_positions(const void *a, const void *b) {
  int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
  return (x > y) - (x < y);
}

static void add_cut(dim_cuts *c, int64_t at) {
  if (c->n == c->cap)
    c->at = cli_realloc(c->at, c->cap = c->cap * 2 + 64, sizeof *c->at);
  c->at[c->n++] = at;
}

static void add_layout_cuts(dim_cuts *c, reshard_layout layout) {
  reshard_interval runs[256];
  for (int64_t r = 0; r < reshard_layout_world(layout); r++) {
    int64_t arrays = 0;
    CLI_TRY("", reshard_layout_array_count(layout, r, &arrays));
    for (int64_t a = 0; a < arrays; a++) {
      int64_t count = 0;
      CLI_TRY("", reshard_layout_array_intervals(layout, r, a, c->dim, 0, 256, runs, &count));
      for (int64_t i = 0; i < count && i < 256; i++) {
        add_cut(c, runs[i].begin);
        add_cut(c, runs[i].end);
      }
    }
  }
}

static dim_cuts make_cuts(const workload_tensor *t, int dim) {
  dim_cuts c = {.dim = dim, .extent = dim < 0 ? 1 : t->shape[dim]};
  add_cut(&c, 0);
  add_cut(&c, c.extent);
  if (dim >= 0) {
    add_layout_cuts(&c, t->src);
    add_layout_cuts(&c, t->dst);
  }
  qsort(c.at, (size_t)c.n, sizeof *c.at, compare_positions);
  int64_t n = 0;
  for (int64_t i = 0; i < c.n; i++)
    if (n == 0 || c.at[i] != c.at[n - 1])
      c.at[n++] = c.at[i];
  c.n = n > MOST_CUTS + 1 ? MOST_CUTS + 1 : n;
  c.shown = c.at[c.n - 1];
  return c;
}

/* The two dims with the most cuts, in their order. */
static void choose_dims(const workload_tensor *t, cell_table *table) {
  int first = -1, second = -1;
  int64_t cuts[RESHARD_MAX_DIMS];
  for (int d = 0; d < t->ndim; d++) {
    dim_cuts c = make_cuts(t, d);
    cuts[d] = c.n * 2 + (t->shape[d] > 1);
    free(c.at);
    if (first < 0 || cuts[d] > cuts[first])
      second = first, first = d;
    else if (second < 0 || cuts[d] > cuts[second])
      second = d;
  }
  int a = first, b = second;
  if (b >= 0 && b < a)
    a = second, b = first;
  table->down = make_cuts(t, b >= 0 ? a : -1);
  table->across = make_cuts(t, b >= 0 ? b : a);
}

static int add_holder(void *user, int64_t rank, int64_t array, int64_t elements) {
  (void)array, (void)elements;
  *(uint32_t *)user |= (uint32_t)1 << rank;
  return 0;
}

static uint32_t find_holders(reshard_layout layout, const cell_table *table, int64_t i, int64_t j) {
  reshard_box box = {{0}, {0}};
  uint32_t mask = 0;
  for (int d = 0; d < reshard_layout_ndim(layout); d++)
    box.extent[d] = 1;
  if (table->down.dim >= 0)
    box.offset[table->down.dim] = table->down.at[i];
  if (table->across.dim >= 0)
    box.offset[table->across.dim] = table->across.at[j];
  CLI_TRY("", reshard_layout_meet(layout, &box, add_holder, &mask));
  return mask;
}

static void fill_table(const workload_tensor *t, cell_table *table) {
  int64_t rows = table->down.n - 1, columns = table->across.n - 1;
  table->src = cli_alloc(rows * columns, sizeof *table->src);
  table->dst = cli_alloc(rows * columns, sizeof *table->dst);
  for (int64_t i = 0; i < rows; i++)
    for (int64_t j = 0; j < columns; j++) {
      table->src[i * columns + j] = find_holders(t->src, table, i, j);
      table->dst[i * columns + j] = find_holders(t->dst, table, i, j);
    }
}

typedef struct frame {
  double x, y, width, height;
} frame;

static double position_along(const dim_cuts *c, double begin, double length, int64_t i) {
  return begin + length * (double)c->at[i] / (double)c->shown;
}

/* One rectangle with the colours of its holders side by side, and their numbers where there is room. */
static void draw_region(rs_text *out, frame f, uint32_t mask, bool after) {
  int n = __builtin_popcount(mask), k = 0;
  if (n == 0)
    svg_rectangle(out, f.x, f.y, f.width, f.height,
                  (svg_paint){.fill = "#ffffff", .stroke = SVG_PALE, .stroke_width = 1});
  for (int r = 0; r < 32; r++) {
    if (!(mask >> r & 1))
      continue;
    char label[8];
    double w = f.width / n, x = f.x + w * k++;
    svg_rectangle(out, x, f.y, w, f.height, (svg_paint){.fill = svg_rank_colour(r)});
    snprintf(label, sizeof label, "%d", r);
    bool corner = after && w > 30 && f.height > 26; /* the rest is for the dots */
    if (w >= (r < 10 ? 10 : 17) && f.height >= 12)
      svg_words(out, corner ? x + 12 : x + 0.5 * w, corner ? f.y + 16 : f.y + 0.5 * f.height + 4, 11, SVG_MIDDLE,
                svg_ink_on(svg_rank_colour(r)), true, 0, label);
  }
  svg_rectangle(out, f.x, f.y, f.width, f.height,
                (svg_paint){.fill = "none", .stroke = "#ffffff", .stroke_width = n > 0 ? 1.5 : 0});
}

/* Neighbouring cells with the same holders are one rectangle. */
static void draw_regions(rs_text *out, const cell_table *t, bool after, frame f) {
  const uint32_t *mask = after ? t->dst : t->src;
  int64_t rows = t->down.n - 1, columns = t->across.n - 1;
  bool *done = cli_alloc(rows * columns, sizeof *done);
  for (int64_t i = 0; i < rows; i++)
    for (int64_t j = 0; j < columns; j++) {
      if (done[i * columns + j])
        continue;
      int64_t right = j + 1, bottom = i + 1;
      while (right < columns && !done[i * columns + right] && mask[i * columns + right] == mask[i * columns + j])
        right++;
      for (bool same = true; same && bottom < rows; bottom += same)
        for (int64_t k = j; k < right && same; k++)
          same = !done[bottom * columns + k] && mask[bottom * columns + k] == mask[i * columns + j];
      for (int64_t y = i; y < bottom; y++)
        for (int64_t x = j; x < right; x++)
          done[y * columns + x] = true;
      double x = position_along(&t->across, f.x, f.width, j), y = position_along(&t->down, f.y, f.height, i);
      draw_region(out,
                  (frame){x, y, position_along(&t->across, f.x, f.width, right) - x,
                          position_along(&t->down, f.y, f.height, bottom) - y},
                  mask[i * columns + j], after);
    }
  free(done);
}

/* A dot in the colour of the rank that a cell comes from, where it changes hands and has one holder on both sides. */
static void draw_origins(rs_text *out, const cell_table *t, frame f) {
  int64_t rows = t->down.n - 1, columns = t->across.n - 1;
  for (int64_t i = 0; i < rows; i++)
    for (int64_t j = 0; j < columns; j++) {
      uint32_t from = t->src[i * columns + j], to = t->dst[i * columns + j];
      double x = position_along(&t->across, f.x, f.width, j), w = position_along(&t->across, f.x, f.width, j + 1) - x;
      double y = position_along(&t->down, f.y, f.height, i), h = position_along(&t->down, f.y, f.height, i + 1) - y;
      if (__builtin_popcount(from) != 1 || (to & ~from) == 0 || w < 9 || h < 9)
        continue;
      double radius = (w < h ? w : h) / 7;
      radius = radius < 2.5 ? 2.5 : radius > 6 ? 6 : radius;
      svg_circle(out, x + w - radius - 2.5, y + h - radius - 2.5, radius,
                 (svg_paint){.fill = svg_rank_colour(__builtin_ctz(from)), .stroke = "#ffffff", .stroke_width = 1.2});
    }
}

static void draw_element_lines(rs_text *out, const cell_table *t, frame f) {
  if (t->down.shown > 32 || t->across.shown > 40)
    return;
  for (int64_t i = 1; i < t->down.shown; i++)
    svg_line(out, f.x, f.y + f.height * (double)i / (double)t->down.shown, f.x + f.width,
             f.y + f.height * (double)i / (double)t->down.shown, "#ffffff40", 0.6);
  for (int64_t j = 1; j < t->across.shown; j++)
    svg_line(out, f.x + f.width * (double)j / (double)t->across.shown, f.y,
             f.x + f.width * (double)j / (double)t->across.shown, f.y + f.height, "#ffffff40", 0.6);
}

static void axis_label(char text[120], const dim_cuts *c) {
  if (c->dim < 0)
    text[0] = '\0';
  else if (c->shown < c->extent)
    snprintf(text, 120, "dim %d: the first %lld of %lld", c->dim, (long long)c->shown, (long long)c->extent);
  else
    snprintf(text, 120, "dim %d: %lld", c->dim, (long long)c->extent);
}

static void draw_panel(rs_text *out, const cell_table *t, bool after, frame f, reshard_layout layout) {
  char down[120], across[120];
  size_t needed = 0;
  axis_label(down, &t->down);
  axis_label(across, &t->across);
  reshard_layout_print(layout, NULL, 0, &needed);
  char *text = cli_alloc((int64_t)needed + 1, 1);
  if (reshard_layout_print(layout, text, needed + 1, NULL) != RESHARD_SUCCESS)
    text[0] = '\0';
  svg_words(out, f.x, f.y - 24, 13, SVG_START, SVG_INK, true, 0, after ? "after" : "before");
  svg_words(out, f.x + (after ? 40 : 50), f.y - 24, 12, SVG_START, SVG_INK, false, 50, text);
  svg_words(out, f.x + 0.5 * f.width, f.y - 7, 10.5, SVG_MIDDLE, SVG_GREY, false, 0, across);
  svg_words_up(out, f.x - 7, f.y + 0.5 * f.height, 10.5, SVG_GREY, down);
  draw_regions(out, t, after, f);
  draw_element_lines(out, t, f);
  if (after)
    draw_origins(out, t, f);
  free(text);
}

double plan_svg_cells(rs_text *out, const workload_tensor *t, double most, double y) {
  cell_table table = {0};
  for (int d = 0; d < t->ndim; d++)
    if (t->shape[d] == 0) {
      svg_words(out, 48, y + 14, 12, SVG_START, SVG_GREY, false, 0, "the tensor has no elements");
      return y + 30;
    }
  choose_dims(t, &table);
  fill_table(t, &table);
  double ratio = (double)table.down.shown / (double)table.across.shown, width = 380, height = width * ratio;
  if (height > most) {
    height = most;
    width = height / ratio < 110 ? 110 : height / ratio;
  }
  if (height < 46)
    height = 46;
  if (table.down.dim < 0)
    height = 46;
  draw_panel(out, &table, false, (frame){48, y + 40, width, height}, t->src);
  draw_panel(out, &table, true, (frame){528, y + 40, width, height}, t->dst);
  y += 40 + height;
  if (t->ndim > 2) {
    svg_words(out, 48, y + 16, 10.5, SVG_START, SVG_GREY, false, 0, "the other dims are shown at index 0");
    y += 16;
  }
  free(table.down.at);
  free(table.across.at);
  free(table.src);
  free(table.dst);
  return y + 18;
}
