/* The CPU device: memory, programs and jobs behind the table of device.h. */
#define _GNU_SOURCE /* sched_getaffinity, MADV_HUGEPAGE */
#include "device/cpu/cpu.h"

#include "device/cpu/copy/task.h"
#include "device/cpu/memory.h"
#include "device/cpu/segment.h"
#include "device/cpu/threads.h"
#include "device/trace.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
  ALONE = 256 << 10, /* jobs up to this size wake no helper */
  SPAN_TASK = 512 << 10,
  SPAN_TASK_LEAST = 64 << 10,
};

typedef struct rs_cpu {
  rs_device base;
  const rs_kernels *kernels;
  rs_threads *threads;
  int64_t stream_from; /* bytes of a job from which on stores go past the cache */
} rs_cpu;

static inline rs_cpu *cpu_of(rs_device *device) { return (rs_cpu *)device; }

/* Compiles copies into an empty program. */
static reshard_status compile_into(rs_cpu *cpu, const rs_copies *copies, int64_t total_bytes, rs_program *program) {
  program->bytes = copies->bytes;
  for (int64_t i = 0; i < copies->copy.n; i++)
    RS_TRY(rs_program_add(program, copies, &copies->copy.at[i]));
  bool streaming = !copies->staging && total_bytes >= cpu->stream_from;
  RS_TRY(rs_program_interleave(program, streaming));
  return rs_program_divide(program, rs_threads_count(cpu->threads));
}

static reshard_status cpu_compile(rs_device *device, const rs_copies *copies, int64_t total_bytes, rs_program **out) {
  rs_program *program;
  RS_TRY(rs_alloc_zero(&program, 1, sizeof *program));
  RS_TRY_OR(compile_into(cpu_of(device), copies, total_bytes, program), rs_program_free(program));
  rs_program_free_temporary(program);
  *out = program;
  return RESHARD_SUCCESS;
}

static reshard_status cpu_recompile(rs_device *device, const rs_copies *copies, int64_t total_bytes, rs_program **out) {
  if (*out == NULL)
    RS_TRY(rs_alloc_zero(out, 1, sizeof **out));
  rs_program_clear(*out);
  return compile_into(cpu_of(device), copies, total_bytes, *out);
}

static void cpu_release(rs_device *device, rs_program *program) {
  (void)device;
  rs_program_free(program);
}

typedef struct rs_run_job {
  rs_device *device;
  const rs_kernels *kernels;
  int64_t n;
  rs_program *const *programs;
} rs_run_job;

static int64_t tasks_of(const rs_program *program) { return program == NULL ? 0 : program->task.n; }

/* Runs tasks of programs that take turns, task by task: when each rank has its own, those that read the same source
 * stay together. Each thread finds its way through this order by itself, from one of its tasks to the next. */
static void run_tasks(const void *user, rs_claim *claim) {
  const rs_run_job *job = user;
  int64_t program = -1, row = 0, at = -1;
  rs_trace_work(job->device, NULL, "share", -1, -1);
  for (int64_t task; (task = rs_threads_next(claim)) >= 0;) {
    while (at < task) {
      do {
        if (++program == job->n) {
          program = 0;
          row++;
        }
      } while (tasks_of(job->programs[program]) <= row);
      at++;
    }
    rs_program_run_task(job->programs[program], job->kernels, row, (rs_shift){0}, NULL);
  }
  job->kernels->fence();
  rs_trace_worked(job->device, NULL);
}

static reshard_status cpu_run(rs_device *device, int64_t n, rs_program *const *programs, void *stream) {
  (void)stream;
  rs_cpu *cpu = cpu_of(device);
  int64_t tasks = 0, bytes = 0;
  for (int64_t i = 0; i < n; i++)
    if (programs[i] != NULL) {
      tasks += programs[i]->task.n;
      bytes += programs[i]->bytes;
    }
  if (tasks == 0)
    return RESHARD_SUCCESS;
  rs_run_job job = {device, cpu->kernels, n, programs};
  if (bytes <= ALONE)
    rs_threads_run_alone(tasks, run_tasks, &job);
  else
    rs_threads_run(cpu->threads, tasks, run_tasks, &job);
  return RESHARD_SUCCESS;
}

/* Spans are one sequence of bytes that is cut in equal parts. */
typedef struct rs_copy_job {
  rs_device *device;
  const rs_kernels *kernels;
  const rs_span *spans;
  int64_t size; /* of a task */
  int64_t bytes;
  bool streaming;
  bool straight; /* the plain kernels, without prefetching */
} rs_copy_job;

