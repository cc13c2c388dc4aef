/* The duplicate of the caller's communicator: by a deadline, and with the ranks that do not come.
 *
 * MPI says of a collective call that it is not done, and not for whom it waits. So each rank first scatters a byte: a
 * rank whose byte is out has not come, for MPI_Iscatterv sends from its root to each rank. One that is lost in the
 * duplication itself is known by its silence: the others tell each other that they are there.
 *
 * Whoever gives up tells all others why, and they give up with the same error. That goes from rank to rank on the
 * caller's communicator, for Open MPI takes no collective call there while a duplication is under way. What an earlier
 * creation has left there has a lower number.
 *
 * The duplication of a creation is the one of its number. A rank that gives up before it begins owes it, and begins it
 * first in its next creation. */
#include "comm/mpi/duplicate.h"

#include "comm/mpi/end.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GIVE_UP_MS = 500 }; /* for others to tell that they are there */

static int highest_tag(MPI_Comm mpi) {
  int found = 0, *most = NULL, code = MPI_Comm_get_attr(mpi, MPI_TAG_UB, &most, &found);
  return code == MPI_SUCCESS && found ? *most : 32767;
}

/* --- Farewells --------------------------------------------------------------------------------------------------- */

/* Of one communicator of the caller's: the number of the last creation, that of the last duplication that was begun,
 * and the link of one that may still be under way. That link stays. */
typedef struct creations {
  int64_t number, begun;
  rs_mpi_link *unfinished; /* NULL: none */
} creations;

static int creations_key = MPI_KEYVAL_INVALID; /* of the attribute that has them */

static int free_creations(MPI_Comm mpi, int key, void *value, void *extra) {
  (void)mpi, (void)key, (void)extra;
  free(value);
  return MPI_SUCCESS;
}

static void make_creations_key(void) {
  if (MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, free_creations, &creations_key, NULL) != MPI_SUCCESS)
    creations_key = MPI_KEYVAL_INVALID;
}

/* Those of the caller's communicator. Numbers are the same on all ranks, which make as many calls in one order. */
static reshard_status find_creations(MPI_Comm mpi, creations **out) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  int found = 0, code;
  pthread_once(&once, make_creations_key);
  if (creations_key == MPI_KEYVAL_INVALID)
    return rs_error(RESHARD_ERROR_PEER, "MPI has no attribute left");
  code = MPI_Comm_get_attr(mpi, creations_key, out, &found);
  if (code == MPI_SUCCESS && found)
    return RESHARD_SUCCESS;
  RS_TRY(rs_alloc_zero(out, 1, sizeof **out));
  if (code == MPI_SUCCESS)
    code = MPI_Comm_set_attr(mpi, creations_key, *out);
  if (code == MPI_SUCCESS)
    return RESHARD_SUCCESS;
  free(*out);
  return rs_error(RESHARD_ERROR_PEER, "MPI_Comm_set_attr: MPI error %d", code);
}

/* Once each, of a question and a reason. */
static void send_farewell(rs_mpi *c, reshard_status status, const char *text) {
  int64_t kind = status != RESHARD_SUCCESS, size = c->base.size;
  rs_mpi_farewell *farewell = &c->farewells[kind];
  if (farewell->number != 0)
    return;
  farewell->number = c->creation;
  farewell->status = status;
  snprintf(farewell->text, sizeof farewell->text, "%s", text);
  for (int64_t r = 0; r < size; r++)
    if (r != c->base.rank)
      (void)MPI_Isend(farewell, sizeof *farewell, MPI_BYTE, (int)r, highest_tag(c->caller), c->caller,
                      &rs_mpi_talks(c, RS_MPI_TALK_ASKS + kind)[r]);
}

