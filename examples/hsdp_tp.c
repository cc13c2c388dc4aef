/* A model under HSDP with tensor parallelism, its checkpoint, and another mesh that loads it.
 *
 * Eight ranks, replicate 2 x shard 2 x tp 2. TP cuts some parameters by rows, some by columns, has others whole on all
 * of its ranks, and does not know the rest. FSDP keeps a part of each of these, and the other half of the ranks keeps a
 * replica. A framework has two ways to save that. Each of the two layers here is saved by one of them:
 *   - DTensors over the whole mesh (chunk_dtensor),
 *   - sharded tensors of the FSDP group, nested where TP has cut (chunk_tensor).
 * One call saves both. Six ranks, replicate 1 x shard 3 x tp 2, load them: each layer in the way in which it was saved,
 * then in the other one. Every rank compares its parts and the whole parameters with the original.
 *
 * The ranks are threads; each runs rank_main as a process of a job would. They are on the CPU, or share the GPUs that
 * are named, one after the other; a device is cpu, cuda or cuda:N.
 * usage: hsdp_tp [DIRECTORY [DEVICE...]]
 *        hsdp_tp load DIRECTORY [DEVICE...]    a checkpoint of the same model, from any program */
#include <reshard/reshard.h>
#include <reshard/torch.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Extents that no number of ranks divides: parts are uneven, and some ranks have nothing of scale. */
enum { LAYERS = 2, DIM = 13, HEADS = 10, HIDDEN = 31, PARAMETERS = 8, MESH_DIMS = 3, MOST_RANKS = 8, MOST_DEVICES = 4 };
enum { TP_REPLICATES = -1, TP_UNKNOWN = -2 };
typedef struct parameter {
  const char *name;
  int ndim;
  int64_t shape[2];
  int tp; /* the dim that TP cuts, or one of the two above */
} parameter;
static const parameter parameters[PARAMETERS] = {
    {"norm.weight", 1, {DIM}, TP_REPLICATES},
    {"wq.weight", 2, {HEADS, DIM}, 0},
    {"wo.weight", 2, {DIM, HEADS}, 1},
    {"up.weight", 2, {HIDDEN, DIM}, 0},
    {"up.bias", 1, {HIDDEN}, 0},
    {"down.weight", 2, {DIM, HIDDEN}, 1},
    {"scale", 1, {3}, 0},
    {"positions", 2, {7, DIM}, TP_UNKNOWN},
};
typedef enum way { AS_DTENSOR, AS_SHARDED } way;

/* One rank: its task, and its findings. */
typedef struct rank {
  reshard_comm comm;
  reshard_device device;
  int64_t mesh[MESH_DIMS], ndevices;
  int loads;   /* else it makes the model, and saves it */
  int swapped; /* each layer goes the other way */
  const char *directory;
  int64_t at[MESH_DIMS], kept;      /* its coordinate; bytes of parameters */
  reshard_state_save_report report; /* of a save */
  int wrong;                        /* parts and parameters that are not those of the original, in any byte */
} rank;

/* A rank's model. */
typedef struct model {
  reshard_device device, cpu;
  void *stream; /* on the CPU NULL */
  reshard_mesh mesh, tp;
  reshard_sharder world, shard; /* of all ranks, for all that is on the mesh; of the FSDP group, for chunk_tensor */
  reshard_fsdp_group group;
  reshard_fsdp_extension fsdp;
  reshard_tree state; /* a dict: "layers.0.norm.weight", ... */
} model;

/* Ends the program after an error, as the other ranks would wait for this one. */
static void require_success(reshard_status status) {
  if (status == RESHARD_SUCCESS)
    return;
  fprintf(stderr, "hsdp_tp: %s: %s\n", reshard_status_string(status), reshard_last_error());
  exit(EXIT_FAILURE);
}

static reshard_tensor_info info_of(reshard_tensor tensor) {
  reshard_tensor_info info;
  require_success(reshard_tensor_get_info(tensor, &info));
  return info;
}

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

static void path_of(int layer, int p, char path[64]) { snprintf(path, 64, "layers.%d.%s", layer, parameters[p].name); }

