/* One rank's tensors to all, on virtual GPUs: rank threads with a stream each, on one GPU and on three, by both paths.
 */
#include "support/fixtures/case.h"
#include "support/fixtures/rank_threads.h"
#include "virtual_gpu.h"

#include <reshard/reshard.h>
#include <reshard/torch.h>

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RANKS = 3, TENSORS = 5, MOST = 4096 };

typedef struct sync_case {
  int gpus;
  reshard_path path;
  bool check; /* what arrives; else nothing but streams orders what the ranks do, and the host waits for nothing */
  reshard_device devices[RANKS];
  reshard_comm comms[RANKS];
  rank_result result[RANKS];
  int wrong[RANKS];
} sync_case;

static unsigned char tensor_value(int64_t tensor, int64_t i) { return (unsigned char)(tensor * 41 + i * 7 + 3); }

/* The stream writes a tensor, and reads it after the sync, or writes it again: it may be a source. */
static void use_tensor(cudaStream_t stream, reshard_tensor tensor, void *scratch, bool before) {
  reshard_tensor_info info;
  reshard_tensor_get_info(tensor, &info);
  size_t bytes = (size_t)info.elements * reshard_dtype_size(info.dtype);
  if (!before)
    cudaMemcpyAsync(scratch, info.data, bytes, cudaMemcpyDeviceToDevice, stream);
  cudaMemsetAsync(info.data, before ? 1 : 2, bytes, stream);
}

static void sync_rank(void *user, int64_t rank) {
  static const int64_t rows[TENSORS] = {1, 7, 64, 0, 100};
  static const reshard_dtype dtypes[TENSORS] = {RESHARD_F32, RESHARD_BF16, RESHARD_F32, RESHARD_U8, RESHARD_F64};
  sync_case *s = user;
  reshard_device device = s->devices[rank % s->gpus];
  reshard_tensor tensors[TENSORS] = {NULL};
  unsigned char host[MOST];
  void *scratch = NULL;
  cudaStream_t stream = NULL;
  reshard_sync_options options = {RESHARD_SYNC_OPTIONS_INIT, 512, s->path};
  reshard_status status = RESHARD_SUCCESS;
  cudaSetDevice((int)(rank % s->gpus));
  cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  cudaMalloc(&scratch, MOST);
  for (int t = 0; t < TENSORS && status == RESHARD_SUCCESS; t++) {
    reshard_tensor_info info;
    status = reshard_tensor_create_on(device, dtypes[t], 2, (int64_t[]){rows[t], 3}, stream, &tensors[t]);
    if (!s->check) {
      use_tensor(stream, tensors[t], scratch, true);
      continue;
    }
    reshard_tensor_get_info(tensors[t], &info);
    size_t bytes = (size_t)info.elements * reshard_dtype_size(dtypes[t]);
    for (size_t i = 0; i < bytes; i++)
      host[i] = rank == 1 ? tensor_value(t, (int64_t)i) : 0xdb;
    cudaMemcpyAsync(info.data, host, bytes, cudaMemcpyHostToDevice, stream);
  }
  if (status == RESHARD_SUCCESS)
    status = reshard_sync_tensors(s->comms[rank], 1, TENSORS, tensors, NULL, &options, stream, NULL);
  for (int t = 0; t < TENSORS && status == RESHARD_SUCCESS; t++) {
    reshard_tensor_info info;
    if (!s->check) {
      use_tensor(stream, tensors[t], scratch, false);
      continue;
    }
    reshard_tensor_get_info(tensors[t], &info);
    size_t bytes = (size_t)info.elements * reshard_dtype_size(dtypes[t]);
    cudaMemcpyAsync(host, info.data, bytes, cudaMemcpyDeviceToHost, stream);
    cudaStreamSynchronize(stream);
    for (size_t i = 0; i < bytes; i++)
      s->wrong[rank] += host[i] != tensor_value(t, (int64_t)i);
  }
  rank_result_set(&s->result[rank], status);
  for (int t = 0; t < TENSORS; t++)
    reshard_tensor_release(tensors[t]);
  if (s->check)
    cudaStreamSynchronize(stream);
  if (device != NULL)
    reshard_device_forget_stream(device, stream);
  cudaStreamSynchronize(stream);
  cudaFree(scratch);
  cudaStreamDestroy(stream);
}

static void sync_all(void *user, const vg_options *given) {
  sync_case *s = user;
  vg_begin(given);
  for (int g = 0; g < s->gpus; g++) {
    char name[32];
    snprintf(name, sizeof name, "cuda:%d", g);
    assert_int_equal(reshard_device_create(name, NULL, &s->devices[g]), RESHARD_SUCCESS);
  }
  reshard_local_options options = {RESHARD_LOCAL_OPTIONS_INIT, 0, RESHARD_ISA_AUTO, 60000, s->devices, s->gpus};
  assert_int_equal(reshard_comm_create_local(RANKS, &options, s->comms), RESHARD_SUCCESS);
  rank_threads_run(RANKS, sync_rank, s);
  rank_comms_close(RANKS, s->comms);
  for (int g = 0; g < s->gpus; g++)
    reshard_device_release(s->devices[g]);
  vg_end();
}

static void run_ranks(int gpus, reshard_path path, uint64_t seed) {
  sync_case s = {.gpus = gpus, .path = path, .check = true};
  sync_all(&s, &(vg_options){.devices = RANKS, .seed = seed});
  rank_results_assert(RANKS, s.result, RESHARD_SUCCESS, NULL, "sync");
  for (int r = 0; r < RANKS; r++)
    assert_int_equal(s.wrong[r], 0);
  assert_int_equal(vg_reports(), 0);
}

CASE(tensors_of_one_rank_reach_all_gpus) {
  for (uint64_t seed = 0; seed < 10; seed++)
    for (int gpus = 1; gpus <= RANKS; gpus += RANKS - 1) {
      run_ranks(gpus, RESHARD_PATH_DIRECT, seed);
      run_ranks(gpus, RESHARD_PATH_PACKED, seed);
    }
}

CASE(every_edge_of_a_sync_is_needed) {
  if (!vg_sees_kernels()) /* nothing is checked in this build */
    skip();
  for (int way = 0; way < 4; way++) {
    sync_case s = {.gpus = way / 2 == 0 ? 1 : RANKS, .path = way % 2 == 0 ? RESHARD_PATH_DIRECT : RESHARD_PATH_PACKED};
    char path[64];
    snprintf(path, sizeof path, "sync, %s, %d GPUs", way % 2 == 0 ? "direct" : "packed", s.gpus);
    vg_edge_result result = vg_for_each_edge(&(vg_edge_search){
        .path = path,
        .run = sync_all,
        .user = &s,
        .options = {.devices = RANKS, .seed = 5},
        .seeds = 2,
        .covered =
            "the host waits for a transfer before it is destroyed, so before the next one and what the user does"});
    printf("%s: %d of %d uses of %d edges found\n", path, result.found, result.uses, result.edges);
    assert_true(result.found > 0);
    assert_int_equal(result.false_alarms, 0);
    assert_int_equal(result.found + result.covered, result.uses);
  }
}

RUN_CASES
