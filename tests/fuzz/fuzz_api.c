/* The calls of the core path in any order, with any arguments that a program could give: layouts, plans, communicators
 * of one rank, transfers, reshards, splits, shrinks, and what is asked of each. Finds memory that is touched out of
 * bounds or kept, errors without a text, plans of two ranks that do not agree. */
#define _GNU_SOURCE
#include "fuzz.h"

#include <reshard/reshard.h>

#include <stdbool.h>
#include <string.h>

enum { SLOTS = 4, MOST_BYTES = 1 << 12, MOST_CALLS = 64, BUFFERS = 8 };

typedef struct api_input {
  const uint8_t *at, *end;
} api_input;

/* A communicator of one rank, a plan for it, and a transfer of them, which is there as long as both are. */
typedef struct api_transfer {
  reshard_transfer transfer;
  int plan, comm;
} api_transfer;

typedef struct api_objects {
  reshard_layout layouts[SLOTS];
  reshard_plan plans[SLOTS];
  bool fits[SLOTS]; /* the plan's buffers are no more, and no larger, than those below */
  reshard_comm comms[SLOTS];
  api_transfer transfers[SLOTS];
  unsigned char src[BUFFERS][MOST_BYTES], dst[BUFFERS][MOST_BYTES];
} api_objects;

static int64_t take(api_input *in) { return in->at < in->end ? *in->at++ : 0; }
static int take_slot(api_input *in) { return (int)(take(in) % SLOTS); }

/* A number as programs have them, or one that is far out. */
static int64_t take_number(api_input *in) {
  static const int64_t odd[] = {-1, INT64_MAX, INT64_MIN, INT64_C(1) << 31, INT64_C(1) << 62, 1000003};
  int64_t n = take(in);
  return n < 240 ? n % 12 : odd[n % 6];
}

static void take_numbers(api_input *in, int64_t n, int64_t *numbers) {
  for (int64_t i = 0; i < n; i++)
    numbers[i] = take_number(in);
}

/* A status has a text of one line. */
static reshard_status told(reshard_status status) {
  fuzz_require(status == RESHARD_SUCCESS ||
               (status != RESHARD_ERROR_INTERNAL && strlen(reshard_last_error()) > 0 &&
                strchr(reshard_last_error(), '\n') == NULL && strcmp(reshard_status_string(status), "unknown") != 0));
  return status;
}

/* --- Layouts ------------------------------------------------------------------------------------------------------ */

static reshard_status make_layout(api_input *in, int ndim, const int64_t *shape, int64_t world, reshard_layout *made) {
  static const char *const texts[] = {"chunk(0)", "flat()", "rank(0)", "mesh(2;S0)", "cyclic(1;2)", "chunk(-1;1,0)"};
  static const reshard_part parts[3] = {{1, 0}, {2, 1}, {3, 2}};
  int64_t ranks[4], grid[RESHARD_MAX_DIMS], block[RESHARD_MAX_DIMS], kind = take(in) % 6;
  reshard_box boxes[3];
  reshard_placement placements[2];
  take_numbers(in, 4, ranks);
  switch (kind) {
  case 0:
    return reshard_layout_create_chunk(ndim, shape, world, (int)take_number(in), take(in) % 5,
                                       take(in) % 2 ? ranks : NULL, made);
  case 1: return reshard_layout_create_flat(ndim, shape, world, take(in) % 5, take(in) % 2 ? ranks : NULL, made);
  case 2:
    for (int i = 0; i < 2; i++) {
      placements[i] = (reshard_placement){
          .kind = (reshard_placement_kind)(take(in) % 4), .dim = (int)take_number(in), .split_factor = take_number(in)};
      placements[i].nparts = (int)(placements[i].split_factor % 4); /* below 0, too */
      placements[i].ratio = placements[i].split_factor % 8 > 3;
      placements[i].parts = parts;
    }
    take_numbers(in, 2, grid);
    return reshard_layout_create_mesh(ndim, shape, world, (int)(take(in) % 3), grid, NULL, placements, NULL, NULL,
                                      made);
  case 3:
    take_numbers(in, RESHARD_MAX_DIMS, grid);
    take_numbers(in, RESHARD_MAX_DIMS, block);
    return reshard_layout_create_cyclic(ndim, shape, world, grid, block, NULL, made);
  case 4:
    for (int i = 0; i < 3; i++) {
      take_numbers(in, RESHARD_MAX_DIMS, boxes[i].offset);
      take_numbers(in, RESHARD_MAX_DIMS, boxes[i].extent);
    }
    return reshard_layout_create_boxes(ndim, shape, world, take(in) % 4, ranks, boxes, (int)(take(in) % 2), made);
  default: return reshard_layout_parse(texts[take(in) % 6], ndim, shape, world, made);
  }
}

