/* Box copies, selections and casts on a GPU.
 *
 * - gpu_copy_runs: from [m][4][run] to [4][m][run], runs of so many bytes; gpu_copy_interleaved: a copy for each of the
 *   4; gpu_copy_shifted: the source begins 4 bytes behind an aligned address.
 * - gpu_copy_transpose: from [n][n] elements of so many bytes to their transpose; _shifted: from 6 bytes behind.
 * - gpu_fsdp_copy_out: what FSDP copies after an all-gather, from the buffer to the tensors of a layer; copy_in: back,
 *   before a reduce-scatter.
 * - gpu_index_select: so many rows of 5120 bf16 in another order; _narrow: rows of 4 bytes.
 * - gpu_cast: contiguous elements, beside a memcpy that reads and writes as many bytes together. */
#include "bench/micro/gpu.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

int gpu_row_measure_beside_memcpy(gpu_row *x, gpu_timed_work work, gpu_buffers *s, int64_t bytes) {
  gpu_context *b = &x->context;
  gpu_memcpy plain[GPU_MOST_SETS];
  for (int64_t i = 0; i < s->sets; i++)
    plain[i] = (gpu_memcpy){b, s->to + i * s->to_step, s->from + i * s->from_step, bytes};
  double t[2];
  gpu_row_measure(x, s->sets, 2, (gpu_timed_work[]){work, {gpu_memcpy_run, plain, sizeof *plain}}, t);
  gpu_buffers_clear(b, s);
  for (int64_t i = 0; i < s->sets; i++)
    CLI_TRY("", work.work((char *)work.user + (size_t)i * work.size, b->stream[0]));
  gpu_row_set(x, bytes, t[0]);
  gpu_row_add_memcpy(x, t[1]);
  return gpu_buffers_wrong(b, s);
}

int gpu_row_measure_program(gpu_row *x, gpu_compile *compile, const void *shape, gpu_buffers s, int64_t bytes) {
  gpu_context *b = &x->context;
  gpu_program jobs[GPU_MOST_SETS];
  for (int64_t i = 0; i < s.sets; i++)
    jobs[i] = (gpu_program){b, compile(b->gpu, s.from + i * s.from_step, s.to + i * s.to_step, shape)};
  rs_program *cpu = compile(b->cpu, s.host, s.image, shape);
  memset(s.image, 0, (size_t)s.to_bytes);
  CLI_TRY("", b->cpu->work->run(b->cpu, 1, &cpu, NULL));
  b->cpu->work->release(b->cpu, cpu);
  int wrong = gpu_row_measure_beside_memcpy(x, (gpu_timed_work){gpu_program_run, jobs, sizeof *jobs}, &s, bytes);
  for (int64_t i = 0; i < s.sets; i++)
    b->gpu->work->release(b->gpu, jobs[i].program);
  gpu_buffers_free(b, &s);
  return wrong;
}

rs_program *gpu_compile_copies(rs_device *device, rs_copies *copies) {
  rs_program *program = NULL;
  CLI_TRY("", device->work->compile(device, copies, copies->bytes, &program));
  rs_copies_free(copies);
  return program;
}

/* --- Boxes ------------------------------------------------------------------------------------------------------- */

typedef struct box_shape {
  int64_t shift;
  int32_t element;
  bool parts; /* a copy for each step of the first axis, in the place of one */
  rs_axis axes[3];
} box_shape;

static rs_program *compile_box(rs_device *device, const char *from, char *to, const void *shape) {
  const box_shape *box = shape;
  const rs_axis *axes = box->axes;
  rs_copies copies = {0};
  from += box->shift;
  for (int64_t i = 0; box->parts && i < axes[0].n; i++)
    CLI_TRY("", rs_copies_add(&copies, from + i * axes[0].src, to + i * axes[0].dst, box->element, 2, axes + 1));
  if (!box->parts)
    CLI_TRY("", rs_copies_add(&copies, from, to, box->element, 3, axes));
  return gpu_compile_copies(device, &copies);
}

/* From [m][k][run] to [k][m][run] or, with k == 0, from [m][n] elements of `run` bytes to [n][m]. */
static int measure_box(gpu_row *x, int64_t k, int64_t shift, bool parts) {
  const int64_t run = x->parameter, narrow = run < 16 ? run : (run | shift) & -(run | shift);
  const int64_t m = k > 0 ? rs_max(x->most / (k * run), 1) : (int64_t)sqrt((double)(x->most / run)) & -8;
  const int64_t n = k > 0 ? k : m, bytes = m * n * run, element = rs_min(narrow, 16);
  const box_shape box = {
      shift, (int32_t)element, parts, {{n, run, m * run}, {m, n * run, run}, {run / element, element, element}}};
  return gpu_row_measure_program(x, compile_box, &box, gpu_buffers_create(&x->context, bytes + shift, bytes), bytes);
}

