/* Rows to columns over four ranks that are threads; one source, compiled as C11 and as C++17. */
#include <reshard/reshard.h>

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

enum { RANKS = 4, N = 16, PART = N / RANKS }; /* an N x N matrix whose element (i, j) is N * i + j */

static void *rank_main(void *argument) {
  reshard_comm comm = (reshard_comm)argument;
  const int64_t shape[2] = {N, N}, rank = reshard_comm_rank(comm);
  float rows[PART][N], columns[N][PART];
  void *source = rows, *target = columns;
  reshard_layout from = NULL, to = NULL;
  reshard_plan plan = NULL;
  reshard_transfer transfer = NULL;
  for (int i = 0; i < PART; i++)
    for (int j = 0; j < N; j++)
      rows[i][j] = (float)(N * (rank * PART + i) + j);
  memset(columns, 0xff, sizeof columns);

  reshard_entry entry = RESHARD_ENTRY_DEFAULTS;
  reshard_arrays arrays = RESHARD_ARRAYS_DEFAULTS;
  arrays.src = &source, arrays.dst = &target;
  bool ok = reshard_layout_parse("chunk(0)", 2, shape, RANKS, &from) == RESHARD_SUCCESS &&
            reshard_layout_parse("chunk(1)", 2, shape, RANKS, &to) == RESHARD_SUCCESS;
  entry.src = from, entry.dst = to, entry.dtype = RESHARD_F32;
  ok = ok && reshard_plan_create(1, &entry, rank, NULL, &plan) == RESHARD_SUCCESS &&
       reshard_transfer_create(plan, comm, &arrays, NULL, &transfer) == RESHARD_SUCCESS &&
       reshard_execute(transfer, NULL) == RESHARD_SUCCESS;
  if (!ok)
    fprintf(stderr, "rank %d: %s\n", (int)rank, reshard_last_error());
  for (int i = 0; i < N; i++)
    for (int j = 0; j < PART; j++)
      ok = ok && columns[i][j] == (float)(N * i + rank * PART + j);
  reshard_transfer_destroy(transfer), reshard_plan_destroy(plan);
  reshard_layout_release(from), reshard_layout_release(to);
  return ok ? argument : NULL;
}

int main(void) {
  reshard_comm comms[RANKS];
  pthread_t thread[RANKS];
  int right = 0;
  if (reshard_comm_create_local(RANKS, NULL, comms) != RESHARD_SUCCESS)
    return 1;
  for (int r = 0; r < RANKS; r++)
    pthread_create(&thread[r], NULL, rank_main, comms[r]);
  for (int r = 0; r < RANKS; r++) {
    void *result;
    pthread_join(thread[r], &result);
    right += result != NULL;
  }
  for (int r = 0; r < RANKS; r++)
    reshard_comm_destroy(comms[r]);
  printf("reshard %s: %d of %d ranks are right\n", reshard_version(), right, RANKS);
  return right == RANKS ? 0 : 1;
}
