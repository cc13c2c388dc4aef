/* Groups of ranks that act together. The groups of a mesh's dims are made with the mesh, by all ranks; here each rank
 * alone looks for its own. A group gets a sharder with the options of the given one, which owns it. It also keeps the
 * mesh, whose root owns the group's communicator. */
#include "dtensor/group.h"

#include "metadata/group.h"
#include "plan/topology.h"

#include <stdlib.h>

static void free_cache(void *attached) {
  rs_dtensor_cache *cache = attached;
  for (int64_t i = 0; i < cache->groups.n; i++) {
    reshard_sharder_destroy(cache->groups.at[i].sharder);
    reshard_mesh_release(cache->groups.at[i].root);
  }
  for (int64_t i = 0; i < cache->layouts.n; i++)
    rs_cached_layout_free(cache->layouts.at[i]);
  free(cache->groups.at);
  free(cache->layouts.at);
  free(cache);
}

reshard_status rs_dtensor_cache_get(reshard_sharder sharder, rs_dtensor_cache **cache) {
  if (sharder->attached == NULL) {
    RS_TRY(rs_alloc_zero(&sharder->attached, 1, sizeof **cache));
    sharder->attached_free = free_cache;
  }
  *cache = sharder->attached;
  return RESHARD_SUCCESS;
}

static int64_t count_domains(int64_t n, const int64_t *domain) {
  int64_t count = 0;
  for (int64_t i = 0, first; i < n; i++) {
    for (first = 0; domain[first] != domain[i];)
      first++;
    count += first == i;
  }
  return count;
}

/* Makes a group's sharder; its global ranks are those of the given one, whose options all ranks have compared. */
static reshard_status make_group_sharder(reshard_sharder given, reshard_mesh mesh, reshard_comm comm,
                                         reshard_sharder *sharder) {
  reshard_sharder_options options = {.size = RESHARD_SHARDER_OPTIONS_INIT,
                                     .cached_plans = given->limit > 0 ? given->limit : -1,
                                     .workspace_limit = given->options.limit,
                                     .path = given->path,
                                     .device = given->device};
  int64_t *ranks, *domain;
  reshard_topology topology;
  RS_TRY(rs_alloc(&ranks, 2 * mesh->size, sizeof *ranks));
  domain = ranks + mesh->size;
  for (int64_t i = 0; i < mesh->size; i++) {
    int64_t rank = rs_mesh_rank_at(mesh, rs_mesh_position(mesh, i));
    ranks[i] = rs_group_at(&given->group, rank);
    domain[i] = given->options.topology != NULL ? given->options.nodes[rank] : 0;
  }
  options.group = (reshard_group){mesh->size, ranks};
  if (given->options.topology != NULL) {
    topology = rs_topology_of(&given->options);
    topology.ranks = mesh->size;
    topology.domain = domain;
    topology.chains = rs_min(topology.chains, count_domains(mesh->size, domain));
    options.topology = &topology;
  }
  reshard_status status = rs_sharder_new(comm, &options, sharder);
  free(ranks);
  return status;
}

static reshard_status add_group_sharder(reshard_sharder given, rs_dtensor_cache *cache, reshard_mesh mesh,
                                        reshard_comm comm, reshard_sharder *sharder) {
  reshard_sharder made;
  rs_dtensor_cache *own;
  RS_TRY(rs_vec_reserve(&cache->groups, cache->groups.n + 1));
  RS_TRY(make_group_sharder(given, mesh, comm, &made));
  RS_TRY_OR(rs_dtensor_cache_get(made, &own), reshard_sharder_destroy(made));
  own->made_for = given;
  cache->groups.at[cache->groups.n++] = (rs_group_sharder){reshard_mesh_retain(mesh->root), made};
  *sharder = made;
  return RESHARD_SUCCESS;
}

static reshard_status check_mesh(const char *call, reshard_sharder given, const reshard_placing *placing) {
  char text[RS_MESH_TEXT];
  if (placing == NULL || placing->mesh == NULL)
    return rs_error_null(call, placing == NULL ? "placing" : "the mesh of a placing");
  if (placing->mesh->root->comm != given->comm)
    return rs_error(RESHARD_ERROR_INVALID, "%s: the mesh %s is %s", call, rs_mesh_text(text, placing->mesh),
                    placing->mesh->root->comm == NULL ? "dry: it has no communicator"
                                                      : "of another communicator than the sharder");
  return RESHARD_SUCCESS;
}

static reshard_status error_no_group(const char *call, reshard_mesh mesh) {
  char part[RS_MESH_TEXT], whole[RS_MESH_TEXT];
  return rs_error(RESHARD_ERROR_INVALID,
                  "%s: the group of the sub-mesh %s has no communicator: all ranks make those of %s by "
                  "reshard_mesh_init_groups, after the mesh itself",
                  call, rs_mesh_text(part, mesh), rs_mesh_text(whole, mesh->root));
}

reshard_status rs_placing_group_find(const char *call, reshard_sharder given, const reshard_placing *placing,
                                     rs_placing_group *group) {
  *group = (rs_placing_group){given, given->comm, false};
  RS_TRY(check_mesh(call, given, placing));
  reshard_mesh mesh = placing->mesh;
  bool sub = rs_mesh_is_sub(mesh);
  group->outside = sub && !reshard_mesh_contains(mesh, RESHARD_MESH_MINE);
  if (sub && !group->outside)
    group->comm = rs_mesh_known_comm(mesh);
  if (placing->placements == NULL) /* the others of the group are told */
    return rs_error_null(call, "the list of placements");
  if (!sub || group->outside)
    return RESHARD_SUCCESS;
  if (group->comm == NULL)
    return error_no_group(call, mesh);
  rs_dtensor_cache *cache;
  RS_TRY(rs_dtensor_cache_get(given, &cache));
  for (int64_t i = 0; i < cache->groups.n; i++)
    if (cache->groups.at[i].sharder->comm == group->comm) {
      group->sharder = cache->groups.at[i].sharder;
      return RESHARD_SUCCESS;
    }
  return add_group_sharder(given, cache, mesh, group->comm, &group->sharder);
}

bool rs_same_group(reshard_mesh a, reshard_mesh b) {
  return rs_mesh_is_sub(a) && rs_mesh_is_sub(b) && a->root->comm == b->root->comm && rs_mesh_same_ranks(a, b);
}
