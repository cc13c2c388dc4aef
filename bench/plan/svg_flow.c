/* The bytes between ranks, drawn: bands and a table in small worlds, a heat map in large ones. */
#include "bench/cli/svg.h"
#include "bench/plan/svg.h"

#include <math.h>
#include <stdlib.h>

/* The unit of all numbers of a table: one in which the largest has few digits. */
typedef struct table_unit {
  const char *name;
  double bytes;
} table_unit;

static table_unit choose_unit(double most) {
  static const char *const names[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  table_unit unit = {names[0], 1};
  for (int u = 1; u < 6 && most / unit.bytes >= 999.5; u++)
    unit = (table_unit){names[u], unit.bytes * 1024};
  return unit;
}

/* "1.2", "0.03": few characters, for the cells of the table. */
static const char *print_brief(char buffer[16], const table_unit *unit, double bytes) {
  double value = bytes / unit->bytes;
  snprintf(buffer, 16, unit->bytes == 1 || value >= 9.95 ? "%.0f" : value >= 0.095 ? "%.1f" : "%.0e", value);
  return buffer;
}

static int64_t bytes_at(const world_plan *p, int64_t from, int64_t to) { return p->heat[from * p->bins + to]; }

/* The busy ranks of a plan, which are few. */
typedef struct busy_ranks {
  const world_plan *plan;
  int64_t n, rank[PLAN_BINS];
} busy_ranks;

static double bytes_between(const busy_ranks *b, int64_t i, int64_t j) {
  return (double)bytes_at(b->plan, b->rank[i], b->rank[j]);
}

/* The bars of one side: each as high as its bytes say, in a slot with room for its number. */
typedef struct column {
  double bytes[PLAN_SVG_RANKS], top[PLAN_SVG_RANKS];
} column;

#define SLOT 12.0 /* least height of a bar's slot */

static column sum_column(const busy_ranks *b, bool before) {
  column c = {{0}, {0}};
  for (int64_t i = 0; i < b->n; i++)
    for (int64_t j = 0; j < b->n; j++)
      c.bytes[i] += before ? bytes_between(b, i, j) : bytes_between(b, j, i);
  return c;
}

/* Places the bars at a scale and returns the height of the column. Ranks without bytes have no bar. */
static double place_bars(column *c, int64_t n, double scale, double y) {
  double begin = y;
  for (int64_t i = 0; i < n; i++) {
    double height = c->bytes[i] * scale;
    if (c->bytes[i] <= 0)
      continue;
    c->top[i] = height < SLOT ? y + 0.5 * (SLOT - height) : y;
    y += (height < SLOT ? SLOT : height) + 3;
  }
  return y - begin;
}

static void draw_bars(rs_text *out, const busy_ranks *b, const column *c, double scale, double x, bool before) {
  char label[32];
  for (int64_t i = 0; i < b->n; i++) {
    double height = c->bytes[i] * scale;
    if (c->bytes[i] <= 0)
      continue;
    svg_rectangle(out, x, c->top[i], 12, height > 0.5 ? height : 0.5, (svg_paint){.fill = svg_rank_colour(b->rank[i])});
    snprintf(label, sizeof label, "%lld", (long long)b->rank[i]);
    svg_words(out, before ? x - 6 : x + 18, c->top[i] + 0.5 * height + 4, 11, before ? SVG_END : SVG_START, SVG_INK,
              false, 0, label);
  }
}

/* Bars of the bytes that each rank sends (left) and receives (right), with a band for each pair. */
static void draw_bands(rs_text *out, const busy_ranks *b, double x, double y, double width, double height) {
  int64_t n = b->n;
  column left = sum_column(b, true), right = sum_column(b, false);
  double total = 0;
  for (int64_t i = 0; i < n; i++)
    total += left.bytes[i];
  if (total <= 0) {
    svg_words(out, x, y + 20, 12, SVG_START, SVG_GREY, false, 0, "nothing is moved or kept");
    return;
  }
  double low = 0, scale = height / total;
  for (int k = 0; k < 40; k++) { /* the largest scale at which both columns fit */
    double middle = 0.5 * (low + scale), l = place_bars(&left, n, middle, y), r = place_bars(&right, n, middle, y);
    if ((l > r ? l : r) <= height)
      low = middle;
    else
      scale = middle;
  }
  place_bars(&left, n, low, y);
  place_bars(&right, n, low, y);
  draw_bars(out, b, &left, low, x, true);
  draw_bars(out, b, &right, low, x + width - 12, false);
  for (int64_t i = 0; i < n; i++)
    for (int64_t j = 0; j < n; j++) {
      double thick = bytes_between(b, i, j) * low;
      if (thick > 0)
        svg_band(out, x + 12, left.top[i], x + width - 12, right.top[j], thick,
                 i == j ? "#c3cad2" : svg_rank_colour(b->rank[i]), i == j ? 0.55 : 0.6);
      left.top[i] += thick;
      right.top[j] += thick;
    }
}

/* The most bytes from one rank to another; kept: or on a rank. */
static double find_most(const busy_ranks *b, bool kept) {
  double most = 0;
  for (int64_t i = 0; i < b->n; i++)
    for (int64_t j = 0; j < b->n; j++)
      most = kept || i != j ? fmax(most, bytes_between(b, i, j)) : most;
  return most;
}

/* Lines between rows (side 0) or columns whose ranks, at[i] * step, are of different domains. cell: of a row, or of a
 * column; length: of the lines. */
static void draw_domains(rs_text *out, const world_plan *p, int side, int64_t n, const int64_t *at, int64_t step,
                         double x, double y, double cell, double length) {
  const int64_t *domain = p->topology.domain;
  for (int64_t i = 1; domain != NULL && i < n; i++) {
    double place = (double)i * cell - 0.6;
    if (domain[at[i] * step] != domain[at[i - 1] * step])
      svg_rectangle(out, side == 0 ? x : x + place, side == 0 ? y + place : y, side == 0 ? length : 1.2,
                    side == 0 ? 1.2 : length, (svg_paint){.fill = "#e4572e"});
  }
}

/* Numbers fit in cells of this size. */
#define LEAST_CELL 26.0

static void draw_table(rs_text *out, const busy_ranks *b, double right, double y, double size) {
  int64_t n = b->n;
  double cell = fmin(size / (double)n, 60), most = find_most(b, false), font = cell > 40 ? 12 : cell > 30 ? 10 : 8.8;
  double x = fmin(570, right - cell * (double)n);
  const table_unit unit = choose_unit(find_most(b, true));
  char text[80], colour[8];
  for (int64_t i = 0; i < n; i++) {
    snprintf(text, sizeof text, "%lld", (long long)b->rank[i]);
    svg_words(out, x - 8, y + ((double)i + 0.5) * cell + 4, 11, SVG_END, SVG_INK, false, 0, text);
    svg_words(out, x + ((double)i + 0.5) * cell, y - 7, 11, SVG_MIDDLE, SVG_INK, false, 0, text);
    for (int64_t j = 0; j < n; j++) {
      double bytes = bytes_between(b, i, j), cx = x + (double)j * cell, cy = y + (double)i * cell;
      const char *fill = bytes <= 0 ? "#f5f7f9"
                         : i == j   ? "#d3d9df"
                                    : svg_scale_colour(colour, 0.12 + 0.6 * bytes / most);
      svg_rectangle(out, cx, cy, cell, cell, (svg_paint){.fill = fill, .stroke = "#ffffff", .stroke_width = 1.5});
      if (bytes > 0)
        svg_words(out, cx + 0.5 * cell, cy + 0.5 * cell + font / 3, font, SVG_MIDDLE, svg_ink_on(fill), false, 0,
                  print_brief(text, &unit, bytes));
    }
  }
  size = cell * (double)n;
  for (int side = 0; side < 2; side++)
    draw_domains(out, b->plan, side, n, b->rank, 1, x, y, cell, size);
  svg_words_up(out, x - 30, y + 0.5 * size, 11, SVG_GREY, "from rank");
  snprintf(text, sizeof text, "to rank (%s; grey: kept%s)", unit.name,
           b->plan->topology.domain != NULL ? "; lines: between domains" : "");
  svg_words(out, x + 0.5 * size, y - 24, 11, SVG_MIDDLE, SVG_GREY, false, 0, text);
}

double plan_svg_flows(rs_text *out, const world_plan *p, double y) {
  busy_ranks b = {.plan = p};
  b.n = plan_svg_busy(p, b.rank);
  double height = 60 + 44 * (double)b.n;
  height = fmax(150, fmin(height, fmax(330, LEAST_CELL * (double)b.n)));
  svg_words(out, 48, y + 12, 13, SVG_START, SVG_INK, true, 0, "who sends what to whom");
  svg_words(out, 48, y + 28, 10.5, SVG_START, SVG_GREY, false, 0, "width of a band: bytes; grey: kept on the rank");
  y += 52;
  svg_words(out, 70, y - 6, 10.5, SVG_START, SVG_GREY, false, 0, "before");
  svg_words(out, 410, y - 6, 10.5, SVG_END, SVG_GREY, false, 0, "after");
  draw_bands(out, &b, 70, y, 340, height);
  if (b.n > 0)
    draw_table(out, &b, PLAN_SVG_WIDTH - 48, y, height);
  return y + height + 20;
}

/* The bins of a plan that send or keep something, and those that receive or keep something. */
typedef struct heat_map {
  const world_plan *plan;
  int64_t n[2], bin[2][PLAN_BINS]; /* of rows, of columns */
  double x, y, size, cell[2];      /* height and width of a cell */
} heat_map;

static heat_map make_heat(const world_plan *p, double x, double y, double size) {
  heat_map m = {.plan = p, .x = x, .y = y, .size = size};
  for (int64_t i = 0; i < p->bins; i++) {
    bool sends = false, receives = false;
    for (int64_t j = 0; j < p->bins; j++) {
      sends = sends || bytes_at(p, i, j) > 0;
      receives = receives || bytes_at(p, j, i) > 0;
    }
    if (sends)
      m.bin[0][m.n[0]++] = i;
    if (receives)
      m.bin[1][m.n[1]++] = i;
  }
  for (int k = 0; k < 2; k++)
    m.cell[k] = size / (double)m.n[k];
  return m;
}

static double heat_bytes(const heat_map *m, int64_t i, int64_t j) {
  return (double)bytes_at(m->plan, m->bin[0][i], m->bin[1][j]);
}

static bool is_kept(const heat_map *m, int64_t i, int64_t j) {
  return m->plan->per_bin == 1 && m->bin[0][i] == m->bin[1][j];
}

/* Bytes that one sends to another: from the least to the most, which is 0 where nothing is sent. */
typedef struct heat_range {
  double low, most;
} heat_range;

static heat_range find_heat_range(const heat_map *m) {
  heat_range range = {INFINITY, 0};
  for (int64_t i = 0; i < m->n[0]; i++)
    for (int64_t j = 0; j < m->n[1]; j++) {
      double bytes = heat_bytes(m, i, j);
      if (bytes > 0 && !is_kept(m, i, j)) {
        range.most = fmax(range.most, bytes);
        range.low = fmin(range.low, bytes);
      }
    }
  if (range.low < range.most && range.low > range.most / 4)
    range.low = range.most / 16;
  return range;
}

/* Bytes that each row sends, or each column receives. */
static double *sum_loads(const heat_map *m, int side, double *most) {
  double *sum = cli_alloc(m->n[side], sizeof *sum);
  *most = 0;
  for (int64_t i = 0; i < m->n[0]; i++)
    for (int64_t j = 0; j < m->n[1]; j++)
      if (!is_kept(m, i, j))
        sum[side == 0 ? i : j] += heat_bytes(m, i, j);
  for (int64_t i = 0; i < m->n[side]; i++)
    *most = fmax(*most, sum[i]);
  return sum;
}

static void draw_load_bars(rs_text *out, const heat_map *m) {
  double most_sent, most_received, edge = m->x + m->size + 8;
  double *sent = sum_loads(m, 0, &most_sent), *received = sum_loads(m, 1, &most_received);
  double most = fmax(most_sent, most_received), thick[2];
  char text[CLI_BYTES_TEXT + 64], bytes[CLI_BYTES_TEXT], ranks[32] = "";
  for (int k = 0; k < 2; k++) /* gaps between thin bars would be a pattern of their own */
    thick[k] = m->cell[k] > 10 ? m->cell[k] - 1 : m->cell[k];
  if (m->plan->per_bin > 1)
    snprintf(ranks, sizeof ranks, " by %lld ranks", (long long)m->plan->per_bin);
  cli_add(out, "<g shape-rendering=\"crispEdges\">\n");
  for (int64_t i = 0; i < m->n[0]; i++)
    svg_rectangle(out, edge, m->y + (double)i * m->cell[0], 70 * sent[i] / most, thick[0],
                  (svg_paint){.fill = "#f28e2b"});
  for (int64_t j = 0; j < m->n[1]; j++) {
    double height = 46 * received[j] / most;
    svg_rectangle(out, m->x + (double)j * m->cell[1], m->y - 8 - height, thick[1], height,
                  (svg_paint){.fill = "#59a14f"});
  }
  cli_add(out, "</g>\n");
  snprintf(text, sizeof text, "sent%s, up to %s", ranks, cli_bytes_text(bytes, most_sent));
  svg_words(out, edge, m->y + m->size + 16, 10.5, SVG_START, SVG_GREY, false, 0, text);
  snprintf(text, sizeof text, "received%s, up to %s", ranks, cli_bytes_text(bytes, most_received));
  svg_words(out, edge, m->y - 14, 10.5, SVG_START, SVG_GREY, false, 0, text);
  free(sent);
  free(received);
}

static void draw_heat_legend(rs_text *out, double x, double y, double low, double most) {
  char text[CLI_BYTES_TEXT], colour[8];
  if (low >= most) { /* all the same */
    svg_rectangle(out, x, y - 18, 12, 12, (svg_paint){.fill = svg_scale_colour(colour, 0.75)});
    svg_words(out, x + 18, y - 8, 11, SVG_START, SVG_INK, false, 0, cli_bytes_text(text, most));
    return;
  }
  svg_words(out, x, y - 14, 11, SVG_START, SVG_INK, true, 0, "bytes, log scale");
  for (int i = 0; i < 100; i++)
    svg_rectangle(out, x, y + 2.0 * (99 - i), 18, 2.4,
                  (svg_paint){.fill = svg_scale_colour(colour, 0.1 + 0.9 * i / 99.0)});
  for (int k = 0; k <= 4; k++)
    svg_words(out, x + 26, y + 200 - 50.0 * k + 4, 10.5, SVG_START, SVG_INK, false, 0,
              cli_bytes_text(text, low * pow(most / low, k / 4.0)));
}

/* The ranks of some rows or columns, and what these are. kept: a cell is grey. */
static void draw_heat_labels(rs_text *out, const heat_map *m, int side, bool kept) {
  char text[32];
  int64_t step = 1;
  while (m->n[side] / step > 16)
    step *= 2;
  for (int64_t i = 0; i < m->n[side]; i += step) {
    double at = ((double)i + 0.5 / (double)m->plan->per_bin) * m->cell[side];
    snprintf(text, sizeof text, "%lld", (long long)(m->bin[side][i] * m->plan->per_bin));
    if (side == 0)
      svg_words(out, m->x - 8, m->y + at + 4, 11, SVG_END, SVG_INK, false, 0, text);
    else
      svg_words(out, m->x + at, m->y + m->size + 16, 11, SVG_MIDDLE, SVG_INK, false, 0, text);
  }
  if (side == 0)
    svg_words_up(out, 50, m->y + 0.5 * m->size, 12, SVG_GREY, "sending rank");
  else
    svg_words(out, m->x + 0.5 * m->size, m->y + m->size + 34, 12, SVG_MIDDLE, SVG_GREY, false, 0,
              kept ? "receiving rank (grey: kept)" : "receiving rank");
}

double plan_svg_heat(rs_text *out, const world_plan *p, double y) {
  heat_map m = make_heat(p, 92, y + 98, 560);
  const heat_range range = find_heat_range(&m);
  const double low = range.low, most = range.most;
  char text[96], colour[8];
  svg_words(out, 48, y + 12, 13, SVG_START, SVG_INK, true, 0,
            most > 0 ? "who sends what to whom" : "nothing is sent: each rank has what it needs");
  if (most <= 0)
    return y + 24;
  if (p->per_bin > 1) {
    snprintf(text, sizeof text, "each cell is %lld x %lld ranks", (long long)p->per_bin, (long long)p->per_bin);
    svg_words(out, 48, y + 28, 10.5, SVG_START, SVG_GREY, false, 0, text);
  }
  svg_rectangle(out, m.x, m.y, m.size, m.size, (svg_paint){.fill = "#fafbfc", .stroke = "#cbd2d9", .stroke_width = 1});
  cli_add(out, "<g shape-rendering=\"crispEdges\">\n");
  bool kept = false;
  for (int64_t i = 0; i < m.n[0]; i++)
    for (int64_t j = 0; j < m.n[1]; j++) {
      double bytes = heat_bytes(&m, i, j);
      if (bytes <= 0)
        continue;
      kept = kept || is_kept(&m, i, j);
      double value = most > low ? log(bytes / low) / log(most / low) : 0.72; /* as in the legend: 0.1 + 0.9 x it */
      svg_rectangle(out, m.x + (double)j * m.cell[1], m.y + (double)i * m.cell[0], m.cell[1], m.cell[0],
                    (svg_paint){.fill = is_kept(&m, i, j) ? "#c3cad2" : svg_scale_colour(colour, 0.1 + 0.9 * value)});
    }
  cli_add(out, "</g>\n");
  for (int side = 0; side < 2; side++)
    draw_domains(out, p, side, m.n[side], m.bin[side], p->per_bin, m.x, m.y, m.cell[side], m.size);
  if (p->topology.domain != NULL)
    svg_words(out, 800, m.y + 300, 10.5, SVG_START, SVG_GREY, false, 0, "lines: between domains");
  draw_heat_labels(out, &m, 0, kept);
  draw_heat_labels(out, &m, 1, kept);
  draw_load_bars(out, &m);
  draw_heat_legend(out, 800, m.y + 60, low, most);
  return m.y + m.size + 52;
}
