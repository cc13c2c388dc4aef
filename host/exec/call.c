/* A transfer that is executed once costs more to make than to execute: ranks compare records, publish addresses, agree,
 * compile, and execute, and meet for each. So it is cached, and only bound to other arrays, by each rank alone.
 *
 * A rank does alone what it can, and brings one record. One verdict follows from the records of all, the same on all
 * ranks: an error; what is bound runs; the transfer is made, or bound to the sources of all; or all pack, since a rank
 * has a source that others cannot map. No rank changes its way alone.
 *
 * Ranks of one process that reach each other's memory need no transfer: the rank that acts for all sees all arrays,
 * lists the copies to each rank, compiles and runs them inside of one meeting (combine.c). Where that is not as usual
 * they go on as processes do. Processes that map each other's memory make it without a meeting: they meet before the
 * copies and after them. With GPUs on an explicit path that reads others they meet once, to tell if arrays have moved.
 * Over NCCL, and for messages between GPUs, hosts do not meet once a transfer is made. */
#include "exec/call.h"

#include "device/stream.h"

#include <stdlib.h>
#include <string.h>

void rs_request_memory_free(rs_request_memory *memory, reshard_comm comm) {
  rs_fork_join_destroy(&memory->fork_join);
  rs_request_free_lanes(memory);
  free(memory->extents.at);
  rs_copies_free(&memory->copies);
  comm->device->work->release(comm->device, memory->own);
  rs_staging_cache_free(&memory->staging_cache, comm);
  rs_publication_free(&memory->publication);
  *memory = (rs_request_memory){0};
}

/* --- A call ------------------------------------------------------------------------------------------------------- */

/* Memory of each other that ranks which are processes read in a call; the same on all. */
typedef enum call_reads { READS_NOTHING, READS_SEGMENTS, READS_GPUS } call_reads;

/* One rank's call. */
typedef struct sharded_call {
  reshard_comm comm;
  const rs_request *given;
  rs_request_memory *memory;
  rs_cached_transfer *cached, own; /* own: where nothing is cached */
  call_reads reads;
  bool threads, streams;  /* all ranks are in this process; the device has streams */
  bool made;              /* a transfer is cached: on all ranks or on none */
  rs_published published; /* to the others */
  int64_t private_entry;  /* as in rs_record */
  bool moved;             /* as in rs_record: what follows from the verdict is the same on all ranks */
  const rs_record *all;   /* everybody's record; NULL: hosts have not met */
  size_t workspace_bytes;
} sharded_call;

/* A path between processes with GPUs that reads others: hosts meet in each call, to tell if sources have moved. */
static bool reads_gpus(reshard_comm comm, const rs_path_ops *path) {
  return path != NULL && path->reads_others && comm->locals < comm->size && comm->device->streams->asynchronous;
}

/* Where ranks choose a path themselves they take the packed one instead. */
static bool reads_gpus_if_explicit(reshard_comm comm, reshard_path path) {
  return path != RESHARD_PATH_AUTO && reads_gpus(comm, rs_path_find(comm, path));
}

static call_reads find_reads(reshard_comm comm, reshard_path asked) {
  const rs_path_ops *path = rs_path_find(comm, asked);
  if (comm->memory.imports != NULL && !comm->device->streams->asynchronous && path != NULL && path->reads_others)
    return READS_SEGMENTS;
  return reads_gpus_if_explicit(comm, asked) ? READS_GPUS : READS_NOTHING;
}

/* --- Before the meeting ------------------------------------------------------------------------------------------- */

/* Binds to this rank's arrays, and to those that others have published so far. */
static reshard_status bind_mixed(sharded_call *x) {
  bool changed;
  const rs_descriptor *const *descriptors = rs_mapped_sources_all(x->cached->mapped, &changed);
  x->cached->transfer->bound = x->cached->transfer->bound && !changed;
  return rs_cached_bind(x->cached, x->given->arrays, descriptors, x->given->stream);
}

