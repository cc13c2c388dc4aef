/* A pass of a case: transfers are made and executed, twice and more with other data. The rank threads do it or one
 * thread for all, directly or from a graph.
 *
 * No barrier stands between filling a source and executing, nor between an execute and the check of its result or the
 * overwriting of its source: execute promises exactly that order. On GPUs each rank has a stream, and the same holds of
 * that. */
#include "bench/verify/case_context.h"

#include <stdlib.h>
#include <string.h>

static reshard_arrays arrays_of(const case_binding *src, const case_binding *dst, bool lengths) {
  return (reshard_arrays){.size = RESHARD_ARRAYS_INIT,
                          .src = src->pointer,
                          .dst = dst->pointer,
                          .src_strides = src->stride_list,
                          .dst_strides = dst->stride_list,
                          .nsrc = lengths ? src->n : 0,
                          .ndst = lengths ? dst->n : 0};
}

/* Guard bytes follow a workspace that the caller owns. */
#define GUARD 256

static reshard_status alloc_workspace(case_rank *s) {
  size_t bytes = (s->workspace_bytes + 2 * GUARD) & ~(size_t)(GUARD - 1);
  if (s->device != NULL) {
    RS_TRY(s->device->memory->alloc(s->device, bytes, (void **)&s->workspace));
    return s->device->memory->memset(s->device, s->workspace, 0x5a, bytes, s->stream);
  }
  s->workspace = aligned_alloc(256, bytes);
  if (s->workspace == NULL)
    cli_exit(EXIT_FAILED, "out of memory: %zu bytes refused", s->workspace_bytes);
  memset(s->workspace, 0x5a, bytes);
  return RESHARD_SUCCESS;
}

/* The first guard byte that was written to; -1: none. */
static int64_t check_workspace(case_rank *s) {
  unsigned char guard[GUARD / 2], *at = s->workspace + s->workspace_bytes;
  if (s->device == NULL) {
    memcpy(guard, at, sizeof guard);
  } else if (s->device->memory->memcpy(s->device, guard, at, sizeof guard, s->stream) != RESHARD_SUCCESS ||
             s->device->streams->synchronize(s->device, s->stream) != RESHARD_SUCCESS) {
    return 0;
  }
  for (size_t i = 0; i < sizeof guard; i++)
    if (guard[i] != 0x5a)
      return (int64_t)i;
  return -1;
}

static void free_workspace(case_rank *s) {
  if (s->device != NULL)
    s->device->memory->free(s->device, s->workspace);
  else
    free(s->workspace);
  s->workspace = NULL;
}

static size_t rebind_workspace(const reshard_plan_info *info) {
  return (size_t)(info->sent_bytes + info->received_bytes + 2 * info->self_copy_bytes + 512 * info->peers);
}

/* Room for a rebind to arrays of which less may be in place. Where a plan passes bytes on, its transfer may take the
 * messages of one that does not. */
static reshard_status find_rebind_workspace(case_context *l, int64_t rank) {
  case_rank *s = &l->rank[rank];
  size_t most = rebind_workspace(&s->info);
  if (s->info.chains > 0) {
    reshard_topology topology = *l->c->options.topology;
    reshard_plan_options options = l->c->options;
    reshard_plan_info info;
    reshard_plan plan;
    topology.chains = RESHARD_NO_CHAINS;
    options.topology = &topology;
    RS_TRY(reshard_plan_create(l->c->nentries, l->entries, rank, &options, &plan));
    reshard_plan_get_info(plan, &info);
    reshard_plan_destroy(plan);
    if (rebind_workspace(&info) > most)
      most = rebind_workspace(&info);
  }
  if (most > s->workspace_bytes)
    s->workspace_bytes = most;
  return RESHARD_SUCCESS;
}

