#include "bench/cli/nearest.h"

#include <string.h>

/* Letters that have to be added, left out, exchanged or swapped with a neighbour to make one word of another. */
static int word_distance(const char *a, const char *b) {
  enum { MOST = 32 };
  int n = (int)strlen(a), m = (int)strlen(b), d[MOST + 1][MOST + 1];
  if (n > MOST || m > MOST)
    return MOST;
  for (int i = 0; i <= n; i++)
    for (int j = 0; j <= m; j++) {
      int best = i == 0 ? j : j == 0 ? i : d[i - 1][j - 1] + (a[i - 1] != b[j - 1]);
      if (i > 0 && d[i - 1][j] + 1 < best)
        best = d[i - 1][j] + 1;
      if (j > 0 && d[i][j - 1] + 1 < best)
        best = d[i][j - 1] + 1;
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] && d[i - 2][j - 2] + 1 < best)
        best = d[i - 2][j - 2] + 1;
      d[i][j] = best;
    }
  return d[n][m];
}

const char *cli_nearest(const char *word, const char *(*next)(int i, const void *user), const void *user) {
  const char *nearest = NULL, *name;
  int least = strlen(word) < 4 ? 2 : 3; /* so many letters are another word */
  for (int i = 0; (name = next(i, user)) != NULL; i++) {
    int distance = word_distance(word, name);
    if (distance < least) {
      least = distance;
      nearest = name;
    }
  }
  return nearest;
}
