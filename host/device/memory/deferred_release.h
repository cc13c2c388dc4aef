/* Releases of objects that a stream still uses, without the host waiting: memory of others that is copied from. A
 * later call that has to do with the list calls their functions, once an event has happened. */
#ifndef RS_DEVICE_MEMORY_DEFERRED_RELEASE_H
#define RS_DEVICE_MEMORY_DEFERRED_RELEASE_H

#include "device/device.h"

typedef struct rs_deferred_list rs_deferred_list; /* of a device */
typedef struct rs_deferred_item {
  void (*release)(void *user, void *object);
  void *user, *object;
} rs_deferred_item;
typedef struct rs_deferred_release { /* of one call */
  struct rs_deferred_release *next;
  rs_event *event;
  bool lost; /* no event tells when the stream is done: its objects stay until the list ends */
  RS_VEC(rs_deferred_item) items;
} rs_deferred_release;

reshard_status rs_deferred_list_create(rs_device *device, rs_deferred_list **list);
/* Blocks until all releases are done. NULL is allowed. */
void rs_deferred_list_destroy(rs_deferred_list *list);

/* Does the releases whose events have happened, then makes an empty one. Thread-safe, as is the end. */
reshard_status rs_deferred_release_begin(rs_deferred_list *list, rs_deferred_release **release);
/* Adds an object: function(user, object) is called once, from whatever thread calls later. Not so after an error. */
reshard_status rs_deferred_release_add(rs_deferred_release *release, void (*function)(void *user, void *object),
                                       void *user, void *object);
/* Puts a release in the list, which owns it from here on. The caller has recorded the event behind the last use, or
 * says that it is lost. `launched` false: nothing uses the objects, and they are released now. */
void rs_deferred_release_end(rs_deferred_list *list, rs_deferred_release *release, bool launched);

#endif
