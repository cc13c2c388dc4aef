/* A rank's tensors on a device, of a matrix that goes from rows to columns, and the plan of that. Any thread. */
#ifndef TESTS_TENSOR_PAIR_H
#define TESTS_TENSOR_PAIR_H

#include <reshard/reshard.h>
#include <reshard/tensor.h>

typedef struct tensor_pair {
  reshard_tensor src, dst;      /* f32; not initialised */
  reshard_tensor_info from, to; /* of src and dst */
  reshard_arrays arrays;        /* these two */
  reshard_layout rows, columns; /* chunk(0), chunk(1) */
  reshard_plan plan;
  reshard_transfer transfer; /* packed; NULL until tensor_pair_bind */
} tensor_pair;

/* Makes all but the transfer; world divides both extents. What was made before an error is freed as all else. */
reshard_status tensor_pair_make(reshard_device device, const int64_t shape[2], int64_t world, int64_t rank,
                                void *stream, tensor_pair *p);
/* Creates the transfer. Collective. */
reshard_status tensor_pair_bind(tensor_pair *p, reshard_comm comm);
void tensor_pair_free(tensor_pair *p);

#endif
