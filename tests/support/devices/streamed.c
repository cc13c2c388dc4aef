#include "streamed.h"

#include "bench/verify/case_bind.h"
#include "exec/once.h"
#include "support/fixtures/rank_threads.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 4 }; /* executes of a case */

/* One side of a rank's arrays on its device, and pinned memory for what goes there and comes back. */
typedef struct side {
  case_binding host;
  char *device;    /* of host.bytes */
  void **pointers; /* in it */
  char *up[MOST], *down[MOST];
} side;

typedef struct rank_room {
  rs_device *device;
  void *stream;
  reshard_comm comm;
  reshard_plan plan;
  reshard_transfer transfer;
  rs_once_memory once;
  side sides[2][2]; /* [binding][source, destination] */
} rank_room;

typedef struct show {
  streamed *s;
  const case_plan *c;
  reshard_entry *entries;
  reshard_comm *comms;
  rank_room *rooms;
  void *stream; /* of the first device */
  pthread_mutex_t lock;
  reshard_status status;
  cli_text *why;
  int executes[2]; /* of each binding */
} show;

static bool failed(show *x, reshard_status status, const char *format, ...) __attribute__((format(printf, 3, 4)));
static bool failed(show *x, reshard_status status, const char *format, ...) {
  char text[1500];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  pthread_mutex_lock(&x->lock);
  if (x->why->length == 0) {
    cli_add(x->why, "%s", text);
    x->status = status;
  }
  pthread_mutex_unlock(&x->lock);
  return false;
}

static bool try_call(show *x, int64_t rank, const char *call, reshard_status status) {
  return status == RESHARD_SUCCESS || failed(x, status, "rank %lld: %s: %s: %s", (long long)rank, call,
                                             reshard_status_string(status), reshard_last_error());
}

/* --- Memory ------------------------------------------------------------------------------------------------------ */

static void touch(show *x, void *at, size_t n, bool write) {
  if (x->s->touch != NULL)
    x->s->touch(at, n, write);
}

static bool make_side(show *x, int64_t rank, int number, bool source, side *out) {
  rs_device *device = x->rooms[rank].device;
  case_bind(x->c, rank, source, number, &out->host);
  size_t bytes = (size_t)out->host.bytes;
  bool right = try_call(x, rank, "alloc", device->ops->alloc(device, bytes, (void **)&out->device));
  out->pointers = cli_alloc(out->host.n, sizeof *out->pointers);
  for (int64_t i = 0; i < out->host.n; i++)
    if (out->host.pointer[i] != NULL)
      out->pointers[i] = out->device + ((unsigned char *)out->host.pointer[i] - out->host.arena);
  for (int e = 0; e < x->executes[number] && right; e++) {
    right = try_call(x, rank, "host_alloc", device->ops->host_alloc(device, bytes, (void **)&out->up[e])) &&
            try_call(x, rank, "host_alloc", device->ops->host_alloc(device, bytes, (void **)&out->down[e]));
    if (!right)
      break;
    case_fill_memory(x->c, &out->host, source ? FILL_SOURCE : FILL_DESTINATION, 10 * number + e);
    touch(x, out->up[e], bytes, true);
    memcpy(out->up[e], out->host.arena, bytes);
    touch(x, out->down[e], bytes, true);
    memset(out->down[e], 0x11, bytes);
  }
  return right;
}

static void free_side(show *x, int64_t rank, side *s) {
  rs_device *device = x->rooms[rank].device;
  for (int e = 0; e < MOST; e++) {
    device->ops->host_free(device, s->up[e]);
    device->ops->host_free(device, s->down[e]);
  }
  device->ops->free(device, s->device);
  free(s->pointers);
  case_unbind(&s->host);
}

static bool check_side(show *x, int64_t rank, int number, bool source) {
  side *s = &x->rooms[rank].sides[number][source ? 0 : 1];
  for (int e = 0; e < x->executes[number]; e++) {
    cli_text why = {0};
    case_fill_memory(x->c, &s->host, source ? FILL_SOURCE : FILL_DESTINATION, 10 * number + e);
    touch(x, s->down[e], (size_t)s->host.bytes, false);
    memcpy(s->host.arena, s->down[e], (size_t)s->host.bytes);
    bool right =
        case_check_memory(x->c, &s->host, source ? FILL_SOURCE : FILL_DESTINATION, 10 * number + e, rank, &why);
    if (!right)
      failed(x, RESHARD_ERROR_INTERNAL, "execute %d: %s", e, why.at);
    free(why.at);
    if (!right)
      return false;
  }
  return true;
}

