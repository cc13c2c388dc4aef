/* Making and ending NCCL communicators: around one that the caller has, or one of our own, which is non-blocking so
 * that deadlines hold. */
#include "comm/nccl/end.h"

#include "comm/nccl/node.h"
#include "comm/nccl/records.h"
#include "device/cuda/cuda.h"
#include "device/environment.h"
#include "device/plain.h"
#include "device/stream.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOMENT_MS = 250 }; /* of a wait that begins where the deadline of its creation ends */

/* --- State of a rank beside the ncclComm_t ----------------------------------------------------------------------- */

static reshard_status make_buffers(rs_nccl *c) {
  rs_device *device = c->base.device;
  size_t all = (size_t)c->base.size * sizeof(rs_nccl_record);
  RS_TRY(rs_stream_create_urgent(device, &c->stream));
  RS_TRY(device->streams->event_create(device, &c->gathered));
  RS_TRY(device->memory->host_alloc(device, sizeof(rs_nccl_record), (void **)&c->mine));
  RS_TRY(device->memory->host_alloc(device, all, (void **)&c->all));
  RS_TRY(rs_device_alloc_open(device, sizeof(rs_nccl_record), (void **)&c->device_mine));
  RS_TRY(rs_device_alloc_open(device, all, (void **)&c->device_all));
  RS_TRY(rs_alloc_zero(&c->split, 1, sizeof *c->split));
  if (c->presence == NULL)
    RS_TRY(rs_presence_make(c->base.size, c->base.rank, &c->presence));
  return rs_alloc(&c->packed, c->base.size, RS_COMM_RECORD);
}

/* This may be a part of the caller's communicator. What NCCL was handed there stays its own, also when the caller has
 * aborted it: nobody can ask by then. */
bool rs_nccl_stuck(const rs_nccl *c) {
  bool done = true;
  for (const rs_nccl *from = c; from != NULL && done; from = from->parent) {
    rs_device *device = from->base.device;
    if (!from->base.borrowed || !from->ended || from->gathered == NULL)
      continue;
    if (from->handed || device->streams->event_done(device, from->gathered, &done) != RESHARD_SUCCESS)
      done = false;
  }
  return !done;
}

/* Frees nothing of ours while a kernel may still write to it. Kernels of our own communicator have ended with it. On a
 * caller's communicator one may wait for a peer, as one of a transfer that stays does. Then streams and memory stay:
 * freeing them would wait for the GPU. */
static void free_buffers(rs_nccl *c) {
  rs_device *device = c->base.device;
  bool idle = !(c->base.borrowed && c->base.life.deferred != NULL) && !rs_nccl_stuck(c);
  rs_nccl_close_node(c, idle);
  if (idle && c->stream != NULL)
    (void)device->streams->synchronize(device, c->stream);
  if (idle) {
    rs_device_free(device, c->device_all);
    rs_device_free(device, c->device_mine);
    device->memory->host_free(device, c->all);
    device->memory->host_free(device, c->mine);
    device->streams->event_destroy(device, c->gathered);
    c->gathered = NULL; /* a part may ask after it */
    device->streams->destroy(device, c->stream);
  }
  free(c->packed);
}

/* NCCL's end waits for all ranks, up to the deadline. The GPU is the current one. */
static void end_nccl(rs_nccl *c) {
  pthread_mutex_lock(&c->mutex);
  c->closing = true;
  bool ended = c->ended && !c->base.borrowed;
  ncclComm_t left = ended ? c->nccl : NULL; /* by a revocation, or a shrink */
  if (ended)
    c->nccl = NULL;
  bool there = !c->base.borrowed && c->nccl != NULL;
  ncclResult_t result = there ? c->api.ncclCommFinalize(c->nccl) : ncclSuccess;
  pthread_mutex_unlock(&c->mutex);
  if (left != NULL)
    (void)c->api.ncclCommAbort(left);
  if (!there)
    return;
  if (rs_nccl_settle(c, result, "ncclCommFinalize") != RESHARD_SUCCESS) {
    rs_nccl_end(c); /* aborts it, where the deadline has not done so */
    return;
  }
  pthread_mutex_lock(&c->mutex);
  ncclComm_t nccl = c->nccl; /* NULL: an abort of the communicator that it was split from has come first */
  c->nccl = NULL;
  pthread_mutex_unlock(&c->mutex);
  if (nccl != NULL)
    (void)c->api.ncclCommDestroy(nccl);
}

static void release_comm(rs_nccl *c);

static void leave_parent(rs_nccl *c) {
  rs_nccl *parent = c->parent;
  pthread_mutex_lock(&parent->mutex);
  rs_nccl **link = &parent->children;
  while (*link != c)
    link = &(*link)->next;
  *link = c->next;
  pthread_mutex_unlock(&parent->mutex);
  release_comm(parent);
}

