/* Rank 0 of a rendezvous: it takes the bytes of all ranks, then answers each with all.
 *
 * A connection has little time until its bytes are there, and is served beside the others: several may say that they
 * are of one rank, and none holds up another. The first whose bytes are proven gets the rank's place, and keeps it as
 * long as the connection is there. From then on its time is that of the call. A rank is answered when it has said so:
 * one that gave up before may come again.
 *
 * A rank that differs in its secret is told so, and may come again: it may be another than it says. The error names it
 * where the rank does not come in time. */
#define _GNU_SOURCE
#include "comm/bootstrap/bootstrap.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { MOST_STRANGERS = 256 };

/* Messages of a connection, in their order (bootstrap.h). In WAITS there is none: not all ranks have come. */
typedef enum bootstrap_step {
  STEP_GREETING,
  STEP_WELCOME,
  STEP_PROOF,
  STEP_ADMISSION,
  STEP_BYTES,
  STEP_BYTES_PROOF,
  STEP_TOLD, /* it has its place */
  STEP_WAITS,
  STEP_ALL,
  STEP_ALL_PROOF,
  STEP_THANKS
} bootstrap_step;

/* A connection. */
typedef struct bootstrap_guest {
  int fd;
  int64_t end; /* of its time to get a place; 0: it has one */
  bootstrap_step step;
  int64_t done; /* bytes of the step */
  rs_greeting g;
  rs_welcome welcome;
  rs_admission admission;
  rs_proof proof;
  char *bytes;
  char word;
} bootstrap_guest;

typedef struct bootstrap_host {
  rs_gathering *g;
  bool *came, *served; /* [n] */
  rs_secrets *differ;  /* [n] */
  int64_t ncame, nserved;
  unsigned char digest[RS_SHA256_BYTES]; /* of all bytes, when they have come */
  const rs_listeners *listeners;
  int64_t nguests, most;
  bootstrap_guest *guests; /* [most], by age */
  struct pollfd *polls;    /* [most + RS_LISTENERS]: the listeners are behind the guests */
} bootstrap_host;

/* Ends a connection; the order of the others stays. */
static void dismiss(bootstrap_host *h, int64_t i) {
  close(h->guests[i].fd);
  free(h->guests[i].bytes);
  memmove(&h->guests[i], &h->guests[i + 1], (size_t)(--h->nguests - i) * sizeof *h->guests);
}

/* Ends the oldest connection without a place; false: there is none. */
static bool dismiss_stranger(bootstrap_host *h) {
  int64_t i = 0;
  while (i < h->nguests && h->guests[i].step >= STEP_TOLD)
    i++;
  if (i == h->nguests)
    return false;
  dismiss(h, i);
  return true;
}

/* --- Steps -------------------------------------------------------------------------------------------------------- */

/* Bytes that a connection sends or receives in its step. */
typedef struct bootstrap_part {
  bool out;
  void *bytes;
  int64_t n;
} bootstrap_part;

static bootstrap_part part_of(const bootstrap_host *h, bootstrap_guest *who) {
  const rs_greeting *mine = &h->g->mine;
  switch (who->step) {
  case STEP_GREETING: return (bootstrap_part){false, &who->g, sizeof who->g};
  case STEP_WELCOME: return (bootstrap_part){true, &who->welcome, sizeof who->welcome};
  case STEP_PROOF:
  case STEP_BYTES_PROOF: return (bootstrap_part){false, who->proof, sizeof who->proof};
  case STEP_ADMISSION: return (bootstrap_part){true, &who->admission, sizeof who->admission};
  case STEP_BYTES: return (bootstrap_part){false, who->bytes, mine->bytes};
  case STEP_TOLD: return (bootstrap_part){true, &who->word, 1};
  case STEP_ALL: return (bootstrap_part){true, h->g->all, mine->n * mine->bytes};
  case STEP_ALL_PROOF: return (bootstrap_part){true, who->proof, sizeof who->proof};
  default: return (bootstrap_part){false, &who->word, 1};
  }
}