static bool make_transfer(case_context *l, const case_pass *p, int64_t rank, const reshard_arrays *arrays) {
  case_rank *s = &l->rank[rank];
  reshard_plan plan = p->reverse ? s->back : s->plan;
  reshard_transfer_options options = {RESHARD_TRANSFER_OPTIONS_INIT, .path = p->path};
  if (p->own_workspace) {
    reshard_plan_workspace(plan, &s->workspace_bytes);
    reshard_status taken = p->rebind != 0 ? find_rebind_workspace(l, rank) : RESHARD_SUCCESS;
    RS_THEN(taken, alloc_workspace(s));
    if (taken != RESHARD_SUCCESS)
      return case_failed_call(l, "taking a workspace", rank, taken);
    options.workspace = s->workspace_bytes > 0 ? s->workspace : NULL;
    options.workspace_bytes = s->workspace_bytes;
  }
  reshard_status status = reshard_transfer_create(plan, l->comms[rank], arrays, &options, &s->transfer);
  if (status != RESHARD_SUCCESS)
    return case_failed_call(l, "reshard_transfer_create", rank, status);
  l->transfers[rank] = s->transfer;
  reshard_transfer_info info;
  status = reshard_transfer_get_info(s->transfer, &info);
  if (status != RESHARD_SUCCESS)
    return case_failed_call(l, "reshard_transfer_get_info", rank, status);
  if (info.path == RESHARD_PATH_AUTO || (p->path != RESHARD_PATH_AUTO && info.path != p->path))
    return case_failed(l, "rank %lld: asked for path %d, the transfer took %d", (long long)rank, p->path, info.path);
  if (l->c->options.workspace_limit > 0 && (int64_t)info.workspace_bytes > l->c->options.workspace_limit)
    return case_failed(l, "rank %lld: %zu bytes of staging, the limit is %lld", (long long)rank, info.workspace_bytes,
                       (long long)l->c->options.workspace_limit);
  /* Messages are of the narrower dtype, direct copies read the source's; on the mixed path each peer has its own. */
  const case_plan *c = l->c;
  bool packed = info.path == RESHARD_PATH_PACKED, direct = info.path == RESHARD_PATH_DIRECT;
  const oracle_counts *least = packed ? &c->counts : direct ? &c->least : &c->mixed_least;
  const oracle_counts *most = packed ? &c->counts : direct ? &c->most : &c->mixed_most;
  s->least_wire = least->lacked[rank];
  s->most_wire = most->lacked[rank];
  s->staged = rs_max(s->staged, (int64_t)info.workspace_bytes);
  s->rounds = rs_max(s->rounds, info.rounds);
  s->passed |= info.streams > 0;
  s->by_domains = !direct && l->c->topology.domain != NULL && !p->reverse && (info.streams > 0 || s->info.chains == 0);
  s->reads = info.path == RESHARD_PATH_MIXED;
  return true;
}

static reshard_status execute_all(void *user, void *stream) {
  case_context *l = user;
  return reshard_execute_all(l->locals, l->transfers + l->first, stream);
}

/* One thread executes for all ranks here, from a graph where that is wanted; ended when it returns. */
static reshard_status execute_for_all(case_context *l) {
  case_rank *s = &l->rank[l->first];
  if (!l->runner->fixed.graph) {
    RS_TRY(execute_all(l, s->stream));
  } else {
    if (l->graph.exec == NULL)
      RS_TRY(gpu_capture(s->device, s->stream, execute_all, l, &l->graph));
    RS_TRY(gpu_launch(&l->graph, s->stream));
  }
  return s->device != NULL ? s->device->streams->synchronize(s->device, s->stream) : RESHARD_SUCCESS;
}

static void destroy_graph(case_context *l, int64_t rank) {
  if (rank != l->first)
    return;
  gpu_graph_destroy(&l->graph);
}

static bool execute_rank(case_context *l, const case_pass *p, int64_t rank) {
  reshard_status status;
  if (p->drive_all) {
    rank_pool_barrier(l->runner->pool, true);
    if (rank == l->first) {
      l->all_status = execute_for_all(l);
      if (l->all_status != RESHARD_SUCCESS)
        case_failed_call(l, "reshard_execute_all", rank, l->all_status);
    }
    rank_pool_barrier(l->runner->pool, true);
    status = l->all_status;
  } else {
    status = reshard_execute(l->rank[rank].transfer, l->rank[rank].stream);
    if (status != RESHARD_SUCCESS) {
      case_failed_call(l, "reshard_execute", rank, status);
      reshard_comm_abort(l->comms[rank]); /* the others must not wait for this rank */
    }
  }
  return status == RESHARD_SUCCESS;
}