/* Frees the communicator of a split that was given up. A split of the caller's communicator may still be under way. */
static void free_split(rs_nccl *c) {
  ncclComm_t made = c->split != NULL ? *c->split : NULL;
  rs_nccl_abort(c, made);
  if (made != NULL || !c->base.borrowed || !c->splitting)
    free(c->split);
}

static void release_comm(rs_nccl *c) {
  pthread_mutex_lock(&c->mutex);
  bool last = --c->users == 0;
  pthread_mutex_unlock(&c->mutex);
  if (!last)
    return;
  if (c->parent != NULL)
    leave_parent(c); /* waits for an abort from there */
  free_split(c);
  rs_board_leave(&c->base);
  rs_presence_destroy(c->presence);
  reshard_device_release(c->handle);
  pthread_mutex_destroy(&c->mutex);
  free(c->base.global_ranks);
  free(c);
}

/* Every rank ends it here, also where it lives on for children that other ranks do not have. */
void rs_nccl_close(rs_nccl *c) {
  rs_cuda_before before = rs_cuda_try_enter(c->base.device);
  end_nccl(c);
  rs_cuda_leave(before);
  free_buffers(c);
  release_comm(c);
}

/* An all-gather sends each message once where a group sends it to every peer, and a broadcast takes the links in turn.
 * An all-to-all of NCCL is a group of sends and receives inside, and so brings nothing. Not measured between GPUs. */
static void set_fits(rs_nccl *c) {
  rs_fit *fit = c->base.messages.fit;
  fit[RESHARD_COLLECTIVE_ALL_GATHER] = fit[RESHARD_COLLECTIVE_BROADCAST] = RS_FIT_FASTER;
  fit[RESHARD_COLLECTIVE_ALL_TO_ALL] = c->api.ncclAlltoAll != NULL ? RS_FIT_SLOWER : RS_FIT_NONE;
}

reshard_status rs_nccl_create(const rs_nccl_api *api, ncclComm_t nccl, bool borrowed, reshard_device device,
                              int64_t timeout_ms, rs_presence *presence, rs_nccl **out) {
  int size = 0, rank = 0, index = 0;
  ncclResult_t result = api->ncclCommCount(nccl, &size);
  if (result == ncclSuccess)
    result = api->ncclCommUserRank(nccl, &rank);
  if (result == ncclSuccess)
    result = api->ncclCommCuDevice(nccl, &index);
  if (result != ncclSuccess)
    return rs_nccl_error(api, nccl, result, "asking the communicator");
  if (device != NULL && (device->device->type != RESHARD_DEVICE_CUDA || device->device->index != index))
    return rs_error(RESHARD_ERROR_INVALID, "the communicator is on cuda:%d, the device given is %s:%d", index,
                    device->device->name, device->device->index);
  rs_nccl *c;
  RS_TRY(rs_alloc_zero(&c, 1, sizeof *c));
  pthread_mutex_init(&c->mutex, NULL);
  c->users = 1;
  c->api = *api;
  c->nccl = nccl;
  c->spin_ns = RS_NCCL_SPIN_NS;
  c->process = rs_process_hash();
  c->presence = presence;
  char name[32];
  snprintf(name, sizeof name, "cuda:%d", index);
  reshard_status status = RESHARD_SUCCESS;
  if (device != NULL)
    c->handle = reshard_device_retain(device);
  else
    status = reshard_device_create(name, NULL, &c->handle);
  if (status == RESHARD_SUCCESS) {
    rs_comm_init(&c->base, &rs_nccl_ops, rank, size);
    c->base.device = c->handle->device;
    c->base.timeout_ms = timeout_ms;
    c->base.borrowed = borrowed;
    set_fits(c);
    status = rs_board_join(&c->base, NULL);
  }
  RS_THEN(status, make_buffers(c));
  if (status != RESHARD_SUCCESS) {
    c->nccl = NULL; /* the caller's to end */
    if (presence != NULL)
      c->presence = NULL;
    if (c->handle == NULL)
      free(c);
    else
      rs_nccl_close(c);
    return status;
  }
  *out = c;
  return RESHARD_SUCCESS;
}

/* --- Public ------------------------------------------------------------------------------------------------------ */

static reshard_status read_environment(const char *call, int64_t *timeout_ms, int64_t *number) {
  if (*timeout_ms < 0)
    return rs_error(RESHARD_ERROR_INVALID, "%s: timeout of %lld ms", call, (long long)*timeout_ms);
  *number = 0;
  RS_TRY(rs_environment_number("RESHARD_NODE", number));
  return *timeout_ms == 0 ? rs_environment_number("RESHARD_TIMEOUT_MS", timeout_ms) : RESHARD_SUCCESS;
}

