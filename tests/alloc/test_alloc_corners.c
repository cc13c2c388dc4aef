/* The k-th allocation fails while boxes of a tensor with more elements than 64 bits count are checked. */
#include "support/fault_local.h"
#include "support/fixtures/case.h"

#include "layout/boxes.h"

enum { NDIM = 3, BOXES = 8 };
#define SIDE ((int64_t)1 << 30)

typedef struct corner_case {
  int64_t shape[NDIM], corners[BOXES * 2 * NDIM], box[BOXES], n, excess;
} corner_case;

static reshard_status check_corners(fault_output *out, const void *with) {
  const corner_case *c = with;
  int64_t excess = 0, point[RESHARD_MAX_DIMS];
  RS_TRY(rs_corners_check(NDIM, c->shape, c->corners, c->n, c->box, &excess, point));
  out->number = excess;
  return RESHARD_SUCCESS;
}

static bool has_excess(const fault_output *out, const void *with) {
  return (out->number > 0) - (out->number < 0) == ((const corner_case *)with)->excess;
}

/* Eight boxes, the octants of a cube of that side; the last one larger or smaller. */
static corner_case octants(int64_t side, int64_t more) {
  corner_case c = {.n = BOXES, .excess = (more > 0) - (more < 0)};
  for (int64_t b = 0; b < BOXES; b++) {
    c.box[b] = b;
    for (int d = 0; d < NDIM; d++) {
      int64_t upper = b >> d & 1;
      c.shape[d] = side;
      c.corners[b * 2 * NDIM + d] = upper * side / 2 - (b == BOXES - 1 && d == 0 ? more : 0);
      c.corners[b * 2 * NDIM + NDIM + d] = (upper + 1) * side / 2;
    }
  }
  return c;
}

CASE(checks_of_huge_boxes_survive_any_failed_allocation) {
  for (int64_t side = 16; side <= SIDE; side *= SIDE / 16)
    for (int64_t more = -1; more <= 1; more++) {
      corner_case c = octants(side, more);
      assert_true(fault_local_run(&(fault_local){"corners", check_corners, has_excess, NULL, &c}) >= 2);
    }
}

RUN_CASES