static int copy_runs(void *row) { return measure_box(row, 4, 0, false); }
static int copy_interleaved(void *row) { return measure_box(row, 4, 0, true); }
static int copy_shifted(void *row) { return measure_box(row, 4, 4, false); }
static int copy_transpose(void *row) { return measure_box(row, 0, 0, false); }
static int copy_transpose_shifted(void *row) { return measure_box(row, 0, 6, false); }

/* --- FSDP -------------------------------------------------------------------------------------------------------- */

/* A layer of llama-3.1-8b in bf16, cut over FSDP_RANKS ranks: rows of a tensor, and bytes of a row. */
enum { FSDP_RANKS = 8, FSDP_TENSORS = 9 };
static const struct fsdp_tensor {
  int64_t rows, width;
} fsdp_tensors[FSDP_TENSORS] = {{4096, 8192},  {1024, 8192},  {1024, 8192}, {4096, 8192}, {14336, 8192},
                                {14336, 8192}, {4096, 28672}, {4096, 2},    {4096, 2}};

typedef struct fsdp_shape {
  bool back;
  int64_t shard[FSDP_TENSORS], all; /* bytes of a rank's shards */
} fsdp_shape;

/* From the buffer that ranks have gathered, each with its shards of all tensors, to the tensors; or back. */
static rs_program *compile_fsdp(rs_device *device, const char *from, char *to, const void *shape) {
  const fsdp_shape *layer = shape;
  rs_copies copies = {0};
  for (int64_t t = 0, begin = 0; t < FSDP_TENSORS; begin += layer->shard[t++]) {
    const int64_t shard = layer->shard[t], there = begin * FSDP_RANKS;
    const bool back = layer->back;
    const rs_axis axes[2] = {{FSDP_RANKS, back ? shard : layer->all, back ? layer->all : shard}, {shard / 2, 2, 2}};
    CLI_TRY("", rs_copies_add(&copies, from + (back ? there : begin), to + (back ? begin : there), 2, 2, axes));
  }
  return gpu_compile_copies(device, &copies);
}

/* The layer's matrices have so many of their rows that all fits. */
static int measure_fsdp(gpu_row *x, bool back) {
  fsdp_shape layer = {.back = back};
  double whole = 0;
  for (int64_t t = 0; t < FSDP_TENSORS; t++)
    whole += (double)(fsdp_tensors[t].rows * fsdp_tensors[t].width);
  for (int64_t t = 0; t < FSDP_TENSORS; t++) {
    const struct fsdp_tensor *tensor = &fsdp_tensors[t];
    double part = tensor->width < 16 ? 1 : (double)x->most / whole;
    layer.shard[t] = rs_max((int64_t)(part * (double)tensor->rows) / FSDP_RANKS, 1) * tensor->width;
    layer.all += layer.shard[t];
  }
  const int64_t bytes = layer.all * FSDP_RANKS;
  return gpu_row_measure_program(x, compile_fsdp, &layer, gpu_buffers_create(&x->context, bytes, bytes), bytes);
}

static int fsdp_copy_out(void *row) { return measure_fsdp(row, false); }
static int fsdp_copy_in(void *row) { return measure_fsdp(row, true); }

/* --- Selections -------------------------------------------------------------------------------------------------- */

typedef struct select_run {
  gpu_context *b;
  rs_select select;
} select_run;

static reshard_status run_select(void *user, void *stream) {
  select_run *j = user;
  return j->b->gpu->work->select(j->b->gpu, &j->select, NULL, stream);
}

/* All rows of a table, of so many bytes each, in another order. */
static int measure_select(gpu_row *x, int64_t rows, int64_t run, int32_t element) {
  gpu_context *b = &x->context;
  int64_t bytes = rows * run;
  gpu_buffers s = gpu_buffers_create(b, bytes, bytes);
  int64_t *index = cli_alloc(rows, sizeof *index), *there = gpu_context_alloc(b, rows * 8);
  gpu_shuffle(3, rows, index);
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
  int wrong = gpu_row_measure_beside_memcpy(x, (gpu_timed_work){run_select, jobs, sizeof *jobs}, &s, bytes);
  free(index);
  gpu_context_free(b, there);
  gpu_buffers_free(b, &s);
  return wrong;
}