reshard_status reshard_comm_from_nccl_library(void *nccl_comm, void (*get_version)(void), reshard_device device,
                                              int64_t timeout_ms, reshard_comm *comm) {
  RS_TRY(RS_GIVEN("reshard_comm_from_nccl", nccl_comm, comm));
  int64_t number;
  RS_HOLD_CANCEL;
  RS_TRY(read_environment("reshard_comm_from_nccl", &timeout_ms, &number));
  rs_nccl_api api;
  RS_TRY(rs_nccl_load(get_version, &api));
  rs_nccl *made;
  RS_TRY(rs_nccl_create(&api, nccl_comm, true, device, timeout_ms, NULL, &made));
  made->base.process.node = number;
  *comm = &made->base;
  return RESHARD_SUCCESS;
}

reshard_status reshard_comm_from_nccl(void *nccl_comm, reshard_device device, int64_t timeout_ms, reshard_comm *comm) {
  return reshard_comm_from_nccl_library(nccl_comm, NULL, device, timeout_ms, comm);
}

reshard_status reshard_nccl_unique_id(void *id) {
  _Static_assert(sizeof(ncclUniqueId) == RESHARD_NCCL_ID_BYTES, "as the public header says");
  if (id == NULL)
    return rs_error(RESHARD_ERROR_INVALID, "reshard_nccl_unique_id: id is NULL");
  rs_nccl_api api;
  RS_TRY(rs_nccl_load(NULL, &api));
  ncclUniqueId made;
  ncclResult_t result = api.ncclGetUniqueId(&made);
  if (result != ncclSuccess)
    return rs_nccl_error(&api, NULL, result, "ncclGetUniqueId");
  memcpy(id, &made, sizeof made);
  return RESHARD_SUCCESS;
}

/* --- An own communicator ------------------------------------------------------------------------------------------ */

/* One rank's part of a creation, which has one deadline. */
typedef struct nccl_creation {
  int64_t n, rank, timeout_ms, since;
  reshard_device device;
  rs_presence *presence; /* of the ranks of this node that have come; NULL once the communicator has it */
} nccl_creation;

static reshard_status error_creation(const nccl_creation *o, reshard_status status, const char *text) {
  return rs_error(status, "reshard_comm_create_nccl: rank %lld of %lld: %s", (long long)o->rank, (long long)o->n, text);
}

/* Time that a wait has when it begins near the deadline, or after it: ranks that came just in time have come. */
static int64_t moment_ms(const nccl_creation *o) {
  return o->timeout_ms > 0 ? rs_max(rs_min(o->timeout_ms / 4, MOMENT_MS), 1) : MOMENT_MS;
}

/* Gives up with the thread's last error. The ranks of a node that do so say the same: what the first has found. */
static reshard_status give_up(const nccl_creation *o, reshard_status status) {
  char missing[RS_PRESENCE_TEXT];
  rs_presence_text(o->presence, 0, NULL, missing);
  status = rs_error(status, "%s%s%s", reshard_last_error(), missing[0] != '\0' ? "; missing: " : "", missing);
  const char *reason = rs_presence_conclude(o->presence, status, reshard_last_error());
  if (reason != NULL)
    status = rs_error(rs_presence_status(o->presence), "%.*s", RS_PRESENCE_REASON, reason);
  return error_creation(o, status, reshard_last_error());
}

/* The other ranks may be late or never come: this waits for them until the deadline, or until one of them gives up. */
static reshard_status await_nccl(const nccl_creation *o, const rs_nccl_api *api, ncclComm_t nccl, ncclResult_t *state) {
  for (int64_t looked = o->since; *state == ncclInProgress; rs_nccl_pause(o->since, RS_NCCL_SPIN_NS)) {
    ncclResult_t result = api->ncclCommGetAsyncError(nccl, state);
    if (result != ncclSuccess)
      *state = result;
    if (*state != ncclInProgress)
      break;
    if (rs_presence_reason(o->presence) != NULL || rs_late(o->since, o->timeout_ms)) {
      rs_presence_ask(o->presence, moment_ms(o));
      return give_up(o, rs_error(RESHARD_ERROR_TIMEOUT, "not all ranks came within %lld ms", (long long)o->timeout_ms));
    }
    rs_presence_wait(o->presence);
    if (rs_now_ns() - looked < RS_NCCL_LOOK_NS)
      continue;
    looked = rs_now_ns();
    rs_presence_hold(o->presence);
  }
  return RESHARD_SUCCESS;
}

