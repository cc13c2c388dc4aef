/* The cost of planning, of validating and of an empty execute: figures that no data movement hides. */
#include "bench/micro/micro.h"

#include <reshard/file.h>
#include <reshard/reshard.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A plan to be made again and again: of one rank, or of each rank of the world in turn. */
typedef struct plan_bench {
  int64_t nentries, first, last;
  reshard_entry *entries;
  reshard_layout *layouts;
  int64_t nlayouts;
} plan_bench;

static void plan_bench_drop(void *state) {
  plan_bench *p = state;
  for (int64_t i = 0; i < p->nlayouts; i++)
    reshard_layout_release(p->layouts[i]);
  free(p->layouts);
  free(p->entries);
  free(p);
}

static plan_bench *plan_bench_make(int64_t nentries, int64_t nlayouts) {
  plan_bench *p = calloc(1, sizeof *p);
  p->entries = calloc((size_t)nentries, sizeof *p->entries);
  p->layouts = calloc((size_t)nlayouts, sizeof *p->layouts);
  p->nentries = nentries;
  p->nlayouts = nlayouts;
  return p;
}

static int plan_bench_run(void *state) {
  const plan_bench *p = state;
  for (int64_t rank = p->first; rank < p->last; rank++) {
    reshard_plan plan;
    if (reshard_plan_create(p->nentries, p->entries, rank, NULL, &plan) != RESHARD_SUCCESS)
      return 1;
    reshard_plan_destroy(plan);
  }
  return 0;
}

/* The same ranks, which are all of the world, in one call. */
static int plan_all_run(void *state) {
  const plan_bench *p = state;
  reshard_plan *plans = calloc((size_t)p->last, sizeof(reshard_plan));
  reshard_status status = reshard_plan_create_all(p->nentries, p->entries, p->last, NULL, NULL, plans);
  for (int64_t i = 0; i < p->last; i++)
    reshard_plan_destroy(plans[i]);
  free(plans);
  return status != RESHARD_SUCCESS;
}

static void *plan_bench_fail(plan_bench *p) {
  plan_bench_drop(p);
  return NULL;
}

static void set_entry(plan_bench *p, reshard_dtype dtype) {
  p->entries[0] = (reshard_entry){RESHARD_ENTRY_INIT, .src = p->layouts[0], .dst = p->layouts[1], .dtype = dtype};
}

/* n x n boxes of 8 x 8, shifted by `shift`, distributed to w ranks in bands (by rows, or by columns). */
static reshard_layout make_grid(int64_t n, int64_t shift, int64_t w, int by_columns) {
  int64_t extent = n * 8, shape[2] = {extent, extent}, m = n + (shift > 0), count = 0;
  reshard_box *boxes = calloc((size_t)(m * m), sizeof *boxes);
  int64_t *ranks = calloc((size_t)(m * m), sizeof *ranks);
  for (int64_t i = 0; i < m; i++)
    for (int64_t j = 0; j < m; j++) {
      int64_t at[2] = {i * 8 - shift, j * 8 - shift};
      for (int d = 0; d < 2; d++) {
        int64_t lo = at[d] < 0 ? 0 : at[d], hi = at[d] + 8 > extent ? extent : at[d] + 8;
        boxes[count].offset[d] = lo;
        boxes[count].extent[d] = hi - lo;
      }
      ranks[count++] = (by_columns ? j : i) * w / m;
    }
  reshard_layout layout = NULL;
  reshard_layout_create_boxes(2, shape, w, count, ranks, boxes, 0, &layout);
  free(boxes);
  free(ranks);
  return layout;
}

/* Tiles against tiles that are shifted by half: each meets four. A dry world of 64 ranks, all of them planned. */
static void *tiles_make(const micro_case *of, int64_t *items) {
  plan_bench *p = plan_bench_make(1, 2);
  int64_t n = 1;
  while (4 * n * n < of->parameter)
    n++;
  p->layouts[0] = make_grid(n, 0, 64, 0);
  p->layouts[1] = make_grid(n, 4, 64, 1);
  if (p->layouts[0] == NULL || p->layouts[1] == NULL)
    return plan_bench_fail(p);
  set_entry(p, RESHARD_F32);
  p->last = 64;
  *items = 4 * n * n;
  return p;
}

