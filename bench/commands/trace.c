/* reshard trace. */
#include "bench/bench/record.h"
#include "bench/commands/commands.h"

#include <string.h>

static void print_summary(const bench_state *b) {
  int64_t edges = 0, work = 0;
  double begin = 0, end = 0;
  for (int64_t i = 0; i < b->trace->nsteps; i++) {
    const trace_step *s = &b->trace->step[i];
    edges += s->from >= 0;
    work += s->is.kind == RS_TRACE_WORK;
    begin = i == 0 || s->begin < begin ? s->begin : begin;
    end = i == 0 || s->end > end ? s->end : end;
  }
  printf("%lld track%s, %lld step%s, %lld edge%s, %.3f us\n", (long long)b->trace->ntracks,
         cli_plural(b->trace->ntracks), (long long)work, cli_plural(work), (long long)edges, cli_plural(edges),
         end - begin);
  if (b->s.processes.n > 1 && b->clock_error > 0)
    printf("%lld processes, clocks compared with that of process 0: off by %.3f us at most\n",
           (long long)b->s.processes.n, 1e6 * b->clock_error);
  else if (b->s.processes.n > 1)
    printf("%lld processes, one clock (CLOCK_MONOTONIC)\n", (long long)b->s.processes.n);
}

int command_trace(int argc, char **argv) {
  cli_options o;
  cli_read_options(argc, argv, COMMAND_TRACE,
                   "usage: reshard trace (--shape S [--dtype T] | --model NAME|FILE) --src L --dst L --svg FILE|--json "
                   "FILE [OPTION]...\n\n"
                   "Executes a reshard once, after a warm-up, and draws what runs when on which stream, and what waits "
                   "for what. The JSON is\n"
                   "Chrome's trace format, for Perfetto and chrome://tracing.\n",
                   &o);
  if (o.json == NULL && o.svg == NULL)
    cli_exit(EXIT_USAGE, "where to? --svg FILE or --json FILE");
  o.iterations = 1;
  bench_state b = {.o = &o, .traced = true};
  session_begin(&b.s, &o);
  workload_read(&o, &b.w);
  bench_start(&b);
  bench_run_row(&b);
  bench_trace_write(&b, o.json, o.svg);
  if (b.s.processes.me == 0 && (o.json == NULL || strcmp(o.json, "-") != 0) &&
      (o.svg == NULL || strcmp(o.svg, "-") != 0))
    print_summary(&b);
  bench_finish(&b);
  return EXIT_DONE;
}
