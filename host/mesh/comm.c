/* Layouts and communicators of meshes.
 *
 * The root of a mesh owns the communicators of all its parts, by key. A key has the region: the ranks of the part, and
 * of the parts that other ranks have in its place. For each digit of the region it has the weight in the ranking of the
 * group, 0 where the digit tells groups apart. Keys are the same on all ranks, so that all of them find a communicator
 * or all make it. A rank's group follows from its own position. Looking for one allocates nothing: a rank that could
 * fail there would not know whether the others wait for it. */
#include "mesh/mesh.h"

#include "comm/gather.h"
#include "comm/split.h"

#include <stdlib.h>
#include <string.h>

/* The ranks are 0, 1, 2, ... in row-major order of the dims. */
static bool is_row_major(const struct reshard_mesh_s *m) {
  int64_t step;
  return m->root->regular && m->offset == 0 && rs_mesh_run(m, &step) == m->size && step == 1;
}

reshard_status reshard_mesh_layout(reshard_mesh mesh, int ndim, const int64_t *shape,
                                   const reshard_placement *placements, const int *order, reshard_layout *layout) {
  RS_TRY(RS_GIVEN("reshard_mesh_layout", mesh, placements, layout));
  int64_t *ranks = NULL;
  if (!is_row_major(mesh)) {
    RS_TRY(rs_alloc(&ranks, mesh->size, sizeof *ranks));
    reshard_mesh_ranks(mesh, ranks);
  }
  reshard_status status = reshard_layout_create_mesh(ndim, shape, mesh->root->world, mesh->ndim, mesh->shape,
                                                     mesh->names[0] != NULL ? (const char *const *)mesh->names : NULL,
                                                     placements, order, ranks, layout);
  free(ranks);
  return status;
}

/* --- Communicators ----------------------------------------------------------------------------------------------- */

/* Makes the key of a group, without its communicator. */
static void make_group(const struct reshard_mesh_s *m, const int *dims, int n, rs_mesh_group *group) {
  int64_t inner[RESHARD_MAX_DIMS] = {0}, extent = 1;
  for (int i = n - 1; i >= 0; i--) {
    inner[dims[i]] = extent;
    extent *= m->shape[dims[i]];
  }
  *group = (rs_mesh_group){.region = m->region, .ndigits = m->ndigits};
  for (int i = 0; i < m->ndigits; i++) {
    rs_digit g = m->digits[i];
    g.weight = g.dim >= 0 ? g.weight * inner[g.dim] : 0;
    g.dim = 0;
    group->digits[i] = g;
  }
}

static bool same_group(const rs_mesh_group *a, const rs_mesh_group *b) {
  return a->region == b->region && a->ndigits == b->ndigits &&
         memcmp(a->digits, b->digits, (size_t)a->ndigits * sizeof *a->digits) == 0;
}

/* Joins digits of n ranks in a row, the largest stride first: neighbours that are one arithmetic progression become
 * one. */
static int join_digits(int n, rs_digit *digits) {
  int kept = 0;
  for (int i = 0; i < n; i++) {
    rs_digit *last = kept > 0 ? &digits[kept - 1] : NULL;
    if (last != NULL && last->stride == digits[i].stride * digits[i].n &&
        last->weight == digits[i].weight * digits[i].n)
      *last = (rs_digit){0, last->n * digits[i].n, digits[i].weight, digits[i].stride};
    else
      digits[kept++] = digits[i];
  }
  return kept;
}

/* This rank's group of the root is exactly the mesh, which it is in. */
static bool is_exact_group(const rs_mesh_group *group, const rs_mesh_group *all_dims, int64_t first) {
  rs_digit a[RESHARD_MAX_DIMS], b[RESHARD_MAX_DIMS];
  int na = 0, nb = 0;
  for (int i = 0; i < group->ndigits; i++)
    if (group->digits[i].weight > 0)
      a[na++] = group->digits[i];
  for (int i = 0; i < all_dims->ndigits; i++)
    if (all_dims->digits[i].weight > 0)
      b[nb++] = all_dims->digits[i];
  na = join_digits(na, a);
  nb = join_digits(nb, b);
  return group->first == first && na == nb && memcmp(a, b, (size_t)na * sizeof *a) == 0;
}

