/* Making a team and its ranks' handles: on a CPU of the team's own, or on devices of the caller. */
#include "comm/local/local.h"

#include "device/cpu/cpu.h"
#include "device/environment.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Options, completed from the environment: the only place that reads it. */
static reshard_status read_options(const reshard_local_options *given, reshard_local_options *out) {
  const reshard_local_options defaults = {.size = RESHARD_LOCAL_OPTIONS_INIT};
  *out = given != NULL ? *given : defaults;
  RS_TRY(RS_SIZED(reshard_local_options, out));
  if (out->threads < 0 || out->timeout_ms < 0)
    return rs_error(RESHARD_ERROR_INVALID, "%d threads, timeout of %lld ms: neither may be negative", out->threads,
                    (long long)out->timeout_ms);
  if (out->ndevices < 0 || (out->ndevices > 0 && out->devices == NULL))
    return rs_error(RESHARD_ERROR_INVALID, "%lld devices, list %s", (long long)out->ndevices,
                    out->devices == NULL ? "NULL" : "given");
  for (int64_t i = 0; i < out->ndevices; i++) {
    const struct reshard_device_s *first = out->devices[0], *d = out->devices[i];
    if (d == NULL)
      return rs_error(RESHARD_ERROR_INVALID, "device %lld of %lld is NULL", (long long)i, (long long)out->ndevices);
    if (d->device->type != first->device->type)
      return rs_error(RESHARD_ERROR_INVALID, "devices of two types: 0 is %s, %lld is %s", first->device->name,
                      (long long)i, d->device->name);
  }
  if (out->ndevices == 0)
    RS_TRY(rs_environment_cpu(&out->threads, &out->isa));
  return out->timeout_ms == 0 ? rs_environment_number("RESHARD_TIMEOUT_MS", &out->timeout_ms) : RESHARD_SUCCESS;
}

/* With a clock that is not set meanwhile. */
static void init_condition(pthread_cond_t *condition) {
  pthread_condattr_t attributes;
  pthread_condattr_init(&attributes);
  pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
  pthread_cond_init(condition, &attributes);
  pthread_condattr_destroy(&attributes);
}

/* Ends it where the parent has threads in its calls. */
static void leave_parents_calls(rs_forkable *self) {
  rs_team *team = (rs_team *)((char *)self - offsetof(rs_team, forkable));
  pthread_mutex_init(&team->mutex, NULL);
  init_condition(&team->changed);
  team->running = false;
  team->shrink.came = 0; /* the next who comes clears the list of those */
  if (team->arrived == 0 && team->readers == 0)
    return;
  if (!team->ended)
    snprintf(team->why, sizeof team->why, "the process was forked while ranks were in a collective call");
  team->ended = true;
  team->readers = 0;
}

reshard_status rs_team_create(int64_t n, int64_t timeout_ms, rs_team **out) {
  rs_team *team;
  RS_TRY(rs_alloc_zero(&team, 1, sizeof *team));
  int failed = pthread_mutex_init(&team->mutex, NULL);
  if (failed != 0) {
    free(team);
    return rs_error(RESHARD_ERROR_SYSTEM, "no mutex: %s", strerror(failed));
  }
  init_condition(&team->changed);
  team->n = n;
  team->users = 1;
  team->timeout_ms = timeout_ms;
  reshard_status status;
  RS_TRY_GOTO(status, rs_alloc_zero(&team->slots, n, sizeof *team->slots), fail);
  RS_TRY_GOTO(status, rs_alloc_zero(&team->runs, n, sizeof *team->runs), fail);
  RS_TRY_GOTO(status, rs_alloc_zero(&team->gone, n, sizeof *team->gone), fail);
  RS_TRY_GOTO(status, rs_alloc(&team->records, n, RS_COMM_RECORD), fail);
  RS_TRY_GOTO(status, rs_alloc_zero(&team->lanes, n, sizeof *team->lanes), fail);
  RS_TRY_GOTO(status, rs_alloc_zero(&team->lane_ranks, n, sizeof *team->lane_ranks), fail);
  rs_forkable_add(&team->forkable, leave_parents_calls);
  *out = team;
  return RESHARD_SUCCESS;
fail:
  rs_team_release(team);
  return status;
}

