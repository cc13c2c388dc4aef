/* A training step of FSDP with tensor parallelism, a checkpoint of it, and another world that takes it up.
 *
 * Four ranks, dp 2 x tp 2: tensor parallelism cuts each weight, FSDP keeps a half of what that leaves. In a step the
 * parameters of a layer are gathered while the layer before is in use, used, and freed again. The model is saved as it
 * is cut and loaded by three ranks, dp 1 x tp 3, which compute the same and have every byte of it.
 *
 * The ranks are threads; each runs rank_main as a process of a job would. usage: fsdp_tp [DIRECTORY] */
#include <reshard/fsdp.h>
#include <reshard/reshard.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A layer computes down * relu(up * (norm . x)). Extents that no number of ranks divides: pieces are uneven. */
enum { LAYERS = 3, DIM = 13, HIDDEN = 31, PARAMETERS = 3, MOST_RANKS = 4 };
typedef struct parameter {
  const char *name;
  int ndim;
  int64_t shape[2];
  int tp; /* the dim that tensor parallelism cuts, -1: all its ranks have the whole */
} parameter;
static const parameter parameters[PARAMETERS] = {
    {"norm.weight", 1, {DIM}, -1}, {"up.weight", 2, {HIDDEN, DIM}, 0}, {"down.weight", 2, {DIM, HIDDEN}, 1}};

/* What one rank is told, and what it finds. */
typedef struct rank {
  reshard_comm comm;
  int64_t mesh[2]; /* extents of dp and tp */
  int loads;       /* else it makes the model, and saves it */
  const char *directory;
  double output[DIM];               /* of a step: this rank's share of the sum over TP */
  int64_t kept, gathered, received; /* bytes of parameters */
  int wrong;                        /* parameters that are not those of the original, in any byte */
} rank;

/* Its model. */
typedef struct model {
  reshard_sharder sharder;
  reshard_mesh mesh, tp;
  reshard_fsdp_extension fsdp;
  reshard_tree state;                             /* a dict of DTensors: "layers.0.norm.weight", ... */
  reshard_tree chunk[LAYERS][PARAMETERS];         /* they; borrowed from the dict */
  reshard_flat_record record[LAYERS][PARAMETERS]; /* what each was before FSDP cut it */
} model;

/* Ends the program, for the other ranks would wait for one that is gone. */
static void must(reshard_status status) {
  if (status == RESHARD_SUCCESS)
    return;
  fprintf(stderr, "fsdp_tp: %s: %s\n", reshard_status_string(status), reshard_last_error());
  exit(EXIT_FAILURE);
}

static reshard_tensor_info info_of(reshard_tensor tensor) {
  reshard_tensor_info info;
  must(reshard_tensor_get_info(tensor, &info));
  return info;
}

static int64_t bytes_of(reshard_tensor tensor) { return info_of(tensor).elements * (int64_t)sizeof(float); }

/* The original: small integers, so that sums are exact in any order. A load begins with zeros. */
static reshard_tensor make_whole(int layer, int p, int zeros) {
  reshard_tensor whole;
  must(reshard_tensor_create(RESHARD_F32, parameters[p].ndim, parameters[p].shape, &whole));
  reshard_tensor_info info = info_of(whole);
  for (int64_t i = 0; i < info.elements; i++)
    ((float *)info.data)[i] = zeros ? 0 : (float)((i * 7 + layer * 5 + p * 3) % 11 - 5);
  return whole;
}

/* --- Cutting ------------------------------------------------------------------------------------------------------ */

/* As a framework does it: TP makes DTensors of some tensors and leaves others as they are; FSDP flattens them, which
 * tells what they were, and keeps its chunk. Nothing is sent: every rank has the whole. */
