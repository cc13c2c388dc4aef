/* Random conversions of files, of every pair of formats and layout kinds, against naive readers and writers.
 * RESHARD_TEST_SCALE multiplies the number of cases (700), RESHARD_TEST_SEED replaces the first seed (1). */
#include "random/file_case.h"
#include "support/fixtures/scale.h"

#ifdef RS_HAVE_JANSSON

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Cases that once failed; they run before any other. A seed says nothing once the generator draws otherwise: then put
 * the old fault back, look for a seed that shows it, and keep that one. */
static const struct {
  const char *name;
  uint64_t seed;
} kept[] = {
    {"replicas-in-files-of-any-name", 159}, /* the first rank that would do for a file was the only one for a later */
    {"tensor-that-nobody-holds-is-compared", 206}, /* it is in no file, so nothing says its dtype */
    {"tensor-that-nobody-holds-of-many", 1003},    /* and a file of no tensors stood for it */
    {"index-of-no-tensors", 13},                   /* was refused by the reader */
    {"shards-of-no-tensors", 11716},               /* no layout says how many ranks there are */
    {"source-names-fewer-ranks-than-given", 3055}, /* flat() was of the one rank that another's flat(0) names */
};
enum { KEPT = sizeof kept / sizeof *kept };

typedef struct many {
  int64_t cases, next, failures;
  uint64_t seed;
  const char *directory;
  pthread_mutex_t lock;
  file_totals totals;
} many;

static void add_counts(file_totals *to, const file_totals *from) {
  int64_t *a = (int64_t *)to;
  const int64_t *b = (const int64_t *)from; /* a struct of counts alone */
  for (size_t i = 0; i < sizeof *to / sizeof *a; i++)
    a[i] += b[i];
}

static bool run_seed(uint64_t seed, const char *directory, file_totals *totals, rs_text *why) {
  file_case c;
  bool right = file_case_make(seed, &c, why);
  rs_text what = {0};
  file_case_describe(&c, &what);
  if (getenv("RESHARD_TEST_DESCRIBE") != NULL) { /* before anything can crash */
    printf("seed %llu%s\n", (unsigned long long)seed, what.at);
    fflush(stdout);
  }
  right = right && file_case_run(&c, directory, totals, why);
  if (!right)
    cli_add(why, "%s", what.at);
  file_case_free(&c);
  free(what.at);
  return right;
}

static void *run_cases(void *user) {
  many *m = user;
  file_totals mine = {0};
  rs_text directory = {0};
  int64_t number = 0;
  for (;;) {
    pthread_mutex_lock(&m->lock);
    int64_t i = m->failures < 5 ? m->next++ : m->cases;
    pthread_mutex_unlock(&m->lock);
    if (i >= m->cases)
      break;
    if (directory.length == 0)
      cli_add(&directory, "%s/%lld", m->directory, (long long)i + KEPT);
    if (number++ == 0 && mkdir(directory.at, 0777) != 0)
      cli_exit(EXIT_FAILED, "%s cannot be made", directory.at);
    rs_text why = {0};
    uint64_t seed = i < 0 ? kept[i + KEPT].seed : m->seed + (uint64_t)i;
    if (!run_seed(seed, directory.at, &mine, &why)) {
      pthread_mutex_lock(&m->lock);
      m->failures++;
      printf("case %s of seed %llu failed: %s\n  reproduce: RESHARD_TEST_SEED=%llu RESHARD_TEST_SCALE=0 test_files\n",
             i < 0 ? kept[i + KEPT].name : "", (unsigned long long)seed, why.at, (unsigned long long)seed);
      fflush(stdout);
      pthread_mutex_unlock(&m->lock);
    }
    free(why.at);
  }
  if (directory.length > 0)
    rmdir(directory.at);
  free(directory.at);
  pthread_mutex_lock(&m->lock);
  add_counts(&m->totals, &mine);
  pthread_mutex_unlock(&m->lock);
  return NULL;
}

static int64_t print_table(int rows, int columns, const char *const *down, const char *const *across,
                           const int64_t *counts) {
  int64_t none = 0;
  printf("%12s", "");
  for (int b = 0; b < columns; b++)
    printf(" %11s", across[b]);
  for (int a = 0; a < rows; a++) {
    printf("\n%12s", down[a]);
    for (int b = 0; b < columns; b++) {
      printf(" %11lld", (long long)counts[a * columns + b]);
      none += counts[a * columns + b] == 0;
    }
  }
  printf("\n");
  return none;
}

static int64_t print_totals(const file_totals *t) {
  printf("%lld cases: %lld tensors, %lld bytes, %lld with a map, %lld as another dtype, %lld verified, %lld by the "
         "writer, %lld arrays stored "
         "whole\n",
         (long long)t->cases, (long long)t->tensors, (long long)t->bytes, (long long)t->mapped, (long long)t->cast,
         (long long)t->verified, (long long)t->by_writer, (long long)t->whole_arrays);
  printf("%lld tensors read back, %lld targets that cannot be, %lld refused and then forced, %lld cancelled\n",
         (long long)t->reads, (long long)t->unreadable, (long long)t->refused, (long long)t->cancelled);
  printf("cases per pair of formats (source down, target across):\n");
  int64_t none = print_table(SOURCES, TARGETS, file_source_name, file_target_name, &t->formats[0][0]);
  const char *kinds[RESHARD_LAYOUT_KIND_COUNT];
  for (int k = 0; k < RESHARD_LAYOUT_KIND_COUNT; k++)
    kinds[k] = reshard_layout_kind_string((reshard_layout_kind)k);
  printf("tensors per pair of layout kinds (source down, target across):\n");
  return none + print_table(RESHARD_LAYOUT_KIND_COUNT, RESHARD_LAYOUT_KIND_COUNT, kinds, kinds, &t->kinds[0][0]);
}

/* In memory where there is room for files, unless TMPDIR says where. */
static bool make_directory(char *path, size_t size) {
  const char *roots[] = {getenv("TMPDIR"), "/dev/shm", "/tmp"};
  for (int i = 0; i < 3; i++)
    if (roots[i] != NULL && (size_t)snprintf(path, size, "%s/reshard-files-XXXXXX", roots[i]) < size &&
        mkdtemp(path) != NULL)
      return true;
  return false;
}

int main(void) {
  const char *seed = getenv("RESHARD_TEST_SEED");
  double cases = 700 * test_scale(), begin = rs_seconds();
  char directory[512];
  if (!make_directory(directory, sizeof directory)) {
    printf("skipped: no directory for files can be made\n");
    return 77;
  }
  many m = {.cases = cases < 1 ? 1 : (int64_t)cases,
            .next = seed != NULL ? 0 : -KEPT, /* the kept ones first, unless one seed is asked for */
            .seed = seed != NULL ? strtoull(seed, NULL, 0) : 1,
            .directory = directory,
            .lock = PTHREAD_MUTEX_INITIALIZER};
  cli_run_threads(cli_cores() < 8 ? cli_cores() : 8, run_cases, &m);
  int64_t none = print_totals(&m.totals);
  printf("%lld failed, %d kept regressions, %.1f s\n", (long long)m.failures, seed != NULL ? 0 : KEPT,
         rs_seconds() - begin);
  if (rmdir(directory) != 0 && m.failures == 0) {
    printf("something is left in %s\n", directory);
    return 1;
  }
  if (none > 0 && m.totals.cases >= 700) {
    printf("%lld pairs without a case\n", (long long)none);
    return 1;
  }
  return m.failures > 0;
}

#else

int main(void) {
  printf("skipped: this build has no jansson, which the naive files need\n");
  return 77;
}

#endif
