/* The bytes between ranks, drawn: bands and a table in small worlds, a heat map in large ones. */
#include "bench/cli/svg.h"
#include "bench/plan/svg.h"

#include <math.h>
#include <stdlib.h>

/* "1.2M": few characters, for the cells of the table. */
static const char *print_brief(char buffer[16], double bytes) {
  static const char unit[] = " KMGTP";
  int u = 0;
  for (; bytes >= 999.5 && u < 5; u++)
    bytes /= 1024;
  snprintf(buffer, 16, u == 0 ? "%.0f" : bytes < 9.95 ? "%.1f%c" : "%.0f%c", bytes, unit[u]);
  return buffer;
}

static int64_t bytes_at(const world_plan *p, int64_t from, int64_t to) { return p->heat[from * p->bins + to]; }

/* The busy ranks of a plan, which are few. */
typedef struct busy_ranks {
  const world_plan *plan;
  int64_t n, rank[PLAN_SVG_RANKS + 1];
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

static double off_diagonal_most(const busy_ranks *b) {
  double most = 0;
  for (int64_t i = 0; i < b->n; i++)
    for (int64_t j = 0; j < b->n; j++)
      most = i != j ? fmax(most, bytes_between(b, i, j)) : most;
  return most;
}

static void draw_table(rs_text *out, const busy_ranks *b, double x, double y, double size) {
  int64_t n = b->n;
  double cell = fmin(size / (double)n, 60), most = off_diagonal_most(b), font = cell > 40 ? 12 : cell > 30 ? 10 : 7.5;
  char text[32], colour[8];
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
      if (bytes > 0 && cell >= 20)
        svg_words(out, cx + 0.5 * cell, cy + 0.5 * cell + font / 3, font, SVG_MIDDLE, svg_ink_on(fill), false, 0,
                  print_brief(text, bytes));
    }
  }
  size = cell * (double)n;
  svg_words_up(out, x - 30, y + 0.5 * size, 11, SVG_GREY, "from rank");
  svg_words(out, x + 0.5 * size, y - 24, 11, SVG_MIDDLE, SVG_GREY, false, 0, "to rank (bytes; grey: kept)");
}

double plan_svg_flows(rs_text *out, const world_plan *p, double y) {
  busy_ranks b = {.plan = p};
  b.n = plan_svg_busy(p, b.rank);
  double height = 60 + 44 * (double)b.n;
  height = height < 150 ? 150 : height > 330 ? 330 : height;
  svg_words(out, 48, y + 12, 13, SVG_START, SVG_INK, true, 0, "who sends what to whom");
  svg_words(out, 48, y + 28, 10.5, SVG_START, SVG_GREY, false, 0, "width of a band: bytes; grey: kept on the rank");
  y += 52;
  svg_words(out, 70, y - 6, 10.5, SVG_START, SVG_GREY, false, 0, "before");
  svg_words(out, 410, y - 6, 10.5, SVG_END, SVG_GREY, false, 0, "after");
  draw_bands(out, &b, 70, y, 340, height);
  if (b.n > 0)
    draw_table(out, &b, 570, y, height);
  return y + height + 20;
}

/* A round step so that about ten labels fit. */
static int64_t label_step(int64_t n) {
  int64_t step = 1;
  for (int k = 0; n / step > 10; k++)
    step *= k % 3 == 1 ? 5 : 2; /* 2, 10, 20, 40, 200, ... is round enough */
  return step;
}

/* Sums over bins: what each sends (rows) or receives (columns). */
static double *loads(const world_plan *p, bool rows, double *most) {
  double *sum = cli_alloc(p->bins, sizeof *sum);
  *most = 0;
  for (int64_t i = 0; i < p->bins; i++) {
    for (int64_t j = 0; j < p->bins; j++)
      if (i != j || p->per_bin > 1)
        sum[i] += (double)(rows ? bytes_at(p, i, j) : bytes_at(p, j, i));
    *most = sum[i] > *most ? sum[i] : *most;
  }
  return sum;
}

