/* A job that loses a rank in the middle, and goes on over the others from its last save.
 *
 * Four ranks have a weight, cut by rows. Each step gathers it and computes the rank's rows anew. Every third step they
 * save. In step 7 rank 2 is gone. The others' call returns an error that names it. They see which part of the weight
 * is lost, shrink the communicator, load the last save as three ranks, and go on. In the end the weight has to be the
 * one that a single rank computes.
 *
 * The ranks are threads; each runs rank_main as a process of a job would, over NCCL or MPI with the same calls. NCCL
 * does not know which ranks are missing: there the list for reshard_comm_shrink comes from whoever watches the
 * processes.
 *
 * usage: lost_rank [DIRECTORY] */
#include <reshard/reshard.h>
#include <reshard/torch.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RANKS = 4, ROWS = 23, COLUMNS = 5, STEPS = 12, SAVES = 3, LOST = 2, LOST_IN = 7 };
static const int64_t shape[2] = {ROWS, COLUMNS};

/* One rank: its task, and its findings. */
typedef struct rank {
  reshard_comm comm; /* owned */
  int64_t number;    /* at the start of the job */
  const char *directory;
  int64_t size, resumed; /* of the communicator at the end; the step that it went on from, -1: none was lost */
  int wrong;
} rank;

/* A rank's part of the model. */
typedef struct model {
  reshard_sharder sharder;
  reshard_sharded_tensor weight;
} model;

/* Ends the program after an error that is no lost rank. */
static void require_success(reshard_status status) {
  if (status == RESHARD_SUCCESS)
    return;
  fprintf(stderr, "lost_rank: %s: %s\n", reshard_status_string(status), reshard_last_error());
  exit(EXIT_FAILURE);
}

static float *data_of(reshard_tensor tensor) {
  reshard_tensor_info info;
  require_success(reshard_tensor_get_info(tensor, &info));
  return info.data;
}

/* --- The model ---------------------------------------------------------------------------------------------------- */

/* An element's next value: small integers, so that sums are exact in any order. */
static float next_value(const float *whole, int64_t row, int64_t column) {
  float sum = whole[row * COLUMNS + column] + whole[(row + 1) % ROWS * COLUMNS + column] * 2 + (float)column;
  return sum - 97 * (float)(int)(sum / 97);
}

static reshard_status fill_row(void *user, reshard_tensor array, const reshard_box *box) {
  (void)user;
  for (int64_t i = 0; i < box->extent[0] * COLUMNS; i++)
    data_of(array)[i] = (float)((box->offset[0] * COLUMNS + i) % 13);
  return RESHARD_SUCCESS;
}

static void open_model(const rank *r, model *m) {
  const reshard_properties f32 = {.dtype = RESHARD_F32};
  reshard_layout rows;
  require_success(reshard_sharder_create(r->comm, NULL, &m->sharder));
  require_success(reshard_layout_parse("chunk(0)", 2, shape, reshard_comm_size(r->comm), &rows));
  require_success(reshard_sharded_tensor_generate(m->sharder, rows, &f32, fill_row, NULL, NULL, &m->weight));
  reshard_layout_release(rows);
}

static void close_model(model *m) {
  reshard_sharded_tensor_release(m->weight);
  reshard_sharder_destroy(m->sharder);
}

/* Gathers the weight on every rank. */
static reshard_status gather_weight(const model *m, reshard_tensor *whole) {
  require_success(reshard_tensor_create(RESHARD_F32, 2, shape, whole));
  reshard_status status = reshard_sharded_tensor_gather_all(m->weight, *whole, NULL);
  if (status != RESHARD_SUCCESS)
    reshard_tensor_release(*whole);
  return status;
}

static reshard_status train_step(const model *m) {
  reshard_tensor whole, mine;
  reshard_box box;
  reshard_status status = gather_weight(m, &whole);
  if (status != RESHARD_SUCCESS)
    return status;
  require_success(reshard_sharded_tensor_local(m->weight, 0, &mine, &box));
  for (int64_t i = 0; i < box.extent[0] * COLUMNS; i++)
    data_of(mine)[i] = next_value(data_of(whole), box.offset[0] + i / COLUMNS, i % COLUMNS);
  reshard_tensor_release(whole);
  return RESHARD_SUCCESS;
}

/* --- Saves -------------------------------------------------------------------------------------------------------- */

static reshard_tree make_state(const model *m, int64_t step) {
  reshard_tree state, weight, number;
  require_success(reshard_tree_dict(&state));
  require_success(reshard_state_sharded(m->weight, &weight));
  require_success(reshard_tree_int(step, &number));
  require_success(reshard_tree_set(state, "weight", weight));
  require_success(reshard_tree_set(state, "step", number));
  reshard_tree_release(weight); /* the dict holds it */
  reshard_tree_release(number);
  return state;
}

