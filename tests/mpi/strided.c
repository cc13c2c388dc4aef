/* Long messages of long runs go from their strided source, by one type, in one round; all others through staging. */
#include "support/processes/check_ranks.h"
#include "support/processes/world.h"

#include <mpi.h>
#include <reshard/reshard.h>
#include <stdbool.h>
#include <stdlib.h>

enum { PAD = 24 };   /* elements at the end of each row of a padded source */
enum { UNEVEN = 1 }; /* the rank whose source alone has no long runs */

static int64_t types; /* that were made, and not freed */

/* These stand before MPI's. */
int MPI_Type_create_hvector(int n, int length, MPI_Aint stride, MPI_Datatype of, MPI_Datatype *made) {
  types++;
  return PMPI_Type_create_hvector(n, length, stride, of, made);
}

int MPI_Type_free(MPI_Datatype *type) {
  int integers, addresses, kinds, combiner;
  PMPI_Type_get_envelope(*type, &integers, &addresses, &kinds, &combiner);
  types -= combiner == MPI_COMBINER_HVECTOR;
  return PMPI_Type_free(type);
}

typedef struct strided_case {
  const char *what, *src, *dst;
  int64_t rows, columns; /* of a rank's part of each message */
  bool padded, uneven;
  int64_t timeout_ms;
  bool strided;
} strided_case;

static const strided_case cases[] = {
    {"long runs", "chunk(0)", "chunk(1)", 512, 256, false, false, 0, true},
    {"long runs of padded rows", "chunk(0)", "chunk(1)", 512, 260, true, false, 0, true},
    {"long runs of all ranks but one", "chunk(0)", "chunk(1)", 512, 256, false, true, 0, false},
    {"a deadline", "chunk(0)", "chunk(1)", 512, 256, false, false, 60000, false},
    {"short runs", "chunk(0)", "chunk(1)", 2048, 64, false, false, 0, false},
    {"messages that fit the staging", "chunk(0)", "chunk(1)", 32, 256, false, false, 0, false},
    {"a strided destination", "chunk(1)", "chunk(0)", 512, 256, false, false, 0, false},
};

static float element(int64_t row, int64_t column, int turn) { return (float)((row * 4099 + column) % 9973 + turn); }

/* A rank's part: from (row, column) on, in rows of `stride` elements, which are `step` apart. */
typedef struct part {
  int64_t row, column, rows, columns, stride, step;
  float *at;
} part;

static part make_part(const char *layout, int64_t rows, int64_t columns, int64_t pad, int64_t step) {
  bool by_rows = layout[6] == '0';
  part p = {by_rows ? rank * rows / size : 0,
            by_rows ? 0 : rank * columns / size,
            by_rows ? rows / size : rows,
            by_rows ? columns : columns / size,
            0,
            step,
            NULL};
  p.stride = p.columns * step + pad;
  p.at = malloc((size_t)(p.rows * p.stride) * sizeof *p.at);
  CHECK(p.at != NULL, "no memory");
  return p;
}

static int64_t count_wrong(const part *p, int turn) {
  int64_t wrong = 0;
  for (int64_t r = 0; r < p->rows; r++)
    for (int64_t c = 0; c < p->columns; c++)
      wrong += p->at[r * p->stride + c * p->step] != element(p->row + r, p->column + c, turn);
  return wrong;
}

static void execute_strided(const strided_case *x, reshard_transfer transfer, part *src, part *dst, int turn) {
  for (int64_t r = 0; r < src->rows; r++)
    for (int64_t c = 0; c < src->columns; c++)
      src->at[r * src->stride + c * src->step] = element(src->row + r, src->column + c, turn);
  CHECK(reshard_execute(transfer, NULL) == RESHARD_SUCCESS, "%s", x->what);
  CHECK(count_wrong(dst, turn) == 0, "%s: wrong elements", x->what);
}