reshard_comm rs_mesh_known_comm(const struct reshard_mesh_s *mesh) {
  int dims[RESHARD_MAX_DIMS];
  rs_mesh_group wanted;
  for (int d = 0; d < mesh->ndim; d++)
    dims[d] = d;
  make_group(mesh, dims, mesh->ndim, &wanted);
  for (const rs_mesh_group *g = atomic_load(&mesh->root->groups); g != NULL; g = g->next)
    if (g->comm != NULL && g->comm->size == mesh->size && is_exact_group(g, &wanted, mesh->offset))
      return g->comm;
  return NULL;
}

/* The group has all ranks of the mesh's communicator, in their order. */
static bool is_whole_comm(const struct reshard_mesh_s *root, const rs_mesh_group *group) {
  int64_t size = 1;
  bool whole = root->regular;
  for (int i = 0; i < group->ndigits && whole; i++) {
    size *= group->digits[i].n;
    whole = group->digits[i].weight == group->digits[i].stride;
  }
  return whole && size == root->world;
}

/* Adds all of a group that has to be equal on all ranks to a hash. */
static uint64_t hash_group(uint64_t hash, const struct reshard_mesh_s *root, const rs_mesh_group *group) {
  hash = rs_hash(hash, &group->region, sizeof group->region);
  hash = rs_hash(hash, group->digits, (size_t)group->ndigits * sizeof *group->digits);
  for (int64_t i = 0; i < root->list.nranges; i++)
    hash = rs_hash(hash, &root->list.ranges[i], sizeof root->list.ranges[i]);
  return hash;
}

/* Prints what ranks compare before they split: words for people, and a hash of all that has to be equal. */
#define SPLIT_TEXT (RS_MESH_TEXT + 128)
static void print_split(char buffer[SPLIT_TEXT], const struct reshard_mesh_s *m, const int *dims, int n,
                        const rs_mesh_group *group) {
  rs_text text = {.at = buffer, .size = SPLIT_TEXT};
  for (int i = 0; i < n; i++)
    if (m->names[dims[i]] != NULL)
      rs_text_add(&text, "%s%.16s", i > 0 ? "," : "mesh dims ", m->names[dims[i]]);
    else
      rs_text_add(&text, "%s%d", i > 0 ? "," : "mesh dims ", dims[i]);
  uint64_t hash = hash_group(0, m->root, group);
  char whole[RS_MESH_TEXT];
  rs_text_add(&text, " of %s (%08x)", rs_mesh_text(whole, m->root), (unsigned)(hash ^ hash >> 32));
}

/* Finds the group of this rank, and its place in it. *first: position of the group's first rank. */
static void find_place(const struct reshard_mesh_s *m, const int *dims, int n, rs_split *split, int64_t *first) {
  int64_t position, coordinate[RESHARD_MAX_DIMS];
  split->color = -1;
  if (!reshard_mesh_contains((reshard_mesh)m, RESHARD_MESH_MINE) ||
      rs_mesh_find(m, RESHARD_MESH_MINE, &position, coordinate) != RESHARD_SUCCESS)
    return;
  for (int i = 0; i < n; i++) {
    split->key = split->key * m->shape[dims[i]] + coordinate[dims[i]];
    coordinate[dims[i]] = 0;
  }
  reshard_mesh_rank_at((reshard_mesh)m, coordinate, &split->color); /* rank of the first: no other group has it */
  rs_mesh_find(m, split->color, first, coordinate);
}

/* Finds a group in the list. */
static bool find_group(const rs_mesh_group *list, const rs_mesh_group *wanted, reshard_comm *comm) {
  for (; list != NULL; list = list->next)
    if (same_group(list, wanted)) {
      *comm = list->comm;
      return true;
    }
  return false;
}

