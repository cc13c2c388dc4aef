/* Which ranks act together. The groups of a mesh's dims are made with the mesh, by all ranks; here they are only looked
 * for, by each rank alone, and get a sharder each: with what was asked of the one that is given, which keeps it. It
 * keeps the mesh for as long, whose root owns the group's communicator. */
#include "dtensor/dtensor.h"

#include "metadata/metadata.h"

#include <stdlib.h>

struct rs_grouped {
  reshard_mesh root;
  reshard_sharder sharder;
};

static void free_grouped(struct rs_grouped *grouped) {
  reshard_sharder_destroy(grouped->sharder);
  reshard_mesh_release(grouped->root);
  free(grouped);
}

/* Its sharder's global ranks are those that the given one says. */
static reshard_status make_sharder(reshard_sharder given, reshard_mesh mesh, reshard_comm comm,
                                   reshard_sharder *sharder) {
  reshard_sharder_options options = {.size = RESHARD_SHARDER_OPTIONS_INIT,
                                     .cached_plans = given->limit > 0 ? given->limit : -1,
                                     .workspace_limit = given->workspace_limit,
                                     .path = given->path,
                                     .device = given->device};
  int64_t *ranks;
  RS_TRY(rs_alloc(&ranks, mesh->size, sizeof *ranks));
  for (int64_t i = 0; i < mesh->size; i++)
    ranks[i] = rs_group_at(&given->group, rs_mesh_rank_at(mesh, rs_mesh_position(mesh, i)));
  options.group = (reshard_group){mesh->size, ranks};
  reshard_status status = reshard_sharder_create(comm, &options, sharder);
  free(ranks);
  return status;
}

static reshard_status add_grouped(reshard_sharder given, reshard_mesh mesh, reshard_comm comm,
                                  reshard_sharder *sharder) {
  struct rs_grouped *made;
  RS_TRY(rs_vec_reserve(&given->grouped, given->grouped.n + 1));
  RS_TRY(rs_alloc_zero(&made, 1, sizeof *made));
  reshard_status status = make_sharder(given, mesh, comm, &made->sharder);
  if (status != RESHARD_SUCCESS) {
    free(made);
    return status;
  }
  made->sharder->made_for = given;
  made->root = reshard_mesh_retain(mesh->root);
  given->grouped.at[given->grouped.n++] = made;
  given->grouped_free = free_grouped;
  *sharder = made->sharder;
  return RESHARD_SUCCESS;
}

static reshard_status check(const char *call, reshard_sharder given, const reshard_placing *placing) {
  char text[RS_MESH_TEXT];
  if (placing == NULL || placing->mesh == NULL || placing->placements == NULL)
    return rs_error(RESHARD_ERROR_INVALID, "%s: %s is NULL", call,
                    placing == NULL         ? "placing"
                    : placing->mesh == NULL ? "the mesh of a placing"
                                            : "the list of placements");
  if (placing->mesh->root->comm != given->comm)
    return rs_error(RESHARD_ERROR_INVALID, "%s: the mesh %s is %s", call, rs_mesh_text(text, placing->mesh),
                    placing->mesh->root->comm == NULL ? "dry: it has no communicator"
                                                      : "of another communicator than the sharder");
  return RESHARD_SUCCESS;
}

static reshard_status no_group(const char *call, reshard_mesh mesh) {
  char part[RS_MESH_TEXT], whole[RS_MESH_TEXT];
  return rs_error(RESHARD_ERROR_INVALID,
                  "%s: the group of the sub-mesh %s has no communicator: all ranks make those of %s by "
                  "reshard_mesh_init_groups, after the mesh itself",
                  call, rs_mesh_text(part, mesh), rs_mesh_text(whole, mesh->root));
}

reshard_status rs_members_find(const char *call, reshard_sharder given, const reshard_placing *placing,
                               rs_members *members) {
  *members = (rs_members){given, given->comm, false};
  RS_TRY(check(call, given, placing));
  reshard_mesh mesh = placing->mesh;
  if (!rs_mesh_is_sub(mesh))
    return RESHARD_SUCCESS;
  members->outside = !reshard_mesh_contains(mesh, RESHARD_MESH_MINE);
  if (members->outside)
    return RESHARD_SUCCESS;
  members->comm = rs_mesh_known_comm(mesh);
  if (members->comm == NULL)
    return no_group(call, mesh);
  for (int64_t i = 0; i < given->grouped.n; i++)
    if (given->grouped.at[i]->sharder->comm == members->comm) {
      members->sharder = given->grouped.at[i]->sharder;
      return RESHARD_SUCCESS;
    }
  return add_grouped(given, mesh, members->comm, &members->sharder);
}

bool rs_same_group(reshard_mesh a, reshard_mesh b) {
  return rs_mesh_is_sub(a) && rs_mesh_is_sub(b) && a->root->comm == b->root->comm && rs_mesh_same_ranks(a, b);
}
