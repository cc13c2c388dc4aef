/* Micro-benchmarks in C. A case makes its state once, then run is timed; items counts the things (intersections, boxes,
 * executes) that one run handles. */
#ifndef MICRO_H
#define MICRO_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct micro_case {
  const char *name;
  int64_t parameter;
  int64_t iterations; /* that are timed, by the clock after one that is not; 0: as many as take half a second */
  /* Returns the state, NULL when the case cannot be made; writes how many items a run handles, 0 where none count. */
  void *(*make)(const struct micro_case *of, int64_t *items);
  int (*run)(void *state); /* non-zero: it failed */
  void (*drop)(void *state);
  int64_t more[2]; /* further parameters, which are not part of the row's name; and a text */
  const char *text;
} micro_case;

/* The cases of a file. */
typedef struct micro_table {
  const micro_case *cases;
  size_t ncases;
  /* Bytes of a run, for a rate beside that of a sibling NAME_memcpy: copied; read and written; of the tensor that is
   * converted. Such cases use several threads, and are timed by the clock. NULL: no rate. */
  int64_t (*bytes)(const void *state);
  double (*seconds)(const void *state); /* of the last run, in the place of the clock; NULL: the clock */
  /* More of the last run, KEY=NUMBER with spaces between: the label of the row. NULL: none. */
  const char *(*note)(const void *state);
  int (*here)(void); /* whether the machine has what the cases need; NULL: it has */
  struct micro_table *next;
} micro_table;
/* Adds a table behind those that are there. */
void micro_add(micro_table *table);
/* Adds the table of a file before main begins. */
#define MICRO_TABLE_TIMED(cases, bytes, seconds, note, here) \
  __attribute__((constructor)) static void add_table(void) { \
    static micro_table table = {cases, sizeof cases / sizeof *cases, bytes, seconds, note, here, NULL}; \
    micro_add(&table); \
  }
#define MICRO_TABLE(cases, bytes) MICRO_TABLE_TIMED(cases, bytes, NULL, NULL, NULL)

/* The instruction set that copies use. */
const char *micro_isa(void);
/* Runs the cases that the arguments ask for. Returns the exit status: 1 where one has failed. */
int micro_main(int argc, char **argv);

#ifdef __cplusplus
}
#endif
#endif
