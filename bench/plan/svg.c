/* The picture of a plan: title, totals, in small worlds the holders before and after, and the bytes between ranks. */
#include "bench/plan/svg.h"

#include "bench/cli/svg.h"

#include <stdlib.h>
#include <string.h>

#define MOST_TENSORS 3 /* of a model that are drawn */

/* Tensors with the same pair of layouts. */
typedef struct tensor_group {
  const workload_tensor *first;
  int64_t tensors;
  double bytes;
} tensor_group;

static int compare_bytes(const void *a, const void *b) {
  const tensor_group *x = a, *y = b;
  return x->bytes != y->bytes ? (x->bytes < y->bytes) - (x->bytes > y->bytes)
                              : (x->first > y->first) - (x->first < y->first);
}

/* Groups the tensors by their pairs of layouts, those with the most bytes first. Tensors of a model share few layouts,
 * so that a search through a list is fast. */
static int64_t group_tensors(const workload *w, tensor_group **out) {
  tensor_group *g = cli_alloc(w->n, sizeof *g);
  int64_t n = 0, last = 0;
  for (int64_t i = 0; i < w->n; i++) {
    const workload_tensor *t = &w->tensor[i];
    int64_t k = last < n && g[last].first->src == t->src && g[last].first->dst == t->dst ? last : 0;
    while (k < n && !(reshard_layout_equal(g[k].first->src, t->src) && reshard_layout_equal(g[k].first->dst, t->dst)))
      k++;
    if (k == n)
      g[n++].first = t;
    last = k;
    g[k].tensors++;
    g[k].bytes += (double)reshard_layout_elements(t->src) * (double)reshard_dtype_size(t->dtype);
  }
  qsort(g, (size_t)n, sizeof *g, compare_bytes);
  *out = g;
  return n;
}

/* size: a factor on the height of a tensor. */
static double draw_tensors(rs_text *out, const workload *w, double size, double y, plan_svg_kinds *drawn) {
  tensor_group *g;
  int64_t n = group_tensors(w, &g), shown = n < MOST_TENSORS ? n : MOST_TENSORS;
  char shape[RS_SHAPE_TEXT], bytes[CLI_BYTES_TEXT], text[512];
  for (int64_t i = 0; i < shown; i++) {
    const workload_tensor *t = g[i].first;
    if (w->model != NULL) {
      rs_shape_text(shape, t->ndim, t->shape);
      if (g[i].tensors > 1)
        snprintf(text, sizeof text, "%s %s, and %lld more like it: %s", t->name, shape, (long long)(g[i].tensors - 1),
                 cli_bytes_text(bytes, g[i].bytes));
      else
        snprintf(text, sizeof text, "%s %s: %s", t->name, shape, cli_bytes_text(bytes, g[i].bytes));
      svg_words(out, 48, y + 14, 12, SVG_START, SVG_INK, true, 120, text);
      y += 26;
    }
    y = plan_svg_cells(out, t, size * (shown > 1 ? 170 : 300), y, drawn) + 8;
  }
  if (n > shown) {
    snprintf(text, sizeof text, "%lld further kinds of tensors are not drawn", (long long)(n - shown));
    svg_words(out, 48, y + 8, 10.5, SVG_START, SVG_GREY, false, 0, text);
    y += 24;
  }
  free(g);
  return y;
}

/* Words of the legend; a line that has no room for them ends. */
typedef struct legend {
  rs_text *out;
  double left, x, y; /* left: where lines begin */
} legend;

static void add_words(legend *l, const char *ink, const char *text) {
  svg_words(l->out, l->x, l->y + 10.5, 11, SVG_START, ink, false, 0, text);
  l->x += 5.7 * (double)strlen(text) + 18;
}

static void begin_entry(legend *l, double width) {
  if (l->x > l->left && l->x + width > PLAN_SVG_WIDTH - 48) {
    l->x = l->left;
    l->y += 20;
  }
}

