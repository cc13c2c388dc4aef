/* The results of a benchmark as they come: printed row by row; JSON and CSV are written when the run ends, whenever. */
#define _GNU_SOURCE
#include "bench/bench/report.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

static bool to_output(const char *path) { return path != NULL && strcmp(path, "-") == 0; }

/* Another thread may end the run meanwhile. */
static void end_early(void *user, const char *why) { bench_report_close(user, why); }

void bench_report_open(bench_report *r, const bench_state *b, const machine *m) {
  const cli_options *o = b->o;
  r->b = b;
  if (b->s.processes.me != 0)
    return;
  pthread_mutex_lock(&r->lock);
  r->quiet = to_output(o->json) || to_output(o->csv);
  r->json.text.grows = true;
  if (o->json != NULL)
    bench_json_head(&r->json, b, m);
  if (o->csv != NULL)
    bench_csv_head(&r->csv);
  if (!r->quiet)
    bench_print_head(b, m);
  r->open = true;
  pthread_mutex_unlock(&r->lock);
  cli_at_exit(end_early, r);
}

void bench_report_row(bench_report *r) {
  const bench_row *row = &r->b->row;
  pthread_mutex_lock(&r->lock);
  r->skipped += r->b->skipped;
  if (!r->b->skipped) {
    r->rows++;
    r->wrong += row->wrong;
    r->busbw += row->busbw;
  }
  if (r->open && !r->quiet)
    bench_print_row(r->b);
  if (r->open && r->b->o->json != NULL)
    bench_json_row(&r->json, r->b);
  if (r->open && r->b->o->csv != NULL)
    bench_csv_row(&r->csv, r->b);
  pthread_mutex_unlock(&r->lock);
}

static void write_json(bench_report *r, double busbw, const char *ended) {
  rs_json *j = &r->json;
  rs_json_close(j, ']');
  rs_json_int(j, "out_of_bounds", r->wrong);
  rs_json_real(j, "average_busbw", busbw);
  if (ended != NULL)
    rs_json_string(j, "ended", ended);
  rs_json_close(j, '}');
  cli_write_json(r->b->o->json, j);
}

void bench_report_close(bench_report *r, const char *ended) {
  struct timespec until;
  clock_gettime(CLOCK_REALTIME, &until);
  until.tv_sec++;
  if (pthread_mutex_timedlock(&r->lock, &until) != 0)
    return; /* the program ends inside of a row that is written */
  double busbw = r->rows > 0 ? r->busbw / (double)r->rows : 0;
  bool was_open = r->open;
  r->open = false;
  if (was_open && !r->quiet) {
    if (r->b->o->check)
      printf("# Out of bounds values : %lld %s\n", (long long)r->wrong, r->wrong == 0 ? "OK" : "FAILED");
    printf("# Avg bus bandwidth    : %.4g\n", busbw);
    fflush(stdout);
  }
  if (was_open && r->b->o->json != NULL)
    write_json(r, busbw, ended);
  if (was_open && r->b->o->csv != NULL)
    cli_write_file(r->b->o->csv, r->csv.at, r->csv.length);
  free(r->csv.at);
  r->csv = (rs_text){0};
  pthread_mutex_unlock(&r->lock);
}
