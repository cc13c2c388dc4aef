#include "device/memory/deferred_release.h"

#include "base/range.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>

struct rs_deferred_list {
  rs_device *device;
  pthread_mutex_t mutex;
  rs_deferred_release *first; /* in no order: they are of several streams */
};

reshard_status rs_deferred_list_create(rs_device *device, rs_deferred_list **list) {
  rs_deferred_list *made;
  RS_TRY(rs_alloc_zero(&made, 1, sizeof *made));
  made->device = device;
  pthread_mutex_init(&made->mutex, NULL);
  *list = made;
  return RESHARD_SUCCESS;
}

static void release_all(rs_device *device, rs_deferred_release *first) {
  for (rs_deferred_release *next; first != NULL; first = next) {
    next = first->next;
    for (int64_t i = 0; i < first->items.n; i++)
      first->items.at[i].release(first->items.at[i].user, first->items.at[i].object);
    free(first->items.at);
    device->streams->event_destroy(device, first->event);
    free(first);
  }
}

/* Waits for a release's event rather than for the whole device, whose other streams may wait for other ranks or be
 * captured. False: no event tells. */
static bool wait_for_release(rs_device *device, const rs_deferred_release *release) {
  bool happened = false;
  RS_RANGE("wait", -1, -1, -1, -1);
  while (!release->lost && !happened &&
         device->streams->event_done(device, release->event, &happened) == RESHARD_SUCCESS)
    if (!happened)
      sched_yield();
  return happened;
}

void rs_deferred_list_destroy(rs_deferred_list *list) {
  if (list == NULL)
    return;
  bool all = true;
  for (const rs_deferred_release *release = list->first; release != NULL; release = release->next)
    all &= wait_for_release(list->device, release);
  if (!all)
    (void)list->device->streams->finish(list->device);
  release_all(list->device, list->first);
  pthread_mutex_destroy(&list->mutex);
  free(list);
}

/* Takes the releases whose events have happened out of the list; their functions are called without the lock. */
static rs_deferred_release *take_finished(rs_deferred_list *list) {
  rs_deferred_release *done = NULL, **link = &list->first;
  pthread_mutex_lock(&list->mutex);
  while (*link != NULL) {
    rs_deferred_release *release = *link;
    bool happened = false;
    if (!release->lost &&
        list->device->streams->event_done(list->device, release->event, &happened) == RESHARD_SUCCESS && happened) {
      *link = release->next;
      release->next = done;
      done = release;
    } else {
      link = &release->next;
    }
  }
  pthread_mutex_unlock(&list->mutex);
  return done;
}

reshard_status rs_deferred_release_begin(rs_deferred_list *list, rs_deferred_release **release) {
  rs_deferred_release *made;
  release_all(list->device, take_finished(list));
  RS_TRY(rs_alloc_zero(&made, 1, sizeof *made));
  reshard_status status = list->device->streams->event_create(list->device, &made->event);
  if (status != RESHARD_SUCCESS) {
    free(made);
    return status;
  }
  *release = made;
  return RESHARD_SUCCESS;
}

reshard_status rs_deferred_release_add(rs_deferred_release *release, void (*function)(void *user, void *object),
                                       void *user, void *object) {
  RS_TRY(rs_vec_reserve(&release->items, release->items.n + 1));
  release->items.at[release->items.n++] = (rs_deferred_item){function, user, object};
  return RESHARD_SUCCESS;
}

void rs_deferred_release_end(rs_deferred_list *list, rs_deferred_release *release, bool launched) {
  if (!launched || release->items.n == 0) {
    release_all(list->device, release);
    return;
  }
  pthread_mutex_lock(&list->mutex);
  release->next = list->first;
  list->first = release;
  pthread_mutex_unlock(&list->mutex);
}
