/* Many cases by several runners at once. Seeds are handed out in order; a case's outcome depends on its seed alone. */
#include "bench/verify/case_run.h"

#include <pthread.h>
#include <stdlib.h>

typedef struct case_queue {
  const case_options *options;
  pthread_mutex_t lock;
  int64_t next, failures;
  case_totals totals;
} case_queue;

static void sum_totals(case_totals *to, const case_totals *from) {
  for (size_t i = 0; i < sizeof *to / sizeof(int64_t); i++)
    ((int64_t *)to)[i] += ((const int64_t *)from)[i];
}

static void report_failure(const case_options *options, const char *name, uint64_t seed, const char *why) {
  cli_progress_clear();
  printf("case %s%sof seed %llu failed: %s\n  reproduce: reshard verify --cases 1 --seed %llu%s\n",
         name != NULL ? name : "", name != NULL ? " " : "", (unsigned long long)seed, why, (unsigned long long)seed,
         options->reproduce != NULL ? options->reproduce : "");
  fflush(stdout);
}

static void *run_cases(void *user) {
  case_queue *m = user;
  const case_options *options = m->options;
  case_runner *runner = case_runner_create(&options->fixed);
  case_totals mine = {0};
  for (;;) {
    pthread_mutex_lock(&m->lock);
    bool more = m->failures < options->most_failures && (options->end == 0 || rs_seconds() < options->end);
    int64_t i = more ? m->next++ : options->cases;
    if (i < options->cases && m->failures > 0)
      cli_progress("verify: %lld of %lld cases, %lld failed", (long long)i, (long long)options->cases,
                   (long long)m->failures);
    else if (i < options->cases)
      cli_progress("verify: %lld of %lld cases", (long long)i, (long long)options->cases);
    pthread_mutex_unlock(&m->lock);
    if (i >= options->cases)
      break;
    char *why;
    if (!case_run(runner, options->seed + (uint64_t)i, &mine, &why)) {
      pthread_mutex_lock(&m->lock);
      m->failures++;
      report_failure(options, NULL, options->seed + (uint64_t)i, why);
      pthread_mutex_unlock(&m->lock);
    }
    free(why);
  }
  case_runner_destroy(runner);
  pthread_mutex_lock(&m->lock);
  sum_totals(&m->totals, &mine);
  pthread_mutex_unlock(&m->lock);
  return NULL;
}

int64_t case_run_all(const case_options *options, case_totals *totals) {
  case_queue m = {.options = options, .lock = PTHREAD_MUTEX_INITIALIZER};
  cli_run_threads(options->workers, run_cases, &m);
  cli_progress_clear();
  sum_totals(totals, &m.totals);
  return m.failures;
}

/* Random cases that once failed, kept by name; they run before any other case. A seed says nothing once the generator
 * draws otherwise: when case_make.c or case_layout.c change what they draw, put the old fault back, look for a seed
 * that shows it, and keep that one. */
static const struct regression {
  const char *name;
  uint64_t seed;
} regressions[] = {
    {"strided-cut-only-the-last-chunk-gives",
     980}, /* full chunks are too short for all ranks, the shorter last one is not: division by zero */
    {"no-entries-with-limit-and-nodes", 1973}, /* no layout names the world: ranks took different options */
};

int64_t case_run_regressions(const case_options *options, case_totals *totals, int64_t *count) {
  case_runner *runner = case_runner_create(&options->fixed);
  int64_t failures = 0;
  *count = (int64_t)(sizeof regressions / sizeof *regressions);
  for (int64_t i = 0; i < *count; i++) {
    char *why;
    if (!case_run(runner, regressions[i].seed, totals, &why)) {
      failures++;
      report_failure(options, regressions[i].name, regressions[i].seed, why);
    }
    free(why);
  }
  case_runner_destroy(runner);
  return failures;
}

/* Entries with blocks, per feature; returns how many features had none. */
static int64_t print_blocks(const case_totals *t, FILE *out) {
  static const char *const name[CASE_BLOCKS] = {"of f32",
                                                "of bf16",
                                                "of f16",
                                                "travelling to f8_e4m3",
                                                "travelling from it",
                                                "from it as the other dtype",
                                                "with scales of f32",
                                                "of f8_e8m0",
                                                "of several elements",
                                                "shorter at the end",
                                                "in several rounds"};
  int64_t none = 0, sum = 0;
  for (int i = BLOCKS_F32; i <= BLOCKS_F16; i++)
    sum += t->blocks[i];
  fprintf(out, "%lld entries with blocks", (long long)sum);
  for (int i = 0; i < CASE_BLOCKS; i++) {
    fprintf(out, "%s %lld %s", i == 0 ? ":" : ",", (long long)t->blocks[i], name[i]);
    none += sum > 0 && t->blocks[i] == 0;
  }
  fprintf(out, "\n");
  return none;
}

int64_t case_print_totals(const case_totals *t, FILE *out) {
  int64_t none = 0;
  fprintf(out,
          "%lld cases, %lld entries, %lld executes, %lld reversed, %lld bytes of tensors, %lld bytes on the wire\n",
          (long long)t->cases, (long long)t->entries, (long long)t->executes, (long long)t->reversed,
          (long long)t->bytes, (long long)t->wire_bytes);
  fprintf(out,
          "%lld under a random limit of the workspace, %lld of them with staging, %lld of these in several rounds\n",
          (long long)t->limited, (long long)t->staged, (long long)t->rounds);
  if (t->domains > 0)
    fprintf(
        out,
        "%lld with domains: %lld pass bytes on in one round, %lld in several; %lld bytes came from other domains, %lld "
        "from their own\n",
        (long long)t->domains, (long long)t->passed[0], (long long)t->passed[1], (long long)t->between,
        (long long)t->within);
  none += t->domains > 0 && (t->passed[0] == 0 || t->passed[1] == 0);
  fprintf(out, "%lld sides cut part by part, %lld of them with parts that ranks share\n", (long long)t->parts[0],
          (long long)t->parts[1]);
  none += (t->parts[0] == 0) + (t->parts[1] == 0);
  none += print_blocks(t, out);
  fprintf(out, "%lld with entries that convert; entries per pair of dtypes:\n%8s", (long long)t->casts, "");
  for (int b = 0; b < CASE_NUMBERS; b++)
    fprintf(out, " %8s", reshard_dtype_string(case_numbers[b]));
  for (int a = 0; a < CASE_NUMBERS; a++) {
    fprintf(out, "\n%8s", reshard_dtype_string(case_numbers[a]));
    for (int b = 0; b < CASE_NUMBERS; b++) {
      fprintf(out, " %8lld", (long long)t->converted[a][b]);
      none += a != b && t->casts > 0 && t->converted[a][b] == 0;
    }
  }
  fprintf(out, "\n");
  fprintf(out, "cases per pair of layout kinds (source down, destination across):\n%8s", "");
  for (int b = 0; b < RESHARD_LAYOUT_KIND_COUNT; b++)
    fprintf(out, " %8s", reshard_layout_kind_string((reshard_layout_kind)b));
  for (int a = 0; a < RESHARD_LAYOUT_KIND_COUNT; a++) {
    fprintf(out, "\n%8s", reshard_layout_kind_string((reshard_layout_kind)a));
    for (int b = 0; b < RESHARD_LAYOUT_KIND_COUNT; b++) {
      fprintf(out, " %8lld", (long long)t->pairs[a][b]);
      none += t->pairs[a][b] == 0;
    }
  }
  fprintf(out, "\n");
  return none;
}
