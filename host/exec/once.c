/* A transfer that is executed once costs more to make than to execute: ranks compare records, show addresses, agree,
 * compile, and execute, and meet for each. So it is cached, and only bound to other arrays, by each rank alone.
 *
 * Ranks of one process that reach each other's memory need none: the rank that acts for all sees all arrays, lists the
 * copies to each rank, compiles and runs them. They meet only once, as they do with cached transfers. Nor do processes
 * that map each other's memory: they meet before the copies, with their status and where their arrays are, and after
 * them. With GPUs they meet once, to tell if arrays have moved: a transfer is kept while none has. Other ranks that are
 * processes exchange a record before an execute, so that nothing moves where one of them has failed. Over NCCL they do
 * not meet at all.
 *
 * Anything unusual - a first call, a rank that failed, plans that differ - is left to the ordinary way, which tells all
 * ranks the error. */
#include "exec/once.h"

#include "device/stream.h"
#include "exec/addresses.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void rs_once_memory_free(rs_once_memory *memory, reshard_comm comm) {
  rs_gate_destroy(&memory->gate);
  rs_once_free_lanes(memory);
  free(memory->extents.at);
  rs_copies_free(&memory->copies);
  comm->device->work->release(comm->device, memory->own);
  rs_staging_cache_free(&memory->staging_cache, comm);
  rs_notice_free(&memory->notice);
  *memory = (rs_once_memory){0};
}

/* --- Ranks that are processes ------------------------------------------------------------------------------------ */

/* Ranks that do not meet may fail one by one. Their streams may wait for ever for one that failed. */
static void end_after_error(reshard_comm comm) {
  char text[512];
  snprintf(text, sizeof text, "%s", reshard_last_error());
  (void)comm->ops->abort(comm);
  rs_error_set(text);
}

/* With a cached transfer. */
static reshard_status execute_cached(reshard_comm comm, const rs_once_call *call, reshard_status mine,
                                     size_t *workspace_bytes) {
  bool streams = comm->device->streams->asynchronous;
  if (mine == RESHARD_SUCCESS)
    mine = rs_cached_bind(call->cached, call->arrays, NULL, call->stream);
  if (!streams)
    mine = rs_agree_on(comm, mine, &call->request);
  RS_THEN(mine, reshard_execute(call->cached->transfer, call->stream));
  if (mine != RESHARD_SUCCESS && streams)
    end_after_error(comm);
  if (mine == RESHARD_SUCCESS)
    *workspace_bytes = call->cached->transfer->binding.info.workspace_bytes;
  return mine;
}

/* A path between processes with GPUs that reads others: hosts meet in each call, to tell if sources have moved. */
static bool shows_each_time(reshard_comm comm, const rs_path_ops *path) {
  return path != NULL && path->reads_others && comm->locals < comm->size && comm->device->streams->asynchronous;
}

/* Where ranks choose a path themselves they take the packed one instead. */
static bool shows_when_told(reshard_comm comm, reshard_path path) {
  return path != RESHARD_PATH_AUTO && shows_each_time(comm, rs_path_find(comm, path));
}

/* Keeps a transfer that reads storage of others. */
static void keep_reading(reshard_comm comm, rs_cached_transfer *cached) {
  reshard_transfer transfer = cached->transfer;
  cached->shown = 0; /* where the rank cannot tell, the next call binds it anew */
  (void)rs_sources_version(comm, transfer->plan, &transfer->binding.arrays, &cached->shown);
  rs_transfer_keep(transfer);
}

