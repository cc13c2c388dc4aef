#include "bench/gpu/rows.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void gpu_measure(gpu_bench_run *x, int64_t sets, int n, const gpu_timed_work *runners, double *seconds) {
  int64_t turns = x->o->iterations;
  for (int i = 0; x->o->profile && i < n; i++) {
    CLI_TRY("", runners[i].work(runners[i].user, x->b->stream[0]));
    seconds[i] = 1;
  }
  if (x->o->profile)
    return;
  double *times = cli_alloc(n * turns, sizeof *times);
  x->b->hold = 1;
  for (int64_t t = -1; t < turns; t++)
    for (int i = 0; i < n; i++) {
      double one = gpu_context_time(x->b, runners[i].work, runners[i].user, sets, runners[i].size);
      if (t >= 0)
        times[i * turns + t] = one;
    }
  for (int i = 0; i < n; i++)
    seconds[i] = cli_median(times + i * turns, turns);
  free(times);
}

gpu_row *gpu_add_row(gpu_bench_run *x, const char *name, const char *unit) {
  gpu_row *r = &x->row[x->rows++];
  *r = (gpu_row){.unit = unit};
  snprintf(r->name, sizeof r->name, "%s", name);
  return r;
}

static bool is_wanted(gpu_bench_run *x, const char *name) {
  const char *only = x->o->only, *after = x->o->after;
  if (after != NULL && !x->reached) {
    x->reached = strcmp(name, after) == 0;
    return false;
  }
  for (size_t n; only != NULL; only += n + 1) {
    n = strcspn(only, "|");
    if (strncmp(name, only, n) == 0)
      return true;
    if (only[n] == '\0')
      return false;
  }
  return true;
}

bool gpu_begin_case(gpu_bench_run *x, const char *name) {
  if (!is_wanted(x, name))
    return false;
  printf("> %s\n", name);
  fflush(stdout);
  (void)alarm((unsigned)x->o->seconds); /* its signal ends a program that waits for a kernel, too */
  return true;
}

void gpu_print_row(const gpu_bench_run *x, const gpu_row *r) {
  if (x->o->profile) {
    printf("%-38s %11lld B  %s\n", r->name, (long long)r->bytes, r->wrong ? "WRONG DATA" : "run once");
    return;
  }
  printf("%-38s %11lld B  %9.1f us  %6.3f %s", r->name, (long long)r->bytes, r->us, r->figure, r->unit);
  if (r->wrong)
    printf(": WRONG DATA");
  if (r->memcpy_us > 0)
    printf("; memcpy %.1f us", r->memcpy_us);
  for (int i = 0; i < RIVALS; i++)
    if (r->rival[i] != NULL && r->rival_us[i] > 0)
      printf("; %s %.1f us", r->rival[i], r->rival_us[i]);
    else if (r->rival[i] != NULL)
      printf("; %s: not here", r->rival[i]);
  printf("\n");
  fflush(stdout);
}

void gpu_write_rows(const gpu_bench_run *x) {
  rs_json j = {.text.grows = true};
  rs_json_open(&j, NULL, '{');
  rs_json_int(&j, "version", 1);
  rs_json_string(&j, "reshard", reshard_version());
  rs_json_string(&j, "gpu", x->b->info.name);
  rs_json_int(&j, "iterations", x->o->iterations);
  rs_json_open(&j, "rows", '[');
  for (int64_t i = 0; i < x->rows; i++) {
    const gpu_row *r = &x->row[i];
    rs_json_line(&j, 2);
    rs_json_open(&j, NULL, '{');
    rs_json_string(&j, "name", r->name);
    rs_json_int(&j, "bytes", r->bytes);
    rs_json_real(&j, "time_us", r->us);
    rs_json_real(&j, "memcpy_us", r->memcpy_us);
    for (int k = 0; k < RIVALS; k++)
      if (r->rival[k] != NULL && r->rival_us[k] > 0)
        rs_json_real(&j, r->rival[k], r->rival_us[k]);
    rs_json_real(&j, "figure", r->figure);
    rs_json_string(&j, "of", r->unit);
    rs_json_bool(&j, "wrong", r->wrong);
    rs_json_close(&j, '}');
  }
  rs_json_close(&j, ']');
  rs_json_close(&j, '}');
  cli_write_json(x->o->json, &j);
}