static reshard_status model_save(const rank *r, const model *m, int64_t step) {
  reshard_state_save_options replace = RESHARD_STATE_SAVE_OPTIONS_DEFAULTS;
  replace.force = 1;
  reshard_tree state = make_state(m, step);
  reshard_status status = reshard_state_save(m->sharder, state, r->directory, &replace, NULL);
  reshard_tree_release(state);
  return status;
}

/* Returns the step that was saved. */
static int64_t model_load(const rank *r, const model *m) {
  reshard_tree state = make_state(m, 0), number;
  int64_t step;
  require_success(reshard_state_load(m->sharder, state, r->directory, NULL, NULL));
  require_success(reshard_tree_find(state, "step", &number));
  require_success(reshard_tree_get_int(number, &step));
  reshard_tree_release(state);
  return step;
}

/* --- Going on ----------------------------------------------------------------------------------------------------- */

static int add_elements(void *user, const reshard_box *box) {
  *(int64_t *)user += box->extent[0] * box->extent[1];
  return 0;
}

/* Leaves the lost ranks behind: the communicator, and all that was made on it, is made anew without them. */
static int64_t go_on(rank *r, model *m) {
  int64_t missing[RANKS], n, elements = 0;
  reshard_comm smaller;
  char why[1024];
  snprintf(why, sizeof why, "%s", reshard_last_error());
  require_success(reshard_comm_missing(r->comm, missing, &n));
  require_success(reshard_layout_lost(reshard_sharded_tensor_layout(m->weight), n, missing, add_elements, &elements));
  require_success(reshard_comm_shrink(r->comm, 0, NULL, &smaller)); /* 0: without those that are missing */
  if (reshard_comm_rank(smaller) == 0)
    printf("%s\n%lld of %d elements are lost with %lld of %lld ranks\n", why, (long long)elements, ROWS * COLUMNS,
           (long long)n, (long long)reshard_comm_size(r->comm));
  close_model(m);
  reshard_comm_destroy(r->comm);
  r->comm = smaller;
  open_model(r, m);
  return model_load(r, m);
}

/* The whole weight after all steps, computed by this rank alone. */
static void check_weight(rank *r, const model *m) {
  static const size_t bytes = sizeof(float) * ROWS * COLUMNS;
  reshard_tensor whole;
  float weight[ROWS * COLUMNS], next[ROWS * COLUMNS];
  for (int i = 0; i < ROWS * COLUMNS; i++)
    weight[i] = (float)(i % 13);
  for (int step = 0; step < STEPS; step++) {
    for (int i = 0; i < ROWS * COLUMNS; i++)
      next[i] = next_value(weight, i / COLUMNS, i % COLUMNS);
    memcpy(weight, next, bytes);
  }
  require_success(gather_weight(m, &whole));
  r->wrong += memcmp(data_of(whole), weight, bytes) != 0;
  reshard_tensor_release(whole);
}

static void *rank_main(void *argument) {
  rank *r = argument;
  model m;
  int gone = 0;
  r->resumed = -1;
  open_model(r, &m);
  for (int64_t step = 0; step < STEPS && !gone;) {
    reshard_status status = step % SAVES == 0 ? model_save(r, &m, step) : RESHARD_SUCCESS;
    gone = r->number == LOST && step == LOST_IN;
    if (gone)
      break;
    if (status == RESHARD_SUCCESS)
      status = train_step(&m);
    if (status == RESHARD_ERROR_PEER || status == RESHARD_ERROR_TIMEOUT)
      step = r->resumed = go_on(r, &m);
    else
      require_success(status);
    step += status == RESHARD_SUCCESS;
  }
  if (!gone)
    check_weight(r, &m);
  r->size = reshard_comm_size(r->comm);
  close_model(&m);
  reshard_comm_destroy(r->comm);
  return NULL;
}

int main(int argc, char **argv) {
  reshard_local_options options = RESHARD_LOCAL_OPTIONS_DEFAULTS;
  options.timeout_ms = 60000;
  reshard_comm comms[RANKS];
  pthread_t threads[RANKS];
  rank ranks[RANKS];
  int wrong = 0;
  require_success(reshard_comm_create_local(RANKS, &options, comms));
  for (int i = 0; i < RANKS; i++) {
    ranks[i] = (rank){.comm = comms[i], .number = i, .directory = argc > 1 ? argv[1] : "lost_rank_checkpoint"};
    if (pthread_create(&threads[i], NULL, rank_main, &ranks[i]) != 0)
      exit(EXIT_FAILURE);
  }
  for (int i = 0; i < RANKS; i++)
    pthread_join(threads[i], NULL);
  for (int i = 0; i < RANKS; i++) {
    wrong += ranks[i].wrong;
    if (i != LOST)
      wrong += ranks[i].size != RANKS - 1 || ranks[i].resumed != LOST_IN / SAVES * SAVES;
  }
  printf("%d ranks went on from step %lld to %d, %d things are wrong\n", RANKS - 1, (long long)ranks[0].resumed, STEPS,
         wrong);
  return wrong == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
