/* A training step of FSDP with tensor parallelism, a checkpoint of it, and another world that loads it.
 *
 * Four ranks, dp 2 x tp 2: tensor parallelism cuts each weight, and FSDP keeps a half of each part. A step gathers the
 * parameters of a layer while the layer before is in use, uses them, and frees them again. The model is saved as it is
 * cut. Three ranks, dp 1 x tp 3, load it, compute the same outputs and have every byte of it.
 *
 * The ranks are threads; each runs rank_main as a process of a job would. They are on the CPU, or share the GPUs that
 * are named, one after the other.
 *
 * usage: fsdp_tp [DIRECTORY [DEVICE...]], a device being cpu, cuda or cuda:N */
#include <reshard/reshard.h>
#include <reshard/torch.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A layer computes down * relu(up * (norm . x)). Extents that no number of ranks divides: pieces are uneven. */
enum { LAYERS = 3, DIM = 13, HIDDEN = 31, PARAMETERS = 3, MOST_RANKS = 4, MOST_DEVICES = 4 };
typedef struct parameter {
  const char *name;
  int ndim;
  int64_t shape[2];
  int tp; /* the dim that tensor parallelism cuts, -1: all its ranks have the whole */
} parameter;
static const parameter parameters[PARAMETERS] = {
    {"norm.weight", 1, {DIM}, -1}, {"up.weight", 2, {HIDDEN, DIM}, 0}, {"down.weight", 2, {DIM, HIDDEN}, 1}};

/* One rank: its task, and its findings. */
typedef struct rank {
  reshard_comm comm;
  reshard_device device;
  int64_t mesh[2]; /* extents of dp and tp */
  int loads;       /* else it makes the model, and saves it */
  const char *directory;
  double output[DIM];               /* of a step: this rank's share of the sum over TP */
  int64_t kept, gathered, received; /* bytes of parameters */
  int wrong;                        /* parameters that are not those of the original, in any byte */
} rank;

/* A rank's model. */
typedef struct model {
  reshard_sharder sharder;
  reshard_device device, cpu;
  void *compute, *side; /* streams: of the layer in use, and of the next one's way here; on the CPU NULL */
  reshard_mesh mesh, tp;
  reshard_fsdp_extension fsdp;
  reshard_tree state;                             /* a dict of DTensors: "layers.0.norm.weight", ... */
  reshard_tree chunk[LAYERS][PARAMETERS];         /* they; borrowed from the dict */
  reshard_flat_record record[LAYERS][PARAMETERS]; /* what each was before FSDP cut it */
} model;

/* Ends the program after an error, as the other ranks would wait for this one. */
static void require_success(reshard_status status) {
  if (status == RESHARD_SUCCESS)
    return;
  fprintf(stderr, "fsdp_tp: %s: %s\n", reshard_status_string(status), reshard_last_error());
  exit(EXIT_FAILURE);
}

static reshard_tensor_info info_of(reshard_tensor tensor) {
  reshard_tensor_info info;
  require_success(reshard_tensor_get_info(tensor, &info));
  return info;
}

static int64_t bytes_of(reshard_tensor tensor) { return info_of(tensor).elements * (int64_t)sizeof(float); }

/* A tensor on a device: itself where it is there. */
static reshard_tensor move_tensor(reshard_device device, reshard_tensor tensor, void *stream) {
  reshard_tree leaf, moved;
  require_success(reshard_tree_tensor(tensor, &leaf));
  require_success(reshard_tree_to(leaf, device, stream, NULL, &moved));
  require_success(reshard_tree_get_tensor(moved, &tensor));
  reshard_tensor_retain(tensor);
  reshard_tree_release(moved);
  reshard_tree_release(leaf);
  return tensor;
}

/* The original: small integers, so that sums are exact in any order. A load begins with zeros. */
static reshard_tensor make_whole(int layer, int p, int zeros) {
  reshard_tensor whole;
  require_success(reshard_tensor_create(RESHARD_F32, parameters[p].ndim, parameters[p].shape, &whole));
  reshard_tensor_info info = info_of(whole);
  for (int64_t i = 0; i < info.elements; i++)
    ((float *)info.data)[i] = zeros ? 0 : (float)((i * 7 + layer * 5 + p * 3) % 11 - 5);
  return whole;
}

/* --- Cutting ------------------------------------------------------------------------------------------------------ */

/* Cuts a parameter as a framework does it. TP makes DTensors of some tensors and leaves others as they are. FSDP
 * flattens them, which records their placements, and keeps its chunk. Nothing is sent: every rank has the whole. */
