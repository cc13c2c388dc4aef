/* Each case is measured beside the GPU's own copy of as many bytes within device memory, in turns and with empty
 * caches; some cases also beside rivals. Goals are those of one H100 or H200. */

#include "bench/gpu/redistribute.h"
#include "bench/gpu/rows.h"

int gpu_bench(gpu_context *b, const gpu_bench_options *o) {
  gpu_bench_run x = {.b = b, .o = o, .small = o->bytes < 64 << 20};
  static const gpu_box boxes[] = {
      {"box copy, runs of 4 KiB", 4096, 4, 0, 1.03},
      {"box copy, runs of 256 B", 256, 4, 0, 1.10},
      {"box copy, runs of 32 B", 32, 4, 0, 1.5},
      {"box copy, runs of 16 B", 16, 4, 0, 0},
      {"box copy, runs of 8 B", 8, 4, 0, 0},
      {"box copy, runs of 4 B", 4, 4, 0, 0},
      {"box copy, rows of 4 KiB, shifted by 4", 4096, 4, 4, 0},
      {"box copy, rows of 4100 B", 4100, 4, 0, 0},
      {"box copy, rows of 250 B", 250, 4, 0, 0},
      {"transposing pack of 2-byte elements", 2, 0, 0, 1.15},
      {"transposing pack of 1-byte elements", 1, 0, 0, 0},
      {"transposing pack of 4-byte elements", 4, 0, 0, 0},
      {"transposing pack of 2 bytes, shifted", 2, 0, 6, 0},
  };
  if (o->sweep) {
    gpu_sweep(&x);
    return EXIT_DONE;
  }
  for (size_t i = 0; i < sizeof boxes / sizeof *boxes; i++)
    gpu_box_case(&x, &boxes[i]);
  gpu_cast_case(&x, "cast f32 to bf16", RESHARD_F32, RESHARD_BF16);
  gpu_cast_case(&x, "cast bf16 to f32", RESHARD_BF16, RESHARD_F32);
  gpu_cast_case(&x, "cast f32 to f8_e4m3", RESHARD_F32, RESHARD_F8_E4M3);
  gpu_batch_case(&x, x.small ? "20 boxes of 4-64 KiB" : "100,000 boxes of 4-64 KiB", x.small ? 20 : 100000, 0, false);
  gpu_batch_case(&x, "8 large boxes", 8, o->bytes / 8 & -16, false);
  gpu_batch_case(&x, "8 large spans of an exchange", 8, o->bytes / 8 & -16, true);
  gpu_select_case(&x, x.small ? "index_select 16 x 64 bf16" : "index_select 4096 x 5120 bf16", x.small ? 16 : 4096,
                  x.small ? 128 : 10240, 2, 0.85);
  gpu_select_case(&x, x.small ? "index_select 256 x 64 bf16" : "index_select 65536 x 5120 bf16", x.small ? 256 : 65536,
                  x.small ? 128 : 10240, 2, 0.85);
  gpu_select_case(&x, "index_select, rows of 4 B", o->bytes / 32, 4, 4, 0);
  gpu_redistribute_case(&x);
  gpu_host_cases(&x);
  gpu_pool_case(&x);
  if (o->json != NULL)
    gpu_write_rows(&x);
  int64_t wrong = 0;
  for (int64_t i = 0; i < x.rows; i++)
    wrong += x.row[i].wrong;
  if (wrong > 0)
    cli_error("%lld cases have wrong data", (long long)wrong);
  return wrong > 0 ? EXIT_FAILED : EXIT_DONE;
}