static void free_groups(rs_mesh_group *list) {
  for (rs_mesh_group *next; list != NULL; list = next) {
    next = list->next;
    reshard_comm_destroy(list->comm);
    free(list);
  }
}

/* Finds the group's communicator in the root's list or in *made; else makes it and adds it to *made. A rank whose own
 * step failed sends its status to the others, unless the communicator is there and nothing is made. */
static reshard_status find_or_split(reshard_mesh mesh, const char *text, reshard_status status, rs_mesh_group **made,
                                    reshard_comm *comm) {
  struct reshard_mesh_s *root = mesh->root;
  int dims[RESHARD_MAX_DIMS], n = 0;
  rs_mesh_group wanted, *new = NULL;
  reshard_status known = rs_mesh_dims(mesh, text, dims, &n);
  if (known == RESHARD_SUCCESS) {
    make_group(mesh, dims, n, &wanted);
    *comm = root->comm;
    if (is_whole_comm(root, &wanted) || find_group(atomic_load(&root->groups), &wanted, comm) ||
        find_group(*made, &wanted, comm))
      return status;
  }
  RS_THEN(status, known);
  RS_THEN(status, rs_alloc_copy(&new, &wanted, 1, sizeof wanted));
  char what[SPLIT_TEXT] = "";
  rs_split split = {.status = status, .by = what};
  if (status == RESHARD_SUCCESS) {
    print_split(what, mesh, dims, n, &wanted);
    find_place(mesh, dims, n, &split, &new->first);
    new->next = *made;
  }
  RS_TRY_OR(rs_comm_split(root->comm, &split, new != NULL ? &new->comm : comm), free(new));
  *made = new;
  *comm = new->comm;
  return RESHARD_SUCCESS;
}

/* Gives the groups to the root. */
static void publish_groups(struct reshard_mesh_s *root, rs_mesh_group *made) {
  rs_mesh_group *last = made;
  if (made == NULL)
    return;
  while (last->next != NULL)
    last = last->next;
  last->next = atomic_load(&root->groups);
  atomic_store(&root->groups, made);
}

static reshard_status group_comm(reshard_mesh mesh, const char *text, reshard_status status, reshard_comm *comm) {
  rs_mesh_group *made = NULL;
  status = find_or_split(mesh, text, status, &made, comm);
  publish_groups(mesh->root, made);
  return status;
}

static reshard_status check_comm(const char *what, reshard_mesh mesh) {
  if (mesh == NULL)
    return rs_error_null(what, "mesh");
  if (mesh->root->comm == NULL)
    return rs_error(RESHARD_ERROR_INVALID, "%s: a dry mesh has no communicator", what);
  return RESHARD_SUCCESS;
}

reshard_status reshard_mesh_comm(reshard_mesh mesh, const char *dims, reshard_comm *comm) {
  RS_TRY(check_comm("reshard_mesh_comm", mesh));
  reshard_comm found = NULL;
  reshard_status status = RESHARD_SUCCESS;
  if (comm == NULL)
    status = rs_error_null("reshard_mesh_comm", "comm");
  RS_TRY(group_comm(mesh, dims, status, &found));
  *comm = found;
  return RESHARD_SUCCESS;
}

reshard_status reshard_mesh_own(reshard_mesh mesh, reshard_mesh *own) {
  RS_TRY(check_comm("reshard_mesh_own", mesh));
  reshard_mesh made = NULL;
  reshard_comm comm = NULL;
  reshard_status status = RESHARD_SUCCESS;
  if (own == NULL)
    status = rs_error_null("reshard_mesh_own", "own");
  if (status == RESHARD_SUCCESS) /* before the split, after which it could fail for one rank alone */
    status = rs_mesh_new(NULL, mesh->size, mesh->ndim, mesh->shape,
                         mesh->names[0] != NULL ? (const char *const *)mesh->names : NULL, &made);
  status = group_comm(mesh, NULL, status, &comm);
  if (status != RESHARD_SUCCESS || comm == NULL) {
    reshard_mesh_release(made);
    if (status == RESHARD_SUCCESS)
      *own = NULL;
    return status;
  }
  rs_mesh_count_up(made);
  made->comm = comm;
  rs_comm_hold(comm);
  made->made_from = reshard_mesh_retain(mesh);
  *own = made;
  return RESHARD_SUCCESS;
}

