/* Placements that ranks give for one tensor: which are the same, and what the error says of those that are not. */
#include "support/fixtures/sharded_ranks.h"

#include "bench/cli/util.h"

#include "support/fixtures/case.h"
#include <reshard/dtensor.h>

typedef struct given {
  const char *placements[2]; /* of ranks 0 and 1, on a mesh of one dim of 2 ranks */
} given;

static void from_local_body(void *user, int64_t rank) {
  sharded_ranks *p = user;
  const given *g = p->user;
  const int64_t extent[] = {4, 4}, shape[] = {4, 4};
  reshard_mesh mesh;
  reshard_placement placement[1];
  int order[1];
  reshard_tensor local;
  reshard_dtensor tensor = NULL;
  CLI_TRY("mesh: ", reshard_mesh_parse(p->comms[rank], 2, "2", &mesh));
  CLI_TRY("placements: ", reshard_placements_parse(g->placements[rank], mesh, placement, order));
  bool whole = placement[0].kind == RESHARD_PLACEMENT_REPLICATE;
  int64_t half[] = {4, 4};
  if (!whole)
    half[placement[0].dim < 0 ? placement[0].dim + 2 : placement[0].dim] = 2;
  CLI_TRY("local: ", reshard_tensor_create(RESHARD_F32, 2, whole ? extent : half, &local));
  const reshard_placing placing = {mesh, placement, order};
  reshard_status status = reshard_dtensor_from_local(p->sharders[rank], &placing, local, 2, shape, true, &tensor);
  rank_result_set(&p->results[rank], status);
  p->wrong[rank] += (status == RESHARD_SUCCESS) != (tensor != NULL);
  reshard_dtensor_release(tensor);
  reshard_tensor_release(local);
  reshard_mesh_release(mesh);
}

CASE(placements_that_differ_are_named) {
  static const struct {
    given given;
    const char *text; /* NULL: they are the same */
  } cases[] = {
      {{{"R", "R"}}, NULL},
      {{{"S0", "S-2"}}, NULL},
      {{{"S-1", "S1"}}, NULL},
      {{{"S0*2", "S-2*2"}}, NULL},
      {{{"S0", "S1"}}, "placements S0 on rank 0, S1 on rank 1"},
      {{{"S0", "S-1"}}, "placements S0 on rank 0, S-1 on rank 1"},
      {{{"R", "S0"}}, "placements R on rank 0, S0 on rank 1"},
      {{{"S1", "R"}}, "placements S1 on rank 0, R on rank 1"},
      {{{"S0", "S0*2"}}, "placements S0 on rank 0, S0*2 on rank 1"},
      {{{"S0*2", "S0"}}, "placements S0*2 on rank 0, S0 on rank 1"},
      {{{"S0*2", "S1*2"}}, "placements S0*2 on rank 0, S1*2 on rank 1"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
    sharded_ranks_check(2, NULL, from_local_body, (void *)&cases[i].given,
                        cases[i].text != NULL ? RESHARD_ERROR_MISMATCH : RESHARD_SUCCESS, cases[i].text);
}

RUN_CASES
