/* Times of a benchmark: of ours, and of the straight copy.
 *
 * On the CPU a time is from the opening of a barrier to the return of the last rank. On a GPU it is from an event that
 * all ranks' streams wait for to one that waits for all of them, and what the host needs to give the work to the
 * streams is not in it: before the first event the streams are held by memsets, over four times the L2 cache, so that
 * nothing is found in the cache either, and as many of them as it takes - when the first event has happened before the
 * last piece of work was given, all is done again with twice as many. Between the events is the work on each set of
 * buffers, one after the other, and the time is that of one (gpu.h). */
#include "bench/bench/bench.h"

#include "device/cpu/cpu.h"
#include "device/stream.h"

enum { MOST_HELD = 256 };

/* --- Work that is timed: called by every local rank ------------------------------------------------------------------
 */

void bench_ours(bench_state *b, int64_t local, int64_t set) {
  reshard_status status = RESHARD_SUCCESS;
  if (b->graphs == NULL)
    status = reshard_execute(b->transfers[set * b->s.locals + local], bench_stream(b, local));
  else if (local == 0)
    status = gpu_launch(session_device(&b->s, 0), b->graphs[set], b->stream[0]);
  if (status != RESHARD_SUCCESS)
    cli_fail(status, "rank %lld: %s", (long long)(b->s.first + local), reshard_last_error());
}

static void straight_copy(bench_state *b, const bench_place *from, const bench_place *to, int64_t set, void *stream) {
  const unsigned char *source = from->memory + set * from->extent;
  unsigned char *target = to->memory + set * to->extent;
  for (int64_t done = 0; done < to->extent;) { /* a replicated destination is larger than the source */
    int64_t left = to->extent - done, n = from->extent > 0 && from->extent < left ? from->extent : left;
    if (to->device != NULL)
      CLI_TRY("", to->device->memory->memcpy(to->device, target + done, source, (size_t)n, stream));
    else
      rs_device_cpu_straight(b->cpu, (char *)target + done, (const char *)source, n, b->streaming);
    done += n;
  }
}

/* Of each place by the first rank there. */
void bench_straight(bench_state *b, int64_t local, int64_t set) {
  if (local < b->dst.nplaces)
    straight_copy(b, &b->src.place[local], &b->dst.place[local], set, bench_stream(b, local));
}

/* --- Time ------------------------------------------------------------------------------------------------------------
 */

/* Both return the time to local rank 0. */
static double timed_cpu(bench_state *b, int64_t local, bench_work work) {
  session_meet(&b->s, local, true);
  double begin = b->s.processes.n == 1 ? rank_pool_opened(b->s.pool) : cli_seconds(), end = begin;
  work(b, local, 0);
  b->ends[local] = cli_seconds();
  rank_pool_meet(b->s.pool, true);
  for (int64_t l = 0; local == 0 && l < b->s.locals; l++)
    end = b->ends[l] > end ? b->ends[l] : end;
  return end - begin;
}

/* Holds a device's streams: those of its ranks will wait for what comes behind. */
static void hold(bench_state *b, int64_t lead) {
  rs_device *device = session_device(&b->s, lead);
  for (int64_t i = 0; i < b->hold; i++)
    CLI_TRY("", device->memory->memset(device, b->scratch[lead], (int)i, b->scratch_bytes, b->stream[lead]));
  CLI_TRY("", rs_stream_record(device, b->done[lead], b->stream[lead], "bench: held"));
}

/* The first rank's stream comes after what the ranks have recorded. */
static void join(bench_state *b, int64_t ranks, const char *edge) {
  for (int64_t l = 1; l < ranks; l++)
    CLI_TRY("", rs_stream_wait(session_device(&b->s, 0), b->stream[0], b->done[l], edge));
}

static double end_time(bench_state *b) {
  rs_device *device = session_device(&b->s, 0);
  bool early = false;
  double seconds = 0;
  join(b, b->s.locals, "bench: end after ranks");
  CLI_TRY("", rs_stream_record(device, b->end, b->stream[0], "bench: end"));
  CLI_TRY("", device->streams->event_done(device, b->begin, &early));
  CLI_TRY("", device->streams->synchronize(device, b->stream[0]));
  CLI_TRY("", gpu_elapsed(b->begin, b->end, &seconds));
  b->again = early && b->hold < MOST_HELD;
  b->row.host_bound |= early && !b->again;
  b->hold *= b->again ? 2 : 1;
  return seconds;
}

static double timed_gpu(bench_state *b, int64_t local, bench_work work) {
  rs_device *device = session_device(&b->s, local);
  int64_t leads = b->s.locals < b->s.ndevices ? b->s.locals : b->s.ndevices;
  double seconds = 0;
  do {
    rank_pool_meet(b->s.pool, true);
    if (local < leads)
      hold(b, local);
    rank_pool_meet(b->s.pool, true);
    if (local == 0) {
      join(b, leads, "bench: begin after held");
      CLI_TRY("", rs_stream_record(device, b->begin, b->stream[0], "bench: begin"));
    }
    rank_pool_meet(b->s.pool, true);
    if (local > 0)
      CLI_TRY("", rs_stream_wait(device, b->stream[local], b->begin, "bench: work after begin"));
    for (int64_t set = 0; set < b->dst.sets; set++)
      work(b, local, set);
    if (local > 0)
      CLI_TRY("", rs_stream_record(device, b->done[local], b->stream[local], "bench: work"));
    rank_pool_meet(b->s.pool, true);
    if (local == 0)
      seconds = end_time(b);
  } while (!session_meet(&b->s, local, local > 0 || !b->again));
  return seconds / (double)b->dst.sets;
}

/* What each process's first rank has measured: the longest. */
double bench_longest(bench_state *b, int64_t local, double seconds) {
  if (b->s.processes.n == 1)
    return seconds;
  const double *all = session_gather(&b->s, local, local == 0 ? seconds : 0);
  for (int64_t r = 0; r < b->s.world; r++)
    seconds = all[r] > seconds ? all[r] : seconds;
  return seconds;
}

double bench_timed(bench_state *b, int64_t local, bench_work work) {
  return bench_longest(b, local, b->s.cuda ? timed_gpu(b, local, work) : timed_cpu(b, local, work));
}