static reshard_arrays arrays_of(const rank_room *room, int number) {
  const side *src = &room->sides[number][0], *dst = &room->sides[number][1];
  return (reshard_arrays){.size = RESHARD_ARRAYS_INIT,
                          .src = src->pointers,
                          .dst = dst->pointers,
                          .src_strides = src->host.stride_list,
                          .dst_strides = dst->host.stride_list,
                          .nsrc = src->host.n,
                          .ndst = dst->host.n};
}

/* --- One rank ---------------------------------------------------------------------------------------------------- */

static bool prepare(show *x, int64_t rank) {
  rank_room *room = &x->rooms[rank];
  const reshard_transfer_options options = {RESHARD_TRANSFER_OPTIONS_INIT, .path = x->s->path};
  const reshard_arrays arrays = arrays_of(room, 0);
  if (x->s->drive == STREAMED_ONCE)
    return true;
  return try_call(x, rank, "reshard_transfer_create",
                  reshard_transfer_create(room->plan, room->comm, &arrays, &options, &room->transfer));
}

/* Where a call is made to fail it is done again: what is tested is not this. */
static bool copy(show *x, int64_t rank, rs_device *device, void *to, const void *from, size_t bytes, void *stream) {
  return device->ops->memcpy(device, to, from, bytes, stream) == RESHARD_SUCCESS ||
         try_call(x, rank, "memcpy", device->ops->memcpy(device, to, from, bytes, stream));
}

/* Sources and poison to the arrays, or what they have back, in the order of the stream. */
static bool load(show *x, int64_t rank, int number, int e, rs_device *device, void *stream, bool up) {
  bool right = true;
  for (int i = 0; i < 2 && right; i++) {
    side *s = &x->rooms[rank].sides[number][i];
    size_t bytes = (size_t)s->host.bytes;
    right = up ? copy(x, rank, device, s->device, s->up[e], bytes, stream)
               : copy(x, rank, device, s->down[e], s->device, bytes, stream);
  }
  return right;
}

static void watch(show *x, bool on) {
  if (x->s->watch != NULL)
    x->s->watch(x->s->user, on);
}

static void execute(show *x, int64_t rank, const reshard_arrays *arrays) {
  rank_room *room = &x->rooms[rank];
  size_t workspace;
  if (x->s->drive == STREAMED_ONCE)
    try_call(x, rank, "rs_execute_once",
             rs_execute_once(room->plan, room->comm, arrays, x->s->path, RESHARD_SUCCESS, NULL, &room->once,
                             room->stream, &workspace));
  else
    try_call(x, rank, "reshard_execute", reshard_execute(room->transfer, room->stream));
}

/* A rank that failed goes on: the others wait for it. */
static void rank_body(void *user, int64_t rank) {
  show *x = user;
  rank_room *room = &x->rooms[rank];
  if (!prepare(x, rank))
    return;
  for (int number = 0; number < 2; number++) {
    const reshard_arrays arrays = arrays_of(room, number);
    if (number == 1 && x->executes[1] > 0 && room->transfer != NULL)
      try_call(x, rank, "reshard_transfer_rebind", reshard_transfer_rebind(room->transfer, &arrays));
    for (int e = 0; e < x->executes[number]; e++) {
      load(x, rank, number, e, room->device, room->stream, true);
      execute(x, rank, &arrays);
      load(x, rank, number, e, room->device, room->stream, false);
    }
  }
  rs_once_memory_free(&room->once, room->device); /* it waits for what it has to */
  if (x->s->shared_handle)                        /* in another thread it may be another stream */
    try_call(x, rank, "synchronize", room->device->ops->synchronize(room->device, room->stream));
}

static void calm(show *x) {
  if (x->s->calm != NULL)
    x->s->calm(x->s->user);
}

static void drive_threads(show *x) {
  rank_threads_run(x->c->world, rank_body, x);
  calm(x);
  for (int64_t r = 0; r < x->c->world; r++) {
    rank_room *room = &x->rooms[r];
    if (room->transfer != NULL || x->s->drive == STREAMED_ONCE)
      try_call(x, r, "synchronize", room->device->ops->synchronize(room->device, room->stream));
  }
}

static void create_body(void *user, int64_t rank) { (void)prepare(user, rank); }

static void rebind_body(void *user, int64_t rank) {
  show *x = user;
  const reshard_arrays arrays = arrays_of(&x->rooms[rank], 1);
  try_call(x, rank, "reshard_transfer_rebind", reshard_transfer_rebind(x->rooms[rank].transfer, &arrays));
}