reshard_status rs_mpi_hear_farewells(rs_mpi *c) {
  rs_mpi_farewell heard;
  MPI_Status from;
  int there = 0;
  while (c->caller != MPI_COMM_NULL &&
         MPI_Iprobe(MPI_ANY_SOURCE, highest_tag(c->caller), c->caller, &there, &from) == MPI_SUCCESS && there &&
         MPI_Recv(&heard, sizeof heard, MPI_BYTE, from.MPI_SOURCE, from.MPI_TAG, c->caller, MPI_STATUS_IGNORE) ==
             MPI_SUCCESS) {
    if (heard.number < c->creation) /* of an earlier one */
      continue;
    if (heard.status != RESHARD_SUCCESS) {
      c->caller = MPI_COMM_NULL; /* whoever gave up has told all: this rank tells nobody */
      return rs_error((reshard_status)heard.status, "%s", heard.text);
    }
    c->link->asked[from.MPI_SOURCE] = true;
    send_farewell(c, RESHARD_SUCCESS, "");
  }
  return RESHARD_SUCCESS;
}

void rs_mpi_end_creation(rs_mpi *c, reshard_status status) {
  if (status != RESHARD_SUCCESS && c->caller != MPI_COMM_NULL)
    send_farewell(c, status, reshard_last_error());
  c->caller = MPI_COMM_NULL;
}

/* --- Greetings --------------------------------------------------------------------------------------------------- */

static reshard_status alloc_greetings(rs_mpi_link *link, int64_t size) {
  RS_TRY(rs_alloc(&link->greetings, size, sizeof *link->greetings));
  RS_TRY(rs_alloc_zero(&link->bytes, size + 1, 1));
  RS_TRY(rs_alloc_zero(&link->parts, 2 * size, sizeof *link->parts));
  RS_TRY(rs_alloc_zero(&link->asked, size, sizeof *link->asked));
  for (int64_t r = 0; r < size; r++) {
    link->greetings[r] = MPI_REQUEST_NULL;
    link->parts[r] = 1;
  }
  return RESHARD_SUCCESS;
}

/* Begins the next duplication, after the greetings. */
static int begin_duplicate(creations *all, rs_mpi_link *link, int64_t size, MPI_Comm mpi) {
  int code = MPI_SUCCESS;
  all->begun++;
  for (int64_t r = 0; r < size && code == MPI_SUCCESS; r++)
    code = MPI_Iscatterv(link->bytes + size, link->parts, link->parts + size, MPI_CHAR, link->bytes + r, 1, MPI_CHAR,
                         (int)r, mpi, &link->greetings[r]);
  return code == MPI_SUCCESS ? MPI_Comm_idup(mpi, &link->mpi, &link->made) : code;
}

/* Marks the ranks of which a greeting is out. This rank's own may be: it does not come to one that is stopped. */
static reshard_status find_out(rs_mpi *c, const rs_mpi_link *link, int64_t *out) {
  int ngot = 0, code = MPI_Testsome((int)c->base.size, link->greetings, &ngot, c->done, c->statuses);
  for (int i = 0; code == MPI_ERR_IN_STATUS && i < ngot; i++)
    c->missing[c->done[i]] = c->statuses[i].MPI_ERROR != MPI_SUCCESS;
  if (code != MPI_SUCCESS)
    return rs_mpi_error(c, code, "MPI_Iscatterv");
  *out = 0;
  for (int64_t r = 0; r < c->base.size; r++)
    *out += c->missing[r] = link->greetings[r] != MPI_REQUEST_NULL && r != c->base.rank;
  return RESHARD_SUCCESS;
}

static reshard_status await_greetings(rs_mpi *c) {
  for (int64_t since = rs_now_ns();; rs_mpi_sleep(since)) {
    int64_t out;
    RS_TRY(find_out(c, c->link, &out));
    if (out == 0)
      return RESHARD_SUCCESS;
    RS_TRY(rs_mpi_hear_farewells(c));
    RS_TRY(rs_mpi_await(c, since, "MPI_Comm_idup"));
  }
}

/* The error, with the ranks that do not tell that they are there. */
static reshard_status error_silent(rs_mpi *c) {
  int64_t silent = 1, since = rs_now_ns();
  send_farewell(c, RESHARD_SUCCESS, "");
  for (; silent > 0 && !rs_late(since, rs_min(c->timeout_ms, GIVE_UP_MS)); rs_mpi_sleep(since)) {
    RS_TRY(rs_mpi_hear_farewells(c));
    silent = 0;
    for (int64_t r = 0; r < c->base.size; r++)
      silent += c->missing[r] = r != c->base.rank && !c->link->asked[r];
  }
  if (silent > 0)
    return rs_mpi_await(c, rs_now_ns() - c->timeout_ms * 1000000, "MPI_Comm_idup");
  return rs_comm_error_timeout(&c->base, "MPI_Comm_idup", c->timeout_ms, "");
}

