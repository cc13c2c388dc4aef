/* Sub-communicators of meshes, against a search through the list of ranks. */
#include "mesh.h"

#include "support/contracts/layout_chain.h"
#include "support/contracts/submesh.h"

#include "bench/cli/util.h"

#include <reshard/mesh.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_DIMS = 3 };

/* A mesh and its ranks, row-major. */
typedef struct mesh_case {
  contract_rank *s;
  rng random;
  int ndim;
  int64_t shape[MOST_DIMS], size, ranks[ORACLE_WORLD];
  int64_t mine; /* index of this rank in the list; -1: it is outside */
  reshard_mesh mesh;
  int64_t seen;
} mesh_case;

static void draw_mesh(mesh_case *c) {
  int64_t world = reshard_comm_size(c->s->comm), all[ORACLE_WORLD];
  c->ndim = (int)rng_in(&c->random, 1, MOST_DIMS);
  c->size = 1;
  for (int d = 0; d < c->ndim; d++) {
    c->shape[d] = rng_in(&c->random, 1, world / c->size);
    c->size *= c->shape[d];
  }
  for (int64_t i = 0; i < world; i++)
    all[i] = i;
  for (int64_t i = 0; i < c->size; i++) {
    int64_t other = rng_one_in(&c->random, 3) ? rng_in(&c->random, i, world - 1) : i;
    c->ranks[i] = all[other];
    all[other] = all[i];
  }
  c->mine = -1;
  for (int64_t i = 0; i < c->size; i++)
    if (c->ranks[i] == reshard_comm_rank(c->s->comm))
      c->mine = i;
}

static int64_t coordinate(const mesh_case *c, int64_t index, int dim) {
  for (int d = c->ndim - 1; d > dim; d--)
    index /= c->shape[d];
  return index % c->shape[dim];
}

/* The ranks that differ from this one in these dims alone, row-major in this order: each place is looked for. */
static int64_t group_of(const mesh_case *c, int n, const int *dims, int64_t *group) {
  int64_t size = 1;
  for (int i = 0; i < n; i++)
    size *= c->shape[dims[i]];
  for (int64_t i = 0; i < c->size; i++) {
    int64_t place = 0;
    bool mine = true;
    for (int d = 0; d < c->ndim; d++) {
      bool free_dim = false;
      for (int k = 0; k < n; k++)
        free_dim |= dims[k] == d;
      mine &= free_dim || coordinate(c, i, d) == coordinate(c, c->mine, d);
    }
    for (int k = 0; k < n; k++)
      place = place * c->shape[dims[k]] + coordinate(c, i, dims[k]);
    if (mine)
      group[place] = c->ranks[i];
  }
  return size;
}

static void check_group(mesh_case *c, reshard_comm comm, int n, const int *dims) {
  int64_t group[ORACLE_WORLD];
  if (!CONTRACT_CHECK(c->s, (comm != NULL) == (c->mine >= 0)) || comm == NULL)
    return;
  int64_t size = group_of(c, n, dims, group);
  const int64_t *global = reshard_comm_global_ranks(comm);
  if (!CONTRACT_CHECK(c->s, reshard_comm_size(comm) == size))
    return;
  for (int64_t i = 0; i < size; i++)
    CONTRACT_CHECK(c->s, (global != NULL ? global[i] : i) == group[i]);
  CONTRACT_CHECK(c->s, group[reshard_comm_rank(comm)] == reshard_comm_rank(c->s->comm));
}

static const char *dims_text(char text[16], int n, const int *dims) {
  text[0] = '\0';
  for (int i = 0; i < n; i++)
    snprintf(text + strlen(text), 16 - strlen(text), "%s%d", i > 0 ? "," : "", dims[i]);
  return text;
}