/* --- All ranks by one thread -------------------------------------------------------------------------------------- */

static bool give(show *x, const reshard_transfer *transfers) {
  return try_call(x, 0, "reshard_execute_all", reshard_execute_all(x->c->world, transfers, x->stream));
}

static bool drive(show *x, int number, const reshard_transfer *transfers) {
  streamed *s = x->s;
  int64_t n = x->c->world;
  rs_device *device = x->rooms[0].device;
  bool right = true;
  if (s->drive == STREAMED_GRAPH) {
    right = try_call(x, 0, "capture", s->capture(s->user, x->stream));
    right = give(x, transfers) && right;
    right = try_call(x, 0, "end of capture", s->captured(s->user, x->stream)) && right;
  }
  for (int e = 0; e < x->executes[number] && right; e++) {
    for (int64_t r = 0; r < n && right; r++)
      right = load(x, r, number, e, device, x->stream, true);
    watch(x, true);
    if (right)
      right = s->drive == STREAMED_GRAPH ? try_call(x, 0, "launch", s->launch(s->user, x->stream)) : give(x, transfers);
    watch(x, false);
    for (int64_t r = 0; r < n && !right; r++) /* the arrays are the user's again */
      (void)load(x, r, number, e, device, x->stream, true);
    for (int64_t r = 0; r < n && right; r++)
      right = load(x, r, number, e, device, x->stream, false);
  }
  if (number == 1 || x->executes[1] == 0 || !right)
    calm(x);
  right = try_call(x, 0, "synchronize", device->ops->synchronize(device, x->stream)) && right;
  if (s->drive == STREAMED_GRAPH)
    s->end(s->user);
  return right;
}

static bool drive_all(show *x) {
  int64_t n = x->c->world;
  rank_threads_run(n, create_body, x);
  if (x->why->length > 0)
    return false;
  reshard_transfer *transfers = cli_alloc(n, sizeof *transfers);
  for (int64_t r = 0; r < n; r++)
    transfers[r] = x->rooms[r].transfer;
  bool right = drive(x, 0, transfers);
  if (right && x->executes[1] > 0) {
    rank_threads_run(n, rebind_body, x);
    right = x->why->length == 0 && drive(x, 1, transfers);
  }
  free(transfers);
  return right;
}

/* --- The case ----------------------------------------------------------------------------------------------------- */

static bool make_rooms(show *x) {
  streamed *s = x->s;
  reshard_local_options options = {
      .size = RESHARD_LOCAL_OPTIONS_INIT, .timeout_ms = 60000, .devices = s->devices, .ndevices = s->ndevices};
  int64_t n = x->c->world;
  reshard_status status = reshard_comm_create_local(n, &options, x->comms);
  if (status != RESHARD_SUCCESS)
    return try_call(x, 0, "reshard_comm_create_local", status);
  for (int64_t r = 0; r < n; r++) {
    rank_room *room = &x->rooms[r];
    room->comm = x->comms[r];
    room->stream = s->handle;
    room->device = s->devices[r % s->ndevices]->device;
  }
  for (int64_t r = 0; r < n; r++) {
    rank_room *room = &x->rooms[r];
    rs_device *device = room->device;
    bool own = (s->drive < STREAMED_ALL || r == 0) && !s->shared_handle;
    if ((own && !try_call(x, r, "stream_create", device->ops->stream_create(device, &room->stream))) ||
        !try_call(x, r, "reshard_plan_create",
                  reshard_plan_create(x->c->nentries, x->entries, r, &x->c->options, &room->plan)))
      return false;
    for (int number = 0; number < 2; number++)
      if (x->executes[number] > 0 && (!make_side(x, r, number, true, &room->sides[number][0]) ||
                                      !make_side(x, r, number, false, &room->sides[number][1])))
        return false;
  }
  x->stream = x->rooms[0].stream;
  return true;
}

static void free_rooms(show *x) {
  for (int64_t r = 0; r < x->c->world; r++)
    reshard_transfer_destroy(x->rooms[r].transfer);
  for (int64_t r = 0; r < x->c->world; r++) {
    rank_room *room = &x->rooms[r];
    if (room->device == NULL)
      continue;
    for (int number = 0; number < 2; number++)
      for (int i = 0; i < 2; i++)
        free_side(x, r, &room->sides[number][i]);
    if (room->stream != NULL && !x->s->shared_handle)
      room->device->ops->stream_destroy(room->device, room->stream);
    reshard_plan_destroy(room->plan);
    reshard_comm_destroy(room->comm);
  }
}

