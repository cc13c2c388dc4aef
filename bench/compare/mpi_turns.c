#define _POSIX_C_SOURCE 200809L
#include "bench/compare/mpi_turns.h"

#include <mpi.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MOST_WAYS = 8, END = -1 };

void mpi_turns_fail(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vfprintf(stderr, format, arguments);
  va_end(arguments);
  fputc('\n', stderr);
  MPI_Abort(MPI_COMM_WORLD, 1);
  abort();
}

void *mpi_turns_alloc(size_t bytes) {
  void *made = malloc(bytes > 0 ? bytes : 1);
  if (made == NULL)
    mpi_turns_fail("no memory for %zu bytes", bytes);
  return made;
}

float mpi_turns_element(int row, int column) { return (float)(((long)row * 4099 + column) % (1 << 24)); }

/* Returns rank 0's next line as a way. Ranks sleep while they wait: others are measured then. */
static int next_way(const mpi_turns *turns, int rank) {
  int way = END;
  char line[64];
  MPI_Request request;
  if (rank == 0 && fgets(line, sizeof line, stdin) != NULL) {
    line[strcspn(line, "\n")] = '\0';
    for (way = 0; turns->ways[way] != NULL && strcmp(line, turns->ways[way]) != 0;)
      way++;
    if (turns->ways[way] == NULL)
      mpi_turns_fail("no way '%s'", line);
  }
  MPI_Ibcast(&way, 1, MPI_INT, 0, MPI_COMM_WORLD, &request);
  for (int done = 0; !done;) {
    MPI_Test(&request, &done, MPI_STATUS_IGNORE);
    if (!done)
      nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
  }
  return way;
}

void mpi_turns_serve(const mpi_turns *turns, const char *version) {
  bool checked[MOST_WAYS] = {false};
  int rank, way;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  if (rank == 0)
    printf("ready %s\n", version);
  fflush(stdout);
  while ((way = next_way(turns, rank)) != END) {
    turns->clear(turns->user);
    MPI_Barrier(MPI_COMM_WORLD);
    double begin = MPI_Wtime(), seconds, most;
    turns->move(turns->user, way);
    seconds = MPI_Wtime() - begin;
    MPI_Reduce(&seconds, &most, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    if (!checked[way])
      turns->check(turns->user, way);
    checked[way] = true;
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0)
      printf("%.9f\n", most);
    fflush(stdout);
  }
}