static void shard_parameter(model *m, int layer, int p, int zeros) {
  reshard_tensor original = make_whole(layer, p, zeros), whole = move_tensor(m->device, original, m->compute);
  reshard_tree leaf, flat;
  char name[64];
  if (parameters[p].tp < 0) {
    require_success(reshard_tree_tensor(whole, &leaf));
  } else {
    const reshard_placement cut = {.kind = RESHARD_PLACEMENT_SHARD, .dim = parameters[p].tp};
    const reshard_placing over_tp = {m->tp, &cut, NULL};
    const reshard_properties f32 = {.dtype = RESHARD_F32};
    reshard_dtensor part;
    require_success(reshard_dtensor_distribute(m->sharder, &over_tp, whole, -1, parameters[p].ndim, parameters[p].shape,
                                               &f32, m->compute, &part));
    require_success(reshard_state_dtensor(part, &leaf));
    reshard_dtensor_release(part);
  }
  reshard_tensor_release(whole);
  reshard_tensor_release(original);
  require_success(m->fsdp.pre_flatten_transform(m->fsdp.user, leaf, &flat, &m->record[layer][p]));
  require_success(m->fsdp.chunk_dtensor(m->fsdp.user, leaf, m->mesh, m->compute, &m->chunk[layer][p]));
  snprintf(name, sizeof name, "layers.%d.%s", layer, parameters[p].name);
  require_success(reshard_tree_set(m->state, name, m->chunk[layer][p]));
  reshard_tree_release(m->chunk[layer][p]); /* the dict holds it */
  reshard_tree_release(flat);
  reshard_tree_release(leaf);
}

static void open_model(const rank *r, model *m) {
  static const char *const names[2] = {"dp", "tp"};
  reshard_sharder_options on_device = RESHARD_SHARDER_OPTIONS_DEFAULTS;
  on_device.device = r->device;
  m->fsdp = (reshard_fsdp_extension)RESHARD_FSDP_EXTENSION_DEFAULTS;
  m->device = r->device;
  require_success(reshard_device_create("cpu", NULL, &m->cpu));
  require_success(reshard_stream_create(m->device, &m->compute));
  require_success(reshard_stream_create(m->device, &m->side));
  require_success(reshard_sharder_create(r->comm, &on_device, &m->sharder));
  require_success(reshard_mesh_create(r->comm, 0, 2, r->mesh, names, 0, NULL, &m->mesh));
  require_success(reshard_mesh_init_groups(m->mesh, 0, NULL)); /* for what is on a part of it alone, by all ranks */
  require_success(reshard_mesh_sub(m->mesh, "tp", RESHARD_MESH_MINE, &m->tp));
  require_success(reshard_fsdp_extension_init(m->sharder, &m->fsdp));
  require_success(reshard_fsdp_extension_check(&m->fsdp));
  require_success(reshard_tree_dict(&m->state));
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
  reshard_stream_destroy(m->device, m->side);
  reshard_stream_destroy(m->device, m->compute);
  reshard_device_release(m->cpu);
}

/* --- A step ------------------------------------------------------------------------------------------------------- */

/* Gathers a layer's parameters to TP's parts, in new memory, on the side stream, while the layer before is in use. */
static void gather_layer(const model *m, int layer, reshard_tree gathered[PARAMETERS], int64_t *bytes) {
  for (int p = 0; p < PARAMETERS; p++) {
    reshard_tree flat;
    reshard_tensor tensor;
    require_success(m->fsdp.all_gather_dtensor(m->fsdp.user, m->chunk[layer][p], m->mesh, m->side, &flat));
    require_success(reshard_tree_get_tensor(flat, &tensor));
    require_success(m->fsdp.post_unflatten_transform(m->fsdp.user, tensor, m->record[layer][p], m->side, &gathered[p]));
    *bytes += bytes_of(tensor);
    reshard_tree_release(flat);
  }
}

/* Copies a gathered parameter to the host, when the compute stream has reached it. */
static reshard_tensor copy_to_host(const model *m, reshard_tree parameter) {
  reshard_tensor tensor;
  reshard_dtensor part;
  if (reshard_tree_get_kind(parameter) == RESHARD_TREE_TENSOR) {
    require_success(reshard_tree_get_tensor(parameter, &tensor));
  } else {
    require_success(reshard_state_get_dtensor(parameter, &part));
    tensor = reshard_dtensor_local(part);
  }
  return move_tensor(m->cpu, tensor, m->compute);
}

/* This rank's rows of up and columns of down, x = (-4, -3, -2, ...). Adding the outputs over TP is not the library's. A
 * real program's kernels would use the parameters in place. This one copies them, and computes here. */
static void use_layer(const model *m, reshard_tree gathered[PARAMETERS], double *y) {
  reshard_tensor norm = copy_to_host(m, gathered[0]), up = copy_to_host(m, gathered[1]),
                 down = copy_to_host(m, gathered[2]);
  const float *n = info_of(norm).data, *u = info_of(up).data, *d = info_of(down).data;
  int64_t rows = info_of(up).shape[0];
  for (int64_t i = 0; i < rows; i++) {
    double hidden = 0;
    for (int64_t j = 0; j < DIM; j++)
      hidden += u[i * DIM + j] * n[j] * (double)(j - 4);
    for (int64_t j = 0; j < DIM && hidden > 0; j++)
      y[j] += d[j * rows + i] * hidden;
  }
  reshard_tensor_release(norm);
  reshard_tensor_release(up);
  reshard_tensor_release(down);
}