/* Element i of a parameter in the original: no other element of the model has this value. */
static float original_element(int layer, int p, int64_t i) { return (float)(1000 * (layer * PARAMETERS + p + 1) + i); }

/* A parameter as the host has it before anything is cut. A load begins with zeros. */
static reshard_tensor make_whole(const model *m, int layer, int p, int zeros) {
  reshard_tensor whole, there;
  require_success(reshard_tensor_create(RESHARD_F32, parameters[p].ndim, parameters[p].shape, &whole));
  reshard_tensor_info info = info_of(whole);
  for (int64_t i = 0; i < info.elements; i++)
    ((float *)info.data)[i] = zeros ? 0 : original_element(layer, p, i);
  there = move_tensor(m->device, whole, m->stream);
  reshard_tensor_release(whole);
  return there;
}

/* --- Cutting ------------------------------------------------------------------------------------------------------ */

/* Applies TP to a parameter: a DTensor on mesh["tp"], or the tensor as it is. Nothing is sent: all have the whole. */
static reshard_tree apply_tp(const model *m, const parameter *p, reshard_tensor whole) {
  const reshard_placement cut = {.kind = RESHARD_PLACEMENT_SHARD, .dim = p->tp},
                          same = {.kind = RESHARD_PLACEMENT_REPLICATE};
  const reshard_placing over_tp = {m->tp, p->tp == TP_REPLICATES ? &same : &cut, NULL};
  const reshard_properties f32 = {.dtype = RESHARD_F32};
  reshard_dtensor part;
  reshard_tree leaf;
  if (p->tp == TP_UNKNOWN) {
    require_success(reshard_tree_tensor(whole, &leaf));
    return leaf;
  }
  require_success(reshard_dtensor_distribute(m->world, &over_tp, whole, -1, p->ndim, p->shape, &f32, m->stream, &part));
  require_success(reshard_state_dtensor(part, &leaf));
  reshard_dtensor_release(part);
  return leaf;
}

/* Cuts a parameter by TP and FSDP, and puts it in the state dict. */
static void shard_parameter(model *m, int layer, int p, way how, int zeros) {
  reshard_tensor whole = make_whole(m, layer, p, zeros);
  reshard_tree leaf = apply_tp(m, &parameters[p], whole), chunk;
  char path[64];
  if (how == AS_DTENSOR)
    require_success(m->fsdp.chunk_dtensor(m->fsdp.user, leaf, m->mesh, m->stream, &chunk));
  else
    require_success(m->fsdp.chunk_tensor(m->fsdp.user, leaf, &m->group, m->stream, &chunk));
  path_of(layer, p, path);
  require_success(reshard_tree_set(m->state, path, chunk));
  reshard_tree_release(chunk);
  reshard_tree_release(leaf);
  reshard_tensor_release(whole);
}

static void open_model(const rank *r, model *m) {
  static const char *const names[MESH_DIMS] = {"replicate", "shard", "tp"};
  reshard_sharder_options on_device = RESHARD_SHARDER_OPTIONS_DEFAULTS;
  on_device.device = r->device;
  reshard_comm shard;
  m->device = r->device;
  require_success(reshard_device_create("cpu", NULL, &m->cpu));
  require_success(reshard_stream_create(m->device, &m->stream));
  require_success(reshard_mesh_create(r->comm, 0, MESH_DIMS, r->mesh, names, 0, NULL, &m->mesh));
  require_success(reshard_mesh_init_groups(m->mesh, 0, NULL)); /* by all ranks: one for each dim */
  require_success(reshard_mesh_sub(m->mesh, "tp", RESHARD_MESH_MINE, &m->tp));
  require_success(reshard_mesh_comm(m->mesh, "shard", &shard));
  require_success(reshard_sharder_create(r->comm, &on_device, &m->world));
  require_success(reshard_sharder_create(shard, &on_device, &m->shard));
  m->group = (reshard_fsdp_group)RESHARD_FSDP_GROUP_DEFAULTS;
  m->group.sharder = m->shard, m->group.world = m->world, m->group.devices_per_node = r->ndevices;
  m->fsdp = (reshard_fsdp_extension)RESHARD_FSDP_EXTENSION_DEFAULTS;
  require_success(reshard_fsdp_extension_init(m->world, &m->fsdp));
  require_success(reshard_fsdp_extension_check(&m->fsdp));
  require_success(reshard_tree_dict(&m->state));
  for (int l = 0; l < LAYERS; l++)
    for (int p = 0; p < PARAMETERS; p++)
      shard_parameter(m, l, p, (l + r->swapped) % 2 == 0 ? AS_DTENSOR : AS_SHARDED, r->loads);
}

