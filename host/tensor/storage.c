/* A list of blocks, given back last first: what is taken again soon is still in the cache. A block serves a tensor that
 * is little smaller than it; the ones that were given back longest ago go when there are too many bytes. Small tensors
 * are left to malloc, which keeps their pages itself. */
#include "tensor/storage.h"

#include <pthread.h>
#include <stdlib.h>

enum { LEAST = 256 << 10 }; /* bytes of a tensor for which it is worth while */

typedef struct block {
  struct rs_storage *storage;
  struct block *next;
  void *memory;
  int64_t bytes;
} block;

struct rs_storage {
  pthread_mutex_t mutex;
  int64_t most;  /* bytes that are kept; 0: dropped */
  int64_t users; /* blocks that are out, and its owner */
  block *kept;
};

reshard_status rs_storage_create(int64_t most, rs_storage **storage) {
  rs_storage *made;
  RS_TRY(rs_alloc_zero(&made, 1, sizeof *made));
  pthread_mutex_init(&made->mutex, NULL);
  made->most = most;
  made->users = 1;
  *storage = made;
  return RESHARD_SUCCESS;
}

static void free_blocks(block *list) {
  for (block *next; list != NULL; list = next) {
    next = list->next;
    free(list->memory);
    free(list);
  }
}

/* The blocks from where the bytes of the list exceed `most`; they are no longer in it. */
static block *cut_off(rs_storage *s) {
  int64_t bytes = 0;
  block **link = &s->kept;
  while (*link != NULL && bytes + (*link)->bytes <= s->most) {
    bytes += (*link)->bytes;
    link = &(*link)->next;
  }
  block *rest = *link;
  *link = NULL;
  return rest;
}

/* Ends with the lock: one user less, and what there is no room for. */
static void leave(rs_storage *s) {
  block *rest = cut_off(s);
  bool last = --s->users == 0;
  pthread_mutex_unlock(&s->mutex);
  free_blocks(rest);
  if (last) {
    pthread_mutex_destroy(&s->mutex);
    free(s);
  }
}

void rs_storage_drop(rs_storage *storage) {
  if (storage == NULL)
    return;
  pthread_mutex_lock(&storage->mutex);
  storage->most = 0;
  leave(storage);
}

static void give_back(void *user, void *data) {
  block *b = user;
  rs_storage *s = b->storage;
  (void)data;
  pthread_mutex_lock(&s->mutex);
  b->next = s->kept;
  s->kept = b;
  leave(s);
}

/* The block given back last that fits, with one more user; or NULL. */
static block *find(rs_storage *s, int64_t bytes) {
  pthread_mutex_lock(&s->mutex);
  block **link = &s->kept;
  while (*link != NULL && ((*link)->bytes < bytes || (*link)->bytes - bytes > bytes / 8))
    link = &(*link)->next;
  block *found = *link;
  if (found != NULL)
    *link = found->next;
  s->users++;
  pthread_mutex_unlock(&s->mutex);
  return found;
}

static reshard_status take(rs_storage *s, int64_t bytes, block **out) {
  *out = find(s, bytes);
  if (*out != NULL)
    return RESHARD_SUCCESS;
  block *made;
  reshard_status status = rs_alloc_zero(&made, 1, sizeof *made);
  if (status == RESHARD_SUCCESS) {
    *made = (block){.storage = s, .bytes = bytes};
    status = rs_tensor_memory(bytes, &made->memory);
    if (status == RESHARD_SUCCESS) {
      *out = made;
      return status;
    }
    free(made);
  }
  pthread_mutex_lock(&s->mutex);
  leave(s);
  return status;
}

reshard_status rs_storage_tensor(rs_storage *s, reshard_dtype dtype, int ndim, const int64_t *shape,
                                 reshard_tensor *tensor) {
  int64_t bytes = (int64_t)reshard_dtype_size(dtype);
  bool sound = ndim >= 0 && ndim <= RESHARD_MAX_DIMS; /* else it is refused below */
  for (int d = 0; d < ndim && sound; d++)
    sound = shape[d] >= 0 && rs_mul(bytes, shape[d], &bytes);
  if (s == NULL || !sound || bytes < LEAST)
    return reshard_tensor_create(dtype, ndim, shape, tensor);
  block *b;
  RS_TRY(take(s, bytes, &b));
  reshard_status status = reshard_tensor_wrap(dtype, ndim, shape, NULL, b->memory, give_back, b, tensor);
  if (status != RESHARD_SUCCESS)
    give_back(b, b->memory);
  return status;
}