/* It binds the transfer, too, where the last call with the plan took it. */
static reshard_status show_sources(sharded_call *x) {
  rs_cached_transfer *cached = x->cached;
  RS_TRY(rs_transfer_check_plan(x->comm, x->given->plan));
  if (cached->mapped == NULL)
    RS_TRY(rs_mapped_sources_create(x->comm, x->given->plan, &cached->mapped));
  RS_TRY(rs_mapped_sources_publish(cached->mapped, x->given->arrays, &x->memory->publication, &x->published,
                                   &x->private_entry));
  x->moved = x->comm->memory.multi_node && (cached->published == 0 || x->published.version != cached->published);
  if (cached->packed)
    return rs_cached_bind(cached, x->given->arrays, NULL, x->given->stream);
  return cached->published != 0 ? bind_mixed(x) : RESHARD_SUCCESS;
}

/* Looks if the transfer is bound to these arrays, whose memory is what it was. */
static reshard_status compare_bound(sharded_call *x) {
  uint64_t sources = 0;
  RS_TRY(rs_cached_compare(x->cached, x->given->arrays, x->given->stream));
  if (x->cached->transfer->bound)
    RS_TRY(rs_sources_version(x->comm, x->given->plan, &x->cached->transfer->binding.arrays, &sources));
  x->moved = sources == 0 || sources != x->cached->published;
  return RESHARD_SUCCESS;
}

/* All that a rank can do alone. */
static reshard_status prepare_call(sharded_call *x) {
  switch (x->reads) {
  case READS_SEGMENTS: return show_sources(x);
  case READS_GPUS: return x->made ? compare_bound(x) : RESHARD_SUCCESS;
  default:
    return x->made && !x->threads ? rs_cached_bind(x->cached, x->given->arrays, NULL, x->given->stream)
                                  : RESHARD_SUCCESS;
  }
}

/* --- The meeting -------------------------------------------------------------------------------------------------- */

/* Hosts need not meet where streams wait for each other's messages alone, once all ranks have the transfer. */
static bool hosts_meet(const sharded_call *x) {
  return x->threads || !x->streams || x->reads != READS_NOTHING || !x->given->terms.cached;
}

static reshard_status meet_hosts(sharded_call *x, reshard_status mine) {
  rs_request_terms terms = x->given->terms;
  if (!hosts_meet(x))
    return mine == RESHARD_SUCCESS ? mine : rs_comm_end_after_error(x->comm, mine);
  terms.published = &x->published;
  terms.private_entry = x->private_entry;
  terms.moved = x->moved;
  return rs_agree_on(x->comm, mine, &terms, &x->all);
}

/* --- After it ----------------------------------------------------------------------------------------------------- */

static reshard_status execute_bound(sharded_call *x) {
  RS_TRY(reshard_execute(x->cached->transfer, x->given->stream));
  x->workspace_bytes = x->cached->transfer->binding.info.workspace_bytes;
  return RESHARD_SUCCESS;
}

/* Keeps a transfer that reads storage of others. */
static void keep_reading(sharded_call *x) {
  reshard_transfer transfer = x->cached->transfer;
  x->cached->published = 0; /* where the rank cannot tell, the next call binds it anew */
  (void)rs_sources_version(x->comm, transfer->plan, &transfer->binding.arrays, &x->cached->published);
  rs_transfer_persist(transfer);
}

/* Collective: makes the transfer, or binds it anew. */
static reshard_status make_transfer(sharded_call *x) {
  const rs_request *given = x->given;
  rs_cached_transfer *cached = x->cached;
  reshard_path path = given->terms.path;
  if (path == RESHARD_PATH_AUTO && reads_gpus(x->comm, rs_path_find(x->comm, path)))
    path = RESHARD_PATH_PACKED;
  if (cached->transfer != NULL && cached->transfer->path == &rs_mixed_path) /* its rounds are those of its arrays */
    rs_cached_drop(cached);
  return cached->transfer != NULL ? rs_cached_rebind(cached, given->arrays, given->stream)
                                  : rs_cached_create(cached, given->plan, x->comm, given->arrays, path,
                                                     &x->memory->staging_cache, given->stream);
}

