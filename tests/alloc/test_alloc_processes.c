/* The direct path between processes where one rank's k-th allocation fails: all ranks hear of it, none keeps anything,
 * and the next call works. */
#include "support/fault.h"
#include "support/fixtures/case.h"
#include "support/processes/processes.h"

#include <reshard/dtensor.h>
#include <reshard/reshard.h>
#include <reshard/tensor.h>

#include <string.h>

enum { RANKS = 3, SIDE = 12, VICTIM = 1 };
#define GOOD(call) CHILD_CHECK((call) == RESHARD_SUCCESS)

typedef struct side {
  reshard_comm comm;
  reshard_plan plan;
  void *src[2], *dst;
  int64_t strides[2][2];
} side;

static reshard_arrays arrays_of(const side *s, int which, const int64_t *list[1]) {
  list[0] = s->strides[which];
  return (reshard_arrays){RESHARD_ARRAYS_INIT, &s->src[which], &s->dst, list, NULL, 1, 1};
}

/* Each call of all ranks, with the victim's k-th allocation failing, until there is none left to fail. */
static void fail_each(processes *all, int64_t rank, side *s, reshard_transfer *transfer) {
  const int64_t *list[1];
  const reshard_transfer_options options = {RESHARD_TRANSFER_OPTIONS_INIT, .path = RESHARD_PATH_DIRECT};
  bool rebinds = *transfer != NULL, fired = true;
  int64_t k = 0;
  for (; fired; k++) {
    reshard_arrays arrays = arrays_of(s, (int)(k % 2), list);
    reshard_transfer made = NULL;
    int64_t live = fault_live();
    fault_arm(rank == VICTIM ? k : -1);
    reshard_status status =
        rebinds ? reshard_transfer_rebind(*transfer, &arrays)
                : reshard_transfer_create_all(1, &s->plan, &s->comm, (const reshard_arrays *[]){&arrays},
                                              (const reshard_transfer_options *[]){&options}, &made);
    (void)fault_disarm();
    if (rank == VICTIM)
      atomic_store(&all->step[0], fault_fired() != FAULT_NONE);
    if (status != RESHARD_SUCCESS)
      CHILD_CHECK(fault_live() == live && made == NULL);
    GOOD(reshard_comm_barrier(s->comm));
    fired = atomic_load(&all->step[0]);
    CHILD_CHECK(status == (fired ? RESHARD_ERROR_OUT_OF_MEMORY : RESHARD_SUCCESS));
    CHILD_CHECK(!fired || strstr(reshard_last_error(), "rank 1: ") != NULL);
    if (!fired && !rebinds)
      *transfer = made;
    if (rebinds) /* bound as before, or anew */
      GOOD(reshard_execute(*transfer, NULL));
    GOOD(reshard_comm_barrier(s->comm));
  }
  CHILD_CHECK(k > 10);
}

static void fail_allocations(processes *all, int64_t rank, void *user) {
  side s = {.strides = {{SIDE, 1}, {SIDE, 1}}};
  int64_t shape[] = {SIDE, SIDE}, bytes = SIDE * SIDE / RANKS * 4;
  reshard_device device;
  reshard_layout rows, columns;
  reshard_tensor tensors[3];
  reshard_tensor_info info;
  reshard_transfer transfer = NULL, first = NULL;
  fault_mark(true);
  const reshard_device_options options = {RESHARD_DEVICE_OPTIONS_INIT, .threads = 1, .shared = 1};
  GOOD(reshard_device_create("cpu", &options, &device));
  GOOD(processes_comm(all, rank, device, 60000, &s.comm));
  for (int i = 0; i < 3; i++) {
    GOOD(reshard_tensor_create_on(device, RESHARD_U8, 1, &bytes, NULL, &tensors[i]));
    GOOD(reshard_tensor_get_info(tensors[i], &info));
    *(i < 2 ? &s.src[i] : &s.dst) = info.data;
    memset(info.data, (int)rank + 1, (size_t)bytes);
  }
  GOOD(reshard_layout_parse("chunk(0)", 2, shape, RANKS, &rows));
  GOOD(reshard_layout_parse("chunk(1)", 2, shape, RANKS, &columns));
  reshard_entry entry = {RESHARD_ENTRY_INIT, .src = rows, .dst = columns, .dtype = RESHARD_F32};
  GOOD(reshard_plan_create(1, &entry, rank, NULL, &s.plan));
  const int64_t *list[1];
  reshard_arrays arrays = arrays_of(&s, 0, list); /* what is kept from the first time on */
  const reshard_transfer_options direct = {RESHARD_TRANSFER_OPTIONS_INIT, .path = RESHARD_PATH_DIRECT};
  GOOD(reshard_transfer_create(s.plan, s.comm, &arrays, &direct, &first));
  fail_each(all, rank, &s, &transfer);
  fail_each(all, rank, &s, &transfer);
  memset(s.dst, 0, (size_t)bytes);
  GOOD(reshard_execute(transfer, NULL));
  for (int64_t i = 0; i < bytes; i++)
    CHILD_CHECK(((char *)s.dst)[i] == i / (bytes / RANKS) + 1);
  reshard_transfer_destroy(transfer);
  reshard_transfer_destroy(first);
  reshard_plan_destroy(s.plan);
  reshard_layout_release(rows);
  reshard_layout_release(columns);
  for (int i = 0; i < 3; i++)
    reshard_tensor_release(tensors[i]);
  reshard_comm_destroy(s.comm);
  reshard_device_release(device);
}

