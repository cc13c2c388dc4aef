/* Layouts of ScaLAPACK's matrices. */
#include "layout/layout.h"

#include <stdlib.h>

enum { DTYPE, CTXT, M, N, MB, NB, RSRC, CSRC };
enum { DENSE = 1 };

/* An entry of a descriptor, from `from` on and below `below`. */
static reshard_status check_entry(const char *name, int value, int from, int64_t below) {
  if (value >= from && value < below)
    return RESHARD_SUCCESS;
  return rs_error(RESHARD_ERROR_INVALID, "reshard_layout_scalapack: %s is %d: from %d to %lld is possible", name, value,
                  from, (long long)below - 1);
}

static reshard_status check_descriptor(const int *desc, int nprow, int npcol) {
  const int64_t none = INT64_C(1) << 31;
  RS_TRY(check_entry("nprow", nprow, 1, none));
  RS_TRY(check_entry("npcol", npcol, 1, none));
  if (desc[DTYPE] != DENSE)
    return rs_error(RESHARD_ERROR_UNSUPPORTED, "reshard_layout_scalapack: DTYPE_ is %d, 1 (dense) is built",
                    desc[DTYPE]);
  RS_TRY(check_entry("M_", desc[M], 0, none));
  RS_TRY(check_entry("N_", desc[N], 0, none));
  RS_TRY(check_entry("MB_", desc[MB], 1, none));
  RS_TRY(check_entry("NB_", desc[NB], 1, none));
  RS_TRY(check_entry("RSRC_", desc[RSRC], 0, nprow));
  return check_entry("CSRC_", desc[CSRC], 0, npcol);
}

/* Ranks of the grid as a cyclic layout has them: first the one that has the first block. */
static reshard_status turn_ranks(const int *desc, int64_t rows, int64_t columns, const int64_t *ranks, int64_t **turned,
                                 int64_t *world) {
  RS_TRY(rs_alloc(turned, rows * columns, sizeof **turned));
  *world = 1;
  for (int64_t i = 0; i < rows * columns; i++) {
    int64_t row = (i / columns + desc[RSRC]) % rows, at = row * columns + (i % columns + desc[CSRC]) % columns;
    int64_t rank = ranks != NULL ? ranks[at] : at;
    if (rank == INT64_MAX) {
      free(*turned);
      return rs_error(RESHARD_ERROR_INVALID, "reshard_layout_scalapack: rank %lld of the grid", (long long)rank);
    }
    (*turned)[i] = rank;
    *world = rs_max(*world, rank + 1);
  }
  return RESHARD_SUCCESS;
}

reshard_status reshard_layout_scalapack(const int desc[9], int nprow, int npcol, const int64_t *ranks,
                                        reshard_layout *layout) {
  RS_TRY(RS_GIVEN("reshard_layout_scalapack", desc, layout));
  RS_TRY(check_descriptor(desc, nprow, npcol));
  const int64_t shape[] = {desc[M], desc[N]}, grid[] = {nprow, npcol}, block[] = {desc[MB], desc[NB]};
  int64_t *turned, world;
  RS_TRY(turn_ranks(desc, nprow, npcol, ranks, &turned, &world));
  reshard_status status = reshard_layout_create_cyclic(2, shape, world, grid, block, turned, layout);
  free(turned);
  return status;
}
