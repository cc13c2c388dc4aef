/* Metadata from a rank's own shards: every check, with both values in its text. */
#include "support/fixtures/case.h"
#include "support/fixtures/expect.h"
#include "support/fixtures/rank_threads.h"

#include <reshard/metadata.h>
#include <reshard/tensor.h>

#include <stdbool.h>

enum { RANK = 5, SHARDS = 3 };

/* Rows [2 i, 2 i + 2) of 6x4 on RANK, all alike but for what `odd` says of one. */
typedef struct odd {
  int64_t shard;
  bool no_tensor, turned, grad, pin;
  reshard_dtype dtype;       /* NONE: f32 */
  int ndim;                  /* of its tensor; 0: 2 */
  int64_t rows;              /* of its tensor; 0: 2 */
  int64_t offset, size;      /* added to what the metadata say */
  reshard_remote_device *on; /* NULL: rank:5/cpu */
  const char *error;
} odd;

static reshard_tensor tensor_of(const odd *o) {
  static _Alignas(16) char memory[256];
  const int64_t shape[3] = {o->rows > 0 ? o->rows : 2, 4, 1}, columns_first[3] = {1, o->rows > 0 ? o->rows : 2, 1};
  reshard_tensor made;
  reshard_dtype dtype = o->dtype != RESHARD_DTYPE_NONE ? o->dtype : RESHARD_F32;
  GOOD(reshard_tensor_wrap(dtype, o->ndim > 0 ? o->ndim : 2, shape, o->turned ? columns_first : NULL, memory, NULL,
                           NULL, &made));
  reshard_tensor_set_requires_grad(made, o->grad);
  reshard_tensor_set_pin_memory(made, o->pin);
  return made;
}

static reshard_status build_metadata(const odd *o, reshard_metadata *m) {
  static const odd plain = {0};
  const int64_t shape[2] = {2 * SHARDS, 4};
  reshard_local_shard shards[SHARDS];
  for (int64_t i = 0; i < SHARDS; i++) {
    const odd *is = i == o->shard ? o : &plain;
    shards[i].tensor = is->no_tensor ? NULL : tensor_of(is);
    shards[i].metadata = (reshard_shard){{{2 * i + is->offset, 0}, {2 + is->size, 4}}, {RANK, RESHARD_DEVICE_CPU, -1}};
    if (is->on != NULL)
      shards[i].metadata.placement = *is->on;
  }
  reshard_status status = reshard_metadata_build_local(2, shape, SHARDS, shards, RANK, m);
  for (int64_t i = 0; i < SHARDS; i++)
    reshard_tensor_release(shards[i].tensor);
  return status;
}

CASE(own_shards_make_metadata) {
  const odd turned = {.shard = 1, .turned = true};
  reshard_metadata m;
  assert_int_equal(build_metadata(&turned, &m), RESHARD_SUCCESS);
  const reshard_properties is = reshard_metadata_properties(m), p = {.dtype = RESHARD_F32};
  assert_memory_equal(&is, &p, sizeof p);
  assert_int_equal(reshard_metadata_count(m), SHARDS);
  assert_int_equal(reshard_metadata_shape(m)[0], 2 * SHARDS);
  for (int64_t i = 0; i < SHARDS; i++) {
    const reshard_shard *s = &reshard_metadata_shards(m)[i];
    assert_int_equal(s->box.offset[0], 2 * i);
    assert_int_equal(s->box.extent[0], 2);
    assert_int_equal(s->placement.rank, RANK);
  }
  GOOD(reshard_metadata_check(m));
  reshard_metadata_release(m);
}

/* Properties are those of the tensors. */
CASE(properties_are_those_of_the_tensors) {
  for (int v = 0; v < 4; v++) {
    const odd one = {.grad = v & 1, .pin = v >> 1, .dtype = RESHARD_C128};
    const int64_t shape[2] = {2, 4};
    reshard_local_shard shard = {{{{0, 0}, {2, 4}}, {RANK, RESHARD_DEVICE_CPU, 3}}, NULL};
    reshard_metadata m;
    shard.tensor = tensor_of(&one);
    GOOD(reshard_metadata_build_local(2, shape, 1, &shard, RANK, &m));
    reshard_properties p = reshard_metadata_properties(m);
    assert_int_equal(p.dtype, RESHARD_C128);
    assert_int_equal(p.requires_grad, v & 1);
    assert_int_equal(p.pin_memory, v >> 1);
    assert_int_equal(p.memory_format, RESHARD_MEMORY_CONTIGUOUS);
    assert_int_equal(reshard_metadata_shards(m)[0].placement.index, 3);
    reshard_metadata_release(m);
    reshard_tensor_release(shard.tensor);
  }
}

