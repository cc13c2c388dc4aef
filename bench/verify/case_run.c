/* Runs one case: every rank here is a thread. Plans are made and compared with the oracle's counts; then passes are
 * drawn and run, over one path or several. */
#include "bench/verify/case_run.h"

#include "bench/verify/case_context.h"
#include "bench/verify/case_make.h"
#include "comm/comm.h"
#include "exec/path.h"

#include <stdlib.h>
#include <string.h>

case_runner *case_runner_create(const case_choices *fixed) {
  case_runner *runner = cli_alloc(1, sizeof *runner);
  runner->fixed = *fixed;
  runner->pool = rank_pool_create();
  session *s = fixed->session;
  runner->comms = case_comms_create(s != NULL ? s->devices : NULL, s != NULL ? s->ndevices : 0);
  runner->remote = s != NULL && s->comms != NULL ? s : NULL;
  return runner;
}

void case_runner_destroy(case_runner *runner) {
  if (runner == NULL)
    return;
  case_comms_free(runner->comms);
  rank_pool_destroy(runner->pool);
  free(runner);
}

/* In every second case the plans of all ranks that are here are made by one call. */
static void create_plans(case_context *l) {
  reshard_plan *plans = cli_alloc(l->locals, sizeof(reshard_plan));
  int64_t *ranks = cli_alloc(l->locals, sizeof *ranks);
  for (int64_t i = 0; i < l->locals; i++)
    ranks[i] = l->first + i;
  bool all = l->locals == l->c->world;
  reshard_status status =
      reshard_plan_create_all(l->c->nentries, l->entries, l->locals, all ? NULL : ranks, &l->c->options, plans);
  if (status != RESHARD_SUCCESS)
    case_failed_call(l, "reshard_plan_create_all", l->first, status);
  for (int64_t i = 0; i < l->locals; i++)
    l->rank[l->first + i].plan = plans[i];
  free(plans);
  free(ranks);
}

static bool create_plan(case_context *l, int64_t rank) {
  const case_plan *c = l->c;
  case_rank *s = &l->rank[rank];
  reshard_status status;
  if (c->least_limit > 0 && c->world > 1 && c->nentries > 0 && c->seed % 8 == 0) {
    reshard_plan_options small = c->options;
    reshard_plan plan = NULL;
    small.workspace_limit = c->least_limit - 1;
    status = reshard_plan_create(c->nentries, l->entries, rank, &small, &plan);
    reshard_plan_destroy(plan);
    if (status != RESHARD_ERROR_INVALID)
      return case_failed(l, "rank %lld: a limit of %lld bytes, one below the least, gives %s", (long long)rank,
                         (long long)small.workspace_limit, reshard_status_string(status));
  }
  status = s->plan != NULL ? RESHARD_SUCCESS /* was made with the others */
                           : reshard_plan_create(c->nentries, l->entries, rank, &c->options, &s->plan);
  if (status != RESHARD_SUCCESS)
    return case_failed_call(l, "reshard_plan_create", rank, status);
  reshard_plan_get_info(s->plan, &s->info);
  rs_text why = {0};
  case_check_plan(c, rank, s->plan, &s->info, &why);
  return case_take_reason(l, &why);
}

static bool check_plans(case_context *l) {
  const int64_t n = l->c->world;
  reshard_plan *plans = cli_alloc(n, sizeof *plans);
  for (int64_t r = 0; r < n; r++)
    plans[r] = l->rank[r].plan;
  rs_text why = {0};
  case_check_world(l->c, plans, &why);
  free(plans);
  return case_take_reason(l, &why);
}

/* The stream of a rank on a GPU. */
static bool create_stream(case_context *l, int64_t rank) {
  case_rank *s = &l->rank[rank];
  const session *given = l->runner->fixed.session;
  rs_device *device = given != NULL ? session_device(given, rank - l->first) : NULL;
  if (device == NULL || device->type == RESHARD_DEVICE_CPU)
    return true;
  s->device = device;
  reshard_status status = device->streams->create(device, &s->stream);
  return status == RESHARD_SUCCESS || case_failed_call(l, "making a stream", rank, status);
}

