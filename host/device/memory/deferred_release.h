/* What has to stay until a stream is done with it, without the host waiting: memory of others that is copied from. It
 * is let go at a later call that has to do with this list, once an event has happened. */
#ifndef RS_DEVICE_MEMORY_DEFERRED_RELEASE_H
#define RS_DEVICE_MEMORY_DEFERRED_RELEASE_H

#include "device/device.h"

typedef struct rs_deferred_list rs_deferred_list; /* of a device */
typedef struct rs_deferred_item {
  void (*release)(void *user, void *what);
  void *user, *what;
} rs_deferred_item;
typedef struct rs_deferred_release { /* of one call */
  struct rs_deferred_release *next;
  rs_event *event;
  bool lost; /* nothing tells when it is done: it stays until the list goes */
  RS_VEC(rs_deferred_item) items;
} rs_deferred_release;

reshard_status rs_deferred_list_create(rs_device *device, rs_deferred_list **keep);
/* Blocks until what is kept is done with. NULL is allowed. */
void rs_deferred_list_destroy(rs_deferred_list *keep);

/* Lets go what is done with; then an empty one. Thread-safe, as is the end. */
reshard_status rs_deferred_release_begin(rs_deferred_list *keep, rs_deferred_release **kept);
/* release(user, what) is called once, from whatever thread calls later. On an error it is not. */
reshard_status rs_deferred_release_add(rs_deferred_release *kept, void (*release)(void *user, void *what), void *user,
                                       void *what);
/* What was added stays until the event has happened, which the caller has recorded behind the last use (or says that
 * it is lost); `launched` false: nothing uses it, and it goes now. kept is the list's from here on. */
void rs_deferred_release_end(rs_deferred_list *keep, rs_deferred_release *kept, bool launched);

#endif
