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

static void *layout_make(const micro_case *of, int64_t *items) {
  layout_bench *b = calloc(1, sizeof *b);
  if (b == NULL)
    return NULL;
  *b = (layout_bench){.text = of->text, .shape = {1 << 20, 1 << 14}};
  *items = of->more[0];
  if (reshard_layout_parse(of->text, 2, b->shape, WORLD, &b->layout) == RESHARD_SUCCESS)
    return b;
  layout_drop(b);
  return NULL;
}

static int parse_run(void *state) {
  layout_bench *b = state;
  reshard_layout made;
  if (reshard_layout_parse(b->text, 2, b->shape, WORLD, &made) != RESHARD_SUCCESS)
    return 1;
  reshard_layout_release(made);
  return 0;
}

/* side x side boxes, rank after rank. */
static void *boxes_make(const micro_case *of, int64_t *items) {
  layout_bench *b = calloc(1, sizeof *b);
  int64_t side = 1;
  while (side * side < of->parameter)
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

#define MESH   "mesh(dp=64,tp=64;S0,S1;order=tp,dp)"
#define CYCLIC "cyclic(64x64;32x32)"
#define PARSE(name, text) \
  { "layout_parse_" name, 0, 0, layout_make, parse_run, layout_drop, {1}, text }
#define MEET(name, parameter, make, text) \
  { "layout_meet_" name, parameter, 0, make, meet_run, layout_drop, {QUERIES}, text }
static const micro_case micro_layouts[] = {
    PARSE("chunk", "chunk(0)"),
    PARSE("mesh", MESH),
    PARSE("cyclic", CYCLIC),
    PARSE("flat", "flat()"),
    MEET("mesh", 0, layout_make, MESH),
    MEET("cyclic", 0, layout_make, CYCLIC),
    MEET("boxes", 4096, boxes_make, NULL),
    MEET("boxes", 262144, boxes_make, NULL),
};
MICRO_TABLE(micro_layouts, NULL)
