/* FSDP's memory: a model whose parameters are cut over the ranks. Each rank has two whole layers at a time.
 *
 * Four ranks keep a quarter of each layer's flat parameter. In a step the whole of a layer is allocated and gathered
 * while the layer before is in use, used, and freed; the next one is gathered into the memory that it had. The device's
 * limit is two layers, and after the first step no memory is asked for any more.
 *
 * The ranks are threads; each runs rank_main as a process of a job would. */
#include <reshard/reshard.h>
#include <reshard/torch.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

enum { RANKS = 4, LAYERS = 6, STEPS = 3, ELEMENTS = 300007 }; /* which four ranks do not divide */
static const int64_t elements = ELEMENTS;

/* One rank: its communicator, device and layers. */
typedef struct rank {
  reshard_comm comm;
  reshard_device device;
  float *shards[LAYERS];       /* its quarter of each flat parameter */
  reshard_tensor full[LAYERS]; /* the whole; freed but while the layer is in use */
  reshard_transfer gather[LAYERS];
  double sums[LAYERS]; /* what the layers compute */
  int64_t wrong;
} rank;

/* Ends the program after an error, as the other ranks would wait for this one. */
static void require_success(reshard_status status) {
  if (status == RESHARD_SUCCESS)
    return;
  fprintf(stderr, "fsdp_storage: %s: %s\n", reshard_status_string(status), reshard_last_error());
  exit(EXIT_FAILURE);
}

static float parameter(int layer, int64_t i) { return (float)((i * 7 + layer * 13) % 101 - 50); }

static void *data_of(reshard_tensor tensor) {
  reshard_tensor_info info;
  require_success(reshard_tensor_get_info(tensor, &info));
  return info.data;
}

/* Memory of the shard and of the whole layer; the second is elsewhere each time. */
static reshard_arrays arrays_of(rank *r, int layer, void **src, void **dst) {
  *src = r->shards[layer];
  *dst = data_of(r->full[layer]);
  reshard_arrays arrays = RESHARD_ARRAYS_DEFAULTS;
  arrays.src = src, arrays.dst = dst;
  return arrays;
}

static void open_layers(rank *r, reshard_plan plan, reshard_layout cut) {
  reshard_device_options limit = RESHARD_DEVICE_OPTIONS_DEFAULTS;
  limit.threads = 1, limit.limit_bytes = 2 * (ELEMENTS * sizeof(float) + 4096);
  int64_t mine = 0;
  reshard_array_info piece;
  require_success(reshard_device_create("cpu", &limit, &r->device));
  require_success(reshard_layout_array(cut, reshard_comm_rank(r->comm), 0, &piece));
  mine = piece.elements;
  int64_t first = reshard_comm_rank(r->comm) * ((ELEMENTS + RANKS - 1) / RANKS);
  for (int layer = 0; layer < LAYERS; layer++) {
    void *src, *dst;
    r->shards[layer] = malloc((size_t)mine * sizeof(float));
    if (r->shards[layer] == NULL)
      require_success(RESHARD_ERROR_OUT_OF_MEMORY);
    for (int64_t i = 0; i < mine; i++)
      r->shards[layer][i] = parameter(layer, first + i);
    require_success(reshard_tensor_create_on(r->device, RESHARD_F32, 1, &elements, NULL, &r->full[layer]));
    reshard_arrays arrays = arrays_of(r, layer, &src, &dst);
    require_success(reshard_transfer_create(plan, r->comm, &arrays, NULL, &r->gather[layer]));
    require_success(reshard_storage_free(r->full[layer], NULL, NULL));
  }
}

static void gather_layer(rank *r, int layer) {
  void *src, *dst;
  require_success(reshard_storage_alloc(r->full[layer], ELEMENTS * sizeof(float), NULL, NULL));
  reshard_arrays arrays = arrays_of(r, layer, &src, &dst);
  require_success(reshard_transfer_rebind(r->gather[layer], &arrays));
  require_success(reshard_execute(r->gather[layer], NULL));
}

static void use_layer(rank *r, int layer) {
  const float *full = data_of(r->full[layer]);
  r->sums[layer] = 0;
  for (int64_t i = 0; i < ELEMENTS; i++) {
    r->sums[layer] += full[i] * (double)(i % 3);
    r->wrong += full[i] != parameter(layer, i);
  }
}

static void train_step(rank *r) {
  gather_layer(r, 0);
  for (int layer = 0; layer < LAYERS; layer++) {
    if (layer + 1 < LAYERS)
      gather_layer(r, layer + 1);
    use_layer(r, layer);
    require_success(reshard_storage_free(r->full[layer], NULL, NULL));
  }
}

static void *rank_main(void *argument) {
  rank *r = argument;
  reshard_layout cut, whole;
  reshard_plan plan;
  reshard_memory_stats first, last;
  require_success(reshard_layout_parse("flat()", 1, &elements, RANKS, &cut));
  require_success(reshard_layout_parse("mesh(4;R)", 1, &elements, RANKS, &whole));
  reshard_entry entry = RESHARD_ENTRY_DEFAULTS;
  entry.src = cut, entry.dst = whole, entry.dtype = RESHARD_F32;
  require_success(reshard_plan_create(1, &entry, reshard_comm_rank(r->comm), NULL, &plan));
  open_layers(r, plan, cut);
  train_step(r);
  require_success(reshard_device_get_memory_stats(r->device, &first));
  for (int i = 1; i < STEPS; i++)
    train_step(r);
  require_success(reshard_device_get_memory_stats(r->device, &last));
  int64_t new_memory = last.upstream_allocs - first.upstream_allocs;
  r->wrong += new_memory != 0 || last.in_use_bytes != 0 || last.allocs != LAYERS * (STEPS + 1);
  r->wrong += last.peak_held_bytes > 2 * (ELEMENTS * sizeof(float) + 4096);
  if (reshard_comm_rank(r->comm) == 0)
    printf("%d layers of %zu bytes, each %d times; %zu bytes held at most, %lld allocations after the first step\n",
           LAYERS, ELEMENTS * sizeof(float), STEPS, last.peak_held_bytes, (long long)new_memory);
  for (int layer = 0; layer < LAYERS; layer++) {
    reshard_transfer_destroy(r->gather[layer]);
    reshard_tensor_release(r->full[layer]);
    free(r->shards[layer]);
  }
  reshard_plan_destroy(plan);
  reshard_layout_release(cut);
  reshard_layout_release(whole);
  reshard_device_release(r->device);
  return NULL;
}

int main(void) {
  reshard_comm comms[RANKS];
  rank ranks[RANKS];
  pthread_t threads[RANKS];
  int64_t wrong = 0;
  require_success(reshard_comm_create_local(RANKS, NULL, comms));
  for (int r = 0; r < RANKS; r++) {
    ranks[r] = (rank){.comm = comms[r]};
    if (pthread_create(&threads[r], NULL, rank_main, &ranks[r]) != 0)
      require_success(RESHARD_ERROR_SYSTEM);
  }
  for (int r = 0; r < RANKS; r++) {
    pthread_join(threads[r], NULL);
    wrong += ranks[r].wrong;
    for (int layer = 0; layer < LAYERS; layer++)
      wrong += ranks[r].sums[layer] != ranks[0].sums[layer];
  }
  for (int r = 0; r < RANKS; r++)
    reshard_comm_destroy(comms[r]);
  if (wrong > 0)
    fprintf(stderr, "fsdp_storage: %lld numbers are wrong\n", (long long)wrong);
  return wrong > 0;
}
