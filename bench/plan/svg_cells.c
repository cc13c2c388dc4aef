/* The holders of a tensor's elements, drawn: a rectangle over two of its dims, each region in its rank's colour.
 *
 * The begins and ends of all runs in either layout cut the two dims. Between neighbouring cuts the holders are the
 * same, so that a tensor of any size is a small table of cells. Of too many cuts the picture shows the first. */
#include "bench/cli/svg.h"
#include "bench/plan/cell_table.h"
#include "bench/plan/svg.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MOST_SLICES 8 /* that are drawn of a tensor which more than two dims cut */

static double position_along(const dim_cuts *c, double begin, double length, int64_t i) {
  return begin + length * (double)c->at[i] / (double)c->shown;
}

/* Ranks of a mask: "0, 2", "0-7". */
static const char *holders_text(char text[160], uint64_t mask) {
  int64_t ranks[64], n = 0;
  for (int64_t r = 0; r < 64; r++)
    if (mask >> r & 1)
      ranks[n++] = r;
  return rs_ranges_text(text, 160, n, ranks);
}

/* One holder's region in its colour; one that several hold whole is grey, and lists them. */
static void fill_region(rs_text *out, cell_frame f, uint64_t mask) {
  char text[160];
  const char *fill = mask == 0                        ? "#ffffff"
                     : __builtin_popcountll(mask) > 1 ? "#dfe4ea"
                                                      : svg_rank_colour(__builtin_ctzll(mask));
  cli_add(out, "<g>");
  svg_rectangle(out, f.x, f.y, f.width, f.height,
                (svg_paint){.fill = fill, .stroke = mask == 0 ? SVG_PALE : "#ffffff", .stroke_width = 1.5});
  cli_add(out, "<title>%s%s</title></g>\n",
          mask == 0                        ? "no rank"
          : __builtin_popcountll(mask) > 1 ? "replicas: ranks "
                                           : "rank ",
          holders_text(text, mask));
}

#define CHIP 19.0 /* width of a number in its colour, with a gap; a row of them is as high */

static void keep_free(cell_table *t, cell_frame label) {
  if (t->nlabels < MOST_LABELS)
    t->label[t->nlabels++] = label;
}

/* The numbers of replicas, each in its colour, in as many rows as they need. False: there is no room for all. */
static bool draw_chips(rs_text *out, cell_table *t, cell_frame f, uint64_t mask, bool above) {
  int n = __builtin_popcountll(mask), each = (int)((f.width - 6) / CHIP), k = 0;
  if (each < 1)
    return false;
  each = each < n ? each : n;
  int lines = (n + each - 1) / each;
  if (lines * CHIP + 1 > f.height)
    return false;
  each = (n + lines - 1) / lines;
  double left = f.x + 0.5 * (f.width - each * CHIP) + 1.5;
  double top = above && f.height > lines * CHIP + 15 ? f.y + 5 : f.y + 0.5 * (f.height - lines * CHIP) + 1.5;
  for (int r = 0; r < 64; r++) {
    if (!(mask >> r & 1))
      continue;
    char text[16];
    double x = left + k % each * CHIP, y = top + k / each * CHIP;
    svg_rectangle(out, x, y, CHIP - 3, CHIP - 3, (svg_paint){.fill = svg_rank_colour(r)});
    keep_free(t, (cell_frame){x, y, CHIP - 3, CHIP - 3});
    snprintf(text, sizeof text, "%d", r);
    svg_words(out, x + 8, y + 12, 11, SVG_MIDDLE, svg_ink_on(svg_rank_colour(r)), true, 0, text);
    k++;
  }
  return true;
}

/* Whether the number of a single holder is in its region: dots take the room of a narrow one. */
static bool has_number(const cell_table *t, cell_frame f, bool after) {
  return !(after && t->origins && f.width <= 30);
}

