/* A rank is lost in the middle of an execute of many rounds, in a ring: the next rank waits for it, and the one after
 * that for the next rank. That one alone has a short deadline. All name the rank that is lost, with one text. A rank
 * that others wait for, and that works, is not named where one is lost.
 *
 * usage: node_chain RANKS, 4 or more; mpi_chain by mpirun. */
#include "comm/comm.h"
#include "support/processes/check_ranks.h"
#include "support/processes/world.h"

#include <reshard/reshard.h>

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LOST = 1, IMPATIENT_MS = 1000, PATIENT_MS = 60000, ROWS = 2, COLUMNS = 4 << 20, LIMIT = 1 << 20, RUNS = 9 };

static const rs_device_work *real_work;
static int runs;

/* The lost rank stops in one of its pieces of work, until all others have given up. */
static reshard_status stopping_run(rs_device *device, int64_t n, rs_program *const *programs, void *stream) {
  if (++runs == RUNS && rank == LOST)
    world_barrier();
  return real_work->run(device, n, programs, stream);
}

/* Rows of the next rank, which lie apart in both arrays: they are packed. */
static reshard_status make_transfer(reshard_comm comm, char *src, char *dst, reshard_plan *plan,
                                    reshard_transfer *transfer) {
  int64_t shape[] = {(int64_t)size * ROWS, COLUMNS}, strides[] = {COLUMNS + 1, 1};
  const int64_t *apart[] = {strides};
  char ring[256] = "chunk(0;1";
  reshard_layout from = NULL, to = NULL;
  const reshard_plan_options options = {RESHARD_PLAN_OPTIONS_INIT, .workspace_limit = LIMIT};
  const reshard_transfer_options packed = {RESHARD_TRANSFER_OPTIONS_INIT, .path = RESHARD_PATH_PACKED};
  for (int r = 2; r <= size; r++)
    snprintf(ring + strlen(ring), sizeof ring - strlen(ring), ",%d", r % size);
  snprintf(ring + strlen(ring), sizeof ring - strlen(ring), ")");
  CHECK(reshard_layout_parse("chunk(0)", 2, shape, size, &from) == RESHARD_SUCCESS, "from");
  CHECK(reshard_layout_parse(ring, 2, shape, size, &to) == RESHARD_SUCCESS, "to");
  reshard_entry entry = {RESHARD_ENTRY_INIT, .src = from, .dst = to, .dtype = RESHARD_U8};
  CHECK(reshard_plan_create(1, &entry, rank, &options, plan) == RESHARD_SUCCESS, "plan");
  reshard_layout_release(from);
  reshard_layout_release(to);
  reshard_arrays arrays = {RESHARD_ARRAYS_INIT, (void *[]){src}, (void *[]){dst}, apart, apart, 1, 1};
  return reshard_transfer_create(*plan, comm, &arrays, &packed, transfer);
}

/* A rank waits for the one that is lost, and for one that waits for another, which works: the lost one is named. */
static void check_working(void) {
  enum { WORKING, WAITING = 2, IMPATIENT = 3 };
  static char in[2];
  const rs_part parts[] = {{.peer = rank == WAITING ? WORKING : LOST, .at = in, .bytes = 1, .mailbox_slot = -1},
                           {.peer = WAITING, .at = in + 1, .bytes = 1, .mailbox_slot = -1}};
  reshard_comm comm = NULL;
  int64_t missing[64] = {-1}, n = 0;
  CHECK(world_connect(rank == IMPATIENT ? IMPATIENT_MS : PATIENT_MS, &comm) == RESHARD_SUCCESS, "communicator");
  world_barrier();
  if (rank == WAITING || rank == IMPATIENT) {
    const rs_exchange exchange = {.comm = comm, .nreceives = rank == WAITING ? 1 : 2, .receives = parts};
    CHECK(rs_comm_reserve(comm, 2) == RESHARD_SUCCESS, "reserve");
    CHECK(comm->ops->exchange(1, &exchange, 2) == RESHARD_ERROR_TIMEOUT, "exchange");
    CHECK(reshard_comm_missing(comm, missing, &n) == RESHARD_SUCCESS && n == 1 && missing[0] == LOST,
          "%lld missing, the first is %lld", (long long)n, (long long)missing[0]);
  }
  world_barrier();
  reshard_comm_destroy(comm);
}

int main(int argc, char **argv) {
  world_open(&argc, &argv, &rank, &size);
  const int impatient = (LOST + 2) % size;
  reshard_comm comm = NULL;
  reshard_plan plan = NULL;
  reshard_transfer transfer = NULL;
  reshard_transfer_info info = {.rounds = 0};
  rs_device_work work;
  int64_t missing[64] = {-1}, n = 0;
  char text[1024] = "", all[sizeof text];
  char *src = calloc(ROWS, COLUMNS + 1), *dst = calloc(ROWS, COLUMNS + 1);
  CHECK(world_connect(rank == impatient ? IMPATIENT_MS : PATIENT_MS, &comm) == RESHARD_SUCCESS, "communicator");
  real_work = comm->device->work;
  work = *real_work;
  work.run = stopping_run;
  comm->device->work = &work;
  CHECK(make_transfer(comm, src, dst, &plan, &transfer) == RESHARD_SUCCESS, "transfer");
  CHECK(reshard_transfer_get_info(transfer, &info) == RESHARD_SUCCESS && info.rounds >= RUNS, "%lld rounds",
        (long long)info.rounds);
  runs = 0;
  world_barrier();
  int64_t since = rs_now_ns();
  reshard_status status = reshard_execute(transfer, NULL);
  int64_t ms = (rs_now_ns() - since) / 1000000;
  snprintf(text, sizeof text, "%s", reshard_last_error());
  if (rank != LOST)
    world_barrier();
  CHECK(rank == LOST ? status != RESHARD_SUCCESS : status == RESHARD_ERROR_TIMEOUT, "%s",
        reshard_status_string(status));
  CHECK(strstr(text, "missing: 1") != NULL, "names the rank that is lost: %s", text);
  CHECK(reshard_comm_missing(comm, missing, &n) == RESHARD_SUCCESS && n == 1 && missing[0] == LOST,
        "%lld missing, the first is %lld", (long long)n, (long long)missing[0]);
  CHECK(ms < PATIENT_MS / 2, "%lld ms", (long long)ms);
  memcpy(all, text, sizeof all);
  world_broadcast(all, sizeof all, impatient);
  CHECK(rank == LOST || strcmp(all, text) == 0, "one text: '%s', on rank %d '%s'", text, impatient, all);
  reshard_transfer_destroy(transfer);
  reshard_plan_destroy(plan);
  comm->device->work = real_work;
  reshard_comm_destroy(comm);
  free(src);
  free(dst);
  check_working();
  int64_t failed = world_close(failures);
  if (rank == 0)
    printf("%s, %d ranks: %lld checks failed\n", world_name, size, (long long)failed);
  return failed > 0;
}