/* With a transfer that is made, or bound anew by all ranks, and cached or not. */
static reshard_status execute_new(reshard_comm comm, const rs_once_call *call, rs_once_memory *memory,
                                  size_t *workspace_bytes) {
  rs_cached_transfer own = {.transfer = NULL}, *cached = call->cached != NULL ? call->cached : &own;
  reshard_path path = call->request.path;
  reshard_status status;
  if (path == RESHARD_PATH_AUTO && shows_each_time(comm, rs_path_find(comm, path)))
    path = RESHARD_PATH_PACKED;
  if (cached->transfer != NULL && cached->transfer->path == &rs_mixed_path) /* its rounds are those of its arrays */
    rs_cached_drop(cached);
  if (cached->transfer != NULL)
    status = rs_cached_rebind(cached, call->arrays, call->stream);
  else
    status = rs_cached_create(cached, call->plan, comm, call->arrays, path, &memory->staging_cache, call->stream);
  if (status != RESHARD_SUCCESS) {
    rs_cached_free(cached);
    return status;
  }
  reshard_transfer transfer = cached->transfer;
  bool reads = shows_each_time(comm, transfer->path);
  bool kept = call->cached != NULL && (reads || transfer->path->packs);
  status = reshard_execute(transfer, call->stream);
  if (comm->locals < comm->size) { /* ranks that do not meet to execute may fail one by one */
    bool streams = transfer->on_streams;
    if (status == RESHARD_SUCCESS ||
        !streams) /* else the others would take what this rank tells them for what it has not given */
      status = rs_agree(comm, status);
    if (status == RESHARD_SUCCESS && kept && reads)
      keep_reading(comm, cached);
    if (status != RESHARD_SUCCESS && streams) /* streams may wait for ever for one that failed */
      (void)comm->ops->abort(comm);
  }
  if (status == RESHARD_SUCCESS)
    *workspace_bytes = transfer->binding.info.workspace_bytes;
  cached->packed = transfer->path == &rs_packed_path; /* also where another one was wished: from now on */
  if (status != RESHARD_SUCCESS || !kept)
    rs_cached_free(cached);
  return status;
}

/* *version: 1: the transfer is bound to these arrays, whose memory is what it was; 0: to others. */
static reshard_status compare_bound(reshard_comm comm, const rs_once_call *call, uint64_t *version) {
  rs_cached_transfer *cached = call->cached;
  uint64_t sources = 0;
  RS_TRY(rs_cached_compare(cached, call->arrays, call->stream));
  if (cached->bound)
    RS_TRY(rs_sources_version(comm, call->plan, &cached->transfer->binding.arrays, &sources));
  *version = sources != 0 && sources == cached->shown;
  return RESHARD_SUCCESS;
}

/* Processes with GPUs that read each other's arrays. They meet in each call, and bind its transfer anew where one has
 * other arrays than in its last. */
static reshard_status execute_shown(reshard_comm comm, const rs_once_call *call, reshard_status mine,
                                    rs_once_memory *memory, size_t *workspace_bytes) {
  bool cached = call->cached != NULL && call->cached->transfer != NULL;
  bool freed = false;
  rs_shown shown = {.freed = rs_offers_outdated(comm)};
  rs_request request = call->request;
  const rs_record *all;
  request.shown = &shown;
  if (mine == RESHARD_SUCCESS && cached)
    mine = compare_bound(comm, call, &shown.version);
  RS_TRY(rs_agree_shown(comm, mine, &request, &all));
  for (int64_t r = 0; r < comm->size; r++) {
    cached = cached && all[r].shown.version != 0;
    freed = freed || all[r].shown.freed;
  }
  if (!cached) /* ranks tell there what they have freed */
    return execute_new(comm, call, memory, workspace_bytes);
  reshard_transfer transfer = call->cached->transfer;
  reshard_status status = freed ? rs_offers_tell_freed(comm) : RESHARD_SUCCESS;
  RS_TRY(status);
  rs_transfer_unbind_freed(comm, transfer);
  if (comm->locals == 1) /* its last execute may be on another stream */
    status = rs_stream_wait(comm->device, call->stream, transfer->ended, RS_EDGE("execute after execute"));
  RS_THEN(status, reshard_execute(transfer, call->stream));
  if (status == RESHARD_SUCCESS)
    *workspace_bytes = call->cached->transfer->binding.info.workspace_bytes;
  else
    end_after_error(comm);
  return status;
}

/* --- Processes that reach each other's memory --------------------------------------------------------------------- */

/* The direct or the mixed path, unless a rank has private sources: the same on all. */
static bool reaches_processes(reshard_comm comm, const rs_once_call *call) {
  const rs_path_ops *path = rs_path_find(comm, call->request.path);
  return comm->imports != NULL && !comm->device->streams->asynchronous && path != NULL && path->reads_others;
}

/* Binds to this rank's arrays, and to those that others have shown so far. */
static reshard_status bind_mixed(rs_cached_transfer *cached, const rs_once_call *call) {
  bool changed;
  const rs_offer *const *offers = rs_reach_offers(cached->reach, &changed);
  cached->bound = cached->bound && !changed;
  return rs_cached_bind(cached, call->arrays, offers, call->stream);
}