static void close_model(model *m) {
  reshard_tree_release(m->state);
  reshard_sharder_destroy(m->shard);
  reshard_sharder_destroy(m->world);
  reshard_mesh_release(m->tp);
  reshard_mesh_release(m->mesh); /* and the groups */
  reshard_stream_destroy(m->device, m->stream);
  reshard_device_release(m->cpu);
}

/* --- Comparing ---------------------------------------------------------------------------------------------------- */

/* 1 where a box of a parameter has another element than the original has there, or another shape; else 0. */
static int box_differs(const model *m, int layer, int p, const reshard_box *box, reshard_tensor tensor) {
  int matrix = parameters[p].ndim == 2, wrong = 0;
  int64_t columns = matrix ? box->extent[1] : 1, width = matrix ? parameters[p].shape[1] : 1;
  reshard_tensor here = move_tensor(m->cpu, tensor, m->stream);
  reshard_tensor_info info = info_of(here);
  if (info.elements != box->extent[0] * columns)
    wrong = 1;
  for (int64_t e = 0; !wrong && e < info.elements; e++) {
    int64_t i = e / columns, j = e % columns;
    float found = ((const float *)info.data)[i * info.strides[0] + (matrix ? j * info.strides[1] : 0)];
    float wanted = original_element(layer, p, (box->offset[0] + i) * width + (matrix ? box->offset[1] + j : 0));
    wrong = memcmp(&found, &wanted, sizeof found) != 0;
  }
  reshard_tensor_release(here);
  return wrong;
}

/* Compares this rank's parts of one parameter, and the whole, gathered from the ranks that share it. */
static void check_parameter(const model *m, int layer, int p, reshard_tree leaf, rank *r) {
  reshard_dtensor dtensor = NULL;
  reshard_sharded_tensor sharded;
  reshard_tensor whole, part;
  reshard_box box = {0};
  memcpy(box.extent, parameters[p].shape, sizeof parameters[p].shape);
  if (reshard_state_get_dtensor(leaf, &dtensor) == RESHARD_SUCCESS) {
    require_success(reshard_dtensor_full(dtensor, m->stream, &whole));
    sharded = reshard_dtensor_sharded(dtensor);
  } else {
    require_success(reshard_state_get_sharded(leaf, &sharded));
    whole = make_whole(m, layer, p, 1);
    require_success(reshard_sharded_tensor_gather_all(sharded, whole, m->stream));
  }
  r->wrong += box_differs(m, layer, p, &box, whole);
  reshard_tensor_release(whole);
  for (int64_t i = 0; i < reshard_sharded_tensor_local_count(sharded); i++) {
    require_success(reshard_sharded_tensor_local(sharded, i, &part, &box));
    r->wrong += box_differs(m, layer, p, &box, part);
    r->kept += info_of(part).elements * (int64_t)sizeof(float);
  }
}

/* Flattens nested tensors first: a parameter that TP and FSDP have cut is then one tensor of all ranks. */
static void check_model(const model *m, rank *r) {
  reshard_tree flat, leaf;
  char path[64];
  require_success(reshard_state_flatten_sharded_tensors_global(m->world, m->state, &flat));
  for (int l = 0; l < LAYERS; l++)
    for (int p = 0; p < PARAMETERS; p++) {
      path_of(l, p, path);
      require_success(reshard_tree_find(flat, path, &leaf));
      check_parameter(m, l, p, leaf, r);
    }
  reshard_tree_release(flat);
}

/* --- Ranks -------------------------------------------------------------------------------------------------------- */