static reshard_status execute_made(sharded_call *x) {
  rs_cached_transfer *cached = x->cached;
  RS_TRY_OR(make_transfer(x), rs_cached_free(cached));
  reshard_transfer transfer = cached->transfer;
  bool reads = reads_gpus(x->comm, transfer->path);
  bool kept = x->given->cached != NULL && (reads || transfer->path->packs);
  reshard_status status = execute_bound(x);
  if (!x->threads) {                              /* ranks that do not meet to execute may fail one by one */
    if (status == RESHARD_SUCCESS || !x->streams) /* else the others would take it for what it has not given */
      status = rs_agree(x->comm, status);
    if (status == RESHARD_SUCCESS && kept && reads)
      keep_reading(x);
    if (status != RESHARD_SUCCESS && x->streams) /* streams may wait for ever for one that failed */
      (void)x->comm->ops->end(x->comm, RS_END_ABORT);
  }
  cached->packed = transfer->path == &rs_packed_path; /* also where another one was asked for: from now on */
  if (status != RESHARD_SUCCESS || !kept)
    rs_cached_free(cached);
  return status;
}

/* Closes what others have freed, and lets the stream wait for the last execute, which may be on another one. */
static reshard_status close_freed(sharded_call *x) {
  bool freed = false;
  for (int64_t r = 0; r < x->comm->size; r++)
    freed = freed || x->all[r].published.freed;
  if (freed)
    RS_TRY(rs_descriptors_publish_freed(x->comm));
  rs_transfer_unbind_freed(x->comm, x->cached->transfer);
  return RESHARD_SUCCESS;
}

static reshard_status execute_again(sharded_call *x) {
  reshard_status status = RESHARD_SUCCESS;
  if (x->reads == READS_GPUS) {
    RS_TRY(close_freed(x));
    status = rs_stream_wait(x->comm->device, x->given->stream, x->cached->transfer->streams.ended,
                            RS_EDGE("execute after execute"));
  }
  RS_THEN(status, execute_bound(x));
  return status != RESHARD_SUCCESS && x->streams ? rs_comm_end_after_error(x->comm, status) : status;
}

/* --- Processes that map each other's memory ----------------------------------------------------------------------- */

static reshard_status take_sources(sharded_call *x, rs_partners with) {
  for (int64_t i = 0; i < with.n; i++)
    RS_TRY(rs_mapped_sources_take(x->cached->mapped, &with.at[i], &x->all[with.at[i].rank].published));
  return RESHARD_SUCCESS;
}

/* One pass, between two meetings. A rank that fails there is heard of by all in the second one. */
static reshard_status execute_direct(sharded_call *x) {
  const rs_partners with = {x->given->plan->peers.at, x->given->plan->peers.n};
  reshard_status status = rs_files_pass(x->comm, with);
  RS_THEN(status, take_sources(x, with));
  RS_THEN(status, rs_cached_bind_direct(x->cached, x->comm, x->given->plan));
  if (status == RESHARD_SUCCESS)
    status = reshard_execute(x->cached->direct, x->given->stream);
  else if (status != RESHARD_ERROR_TIMEOUT) /* which has ended the communicator */
    status = rs_agree(x->comm, status);
  rs_files_settle(x->comm, status == RESHARD_SUCCESS);
  return status;
}

/* Ranks of several nodes: a transfer has the messages, and is bound to the sources that are published in this call. */
static reshard_status rebind_mixed(sharded_call *x) {
  reshard_status status = take_sources(x, rs_transfer_partners(x->cached->transfer));
  RS_THEN(status, bind_mixed(x));
  status = rs_agree(x->comm, status);
  x->cached->published = status == RESHARD_SUCCESS ? x->published.version : 0;
  return status;
}

/* --- All ---------------------------------------------------------------------------------------------------------- */