static void copy_tasks(const void *user, rs_claim *claim) {
  const rs_copy_job *job = user;
  const rs_span *span = job->spans;
  int64_t base = 0; /* of the span in the sequence */
  rs_trace_work(job->device, NULL, "share", -1, -1);
  for (int64_t task; (task = rs_threads_next(claim)) >= 0;) {
    int64_t at = task * job->size, end = rs_min(at + job->size, job->bytes);
    while (at < end) {
      for (; base + span->bytes <= at; span++)
        base += span->bytes;
      int64_t inside = at - base, bytes = rs_min(end, base + span->bytes) - at;
      if (job->streaming && job->straight)
        job->kernels->stream(span->dst + inside, span->src + inside, bytes);
      else if (job->streaming && !span->staging)
        job->kernels->stream_runs(&(rs_cursor){span->dst + inside, span->src + inside, bytes, bytes, bytes, NULL}, 1,
                                  1);
      else
        memcpy(span->dst + inside, span->src + inside, (size_t)bytes);
      at += bytes;
    }
  }
  job->kernels->fence();
  rs_trace_worked(job->device, NULL);
}

static void copy_spans(rs_cpu *cpu, const rs_span *spans, int64_t bytes, bool streaming, bool straight) {
  int64_t size = rs_max(rs_min(bytes / (4 * rs_threads_count(cpu->threads)), SPAN_TASK), SPAN_TASK_LEAST);
  size = (size + 4095) / 4096 * 4096;
  size = rs_max(size, rs_ceil_div(bytes, UINT32_MAX));
  rs_copy_job job = {&cpu->base, cpu->kernels, spans, size, bytes, streaming, straight};
  if (bytes <= ALONE)
    rs_threads_run_alone(rs_ceil_div(bytes, size), copy_tasks, &job);
  else
    rs_threads_run(cpu->threads, rs_ceil_div(bytes, size), copy_tasks, &job);
}

static reshard_status cpu_copy(rs_device *device, int64_t n, const rs_span *spans, int64_t total_bytes, void *stream) {
  (void)stream;
  rs_cpu *cpu = cpu_of(device);
  int64_t bytes = 0;
  for (int64_t i = 0; i < n; i++)
    bytes += spans[i].bytes;
  if (bytes > 0)
    copy_spans(cpu, spans, bytes, total_bytes >= cpu->stream_from, false);
  return RESHARD_SUCCESS;
}

typedef struct rs_relay_job {
  rs_device *device;
  const rs_kernels *kernels;
  rs_relay *relays;
  int threads;
  bool streaming;
} rs_relay_job;

static rs_ahead ahead_of(const rs_relay *next) { return (rs_ahead){.program = next != NULL ? next->pack : NULL}; }

/* Packs or unpacks a message. */
static void run_program(const rs_relay_job *job, const rs_program *program, rs_shift shift, const rs_relay *next,
                        const char *name) {
  rs_ahead ahead = ahead_of(next);
  rs_trace_work(job->device, NULL, name, -1, program->bytes);
  for (int64_t task = 0; task < tasks_of(program); task++)
    rs_program_run_task(program, job->kernels, task, shift, ahead.program != NULL ? &ahead : NULL);
  rs_trace_worked(job->device, NULL);
}

/* Takes a message that no other thread has: of this thread's own share while there is one, so that round after round
 * the same staging stays in the same core's cache. There is one, since there are as many tasks as messages. */
static rs_relay *take_relay(const rs_relay_job *job, rs_claim *claim) {
  if (rs_threads_next(claim) < 0)
    return NULL;
  for (int64_t i = claim->thread; i < claim->n; i += job->threads)
    if (!atomic_exchange_explicit(&job->relays[i].taken, true, memory_order_relaxed))
      return &job->relays[i];
  for (int64_t i = claim->n - 1;; i = i > 0 ? i - 1 : claim->n - 1)
    if (!atomic_exchange_explicit(&job->relays[i].taken, true, memory_order_relaxed))
      return &job->relays[i];
}

/* Packs a message to where it is wanted, past the cache, if its runs allow that. */
static bool pack_there(const rs_relay_job *job, const rs_relay *relay) {
  const rs_span *s = &relay->span;
  if (!job->streaming || s->staging || relay->pack == NULL || relay->unpack != NULL ||
      !rs_program_streams_elsewhere(relay->pack, s->dst - s->src))
    return false;
  rs_trace_work(job->device, NULL, "pack", -1, s->bytes);
  rs_program_stream_elsewhere(relay->pack, job->kernels, s->dst - s->src);
  rs_trace_worked(job->device, NULL);
  return true;
}

/* Memory that a thread packs to. */
typedef struct rs_relay_staging {
  const char *at;
  int64_t bytes;
} rs_relay_staging;

/* Packs a message to where this thread has packed one before, if it fits: that stays in the core's cache, where the
 * staging of all messages would not. Returns how far that is from its own staging. */
