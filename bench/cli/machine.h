/* The machine that the program runs on. */
#ifndef BENCH_MACHINE_H
#define BENCH_MACHINE_H

#include "bench/cli/util.h"

typedef struct machine {
  char processor[128];
  char system[128]; /* operating system and its release */
  int cores;        /* that this process may use */
  int64_t memory;   /* bytes */
  int64_t cache[4]; /* bytes of the data or common cache of level 1, 2, 3; [0] is not used; 0: unknown */
  const char *isa;  /* the one that AUTO takes */
} machine;

void machine_read(machine *m);
/* Bytes of memory that are available without swapping, by the system's word and within the limit of the control group.
 * */
int64_t machine_available(void);
/* Writes all fields as a JSON object. */
void machine_json(rs_json *j, const char *key, const machine *m);

#endif
