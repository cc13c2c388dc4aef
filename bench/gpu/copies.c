/* Box copies and selections of reshard_gpu bench. */
#include "bench/gpu/cases.h"

#include "bench/gpu/context.h"
#include "bench/verify/random.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* One copy, or with parts one for each step of the first axis. */
static rs_program *compile_copy(rs_device *device, const char *from, char *to, int32_t element, const rs_axis axes[3],
                                bool parts) {
  rs_copies copies = {0};
  rs_program *program = NULL;
  for (int64_t i = 0; parts && i < axes[0].n; i++)
    CLI_TRY("", rs_copies_add(&copies, from + i * axes[0].src, to + i * axes[0].dst, element, 2, axes + 1));
  if (!parts)
    CLI_TRY("", rs_copies_add(&copies, from, to, element, 3, axes));
  CLI_TRY("", device->work->compile(device, &copies, copies.bytes, &program));
  rs_copies_free(&copies);
  return program;
}

/* Measures work on the sets of buffers beside memcpys of as many bytes, and checks what it leaves. The figure is the
 * speed, or else the time. */
static void measure_beside_memcpy(gpu_bench_run *x, const char *name, bool speed, gpu_timed_work work, gpu_buffers *s,
                                  int64_t bytes) {
  gpu_context *b = x->b;
  gpu_memcpy plain[GPU_MOST_SETS];
  for (int64_t i = 0; i < s->sets; i++)
    plain[i] = (gpu_memcpy){b, s->to + i * s->to_step, s->from + i * s->from_step, bytes};
  double t[2];
  gpu_measure(x, s->sets, 2, (gpu_timed_work[]){work, {gpu_memcpy_run, plain, sizeof *plain}}, t);
  gpu_buffers_clear(b, s);
  for (int64_t i = 0; i < s->sets; i++)
    CLI_TRY("", work.work((char *)work.user + (size_t)i * work.size, b->stream[0]));
  gpu_row *r = gpu_add_row(x, name, speed ? "of memcpy's speed" : "x memcpy's time");
  r->wrong = !gpu_buffers_right(b, s);
  r->bytes = bytes;
  r->us = 1e6 * t[0];
  r->memcpy_us = 1e6 * t[1];
  r->figure = speed ? t[1] / t[0] : t[0] / t[1];
  gpu_print_row(x, r);
}

void gpu_box_case(gpu_bench_run *x, const gpu_box *box) {
  if (!gpu_begin_case(x, box->name))
    return;
  gpu_context *b = x->b;
  int64_t run = box->run, k = box->k;
  int64_t m = k > 0 ? x->o->bytes / (k * run) : (int64_t)sqrt((double)(x->o->bytes / run)) & -8;
  k = k > 0 ? k : m;
  int64_t bytes = m * k * run;
  gpu_buffers s = gpu_buffers_create(b, bytes + box->shift, bytes);
  int32_t element = (int32_t)(run < 16 ? run : (run | box->shift) & -(run | box->shift));
  element = element < 16 ? element : 16;
  rs_axis axes[3] = {{k, run, m * run}, {m, k * run, run}, {run / element, element, element}};
  gpu_program jobs[GPU_MOST_SETS];
  for (int64_t i = 0; i < s.sets; i++)
    jobs[i] = (gpu_program){b, compile_copy(b->gpu, s.from + i * s.from_step + box->shift, s.to + i * s.to_step,
                                            element, axes, box->parts)};
  rs_program *cpu = compile_copy(b->cpu, s.host + box->shift, s.image, element, axes, box->parts);
  CLI_TRY("", b->cpu->work->run(b->cpu, 1, &cpu, NULL));
  b->cpu->work->release(b->cpu, cpu);
  measure_beside_memcpy(x, box->name, false, (gpu_timed_work){gpu_program_run, jobs, sizeof *jobs}, &s, bytes);
  for (int64_t i = 0; i < s.sets; i++)
    b->gpu->work->release(b->gpu, jobs[i].program);
  gpu_buffers_free(b, &s);
}

/* A layer of llama-3.1-8b in bf16, cut over FSDP_RANKS ranks: rows of a tensor, and bytes of a row. */
enum { FSDP_RANKS = 8 };
static const struct fsdp_tensor {
  int64_t rows, width;
} fsdp_tensors[] = {{4096, 8192},  {1024, 8192},  {1024, 8192}, {4096, 8192}, {14336, 8192},
                    {14336, 8192}, {4096, 28672}, {4096, 2},    {4096, 2}};

/* Bytes of a rank's shard of a tensor of the layer, whose matrices have `part` of their rows. */
static int64_t fsdp_shard(int64_t t, double part) {
  const struct fsdp_tensor *tensor = &fsdp_tensors[t];
  int64_t rows = tensor->width < 16 ? tensor->rows : (int64_t)(part * (double)tensor->rows);
  return rs_max(rows / FSDP_RANKS, 1) * tensor->width;
}

/* Adds the copies from the buffer that ranks have gathered, each with its shards of all tensors, to the tensors; or
 * back. */