static int64_t pack_relay(const rs_relay_job *job, const rs_relay *relay, rs_relay_staging *staging) {
  const rs_span *s = &relay->span;
  if (staging->bytes < s->bytes || (staging->at - s->src) % RS_LINE != 0)
    *staging = (rs_relay_staging){s->src, s->bytes};
  int64_t moved = staging->at - s->src;
  run_program(job, relay->pack, (rs_shift){0, moved}, NULL, "pack");
  return moved;
}

/* Copies a message that was packed, so far from its own staging, or lies in place. Prefetches the source of the next
 * one. */
static void send_relay(const rs_relay_job *job, const rs_relay *relay, int64_t moved, const rs_relay *next) {
  enum { PART = 2048 };
  const rs_span *s = &relay->span;
  rs_ahead ahead = ahead_of(next);
  rs_trace_work(job->device, NULL, "send", -1, s->bytes);
  for (int64_t at = 0; at < s->bytes; at += PART) {
    int64_t bytes = rs_min(PART, s->bytes - at);
    rs_program_ahead(&ahead, PART);
    if (job->streaming && !s->staging)
      job->kernels->stream(s->dst + at, s->src + moved + at, bytes);
    else
      memcpy(s->dst + at, s->src + moved + at, (size_t)bytes);
  }
  rs_trace_worked(job->device, NULL);
}

/* Relays messages, each from its source to its destination: one is one task. It is unpacked from where its sender has
 * it, packed or in place, and packed to where its receiver wants it, if it can be. A core that packs only reads from
 * memory, one that unpacks or sends only writes: so the next source is prefetched meanwhile. */
static void relay_tasks(const void *user, rs_claim *claim) {
  const rs_relay_job *job = user;
  rs_relay_staging staging = {0};
  for (rs_relay *relay = take_relay(job, claim), *next; relay != NULL; relay = next) {
    bool there = pack_there(job, relay);
    int64_t moved = relay->pack != NULL && !there ? pack_relay(job, relay, &staging) : 0;
    next = take_relay(job, claim);
    if (relay->unpack != NULL)
      run_program(job, relay->unpack, (rs_shift){relay->span.src + moved - relay->span.dst, 0}, next, "unpack");
    else if (!there)
      send_relay(job, relay, moved, next);
  }
  job->kernels->fence();
}

static reshard_status cpu_relay(rs_device *device, int64_t n, rs_relay *relays, int64_t total_bytes, void *stream) {
  (void)stream;
  rs_cpu *cpu = cpu_of(device);
  rs_relay_job job = {device, cpu->kernels, relays, rs_threads_count(cpu->threads), total_bytes >= cpu->stream_from};
  int64_t bytes = 0;
  for (int64_t i = 0; i < n; i++)
    bytes += relays[i].span.bytes;
  if (bytes <= ALONE)
    rs_threads_run_alone(n, relay_tasks, &job);
  else
    rs_threads_run(cpu->threads, n, relay_tasks, &job);
  for (int64_t i = 0; i < n; i++)
    atomic_store_explicit(&relays[i].taken, false, memory_order_relaxed);
  return RESHARD_SUCCESS;
}

static reshard_status cpu_cast(rs_device *device, const rs_casts *casts, void *stream) {
  rs_copies copies = {0};
  rs_program *program = NULL;
  reshard_status status = RESHARD_SUCCESS;
  int64_t written = 0;
  for (int64_t i = 0; i < casts->cast.n && status == RESHARD_SUCCESS; i++) {
    const rs_cast *cast = &casts->cast.at[i];
    reshard_dtype from = (reshard_dtype)cast->from, to = (reshard_dtype)cast->to;
    int64_t before = copies.bytes;
    rs_axis axes[RESHARD_MAX_DIMS + 1];
    for (int d = 0; d < cast->naxes; d++)
      axes[d] = casts->axis.at[cast->axes + d];
    axes[cast->naxes] = (rs_axis){cast->elements, (int64_t)reshard_dtype_size(from), (int64_t)reshard_dtype_size(to)};
    status = rs_copies_convert(&copies, cast->src, cast->dst, from, to, cast->naxes + 1, axes);
    written += rs_converted_bytes(from, to, copies.bytes - before);
  }
  RS_THEN(status, cpu_recompile(device, &copies, (copies.bytes + written) / 2, &program));
  RS_THEN(status, cpu_run(device, 1, &program, stream));
  rs_program_free(program);
  rs_copies_free(&copies);
  return status;
}

static int64_t cpu_count(const rs_program *program) { return program == NULL ? 0 : program->count; }

static void cpu_destroy(rs_device *device) {
  if (device == NULL)
    return;
  if (device->memory->shared)
    rs_shared_close();
  rs_threads_destroy(cpu_of(device)->threads);
  free(device);
}

