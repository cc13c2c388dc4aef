/* How programs are best cut on this GPU: bytes of a tile, and the bulk copy engine or not. Its last line says what to
 * set. */
#include "bench/gpu/rows.h"

#include <math.h>
#include <string.h>

enum { TILES = 4, ENGINES = 2, BOXES = 4 };
static const int64_t tiles[TILES] = {0, 16 << 10, 32 << 10, 64 << 10};
static const char *const tile_names[TILES] = {"by size", "16 KiB", "32 KiB", "64 KiB"};
static const int64_t engine_from[ENGINES] = {1, INT64_MAX}; /* always, never */

void gpu_sweep(gpu_bench_run *x) {
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