static void create_layout(api_objects *o, api_input *in) {
  int64_t shape[RESHARD_MAX_DIMS], world = take_number(in);
  int ndim = (int)(take(in) % 16 == 0 ? take_number(in) : 1 + take(in) % 3), slot = take_slot(in);
  reshard_layout made = NULL;
  take_numbers(in, RESHARD_MAX_DIMS, shape);
  reshard_layout_release(o->layouts[slot]);
  o->layouts[slot] = NULL;
  if (told(make_layout(in, ndim, shape, world, &made)) == RESHARD_SUCCESS)
    o->layouts[slot] = made;
  fuzz_require(made == o->layouts[slot]);
}

static int count_lost(void *user, const reshard_box *box) {
  (void)box;
  return ++*(int *)user > 100;
}

static void ask_layout(api_objects *o, api_input *in) {
  reshard_layout layout = o->layouts[take_slot(in)];
  int64_t rank = take_number(in), array = take_number(in), count = 0, elements = 0, lost[2];
  reshard_array_info info = {0};
  reshard_interval intervals[4];
  char text[64];
  int seen = 0, ndim;
  take_numbers(in, 2, lost);
  (void)told(reshard_layout_check_source(layout));
  (void)told(reshard_layout_array(layout, rank, array, &info));
  (void)told(
      reshard_layout_array_intervals(layout, rank, array, (int)take_number(in), take_number(in), 4, intervals, &count));
  (void)told(reshard_layout_buffer_elements(layout, rank, array, &elements));
  (void)told(reshard_layout_buffer_shape(layout, rank, array, info.shape, &ndim, info.strides));
  if (reshard_layout_elements(layout) <= 1 << 16) /* it lists every run that is lost */
    (void)told(reshard_layout_lost(layout, take(in) % 3, lost, count_lost, &seen));
  (void)told(reshard_layout_print(layout, text, (size_t)take(in) % sizeof text, NULL));
  fuzz_require(layout == NULL || reshard_layout_equal(layout, o->layouts[take_slot(in)]) <= 1);
}

/* --- Plans -------------------------------------------------------------------------------------------------------- */

static void drop_transfers(api_objects *o, int plan, int comm) {
  for (int i = 0; i < SLOTS; i++)
    if (o->transfers[i].plan == plan || o->transfers[i].comm == comm) {
      reshard_transfer_destroy(o->transfers[i].transfer);
      o->transfers[i].transfer = NULL;
    }
}

/* Adds the buffers of a rank; false: one is too large. */
static bool count_buffers(reshard_layout layout, int64_t rank, int64_t *n) {
  int64_t buffers = 0, elements = 0;
  bool small = reshard_layout_buffer_count(layout, rank, &buffers) == RESHARD_SUCCESS && buffers <= BUFFERS;
  for (int64_t i = 0; i < buffers && small; i++)
    small =
        reshard_layout_buffer_elements(layout, rank, i, &elements) == RESHARD_SUCCESS && elements <= MOST_BYTES / 16;
  *n += buffers;
  return small;
}

static bool entries_fit(int64_t n, const reshard_entry *entries, int64_t rank) {
  int64_t src = 0, dst = 0;
  bool all = true;
  for (int64_t i = 0; i < n && all; i++)
    all = count_buffers(entries[i].src, rank, &src) && count_buffers(entries[i].dst, rank, &dst);
  return all && src <= BUFFERS && dst <= BUFFERS;
}

