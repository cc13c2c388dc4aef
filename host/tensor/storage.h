/* Memory that tensors look at. Whose it is decides how it comes and goes: a device's pool, in the order of streams; the
 * C library, for plain memory of the CPU; or a caller, who lends it. */
#ifndef RS_TENSOR_STORAGE_H
#define RS_TENSOR_STORAGE_H

#include "device/device.h"
#include "device/memory/pool.h"

#include <reshard/tensor.h>

#include <pthread.h>

typedef struct rs_storage {
  atomic_int references;    /* tensors over it, and managed tensors that were given away: */
  atomic_int given;         /* these; their readers know the address, so that the memory stays */
  pthread_mutex_t lock;     /* of the list of tensors, which threads may make and release at once */
  reshard_tensor tensors;   /* over it; the newest first */
  reshard_device device;    /* kept; NULL: memory of nobody's handle */
  rs_storage_pool *pool;    /* of the device, for its own memory or for pinned one of the host; NULL: of no pool */
  reshard_device_type type; /* who can read it */
  int index;                /* of the GPU; 0 for the CPU */
  bool lent;                /* the caller's: not freed or allocated here */
  bool read_only;           /* a managed tensor said so: passed on with it */
  void *memory;             /* NULL: freed, or no bytes */
  size_t bytes;             /* 0 likewise */
  rs_block *block;
  void (*release)(void *user, void *data); /* of lent memory; NULL: nobody is told */
  void *user;
} rs_storage;

/* Without memory yet. device NULL: plain memory of the CPU. pinned: memory of the host that the device's streams copy
 * to and from. One reference for the caller. */
reshard_status rs_storage_create(reshard_device device, bool pinned, rs_storage **storage);
/* Memory that is lent: release is called when the last reference goes. device NULL: on the CPU. */
reshard_status rs_storage_lend(reshard_device device, void *memory, size_t bytes,
                               void (*release)(void *user, void *data), void *user, rs_storage **storage);
rs_storage *rs_storage_retain(rs_storage *storage);
/* The last one frees the memory in the order of the stream that it was allocated on, after recorded uses. NULL is
 * allowed. */
void rs_storage_release(rs_storage *storage);

/* A tensor over the storage is told where its data is, now and whenever that changes, until it leaves. */
void rs_storage_join(rs_storage *storage, reshard_tensor tensor);
void rs_storage_leave(rs_storage *storage, reshard_tensor tensor);

/* Memory for storage that has none, in the order of stream; nothing for 0 bytes. */
reshard_status rs_storage_fill(rs_storage *storage, size_t bytes, void *stream);
/* The reverse, after recorded uses. Not of lent memory. */
void rs_storage_empty(rs_storage *storage, void *stream);
/* What is given to stream from here on may use the memory, until it is freed. Nothing for memory of no pool: it is
 * there for as long as its owner says; nor while stream is captured: the graph runs later, and who has it keeps the
 * memory. */
reshard_status rs_storage_use(rs_storage *storage, void *stream);

#endif
