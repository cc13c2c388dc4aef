/* Rank 0 of a rendezvous: it takes the bytes of all ranks, then answers each with all.
 *
 * A connection has little time to greet, and is served beside the others, so that an idle one holds up none. Its bytes
 * are taken when the greeting is that of this run: version, job, number of ranks, and a rank that was not
 * answered. From then on its time is that of the call. It is told so at once, and answered when all have come. A rank
 * is answered when it has said so: one that gave up before may come again. */
#define _GNU_SOURCE
#include "comm/bootstrap/bootstrap.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { MOST_STRANGERS = 256 };

/* A connection, and the bytes of each of its steps that are done. */
typedef struct bootstrap_guest {
  int fd;
  int64_t end; /* of its time to greet; 0: it has */
  rs_greeting g;
  char thanks;
  int64_t greeted, taken, told, answered, thanked;
} bootstrap_guest;

typedef struct bootstrap_host {
  rs_gathering *g;
  bool *came, *served; /* [n] */
  int64_t ncame, nserved;
  int listener;
  int64_t nguests, most;
  bootstrap_guest *guests; /* [most], by age */
  struct pollfd *polls;    /* [most + 1]: the listener is the last one */
} bootstrap_host;

static bool waits(const bootstrap_host *h, const bootstrap_guest *who) {
  return who->told == 1 && h->ncame < h->g->mine.n;
}

/* Ends a connection; the order of the others stays. */
static void dismiss(bootstrap_host *h, int64_t i) {
  close(h->guests[i].fd);
  memmove(&h->guests[i], &h->guests[i + 1], (size_t)(--h->nguests - i) * sizeof *h->guests);
}

/* Ends the oldest connection that has not greeted; false: there is none. */
static bool dismiss_stranger(bootstrap_host *h) {
  int64_t i = 0;
  while (i < h->nguests && h->guests[i].greeted == sizeof(rs_greeting))
    i++;
  if (i == h->nguests)
    return false;
  dismiss(h, i);
  return true;
}

static bool is_expected(const bootstrap_host *h, const bootstrap_guest *who) {
  const rs_greeting *g = &who->g, *mine = &h->g->mine;
  if (g->magic != mine->magic || g->run != mine->run || g->n != mine->n || g->bytes != mine->bytes || g->rank <= 0 ||
      g->rank >= mine->n || h->served[g->rank])
    return false;
  for (int64_t i = 0; i < h->nguests; i++) /* the same rank twice at a time */
    if (&h->guests[i] != who && h->guests[i].greeted == sizeof *g && h->guests[i].g.rank == g->rank)
      return false;
  return true;
}

/* Goes on with a connection that is ready; false where it has ended. */
static bool serve_guest(bootstrap_host *h, bootstrap_guest *who) {
  int64_t bytes = h->g->mine.bytes, rank = who->g.rank;
  if (who->greeted < (int64_t)sizeof who->g) {
    if (!rs_transfer_some(who->fd, false, &who->g, sizeof who->g, &who->greeted))
      return false;
    if (who->greeted < (int64_t)sizeof who->g)
      return true;
    who->end = 0;
    return is_expected(h, who);
  }
  if (who->taken < bytes) {
    if (!rs_transfer_some(who->fd, false, h->g->all + rank * bytes, bytes, &who->taken))
      return false;
    if (who->taken == bytes && !h->came[rank]) {
      h->came[rank] = true;
      h->ncame++;
    }
    return true;
  }
  if (who->told == 0) {
    char ok = 1;
    return rs_transfer_some(who->fd, true, &ok, 1, &who->told);
  }
  if (waits(h, who)) /* it has nothing to say: it is gone */
    return false;
  if (who->answered < h->g->mine.n * bytes)
    return rs_transfer_some(who->fd, true, h->g->all, h->g->mine.n * bytes, &who->answered);
  if (!rs_transfer_some(who->fd, false, &who->thanks, 1, &who->thanked))
    return false;
  h->served[rank] = who->thanked == 1;
  h->nserved += who->thanked;
  return who->thanked == 0;
}

