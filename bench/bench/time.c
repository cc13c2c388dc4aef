/* Times of a benchmark: of the reshard, and of the straight copy.
 *
 * On the CPU a time runs from the opening of a barrier to the return of a rank, of which the last one counts (-a). So
 * does it on a GPU with -z, until the stream is empty, and with -C, until the work is launched. Processes of one node
 * have begun when the first of them has.
 *
 * Else on a GPU it runs from an event that all ranks' streams wait for to one that waits for all of them. The host's
 * launches are not in it: before the first event, memsets over four times the L2 cache hold the streams. They also
 * leave nothing of the data in the cache. Where the first event has happened before the last launch, the measurement is
 * repeated with twice as many memsets. Between the events is the work on each set of buffers, one after the other; the
 * time is the mean (gpu.h). */
#include "bench/bench/time.h"

#include "device/cpu/cpu.h"
#include "device/stream.h"

#include <string.h>

enum { MOST_HELD = 256 };

/* --- Work that is timed: called by every local rank -------------------------------------------------------------- */

static void check_work(const bench_state *b, int64_t local, reshard_status status) {
  if (status != RESHARD_SUCCESS)
    cli_fail(status, "rank %lld: %s", (long long)(b->s.first + local), reshard_last_error());
}

void bench_execute(bench_state *b, int64_t local, int64_t set) {
  check_work(b, local, reshard_execute(b->transfers[set * b->s.locals + local], bench_stream(b, local)));
}

void bench_reshard(bench_state *b, int64_t local, int64_t set) {
  for (int64_t i = 0; b->graphs == NULL && i < b->each; i++)
    bench_execute(b, local, set);
  if (b->graphs != NULL && local == 0)
    check_work(b, local, gpu_launch(&b->graphs[set], b->stream[0]));
}

static void copy_arena(bench_state *b, const bench_arena *from, const bench_arena *to, int64_t set, void *stream) {
  const unsigned char *source = from->memory + set * from->extent;
  unsigned char *target = to->memory + set * to->extent;
  int64_t bytes = b->dst.moved == b->dst.bytes
                      ? to->extent
                      : (int64_t)((double)to->extent / (double)b->dst.bytes * (double)b->dst.moved);
  for (int64_t done = 0, n; done < bytes; done += n) { /* each side from its begin to its end, and again */
    int64_t read = from->extent > 0 ? done % from->extent : 0, written = done % to->extent;
    n = rs_min(bytes - done, rs_min(to->extent - written, from->extent > 0 ? from->extent - read : bytes));
    if (to->device != NULL)
      CLI_TRY("", to->device->memory->memcpy(to->device, target + written, source + read, (size_t)n, stream));
    else
      rs_device_cpu_straight(b->cpu, (char *)target + written, (const char *)source + read, n, b->streaming);
  }
}

/* The first rank of each arena copies it. */
void bench_memcpy(bench_state *b, int64_t local, int64_t set) {
  if (local < b->dst.narenas)
    copy_arena(b, &b->src.arena[local], &b->dst.arena[local], set, bench_stream(b, local));
}

/* --- Time -------------------------------------------------------------------------------------------------------- */

static double join_times(const double *times, int64_t n, int64_t step, bench_average average) {
  double sum = 0, least = times[0], most = times[0];
  for (int64_t i = 0; i < n; i++) {
    double time = times[i * step];
    sum += time;
    least = time < least ? time : least;
    most = time > most ? time : most;
  }
  return average == BENCH_RANK_0     ? times[0]
         : average == BENCH_MEAN     ? sum / (double)n
         : average == BENCH_SHORTEST ? least
                                     : most;
}

double bench_combine(bench_state *b, int64_t local, double seconds, bench_average average) {
  if (b->s.processes.n == 1)
    return seconds;
  const double *all = session_gather(&b->s, local, seconds);
  return join_times(all, b->s.processes.n, b->s.locals, average);
}

static void synchronize(bench_state *b, int64_t local) {
  if (b->s.cuda)
    CLI_TRY("", bench_streams(b, local)->synchronize(session_device(&b->s, local), b->stream[local]));
}

/* The first rank's begin, where processes are of one node and so have one clock; else this one's. Where there are more
 * ranks than cores, the barrier wakes some when others have done half of the work. Slurm and torchrun need not say
 * which processes are of one node, so NCCL's have their own begins. */
static double first_begin(bench_state *b, int64_t local, double begin) {
  if (b->s.processes.local_n < b->s.processes.n || strcmp(b->s.comm, "nccl") == 0)
    return begin;
  const double *all = session_gather(&b->s, local, begin);
  for (int64_t r = 0; r < b->s.world; r++)
    begin = all[r] < begin ? all[r] : begin;
  return begin;
}

/* By the host's clock: until each rank's work is done, or until it is launched. */
static double time_host(bench_state *b, int64_t local, bench_work work, int64_t sets, bench_average average) {
  session_barrier(&b->s, local, true);
  double begin = b->s.processes.n == 1 ? rank_pool_opened(b->s.pool) : rs_seconds();
  for (int64_t set = 0; set < sets; set++) {
    work(b, local, set);
    if (!b->o->host_time)
      synchronize(b, local);
  }
  double end = rs_seconds();
  synchronize(b, local);
  if (b->s.processes.n > 1)
    begin = first_begin(b, local, begin);
  b->ends[local] = (end - begin) / (double)sets;
  rank_pool_barrier(b->s.pool, true);
  if (b->s.processes.n == 1)
    return local == 0 ? join_times(b->ends, b->s.locals, 1, average) : 0;
  return join_times(session_gather(&b->s, local, b->ends[local]), b->s.world, 1, average);
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

double bench_timed_call(bench_state *b, int64_t local, bench_work work) {
  return time_host(b, local, work, 1, BENCH_LONGEST);
}

double bench_timed(bench_state *b, int64_t local, bench_work work, bench_average average) {
  if (!b->s.cuda || b->o->blocking || b->o->host_time)
    return time_host(b, local, work, b->dst.sets, average);
  return bench_combine(b, local, time_gpu(b, local, work), average);
}