static void *rank_main(void *argument) {
  rank *r = argument;
  model m = {0};
  open_model(r, &m);
  reshard_state_save_options save = RESHARD_STATE_SAVE_OPTIONS_DEFAULTS;
  save.force = 1, save.stream = m.stream;
  reshard_state_load_options load = RESHARD_STATE_LOAD_OPTIONS_DEFAULTS;
  load.stream = m.stream;
  if (r->loads)
    require_success(reshard_state_load(m.world, m.state, r->directory, &load, NULL));
  else
    require_success(reshard_state_save(m.world, m.state, r->directory, &save, &r->report));
  require_success(reshard_mesh_coordinate(m.mesh, RESHARD_MESH_MINE, r->at));
  check_model(&m, r);
  close_model(&m);
  return NULL;
}

static int64_t model_bytes(void) {
  int64_t bytes = 0;
  for (int p = 0; p < PARAMETERS; p++)
    bytes += parameters[p].shape[0] * (parameters[p].ndim == 2 ? parameters[p].shape[1] : 1) * (int64_t)sizeof(float);
  return LAYERS * bytes;
}

/* Runs all ranks of a mesh and prints a line of each. Returns the number of errors: parts, parameters, and a checkpoint
 * that has not each parameter once. */
static int run_world(const rank *task, int ndevices, const reshard_device *devices) {
  reshard_local_options on = RESHARD_LOCAL_OPTIONS_DEFAULTS;
  on.devices = devices, on.ndevices = ndevices;
  int nranks = (int)(task->mesh[0] * task->mesh[1] * task->mesh[2]), wrong = 0;
  reshard_comm comms[MOST_RANKS];
  pthread_t threads[MOST_RANKS];
  rank ranks[MOST_RANKS];
  require_success(reshard_comm_create_local(nranks, &on, comms)); /* rank i is on device i % ndevices */
  for (int i = 0; i < nranks; i++) {
    ranks[i] = *task;
    ranks[i].comm = comms[i];
    ranks[i].device = devices[i % ndevices];
    ranks[i].ndevices = ndevices;
    if (pthread_create(&threads[i], NULL, rank_main, &ranks[i]) != 0)
      exit(EXIT_FAILURE);
  }
  for (int i = 0; i < nranks; i++)
    pthread_join(threads[i], NULL);
  printf("replicate %d x shard %d x tp %d: %s\n", (int)task->mesh[0], (int)task->mesh[1], (int)task->mesh[2],
         !task->loads    ? "saved"
         : task->swapped ? "loaded, each layer the other way"
                         : "loaded");
  for (int i = 0; i < nranks; i++) {
    const rank *r = &ranks[i];
    printf("  rank %d at (%d, %d, %d) keeps %5lld of %lld bytes, %d things differ\n", i, (int)r->at[0], (int)r->at[1],
           (int)r->at[2], (long long)r->kept, (long long)model_bytes(), r->wrong);
    wrong += r->wrong;
    reshard_comm_destroy(comms[i]);
  }
  if (!task->loads) {
    const reshard_state_save_report *saved = &ranks[0].report;
    printf("  %lld parameters, %lld bytes, in %lld files\n", (long long)saved->tensors, (long long)saved->bytes,
           (long long)saved->files);
    wrong += saved->tensors != LAYERS * PARAMETERS || saved->bytes != model_bytes();
  }
  return wrong;
}

int main(int argc, char **argv) {
  int load_only = argc > 2 && strcmp(argv[1], "load") == 0, first = load_only ? 3 : 2, ndevices = 0;
  const char *directory = argc > 1 ? argv[first - 1] : "hsdp_tp_checkpoint";
  const rank save = {.mesh = {2, 2, 2}, .directory = directory};
  rank load = {.mesh = {1, 3, 2}, .loads = 1, .directory = directory};
  reshard_device devices[MOST_DEVICES];
  do
    require_success(reshard_device_create(argc > first ? argv[first + ndevices] : "cpu", NULL, &devices[ndevices]));
  while (++ndevices < argc - first && ndevices < MOST_DEVICES);
  int wrong = load_only ? 0 : run_world(&save, ndevices, devices);
  for (load.swapped = 0; load.swapped < 2; load.swapped++)
    wrong += run_world(&load, ndevices, devices);
  for (int i = 0; i < ndevices; i++)
    reshard_device_release(devices[i]);
  printf("%d things are wrong\n", wrong);
  return wrong == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
