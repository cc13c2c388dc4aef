/* Making and ending NCCL communicators: around one that the caller has, or one of our own, which is non-blocking so
 * that deadlines hold. */
#include "comm/nccl/nccl.h"

#include "comm/nccl/node.h"
#include "device/cuda/cuda.h"
#include "device/environment.h"
#include "device/plain.h"
#include "device/stream.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
  RS_TRY(rs_roll_make(c->base.size, c->base.rank, &c->roll));
  return rs_alloc(&c->packed, c->base.size, RS_COMM_RECORD);
}

/* This may be a part of the caller's communicator. What NCCL was handed there stays its own, also when the caller has
 * aborted it: nobody can ask by then. */
bool rs_nccl_stuck(reshard_comm comm) {
  bool done = true;
  for (const rs_nccl *from = rs_nccl_of(comm); from != NULL && done; from = from->parent) {
    rs_device *device = from->base.device;
    if (!from->borrowed || !from->ended || from->gathered == NULL)
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
  bool idle = !(c->borrowed && c->base.held) && !rs_nccl_stuck(&c->base);
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
  bool ended = c->ended && !c->borrowed;
  ncclComm_t left = ended ? c->nccl : NULL; /* by a revocation, or a shrink */
  if (ended)
    c->nccl = NULL;
  bool there = !c->borrowed && c->nccl != NULL;
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
  if (made != NULL || !c->borrowed || !c->splitting)
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
  rs_roll_destroy(c->roll);
  reshard_device_release(c->handle);
  pthread_mutex_destroy(&c->mutex);
  free(c->global_ranks);
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

reshard_status rs_nccl_create(const rs_nccl_api *api, ncclComm_t nccl, bool borrowed, reshard_device device,
                              int64_t timeout_ms, rs_nccl **out) {
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
  c->borrowed = borrowed;
  c->timeout_ms = timeout_ms;
  c->spin_ns = RS_NCCL_SPIN_NS;
  c->process = rs_process_hash();
  char name[32];
  snprintf(name, sizeof name, "cuda:%d", index);
  reshard_status status = RESHARD_SUCCESS;
  if (device != NULL)
    c->handle = reshard_device_retain(device);
  else
    status = reshard_device_create(name, NULL, &c->handle);
  if (status == RESHARD_SUCCESS) {
    c->base = (struct reshard_comm_s){.ops = &rs_nccl_ops, .device = c->handle->device, .rank = rank, .size = size};
    c->base.timeout_ms = timeout_ms;
    c->base.borrowed = borrowed;
    c->base.locals = 1;
    c->base.group = c;
    c->base.lanes = 1;
    c->base.lane_devices = &c->base.device;
    status = rs_board_join(&c->base, NULL);
  }
  if (status == RESHARD_SUCCESS)
    status = make_buffers(c);
  if (status != RESHARD_SUCCESS) {
    c->nccl = NULL; /* the caller's to end */
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
  if (nccl_comm == NULL || comm == NULL)
    return rs_error(RESHARD_ERROR_INVALID, "reshard_comm_from_nccl: %s is NULL",
                    nccl_comm == NULL ? "nccl_comm" : "comm");
  int64_t number;
  RS_TRY(read_environment("reshard_comm_from_nccl", &timeout_ms, &number));
  rs_nccl_api api;
  RS_TRY(rs_nccl_load(get_version, &api));
  rs_nccl *made;
  RS_TRY(rs_nccl_create(&api, nccl_comm, true, device, timeout_ms, &made));
  made->number = number;
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

/* The other ranks may be late or never come: this waits for them until the deadline. */
static reshard_status create_nccl(const rs_nccl_api *api, const void *id, int64_t n, int64_t rank, int64_t timeout_ms,
                                  ncclComm_t *out) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  ncclUniqueId name;
  ncclComm_t nccl = NULL;
  config.blocking = 0;
  memcpy(&name, id, sizeof name);
  int64_t since = rs_now_ns();
  ncclResult_t result = api->ncclCommInitRankConfig(&nccl, (int)n, name, (int)rank, &config), state = ncclInProgress;
  if (result != ncclSuccess && result != ncclInProgress)
    state = result;
  while (state == ncclInProgress) {
    result = api->ncclCommGetAsyncError(nccl, &state);
    if (result != ncclSuccess)
      state = result;
    if (state != ncclInProgress)
      break;
    if (rs_late(since, timeout_ms)) {
      (void)api->ncclCommAbort(nccl);
      return rs_error(RESHARD_ERROR_TIMEOUT,
                      "reshard_comm_create_nccl: rank %lld of %lld: not all ranks came within %lld ms", (long long)rank,
                      (long long)n, (long long)timeout_ms);
    }
    rs_nccl_pause(since, RS_NCCL_SPIN_NS);
  }
  if (state == ncclSuccess) {
    *out = nccl;
    return RESHARD_SUCCESS;
  }
  reshard_status status = rs_nccl_error(api, nccl, state, "ncclCommInitRankConfig");
  if (nccl != NULL)
    (void)api->ncclCommAbort(nccl);
  return status;
}

/* The ranks learn of each other, so that an error of any call names those that are missing. */
static reshard_status meet_first(rs_nccl *c) {
  const void *all;
  reshard_status status = rs_nccl_ops.allgather(&c->base, "", 1, &all);
  return status == RESHARD_SUCCESS ? status
                                   : rs_error(status, "reshard_comm_create_nccl: rank %lld of %lld: %s",
                                              (long long)c->base.rank, (long long)c->base.size, reshard_last_error());
}

reshard_status reshard_comm_create_nccl(const void *id, int64_t n, int64_t rank, reshard_device device,
                                        int64_t timeout_ms, reshard_comm *comm) {
  if (id == NULL || comm == NULL)
    return rs_error(RESHARD_ERROR_INVALID, "reshard_comm_create_nccl: %s is NULL", id == NULL ? "id" : "comm");
  if (n < 1 || n > INT32_MAX || rank < 0 || rank >= n)
    return rs_error(RESHARD_ERROR_INVALID, "reshard_comm_create_nccl: rank %lld of %lld", (long long)rank,
                    (long long)n);
  int64_t number;
  RS_TRY(read_environment("reshard_comm_create_nccl", &timeout_ms, &number));
  rs_nccl_api api;
  RS_TRY(rs_nccl_load(NULL, &api));
  reshard_device mine = reshard_device_retain(device);
  if (mine == NULL)
    RS_TRY(reshard_device_create("cuda", NULL, &mine));
  rs_nccl *made = NULL;
  ncclComm_t nccl = NULL;
  rs_cuda_before previous;
  reshard_status status = rs_cuda_enter(mine->device, &previous);
  if (status == RESHARD_SUCCESS) {
    status = create_nccl(&api, id, n, rank, timeout_ms, &nccl);
    rs_cuda_leave(previous);
  }
  if (status == RESHARD_SUCCESS) {
    status = rs_nccl_create(&api, nccl, false, mine, timeout_ms, &made);
    if (status != RESHARD_SUCCESS) { /* the others see that this rank is gone */
      previous = rs_cuda_try_enter(mine->device);
      (void)api.ncclCommAbort(nccl);
      rs_cuda_leave(previous);
    }
  }
  reshard_device_release(mine);
  if (status == RESHARD_SUCCESS) {
    made->number = number;
    status = meet_first(made);
    if (status != RESHARD_SUCCESS) {
      rs_nccl_end(made); /* the others may have got on: no end that waits for them */
      rs_nccl_close(made);
    }
  }
  if (status == RESHARD_SUCCESS)
    *comm = &made->base;
  return status;
}
