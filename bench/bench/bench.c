/* reshard bench: the sizes that are measured, and the command. */
#include "bench/bench/state.h"
#include "bench/cli/commands.h"

#include <string.h>

/* Sets dim 0 of the shape so that the tensor is the largest within the size. */
static void scale_shape(bench_state *b, const workload_tensor *base, int64_t size) {
  int64_t shape[RESHARD_MAX_DIMS], row = (int64_t)reshard_dtype_size(base->dtype);
  if (base->ndim == 0)
    cli_exit(EXIT_USAGE, "-b: a scalar has no dim 0 to scale");
  memcpy(shape, base->shape, sizeof shape);
  for (int d = 1; d < base->ndim; d++)
    row *= shape[d]; /* no overflow: the given shape has been checked, with dim 0 of 1 or more */
  if (row == 0)
    cli_exit(EXIT_USAGE, "-b: a tensor without elements cannot be scaled");
  if (size < row)
    cli_exit(EXIT_USAGE, "-b: %lld bytes are less than one row of %lld bytes", (long long)size, (long long)row);
  shape[0] = size / row;
  workload_set_shape(&b->w, base->ndim, shape);
}

static int64_t next_size(const cli_options *o, int64_t size) {
  if (o->size_increment > 0)
    return size > INT64_MAX - o->size_increment ? INT64_MAX : size + o->size_increment;
  double grown = (double)size * (o->size_factor > 0 ? o->size_factor : 2);
  return grown >= 9e18 ? INT64_MAX : (int64_t)grown > size ? (int64_t)grown : size + 1;
}

static void check_sizes(cli_options *o) {
  if (o->size_increment > 0 && o->size_factor > 0)
    cli_exit(EXIT_USAGE, "-i %lld and -f %g are both given", (long long)o->size_increment, o->size_factor);
  if (o->size_begin == 0 && o->size_end == 0) {
    if (o->size_increment > 0)
      cli_exit(EXIT_USAGE, "-i %lld needs -b and -e", (long long)o->size_increment);
    if (o->size_factor > 0)
      cli_exit(EXIT_USAGE, "-f %g needs -b and -e", o->size_factor);
    return;
  }
  if (o->model != NULL)
    cli_exit(EXIT_USAGE, "-b and -e scale a --shape, not a --model");
  if (o->size_begin == 0)
    cli_exit(EXIT_USAGE, "-e %lld is given without -b", (long long)o->size_end);
  if (o->size_end == 0)
    o->size_end = o->size_begin;
  if (o->size_end < o->size_begin)
    cli_exit(EXIT_USAGE, "-e %lld is below -b %lld", (long long)o->size_end, (long long)o->size_begin);
}

/* Measures all rows and returns the number of wrong elements. The first process prints. */
static int64_t run_sizes(bench_state *b, const machine *m) {
  const cli_options *o = b->o;
  bool first = b->s.processes.me == 0, to_json = first && o->json != NULL;
  bool quiet = !first || (to_json && strcmp(o->json, "-") == 0);
  const workload_tensor base = b->w.n > 0 ? b->w.tensor[0] : (workload_tensor){0};
  int64_t wrong = 0, rows = 0;
  double busbw = 0;
  rs_json j = {.text.grows = true};
  if (o->size_begin > 0)
    scale_shape(b, &base, o->size_begin); /* what is wrong with it is said before anything is printed */
  if (to_json)
    bench_json_head(&j, b, m);
  if (!quiet)
    bench_print_head(b, m);
  for (int64_t size = o->size_begin;; size = next_size(o, size)) {
    if (o->size_begin > 0)
      scale_shape(b, &base, size);
    bench_run_row(b);
    wrong += b->row.wrong;
    busbw += b->row.busbw;
    rows++;
    if (!quiet)
      bench_print_row(b);
    if (to_json)
      bench_json_row(&j, b);
    cli_done("%lld size%s of %lld to %lld bytes, the last with a busbw of %.4g GB/s", (long long)rows,
             rows == 1 ? "" : "s", (long long)o->size_begin, (long long)size, b->row.busbw);
    if (o->size_begin == 0 || size >= o->size_end || next_size(o, size) > o->size_end)
      break;
  }
  cli_done("%s", "");
  if (!quiet) {
    if (o->check)
      printf("# Out of bounds values : %lld %s\n", (long long)wrong, wrong == 0 ? "OK" : "FAILED");
    printf("# Avg bus bandwidth    : %.4g\n", busbw / (double)rows);
  }
  if (to_json) {
    rs_json_close(&j, ']');
    rs_json_int(&j, "out_of_bounds", wrong);
    rs_json_real(&j, "average_busbw", busbw / (double)rows);
    rs_json_close(&j, '}');
    cli_write_json(o->json, &j);
  }
  return wrong;
}

int command_bench(int argc, char **argv) {
  cli_options o;
  machine m;
  cli_read_options(argc, argv, COMMAND_BENCH,
                   "usage: reshard bench (--shape S [--dtype T] | --model NAME|FILE) --src L --dst L [OPTION]...\n\n"
                   "Measures a reshard beside a straight copy of as many bytes. Flags and columns are those of "
                   "nccl-tests; algbw is global\n"
                   "bytes / time, busbw what the busiest rank sends or receives / time. Packed in rounds under "
                   "--workspace,\n"
                   "by default what is fast on the device. Ranks = processes (of mpirun, or by RANK "
                   "and WORLD_SIZE) x -t x -g.\n",
                   &o);
  check_sizes(&o);
  bench_state b = {.o = &o, .traced = o.trace != NULL};
  session_begin(&b.s, &o);
  workload_read(&o, &b.w);
  machine_read(&m);
  bench_start(&b);
  int64_t wrong = run_sizes(&b, &m);
  if (o.trace != NULL)
    bench_trace_write(&b, o.trace, NULL);
  bench_finish(&b);
  if (wrong > 0)
    cli_exit(EXIT_FAILED, "%lld elements are wrong", (long long)wrong);
  return EXIT_DONE;
}
