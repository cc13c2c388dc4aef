/* Box copies and selections of reshard_gpu bench. */
#include "rows.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void gpu_box_case(gpu_bench_run *x, const char *name, int64_t run, int64_t k, double goal) {
  if (!gpu_wanted(x, name))
    return;
  bed *b = x->b;
  int64_t m = k > 0 ? x->o->bytes / (k * run) : (int64_t)sqrt((double)(x->o->bytes / run)) & -8;
  k = k > 0 ? k : m;
  int64_t bytes = m * k * run;
  gpu_sides s = gpu_make_sides(b, bytes, bytes);
  rs_copies copies = {0}, same = {0};
  int32_t element = run % 16 == 0 ? 16 : (int32_t)run;
  rs_axis axes[3] = {{k, run, m * run}, {m, k * run, run}, {run / element, element, element}};
  CLI_TRY("", rs_copies_add(&copies, s.from, s.to, element, 3, axes));
  CLI_TRY("", rs_copies_add(&same, s.host, s.image, element, 3, axes));
  gpu_box j = {.b = b};
  rs_program *cpu = NULL;
  CLI_TRY("", b->gpu->ops->compile(b->gpu, &copies, bytes, &j.program));
  CLI_TRY("", b->cpu->ops->compile(b->cpu, &same, bytes, &cpu));
  CLI_TRY("", b->cpu->ops->run(b->cpu, 1, &cpu, NULL));
  gpu_plain p = {b, s.to, s.from, bytes};
  double t[2];
  gpu_race(x, 2, (gpu_runner[]){{gpu_run_box, &j}, {gpu_plain_copy, &p}}, t);
  gpu_clear(b, &s);
  CLI_TRY("", gpu_run_box(&j, b->stream[0]));
  gpu_row *r = gpu_add_row(x, name, "x memcpy's time", goal, false);
  r->wrong = !gpu_right(b, &s);
  r->bytes = bytes;
  r->us = 1e6 * t[0];
  r->memcpy_us = 1e6 * t[1];
  r->figure = t[0] / t[1];
  gpu_tell(x, r);
  b->cpu->ops->release(b->cpu, cpu);
  b->gpu->ops->release(b->gpu, j.program);
  rs_copies_free(&copies);
  rs_copies_free(&same);
  gpu_free_sides(b, &s);
}

typedef struct selection {
  bed *b;
  rs_select select;
} selection;

static reshard_status run_select(void *user, void *stream) {
  selection *j = user;
  return j->b->gpu->ops->select(j->b->gpu, &j->select, NULL, stream);
}

void gpu_select_case(gpu_bench_run *x, const char *name, int64_t rows, int64_t columns) {
  if (!gpu_wanted(x, name))
    return;
  bed *b = x->b;
  int64_t run = 2 * columns, bytes = rows * run;
  gpu_sides s = gpu_make_sides(b, bytes, bytes);
  int64_t *index = cli_alloc(rows, sizeof *index), *there = bed_alloc(b, rows * 8);
  rng r;
  rng_seed(&r, 3);
  for (int64_t i = 0; i < rows; i++) {
    int64_t k = rng_in(&r, 0, i);
    index[i] = index[k];
    index[k] = i;
  }
  for (int64_t i = 0; i < rows; i++)
    memcpy(s.image + i * run, s.host + index[i] * run, (size_t)run);
  bed_to_gpu(b, there, index, rows * 8);
  selection j = {b,
                 {.src = s.from,
                  .index = (const char *)there,
                  .dst = s.to,
                  .count = rows,
                  .extent = rows,
                  .index_stride = 8,
                  .src_stride = run,
                  .dst_stride = run,
                  .index_bytes = 8,
                  .element = 2,
                  .run = run}};
  gpu_plain p = {b, s.to, s.from, bytes};
  double t[2];
  gpu_race(x, 2, (gpu_runner[]){{run_select, &j}, {gpu_plain_copy, &p}}, t);
  gpu_clear(b, &s);
  CLI_TRY("", run_select(&j, b->stream[0]));
  gpu_row *out = gpu_add_row(x, name, "of memcpy's speed", 0.85, true);
  out->wrong = !gpu_right(b, &s);
  out->bytes = bytes;
  out->us = 1e6 * t[0];
  out->memcpy_us = 1e6 * t[1];
  out->figure = t[1] / t[0];
  gpu_tell(x, out);
  free(index);
  bed_free(b, there);
  gpu_free_sides(b, &s);
}