static rs_program *compile_fsdp(rs_device *device, bool back, const char *from, char *to, double part, int64_t all) {
  rs_copies copies = {0};
  rs_program *program = NULL;
  int64_t begin = 0;
  for (size_t t = 0; t < sizeof fsdp_tensors / sizeof *fsdp_tensors; t++) {
    int64_t shard = fsdp_shard((int64_t)t, part), there = begin * FSDP_RANKS;
    const rs_axis axes[2] = {{FSDP_RANKS, back ? shard : all, back ? all : shard}, {shard / 2, 2, 2}};
    CLI_TRY("", rs_copies_add(&copies, from + (back ? there : begin), to + (back ? begin : there), 2, 2, axes));
    begin += shard;
  }
  CLI_TRY("", device->work->compile(device, &copies, copies.bytes, &program));
  rs_copies_free(&copies);
  return program;
}

void gpu_fsdp_case(gpu_bench_run *x, const char *name, bool back) {
  if (!gpu_begin_case(x, name))
    return;
  gpu_context *b = x->b;
  int64_t layer = 0, all = 0;
  enum { TENSORS = sizeof fsdp_tensors / sizeof *fsdp_tensors };
  for (int64_t t = 0; t < TENSORS; t++)
    layer += fsdp_tensors[t].rows * fsdp_tensors[t].width;
  double part = (double)x->o->bytes / (double)layer;
  for (int64_t t = 0; t < TENSORS; t++)
    all += fsdp_shard(t, part);
  int64_t bytes = all * FSDP_RANKS;
  gpu_buffers s = gpu_buffers_create(b, bytes, bytes);
  gpu_program jobs[GPU_MOST_SETS];
  for (int64_t i = 0; i < s.sets; i++)
    jobs[i] = (gpu_program){b, compile_fsdp(b->gpu, back, s.from + i * s.from_step, s.to + i * s.to_step, part, all)};
  rs_program *cpu = compile_fsdp(b->cpu, back, s.host, s.image, part, all);
  CLI_TRY("", b->cpu->work->run(b->cpu, 1, &cpu, NULL));
  b->cpu->work->release(b->cpu, cpu);
  measure_beside_memcpy(x, name, true, (gpu_timed_work){gpu_program_run, jobs, sizeof *jobs}, &s, bytes);
  for (int64_t i = 0; i < s.sets; i++)
    b->gpu->work->release(b->gpu, jobs[i].program);
  gpu_buffers_free(b, &s);
}

typedef struct select_run {
  gpu_context *b;
  rs_select select;
} select_run;

static reshard_status run_select(void *user, void *stream) {
  select_run *j = user;
  return j->b->gpu->work->select(j->b->gpu, &j->select, NULL, stream);
}

void gpu_select_case(gpu_bench_run *x, const char *name, int64_t rows, int64_t run, int32_t element) {
  if (!gpu_begin_case(x, name))
    return;
  gpu_context *b = x->b;
  int64_t bytes = rows * run;
  gpu_buffers s = gpu_buffers_create(b, bytes, bytes);
  int64_t *index = cli_alloc(rows, sizeof *index), *there = gpu_context_alloc(b, rows * 8);
  rng r;
  rng_seed(&r, 3);
  for (int64_t i = 0; i < rows; i++) {
    int64_t k = rng_in(&r, 0, i);
    index[i] = index[k];
    index[k] = i;
  }
  for (int64_t i = 0; i < rows; i++)
    memcpy(s.image + i * run, s.host + index[i] * run, (size_t)run);
  gpu_context_to_gpu(b, there, index, rows * 8);
  select_run jobs[GPU_MOST_SETS];
  for (int64_t i = 0; i < s.sets; i++)
    jobs[i] = (select_run){b,
                           {.src = s.from + i * s.from_step,
                            .index = (const char *)there,
                            .dst = s.to + i * s.to_step,
                            .count = rows,
                            .extent = rows,
                            .index_stride = 8,
                            .src_stride = run,
                            .dst_stride = run,
                            .index_bytes = 8,
                            .element = element,
                            .run = run}};
  measure_beside_memcpy(x, name, true, (gpu_timed_work){run_select, jobs, sizeof *jobs}, &s, bytes);
  free(index);
  gpu_context_free(b, there);
  gpu_buffers_free(b, &s);
}

typedef struct cast_work {
  gpu_context *b;
  rs_casts casts;
} cast_work;

static reshard_status run_cast(void *user, void *stream) {
  cast_work *j = user;
  return j->b->gpu->work->cast(j->b->gpu, &j->casts, stream);
}

void gpu_cast_case(gpu_bench_run *x, const char *name, reshard_dtype from, reshard_dtype to) {
  if (!gpu_begin_case(x, name))
    return;
  gpu_context *b = x->b;
  int64_t in = (int64_t)reshard_dtype_size(from), out = (int64_t)reshard_dtype_size(to);
  int64_t n = x->o->bytes / (in + out) * 2 & -64, bytes = n * (in + out) / 2;
  gpu_buffers s = gpu_buffers_create_one(b, rs_max(n * in, bytes), rs_max(n * out, bytes));
  rs_axis axis = {n, in, out};
  cast_work job = {.b = b};
  rs_casts cpu = {0};
  memset(s.image, 0, (size_t)s.to_bytes);
  CLI_TRY("", rs_casts_add(&job.casts, s.from, s.to, from, to, 1, &axis));
  CLI_TRY("", rs_casts_add(&cpu, s.host, s.image, from, to, 1, &axis));
  CLI_TRY("", b->cpu->work->cast(b->cpu, &cpu, NULL));
  measure_beside_memcpy(x, name, true, (gpu_timed_work){run_cast, &job, sizeof job}, &s, bytes);
  rs_casts_free(&job.casts);
  rs_casts_free(&cpu);
  gpu_buffers_free(b, &s);
}