/* Overwrites the rank's source as soon as its stream is past the execute. */
static reshard_status overwrite_source(case_rank *s) {
  if (s->device == NULL)
    return RESHARD_SUCCESS; /* memory of the host is spoilt after it was looked at */
  return s->device->memory->memset(s->device, s->src.memory, 0x77, (size_t)s->src.bytes, s->stream);
}

/* Runs one execute with data of a generation: fill, execute, check, overwrite the source. Wrong data clears *right.
 * Returns false where the execute failed, after which no other can follow. */
static bool run_execute(case_context *l, const case_pass *p, int64_t rank, int generation, bool *right) {
  case_rank *s = &l->rank[rank];
  const case_plan *c = l->c;
  reshard_comm_stats before = {0}, after = {0};
  if (!p->reverse)
    case_binding_fill(c, &s->src, FILL_SOURCE, generation);
  case_binding_fill(c, &s->dst, p->reverse ? FILL_REVERSED : FILL_DESTINATION, generation);
  reshard_status moved = p->reverse ? RESHARD_SUCCESS : case_binding_copy(&s->src, true, s->stream);
  moved = moved == RESHARD_SUCCESS ? case_binding_copy(&s->dst, true, s->stream) : moved;
  reshard_comm_get_stats(l->comms[rank], &before);
  if (!execute_rank(l, p, rank)) {
    *right = false;
    return false;
  }
  reshard_comm_get_stats(l->comms[rank], &after);
  bool early =
      s->device != NULL && generation % 2 == 1; /* else the source is looked at, and nothing spoils it before */
  moved = moved == RESHARD_SUCCESS ? early ? overwrite_source(s) : case_binding_copy(&s->src, false, s->stream) : moved;
  moved = moved == RESHARD_SUCCESS ? case_binding_copy(&s->dst, false, s->stream) : moved;
  if (moved != RESHARD_SUCCESS)
    *right = case_failed_call(l, "moving data to or from the GPU", rank, moved);
  int64_t came = after.received_bytes - before.received_bytes;
  rs_text why = {0};
  bool clean =
      case_binding_check(c, &s->dst, p->reverse ? FILL_REVERSED : FILL_DESTINATION, generation, rank, &why) &&
      (early || case_binding_check(c, &s->src, p->reverse ? FILL_DESTINATION : FILL_SOURCE, generation, rank, &why));
  if (clean && !p->reverse && !l->runner->fixed.graph && (came < s->least_wire || came > s->most_wire))
    cli_add(&why, "rank %lld: %lld bytes came over the wire, they should be %lld (or up to %lld)", (long long)rank,
            (long long)came, (long long)s->least_wire, (long long)s->most_wire);
  int64_t between = after.between_bytes - before.between_bytes, within = after.within_bytes - before.within_bytes;
  s->between += s->by_domains ? between : 0;
  s->within += s->by_domains ? within : 0;
  int64_t entering = s->info.between_received_bytes, passed = s->info.within_received_bytes;
  bool planned = s->reads ? between <= entering && within <= passed : between == entering && within == passed;
  if (clean && s->by_domains && !l->runner->fixed.graph && !planned)
    cli_add(&why, "rank %lld: %lld bytes came from other domains and %lld from its own, the plan has %lld and %lld",
            (long long)rank, (long long)between, (long long)within, (long long)entering, (long long)passed);
  if (!p->reverse)
    memset(s->src.arena, 0x77, (size_t)s->src.bytes);
  if (!p->reverse && s->device == NULL && s->src.memory != NULL) /* no other process reads it any more */
    memset(s->src.memory, 0x77, (size_t)s->src.bytes);
  *right = case_take_reason(l, &why) && *right;
  return true;
}