CASE(shards_that_do_not_fit_are_refused_with_both_values) {
  static reshard_remote_device other = {4, RESHARD_DEVICE_CPU, -1}, cuda = {RANK, RESHARD_DEVICE_CUDA, 1},
                               nobody = {-1, RESHARD_DEVICE_CPU, 0}, odd_type = {RANK, (reshard_device_type)3, 0},
                               odd_index = {RANK, RESHARD_DEVICE_CPU, -4};
  const odd cases[] = {
      {.shard = 2, .dtype = RESHARD_BF16, .error = "shards 0 and 2 of rank 5 differ in dtype: f32 and bf16"},
      {.shard = 0, .dtype = RESHARD_BF16, .error = "shards 0 and 1 of rank 5 differ in dtype: bf16 and f32"},
      {.shard = 1, .grad = true, .error = "shards 0 and 1 of rank 5 differ in requires_grad: 0 and 1"},
      {.shard = 0, .grad = true, .error = "shards 0 and 1 of rank 5 differ in requires_grad: 1 and 0"},
      {.shard = 2, .pin = true, .error = "shards 0 and 2 of rank 5 differ in pin_memory: 0 and 1"},
      {.shard = 0, .pin = true, .error = "shards 0 and 1 of rank 5 differ in pin_memory: 1 and 0"},
      {.shard = 1, .on = &other, .error = "shard 1 of rank 5 is placed on rank:4/cpu"},
      {.shard = 1, .on = &nobody, .error = "shard 1 of rank 5 is placed on cpu:0"},
      {.shard = 2, .on = &cuda, .error = "shard 2 is placed on rank:5/cuda:1, its tensor is on cpu"},
      {.shard = 2, .on = &odd_type, .error = "metadata: shard 2 is on a device of type 3, which is none"},
      {.shard = 2, .on = &odd_index, .error = "metadata: shard 2 is on device -4"},
      {.shard = 1, .rows = 3, .error = "shard 1 of rank 5 has sizes 2x4, its tensor 3x4"},
      {.shard = 1, .ndim = 3, .error = "shard 1 of rank 5 has sizes 2x4, its tensor 2x4x1"},
      {.shard = 1, .ndim = 1, .error = "shard 1 of rank 5 has sizes 2x4, its tensor 2"},
      {.shard = 1, .size = -3, .error = "shard 1 of rank 5 has sizes -1x4, its tensor 2x4"},
      {.shard = 1, .offset = -3, .error = "metadata: shard 1 has offset -1 and size 2 in dim 0"},
      {.shard = 0, .no_tensor = true, .error = "shard 0 of rank 5 has no tensor"},
      {.shard = 2, .no_tensor = true, .error = "shard 2 of rank 5 has no tensor"},
  };
  reshard_metadata m = (reshard_metadata)&m;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    assert_int_equal(build_metadata(&cases[i], &m), RESHARD_ERROR_INVALID);
    assert_string_equal(reshard_last_error(), cases[i].error);
    assert_ptr_equal(m, (void *)&m);
  }
}

CASE(wrong_arguments_are_invalid) {
  const odd plain = {0};
  const int64_t shape[2] = {2, 4}, negative[2] = {2, -4}, huge[2] = {INT64_MAX, 4};
  reshard_local_shard shard = {{{{0, 0}, {2, 4}}, {RANK, RESHARD_DEVICE_CPU, -1}}, tensor_of(&plain)};
  const struct {
    int ndim;
    const int64_t *shape;
    int64_t n;
    const reshard_local_shard *shards;
    const char *error;
  } cases[] = {
      {2, shape, 0, &shard, "reshard_metadata_build_local: 0 shards, nothing is NULL"},
      {2, shape, -1, &shard, "reshard_metadata_build_local: -1 shards, nothing is NULL"},
      {2, shape, 1, NULL, "reshard_metadata_build_local: 1 shards, shards is NULL"},
      {2, NULL, 1, &shard, "metadata: shape is NULL"},
      {2, negative, 1, &shard, "metadata: size -4 of dim 1 is negative"},
      {2, huge, 1, &shard, "metadata: the elements of shape 9223372036854775807x4 overflow 63 bits"},
      {9, shape, 1, &shard, "metadata: 9 dims, 0 to 8 are allowed"},
      {0, shape, 1, &shard, "shard 0 of rank 5 has sizes scalar, its tensor 2x4"},
  };
  reshard_metadata m = (reshard_metadata)&m;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    BAD(reshard_metadata_build_local(cases[i].ndim, cases[i].shape, cases[i].n, cases[i].shards, RANK, &m),
        cases[i].error);
  }
  BAD(reshard_metadata_build_local(2, shape, 1, &shard, RANK, NULL),
      "reshard_metadata_build_local: 1 shards, metadata is NULL");
  assert_ptr_equal(m, (void *)&m);
  reshard_tensor_release(shard.tensor);
}

RUN_CASES