/* Tensors move over it, by all groups of the dims at the same time. */
static void use_group(mesh_case *c, reshard_comm comm, uint64_t seed) {
  const reshard_sharder_options options = {.size = RESHARD_SHARDER_OPTIONS_INIT,
                                           .workspace_limit = seed % 2 == 0 ? 65536 : 0};
  contract_rank sub;
  CONTRACT_SUCCEEDS(c->s, reshard_comm_barrier(comm));
  if (!contract_rank_open_on(c->s, comm, &options, &sub))
    return;
  layout_chain_check_seed(&sub, seed);
  contract_rank_close_on(c->s, &sub);
}

static void check_dims(mesh_case *c, int n, const int *dims) {
  char text[16];
  reshard_comm comm = c->s->comm, again = NULL;
  reshard_mesh part = NULL, flat = NULL;
  uint64_t seed = rng_next(&c->random);
  if (!CONTRACT_SUCCEEDS(c->s, reshard_mesh_comm(c->mesh, dims_text(text, n, dims), &comm)))
    return;
  c->seen++;
  check_group(c, comm, n, dims);
  /* kept: the calls that follow are local, also where it is made of a part, or flattened */
  CONTRACT_SUCCEEDS(c->s, reshard_mesh_comm(c->mesh, text, &again));
  CONTRACT_CHECK(c->s, again == comm);
  if (comm != NULL && CONTRACT_SUCCEEDS(c->s, reshard_mesh_sub(c->mesh, text, RESHARD_MESH_MINE, &part))) {
    CONTRACT_SUCCEEDS(c->s, reshard_mesh_comm(part, NULL, &again));
    CONTRACT_CHECK(c->s, again == comm);
    reshard_mesh_release(part);
  }
  if (n > 1 && CONTRACT_SUCCEEDS(c->s, reshard_mesh_flatten(c->mesh, text, NULL, &flat))) {
    int at = dims[0]; /* of the new dim: those before it that stay */
    for (int i = 1; i < n; i++)
      at -= dims[i] < dims[0];
    CONTRACT_SUCCEEDS(c->s, reshard_mesh_comm(flat, dims_text(text, 1, &at), &again));
    CONTRACT_CHECK(c->s, again == comm);
    reshard_mesh_release(flat);
  }
  if (comm != NULL)
    use_group(c, comm, seed);
}

/* All dims among the mesh's own ranks, which have other numbers there; those outside take no part any more. */
static void check_own(mesh_case *c) {
  int dims[MOST_DIMS] = {0, 1, 2};
  reshard_mesh own = NULL;
  reshard_comm all = NULL, last = NULL;
  if (!CONTRACT_SUCCEEDS(c->s, reshard_mesh_own(c->mesh, &own)) ||
      !CONTRACT_CHECK(c->s, (own != NULL) == (c->mine >= 0)))
    return;
  CONTRACT_SUCCEEDS(c->s, reshard_mesh_comm(c->mesh, NULL, &all));
  check_group(c, all, c->ndim, dims);
  if (own == NULL)
    return;
  CONTRACT_CHECK(c->s, reshard_mesh_rank(own) == c->mine && reshard_mesh_base_comm(own) == all);
  if (CONTRACT_SUCCEEDS(c->s, reshard_mesh_comm(own, "-1", &last)))
    CONTRACT_CHECK(c->s, reshard_comm_size(last) == c->shape[c->ndim - 1]);
  reshard_mesh_release(own);
}

int64_t contract_check_meshes(contract_rank *s, uint64_t seed) {
  mesh_case c = {.s = s};
  rng_seed(&c.random, seed);
  draw_mesh(&c);
  if (!CONTRACT_SUCCEEDS(s, reshard_mesh_create(s->comm, 0, c.ndim, c.shape, NULL, c.size, c.ranks, &c.mesh)))
    return 0;
  for (int d = 0; d < c.ndim; d++)
    check_dims(&c, 1, &d);
  for (int d = 0; d < c.ndim; d++)
    for (int e = 0; e < c.ndim; e++)
      if (d != e)
        check_dims(&c, 2, (int[]){d, e});
  check_own(&c);
  contract_check_submeshes(s, c.mesh, seed);
  reshard_mesh_release(c.mesh);
  return c.seen;
}