static const rs_device_memory cpu_memory = {
    .alloc = rs_cpu_alloc,
    .free = rs_cpu_free,
    .alloc_async = rs_cpu_alloc_async,
    .free_async = rs_cpu_free_async,
    .host_alloc = rs_cpu_alloc,
    .host_free = rs_cpu_free,
    .memcpy = rs_cpu_memcpy,
    .memset = rs_cpu_memset,
    .enable_access = rs_cpu_enable_access,
};

/* Storage in segments; staging and tables, which no other process reads, are private all the same. */
static const rs_device_memory shared_cpu_memory = {
    .shared = true,
    .alloc = rs_cpu_alloc,
    .free = rs_cpu_free,
    .alloc_async = rs_cpu_shared_alloc,
    .free_async = rs_cpu_shared_free,
    .host_alloc = rs_cpu_alloc,
    .host_free = rs_cpu_free,
    .memcpy = rs_cpu_memcpy,
    .memset = rs_cpu_memset,
    .enable_access = rs_cpu_enable_access,
};

static const rs_device_streams cpu_streams = {
    .create = rs_cpu_stream_create,
    .destroy = rs_cpu_stream_destroy,
    .event_create = rs_cpu_event_create,
    .event_destroy = rs_cpu_event_destroy,
    .event_record = rs_cpu_event_record,
    .event_wait = rs_cpu_event_wait,
    .event_done = rs_cpu_event_done,
    .synchronize = rs_cpu_synchronize,
    .finish = rs_cpu_finish,
    .capturing = rs_cpu_capturing,
};

static const rs_device_work cpu_work = {
    .compile = cpu_compile,
    .recompile = cpu_recompile,
    .release = cpu_release,
    .run = cpu_run,
    .copy = cpu_copy,
    .relay = cpu_relay,
    .count = cpu_count,
    .cast = cpu_cast,
    .select = rs_cpu_select,
};

int rs_device_cpu_cores(void) {
#if defined(__linux__)
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0)
    return CPU_COUNT(&set) > 0 ? CPU_COUNT(&set) : 1;
#endif
  long cores = sysconf(_SC_NPROCESSORS_ONLN);
  return cores < 1 ? 1 : cores > 1024 ? 1024 : (int)cores;
}

/* Bytes of a job from which on source and destination no longer fit the last-level cache: half of it. Virtual machines
 * report the cache of all sockets or none, so no more than MOST is believed. A streaming store costs little where the
 * cache would have done. */
static int64_t streaming_threshold(void) {
  enum { MOST = 2 << 20 };
  long bytes = 0;
#if defined(_SC_LEVEL3_CACHE_SIZE)
  bytes = sysconf(_SC_LEVEL3_CACHE_SIZE);
  if (bytes <= 0)
    bytes = sysconf(_SC_LEVEL2_CACHE_SIZE);
#endif
  return bytes > 0 ? rs_min(bytes / 2, MOST) : MOST;
}

reshard_status rs_device_cpu_create(int threads, reshard_isa isa, rs_device **device) {
  const rs_kernels *kernels = isa >= RESHARD_ISA_AUTO && isa < RESHARD_ISA_COUNT ? rs_kernels_of(isa) : NULL;
  if (kernels == NULL)
    return rs_error(RESHARD_ERROR_UNSUPPORTED, "this machine or build has no %s copies", reshard_isa_string(isa));
  if (threads < 0 || threads > 4096)
    return rs_error(RESHARD_ERROR_INVALID, "%d copy threads: 0 to 4096 are possible", threads);
  rs_cpu *cpu;
  RS_TRY(rs_alloc_zero(&cpu, 1, sizeof *cpu));
  *cpu = (rs_cpu){.base = {.name = "cpu",
                           .memory = &cpu_memory,
                           .streams = &cpu_streams,
                           .work = &cpu_work,
                           .destroy = cpu_destroy,
                           .type = RESHARD_DEVICE_CPU},
                  .kernels = kernels,
                  .stream_from = streaming_threshold()};
  RS_TRY_OR(rs_threads_create(threads == 0 ? rs_device_cpu_cores() : threads, &cpu->threads), free(cpu));
  *device = &cpu->base;
  return RESHARD_SUCCESS;
}

reshard_status rs_device_cpu_share(rs_device *device) {
  RS_TRY(rs_shared_open(NULL));
  device->memory = &shared_cpu_memory;
  return RESHARD_SUCCESS;
}

int rs_device_cpu_threads(const rs_device *device) { return rs_threads_count(((const rs_cpu *)device)->threads); }
reshard_isa rs_device_cpu_isa(const rs_device *device) { return ((const rs_cpu *)device)->kernels->isa; }

void rs_device_cpu_straight(rs_device *device, char *dst, const char *src, int64_t bytes, bool streaming) {
  if (bytes > 0)
    copy_spans(cpu_of(device), &(rs_span){src, dst, bytes, false}, bytes, streaming, true);
}