static void draw_load_bars(rs_text *out, const world_plan *p, double x, double y, double size) {
  double most_sent, most_received, cell = size / (double)p->bins;
  double *sent = loads(p, true, &most_sent), *received = loads(p, false, &most_received);
  double most = most_sent > most_received ? most_sent : most_received;
  char text[CLI_BYTES_TEXT + 24], bytes[CLI_BYTES_TEXT];
  double thick = cell > 10 ? cell - 1 : cell; /* gaps between thin bars would be a pattern of their own */
  cli_add(out, "<g shape-rendering=\"crispEdges\">\n");
  for (int64_t i = 0; i < p->bins && most > 0; i++) {
    double s = 70 * sent[i] / most, r = 46 * received[i] / most;
    svg_rectangle(out, x + size + 8, y + (double)i * cell, s, thick, (svg_paint){.fill = "#f28e2b"});
    svg_rectangle(out, x + (double)i * cell, y - 8 - r, thick, r, (svg_paint){.fill = "#59a14f"});
  }
  cli_add(out, "</g>\n");
  snprintf(text, sizeof text, "sent, up to %s", cli_bytes_text(bytes, most_sent));
  svg_words(out, x + size + 8, y + size + 16, 10.5, SVG_START, SVG_GREY, false, 0, text);
  snprintf(text, sizeof text, "received, up to %s", cli_bytes_text(bytes, most_received));
  svg_words(out, x + size + 8, y - 14, 10.5, SVG_START, SVG_GREY, false, 0, text);
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
  svg_words(out, x, y - 8, 11, SVG_START, SVG_INK, true, 0, "bytes, log scale");
  for (int i = 0; i < 100; i++)
    svg_rectangle(out, x, y + 2.0 * (99 - i), 18, 2.4,
                  (svg_paint){.fill = svg_scale_colour(colour, 0.1 + 0.9 * i / 99.0)});
  for (int k = 0; k <= 4; k++)
    svg_words(out, x + 26, y + 200 - 50.0 * k + 4, 10.5, SVG_START, SVG_INK, false, 0,
              cli_bytes_text(text, low * pow(most / low, k / 4.0)));
}

double plan_svg_heat(rs_text *out, const world_plan *p, double y) {
  double size = 560, x = 92, cell = size / (double)p->bins, most = 0, low = INFINITY;
  char text[96], colour[8];
  for (int64_t i = 0; i < p->bins * p->bins; i++) {
    double bytes = (double)p->heat[i];
    if (bytes > 0 && (p->per_bin > 1 || i / p->bins != i % p->bins)) {
      most = bytes > most ? bytes : most;
      low = bytes < low ? bytes : low;
    }
  }
  if (low < most && low > most / 4)
    low = most / 16;
  svg_words(out, 48, y + 12, 13, SVG_START, SVG_INK, true, 0,
            most > 0 ? "who sends what to whom" : "nothing is sent: each rank has what it needs");
  if (most <= 0)
    return y + 24;
  if (p->per_bin > 1) {
    snprintf(text, sizeof text, "each cell is %lld x %lld ranks", (long long)p->per_bin, (long long)p->per_bin);
    svg_words(out, 48, y + 28, 10.5, SVG_START, SVG_GREY, false, 0, text);
  }
  y += 98;
  svg_rectangle(out, x, y, size, size, (svg_paint){.fill = "#fafbfc", .stroke = "#cbd2d9", .stroke_width = 1});
  cli_add(out, "<g shape-rendering=\"crispEdges\">\n");
  for (int64_t i = 0; i < p->bins; i++)
    for (int64_t j = 0; j < p->bins; j++) {
      double bytes = (double)bytes_at(p, i, j);
      if (bytes <= 0)
        continue;
      bool kept = p->per_bin == 1 && i == j;
      double value = most > low ? log(bytes / low) / log(most / low) : 0.72; /* as in the legend: 0.1 + 0.9 x it */
      svg_rectangle(out, x + (double)j * cell, y + (double)i * cell, cell, cell,
                    (svg_paint){.fill = kept ? "#c3cad2" : svg_scale_colour(colour, 0.1 + 0.9 * value)});
    }
  cli_add(out, "</g>\n");
  int64_t step = label_step(p->ranks);
  for (int64_t r = 0; r < p->ranks; r += step) {
    double place_bars = ((double)r + 0.5) / (double)p->per_bin * cell;
    snprintf(text, sizeof text, "%lld", (long long)r);
    svg_words(out, x - 8, y + place_bars + 4, 11, SVG_END, SVG_INK, false, 0, text);
    svg_words(out, x + place_bars, y + size + 16, 11, SVG_MIDDLE, SVG_INK, false, 0, text);
  }
  svg_words_up(out, 50, y + 0.5 * size, 12, SVG_GREY, "sending rank");
  svg_words(out, x + 0.5 * size, y + size + 34, 12, SVG_MIDDLE, SVG_GREY, false, 0,
            p->per_bin == 1 ? "receiving rank (grey: kept)" : "receiving rank");
  draw_load_bars(out, p, x, y, size);
  draw_heat_legend(out, 800, y + 60, low, most);
  return y + size + 52;
}
