/* Writes a checkpoint of random numbers, for the demo and for trials. Names, shapes and dtypes are a model's; the data
 * comes from a seed and is the same on every machine. The program is an example of the library's writer too.
 *
 *     reshard_demo_checkpoint MODEL OUT [SEED [N]]
 *
 * MODEL as in reshard plan --model; OUT as in reshard convert; of every tensor one N-th of dim 0 is made. */
#include "bench/cli/util.h"
#include "bench/verify/random.h"

#include <reshard/file.h>

#include <stdlib.h>
#include <string.h>

/* Random bytes, but numbers: floats below 2 in magnitude, never infinite (the exponent's highest bit is clear), and
 * bools of 0 and 1. */
static void fill_random(rng *r, char *memory, int64_t bytes, reshard_dtype dtype) {
  uint64_t mask = 0;
  int width = dtype == RESHARD_C64 ? 4 : dtype == RESHARD_C128 ? 8 : (int)reshard_dtype_size(dtype);
  for (int i = 0; i < 8; i++)
    mask |= (uint64_t)(dtype == RESHARD_BOOL ? 0x01 : i % width == width - 1 ? 0xbf : 0xff) << (8 * i);
  for (int64_t at = 0; at < bytes; at += 8) {
    uint64_t bits = rng_next(r) & mask;
    memcpy(memory + at, &bits, (size_t)(bytes - at < 8 ? bytes - at : 8));
  }
}

int main(int argc, char **argv) {
  if (argc < 3 || argc > 5)
    cli_exit(EXIT_USAGE, "usage: reshard_demo_checkpoint MODEL OUT [SEED [N]]");
  int64_t part = argc > 4 ? strtoll(argv[4], NULL, 0) : 1;
  if (part < 1)
    cli_exit(EXIT_USAGE, "one %s-th of dim 0 is not possible", argv[4]);
  rng random;
  rng_seed(&random, argc > 3 ? strtoull(argv[3], NULL, 0) : 1);
  reshard_model model;
  CLI_TRY("", reshard_model_open(argv[1], &model));
  int64_t n = reshard_model_count(model), most = 0, all = 0;
  reshard_writer_tensor *tensors = cli_alloc(n, sizeof *tensors);
  for (int64_t i = 0; i < n; i++) {
    reshard_model_tensor t;
    CLI_TRY("", reshard_model_get(model, i, &t));
    tensors[i] = (reshard_writer_tensor){.name = t.name, .dtype = t.dtype};
    if (t.ndim > 0 && t.shape[0] > 0)
      t.shape[0] = t.shape[0] / part > 0 ? t.shape[0] / part : 1;
    CLI_TRY("", reshard_layout_create_single(t.ndim, t.shape, 1, 0, &tensors[i].layout));
    int64_t bytes = reshard_layout_elements(tensors[i].layout) * (int64_t)reshard_dtype_size(t.dtype);
    most = bytes > most ? bytes : most;
    all += bytes;
  }
  reshard_writer writer;
  reshard_writer_options options = {.size = RESHARD_WRITER_OPTIONS_INIT, .force = 1};
  CLI_TRY("", reshard_writer_create(argv[2], n, tensors, &options, &writer));
  char *memory = cli_alloc(most, 1);
  for (int64_t i = 0; i < n; i++) {
    int64_t bytes = reshard_layout_elements(tensors[i].layout) * (int64_t)reshard_dtype_size(tensors[i].dtype);
    cli_progress("tensor %lld of %lld", (long long)i, (long long)n);
    fill_random(&random, memory, bytes, tensors[i].dtype);
    reshard_status status = reshard_writer_put(writer, i, 0, &(const void *){memory});
    if (status != RESHARD_SUCCESS) {
      reshard_writer_abandon(writer);
      cli_fail(status, "%s", reshard_last_error());
    }
  }
  cli_progress_clear();
  CLI_TRY("", reshard_writer_commit(writer));
  char text[CLI_BYTES_TEXT];
  printf("%s: %lld tensors, %s\n", argv[2], (long long)n, cli_bytes_text(text, (double)all));
  for (int64_t i = 0; i < n; i++)
    reshard_layout_release(tensors[i].layout);
  free(memory);
  free(tensors);
  reshard_model_free(model);
  return EXIT_DONE;
}
