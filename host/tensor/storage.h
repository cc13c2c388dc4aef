/* Memory of tensors, which ask it where they are. It belongs to a device's pool, in the order of streams, or to the C
 * library, for plain memory of the CPU. Or it belongs to a caller, from whom it is borrowed. */
#ifndef RS_TENSOR_STORAGE_H
#define RS_TENSOR_STORAGE_H

#include "device/handle.h"
#include "device/memory/pool.h"

#include <reshard/tensor.h>

typedef struct rs_storage {
  atomic_int references;    /* tensors over it, and exported managed tensors: */
  atomic_int exported;      /* these alone; their readers know the address, so that the memory stays */
  reshard_device device;    /* retained; NULL: memory without a handle */
  rs_storage_pool *pool;    /* of the device, for its own memory or for pinned one of the host; NULL: of no pool */
  reshard_device_type type; /* who can read it */
  int index;                /* of the GPU; 0 for the CPU */
  bool borrowed;            /* the caller's: not freed or allocated here */
  bool read_only;           /* a managed tensor said so: passed on with it */
  void *memory;             /* NULL: freed, or no bytes */
  size_t bytes;             /* 0 likewise */
  rs_block *block;
  void (*release)(void *user, void *data); /* of borrowed memory; may be NULL */
  void *user;
} rs_storage;

/* Without memory yet. device NULL: plain memory of the CPU. pinned: memory of the host that the device's streams copy
 * to and from. One reference for the caller. */
reshard_status rs_storage_create(reshard_device device, bool pinned, rs_storage **storage);
/* Borrows memory: release is called when the last reference goes. device NULL: on the CPU. */
reshard_status rs_storage_borrow(reshard_device device, void *memory, size_t bytes,
                                 void (*release)(void *user, void *data), void *user, rs_storage **storage);
rs_storage *rs_storage_retain(rs_storage *storage);
/* The last one frees the memory in the order of the stream that it was allocated on, after recorded uses. NULL is
 * allowed. */
void rs_storage_release(rs_storage *storage);

/* Allocates memory for storage that has none, in the order of stream; nothing for 0 bytes. */
reshard_status rs_storage_alloc(rs_storage *storage, size_t bytes, void *stream);

#endif
