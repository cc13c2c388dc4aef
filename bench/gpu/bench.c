/* Each case is measured beside the GPU's own copy of as many bytes within device memory, in turns and with empty
 * caches; some cases also beside rivals. Goals are those of one H100 or H200. */

#include "bench/gpu/rows.h"

int gpu_bench(gpu_context *b, const gpu_bench_options *o) {
  gpu_bench_run x = {.b = b, .o = o, .small = o->bytes < 64 << 20};
  gpu_box_case(&x, "box copy, runs of 4 KiB", 4096, 4, 1.03);
  gpu_box_case(&x, "box copy, runs of 256 B", 256, 4, 1.10);
  gpu_box_case(&x, "box copy, runs of 32 B", 32, 4, 1.5);
  gpu_box_case(&x, "transposing pack of 2-byte elements", 2, 0, 1.15);
  gpu_batch_case(&x, x.small ? "20 boxes of 4-64 KiB" : "100,000 boxes of 4-64 KiB", x.small ? 20 : 100000, 0, false);
  gpu_batch_case(&x, "8 large boxes", 8, o->bytes / 8 & -16, false);
  gpu_batch_case(&x, "8 large spans of an exchange", 8, o->bytes / 8 & -16, true);
  gpu_select_case(&x, x.small ? "index_select 16 x 64 bf16" : "index_select 4096 x 5120 bf16", x.small ? 16 : 4096,
                  x.small ? 64 : 5120);
  gpu_select_case(&x, x.small ? "index_select 256 x 64 bf16" : "index_select 65536 x 5120 bf16", x.small ? 256 : 65536,
                  x.small ? 64 : 5120);
  gpu_host_cases(&x);
  if (o->json != NULL)
    gpu_write_rows(&x);
  int64_t wrong = 0;
  for (int64_t i = 0; i < x.rows; i++)
    wrong += x.row[i].wrong;
  if (wrong > 0)
    cli_error("%lld cases have wrong data", (long long)wrong);
  return wrong > 0 ? EXIT_FAILED : EXIT_DONE;
}