/* The colours of the busy ranks, where there are few, and what else is in the picture. */
static double draw_legend(rs_text *out, const world_plan *p, int64_t busy, const int64_t *ranks, plan_svg_kinds drawn,
                          double y) {
  char text[96];
  legend l = {out, 48, 48, y};
  int64_t shown = busy <= PLAN_SVG_RANKS ? busy : 0;
  if (shown > 0) {
    add_words(&l, SVG_GREY, "rank");
    l.left = l.x = 84;
  }
  for (int64_t i = 0; i < shown; i++, l.x += 34) {
    svg_rectangle(out, l.x, y, 12, 12, (svg_paint){.fill = svg_rank_colour(ranks[i])});
    snprintf(text, sizeof text, "%lld", (long long)ranks[i]);
    svg_words(out, l.x + 15, y + 10.5, 11, SVG_START, SVG_INK, false, 0, text);
  }
  l.x += shown > 0 ? 10 : 0;
  if (drawn.replicas) {
    begin_entry(&l, 220);
    svg_rectangle(out, l.x, l.y - 1, 14, 14, (svg_paint){.fill = "#dfe4ea"});
    l.x += 20;
    add_words(&l, SVG_INK, "grey: whole on each rank in it");
  }
  if (drawn.origins) {
    begin_entry(&l, 270);
    svg_rectangle(out, l.x, l.y - 1, 14, 14, (svg_paint){.fill = SVG_PALE});
    svg_circle(out, l.x + 7, l.y + 6, 4, (svg_paint){.fill = SVG_GREY, .stroke = "#ffffff", .stroke_width = 1.2});
    l.x += 20;
    add_words(&l, SVG_INK, "dot: comes from the rank of that colour");
  }
  if (busy < p->ranks && p->n == p->ranks) {
    snprintf(text, sizeof text, "%lld rank%s of %lld take%s no part", (long long)(p->ranks - busy),
             cli_plural(p->ranks - busy), (long long)p->ranks, p->ranks - busy == 1 ? "s" : "");
    begin_entry(&l, 180);
    add_words(&l, SVG_GREY, text);
  }
  return l.x > 48 ? l.y + 30 : y;
}

/* A layout as it was given; of a rule file the name alone. */
static const char *layout_name(const char *text) {
  const char *slash = text[0] == '@' ? strrchr(text, '/') : NULL;
  return slash != NULL ? slash + 1 : text[0] == '@' ? text + 1 : text;
}

static double draw_heading(rs_text *out, const cli_options *o, const workload *w, const world_plan *p) {
  char shape[RS_SHAPE_TEXT], a[CLI_BYTES_TEXT], b[CLI_BYTES_TEXT], c[CLI_BYTES_TEXT];
  rs_text text = {0};
  if (w->model != NULL)
    cli_add(&text, "%s, %lld tensors", strrchr(o->model, '/') != NULL ? strrchr(o->model, '/') + 1 : o->model,
            (long long)w->n);
  else
    cli_add(&text, "%s %s", rs_shape_text(shape, w->tensor->ndim, w->tensor->shape),
            reshard_dtype_string(w->tensor->dtype));
  cli_add(&text, ", %lld rank%s: %s → %s", (long long)p->ranks, p->ranks == 1 ? "" : "s", layout_name(o->src),
          layout_name(o->dst));
  svg_words(out, 48, 40, 18, SVG_START, SVG_INK, true, 88, text.at);
  text.length = 0;
  if (o->rank >= 0)
    cli_add(&text, "rank %lld alone: ", (long long)o->rank);
  cli_add(&text, "%s in all, %s on the wire%s, busiest rank %s in one direction, %lld messages",
          cli_bytes_text(a, (double)p->bytes), cli_bytes_text(b, (double)p->wire),
          p->wire == p->bound ? " (the lower bound)" : "", cli_bytes_text(c, (double)p->busiest),
          (long long)p->messages);
  svg_words(out, 48, 62, 12, SVG_START, SVG_GREY, false, 0, text.at);
  free(text.at);
  return 84;
}

int64_t plan_svg_busy(const world_plan *p, int64_t ranks[PLAN_BINS]) {
  int64_t n = 0;
  for (int64_t i = 0; i < p->bins; i++) {
    bool busy = false;
    for (int64_t j = 0; j < p->bins; j++)
      busy = busy || p->heat[i * p->bins + j] > 0 || p->heat[j * p->bins + i] > 0;
    if (busy)
      ranks[n++] = i;
  }
  return n;
}

void plan_svg(const cli_options *o, const workload *w, const world_plan *p) {
  rs_text body = {0}, file = {0}, tried = {0};
  int64_t ranks[PLAN_BINS], busy = plan_svg_busy(p, ranks);
  double y = draw_heading(&body, o, w, p), size = p->ranks > PLAN_SVG_RANKS ? 2 : 1;
  plan_svg_kinds drawn = {false, false};
  if (p->ranks <= PLAN_SVG_CELLS)
    (void)draw_tensors(&tried, w, size, 0, &drawn); /* the legend above them has what they have */
  if (p->per_bin == 1)
    y = draw_legend(&body, p, busy, ranks, drawn, y);
  if (p->ranks <= PLAN_SVG_CELLS)
    y = draw_tensors(&body, w, size, y, &drawn) + 10;
  if (p->per_bin == 1 && busy <= PLAN_SVG_RANKS)
    y = plan_svg_flows(&body, p, y);
  else
    y = plan_svg_heat(&body, p, y);
  svg_open(&file, PLAN_SVG_WIDTH, y + 16);
  cli_add_bytes(&file, body.at, body.length);
  svg_close(&file);
  cli_write_file(o->svg, file.at, file.length);
  free(tried.at);
  free(body.at);
  free(file.at);
}
