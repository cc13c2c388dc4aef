/* Steps that an execute on the CPU tells a tracer: each that begins on a thread ends there, on every path. */
#include "support/fixtures/sharded_ranks.h"

#include "bench/cli/util.h"
#include "comm/comm.h"
#include "device/trace.h"
#include "support/fixtures/case.h"
#include "support/processes/process_matrix.h"

#include <reshard/sync.h>

#include <stdatomic.h>
#include <string.h>

enum { RANKS = 3 };

typedef struct step_counter {
  rs_tracer tracer; /* first */
  atomic_int begun, ended, unbegun, works;
} step_counter;

static _Thread_local int depth;

static void begin_step(rs_tracer *tracer, rs_device *device, void *stream, const rs_trace_step *step) {
  step_counter *c = (step_counter *)tracer;
  (void)device, (void)stream;
  depth++;
  c->begun++;
  c->works += step->kind == RS_TRACE_WORK && step->name != NULL;
}

static void end_step(rs_tracer *tracer, rs_device *device, void *stream) {
  step_counter *c = (step_counter *)tracer;
  (void)device, (void)stream;
  c->unbegun += --depth < 0;
  c->ended++;
}

typedef struct traced {
  reshard_path path;
  int64_t limit; /* of the workspace */
} traced;

static void execute_body(void *user, int64_t rank) {
  sharded_ranks *p = user;
  const traced *t = p->user;
  const int64_t shape[] = {120, 100}, row[] = {40, 100}, column[] = {120, rank < 2 ? 34 : 32};
  reshard_layout rows = layout_from_text("chunk(0)", 2, shape, RANKS),
                 columns = layout_from_text("chunk(1)", 2, shape, RANKS);
  reshard_entry entry = {RESHARD_ENTRY_INIT, .src = rows, .dst = columns, .dtype = RESHARD_F32};
  reshard_plan_options limited = {.size = RESHARD_PLAN_OPTIONS_INIT, .workspace_limit = t->limit};
  reshard_transfer_options on_path = {.size = RESHARD_TRANSFER_OPTIONS_INIT, .path = t->path};
  reshard_tensor src, dst;
  reshard_tensor_info from, to;
  reshard_plan plan;
  reshard_transfer transfer;
  depth = 0;
  CLI_TRY("", reshard_tensor_create(RESHARD_F32, 2, row, &src));
  CLI_TRY("", reshard_tensor_create(RESHARD_F32, 2, column, &dst));
  CLI_TRY("", reshard_tensor_get_info(src, &from));
  CLI_TRY("", reshard_tensor_get_info(dst, &to));
  array_fill(rows, rank, 0, src, 1);
  void *sources[] = {from.data};
  void *destinations[] = {to.data};
  reshard_arrays arrays = {RESHARD_ARRAYS_INIT, .src = sources, .dst = destinations};
  CLI_TRY("", reshard_plan_create(1, &entry, rank, &limited, &plan));
  CLI_TRY("", reshard_transfer_create(plan, p->comms[rank], &arrays, &on_path, &transfer));
  rank_result_set(&p->results[rank], reshard_execute(transfer, NULL));
  p->wrong[rank] += array_check(columns, rank, 0, dst, 1) + (depth != 0);
  reshard_transfer_destroy(transfer);
  reshard_plan_destroy(plan);
  reshard_tensor_release(dst);
  reshard_tensor_release(src);
  reshard_layout_release(columns);
  reshard_layout_release(rows);
}

CASE(steps_end_on_the_thread_that_began_them) {
  static traced ways[] = {{RESHARD_PATH_DIRECT, 0}, {RESHARD_PATH_PACKED, 0}, {RESHARD_PATH_PACKED, 2048}};
  for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
    static step_counter counter;
    sharded_ranks ranks;
    memset(&counter, 0, sizeof counter);
    counter.tracer = (rs_tracer){begin_step, end_step};
    sharded_ranks_open(&ranks, RANKS, NULL);
    for (int r = 0; r < RANKS; r++)
      ranks.comms[r]->device->tracer = &counter.tracer;
    sharded_ranks_run(&ranks, execute_body, &ways[i]);
    for (int r = 0; r < RANKS; r++)
      ranks.comms[r]->device->tracer = NULL;
    sharded_ranks_assert(&ranks, RESHARD_SUCCESS, NULL);
    assert_true(counter.works > RANKS); /* each rank's execute, and what is in it */
    assert_int_equal(counter.begun, counter.ended);
    assert_int_equal(counter.unbegun, 0);
    sharded_ranks_close(&ranks);
  }
}

/* Processes that read each other's memory, in a call that keeps its plan. */
static void sync_body(processes *all, int64_t rank, void *user) {
  step_counter counter = {.tracer = {begin_step, end_step}};
  reshard_device device;
  reshard_comm comm;
  void *data;
  open_device(1, &device);
  CHILD_CHECK(processes_comm(all, rank, NULL, 60000, &comm) == RESHARD_SUCCESS);
  reshard_tensor tensor = alloc_on(device, 4096, &data);
  comm->device->tracer = &counter.tracer;
  for (int turn = 0; turn < 3; turn++) {
    memset(data, (int)rank + turn, 4096);
    CHILD_CHECK(reshard_sync_tensors(comm, 1, 1, &tensor, NULL, NULL, NULL, NULL) == RESHARD_SUCCESS);
    CHILD_CHECK(*(unsigned char *)data == 1 + turn);
    CHILD_CHECK(counter.begun == counter.ended && counter.unbegun == 0 && depth == 0);
  }
  CHILD_CHECK(counter.works > 0);
  comm->device->tracer = NULL;
  reshard_tensor_release(tensor);
  reshard_device_release(device);
  reshard_comm_destroy(comm);
}

CASE(steps_of_processes_are_told) { assert_int_equal(processes_run(2, 0, sync_body, NULL), 0); }

RUN_CASES
