/* "Did you mean": the known word that is nearest to one that is not. */
#ifndef BENCH_NEAREST_H
#define BENCH_NEAREST_H

/* next(i, user) is the i-th known word, NULL behind the last, "" for none. NULL: none is near. */
const char *cli_nearest(const char *word, const char *(*next)(int i, const void *user), const void *user);

#endif
