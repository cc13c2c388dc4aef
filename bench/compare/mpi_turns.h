/* The side of a peer in peers.py that is an MPI program. Rank 0 reads the name of a way from standard input, a line
 * each; all ranks go it, and rank 0 answers with the seconds of the slowest. */
#ifndef COMPARE_MPI_TURNS_H
#define COMPARE_MPI_TURNS_H

#include <stddef.h>

typedef struct mpi_turns {
  const char *const *ways; /* ended by NULL, 8 at most */
  void *user;
  void (*clear)(void *user); /* the result, outside of the time */
  void (*move)(void *user, int way);
  void (*check)(void *user, int way); /* after the first time of each way; ends the program by mpi_turns_fail */
} mpi_turns;

/* Answers until standard input ends. `version` is what the peer says it is. Collective over MPI_COMM_WORLD. */
void mpi_turns_serve(const mpi_turns *turns, const char *version);
/* Memory, or the end of the program. */
void *mpi_turns_alloc(size_t bytes);
/* Says what is wrong, and ends all ranks. */
_Noreturn void mpi_turns_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Element (row, column) of the whole matrix; every f32 can be it. */
float mpi_turns_element(int row, int column);

#endif