static void run_rank(void *user, int64_t local) {
  case_context *l = user;
  int64_t rank = l->first + local;
  case_rank *s = &l->rank[rank];
  bool right = case_barrier(l, rank, create_stream(l, rank) && create_plan(l, rank));
  if (right) /* with plans of all ranks here */
    right = case_barrier(l, rank, local != 0 || l->locals < l->c->world || check_plans(l));
  int generation = 0;
  for (int i = 0; i < l->npasses && right; i++) {
    if (l->passes[i].reverse)
      right = case_pass_reverse(l, &l->passes[i], rank, i, generation);
    else {
      case_binding_free(&s->src);
      case_binding_free(&s->dst);
      right = case_pass_run(l, &l->passes[i], rank, i, &generation);
    }
  }
  if (!right)
    case_failed(l, "another process found it wrong");
  case_binding_free(&s->src);
  case_binding_free(&s->dst);
  reshard_plan_destroy(s->plan);
  if (s->device != NULL)
    s->device->streams->destroy(s->device, s->stream);
}

/* The path on which ranks read each other: between processes the one that they have, AUTO where not all are reached. */
static reshard_path reading_path(const case_context *l) {
  reshard_comm comm = l->comms[l->first];
  if (l->reached != NULL && !l->all_reached)
    return RESHARD_PATH_AUTO;
  if (l->runner->remote == NULL || rs_path_find(comm, RESHARD_PATH_DIRECT) != NULL)
    return RESHARD_PATH_DIRECT;
  return comm->memory.imports != NULL && rs_path_find(comm, RESHARD_PATH_MIXED) != NULL ? RESHARD_PATH_MIXED
                                                                                        : RESHARD_PATH_AUTO;
}

/* One of the paths: under a limit mostly one that can stage, as AUTO need not; with domains one that passes bytes on,
 * packed or mixed. */
static reshard_path draw_path(const case_context *l, int64_t drawn) {
  const reshard_path reads = reading_path(l), paths[] = {reads, RESHARD_PATH_PACKED, RESHARD_PATH_AUTO};
  reshard_path fixed = l->runner->fixed.path, path = paths[drawn % 3];
  bool domains = l->c->topology.domain != NULL;
  if (domains && reads == RESHARD_PATH_MIXED && drawn % 2 == 0)
    path = reads;
  else if ((domains || (drawn % 3 == 2 && l->c->options.workspace_limit > 0)) && l->c->seed % (domains ? 8 : 4))
    path = RESHARD_PATH_PACKED;
  return fixed != RESHARD_PATH_AUTO ? fixed : path;
}

/* One thread for all ranks here: for a graph always, else where these are one group, now and then. */
static bool draw_drive_all(rng *r, const case_context *l) {
  bool drawn = rng_one_in(r, 2);
  return l->runner->fixed.graph || (drawn && l->comms[l->first]->locals == l->locals);
}

/* Ranks whose arrays the other processes of a node map: mostly all, so that they can take the direct path. */
static void draw_reached(rng *r, case_context *l) {
  const session *remote = l->runner->remote;
  rs_device *device = remote != NULL ? session_device(remote, 0) : NULL;
  if (device == NULL || !device->memory->shared)
    return;
  reshard_path fixed = l->runner->fixed.path;
  l->all_reached = fixed == RESHARD_PATH_DIRECT || fixed == RESHARD_PATH_MIXED || !rng_one_in(r, 4);
  l->reached = cli_alloc(l->c->world, sizeof *l->reached);
  for (int64_t i = 0; i < l->c->world; i++)
    l->reached[i] = l->all_reached || rng_one_in(r, 2);
}

