/* A snippet of docs/install.md as a program: it is pasted where its lines belong, with what it leaves out around it.
 * Its rows are filled before its execute, and its columns compared behind it. A rank says the path that it took. */
#ifdef SNIPPET_MPI
#include <mpi.h>

#include <reshard/mpi.h>
#endif
#include <reshard/reshard.h>

#include <stdio.h>
#include <stdlib.h>

enum { N = 512 };

static void check(reshard_status status) {
  if (status == RESHARD_SUCCESS)
    return;
  fprintf(stderr, "%s\n", reshard_last_error());
  exit(1);
}

/* The snippets leave errors out: the program looks at each. */
#define reshard_comm_from_mpi_comm(...)          check(reshard_comm_from_mpi_comm(__VA_ARGS__))
#define reshard_rendezvous_from_environment(...) check(reshard_rendezvous_from_environment(__VA_ARGS__))
#define reshard_comm_create_node(...)            check(reshard_comm_create_node(__VA_ARGS__))
#define reshard_layout_parse(...)                check(reshard_layout_parse(__VA_ARGS__))
#define reshard_plan_create(...)                 check(reshard_plan_create(__VA_ARGS__))
#define reshard_comm_alloc(...)                  check(reshard_comm_alloc(__VA_ARGS__))
#define reshard_comm_free(...)                   check(reshard_comm_free(__VA_ARGS__))
#define reshard_transfer_create(...)             check(reshard_transfer_create(__VA_ARGS__))
#define reshard_execute(...)                     (fill(), check(reshard_execute(__VA_ARGS__)), compare())

static reshard_comm comm;
static reshard_layout from, to;
static reshard_plan plan;
static reshard_transfer transfer;
static void *rows, *columns;

static void fill(void) {
  int64_t part = N / reshard_comm_size(comm), first = reshard_comm_rank(comm) * part;
  for (int64_t i = 0; i < part * N; i++)
    ((float *)rows)[i] = (float)(first * N + i);
}

static void compare(void) {
  static const char *const names[] = {"auto", "direct", "packed", "mixed"};
  int64_t part = N / reshard_comm_size(comm), first = reshard_comm_rank(comm) * part;
  reshard_transfer_info info;
  check(reshard_transfer_get_info(transfer, &info));
  for (int64_t i = 0; i < N; i++)
    for (int64_t j = 0; j < part; j++)
      if (((const float *)columns)[i * part + j] != (float)(i * N + first + j))
        puts("wrong"), exit(1);
  printf("%s\n", names[info.path]);
  fflush(stdout);
}

int main(int argc, char **argv) {
  const int64_t shape[] = {N, N};
  size_t row_bytes = sizeof(float) * N * N, column_bytes = row_bytes; /* at most */
  (void)argc, (void)argv;
#ifdef SNIPPET_MPI
  MPI_Init(&argc, &argv);
#endif
#include "snippet.inc"
  reshard_layout_release(from), reshard_layout_release(to);
#ifdef SNIPPET_MPI
  MPI_Finalize();
#endif
  return 0;
}
