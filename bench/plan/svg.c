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
static double draw_tensors(rs_text *out, const workload *w, double size, double y) {
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
    y = plan_svg_cells(out, t, size * (shown > 1 ? 170 : 300), y) + 8;
  }
  if (n > shown) {
    snprintf(text, sizeof text, "%lld further kinds of tensors are not drawn", (long long)(n - shown));
    svg_words(out, 48, y + 8, 10.5, SVG_START, SVG_GREY, false, 0, text);
    y += 24;
  }
  free(g);
  return y;
}

/* The colours of the busy ranks, where there are few, and what else is in the picture. */
static double draw_legend(rs_text *out, const world_plan *p, int64_t busy, const int64_t *ranks, double y) {
  char text[96];
  double x = 84;
  int64_t shown = busy <= PLAN_SVG_RANKS ? busy : 0;
  if (shown > 0)
    svg_words(out, 48, y + 11, 11, SVG_START, SVG_GREY, false, 0, "rank");
  for (int64_t i = 0; i < shown; i++, x += 34) {
    svg_rectangle(out, x, y, 12, 12, (svg_paint){.fill = svg_rank_colour(ranks[i])});
    snprintf(text, sizeof text, "%lld", (long long)ranks[i]);
    svg_words(out, x + 15, y + 10.5, 11, SVG_START, SVG_INK, false, 0, text);
  }
  x = shown > 0 ? x + 10 : 48;
  svg_rectangle(out, x, y - 1, 14, 14, (svg_paint){.fill = "#dfe4ea"});
  svg_words(out, x + 20, y + 10.5, 11, SVG_START, SVG_INK, false, 0, "grey: whole on each rank in it");
  x = shown > 8 ? 84 : x + 200;
  y += shown > 8 ? 20 : 0;
  svg_rectangle(out, x, y - 1, 14, 14, (svg_paint){.fill = SVG_PALE});
  svg_circle(out, x + 7, y + 6, 4, (svg_paint){.fill = SVG_GREY, .stroke = "#ffffff", .stroke_width = 1.2});
  svg_words(out, x + 20, y + 10.5, 11, SVG_START, SVG_INK, false, 0, "dot: comes from the rank of that colour");
  if (shown > 0 && busy < p->ranks) {
    snprintf(text, sizeof text, "%lld rank%s of %lld take%s no part", (long long)(p->ranks - busy),
             cli_plural(p->ranks - busy), (long long)p->ranks, p->ranks - busy == 1 ? "s" : "");
    svg_words(out, x + 262, y + 10.5, 11, SVG_START, SVG_GREY, false, 0, text);
  }
  return y + 30;
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

int64_t plan_svg_busy(const world_plan *p, int64_t ranks[PLAN_SVG_RANKS + 1]) {
  int64_t n = 0;
  for (int64_t i = 0; i < p->bins && n <= PLAN_SVG_RANKS; i++) {
    bool busy = p->per_bin > 1;
    for (int64_t j = 0; j < p->bins; j++)
      busy = busy || p->heat[i * p->bins + j] > 0 || p->heat[j * p->bins + i] > 0;
    if (busy)
      ranks[n++] = i;
  }
  return n;
}

void plan_svg(const cli_options *o, const workload *w, const world_plan *p) {
  rs_text body = {0}, file = {0};
  int64_t ranks[PLAN_SVG_RANKS + 1], busy = plan_svg_busy(p, ranks);
  double y = draw_heading(&body, o, w, p);
  if (p->ranks <= PLAN_SVG_CELLS) {
    y = draw_legend(&body, p, busy, ranks, y);
    y = draw_tensors(&body, w, p->ranks > PLAN_SVG_RANKS ? 2 : 1, y) + 10;
  }
  if (busy <= PLAN_SVG_RANKS)
    y = plan_svg_flows(&body, p, y);
  else
    y = plan_svg_heat(&body, p, y);
  svg_open(&file, PLAN_SVG_WIDTH, y + 16);
  cli_add_bytes(&file, body.at, body.length);
  svg_close(&file);
  cli_write_file(o->svg, file.at, file.length);
  free(body.at);
  free(file.at);
}