/* Steps of a rank after the meeting, the same on all: a transfer is made or bound, and runs. */
static reshard_status follow_verdict(sharded_call *x, rs_verdict verdict) {
  rs_cached_transfer *cached = x->cached;
  bool segments = x->reads == READS_SEGMENTS, packs = verdict == RS_VERDICT_PACK, bound = cached->packed;
  reshard_status status = RESHARD_SUCCESS;
  if (segments && !packs && !x->comm->memory.multi_node) {
    cached->packed = false;
    return execute_direct(x);
  }
  if (segments && cached->transfer != NULL && (cached->transfer->path == &rs_packed_path) != packs)
    rs_cached_drop(cached);
  if (segments)
    cached->packed = packs && x->given->cached != NULL;
  if (cached->transfer == NULL || (verdict == RS_VERDICT_REBIND && !segments))
    return execute_made(x);
  if (packs && !bound)
    status = rs_agree(x->comm, rs_cached_bind(cached, x->given->arrays, NULL, x->given->stream));
  else if (verdict == RS_VERDICT_REBIND)
    status = rebind_mixed(x);
  return status == RESHARD_SUCCESS ? execute_again(x) : status;
}

static reshard_status execute_processes(sharded_call *x, reshard_status mine) {
  int64_t rank = 0;
  RS_THEN(mine, prepare_call(x));
  RS_TRY(meet_hosts(x, mine));
  return follow_verdict(x, x->all == NULL ? RS_VERDICT_RUN : rs_records_judge(x->comm->size, x->all, &rank));
}

static reshard_status execute_call(sharded_call *x, reshard_status mine) {
  bool left = x->made && x->cached->packed; /* a GPU did not reach an array: all ranks pack */
  bool direct = !left && rs_path_find(x->comm, x->given->terms.path) == &rs_direct_path, done = false;
  if (x->threads)
    RS_TRY(rs_request_combine(x->comm, x->given, direct, &mine, x->memory, &done));
  if (done && !direct)
    x->workspace_bytes = x->cached->transfer->binding.info.workspace_bytes;
  return done ? RESHARD_SUCCESS : execute_processes(x, mine);
}

reshard_status rs_request_begin(const char *call, reshard_comm comm, reshard_path path, void *stream,
                                reshard_status *mine) {
  if (rs_comm_is_forked(comm))
    return *mine = rs_comm_alive(comm);
  bool captured = false, explicit = reads_gpus_if_explicit(comm, path);
  *mine = comm->device->streams->capturing(comm->device, stream, &captured);
  if (*mine == RESHARD_SUCCESS && captured)
    *mine = rs_error(RESHARD_ERROR_INVALID, "%s: stream %p is being captured; only executes of transfers can be", call,
                     stream);
  return captured && comm->locals == 1 && !explicit ? *mine : RESHARD_SUCCESS;
}

reshard_status rs_request_execute(reshard_comm comm, const rs_request *request, reshard_status mine,
                                  rs_request_memory *memory, size_t *workspace_bytes) {
  sharded_call x = {.comm = comm, .given = request, .memory = memory, .private_entry = -1};
  x.cached = request->cached != NULL ? request->cached : &x.own;
  x.reads = find_reads(comm, request->terms.path);
  x.threads = comm->locals == comm->size;
  x.streams = comm->device->streams->asynchronous;
  x.made = x.cached->transfer != NULL;
  x.moved = x.threads || !x.made;
  x.published.freed = x.reads == READS_GPUS && rs_descriptors_outdated(comm);
  RS_THEN(mine, rs_stream_check(comm->device, request->stream, "execute"));
  reshard_status status = execute_call(&x, mine);
  *workspace_bytes = status == RESHARD_SUCCESS ? x.workspace_bytes : 0;
  if (request->cached != NULL)
    rs_call_staging_return(&request->cached->staging);
  else
    rs_cached_free(&x.own);
  return status;
}

reshard_status rs_execute_local(reshard_plan plan, reshard_comm comm, const reshard_arrays *arrays,
                                rs_request_memory *memory, void *stream) {
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
