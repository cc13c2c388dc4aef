#include "bench/plan/cell_table.h"

#include "base/order.h"

#include <stdlib.h>
#include <string.h>

#define MOST_CUTS 64 /* of a dim; of more the table has the first */

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

static dim_cuts make_cuts(const workload_tensor *t, int dim, int sides) {
  dim_cuts c = {.dim = dim, .extent = dim < 0 ? 1 : t->shape[dim]};
  add_cut(&c, 0);
  add_cut(&c, c.extent);
  if (dim >= 0) {
    if (sides & OF_SRC)
      add_layout_cuts(&c, t->src);
    if (sides & OF_DST)
      add_layout_cuts(&c, t->dst);
  }
  qsort(c.at, (size_t)c.n, sizeof *c.at, rs_order_numbers);
  int64_t n = 0;
  for (int64_t i = 0; i < c.n; i++)
    if (n == 0 || c.at[i] != c.at[n - 1])
      c.at[n++] = c.at[i];
  c.n = n > MOST_CUTS + 1 ? MOST_CUTS + 1 : n;
  c.shown = c.at[c.n - 1];
  return c;
}

void cell_table_choose_dims(const workload_tensor *t, int sides, cell_table *table) {
  int first = -1, second = -1;
  int64_t cuts[RESHARD_MAX_DIMS];
  for (int d = 0; d < t->ndim; d++) {
    dim_cuts c = make_cuts(t, d, sides);
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
  table->down = make_cuts(t, b >= 0 ? a : -1, sides);
  table->across = make_cuts(t, b >= 0 ? b : a, sides);
}

static int add_holder(void *user, int64_t rank, int64_t array, int64_t elements) {
  (void)array, (void)elements;
  *(uint64_t *)user |= (uint64_t)1 << rank;
  return 0;
}

static uint64_t find_holders(reshard_layout layout, const cell_table *table, int64_t i, int64_t j) {
  reshard_box box = {{0}, {0}};
  uint64_t mask = 0;
  for (int d = 0; d < reshard_layout_ndim(layout); d++) {
    box.offset[d] = table->at[d];
    box.extent[d] = 1;
  }
  if (table->down.dim >= 0)
    box.offset[table->down.dim] = table->down.at[i];
  if (table->across.dim >= 0)
    box.offset[table->across.dim] = table->across.at[j];
  CLI_TRY("", reshard_layout_meet(layout, &box, add_holder, &mask));
  return mask;
}

void cell_table_fill(const workload_tensor *t, cell_table *table) {
  int64_t rows = table->down.n - 1, columns = table->across.n - 1;
  table->src = cli_alloc(rows * columns, sizeof *table->src);
  table->dst = cli_alloc(rows * columns, sizeof *table->dst);
  for (int64_t i = 0; i < rows; i++)
    for (int64_t j = 0; j < columns; j++) {
      table->src[i * columns + j] = find_holders(t->src, table, i, j);
      table->dst[i * columns + j] = find_holders(t->dst, table, i, j);
    }
}

int cell_table_count_dims(const workload_tensor *t, int sides) {
  int n = 0;
  for (int d = 0; d < t->ndim; d++) {
    dim_cuts c = make_cuts(t, d, sides);
    n += c.n > 2;
    free(c.at);
  }
  return n;
}

bool cell_table_choose_slice(const workload_tensor *t, int sides, int64_t i, cell_table *table, char text[160]) {
  rs_text out = {.at = text, .size = 160};
  text[0] = '\0';
  for (int d = t->ndim - 1; d >= 0; d--) {
    table->at[d] = 0;
    if (d == table->down.dim || d == table->across.dim)
      continue;
    dim_cuts c = make_cuts(t, d, sides);
    int64_t k = i % (c.n - 1);
    i /= c.n - 1;
    table->at[d] = c.at[k];
    if (c.n > 2)
      rs_text_add(&out, "%sdim %d: [%lld,%lld)", out.length > 0 ? ", " : "", d, (long long)c.at[k],
                  (long long)c.at[k + 1]);
    free(c.at);
  }
  return i == 0;
}

void cell_table_free(cell_table *table) {
  free(table->down.at);
  free(table->across.at);
  free(table->src);
  free(table->dst);
  *table = (cell_table){0};
}
