/* Random sequences of what can be done with tensors, storage and trees against a model
 * (support/oracles/tensor_model.h), on CPU devices that keep nothing, little and much. test_vg_tensor_random.c has the
 * same with GPUs. */
#include "bench/verify/random.h"
#include "support/fixtures/case.h"
#include "support/fixtures/expect.h"
#include "support/fixtures/rank_threads.h"
#include "support/fixtures/scale.h"
#include "support/oracles/tensor_model.h"

#include <stdlib.h>

CASE(random_operations_match_the_model) {
  static const int64_t keep[] = {0, -1, 600000};
  int64_t cases = test_scaled(60, 1), done[MODEL_KINDS] = {0};
  unsigned char *pattern = malloc(MODEL_PATTERN);
  rng random;
  rng_seed(&random, 1);
  for (int64_t i = 0; i < MODEL_PATTERN; i++)
    pattern[i] = (unsigned char)rng_next(&random);
  for (int64_t c = 0; c < cases; c++) {
    model_machine m = {.nplaces = 3, .pattern = pattern};
    for (int d = 0; d < m.nplaces; d++) {
      const reshard_device_options options = {
          .size = RESHARD_DEVICE_OPTIONS_INIT, .threads = 1 + d % 2, .keep_bytes = keep[d]};
      GOOD(reshard_device_create("cpu", &options, &m.place[d].device));
    }
    model_run(&m, 0x570c + (uint64_t)c, 400, done);
    for (int d = 0; d < m.nplaces; d++)
      reshard_device_release(m.place[d].device);
  }
  model_report(&(model_machine){.nstreams = 0}, done);
  free(pattern);
}

RUN_CASES