static reshard_status await_duplicate(rs_mpi *c) {
  MPI_Request *own = &c->link->greetings[c->base.rank];
  for (int64_t since = rs_now_ns();; rs_mpi_sleep(since)) {
    int made = 0, greeted = 0, code = MPI_Test(&c->link->made, &made, MPI_STATUS_IGNORE);
    if (code == MPI_SUCCESS)
      code = MPI_Test(own, &greeted, MPI_STATUS_IGNORE);
    if (code != MPI_SUCCESS)
      return rs_mpi_error(c, code, "MPI_Comm_idup");
    if (made && greeted)
      return RESHARD_SUCCESS;
    RS_TRY(rs_mpi_hear_farewells(c));
    if (rs_late(rs_mpi_waits_from(c, since), c->timeout_ms))
      return error_silent(c);
  }
}

/* An earlier duplication has come to its end, for which MPI would take the next one: that rank has called by now. */
static reshard_status await_earlier(rs_mpi *c, creations *all) {
  static const char step[] = "an earlier MPI_Comm_idup";
  for (int64_t since = rs_now_ns(); all->unfinished != NULL; rs_mpi_sleep(since)) {
    int64_t out;
    int made = 0, code = MPI_Test(&all->unfinished->made, &made, MPI_STATUS_IGNORE);
    if (code != MPI_SUCCESS)
      return rs_mpi_error(c, code, step);
    RS_TRY(rs_mpi_hear_farewells(c));
    RS_TRY(find_out(c, all->unfinished, &out));
    if (made)
      all->unfinished = NULL;
    else if (out > 0)
      RS_TRY(rs_mpi_await(c, since, step));
    else if (rs_late(rs_mpi_waits_from(c, since), c->timeout_ms))
      return error_silent(c);
  }
  memset(c->missing, 0, (size_t)c->base.size);
  return RESHARD_SUCCESS;
}

/* Begins a duplication that this rank owes; nobody uses what it makes. */
static reshard_status begin_owed(rs_mpi *c, creations *all, MPI_Comm mpi) {
  rs_mpi_link *link;
  RS_TRY(rs_mpi_create_link(&link));
  reshard_status status = alloc_greetings(link, c->base.size);
  if (status != RESHARD_SUCCESS) {
    rs_mpi_release_link(link);
    return status;
  }
  all->unfinished = link;
  int code = begin_duplicate(all, link, c->base.size, mpi);
  return code == MPI_SUCCESS ? RESHARD_SUCCESS : rs_mpi_error(c, code, "MPI_Comm_idup");
}

reshard_status rs_mpi_duplicate(rs_mpi *c, MPI_Comm mpi) {
  rs_mpi_link *link = c->link;
  creations *all;
  reshard_status status = alloc_greetings(link, c->base.size);
  RS_THEN(status, find_creations(mpi, &all));
  if (status != RESHARD_SUCCESS)
    return rs_error(status, "rank %lld: %s", (long long)c->base.rank, reshard_last_error());
  c->creation = ++all->number;
  c->caller = mpi;
  RS_TRY(await_earlier(c, all));
  while (all->begun + 1 < all->number) {
    RS_TRY(begin_owed(c, all, mpi));
    RS_TRY(await_earlier(c, all));
  }
  int code = begin_duplicate(all, link, c->base.size, mpi);
  status = code == MPI_SUCCESS ? RESHARD_SUCCESS : rs_mpi_error(c, code, "MPI_Comm_idup");
  RS_THEN(status, await_greetings(c));
  RS_THEN(status, await_duplicate(c));
  if (status != RESHARD_SUCCESS) { /* what is begun stays: MPI writes to it */
    link->stays = true;
    all->unfinished = link;
    atomic_fetch_add(&link->users, 1);
    return status;
  }
  MPI_Comm_set_errhandler(link->mpi, MPI_ERRORS_RETURN);
  link->numbers = highest_tag(link->mpi) / RS_MPI_TAGS;
  return RESHARD_SUCCESS;
}
