/* Times of a benchmark: of the reshard, and of the straight copy.
 *
 * On the CPU a time runs from the opening of a barrier to the return of the last rank.
 *
 * On a GPU it runs from an event that all ranks' streams wait for to an event that waits for all of them. The host's
 * launches are not in it: before the first event, memsets over four times the L2 cache hold the streams. They also
 * leave nothing of the data in the cache. Where the first event has happened before the last launch, the measurement is
 * repeated with twice as many memsets. Between the events is the work on each set of buffers, one after the other; the
 * time is the mean (gpu.h). */
#include "bench/bench/state.h"

#include "device/cpu/cpu.h"
#include "device/stream.h"

enum { MOST_HELD = 256 };

/* --- Work that is timed: called by every local rank -------------------------------------------------------------- */

void bench_reshard(bench_state *b, int64_t local, int64_t set) {
  reshard_status status = RESHARD_SUCCESS;
  if (b->graphs == NULL)
    status = reshard_execute(b->transfers[set * b->s.locals + local], bench_stream(b, local));
  else if (local == 0)
    status = gpu_launch(session_device(&b->s, 0), b->graphs[set], b->stream[0]);
  if (status != RESHARD_SUCCESS)
    cli_fail(status, "rank %lld: %s", (long long)(b->s.first + local), reshard_last_error());
}

static void copy_arena(bench_state *b, const bench_arena *from, const bench_arena *to, int64_t set, void *stream) {
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

/* The first rank of each arena copies it. */
void bench_memcpy(bench_state *b, int64_t local, int64_t set) {
  if (local < b->dst.narenas)
    copy_arena(b, &b->src.arena[local], &b->dst.arena[local], set, bench_stream(b, local));
}

/* --- Time -------------------------------------------------------------------------------------------------------- */

/* Both functions return the time to local rank 0. */
static double time_cpu(bench_state *b, int64_t local, bench_work work) {
  session_barrier(&b->s, local, true);
  double begin = b->s.processes.n == 1 ? rank_pool_opened(b->s.pool) : rs_seconds(), end = begin;
  work(b, local, 0);
  b->ends[local] = rs_seconds();
  rank_pool_barrier(b->s.pool, true);
  for (int64_t l = 0; local == 0 && l < b->s.locals; l++)
    end = b->ends[l] > end ? b->ends[l] : end;
  return end - begin;
}

/* Holds a device's streams by memsets; its ranks' streams will wait for the event behind them. */
static void hold_streams(bench_state *b, int64_t lead) {
  rs_device *device = session_device(&b->s, lead);
  for (int64_t i = 0; i < b->hold; i++)
    CLI_TRY("", device->memory->memset(device, b->scratch[lead], (int)i, b->scratch_bytes, b->stream[lead]));
  CLI_TRY("", rs_stream_record(device, b->done[lead], b->stream[lead], "bench: held"));
}

/* Makes the first rank's stream wait for the events of the other ranks. */
static void join_streams(bench_state *b, int64_t ranks, const char *edge) {
  for (int64_t l = 1; l < ranks; l++)
    CLI_TRY("", rs_stream_wait(session_device(&b->s, 0), b->stream[0], b->done[l], edge));
}

static double read_end(bench_state *b) {
  rs_device *device = session_device(&b->s, 0);
  bool early = false;
  double seconds = 0;
  join_streams(b, b->s.locals, "bench: end after ranks");
  CLI_TRY("", rs_stream_record(device, b->end, b->stream[0], "bench: end"));
  CLI_TRY("", device->streams->event_done(device, b->begin, &early));
  CLI_TRY("", device->streams->synchronize(device, b->stream[0]));
  CLI_TRY("", gpu_elapsed(b->begin, b->end, &seconds));
  b->again = early && b->hold < MOST_HELD;
  b->row.host_bound |= early && !b->again;
  b->hold *= b->again ? 2 : 1;
  return seconds;
}

static double time_gpu(bench_state *b, int64_t local, bench_work work) {
  rs_device *device = session_device(&b->s, local);
  int64_t leads = b->s.locals < b->s.ndevices ? b->s.locals : b->s.ndevices;
  double seconds = 0;
  do {
    rank_pool_barrier(b->s.pool, true);
    if (local < leads)
      hold_streams(b, local);
    rank_pool_barrier(b->s.pool, true);
    if (local == 0) {
      join_streams(b, leads, "bench: begin after held");
      CLI_TRY("", rs_stream_record(device, b->begin, b->stream[0], "bench: begin"));
    }
    rank_pool_barrier(b->s.pool, true);
    if (local > 0)
      CLI_TRY("", rs_stream_wait(device, b->stream[local], b->begin, "bench: work after begin"));
    for (int64_t set = 0; set < b->dst.sets; set++)
      work(b, local, set);
    if (local > 0)
      CLI_TRY("", rs_stream_record(device, b->done[local], b->stream[local], "bench: work"));
    rank_pool_barrier(b->s.pool, true);
    if (local == 0)
      seconds = read_end(b);
  } while (!session_barrier(&b->s, local, local > 0 || !b->again));
  return seconds / (double)b->dst.sets;
}

/* Returns the longest of the times that the processes' first ranks have measured. */
double bench_longest(bench_state *b, int64_t local, double seconds) {
  if (b->s.processes.n == 1)
    return seconds;
  const double *all = session_gather(&b->s, local, local == 0 ? seconds : 0);
  for (int64_t r = 0; r < b->s.world; r++)
    seconds = all[r] > seconds ? all[r] : seconds;
  return seconds;
}

double bench_timed(bench_state *b, int64_t local, bench_work work) {
  return bench_longest(b, local, b->s.cuda ? time_gpu(b, local, work) : time_cpu(b, local, work));
}