static void shard_parameter(model *m, int layer, int p, int zeros) {
  reshard_tensor whole = make_whole(layer, p, zeros);
  reshard_tree leaf, flat;
  char name[64];
  if (parameters[p].tp < 0) {
    must(reshard_tree_tensor(whole, &leaf));
  } else {
    const reshard_placement cut = {RESHARD_PLACEMENT_SHARD, parameters[p].tp, 0};
    const reshard_placing over_tp = {m->tp, &cut, NULL};
    const reshard_properties f32 = {.dtype = RESHARD_F32};
    reshard_dtensor part;
    must(reshard_dtensor_distribute(m->sharder, &over_tp, whole, -1, parameters[p].ndim, parameters[p].shape, &f32,
                                    NULL, &part));
    must(reshard_state_dtensor(part, &leaf));
    reshard_dtensor_release(part);
  }
  reshard_tensor_release(whole);
  must(m->fsdp.pre_flatten_transform(m->fsdp.user, leaf, &flat, &m->record[layer][p]));
  must(m->fsdp.chunk_dtensor(m->fsdp.user, leaf, m->mesh, NULL, &m->chunk[layer][p]));
  snprintf(name, sizeof name, "layers.%d.%s", layer, parameters[p].name);
  must(reshard_tree_set(m->state, name, m->chunk[layer][p]));
  reshard_tree_release(m->chunk[layer][p]); /* the dict holds it */
  reshard_tree_release(flat);
  reshard_tree_release(leaf);
}

static void open_model(const rank *r, model *m) {
  static const char *const names[2] = {"dp", "tp"};
  m->fsdp.size = RESHARD_FSDP_EXTENSION_INIT;
  must(reshard_sharder_create(r->comm, NULL, &m->sharder));
  must(reshard_mesh_create(r->comm, 0, 2, r->mesh, names, 0, NULL, &m->mesh));
  must(reshard_mesh_sub(m->mesh, "tp", RESHARD_MESH_MINE, &m->tp));
  must(reshard_fsdp_extension_init(m->sharder, &m->fsdp));
  must(reshard_fsdp_extension_check(&m->fsdp));
  must(reshard_tree_dict(&m->state));
  for (int l = 0; l < LAYERS; l++)
    for (int p = 0; p < PARAMETERS; p++)
      shard_parameter(m, l, p, r->loads);
}

static void close_model(model *m) {
  for (int l = 0; l < LAYERS; l++)
    for (int p = 0; p < PARAMETERS; p++)
      reshard_flat_record_free(m->record[l][p]);
  reshard_tree_release(m->state);
  reshard_mesh_release(m->tp);
  reshard_mesh_release(m->mesh);
  reshard_sharder_destroy(m->sharder);
}

/* --- A step ------------------------------------------------------------------------------------------------------- */

/* A layer's parameters as TP has them, in new memory. On CUDA ranks `stream` is a side stream, so that they come while
 * the layer before computes. */
static void gather_layer(const model *m, int layer, void *stream, reshard_tree gathered[PARAMETERS], int64_t *bytes) {
  for (int p = 0; p < PARAMETERS; p++) {
    reshard_tree flat;
    reshard_tensor tensor;
    must(m->fsdp.all_gather_dtensor(m->fsdp.user, m->chunk[layer][p], m->mesh, stream, &flat));
    must(reshard_tree_get_tensor(flat, &tensor));
    must(m->fsdp.post_unflatten_transform(m->fsdp.user, tensor, m->record[layer][p], stream, &gathered[p]));
    *bytes += bytes_of(tensor);
    reshard_tree_release(flat);
  }
}

/* This rank's rows of up and columns of down, x = (-4, -3, -2, ...). What adds the outputs over TP is not ours. */
static void use_layer(reshard_tree gathered[PARAMETERS], double *y) {
  reshard_tensor norm;
  reshard_dtensor up, down;
  must(reshard_tree_get_tensor(gathered[0], &norm));
  must(reshard_state_get_dtensor(gathered[1], &up));
  must(reshard_state_get_dtensor(gathered[2], &down));
  const float *n = info_of(norm).data, *u = info_of(reshard_dtensor_local(up)).data;
  const float *d = info_of(reshard_dtensor_local(down)).data;
  int64_t rows = info_of(reshard_dtensor_local(up)).shape[0];
  for (int64_t i = 0; i < rows; i++) {
    double hidden = 0;
    for (int64_t j = 0; j < DIM; j++)
      hidden += u[i * DIM + j] * n[j] * (double)(j - 4);
    for (int64_t j = 0; j < DIM && hidden > 0; j++)
      y[j] += d[j * rows + i] * hidden;
  }
}