static short events_of(const bootstrap_host *h, const bootstrap_guest *who) {
  bool in = who->greeted < (int64_t)sizeof who->g || who->taken < h->g->mine.bytes || waits(h, who) ||
            who->answered == h->g->mine.n * h->g->mine.bytes;
  return who->told == 0 && who->taken == h->g->mine.bytes ? POLLOUT : in ? POLLIN : POLLOUT;
}

/* Lets one in; where there are too many, the oldest that has not greeted has to go. */
static void admit_guest(bootstrap_host *h) {
  if (h->nguests == h->most && !dismiss_stranger(h))
    return;
  int fd = accept4(h->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (fd >= 0)
    h->guests[h->nguests++] = (bootstrap_guest){.fd = fd, .end = rs_now_ns() + RS_PATIENCE_NS};
  else if ((errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) && !dismiss_stranger(h))
    poll(NULL, 0, 20);
}

/* Waits for something to happen, and goes on with it. */
static void serve_some(bootstrap_host *h) {
  int64_t n = h->nguests, first = 0;
  for (int64_t i = 0; i < n; i++) {
    const bootstrap_guest *who = &h->guests[i];
    if (who->end != 0 && (first == 0 || who->end < first))
      first = who->end;
    h->polls[i] = (struct pollfd){who->fd, events_of(h, who), 0};
  }
  h->polls[n] = (struct pollfd){h->listener, POLLIN, 0};
  poll(h->polls, (nfds_t)n + 1, rs_ms_until(first, h->g->end));
  int64_t now = rs_now_ns();
  for (int64_t i = n - 1; i >= 0; i--)
    if ((h->polls[i].revents != 0 && !serve_guest(h, &h->guests[i])) ||
        (h->guests[i].end != 0 && h->guests[i].end < now))
      dismiss(h, i);
  if (h->polls[n].revents != 0)
    admit_guest(h);
}

/* Names the ranks that have not come or, when all have, were not answered. */
static reshard_status error_late(const bootstrap_host *h) {
  char text[160];
  int64_t few[64], n = 0, all = h->g->mine.n; /* a text has no room for more */
  const bool *there = h->ncame < all ? h->came : h->served;
  for (int64_t r = 1; r < all && n < 64; r++)
    if (!there[r])
      few[n++] = r;
  return rs_error(RESHARD_ERROR_TIMEOUT, "rendezvous: %lld of %lld ranks %s port %d within %lld ms; missing: %s",
                  (long long)(h->ncame < all ? h->ncame : h->nserved), (long long)all,
                  h->ncame < all ? "came to" : "were answered at", h->g->at->port, (long long)h->g->at->timeout_ms,
                  rs_ranges_text(text, sizeof text, n, few));
}

reshard_status rs_serve_gathering(rs_gathering *g, int listener) {
  bootstrap_host h = {.g = g, .ncame = 1, .nserved = 1, .listener = listener, .most = g->mine.n + MOST_STRANGERS};
  reshard_status status;
  RS_TRY_GOTO(status, rs_alloc_zero(&h.came, g->mine.n, sizeof *h.came), done);
  RS_TRY_GOTO(status, rs_alloc_zero(&h.served, g->mine.n, sizeof *h.served), done);
  RS_TRY_GOTO(status, rs_alloc(&h.guests, h.most + 1, sizeof *h.guests), done);
  RS_TRY_GOTO(status, rs_alloc(&h.polls, h.most + 1, sizeof *h.polls), done);
  while (h.nserved < g->mine.n && status == RESHARD_SUCCESS) {
    if (g->end != 0 && rs_now_ns() >= g->end)
      status = error_late(&h);
    else
      serve_some(&h);
  }
done:
  while (h.nguests > 0)
    dismiss(&h, h.nguests - 1);
  free(h.came);
  free(h.served);
  free(h.guests);
  free(h.polls);
  return status;
}
