#include "device/memory/deferred_release.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>

struct rs_deferred_list {
  rs_device *device;
  pthread_mutex_t mutex;
  rs_deferred_release *first; /* in no order: they are of several streams */
};

reshard_status rs_deferred_list_create(rs_device *device, rs_deferred_list **keep) {
  rs_deferred_list *made;
  RS_TRY(rs_alloc_zero(&made, 1, sizeof *made));
  made->device = device;
  pthread_mutex_init(&made->mutex, NULL);
  *keep = made;
  return RESHARD_SUCCESS;
}

static void let_go(rs_device *device, rs_deferred_release *list) {
  for (rs_deferred_release *next; list != NULL; list = next) {
    next = list->next;
    for (int64_t i = 0; i < list->items.n; i++)
      list->items.at[i].release(list->items.at[i].user, list->items.at[i].what);
    free(list->items.at);
    device->ops->event_destroy(device, list->event);
    free(list);
  }
}

/* Not for the whole device where that can be helped: it has streams of others, which may wait for other ranks, or be
 * captured. false: nobody can tell. */
static bool wait_for(rs_device *device, const rs_deferred_release *kept) {
  bool happened = false;
  while (!kept->lost && !happened && device->ops->event_done(device, kept->event, &happened) == RESHARD_SUCCESS)
    if (!happened)
      sched_yield();
  return happened;
}

void rs_deferred_list_destroy(rs_deferred_list *keep) {
  if (keep == NULL)
    return;
  bool all = true;
  for (const rs_deferred_release *kept = keep->first; kept != NULL; kept = kept->next)
    all &= wait_for(keep->device, kept);
  if (!all)
    (void)keep->device->ops->finish(keep->device);
  let_go(keep->device, keep->first);
  pthread_mutex_destroy(&keep->mutex);
  free(keep);
}

/* Those that are done with, out of the list: what they hold is let go without the lock. */
static rs_deferred_release *take_done(rs_deferred_list *keep) {
  rs_deferred_release *done = NULL, **link = &keep->first;
  pthread_mutex_lock(&keep->mutex);
  while (*link != NULL) {
    rs_deferred_release *kept = *link;
    bool happened = false;
    if (!kept->lost && keep->device->ops->event_done(keep->device, kept->event, &happened) == RESHARD_SUCCESS &&
        happened) {
      *link = kept->next;
      kept->next = done;
      done = kept;
    } else {
      link = &kept->next;
    }
  }
  pthread_mutex_unlock(&keep->mutex);
  return done;
}

reshard_status rs_deferred_release_begin(rs_deferred_list *keep, rs_deferred_release **kept) {
  rs_deferred_release *made;
  let_go(keep->device, take_done(keep));
  RS_TRY(rs_alloc_zero(&made, 1, sizeof *made));
  reshard_status status = keep->device->ops->event_create(keep->device, &made->event);
  if (status != RESHARD_SUCCESS) {
    free(made);
    return status;
  }
  *kept = made;
  return RESHARD_SUCCESS;
}

reshard_status rs_deferred_release_add(rs_deferred_release *kept, void (*release)(void *user, void *what), void *user,
                                       void *what) {
  RS_TRY(rs_vec_reserve(&kept->items, kept->items.n + 1));
  kept->items.at[kept->items.n++] = (rs_deferred_item){release, user, what};
  return RESHARD_SUCCESS;
}

void rs_deferred_release_end(rs_deferred_list *keep, rs_deferred_release *kept, bool launched) {
  if (!launched || kept->items.n == 0) {
    let_go(keep->device, kept);
    return;
  }
  pthread_mutex_lock(&keep->mutex);
  kept->next = keep->first;
  keep->first = kept;
  pthread_mutex_unlock(&keep->mutex);
}