/* At most two layers are there at a time: the one in use, and the next one on its way. */
static void step(const model *m, rank *r) {
  void *stream = NULL; /* of ranks on the CPU, where calls return when all is done */
  reshard_tree layer[2][PARAMETERS];
  gather_layer(m, 0, stream, layer[0], &r->gathered);
  for (int l = 0; l < LAYERS; l++) {
    if (l + 1 < LAYERS)
      gather_layer(m, l + 1, stream, layer[(l + 1) % 2], &r->gathered);
    use_layer(layer[l % 2], r->output);
    for (int p = 0; p < PARAMETERS; p++)
      reshard_tree_release(layer[l % 2][p]); /* which frees the memory */
  }
}

/* --- Ranks -------------------------------------------------------------------------------------------------------- */

/* Bytes that are kept between steps; the whole parameters against the original. */
static void check_model(const model *m, rank *r) {
  for (int l = 0; l < LAYERS; l++)
    for (int p = 0; p < PARAMETERS; p++) {
      reshard_dtensor tensor;
      reshard_tensor original = make_whole(l, p, 0), whole;
      must(reshard_state_get_dtensor(m->chunk[l][p], &tensor));
      must(reshard_dtensor_full(tensor, NULL, &whole));
      r->wrong += memcmp(info_of(whole).data, info_of(original).data, (size_t)bytes_of(whole)) != 0;
      r->kept += bytes_of(reshard_dtensor_local(tensor));
      reshard_tensor_release(whole);
      reshard_tensor_release(original);
    }
}

static void *rank_main(void *argument) {
  rank *r = argument;
  const reshard_state_save_options over = {.size = RESHARD_STATE_SAVE_OPTIONS_INIT, .force = 1};
  reshard_comm_stats before, after;
  model m = {0};
  open_model(r, &m);
  if (r->loads)
    must(reshard_state_load(m.sharder, m.state, r->directory, NULL, NULL));
  must(reshard_comm_get_stats(r->comm, &before));
  step(&m, r);
  must(reshard_comm_get_stats(r->comm, &after));
  r->received = after.received_bytes - before.received_bytes;
  if (!r->loads)
    must(reshard_state_save(m.sharder, m.state, r->directory, &over, NULL));
  check_model(&m, r);
  close_model(&m);
  return NULL;
}

/* Runs dp x tp ranks, says what they found, and adds up the outputs of the first row of TP. Returns how much is wrong:
 * parameters, and ranks that received other bytes than those that they lacked. */
static int run(int dp, int tp, int loads, const char *directory, double *output) {
  reshard_comm comms[MOST_RANKS];
  pthread_t threads[MOST_RANKS];
  rank ranks[MOST_RANKS];
  int wrong = 0;
  must(reshard_comm_create_local(dp * tp, NULL, comms));
  for (int i = 0; i < dp * tp; i++) {
    ranks[i] = (rank){.comm = comms[i], .mesh = {dp, tp}, .loads = loads, .directory = directory};
    if (pthread_create(&threads[i], NULL, rank_main, &ranks[i]) != 0)
      exit(EXIT_FAILURE);
  }
  for (int i = 0; i < dp * tp; i++)
    pthread_join(threads[i], NULL);
  printf("dp %d x tp %d: %s\n", dp, tp, loads ? "loaded, and a step" : "a step, and saved");
  for (int i = 0; i < dp * tp; i++) {
    const rank *r = &ranks[i];
    printf("  rank %d keeps %lld bytes of parameters, gathered %lld layer by layer and received %lld\n", i,
           (long long)r->kept, (long long)r->gathered, (long long)r->received);
    wrong += r->wrong + (r->received != r->gathered - r->kept);
    for (int j = 0; i < tp && j < DIM; j++)
      output[j] += r->output[j];
    reshard_comm_destroy(comms[i]);
  }
  return wrong;
}

int main(int argc, char **argv) {
  const char *directory = argc > 1 ? argv[1] : "fsdp_tp_checkpoint";
  double trained[DIM] = {0}, loaded[DIM] = {0};
  int wrong = run(2, 2, 0, directory, trained);
  wrong += run(1, 3, 1, directory, loaded);
  int same = memcmp(trained, loaded, sizeof trained) == 0;
  printf("outputs are %s, %d things are wrong\n", same ? "equal" : "DIFFERENT", wrong);
  return same && wrong == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
