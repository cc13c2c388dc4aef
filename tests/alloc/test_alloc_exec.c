/* The k-th allocation fails while a transfer is made, of numbers with scales whose other side is cut within blocks. */
#include "support/fault_local.h"
#include "support/fixtures/case.h"
#include "support/fixtures/expect.h"

#include <string.h>

enum { ROWS = 8, COLUMNS = 6, CUT = 3, HIGH = 2, WIDE = 3, ACROSS = COLUMNS / WIDE };

typedef struct scaled_case {
  reshard_plan plan;
  reshard_comm comm;
  unsigned char values[ROWS * COLUMNS];
  float scales[ROWS / HIGH * ACROSS], upper[CUT * COLUMNS], lower[(ROWS - CUT) * COLUMNS];
  void *src[2], *dst[2];
} scaled_case;

static reshard_status create_transfer(fault_output *out, const void *with) {
  const scaled_case *c = with;
  const reshard_arrays arrays = {.size = RESHARD_ARRAYS_INIT, .src = c->src, .dst = c->dst};
  const reshard_transfer_options direct = {.size = RESHARD_TRANSFER_OPTIONS_INIT, .path = RESHARD_PATH_DIRECT};
  reshard_transfer made;
  reshard_status status = reshard_transfer_create(c->plan, c->comm, &arrays, &direct, &made);
  if (status == RESHARD_SUCCESS)
    out->object = made;
  return status;
}

/* All values are 1: a number is its block's scale. */
static bool moves_all(const fault_output *out, const void *with) {
  const scaled_case *c = with;
  memset(c->dst[0], 0, sizeof c->upper);
  memset(c->dst[1], 0, sizeof c->lower);
  bool right = reshard_execute(out->object, NULL) == RESHARD_SUCCESS;
  for (int i = 0; i < ROWS * COLUMNS; i++) {
    int row = i / COLUMNS, column = i % COLUMNS;
    float number = row < CUT ? c->upper[i] : c->lower[i - CUT * COLUMNS];
    right = right && number == c->scales[row / HIGH * ACROSS + column / WIDE];
  }
  return right;
}
static void drop_transfer(fault_output *out) { reshard_transfer_destroy(out->object); }

CASE(parts_of_blocks_survive_any_failed_allocation) {
  static const int64_t shape[] = {ROWS, COLUMNS}, block[] = {HIGH, WIDE};
  static scaled_case c = {.src = {c.values, c.scales}, .dst = {c.upper, c.lower}};
  const reshard_local_options options = {.size = RESHARD_LOCAL_OPTIONS_INIT, .threads = 1};
  reshard_entry entry = {
      .size = RESHARD_ENTRY_INIT, .dtype = RESHARD_F8_E4M3, .dst_dtype = RESHARD_F32, .block = block};
  entry.scale_dtype = RESHARD_F32;
  memset(c.values, 0x38, sizeof c.values);
  for (int i = 0; i < ROWS / HIGH * ACROSS; i++)
    c.scales[i] = (float)(i + 1);
  GOOD(reshard_layout_parse("rank(0)", 2, shape, 1, &entry.src));
  GOOD(reshard_layout_parse("boxes(0:[0,0]+[3,6];0:[3,0]+[5,6])", 2, shape, 1, &entry.dst));
  GOOD(reshard_plan_create(1, &entry, 0, NULL, &c.plan));
  GOOD(reshard_comm_create_local(1, &options, &c.comm));
  assert_true(fault_local_run(&(fault_local){"parts", create_transfer, moves_all, drop_transfer, &c}) > 10);
  reshard_comm_destroy(c.comm);
  reshard_plan_destroy(c.plan);
  reshard_layout_release(entry.src);
  reshard_layout_release(entry.dst);
}

RUN_CASES
