/* Random sequences of what can be done with tensors, storage and trees, against a model
 * (support/oracles/tensor_model.h). They run on two CPU devices and two GPUs with two streams each. The checker looks
 * on: what the library leaves out of order is reported, whether the bytes come out right or not. */
#include "bench/verify/random.h"
#include "support/fixtures/case.h"
#include "support/fixtures/expect.h"
#include "support/fixtures/rank_threads.h"
#include "support/fixtures/scale.h"
#include "support/oracles/tensor_model.h"
#include "virtual_gpu.h"

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>

#define CUDA(call) assert_int_equal((call), cudaSuccess)

enum { CPUS = 2, GPUS = 2, STREAMS = 2 * GPUS };

static void bytes_copy(void *dst, const void *src, size_t bytes, const model_stream *stream) {
  CUDA(cudaSetDevice(stream->place - CPUS));
  CUDA(cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDeviceToDevice, stream->handle));
  CUDA(cudaSetDevice(0));
}

static void order(const model_stream *earlier, const model_stream *later) {
  cudaEvent_t event;
  CUDA(cudaSetDevice(earlier->place - CPUS));
  CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  CUDA(cudaEventRecord(event, earlier->handle));
  CUDA(cudaSetDevice(later->place - CPUS));
  CUDA(cudaStreamWaitEvent(later->handle, event, 0));
  CUDA(cudaEventDestroy(event));
  CUDA(cudaSetDevice(0));
}

static void stream_settle(const model_stream *stream) { CUDA(cudaStreamSynchronize(stream->handle)); }

static void *pin(size_t bytes) {
  void *memory;
  CUDA(cudaHostAlloc(&memory, bytes, cudaHostAllocPortable));
  return memory;
}

static void unpin(void *user, void *memory) { CUDA(cudaFreeHost(memory)); }

static void pinned_touch(void *pinned, size_t bytes, bool write) {
  if (write)
    vg_host_write(pinned, bytes);
  else
    vg_host_read(pinned, bytes);
}

static int64_t waits(void) { return vg_count().host_syncs - vg_calls("cudaFree") - vg_calls("cudaFreeHost"); }

static void open_machine(model_machine *m, const unsigned char *pattern, uint64_t seed) {
  *m = (model_machine){.nplaces = CPUS + GPUS,
                       .nstreams = STREAMS,
                       .pattern = pattern,
                       .copy = bytes_copy,
                       .order = order,
                       .settle = stream_settle,
                       .fetch = vg_peek,
                       .pin = pin,
                       .unpin = unpin,
                       .touch = pinned_touch,
                       .waits = waits};
  vg_begin(&(vg_options){.devices = GPUS, .seed = seed});
  for (int p = 0; p < m->nplaces; p++) {
    char name[16] = "cpu";
    const reshard_device_options options = {.size = RESHARD_DEVICE_OPTIONS_INIT,
                                            .threads = 1,
                                            .keep_bytes = (int64_t)((seed + (uint64_t)p) % 3) * 20000 - 1};
    if (p >= CPUS)
      snprintf(name, sizeof name, "cuda:%d", p - CPUS);
    GOOD(reshard_device_create(name, &options, &m->place[p].device));
  }
  for (int gpu = 0; gpu < GPUS; gpu++) {
    void *there;
    CUDA(cudaSetDevice(gpu));
    CUDA(cudaMalloc(&there, MODEL_PATTERN));
    vg_poke(there, pattern, MODEL_PATTERN);
    m->place[CPUS + gpu].pattern = there;
    for (int s = 2 * gpu; s < 2 * gpu + 2; s++) {
      m->stream[s].place = CPUS + gpu;
      CUDA(cudaStreamCreateWithFlags((cudaStream_t *)&m->stream[s].handle, cudaStreamNonBlocking));
      CUDA(cudaMalloc((void **)&m->stream[s].scratch, MODEL_PATTERN));
    }
  }
  CUDA(cudaSetDevice(0));
}

static void close_machine(model_machine *m) {
  for (int p = 0; p < m->nplaces; p++) /* while streams still run */
    reshard_device_release(m->place[p].device);
  for (int gpu = 0; gpu < GPUS; gpu++) {
    CUDA(cudaSetDevice(gpu));
    for (int s = 2 * gpu; s < 2 * gpu + 2; s++) {
      CUDA(cudaStreamSynchronize(m->stream[s].handle));
      CUDA(cudaStreamDestroy(m->stream[s].handle));
      CUDA(cudaFree(m->stream[s].scratch));
    }
    CUDA(cudaFree((void *)m->place[CPUS + gpu].pattern));
  }
  CUDA(cudaSetDevice(0));
}

CASE(random_operations_match_the_model) {
  int64_t done[MODEL_KINDS] = {0};
  unsigned char *pattern = malloc(MODEL_PATTERN);
  model_machine m;
  rng random;
  rng_seed(&random, 1);
  for (int64_t i = 0; i < MODEL_PATTERN; i++)
    pattern[i] = (unsigned char)rng_next(&random);
  for (int64_t seed = 1; seed <= test_scaled(150, 1); seed++) {
    open_machine(&m, pattern, (uint64_t)seed);
    model_run(&m, (uint64_t)seed, 200, done);
    close_machine(&m);
    if (vg_end() != 0)
      fail_msg("seed %d", (int)seed);
  }
  model_report(&m, done);
  free(pattern);
}

RUN_CASES