/* A plan lists the ranks that get something, and the runs of a dim that is cut in turns: gigabytes of them, where the
 * caller wants so many. */
static bool lists_fit(int64_t n, const reshard_entry *entries) {
  const int64_t most = 1 << 22;
  for (int64_t i = 0; i < n; i++)
    for (int side = 0; side < 2; side++) {
      reshard_layout layout = side == 0 ? entries[i].src : entries[i].dst;
      reshard_layout_kind kind = layout != NULL ? reshard_layout_get_kind(layout) : RESHARD_LAYOUT_CHUNK;
      bool turns = kind == RESHARD_LAYOUT_CYCLIC || kind == RESHARD_LAYOUT_MESH;
      if (reshard_layout_elements(layout) > most && (turns || reshard_layout_world(layout) > most))
        return false;
    }
  return true;
}

static void create_plan(api_objects *o, api_input *in) {
  int64_t regions[4][RESHARD_MAX_DIMS], nentries = take(in) % 8 == 0 ? take(in) % 5 : 1;
  int permutation[RESHARD_MAX_DIMS], slot = take_slot(in);
  reshard_entry entries[4];
  reshard_plan_options options = {RESHARD_PLAN_OPTIONS_INIT, .workspace_limit = take(in) * 256 - 512};
  reshard_plan made = NULL, back = NULL;
  for (int i = 0; i < 4; i++)
    take_numbers(in, RESHARD_MAX_DIMS, regions[i]);
  for (int d = 0; d < RESHARD_MAX_DIMS; d++)
    permutation[d] = (int)take_number(in);
  for (int i = 0; i < 4; i++) {
    int with = (int)take(in);
    entries[i] = (reshard_entry){RESHARD_ENTRY_INIT, .src = o->layouts[take_slot(in)], .dst = o->layouts[take_slot(in)],
                                 .dtype = (reshard_dtype)(take(in) % 20)};
    entries[i].src_offset = with & 1 ? regions[0] : NULL;
    entries[i].src_extent = with & 2 ? regions[1] : NULL;
    entries[i].dst_offset = with & 4 ? regions[2] : NULL;
    entries[i].dst_extent = with & 8 ? regions[3] : NULL;
    entries[i].permutation = with & 16 ? permutation : NULL;
  }
  drop_transfers(o, slot, -1);
  reshard_plan_destroy(o->plans[slot]);
  o->plans[slot] = NULL;
  int64_t rank = take(in) % 4 == 0 ? take_number(in) : 0;
  if (!lists_fit(nentries, entries))
    return;
  if (told(reshard_plan_create(nentries, entries, rank, take(in) % 2 ? &options : NULL, &made)) == RESHARD_SUCCESS) {
    o->plans[slot] = made;
    o->fits[slot] = entries_fit(nentries, entries, rank);
  }
  if (made != NULL && told(reshard_plan_reverse(made, &back)) == RESHARD_SUCCESS)
    reshard_plan_destroy(back);
}

/* --- Communicators and transfers ---------------------------------------------------------------------------------- */

static void create_comm(api_objects *o, api_input *in) {
  int slot = take_slot(in), from = take_slot(in);
  reshard_local_options options = {.size = RESHARD_LOCAL_OPTIONS_INIT, .threads = 1, .timeout_ms = take(in) % 3};
  reshard_comm made = NULL;
  if (take(in) % 3 == 0)
    (void)told(reshard_comm_split(o->comms[from], take_number(in), take_number(in), &made));
  else
    (void)told(reshard_comm_create_local(1, &options, &made));
  drop_transfers(o, -1, slot);
  reshard_comm_destroy(o->comms[slot]);
  o->comms[slot] = made;
}

static void call_comm(api_objects *o, api_input *in) {
  reshard_comm comm = o->comms[take_slot(in)], rest = NULL;
  int64_t lost[2], n = 0;
  size_t needed = 0;
  char text[256];
  switch (take(in) % 5) {
  case 0: (void)told(reshard_comm_barrier(comm)); break;
  case 1: (void)told(reshard_comm_abort(comm)); break;
  case 2: (void)told(reshard_comm_report(comm, take_number(in), text, (size_t)take(in), &needed)); break;
  case 3: (void)told(reshard_comm_missing(comm, lost, &n)); break;
  default:
    take_numbers(in, 2, lost);
    if (told(reshard_comm_shrink(comm, take_number(in), take(in) % 2 ? lost : NULL, &rest)) == RESHARD_SUCCESS)
      reshard_comm_destroy(rest);
  }
}