/* The number of the holder; of replicas each in its colour, else a list of numbers, or how many they are. */
static void label_region(rs_text *out, cell_table *t, cell_frame f, uint64_t mask, bool after) {
  int n = __builtin_popcountll(mask);
  bool dots = after && t->origins;
  double size = f.height < 13 ? f.height - 1.5 : 11;
  char text[160];
  if (n == 0 || size < 6 || (n == 1 && !has_number(t, f, after)))
    return;
  if (n > 1 && draw_chips(out, t, f, mask, dots)) /* below them it is room for the dots */
    return;
  holders_text(text, mask);
  if (n > 1 && f.width < 0.62 * size * (double)strlen(text) + 3)
    snprintf(text, sizeof text, "%d ranks", n);
  bool corner = n == 1 && dots && f.height > 26; /* the rest is for the dots */
  double width = 0.62 * size * (double)strlen(text);
  if (f.width < width + 3)
    return;
  double x = corner ? f.x + 12 : f.x + 0.5 * f.width, y = corner ? f.y + 16 : f.y + 0.5 * f.height + 0.36 * size;
  svg_words(out, x, y, size, SVG_MIDDLE, n > 1 ? SVG_INK : svg_ink_on(svg_rank_colour(__builtin_ctzll(mask))), true, 0,
            text);
  keep_free(t, (cell_frame){x - 0.5 * width, y - 0.8 * size, width, size});
}

/* Neighbouring cells with the same holders are one rectangle, which is filled or labelled. */
static void draw_regions(rs_text *out, cell_table *t, bool after, cell_frame f, bool labels) {
  const uint64_t *mask = after ? t->dst : t->src;
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
      cell_frame region = {x, y, position_along(&t->across, f.x, f.width, right) - x,
                           position_along(&t->down, f.y, f.height, bottom) - y};
      if (labels)
        label_region(out, t, region, mask[i * columns + j], after);
      else
        fill_region(out, region, mask[i * columns + j]);
    }
  free(done);
}

/* The place of a cell, with a dot in it: it changes hands, has one holder before, and has room. */
static bool has_origin(const cell_table *t, cell_frame f, int64_t i, int64_t j, cell_frame *cell) {
  int64_t columns = t->across.n - 1;
  uint64_t from = t->src[i * columns + j], to = t->dst[i * columns + j];
  *cell = (cell_frame){position_along(&t->across, f.x, f.width, j), position_along(&t->down, f.y, f.height, i), 0, 0};
  cell->width = position_along(&t->across, f.x, f.width, j + 1) - cell->x;
  cell->height = position_along(&t->down, f.y, f.height, i + 1) - cell->y;
  return __builtin_popcountll(from) == 1 && (to & ~from) != 0 && cell->width >= 9 && cell->height >= 9;
}

/* Whether dots in the colours of ranks say where cells come from: no two of the ranks have one colour. */
static bool has_origins(const cell_table *t, cell_frame f) {
  int64_t rows = t->down.n - 1, columns = t->across.n - 1;
  uint64_t ranks = 0;
  bool any = false;
  cell_frame cell;
  for (int64_t i = 0; i < rows * columns; i++) {
    ranks |= t->src[i] | t->dst[i];
    any = any || has_origin(t, f, i / columns, i % columns, &cell);
  }
  for (int r = 0; r < 64 && any; r++)
    for (int other = r + 1; other < 64; other++)
      if ((ranks >> r & 1) && (ranks >> other & 1) && svg_rank_colour(r) == svg_rank_colour(other))
        return false;
  return any;
}

static bool covers_label(const cell_table *t, double x, double y, double radius) {
  for (int i = 0; i < t->nlabels; i++) {
    const cell_frame *l = &t->label[i];
    if (x + radius > l->x && x - radius < l->x + l->width && y + radius > l->y && y - radius < l->y + l->height)
      return true;
  }
  return false;
}