/* Uses layer after layer. At most two are whole at a time: the one in use, and the next one on its way. */
static void train_step(const model *m, rank *r) {
  reshard_tree layer[2][PARAMETERS];
  require_success(reshard_stream_order(m->device, m->compute, m->side)); /* the chunks are there */
  gather_layer(m, 0, layer[0], &r->gathered);
  for (int l = 0; l < LAYERS; l++) {
    require_success(reshard_stream_order(m->device, m->side, m->compute)); /* the layer has come */
    if (l + 1 < LAYERS)
      gather_layer(m, l + 1, layer[(l + 1) % 2], &r->gathered);
    use_layer(m, layer[l % 2], r->output);
    for (int p = 0; p < PARAMETERS; p++)
      reshard_tree_release(layer[l % 2][p]); /* which frees the memory, when compute is done with it */
  }
}

/* --- Ranks -------------------------------------------------------------------------------------------------------- */

/* Bytes that are kept between steps; the whole parameters against the original. */
static void check_model(const model *m, rank *r) {
  for (int l = 0; l < LAYERS; l++)
    for (int p = 0; p < PARAMETERS; p++) {
      reshard_dtensor tensor;
      reshard_tensor original = make_whole(l, p, 0), whole, seen;
      require_success(reshard_state_get_dtensor(m->chunk[l][p], &tensor));
      require_success(reshard_dtensor_full(tensor, m->compute, &whole));
      seen = move_tensor(m->cpu, whole, m->compute);
      r->wrong += memcmp(info_of(seen).data, info_of(original).data, (size_t)bytes_of(seen)) != 0;
      r->kept += bytes_of(reshard_dtensor_local(tensor));
      reshard_tensor_release(seen);
      reshard_tensor_release(whole);
      reshard_tensor_release(original);
    }
}

static void *rank_main(void *argument) {
  rank *r = argument;
  reshard_comm_stats before, after;
  model m = {0};
  open_model(r, &m);
  reshard_state_save_options save = RESHARD_STATE_SAVE_OPTIONS_DEFAULTS;
  save.force = 1, save.stream = m.compute;
  reshard_state_load_options load = RESHARD_STATE_LOAD_OPTIONS_DEFAULTS;
  load.stream = m.compute;
  if (r->loads)
    require_success(reshard_state_load(m.sharder, m.state, r->directory, &load, NULL));
  require_success(reshard_comm_get_stats(r->comm, &before));
  train_step(&m, r);
  require_success(reshard_comm_get_stats(r->comm, &after));
  r->received = after.received_bytes - before.received_bytes;
  if (!r->loads)
    require_success(reshard_state_save(m.sharder, m.state, r->directory, &save, NULL));
  check_model(&m, r);
  close_model(&m);
  return NULL;
}

/* Runs dp x tp ranks, prints their findings, and adds up the outputs of the first row of TP. Returns the number of
 * errors: parameters, and ranks that received other bytes than those that they lacked. */
static int run_world(int dp, int tp, int loads, const char *directory, int ndevices, const reshard_device *devices,
                     double *output) {
  reshard_local_options on = RESHARD_LOCAL_OPTIONS_DEFAULTS;
  on.devices = devices, on.ndevices = ndevices;
  reshard_comm comms[MOST_RANKS];
  pthread_t threads[MOST_RANKS];
  rank ranks[MOST_RANKS];
  int wrong = 0;
  require_success(reshard_comm_create_local(dp * tp, &on, comms)); /* rank i is on device i % ndevices */
  for (int i = 0; i < dp * tp; i++) {
    ranks[i] = (rank){
        .comm = comms[i], .device = devices[i % ndevices], .mesh = {dp, tp}, .loads = loads, .directory = directory};
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
  reshard_device devices[MOST_DEVICES];
  int ndevices = 0;
  do
    require_success(reshard_device_create(argc > 2 ? argv[2 + ndevices] : "cpu", NULL, &devices[ndevices]));
  while (++ndevices < argc - 2 && ndevices < MOST_DEVICES);
  int wrong = run_world(2, 2, 0, directory, ndevices, devices, trained);
  wrong += run_world(1, 3, 1, directory, ndevices, devices, loaded);
  for (int i = 0; i < ndevices; i++)
    reshard_device_release(devices[i]);
  int same = memcmp(trained, loaded, sizeof trained) == 0;
  printf("outputs are %s, %d things are wrong\n", same ? "equal" : "DIFFERENT", wrong);
  return same && wrong == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