static void draw_passes(rng *r, case_context *l) {
  int first = (int)rng_below(r, 3), n = rng_one_in(r, 2) ? 1 : 2;
  for (int i = 0; i < n; i++) {
    case_pass *p = &l->passes[l->npasses++];
    *p = (case_pass){.path = draw_path(l, first + i)};
    p->drive_all = draw_drive_all(r, l);
    p->own_workspace = p->path != RESHARD_PATH_DIRECT && rng_one_in(r, 3);
    p->executes = rng_one_in(r, 4) ? 3 : 2;
    p->rebind = (unsigned)rng_below(r, 4) << 1;
  }
  if (l->c->reversible && rng_one_in(r, 4)) {
    case_pass *p = &l->passes[l->npasses++];
    *p = (case_pass){.path = draw_path(l, rng_below(r, 3)), .reverse = true, .executes = 1};
    p->drive_all = draw_drive_all(r, l);
  }
}

static void count_parts(const oracle_layout *l, case_totals *totals) {
  bool parts = false, shared = false;
  for (int m = 0; m < l->mesh_ndim; m++)
    for (int p = 0; p < l->placement[m].nparts; p++) {
      parts = true;
      shared |= l->part[m][p].pieces > 0 && l->part[m][p].pieces < l->mesh[m];
    }
  totals->parts[0] += parts;
  totals->parts[1] += shared;
}

static void count_blocks(const case_entry *e, bool rounds, case_totals *totals) {
  bool back = e->dtype == RESHARD_F8_E4M3, large = false, shorter = false;
  reshard_dtype wide = back ? e->dst_dtype : e->dtype;
  const oracle_layout *l = back ? &e->src.described : &e->dst.described;
  if (e->scales == RESHARD_DTYPE_NONE)
    return;
  for (int d = 0; d < l->ndim; d++) {
    large |= e->block[d] > 1 && l->shape[d] > 1;
    shorter |= l->shape[d] % e->block[d] != 0;
  }
  totals->blocks[wide == RESHARD_F32 ? BLOCKS_F32 : wide == RESHARD_BF16 ? BLOCKS_BF16 : BLOCKS_F16]++;
  totals->blocks[!back ? BLOCKS_TO : e->whole ? BLOCKS_BACK : BLOCKS_WIDE_BACK]++;
  totals->blocks[e->scales == RESHARD_F32 ? BLOCKS_F32_SCALES : BLOCKS_E8M0]++;
  totals->blocks[BLOCKS_LARGE] += large;
  totals->blocks[BLOCKS_SHORT] += shorter;
  totals->blocks[BLOCKS_ROUNDS] += large && rounds;
}

static void add_totals(const case_context *l, case_totals *totals) {
  bool seen[RESHARD_LAYOUT_KIND_COUNT][RESHARD_LAYOUT_KIND_COUNT] = {{false}};
  for (int64_t i = 0; i < l->c->nentries; i++)
    seen[l->c->entry[i].src.described.kind][l->c->entry[i].dst.described.kind] = true;
  for (int a = 0; a < RESHARD_LAYOUT_KIND_COUNT; a++)
    for (int b = 0; b < RESHARD_LAYOUT_KIND_COUNT; b++)
      totals->pairs[a][b] += seen[a][b];
  totals->cases++;
  totals->casts += l->c->casts;
  for (int64_t i = 0; i < l->c->nentries; i++) {
    count_parts(&l->c->entry[i].src.described, totals);
    count_parts(&l->c->entry[i].dst.described, totals);
  }
  for (int64_t i = 0; i < l->c->nentries; i++)
    for (int a = 0; a < CASE_NUMBERS; a++)
      for (int b = 0; b < CASE_NUMBERS; b++)
        totals->converted[a][b] += a != b && l->c->entry[i].scales == RESHARD_DTYPE_NONE &&
                                   l->c->entry[i].dtype == case_numbers[a] &&
                                   l->c->entry[i].dst_dtype == case_numbers[b];
  bool limited = l->c->options.workspace_limit > 0, staged = false, several = false, passed = false;
  for (int64_t r = l->first; r < l->first + l->locals; r++) {
    staged |= l->rank[r].staged > 0;
    several |= l->rank[r].rounds > 1;
    passed |= l->rank[r].passed;
    totals->between += l->rank[r].between;
    totals->within += l->rank[r].within;
  }
  for (int64_t i = 0; i < l->c->nentries; i++)
    count_blocks(&l->c->entry[i], several, totals);
  totals->limited += limited;
  totals->staged += limited && staged;
  totals->rounds += limited && several;
  totals->domains += l->c->topology.domain != NULL;
  totals->passed[several] += passed;
  totals->entries += l->c->nentries;
  totals->bytes += l->c->bytes;
  for (int i = 0; i < l->npasses; i++) {
    totals->executes += l->passes[i].executes;
    totals->reversed += l->passes[i].reverse;
  }
  for (int64_t r = 0; r < l->c->world; r++)
    totals->wire_bytes += l->c->counts.lacked[r];
}