/* --- Repeated calls ----------------------------------------------------------------------------------------------- */

/* One rank of a matrix that is redistributed from rows to columns. */
typedef struct mover {
  reshard_comm comm;
  reshard_mesh mesh;
  reshard_placement placement[2];
  int order[2];
  reshard_dtensor rows[2]; /* calls take them by turns */
} mover;

static reshard_status redistribute(const mover *m, int64_t turn, reshard_dtensor *moved) {
  reshard_placing placing = {m->mesh, &m->placement[1], &m->order[1]};
  *moved = NULL;
  return reshard_dtensor_redistribute(1, &m->rows[turn % 2], &placing, NULL, moved);
}

static float value_at(int64_t row, int64_t column, int64_t turn) {
  return (float)(row * SIDE + column + turn % 2 * 1000);
}

static float *data_of(reshard_dtensor tensor) {
  reshard_tensor_info info;
  GOOD(reshard_tensor_get_info(reshard_dtensor_local(tensor), &info));
  return info.data;
}

static void check_columns(int64_t rank, reshard_dtensor moved, int64_t turn) {
  const float *data = data_of(moved);
  for (int64_t i = 0; i < SIDE * SIDE / RANKS; i++)
    CHILD_CHECK(data[i] == value_at(i / (SIDE / RANKS), rank * (SIDE / RANKS) + i % (SIDE / RANKS), turn));
}

/* The victim's k-th allocation fails in call k: an error on all ranks. The same call succeeds then. */
static void fail_calls(processes *all, int64_t rank, const mover *m) {
  bool fired = true;
  int64_t k = 0;
  for (; fired; k++) {
    reshard_dtensor moved;
    fault_arm(rank == VICTIM ? k : -1);
    reshard_status status = redistribute(m, k, &moved);
    (void)fault_disarm();
    if (rank == VICTIM)
      atomic_store(&all->step[0], fault_fired() != FAULT_NONE);
    CHILD_CHECK((status == RESHARD_SUCCESS) == (moved != NULL));
    GOOD(reshard_comm_barrier(m->comm));
    fired = atomic_load(&all->step[0]);
    CHILD_CHECK(status == (fired ? RESHARD_ERROR_OUT_OF_MEMORY : RESHARD_SUCCESS));
    CHILD_CHECK(!fired || strstr(reshard_last_error(), "rank 1: ") != NULL);
    for (int again = 0; again < 2; again++) {
      reshard_dtensor_release(moved);
      GOOD(redistribute(m, k + again, &moved));
      check_columns(rank, moved, k + again);
    }
    reshard_dtensor_release(moved);
    GOOD(reshard_comm_barrier(m->comm));
  }
  CHILD_CHECK(k > 5);
}

static void fail_repeated(processes *all, int64_t rank, void *user) {
  const reshard_sharder_options *options = user;
  const int64_t shape[] = {SIDE, SIDE};
  const reshard_properties properties = {.dtype = RESHARD_F32};
  reshard_sharder sharder;
  mover m;
  fault_mark(true);
  GOOD(processes_comm(all, rank, NULL, 60000, &m.comm));
  GOOD(reshard_sharder_create(m.comm, options, &sharder));
  GOOD(reshard_mesh_parse(m.comm, 0, "tp=3", &m.mesh));
  GOOD(reshard_placements_parse("S0", m.mesh, &m.placement[0], &m.order[0]));
  GOOD(reshard_placements_parse("S1", m.mesh, &m.placement[1], &m.order[1]));
  for (int t = 0; t < 2; t++) {
    reshard_placing placing = {m.mesh, &m.placement[0], &m.order[0]};
    GOOD(reshard_dtensor_empty(sharder, &placing, 2, shape, &properties, NULL, &m.rows[t]));
    float *data = data_of(m.rows[t]);
    for (int64_t i = 0; i < SIDE * SIDE / RANKS; i++)
      data[i] = value_at(rank * (SIDE / RANKS) + i / SIDE, i % SIDE, t);
  }
  fail_calls(all, rank, &m);
  fail_calls(all, rank, &m);
  for (int t = 0; t < 2; t++)
    reshard_dtensor_release(m.rows[t]);
  reshard_mesh_release(m.mesh);
  reshard_sharder_destroy(sharder);
  reshard_comm_destroy(m.comm);
}

CASE(repeated_calls_survive_a_failed_allocation_of_one_process) {
  reshard_sharder_options options[2] = {{.size = RESHARD_SHARDER_OPTIONS_INIT},
                                        {.size = RESHARD_SHARDER_OPTIONS_INIT, .cached_plans = -1}};
  for (int i = 0; i < 2; i++)
    assert_int_equal(processes_run(RANKS, 0, fail_repeated, &options[i]), 0);
}

CASE(failed_allocation_of_one_process_is_told_to_all) {
  assert_int_equal(processes_run(RANKS, 0, fail_allocations, NULL), 0);
}

RUN_CASES
