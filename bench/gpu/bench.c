/* Each case is measured beside the GPU's own copy of as many bytes within device memory, in turns and with empty
 * caches; some cases also beside rivals. Goals are those of one H100 or H200. */

#include "bench/gpu/cases.h"
#include "bench/gpu/redistribute.h"

#include <math.h>
#include <string.h>

enum { TILES = 4, ENGINES = 2, BOXES = 4 };
static const int64_t tiles[TILES] = {0, 16 << 10, 32 << 10, 64 << 10};
static const char *const tile_names[TILES] = {"by size", "16 KiB", "32 KiB", "64 KiB"};
static const int64_t engine_from[ENGINES] = {1, INT64_MAX}; /* always, never */

/* Measures how programs are best cut on this GPU: bytes of a tile, and the bulk copy engine or not. Its last line says
 * what to set. */
static void sweep_policies(gpu_bench_run *x) {
  static const gpu_box boxes[BOXES] = {{"rows of 16 KiB", 16 << 10, 4, 0, 0},
                                       {"rows of 4 KiB", 4096, 4, 0, 0},
                                       {"rows of 256 B", 256, 4, 0, 0},
                                       {"rows of 4 KiB, shifted by 4", 4096, 4, 4, 0}};
  double log_sum[TILES][ENGINES] = {{0}};
  int best[2] = {0, 0};
  for (int t = 0; t < TILES; t++)
    for (int e = 0; e < ENGINES; e++) {
      printf("tiles of %s, the bulk copy engine %s\n", tile_names[t], e == 0 ? "wherever it can" : "never");
      gpu_set_policy(x->b->gpu, tiles[t], engine_from[e]);
      for (int i = 0; i < BOXES; i++) {
        int64_t before = x->rows;
        gpu_box_case(x, &boxes[i]);
        if (x->rows > before && x->row[before].figure > 0)
          log_sum[t][e] += log(x->row[before].figure);
        if (x->rows > before)
          snprintf(x->row[before].name + strlen(x->row[before].name), sizeof x->row->name - strlen(x->row[before].name),
                   ", %s, %s", tile_names[t], e == 0 ? "engine" : "none");
      }
      if (log_sum[t][e] < log_sum[best[0]][best[1]] - 0.01 * BOXES) /* less is noise */
        best[0] = t, best[1] = e;
    }
  gpu_set_policy(x->b->gpu, 0, 0);
  double gain = exp((log_sum[0][0] - log_sum[best[0]][best[1]]) / BOXES);
  printf(
      "best: RESHARD_CUDA_TILE=%lld RESHARD_CUDA_BULK_FROM=%lld, %.3f x the speed of tiles by size with the engine\n",
      (long long)tiles[best[0]], (long long)engine_from[best[1]], gain);
}

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
    sweep_policies(&x);
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