/* n stripes of rows against n stripes of columns, a rank each. */
static void *stripes_make(const micro_case *of, int64_t *items) {
  int64_t n = 1;
  while (n * n < of->parameter)
    n++;
  plan_bench *p = plan_bench_make(1, 2);
  reshard_box *boxes = calloc((size_t)n, sizeof *boxes);
  int64_t *ranks = calloc((size_t)n, sizeof *ranks), shape[2] = {n * 8, n * 8};
  for (int side = 0; side < 2; side++) {
    for (int64_t i = 0; i < n; i++) {
      boxes[i] = (reshard_box){.offset = {side == 0 ? i * 8 : 0, side == 0 ? 0 : i * 8},
                               .extent = {side == 0 ? 8 : n * 8, side == 0 ? n * 8 : 8}};
      ranks[i] = i;
    }
    reshard_layout_create_boxes(2, shape, n, n, ranks, boxes, 0, &p->layouts[side]);
  }
  free(boxes);
  free(ranks);
  if (p->layouts[0] == NULL || p->layouts[1] == NULL)
    return plan_bench_fail(p);
  set_entry(p, RESHARD_F32);
  p->last = n;
  *items = n * n;
  return p;
}

/* One rank of a world of any size; the text is "SRC|DST". */
static void *pair_make(const micro_case *of, int64_t *items) {
  static const int64_t shape[2] = {1 << 20, 1 << 14};
  plan_bench *p = plan_bench_make(1, 2);
  const char *dst = strchr(of->text, '|') + 1;
  char src[64];
  snprintf(src, sizeof src, "%.*s", (int)(dst - 1 - of->text), of->text);
  if (reshard_layout_parse(src, 2, shape, of->parameter, &p->layouts[0]) != RESHARD_SUCCESS ||
      reshard_layout_parse(dst, 2, shape, of->parameter, &p->layouts[1]) != RESHARD_SUCCESS)
    return plan_bench_fail(p);
  set_entry(p, RESHARD_BF16);
  p->first = of->more[0];
  p->last = p->first + 1;
  *items = 1;
  return p;
}

/* All tensors of a model, rank 3; rule files are found from the root of the source tree. */
static void *llama_make(const micro_case *of, int64_t *items) {
  (void)of;
  reshard_model model = NULL;
  reshard_rules rules[2] = {NULL, NULL};
  plan_bench *p = NULL;
  reshard_status status = reshard_model_preset("llama-3.1-70b", &model);
  if (status == RESHARD_SUCCESS)
    status = reshard_rules_load("bench/models/rules/fsdp.rules", &rules[0]);
  if (status == RESHARD_SUCCESS)
    status = reshard_rules_load("bench/models/rules/tp.rules", &rules[1]);
  if (status == RESHARD_SUCCESS)
    status = reshard_rules_set_size(rules[1], "tp", 8, NULL);
  if (status == RESHARD_SUCCESS) {
    int64_t n = reshard_model_count(model);
    p = plan_bench_make(n, 2 * n);
    for (int64_t i = 0; i < n && status == RESHARD_SUCCESS; i++) {
      reshard_model_tensor t;
      status = reshard_model_get(model, i, &t);
      for (int side = 0; side < 2 && status == RESHARD_SUCCESS; side++)
        status = reshard_rules_layout(rules[side], t.name, t.ndim, t.shape, 64, &p->layouts[2 * i + side]);
      p->entries[i] =
          (reshard_entry){RESHARD_ENTRY_INIT, .src = p->layouts[2 * i], .dst = p->layouts[2 * i + 1], .dtype = t.dtype};
    }
    p->first = 3;
    p->last = 4;
    *items = n;
  }
  reshard_rules_free(rules[0]);
  reshard_rules_free(rules[1]);
  reshard_model_free(model);
  return status == RESHARD_SUCCESS || p == NULL ? p : plan_bench_fail(p);
}

/* Validating n boxes: creating the layout, tree included. */
typedef struct validate_bench {
  int64_t n, shape[2], *ranks;
  reshard_box *boxes;
} validate_bench;

static void *validate_make(const micro_case *of, int64_t *items) {
  validate_bench *v = calloc(1, sizeof *v);
  int64_t side = 1;
  while (side * side < of->parameter)
    side++;
  v->n = side * side;
  v->shape[0] = v->shape[1] = side * 8;
  v->ranks = calloc((size_t)v->n, sizeof *v->ranks);
  v->boxes = calloc((size_t)v->n, sizeof *v->boxes);
  for (int64_t i = 0; i < v->n; i++) {
    v->ranks[i] = i % 64;
    v->boxes[i] = (reshard_box){.offset = {i / side * 8, i % side * 8}, .extent = {8, 8}};
  }
  *items = v->n;
  return v;
}

static int validate_run(void *state) {
  validate_bench *v = state;
  reshard_layout layout;
  if (reshard_layout_create_boxes(2, v->shape, 64, v->n, v->ranks, v->boxes, 0, &layout) != RESHARD_SUCCESS)
    return 1;
  int wrong = reshard_layout_check_source(layout) != RESHARD_SUCCESS;
  reshard_layout_release(layout);
  return wrong;
}

static void validate_drop(void *state) {
  validate_bench *v = state;
  free(v->ranks);
  free(v->boxes);
  free(v);
}