/* --- Several groups at once --------------------------------------------------------------------------------------- */

/* Prints the dims of all wanted groups as one text, which the ranks compare: words for people, and a hash, as other
 * parts of the root have dims of the same numbers. */
static reshard_status list_dims(reshard_mesh mesh, int64_t n, const char *const *dims, rs_text *text) {
  if (n < 0 || (n > 0 && dims == NULL))
    return rs_error(RESHARD_ERROR_INVALID, "reshard_mesh_init_groups: %lld groups, list %s", (long long)n,
                    dims == NULL ? "NULL" : "given");
  char whole[RS_MESH_TEXT];
  uint64_t hash = 0;
  rs_text_add(text, "groups of %s:", rs_mesh_text(whole, mesh->root));
  for (int64_t i = 0; i < (n > 0 ? n : mesh->ndim); i++) {
    int list[RESHARD_MAX_DIMS], count = 1;
    list[0] = (int)i;
    if (n > 0)
      RS_TRY(rs_mesh_dims(mesh, dims[i], list, &count));
    for (int k = 0; k < count; k++)
      rs_text_add(text, k > 0 ? ",%d" : " %d", list[k]);
    rs_mesh_group wanted;
    make_group(mesh, list, count, &wanted);
    hash = hash_group(hash, mesh->root, &wanted);
  }
  rs_text_add(text, " (%08x)", (unsigned)(hash ^ hash >> 32));
  return RESHARD_SUCCESS;
}

/* Collective: checks that all ranks want the same groups. A rank that has some already would not meet the others
 * there. */
static reshard_status compare_dims(reshard_comm comm, reshard_status mine, const char *text, int64_t length) {
  rs_strings *all;
  RS_TRY(rs_comm_gather_bytes(comm, mine, text, length, &all));
  reshard_status status = RESHARD_SUCCESS;
  for (int64_t r = 1; r < all->n && status == RESHARD_SUCCESS; r++) {
    const char *first = all->bytes, *other = all->bytes + all->first[r];
    int64_t n = all->first[r + 1] - all->first[r];
    if (n != all->first[1] || memcmp(first, other, (size_t)n) != 0)
      status = rs_error(RESHARD_ERROR_MISMATCH, "ranks 0 and %lld make different groups: %.*s; %.*s", (long long)r,
                        (int)rs_min(all->first[1], 200), first, (int)rs_min(n, 200), other);
  }
  rs_strings_release(all);
  return status;
}

enum { DIMS_TEXT = 1024 };

reshard_status reshard_mesh_init_groups(reshard_mesh mesh, int64_t n, const char *const *dims) {
  RS_TRY(check_comm("reshard_mesh_init_groups", mesh));
  RS_CALL(mesh->root->comm, 0);
  char buffer[DIMS_TEXT];
  rs_text text = {.at = buffer, .size = sizeof buffer};
  reshard_status status = list_dims(mesh, n, dims, &text);
  if (status == RESHARD_SUCCESS && text.length >= sizeof buffer)
    status =
        rs_error(RESHARD_ERROR_INVALID, "reshard_mesh_init_groups: %lld groups in one call are too many", (long long)n);
  RS_TRY(compare_dims(mesh->root->comm, status, buffer, (int64_t)text.length));
  rs_mesh_group *made = NULL;
  for (int64_t i = 0; i < (n > 0 ? n : mesh->ndim) && status == RESHARD_SUCCESS; i++) {
    char number[24];
    reshard_comm found;
    rs_text_add(&(rs_text){.at = number, .size = sizeof number}, "%lld", (long long)i);
    status = find_or_split(mesh, n > 0 ? dims[i] : number, RESHARD_SUCCESS, &made, &found);
  }
  if (status == RESHARD_SUCCESS)
    publish_groups(mesh->root, made);
  else /* of one rank, so of all */
    free_groups(made);
  return status;
}