/* One rank binds a source without long runs, and stages it, and then the first one again: a local call. */
static void rebind_strided(const strided_case *x, reshard_transfer transfer, part *src, part *dst) {
  part other = make_part(x->src, x->rows * size, x->columns * size, 0, 2);
  part *bound[2] = {rank == UNEVEN ? &other : src, src};
  for (int i = 0; i < 2; i++) {
    const int64_t strides[2] = {bound[i]->stride, bound[i]->step};
    reshard_arrays arrays = {
        RESHARD_ARRAYS_INIT, (void *[]){bound[i]->at}, (void *[]){dst->at}, (const int64_t *[]){strides}, NULL, 1, 1};
    CHECK(reshard_transfer_rebind(transfer, &arrays) == RESHARD_SUCCESS, "%s", x->what);
    CHECK(types == (x->strided && bound[i]->step == 1 ? size - 1 : 0), "%s: %lld types", x->what, (long long)types);
    execute_strided(x, transfer, bound[i], dst, 2 + i);
  }
  free(other.at);
}

static void run_case(const strided_case *x) {
  const int64_t shape[2] = {x->rows * size, x->columns * size};
  reshard_entry entry = {RESHARD_ENTRY_INIT, .dtype = RESHARD_F32};
  reshard_comm comm = NULL;
  reshard_plan plan = NULL;
  reshard_transfer transfer = NULL;
  reshard_transfer_info info = {.rounds = 0};
  part src = make_part(x->src, shape[0], shape[1], x->padded ? PAD : 0, x->uneven && rank == UNEVEN ? 2 : 1),
       dst = make_part(x->dst, shape[0], shape[1], 0, 1);
  const int64_t strides[2] = {src.stride, src.step};
  reshard_arrays arrays = {
      RESHARD_ARRAYS_INIT, (void *[]){src.at}, (void *[]){dst.at}, (const int64_t *[]){strides}, NULL, 1, 1};
  const reshard_transfer_options options = {RESHARD_TRANSFER_OPTIONS_INIT, .path = RESHARD_PATH_PACKED};
  CHECK(world_connect(x->timeout_ms, &comm) == RESHARD_SUCCESS, "%s", x->what);
  CHECK(reshard_layout_parse(x->src, 2, shape, size, &entry.src) == RESHARD_SUCCESS, "%s", x->what);
  CHECK(reshard_layout_parse(x->dst, 2, shape, size, &entry.dst) == RESHARD_SUCCESS, "%s", x->what);
  CHECK(reshard_plan_create(1, &entry, rank, NULL, &plan) == RESHARD_SUCCESS, "%s", x->what);
  CHECK(reshard_transfer_create(plan, comm, &arrays, &options, &transfer) == RESHARD_SUCCESS, "%s", x->what);
  CHECK(reshard_transfer_get_info(transfer, &info) == RESHARD_SUCCESS, "%s", x->what);
  CHECK((info.packs_skipped == size - 1) == (x->strided || x->src[6] == '1'), "%s: %lld packs are skipped", x->what,
        (long long)info.packs_skipped);
  CHECK(!x->strided || (info.rounds == 1 && info.workspace_bytes == 0), "%s: %lld rounds, %zu bytes", x->what,
        (long long)info.rounds, info.workspace_bytes);
  CHECK(!x->uneven || info.rounds > 1, "%s: %lld rounds", x->what, (long long)info.rounds);
  CHECK(types == (x->strided ? size - 1 : 0), "%s: %lld types", x->what, (long long)types);
  for (int turn = 0; turn < 2 && transfer != NULL; turn++)
    execute_strided(x, transfer, &src, &dst, turn);
  if (transfer != NULL)
    rebind_strided(x, transfer, &src, &dst);
  reshard_transfer_destroy(transfer);
  CHECK(types == 0, "%s: %lld types stay", x->what, (long long)types);
  reshard_plan_destroy(plan);
  reshard_layout_release(entry.src);
  reshard_layout_release(entry.dst);
  reshard_comm_destroy(comm);
  free(src.at);
  free(dst.at);
}

int main(int argc, char **argv) {
  world_open(&argc, &argv, &rank, &size);
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
    run_case(&cases[i]);
  return world_close(failures) > 0;
}
