/* Checks of a program under mpirun: each is printed by the rank that it fails on, and the program goes on. */
#ifndef TESTS_MPI_CHECK_H
#define TESTS_MPI_CHECK_H

#include <reshard/status.h>

#include <stdio.h>

static int rank, size, failures; /* of MPI_COMM_WORLD; failures: of this rank */

#define CHECK(condition, ...) \
  do { \
    if (!(condition)) { \
      failures++; \
      printf("rank %d: %s:%d: %s: ", rank, __FILE__, __LINE__, #condition); \
      printf(__VA_ARGS__); \
      printf(" (last error: %s)\n", reshard_last_error()); \
      fflush(stdout); \
    } \
  } while (0)

#endif