/* Execute of a prepared transfer that has nothing to move, one rank. */
typedef struct idle_bench {
  reshard_comm comm;
  reshard_plan plan;
  reshard_transfer transfer;
} idle_bench;

static void idle_drop(void *state) {
  idle_bench *i = state;
  reshard_transfer_destroy(i->transfer);
  reshard_plan_destroy(i->plan);
  reshard_comm_destroy(i->comm);
  free(i);
}

static void *idle_make(const micro_case *of, int64_t *items) {
  idle_bench *i = calloc(1, sizeof *i);
  int64_t shape[1] = {0};
  reshard_layout layout = NULL;
  reshard_transfer_options options = {RESHARD_TRANSFER_OPTIONS_INIT, .path = (reshard_path)of->parameter};
  reshard_status status = reshard_layout_create_single(1, shape, 1, 0, &layout);
  reshard_entry entry = {RESHARD_ENTRY_INIT, .src = layout, .dst = layout, .dtype = RESHARD_F32};
  void *none = NULL;
  reshard_arrays arrays = {RESHARD_ARRAYS_INIT, .src = &none, .dst = &none};
  if (status == RESHARD_SUCCESS)
    status = reshard_comm_create_local(1, NULL, &i->comm);
  if (status == RESHARD_SUCCESS)
    status = reshard_plan_create(1, &entry, 0, NULL, &i->plan);
  if (status == RESHARD_SUCCESS)
    status = reshard_transfer_create(i->plan, i->comm, &arrays, &options, &i->transfer);
  reshard_layout_release(layout);
  *items = 1;
  if (status == RESHARD_SUCCESS)
    return i;
  idle_drop(i);
  return NULL;
}

static int idle_run(void *state) { return reshard_execute(((idle_bench *)state)->transfer, NULL) != RESHARD_SUCCESS; }

#define PLANS(name, parameter, iterations, make, run) \
  { "plan_" name, parameter, iterations, make, run, plan_bench_drop, {0}, NULL }
#define PAIR(name, world, rank, text) \
  { "plan_one_rank_" name "of_world", world, 0, pair_make, plan_bench_run, plan_bench_drop, {rank}, text }
static const micro_case micro_plans[] = {
    PLANS("boxes_tiles_64_ranks", 1000000, 3, tiles_make, plan_bench_run),
    PLANS("boxes_tiles_64_ranks", 2000000, 3, tiles_make, plan_bench_run),
    PLANS("boxes_stripes_1000_ranks", 1000000, 3, stripes_make, plan_bench_run),
    PLANS("boxes_stripes_1414_ranks", 2000000, 3, stripes_make, plan_bench_run),
    PLANS("all_boxes_tiles_64_ranks", 1000000, 3, tiles_make, plan_all_run),
    PLANS("all_boxes_tiles_64_ranks", 2000000, 3, tiles_make, plan_all_run),
    PLANS("all_boxes_stripes_1000_ranks", 1000000, 3, stripes_make, plan_all_run),
    PLANS("all_boxes_stripes_1414_ranks", 2000000, 3, stripes_make, plan_all_run),
    PAIR("16_peers_", 64, 7, "mesh(4x16;S0,S1)|chunk(0)"),
    PAIR("16_peers_", 16384, 777, "mesh(1024x16;S0,S1)|chunk(0)"),
    PAIR("256_peers_", 16384, 777, "mesh(64x256;S0,S1)|chunk(0)"),
    PAIR("replicated_", 16384, 777, "mesh(64x256;R,S0)|mesh(64x256;R,S1)"),
    PAIR("replicated_narrow_", 16384, 777, "mesh(128x128;R,S0)|chunk(1)"),
    PAIR("chunks_", 64, 7, "chunk(0)|chunk(1)"),
    PAIR("chunks_", 4096, 7, "chunk(0)|chunk(1)"),
    PAIR("flat_", 64, 7, "flat()|chunk(1)"),
    PAIR("flat_", 4096, 7, "flat()|chunk(1)"),
    PAIR("cyclic_", 64, 7, "cyclic(8x8;4096x64)|cyclic(8x8;6144x96)"),
    PAIR("cyclic_", 4096, 7, "cyclic(64x64;4096x64)|cyclic(64x64;6144x96)"),
    PLANS("llama_70b_one_rank", 0, 0, llama_make, plan_bench_run),
    {"validate_boxes", 1000000, 3, validate_make, validate_run, validate_drop, {0}, NULL},
    {"execute_nothing_direct", RESHARD_PATH_DIRECT, 0, idle_make, idle_run, idle_drop, {0}, NULL},
    {"execute_nothing_packed", RESHARD_PATH_PACKED, 0, idle_make, idle_run, idle_drop, {0}, NULL},
};
MICRO_TABLE(micro_plans, NULL)