/* A rank of this run that was not answered yet. */
static bool is_expected(const bootstrap_host *h, const rs_greeting *g) {
  const rs_greeting *mine = &h->g->mine;
  return g->magic == mine->magic && g->run == mine->run && g->n == mine->n && g->bytes == mine->bytes && g->rank > 0 &&
         g->rank < mine->n && !h->served[g->rank];
}

static bool has_place(const bootstrap_host *h, int64_t rank) {
  for (int64_t i = 0; i < h->nguests; i++)
    if (h->guests[i].step >= STEP_TOLD && h->guests[i].g.rank == rank)
      return true;
  return false;
}

static bool take_greeting(const bootstrap_host *h, bootstrap_guest *who) {
  if (!is_expected(h, &who->g) || !rs_draw_nonce(who->welcome.nonce))
    return false;
  who->welcome.secret = h->g->mine.secret;
  who->end = rs_now_ns() + rs_min(rs_max(who->g.patience, RS_PATIENCE_NS), RS_PATIENCE_MOST_NS);
  return true;
}

/* One that has a secret and one that has none go no further. */
static bool end_welcome(const bootstrap_host *h, const bootstrap_guest *who) {
  if (who->g.secret == who->welcome.secret)
    return true;
  h->differ[who->g.rank] = who->welcome.secret != 0 ? RS_SECRETS_FIRST : RS_SECRETS_OTHER;
  return false;
}

static void take_proof(const bootstrap_host *h, bootstrap_guest *who) {
  rs_proof right;
  rs_prove(h->g, RS_PROOF_OF_RANK, &who->g, &who->welcome, NULL, right);
  who->admission.refused = !rs_proofs_equal(right, who->proof);
  if (who->admission.refused)
    h->differ[who->g.rank] = RS_SECRETS_DIFFER;
  else
    rs_prove(h->g, RS_PROOF_OF_FIRST, &who->g, &who->welcome, NULL, who->admission.proof);
}

static bool end_admission(const bootstrap_host *h, bootstrap_guest *who) {
  return who->admission.refused == 0 && rs_alloc(&who->bytes, h->g->mine.bytes, 1) == RESHARD_SUCCESS;
}

/* The rank gets its place, unless another connection has it. */
static bool take_bytes(bootstrap_host *h, bootstrap_guest *who) {
  int64_t bytes = h->g->mine.bytes, rank = who->g.rank;
  unsigned char digest[RS_SHA256_BYTES];
  rs_proof right;
  rs_sha256(who->bytes, (size_t)bytes, digest);
  rs_prove(h->g, RS_PROOF_OF_BYTES, &who->g, &who->welcome, digest, right);
  if (!rs_proofs_equal(right, who->proof) || h->served[rank] || has_place(h, rank) ||
      (h->came[rank] && h->ncame == h->g->mine.n && memcmp(h->g->all + rank * bytes, who->bytes, (size_t)bytes) != 0))
    return false;
  memcpy(h->g->all + rank * bytes, who->bytes, (size_t)bytes);
  free(who->bytes);
  who->bytes = NULL;
  who->end = 0;
  who->word = 1;
  h->ncame += !h->came[rank];
  h->came[rank] = true;
  if (h->ncame == h->g->mine.n)
    rs_sha256(h->g->all, (size_t)(h->g->mine.n * bytes), h->digest);
  return true;
}

/* Goes on after a step that is done; false where the connection ends. */
static bool end_step(bootstrap_host *h, bootstrap_guest *who) {
  switch (who->step) {
  case STEP_GREETING: return take_greeting(h, who);
  case STEP_WELCOME: return end_welcome(h, who);
  case STEP_PROOF: take_proof(h, who); return true;
  case STEP_ADMISSION: return end_admission(h, who);
  case STEP_BYTES_PROOF: return take_bytes(h, who);
  case STEP_ALL: rs_prove(h->g, RS_PROOF_OF_ALL, &who->g, &who->welcome, h->digest, who->proof); return true;
  case STEP_THANKS:
    h->served[who->g.rank] = true;
    h->nserved++;
    return false;
  default: return true;
  }
}

