/* The results of a benchmark, while it runs and when it ends. */
#ifndef BENCH_REPORT_H
#define BENCH_REPORT_H

#include "bench/bench/state.h"

/* The results: a table in the manner of nccl-tests, as they come; and JSON and CSV, when they are complete or the run
 * ends early. */
typedef struct bench_report {
  const bench_state *b;
  pthread_mutex_t lock; /* of all that follows */
  bool open, quiet;
  rs_json json;
  rs_text csv;
  int64_t rows, skipped, wrong;
  double busbw;
} bench_report;
void bench_report_open(bench_report *r, const bench_state *b, const machine *m);
void bench_report_row(bench_report *r); /* b->row, or that it was skipped */
/* ended: why before its time; NULL: it is complete. Does nothing the second time. Called by any thread. */
void bench_report_close(bench_report *r, const char *ended);

void bench_print_head(const bench_state *b, const machine *m);
void bench_print_row(const bench_state *b);
void bench_json_head(rs_json *j, const bench_state *b, const machine *m);
void bench_json_row(rs_json *j, const bench_state *b);
void bench_csv_head(rs_text *out);
void bench_csv_row(rs_text *out, const bench_state *b);

/* A thread that ends the run early, with what it has: where a row takes longer than -T, and on SIGINT, SIGTERM and
 * SIGHUP, of which the program then dies. A process that is forked has no such thread. */
void bench_watch_begin(bench_report *r, const cli_options *o);
void bench_watch_row(const char *shape); /* a row begins; NULL: none is measured */
void bench_watch_end(void);

#endif