static void add_description(const case_plan *c, rs_text *why) {
  cli_add(why, "%s  world %lld, limit %lld%s", why->length > 0 ? "\n" : "", (long long)c->world,
          (long long)c->options.workspace_limit,
          c->options.nodes != NULL      ? ", node map"
          : c->options.topology != NULL ? ", domains"
                                        : "");
  for (int64_t i = 0; i < c->nentries; i++)
    case_describe_entry(&c->entry[i], i, why);
}

/* The communicator of a case, and which of its ranks are here. */
static bool choose_comms(case_context *l, rng *r) {
  case_runner *runner = l->runner;
  const session *remote = runner->remote;
  l->comms = cli_alloc(l->c->world, sizeof(reshard_comm));
  reshard_isa isa = (reshard_isa)rng_below(r, RESHARD_ISA_COUNT);
  int threads = rng_one_in(r, 4) ? (int)rng_in(r, 2, 3) : 1;
  threads = runner->fixed.threads > 0 ? runner->fixed.threads : threads;
  l->first = remote != NULL ? remote->first : 0;
  l->locals = remote != NULL ? remote->locals : l->c->world;
  reshard_comm *comms = remote != NULL ? remote->comms
                                       : case_comms_get(runner->comms, l->c->world, threads,
                                                        reshard_isa_available(isa) ? isa : RESHARD_ISA_AUTO, &l->why);
  for (int64_t i = 0; comms != NULL && i < l->locals; i++)
    l->comms[l->first + i] = comms[i];
  l->shared = remote == NULL ? comms : NULL;
  return comms != NULL;
}

bool case_run(case_runner *runner, uint64_t seed, case_totals *totals, char **why) {
  case_plan c;
  case_context l = {.runner = runner, .c = &c};
  *why = NULL;
  if (runner->fixed.describe) {
    printf("seed %llu\n", (unsigned long long)seed);
    fflush(stdout); /* before anything can crash */
  }
  if (!case_make(seed, &runner->fixed, &c, &l.why)) {
    *why = l.why.at;
    return false;
  }
  if (runner->fixed.describe) {
    rs_text text = {0};
    add_description(&c, &text);
    printf("%s\n", text.at);
    fflush(stdout);
    free(text.at);
  }
  rng r;
  rng_seed(&r, seed ^ 0x72756e);
  if (choose_comms(&l, &r)) {
    pthread_mutex_init(&l.lock, NULL);
    l.entries = case_entries(&c);
    l.rank = cli_alloc(c.world, sizeof *l.rank);
    l.transfers = cli_alloc(c.world, sizeof(reshard_transfer));
    draw_reached(&r, &l);
    draw_passes(&r, &l);
    if (seed % 2 == 0)
      create_plans(&l);
    rank_pool_run(runner->pool, l.locals, run_rank, &l);
    add_totals(&l, totals);
    if (l.why.length > 0 && l.shared != NULL)
      case_comms_drop(runner->comms, l.shared); /* a rank may have given up in the middle of a collective call */
    free(l.entries);
    free(l.rank);
    free(l.reached);
    free(l.transfers);
    pthread_mutex_destroy(&l.lock);
  }
  free(l.comms);
  bool right = l.why.length == 0;
  if (!right)
    add_description(&c, &l.why);
  case_free(&c);
  *why = l.why.at;
  return right;
}