static void create_transfer(api_objects *o, api_input *in) {
  int slot = take_slot(in);
  api_transfer made = {NULL, take_slot(in), take_slot(in)};
  void *src[BUFFERS], *dst[BUFFERS];
  for (int i = 0; i < BUFFERS; i++) {
    src[i] = take(in) % 32 == 0 ? NULL : o->src[i];
    dst[i] = take(in) % 32 == 0 ? o->src[i] : o->dst[i];
  }
  reshard_arrays arrays = {RESHARD_ARRAYS_INIT, src, dst, NULL, NULL, take(in) % 16 == 0 ? take_number(in) : 0, 0};
  reshard_transfer_options options = {RESHARD_TRANSFER_OPTIONS_INIT, .path = (reshard_path)(take(in) % 4),
                                      .collective = (reshard_collective_use)(take(in) % 4)};
  reshard_plan plan = o->plans[made.plan];
  if (plan != NULL && !o->fits[made.plan])
    return;
  (void)told(
      reshard_transfer_create(plan, o->comms[made.comm], &arrays, take(in) % 2 ? &options : NULL, &made.transfer));
  if (made.transfer == NULL)
    return;
  reshard_transfer_destroy(o->transfers[slot].transfer);
  o->transfers[slot] = made;
}

static void execute(api_objects *o, api_input *in) {
  reshard_transfer transfer = o->transfers[take_slot(in)].transfer;
  reshard_transfer_info info;
  (void)told(take(in) % 2 ? reshard_execute(transfer, NULL) : reshard_execute_all(1, &transfer, NULL));
  (void)told(reshard_transfer_get_info(transfer, &info));
}

/* --- Two ranks ---------------------------------------------------------------------------------------------------- */

/* Plans of both ranks: what one sends the other receives, and no more than it lacks. */
static void check_ways(api_objects *o, api_input *in) {
  reshard_entry entry = {RESHARD_ENTRY_INIT, .src = o->layouts[take_slot(in)], .dst = o->layouts[take_slot(in)],
                         .dtype = RESHARD_U8};
  reshard_plan plans[2] = {NULL, NULL};
  reshard_plan_info info[2];
  if (reshard_layout_world(entry.src) != 2 || !lists_fit(1, &entry) ||
      told(reshard_plan_create_all(1, &entry, 2, NULL, NULL, plans)) != RESHARD_SUCCESS)
    return;
  for (int r = 0; r < 2; r++)
    fuzz_require(reshard_plan_get_info(plans[r], &info[r]) == RESHARD_SUCCESS &&
                 info[r].received_bytes == info[r].lower_bound_bytes);
  fuzz_require(info[0].sent_bytes == info[1].received_bytes && info[1].sent_bytes == info[0].received_bytes);
  reshard_plan_destroy(plans[0]);
  reshard_plan_destroy(plans[1]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static void (*const calls[])(api_objects * o, api_input * in) = {
      create_layout, create_layout, ask_layout,      create_plan, create_plan,
      create_comm,   call_comm,     create_transfer, execute,     check_ways};
  api_input in = {data, data + size};
  api_objects *o = calloc(1, sizeof *o);
  fuzz_require(o != NULL);
  for (int i = 0; i < MOST_CALLS && in.at < in.end; i++)
    calls[(size_t)take(&in) % (sizeof calls / sizeof *calls)](o, &in);
  for (int i = 0; i < SLOTS; i++)
    reshard_transfer_destroy(o->transfers[i].transfer);
  for (int i = 0; i < SLOTS; i++) {
    reshard_plan_destroy(o->plans[i]);
    reshard_layout_release(o->layouts[i]);
    reshard_comm_destroy(o->comms[i]);
  }
  free(o);
  return 0;
}