/* The lane of a device: two handles of one GPU share one, and so do all CPUs, which one thread drives together. */
static int64_t find_lane(rs_team *team, rs_device *device) {
  int64_t lane = 0;
  while (lane < team->nlanes && team->lanes[lane]->index != device->index)
    lane++;
  if (lane == team->nlanes)
    team->lanes[team->nlanes++] = device;
  return lane;
}

reshard_status rs_team_add_rank(rs_team *team, int64_t rank, rs_device *device, reshard_comm *comm) {
  rs_local_comm *made;
  RS_TRY(rs_alloc_zero(&made, 1, sizeof *made));
  *made =
      (rs_local_comm){.base = {.ops = &rs_local_ops, .device = device, .rank = rank, .size = team->n}, .team = team};
  made->base.locals = team->n;
  made->base.group = team;
  made->base.global_ranks = team->global_ranks;
  made->base.process.lane = find_lane(team, device);
  made->base.process.lane_rank = team->lane_ranks[made->base.process.lane]++;
  made->base.process.lane_devices = team->lanes;
  pthread_mutex_lock(&team->mutex);
  team->users++;
  pthread_mutex_unlock(&team->mutex);
  *comm = &made->base;
  return RESHARD_SUCCESS;
}

reshard_status rs_team_connect(rs_team *team, bool *direct) {
  *direct = true;
  for (int64_t a = 0; a < team->nlanes; a++)
    for (int64_t b = 0; b < team->nlanes; b++) {
      bool can = true;
      if (a != b)
        RS_TRY(team->lanes[a]->memory->enable_access(team->lanes[a], team->lanes[b], &can));
      *direct = *direct && can;
    }
  for (int64_t a = 0; a < team->nlanes; a++)
    for (int64_t h = 0; h < team->nhandles; h++) { /* each has a pool of its own */
      rs_device *other = team->handles[h]->device;
      bool can;
      if (other->index != team->lanes[a]->index)
        RS_TRY(team->lanes[a]->memory->enable_access(team->lanes[a], other, &can));
    }
  return RESHARD_SUCCESS;
}

/* Takes the devices that the ranks' arrays are on: a CPU of the team's own, or those given. */
static reshard_status take_devices(rs_team *team, const reshard_local_options *options) {
  if (options->ndevices == 0)
    return rs_device_cpu_create(options->threads, options->isa, &team->device);
  RS_TRY(rs_alloc(&team->handles, options->ndevices, sizeof *team->handles));
  for (int64_t i = 0; i < options->ndevices; i++)
    team->handles[i] = reshard_device_retain(options->devices[i]);
  team->nhandles = options->ndevices;
  return RESHARD_SUCCESS;
}

reshard_status reshard_comm_create_local(int64_t n, const reshard_local_options *options, reshard_comm *comms) {
  if (n < 1 || comms == NULL)
    return rs_error(RESHARD_ERROR_INVALID, "reshard_comm_create_local: %lld ranks, comms %s", (long long)n,
                    comms == NULL ? "NULL" : "given");
  reshard_local_options complete;
  RS_TRY(read_options(options, &complete));
  rs_team *team = NULL;
  reshard_comm *made = NULL;
  bool direct;
  RS_TRY(rs_team_create(n, complete.timeout_ms, &team));
  reshard_status status;
  RS_TRY_GOTO(status, take_devices(team, &complete), done);
  RS_TRY_GOTO(status, rs_alloc_zero(&made, n, sizeof *made), done);
  for (int64_t r = 0; r < n; r++) {
    rs_device *device = team->nhandles > 0 ? team->handles[r % team->nhandles]->device : team->device;
    RS_TRY_GOTO(status, rs_team_add_rank(team, r, device, &made[r]), done);
    RS_TRY_GOTO(status, rs_board_join(made[r], r > 0 ? made[0] : NULL), done);
  }
  RS_TRY_GOTO(status, rs_team_connect(team, &direct), done);
  for (int64_t r = 0; r < n; r++) {
    made[r]->process.lanes = team->nlanes;
    made[r]->memory.direct = direct;
  }
  memcpy(comms, made, (size_t)n * sizeof *made);
done:
  for (int64_t r = 0; status != RESHARD_SUCCESS && made != NULL && r < n; r++)
    reshard_comm_destroy(made[r]);
  free(made);
  rs_team_release(team);
  return status;
}
