#include "bench/micro/gpu.h"

#include <stdlib.h>
#include <string.h>

static int64_t read_number(const char *name, int64_t least, int64_t otherwise) {
  const char *given = getenv(name);
  if (given == NULL)
    return otherwise;
  char *end;
  int64_t value = strtoll(given, &end, 10);
  if (end == given || *end != '\0' || value < least)
    cli_exit(EXIT_USAGE, "%s: '%s' is no number of %lld or more", name, given, (long long)least);
  return value;
}

void *gpu_row_open(const micro_case *of, int64_t *items) {
  gpu_row *x = cli_alloc(1, sizeof *x);
  *items = 0;
  x->parameter = of->parameter;
  x->most = read_number("RESHARD_MICRO_GPU_BYTES", 1 << 16, 256 << 20);
  x->turns = read_number("RESHARD_MICRO_GPU_TURNS", 0, 20);
  x->small = x->most < 64 << 20;
  gpu_context_open(&x->context);
  return x;
}

void gpu_row_close(void *row) {
  gpu_row *x = row;
  gpu_context_close(&x->context);
  free(x);
}

void gpu_row_set(gpu_row *x, int64_t bytes, double seconds) {
  x->bytes = bytes;
  x->seconds = seconds;
  snprintf(x->note, sizeof x->note, "bytes=%lld", (long long)bytes);
}

void gpu_row_add(gpu_row *x, const char *key, double value) {
  size_t at = strlen(x->note);
  snprintf(x->note + at, sizeof x->note - at, " %s=%.3f", key, value);
}

void gpu_row_add_memcpy(gpu_row *x, double seconds) {
  gpu_row_add(x, "memcpy_us", 1e6 * seconds);
  gpu_row_add(x, "x_memcpy", x->seconds / seconds);
  gpu_row_add(x, "of_memcpy", seconds / x->seconds);
}

int gpu_row_here(void) { return gpu_why_none() == NULL; }
int64_t gpu_row_bytes(const void *row) { return ((const gpu_row *)row)->bytes; }
double gpu_row_seconds(const void *row) { return ((const gpu_row *)row)->seconds; }
const char *gpu_row_note(const void *row) { return ((const gpu_row *)row)->note; }

/* The times of one piece of work. It may hold the stream longer than others, and take fewer turns: where a turn takes
 * the host longer than SLOW_SECONDS. */
typedef struct turn_times {
  double *seconds;
  int64_t turns, hold;
} turn_times;
enum { FEW_TURNS = 3 };
static const double SLOW_SECONDS = 0.02;

/* A turn; the one before 0 warms up. */
static void take_turn(gpu_row *x, int64_t t, int64_t sets, const gpu_timed_work *runner, turn_times *times) {
  gpu_context *b = &x->context;
  double begin = rs_seconds();
  b->hold = times->hold;
  double seconds = gpu_context_time(b, runner->work, runner->user, sets, runner->size);
  times->hold = b->hold;
  if (t >= 0)
    times->seconds[t] = seconds;
  if (t == 0 && rs_seconds() - begin > SLOW_SECONDS)
    times->turns = rs_min(times->turns, FEW_TURNS);
}

void gpu_row_measure(gpu_row *x, int64_t sets, int n, const gpu_timed_work *runners, double *seconds) {
  for (int i = 0; x->turns == 0 && i < n; i++) {
    CLI_TRY("", runners[i].work(runners[i].user, x->context.stream[0]));
    seconds[i] = 1;
  }
  if (x->turns == 0)
    return;
  turn_times *times = cli_alloc(n, sizeof *times);
  for (int i = 0; i < n; i++)
    times[i] = (turn_times){cli_alloc(x->turns, sizeof(double)), x->turns, 1};
  for (int64_t t = -1; t < x->turns; t++)
    for (int i = 0; i < n; i++)
      if (t < times[i].turns)
        take_turn(x, t, sets, &runners[i], &times[i]);
  for (int i = 0; i < n; i++) {
    seconds[i] = cli_median(times[i].seconds, times[i].turns);
    free(times[i].seconds);
  }
  free(times);
}