/* A dot in the colour of the rank that a cell comes from, in a corner of the cell that has no number. */
static void draw_origins(rs_text *out, const cell_table *t, cell_frame f) {
  for (int64_t i = 0; i < t->down.n - 1; i++)
    for (int64_t j = 0; j < t->across.n - 1; j++) {
      cell_frame c;
      if (!has_origin(t, f, i, j, &c))
        continue;
      double radius = (c.width < c.height ? c.width : c.height) / 7;
      radius = radius < 2.5 ? 2.5 : radius > 6 ? 6 : radius;
      double near = radius + 2.5;
      for (int corner = 0; corner < 4; corner++) { /* the lower right one first */
        double x = corner & 1 ? c.x + near : c.x + c.width - near, y = corner & 2 ? c.y + near : c.y + c.height - near;
        if (covers_label(t, x, y, radius + 0.6))
          continue;
        svg_circle(out, x, y, radius,
                   (svg_paint){.fill = svg_rank_colour(__builtin_ctzll(t->src[i * (t->across.n - 1) + j])),
                               .stroke = "#ffffff",
                               .stroke_width = 1.2});
        break;
      }
    }
}

static void draw_element_lines(rs_text *out, const cell_table *t, cell_frame f) {
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

/* Whether the columns [begin, end) have one holder each, the same in all rows. */
static bool is_striped(const cell_table *t, const uint64_t *mask, int64_t begin, int64_t end) {
  int64_t columns = t->across.n - 1;
  for (int64_t i = 0; i < t->down.n - 1; i++)
    for (int64_t j = begin; j < end; j++)
      if (mask[i * columns + j] != mask[begin] || __builtin_popcountll(mask[begin]) != 1)
        return false;
  return true;
}

/* The ranks of columns that have no numbers in them, below them; as many as have room. Returns the height. */
static double number_columns(rs_text *out, const cell_table *t, bool after, cell_frame f) {
  int64_t columns = t->across.n - 1, next;
  const uint64_t *mask = after ? t->dst : t->src;
  double end = -INFINITY;
  for (int64_t j = 0; j < columns; j = next) {
    for (next = j + 1; next < columns && mask[next] == mask[j];)
      next++;
    char text[160];
    double x = position_along(&t->across, f.x, f.width, j), width = position_along(&t->across, f.x, f.width, next) - x;
    double needed = fmax(13, 6.5 * (double)strlen(holders_text(text, mask[j]))); /* equal steps for 1 and 2 digits */
    bool inside = width >= needed + 3 && has_number(t, (cell_frame){x, f.y, width, f.height}, after);
    if (inside || !is_striped(t, mask, j, next) || x + 0.5 * (width - needed) < end + 8)
      continue;
    end = x + 0.5 * (width + needed);
    svg_words(out, x + 0.5 * width, f.y + f.height + 12, 10.5, SVG_MIDDLE, SVG_GREY, false, 0, text);
  }
  return end > 0 ? 14 : 0;
}

/* Returns the height of what is below the frame. */
static double draw_panel(rs_text *out, cell_table *t, bool after, cell_frame f, reshard_layout layout) {
  char down[120], across[120];
  size_t needed = 0;
  axis_label(down, &t->down);
  axis_label(across, &t->across);
  reshard_layout_print(layout, NULL, 0, &needed);
  char *text = cli_alloc((int64_t)needed + 1, 1);
  if (reshard_layout_print(layout, text, needed + 1, NULL) != RESHARD_SUCCESS)
    text[0] = '\0';
  svg_words(out, f.x, f.y - 24, 13, SVG_START, SVG_INK, true, 0, after ? "after" : "before");
  svg_words(out, f.x + (after ? 46 : 58), f.y - 24, 12, SVG_START, SVG_INK, false, 50, text);
  svg_words(out, f.x + 0.5 * f.width, f.y - 7, 10.5, SVG_MIDDLE, SVG_GREY, false, 0, across);
  svg_words_up(out, f.x - 7, f.y + 0.5 * f.height, 10.5, SVG_GREY, down);
  draw_regions(out, t, after, f, false);
  draw_element_lines(out, t, f);
  draw_regions(out, t, after, f, true);
  if (after && t->origins)
    draw_origins(out, t, f);
  free(text);
  return number_columns(out, t, after, f);
}

/* Whether a cell has several holders, before or after. */
static bool has_replicas(const cell_table *t) {
  for (int64_t i = 0; i < (t->down.n - 1) * (t->across.n - 1); i++)
    if (__builtin_popcountll(t->src[i]) > 1 || __builtin_popcountll(t->dst[i]) > 1)
      return true;
  return false;
}

/* --- Slices ------------------------------------------------------------------------------------------------------- */

/* The size of a panel: its shape is that of the two dims, as far as numbers fit. */
static cell_frame size_of(const cell_table *table, double most) {
  double ratio = (double)table->down.shown / (double)table->across.shown, width = 380, height = width * ratio;
  if (height > most) {
    height = most;
    width = height / ratio < 110 ? 110 : height / ratio;
  }
  double rows = 10 * (double)(table->down.n - 1);
  height = table->down.dim < 0 ? 46 : fmax(46, fmax(height, rows));
  return (cell_frame){0, 0, width, height};
}

/* A side whose dims are not those of the other: a panel a slice, one below the other. Returns where they end. */
static double draw_side(rs_text *out, const workload_tensor *t, bool after, double most, double y,
                        plan_svg_kinds *drawn) {
  int sides = after ? OF_DST : OF_SRC;
  double x = after ? 528 : 48;
  cell_table table = {0};
  char text[160];
  for (int64_t i = 0;; i++) {
    cell_table_choose_dims(t, sides, &table);
    if (!cell_table_choose_slice(t, sides, i, &table, text))
      break;
    if (i == MOST_SLICES) {
      svg_words(out, x, y + 16, 10.5, SVG_START, SVG_GREY, false, 0, "and more slices, which are not drawn");
      y += 16;
      break;
    }
    cell_table_fill(t, &table);
    drawn->replicas |= has_replicas(&table);
    cell_frame f = size_of(&table, most);
    f.x = x;
    f.y = y + 40;
    if (text[0] != '\0')
      svg_words(out, x, f.y + f.height + 14, 10.5, SVG_START, SVG_GREY, false, 60, text);
    y = f.y + f.height + draw_panel(out, &table, after, f, after ? t->dst : t->src) + (text[0] != '\0' ? 16 : 0);
    cell_table_free(&table);
  }
  cell_table_free(&table);
  return y;
}

double plan_svg_cells(rs_text *out, const workload_tensor *t, double most, double y, plan_svg_kinds *drawn) {
  cell_table table = {0};
  for (int d = 0; d < t->ndim; d++)
    if (t->shape[d] == 0) {
      svg_words(out, 48, y + 14, 12, SVG_START, SVG_GREY, false, 0, "the tensor has no elements");
      return y + 30;
    }
  if (cell_table_count_dims(t, OF_BOTH) > 2) {
    double left = draw_side(out, t, false, most, y, drawn), right = draw_side(out, t, true, most, y, drawn);
    return fmax(left, right) + 18;
  }
  cell_table_choose_dims(t, OF_BOTH, &table);
  cell_table_fill(t, &table);
  cell_frame before = size_of(&table, most), after;
  before.x = 48, before.y = y + 40;
  after = before;
  after.x = 528;
  table.origins = has_origins(&table, after);
  drawn->origins |= table.origins;
  drawn->replicas |= has_replicas(&table);
  double left = draw_panel(out, &table, false, before, t->src), right;
  table.nlabels = 0;
  right = draw_panel(out, &table, true, after, t->dst);
  y += 40 + before.height + fmax(left, right);
  if (t->ndim > 2) {
    svg_words(out, 48, y + 16, 10.5, SVG_START, SVG_GREY, false, 0, "the other dims are not cut");
    y += 16;
  }
  cell_table_free(&table);
  return y + 18;
}