/* An error of NCCL that may come from other ranks names those that are lost, on all ranks of the node. */
static reshard_status error_nccl(const nccl_creation *o, const rs_nccl_api *api, ncclComm_t nccl, ncclResult_t state) {
  int64_t one;
  reshard_status status = rs_nccl_error(api, nccl, state, "ncclCommInitRankConfig");
  if (state != ncclRemoteError && state != ncclSystemError && state != ncclInternalError)
    return status;
  rs_presence_ask(o->presence, moment_ms(o)); /* a connection closes before its process has ended */
  bool lost = rs_presence_reason(o->presence) != NULL || rs_presence_absent(o->presence, 0, NULL, 1, &one) > 0;
  return lost ? give_up(o, RESHARD_ERROR_PEER) : status;
}

static reshard_status create_nccl(const nccl_creation *o, const rs_nccl_api *api, const void *id, ncclComm_t *out) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  ncclUniqueId name;
  ncclComm_t nccl = NULL;
  config.blocking = 0;
  memcpy(&name, id, sizeof name);
  rs_presence_come(o->presence, RS_PRESENCE_STEP, 0);
  ncclResult_t result = api->ncclCommInitRankConfig(&nccl, (int)o->n, name, (int)o->rank, &config);
  ncclResult_t state = result != ncclSuccess && result != ncclInProgress ? result : ncclInProgress;
  reshard_status status = await_nccl(o, api, nccl, &state);
  if (status == RESHARD_SUCCESS && state != ncclSuccess)
    status = error_nccl(o, api, nccl, state);
  rs_presence_pass(o->presence);
  if (status == RESHARD_SUCCESS)
    *out = nccl;
  else
    rs_presence_leave(o->presence); /* before the others hear of it by NCCL */
  if (status != RESHARD_SUCCESS && nccl != NULL)
    (void)api->ncclCommAbort(nccl);
  return status;
}

/* The ranks learn of each other, so that an error of any call names those that are missing. All waits in it end at the
 * deadline of the creation. */
static reshard_status meet_first(const nccl_creation *o, rs_nccl *c) {
  const void *all;
  int64_t early_ms = o->timeout_ms - moment_ms(o);
  c->since = rs_late(o->since, early_ms) ? rs_now_ns() - early_ms * 1000000 : o->since;
  reshard_status status = rs_nccl_allgather(&c->base, "", 1, &all);
  c->since = 0;
  return status == RESHARD_SUCCESS ? status : error_creation(o, status, reshard_last_error());
}

static reshard_status create_own(nccl_creation *o, const rs_nccl_api *api, const void *id, rs_nccl **made) {
  ncclComm_t nccl = NULL;
  rs_cuda_before previous;
  RS_TRY(rs_cuda_enter(o->device->device, &previous));
  reshard_status status = create_nccl(o, api, id, &nccl);
  rs_cuda_leave(previous);
  RS_TRY(status);
  status = rs_nccl_create(api, nccl, false, o->device, o->timeout_ms, o->presence, made);
  if (status != RESHARD_SUCCESS) { /* the others see that this rank is gone */
    rs_presence_leave(o->presence);
    previous = rs_cuda_try_enter(o->device->device);
    (void)api->ncclCommAbort(nccl);
    rs_cuda_leave(previous);
    return status;
  }
  o->presence = NULL;
  status = meet_first(o, *made);
  if (status != RESHARD_SUCCESS) {
    rs_nccl_end(*made); /* the others may have got on: no end that waits for them */
    rs_nccl_close(*made);
  }
  return status;
}

reshard_status reshard_comm_create_nccl(const void *id, int64_t n, int64_t rank, reshard_device device,
                                        int64_t timeout_ms, reshard_comm *comm) {
  RS_TRY(RS_GIVEN("reshard_comm_create_nccl", id, comm));
  if (n < 1 || n > INT32_MAX || rank < 0 || rank >= n)
    return rs_error(RESHARD_ERROR_INVALID, "reshard_comm_create_nccl: rank %lld of %lld", (long long)rank,
                    (long long)n);
  int64_t number;
  RS_HOLD_CANCEL;
  RS_TRY(read_environment("reshard_comm_create_nccl", &timeout_ms, &number));
  rs_nccl_api api;
  RS_TRY(rs_nccl_load(NULL, &api));
  nccl_creation own = {.n = n, .rank = rank, .timeout_ms = timeout_ms, .device = reshard_device_retain(device)};
  if (own.device == NULL)
    RS_TRY(reshard_device_create("cuda", NULL, &own.device));
  rs_nccl *made = NULL;
  own.since = rs_now_ns();
  reshard_status status = rs_presence_make(n, rank, &own.presence);
  rs_presence_find(own.presence, id, sizeof(ncclUniqueId));
  RS_THEN(status, create_own(&own, &api, id, &made));
  rs_presence_leave(own.presence);
  rs_presence_destroy(own.presence);
  reshard_device_release(own.device);
  if (status != RESHARD_SUCCESS)
    return status;
  made->base.process.node = number;
  *comm = &made->base;
  return RESHARD_SUCCESS;
}
