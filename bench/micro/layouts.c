/* Layouts: parsing their strings, and asking who holds what: by arithmetic in regular ones, by a search in lists of
 * boxes. */
#include "bench/micro/micro.h"

#include <reshard/layout.h>

#include <stdlib.h>

enum { QUERIES = 1024, WORLD = 4096 };

typedef struct layout_bench {
  const char *text;
  reshard_layout layout;
  int64_t shape[2], found;
} layout_bench;

static void layout_drop(void *state) {
  layout_bench *b = state;
  reshard_layout_release(b->layout);
  free(b);
}

static void *layout_open(const char *text, int64_t world) {
  layout_bench *b = calloc(1, sizeof *b);
  if (b == NULL)
    return NULL;
  *b = (layout_bench){.text = text, .shape = {1 << 20, 1 << 14}};
  if (reshard_layout_parse(text, 2, b->shape, world, &b->layout) == RESHARD_SUCCESS)
    return b;
  layout_drop(b);
  return NULL;
}

#define OPEN(name, text) \
  static void *name(int64_t parameter, int64_t *items) { \
    (void)parameter; \
    *items = 1; \
    return layout_open(text, WORLD); \
  }
OPEN(chunk_make, "chunk(0)")
OPEN(mesh_make, "mesh(dp=64,tp=64;S0,S1;order=tp,dp)")
OPEN(cyclic_make, "cyclic(64x64;32x32)")
OPEN(flat_make, "flat()")

static int parse_run(void *state) {
  layout_bench *b = state;
  reshard_layout made;
  if (reshard_layout_parse(b->text, 2, b->shape, WORLD, &made) != RESHARD_SUCCESS)
    return 1;
  reshard_layout_release(made);
  return 0;
}

/* side x side boxes, rank after rank. */
static void *boxes_make(int64_t wanted, int64_t *items) {
  layout_bench *b = calloc(1, sizeof *b);
  int64_t side = 1;
  while (side * side < wanted)
    side *= 2;
  reshard_box *boxes = calloc((size_t)(side * side), sizeof *boxes);
  int64_t *ranks = calloc((size_t)(side * side), sizeof *ranks);
  reshard_status status = RESHARD_ERROR_OUT_OF_MEMORY;
  if (b != NULL && boxes != NULL && ranks != NULL) {
    b->shape[0] = b->shape[1] = side * 64;
    for (int64_t i = 0; i < side * side; i++) {
      boxes[i] = (reshard_box){.offset = {i / side * 64, i % side * 64}, .extent = {64, 64}};
      ranks[i] = i % WORLD;
    }
    status = reshard_layout_create_boxes(2, b->shape, WORLD, side * side, ranks, boxes, 0, &b->layout);
  }
  free(boxes);
  free(ranks);
  *items = QUERIES;
  if (status == RESHARD_SUCCESS)
    return b;
  free(b);
  return NULL;
}

static void *cyclic_queries_make(int64_t parameter, int64_t *items) {
  void *made = cyclic_make(parameter, items);
  *items = QUERIES;
  return made;
}
static void *mesh_queries_make(int64_t parameter, int64_t *items) {
  void *made = mesh_make(parameter, items);
  *items = QUERIES;
  return made;
}

static int count_holder(void *user, int64_t rank, int64_t array, int64_t elements) {
  (void)rank, (void)array;
  *(int64_t *)user += elements;
  return 0;
}

/* The holders of boxes of 100 x 100 all over the tensor. */
static int meet_run(void *state) {
  layout_bench *b = state;
  for (int64_t i = 0; i < QUERIES; i++) {
    uint64_t place = (uint64_t)i * 0x9e3779b97f4a7c15u;
    reshard_box box = {
        .offset = {(int64_t)(place >> 33) % (b->shape[0] - 100), (int64_t)(place & 0x7fffffff) % (b->shape[1] - 100)},
        .extent = {100, 100}};
    if (reshard_layout_meet(b->layout, &box, count_holder, &b->found) != RESHARD_SUCCESS)
      return 1;
  }
  return b->found == 0;
}

#define CASE(name, parameter, make, run) \
  { name, parameter, 0, make, run, layout_drop }
static const micro_case micro_layouts[] = {
    CASE("layout_parse_chunk", 0, chunk_make, parse_run),
    CASE("layout_parse_mesh", 0, mesh_make, parse_run),
    CASE("layout_parse_cyclic", 0, cyclic_make, parse_run),
    CASE("layout_parse_flat", 0, flat_make, parse_run),
    CASE("layout_meet_mesh", 0, mesh_queries_make, meet_run),
    CASE("layout_meet_cyclic", 0, cyclic_queries_make, meet_run),
    CASE("layout_meet_boxes", 4096, boxes_make, meet_run),
    CASE("layout_meet_boxes", 262144, boxes_make, meet_run),
};
MICRO_TABLE(micro_layouts, NULL)