static int index_select(void *row) {
  gpu_row *x = row;
  return x->small ? measure_select(x, x->parameter / 256, 128, 2) : measure_select(x, x->parameter, 10240, 2);
}
static int index_select_narrow(void *row) { return measure_select(row, ((gpu_row *)row)->most / 32, 4, 4); }

/* --- Casts ------------------------------------------------------------------------------------------------------- */

typedef struct cast_work {
  gpu_context *b;
  rs_casts casts;
} cast_work;

static reshard_status run_cast(void *user, void *stream) {
  cast_work *j = user;
  return j->b->gpu->work->cast(j->b->gpu, &j->casts, stream);
}

static int measure_cast(gpu_row *x, reshard_dtype from, reshard_dtype to) {
  gpu_context *b = &x->context;
  int64_t in = (int64_t)reshard_dtype_size(from), out = (int64_t)reshard_dtype_size(to);
  int64_t n = x->most / (in + out) * 2 & -64, bytes = n * (in + out) / 2;
  gpu_buffers s = gpu_buffers_create_one(b, rs_max(n * in, bytes), rs_max(n * out, bytes));
  rs_axis axis = {n, in, out};
  cast_work job = {.b = b};
  rs_casts cpu = {0};
  memset(s.image, 0, (size_t)s.to_bytes);
  CLI_TRY("", rs_casts_add(&job.casts, s.from, s.to, from, to, 1, &axis));
  CLI_TRY("", rs_casts_add(&cpu, s.host, s.image, from, to, 1, &axis));
  CLI_TRY("", b->cpu->work->cast(b->cpu, &cpu, NULL));
  int wrong = gpu_row_measure_beside_memcpy(x, (gpu_timed_work){run_cast, &job, sizeof job}, &s, bytes);
  rs_casts_free(&job.casts);
  rs_casts_free(&cpu);
  gpu_buffers_free(b, &s);
  return wrong;
}

static int cast_f32_bf16(void *row) { return measure_cast(row, RESHARD_F32, RESHARD_BF16); }
static int cast_bf16_f32(void *row) { return measure_cast(row, RESHARD_BF16, RESHARD_F32); }
static int cast_f32_f8(void *row) { return measure_cast(row, RESHARD_F32, RESHARD_F8_E4M3); }

static const micro_case micro_gpu_copies[] = {
    GPU_ROW("gpu_copy_runs", 4, copy_runs),
    GPU_ROW("gpu_copy_runs", 8, copy_runs),
    GPU_ROW("gpu_copy_runs", 16, copy_runs),
    GPU_ROW("gpu_copy_runs", 32, copy_runs),
    GPU_ROW("gpu_copy_runs", 64, copy_runs),
    GPU_ROW("gpu_copy_runs", 250, copy_runs),
    GPU_ROW("gpu_copy_runs", 256, copy_runs),
    GPU_ROW("gpu_copy_runs", 4096, copy_runs),
    GPU_ROW("gpu_copy_runs", 4100, copy_runs),
    GPU_ROW("gpu_copy_runs", 16384, copy_runs),
    GPU_ROW("gpu_copy_runs", 65536, copy_runs),
    GPU_ROW("gpu_copy_interleaved", 4, copy_interleaved),
    GPU_ROW("gpu_copy_interleaved", 8, copy_interleaved),
    GPU_ROW("gpu_copy_shifted", 4096, copy_shifted),
    GPU_ROW("gpu_copy_transpose", 1, copy_transpose),
    GPU_ROW("gpu_copy_transpose", 2, copy_transpose),
    GPU_ROW("gpu_copy_transpose", 4, copy_transpose),
    GPU_ROW("gpu_copy_transpose", 8, copy_transpose),
    GPU_ROW("gpu_copy_transpose_shifted", 2, copy_transpose_shifted),
    GPU_ROW("gpu_fsdp_copy_out", 0, fsdp_copy_out),
    GPU_ROW("gpu_fsdp_copy_in", 0, fsdp_copy_in),
    GPU_ROW("gpu_index_select", 4096, index_select),
    GPU_ROW("gpu_index_select", 65536, index_select),
    GPU_ROW("gpu_index_select_narrow", 4, index_select_narrow),
    GPU_ROW("gpu_cast_f32_bf16", 0, cast_f32_bf16),
    GPU_ROW("gpu_cast_bf16_f32", 0, cast_bf16_f32),
    GPU_ROW("gpu_cast_f32_f8", 0, cast_f32_f8),
};
GPU_TABLE(micro_gpu_copies)