/* All that a rank can do alone. It binds the transfer, too, where the last call with the plan took it. */
static reshard_status show_sources(reshard_comm comm, const rs_once_call *call, rs_cached_transfer *cached,
                                   rs_once_memory *memory, rs_shown *shown) {
  RS_TRY(rs_transfer_check_plan(comm, call->plan));
  if (cached->reach == NULL)
    RS_TRY(rs_reach_create(comm, call->plan, &cached->reach));
  RS_TRY(rs_reach_show(cached->reach, call->arrays, &memory->notice, shown));
  if (cached->packed)
    return rs_cached_bind(cached, call->arrays, NULL, call->stream);
  return cached->shown != 0 ? bind_mixed(cached, call) : RESHARD_SUCCESS;
}

static reshard_status take_sources(reshard_comm comm, rs_reach *reach, const rs_record *all) {
  for (int64_t r = 0; r < comm->size; r++)
    RS_TRY(rs_reach_take(reach, r, &all[r].shown));
  return RESHARD_SUCCESS;
}

/* One pass, between two meetings. A rank that fails there is heard of by all in the second one. */
static reshard_status copy_from_processes(reshard_comm comm, rs_reach *reach, const rs_record *all) {
  reshard_status status = take_sources(comm, reach, all);
  RS_THEN(status, rs_reach_run(reach));
  return rs_agree(comm, status);
}

static uint64_t hash_versions(reshard_comm comm, const rs_record *all) {
  uint64_t hash = 0;
  for (int64_t r = 0; r < comm->size; r++)
    hash = rs_hash(hash, &all[r].shown.version, sizeof all[r].shown.version);
  return hash | 1;
}

/* Ranks of several nodes: a transfer has the messages, and is bound to the sources that are shown in this call. Where
 * no rank shows others than in the last one, all are bound already. */
static reshard_status execute_mixed(reshard_comm comm, const rs_once_call *call, rs_cached_transfer *cached,
                                    rs_once_memory *memory, const rs_record *all, size_t *workspace_bytes) {
  uint64_t versions = hash_versions(comm, all);
  reshard_status status = RESHARD_SUCCESS;
  if (cached->transfer != NULL && cached->transfer->path != &rs_mixed_path)
    rs_cached_drop(cached);
  if (cached->transfer == NULL)
    return execute_new(comm, call, memory, workspace_bytes);
  if (versions != cached->shown) {
    status = take_sources(comm, cached->reach, all);
    RS_THEN(status, bind_mixed(cached, call));
    status = rs_agree(comm, status);
    cached->shown = status == RESHARD_SUCCESS ? versions : 0;
  }
  RS_THEN(status, reshard_execute(cached->transfer, call->stream));
  if (status == RESHARD_SUCCESS)
    *workspace_bytes = cached->transfer->binding.info.workspace_bytes;
  return status;
}

/* A rank has private sources: all take a transfer. */
static reshard_status execute_packed(reshard_comm comm, const rs_once_call *call, rs_cached_transfer *cached,
                                     rs_once_memory *memory, size_t *workspace_bytes) {
  reshard_status status = RESHARD_SUCCESS;
  bool bound = cached->packed;
  if (!bound && comm->elsewhere) /* it is a mixed one */
    rs_cached_drop(cached);
  cached->packed = call->cached != NULL;
  if (cached->transfer == NULL)
    return execute_new(comm, call, memory, workspace_bytes);
  if (!bound)
    status = rs_agree(comm, rs_cached_bind(cached, call->arrays, NULL, call->stream));
  RS_THEN(status, reshard_execute(cached->transfer, call->stream));
  if (status == RESHARD_SUCCESS)
    *workspace_bytes = cached->transfer->binding.info.workspace_bytes;
  return status;
}