/* Goes on with a connection that is ready; false where it has ended. */
static bool serve_guest(bootstrap_host *h, bootstrap_guest *who) {
  if (who->step == STEP_WAITS) /* it has nothing to say: it is gone */
    return false;
  bootstrap_part part = part_of(h, who);
  if (!rs_transfer_some(who->fd, part.out, part.bytes, part.n, &who->done))
    return false;
  if (who->done < part.n)
    return true;
  if (!end_step(h, who))
    return false;
  who->step++;
  who->done = 0;
  return true;
}

/* --- Connections -------------------------------------------------------------------------------------------------- */

/* Lets one in; where there are too many, the oldest without a place has to go. */
static void admit_guest(bootstrap_host *h, int listener) {
  if (h->nguests == h->most && !dismiss_stranger(h))
    return;
  int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (fd >= 0)
    h->guests[h->nguests++] = (bootstrap_guest){.fd = fd, .end = rs_now_ns() + RS_PATIENCE_NS};
  else if ((errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) && !dismiss_stranger(h))
    poll(NULL, 0, 20);
}

/* Waits for something to happen, and goes on with it. */
static void serve_some(bootstrap_host *h) {
  int64_t n = h->nguests, first = 0;
  for (int64_t i = 0; i < n; i++) {
    bootstrap_guest *who = &h->guests[i];
    if (who->step == STEP_WAITS && h->ncame == h->g->mine.n)
      who->step = STEP_ALL;
    if (who->end != 0 && (first == 0 || who->end < first))
      first = who->end;
    h->polls[i] = (struct pollfd){who->fd, part_of(h, who).out ? POLLOUT : POLLIN, 0};
  }
  for (int i = 0; i < h->listeners->n; i++)
    h->polls[n + i] = (struct pollfd){h->listeners->fd[i], POLLIN, 0};
  poll(h->polls, (nfds_t)(n + h->listeners->n), rs_ms_until(first, h->g->end));
  int64_t now = rs_now_ns();
  for (int64_t i = n - 1; i >= 0; i--)
    if ((h->polls[i].revents != 0 && !serve_guest(h, &h->guests[i])) ||
        (h->guests[i].end != 0 && h->guests[i].end < now))
      dismiss(h, i);
  for (int i = 0; i < h->listeners->n; i++)
    if (h->polls[n + i].revents != 0)
      admit_guest(h, h->listeners->fd[i]);
}

/* Names the ranks that have not come or, when all have, were not answered. */
static reshard_status error_late(const bootstrap_host *h) {
  char text[160];
  int64_t few[64], n = 0, all = h->g->mine.n; /* a text has no room for more */
  const bool *there = h->ncame < all ? h->came : h->served;
  for (int64_t r = 1; r < all; r++)
    if (!h->came[r] && h->differ[r] != RS_SECRETS_SAME)
      return rs_error_secrets(h->differ[r], r);
  for (int64_t r = 1; r < all && n < 64; r++)
    if (!there[r])
      few[n++] = r;
  return rs_error(RESHARD_ERROR_TIMEOUT, "rendezvous: %lld of %lld ranks %s port %d within %lld ms; missing: %s",
                  (long long)(h->ncame < all ? h->ncame : h->nserved), (long long)all,
                  h->ncame < all ? "came to" : "were answered at", h->g->at->port, (long long)h->g->at->timeout_ms,
                  rs_ranges_text(text, sizeof text, n, few));
}

reshard_status rs_serve_gathering(rs_gathering *g, const rs_listeners *listeners) {
  bootstrap_host h = {.g = g, .ncame = 1, .nserved = 1, .listeners = listeners, .most = g->mine.n + MOST_STRANGERS};
  reshard_status status;
  RS_TRY_GOTO(status, rs_alloc_zero(&h.came, g->mine.n, sizeof *h.came), done);
  RS_TRY_GOTO(status, rs_alloc_zero(&h.served, g->mine.n, sizeof *h.served), done);
  RS_TRY_GOTO(status, rs_alloc_zero(&h.differ, g->mine.n, sizeof *h.differ), done);
  RS_TRY_GOTO(status, rs_alloc(&h.guests, h.most, sizeof *h.guests), done);
  RS_TRY_GOTO(status, rs_alloc(&h.polls, h.most + RS_LISTENERS, sizeof *h.polls), done);
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
  free(h.differ);
  free(h.guests);
  free(h.polls);
  return status;
}
