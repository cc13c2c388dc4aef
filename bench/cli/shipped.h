/* The rule files and maps that come with the program, which it finds by their bare names. */
#ifndef BENCH_SHIPPED_H
#define BENCH_SHIPPED_H

#include <stdbool.h>

typedef struct shipped_kind {
  const char *folder, *suffix, *what, *mark; /* mark: what stands before a name in lists */
} shipped_kind;
extern const shipped_kind shipped_rules, shipped_maps;

/* Finds a file: as given, else, where it is a bare name with or without the suffix, among those of the program. The
 * caller frees its path. Ends the program where there is none, and lists what there is. */
char *shipped_find(const shipped_kind *kind, const char *option, const char *name);
/* Tells whether a path leads to one of the program's files. */
bool shipped_is(const shipped_kind *kind, const char *path);
/* Tells whether one of the program's files has this bare name. */
bool shipped_has(const shipped_kind *kind, const char *name);

#endif