static reshard_status execute_reaching(reshard_comm comm, const rs_once_call *call, reshard_status mine,
                                       rs_once_memory *memory, size_t *workspace_bytes) {
  rs_cached_transfer own = {.transfer = NULL}, *cached = call->cached != NULL ? call->cached : &own;
  rs_shown shown = {.private_entry = -1};
  rs_request request = call->request;
  const rs_record *all;
  int64_t rank = 0;
  request.shown = &shown;
  if (mine == RESHARD_SUCCESS)
    mine = show_sources(comm, call, cached, memory, &shown);
  reshard_status status = rs_agree_shown(comm, mine, &request, &all);
  while (status == RESHARD_SUCCESS && rank < comm->size && all[rank].shown.private_entry < 0)
    rank++;
  if (status == RESHARD_SUCCESS && rank == comm->size) {
    cached->packed = false;
    status = comm->elsewhere ? execute_mixed(comm, call, cached, memory, all, workspace_bytes)
                             : copy_from_processes(comm, cached->reach, all);
  } else if (status == RESHARD_SUCCESS && call->request.path != RESHARD_PATH_AUTO) {
    status = rs_sources_error_private(comm, call->plan, rank, all[rank].shown.private_entry, false);
  } else if (status == RESHARD_SUCCESS) {
    status = execute_packed(comm, call, cached, memory, workspace_bytes);
  }
  rs_cached_free(&own);
  return status;
}

/* --- All --------------------------------------------------------------------------------------------------------- */

static reshard_status execute_call(reshard_comm comm, const rs_once_call *call, reshard_status mine,
                                   rs_once_memory *memory, size_t *workspace_bytes) {
  bool cached = call->cached != NULL && call->cached->transfer != NULL, done = false;
  bool left = cached && call->cached->packed; /* a GPU did not reach an array: all ranks pack */
  bool direct = !left && rs_path_find(comm, call->request.path) == &rs_direct_path;
  *workspace_bytes = 0;
  if (comm->locals == comm->size) {
    RS_TRY(rs_once_together(comm, call, direct, &mine, memory, &done));
    if (done && !direct)
      *workspace_bytes = call->cached->transfer->binding.info.workspace_bytes;
    if (done)
      return RESHARD_SUCCESS;
  } else if (reaches_processes(comm, call)) {
    return execute_reaching(comm, call, mine, memory, workspace_bytes);
  } else if (shows_when_told(comm, call->request.path)) {
    return execute_shown(comm, call, mine, memory, workspace_bytes);
  } else if (cached || (mine != RESHARD_SUCCESS && call->unsure)) {
    return execute_cached(comm, call, mine, workspace_bytes);
  }
  RS_TRY(rs_agree_on(comm, mine, &call->request));
  return execute_new(comm, call, memory, workspace_bytes);
}

reshard_status rs_once_begin(const char *call, reshard_comm comm, reshard_path path, void *stream,
                             reshard_status *mine) {
  bool captured = false, told = shows_when_told(comm, path);
  *mine = comm->device->streams->capturing(comm->device, stream, &captured);
  if (*mine == RESHARD_SUCCESS && captured)
    *mine = rs_error(RESHARD_ERROR_INVALID, "%s: stream %p is being captured; only executes of transfers can be", call,
                     stream);
  return captured && comm->locals == 1 && !told ? *mine : RESHARD_SUCCESS;
}

reshard_status rs_execute_once(reshard_comm comm, const rs_once_call *call, reshard_status mine, rs_once_memory *memory,
                               size_t *workspace_bytes) {
  if (mine == RESHARD_SUCCESS)
    mine = rs_stream_check(comm->device, call->stream, "execute");
  reshard_status status = execute_call(comm, call, mine, memory, workspace_bytes);
  if (call->cached != NULL)
    rs_cached_return(call->cached);
  return status;
}

reshard_status rs_execute_local(reshard_plan plan, reshard_comm comm, const reshard_arrays *arrays,
                                rs_once_memory *memory, void *stream) {
  rs_device *device = comm->device;
  rs_arrays own;
  if (plan->info.received_bytes > 0)
    return rs_error(RESHARD_ERROR_INVALID, "rank %lld lacks %lld bytes, which others have", (long long)plan->rank,
                    (long long)plan->info.received_bytes);
  RS_TRY(rs_stream_check(device, stream, "execute"));
  RS_TRY(rs_arrays_borrow(plan, arrays, &memory->extents, &own));
  RS_TRY(rs_arrays_look_up(comm, plan, &memory->extents, false, &own));
  rs_copies_clear(&memory->copies);
  RS_TRY(rs_pull_own(plan, &own, &memory->copies));
  RS_TRY(device->work->recompile(device, &memory->copies, memory->copies.bytes, &memory->own));
  return device->work->run(device, 1, &memory->own, stream);
}