bool streamed_case(streamed *s, const case_plan *c, cli_text *why, reshard_status *status) {
  show x = {.s = s, .c = c, .why = why};
  x.executes[1] = s->rebind ? 1 : 0;
  x.executes[0] = (s->executes > MOST ? MOST : s->executes) - x.executes[1];
  pthread_mutex_init(&x.lock, NULL);
  x.entries = case_entries(c);
  x.comms = cli_alloc(c->world, sizeof *x.comms);
  x.rooms = cli_alloc(c->world, sizeof *x.rooms);
  if (make_rooms(&x)) {
    if (s->drive < STREAMED_ALL)
      drive_threads(&x);
    else
      (void)drive_all(&x);
    calm(&x);
    s->executed += s->executes;
    for (int64_t r = 0; r < c->world; r++) {
      reshard_plan_info info;
      if (reshard_plan_get_info(x.rooms[r].plan, &info) == RESHARD_SUCCESS)
        s->rounds_most = rs_max(s->rounds_most, info.rounds);
    }
    s->left += s->pending != NULL ? s->pending() : 0;
  }
  for (int64_t r = 0; r < c->world && why->length == 0; r++)
    for (int number = 0; number < 2 && why->length == 0; number++)
      if (x.executes[number] > 0 && check_side(&x, r, number, false))
        check_side(&x, r, number, true);
  free_rooms(&x);
  free(x.entries);
  free(x.comms);
  free(x.rooms);
  pthread_mutex_destroy(&x.lock);
  if (status != NULL)
    *status = x.status;
  return why->length == 0;
}

static void make_layout(rng *r, int64_t n, streamed_side which, case_side *side) {
  oracle_layout *l = &side->what;
  *l = (oracle_layout){
      .kind = RESHARD_LAYOUT_CHUNK, .ndim = 2, .shape = {STREAMED_ROWS, STREAMED_COLUMNS}, .world = n, .nranks = n};
  for (int64_t i = 0; i < n; i++)
    l->ranks[i] = i;
  l->dim = which.dim;
  if (which.dim < 0) {
    l->kind = RESHARD_LAYOUT_CYCLIC;
    l->grid[0] = 1;
    l->grid[1] = n;
    l->block[0] = which.block[0];
    l->block[1] = which.block[1];
  }
  oracle_evaluate(l, &side->held);
  CLI_TRY("layout: ", case_build(r, l, &side->layout, &side->text));
}

void streamed_make(int64_t n, streamed_side src, streamed_side dst, int64_t limit, int64_t window, case_plan *c) {
  rng r;
  rng_seed(&r, 1);
  *c = (case_plan){.seed = 1, .world = n, .nentries = 1, .plain = true};
  c->entry = cli_alloc(1, sizeof *c->entry);
  c->options =
      (reshard_plan_options){.size = RESHARD_PLAN_OPTIONS_INIT, .workspace_limit = limit, .peers_per_round = window};
  case_entry *e = &c->entry[0];
  e->dtype = RESHARD_F32;
  for (int d = 0; d < 2; d++) {
    e->region.src_extent[d] = e->region.dst_extent[d] = d == 0 ? STREAMED_ROWS : STREAMED_COLUMNS;
    e->region.permutation[d] = d;
  }
  make_layout(&r, n, src, &e->src);
  make_layout(&r, n, dst, &e->dst);
  oracle_reshard(&e->src.what, &e->src.held, &e->dst.what, &e->dst.held, &e->region, 4, &c->counts);
}

void streamed_force_rounds(case_plan *c) {
  int64_t most = rs_max(c->world - 1, 1);
  c->options.peers_per_round = c->seed % 2 == 0 ? 1 : c->options.peers_per_round;
  int64_t peers = c->options.peers_per_round > 0 ? c->options.peers_per_round : 32;
  c->options.workspace_limit = c->least_limit = 4 * 256 * rs_min(peers, most);
}

bool streamed_seed(streamed *s, uint64_t seed, cli_text *why, reshard_status *status) {
  const case_fixed fixed = {.ranks = s->ranks};
  case_plan c;
  if (!case_make(seed, &fixed, &c, why))
    return false;
  if (s->rounds)
    streamed_force_rounds(&c);
  bool right = streamed_case(s, &c, why, status);
  if (!right)
    cli_add(why, " (seed %llu, world %lld, limit %lld, path %d, drive %d)", (unsigned long long)seed,
            (long long)c.world, (long long)c.options.workspace_limit, (int)s->path, (int)s->drive);
  case_free(&c);
  return right;
}