static void finish_transfer(case_context *l, int64_t rank, bool *right) {
  case_rank *s = &l->rank[rank];
  case_barrier(l, rank, true);
  destroy_graph(l, rank);
  rank_pool_barrier(l->runner->pool, true);
  reshard_transfer_destroy(s->transfer);
  s->transfer = NULL;
  if (s->workspace == NULL)
    return;
  int64_t written = check_workspace(s);
  if (written >= 0)
    *right = case_failed(l, "rank %lld: byte %lld after a workspace of %zu was written to", (long long)rank,
                         (long long)written, s->workspace_bytes);
  free_workspace(s);
}

/* Arrays of a side, where the rank's are. */
static void bind_side(case_context *l, int64_t rank, bool source, int number, case_binding *b) {
  case_binding_make(l->c, rank, source, number, b);
  rs_device *device = l->rank[rank].device;
  if (l->reached != NULL && l->reached[rank])
    device = session_device(l->runner->remote, rank - l->first);
  if (device != NULL)
    CLI_TRY("", case_binding_to_device(b, device));
}

/* Binds other addresses and strides. The old arrays may go at once: the rank's execute on them has returned. */
static bool rebind_arrays(case_context *l, const case_pass *p, int64_t rank, int number) {
  case_rank *s = &l->rank[rank];
  case_binding src, dst;
  bind_side(l, rank, true, number, &src);
  bind_side(l, rank, false, number, &dst);
  destroy_graph(l, rank);
  reshard_arrays arrays = arrays_of(&src, &dst, true);
  reshard_status status = reshard_transfer_rebind(s->transfer, &arrays);
  case_binding_free(&s->src);
  case_binding_free(&s->dst);
  s->src = src;
  s->dst = dst;
  if (status != RESHARD_SUCCESS) {
    case_failed_call(l, "reshard_transfer_rebind", rank, status);
    reshard_comm_abort(l->comms[rank]);
  }
  return p->drive_all ? rank_pool_barrier(l->runner->pool, status == RESHARD_SUCCESS) : status == RESHARD_SUCCESS;
}

bool case_pass_run(case_context *l, const case_pass *p, int64_t rank, int number, int *generation) {
  case_rank *s = &l->rank[rank];
  int binding = number * 4;
  bind_side(l, rank, true, binding, &s->src);
  bind_side(l, rank, false, binding, &s->dst);
  reshard_arrays arrays = arrays_of(&s->src, &s->dst, number % 2 == 0);
  bool right = make_transfer(l, p, rank, &arrays);
  if (!case_barrier(l, rank, right)) {
    finish_transfer(l, rank, &right);
    return false;
  }
  for (int k = 0; k < p->executes; k++) {
    if ((p->rebind >> k & 1) && !rebind_arrays(l, p, rank, binding + k))
      break;
    if (!run_execute(l, p, rank, ++*generation, &right))
      break;
  }
  finish_transfer(l, rank, &right);
  return case_barrier(l, rank, right);
}

bool case_pass_reverse(case_context *l, const case_pass *p, int64_t rank, int number, int generation) {
  case_rank *s = &l->rank[rank];
  case_binding forward_dst = s->dst, forward_src = s->src;
  reshard_status status = reshard_plan_reverse(s->plan, &s->back);
  bool right = status == RESHARD_SUCCESS || case_failed_call(l, "reshard_plan_reverse", rank, status);
  bind_side(l, rank, true, number * 4 + 1, &s->dst); /* reversed: source buffers are written to */
  s->src = forward_dst;
  if (case_barrier(l, rank, right)) {
    reshard_arrays arrays = arrays_of(&s->src, &s->dst, true);
    right = make_transfer(l, p, rank, &arrays);
    if (case_barrier(l, rank, right))
      run_execute(l, p, rank, generation, &right);
    finish_transfer(l, rank, &right);
  }
  reshard_plan_destroy(s->back);
  s->back = NULL;
  case_binding_free(&s->dst);
  s->dst = forward_dst;
  s->src = forward_src;
  return case_barrier(l, rank, right);
}
