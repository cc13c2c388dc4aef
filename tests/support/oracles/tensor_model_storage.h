/* State of the model of tensors: storage and its tensors, and how it reads, writes and compares them. */
#ifndef TESTS_TENSOR_MODEL_STORAGE_H
#define TESTS_TENSOR_MODEL_STORAGE_H
#include "bench/verify/random.h"
#include "support/fixtures/case.h"
#include "support/fixtures/expect.h"
#include "tensor_model.h"

#include <reshard/tensor.h>

enum { MODEL_SLOTS = 24, NOBODY = -1 };

/* Storage as it should be; bytes 0: freed. */
typedef struct model_store {
  int occupants;     /* tensors over it */
  int given;         /* of these: through DLPack, to where its address is known */
  int place;         /* in whose pool it counts; NOBODY: in none */
  int owner;         /* whose streams it is in the order of; NOBODY: the host's */
  bool host, pinned; /* the host can read it; pinned: and so can GPUs */
  bool lent;
  size_t bytes;
  unsigned char *expected;
  char *at;
  int home;         /* stream that it was allocated on */
  int writer;       /* stream that wrote last; NOBODY: that is done */
  unsigned readers; /* streams that have read since */
} model_store;

typedef struct model_slot {
  reshard_tensor tensor; /* NULL: none */
  model_store *store;
  reshard_dtype dtype;
  int64_t shape[2], strides[2], offset; /* of elements */
  int requires_grad, pin_memory;
  bool imported; /* through DLPack: an occupant that cannot free the storage, and that the library knows less of */
} model_slot;

typedef struct model {
  const model_machine *m;
  rng random;
  size_t in_use[MODEL_PLACES], peak[MODEL_PLACES], slack[MODEL_PLACES], most_slack[MODEL_PLACES];
  int64_t allocs[MODEL_PLACES], frees[MODEL_PLACES];
  model_slot slots[MODEL_SLOTS];
  int64_t *done;
} model;

static inline int64_t model_elements(const model_slot *s) { return s->shape[0] * s->shape[1]; }
static inline int64_t model_width(const model_slot *s) { return (int64_t)reshard_dtype_size(s->dtype); }
/* Bytes from the first element to the end of the last one. */
size_t model_reach(const model_slot *s);
bool model_contiguous(const model_slot *s);
/* True when the tensor can be read. */
static inline bool model_there(const model_slot *s) {
  return s->store->bytes >= (size_t)(s->offset * model_width(s)) + model_reach(s) || model_elements(s) == 0;
}
static inline bool model_gpu(const model *w, int place) { return place >= 0 && w->m->place[place].pattern != NULL; }

/* Count requests to a pool. */
void model_count_alloc(model *w, int place, size_t bytes);
void model_count_free(model *w, int place, size_t bytes);

/* Stream s (NOBODY: the host) is about to read or write the storage: after those who wrote, and read. */
void model_before_read(model *w, model_store *store, int s);
void model_before_write(model *w, model_store *store, int s);
/* One of the streams that the storage is in the order of; NOBODY where these are none. */
int model_stream_of(model *w, int place);
void *model_handle(const model *w, int s);

model_store *model_new_store(int place, int owner, size_t bytes);
/* A contiguous tensor in a slot, over new storage. */
void model_fill_slot(model_slot *s, reshard_tensor tensor, model_store *store, reshard_dtype dtype,
                     const int64_t shape[2]);
/* The host is about to read what the tensor looks at. */
void model_before_host_read(model *w, const model_slot *s);
/* New bytes through a tensor that is there, or in all of the storage, on the stream, and in the model. */
void model_write(model *w, const model_slot *s, int stream);
void model_write_all(model *w, model_store *store, int stream);
/* On the stream, for nothing. */
void model_read(model *w, const model_slot *s, int stream);
void model_compare(model *w, const model_slot *s);
void model_compare_stats(const model *w);
void model_drop(model *w, model_slot *s);
model_slot *model_pick(model *w, bool free_one);

#endif
