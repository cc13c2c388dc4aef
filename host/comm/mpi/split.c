/* Parts of an MPI communicator: splits, and those that are there after a loss. They share its duplicate, with tags of
 * their own, since MPI has no way to make another without all ranks.
 *
 * The number that gives a part its tags is agreed in a split. Of a shrink it follows from what is shrunk and who is
 * lost: those that are there then meet on tags that no one else uses, and what an earlier try has left is not heard. */
#include "comm/mpi/end.h"
#include "comm/mpi/link.h"
#include "comm/mpi/nodes.h"

#include "comm/split_group.h"

#include <stdlib.h>
#include <string.h>

/* Some ranks of c, this one among them, with tags of their own; takes global_ranks. */
static reshard_status create_part(rs_mpi *c, int64_t number, int64_t size, int64_t rank, int64_t *global_ranks,
                                  rs_mpi **out) {
  RS_TRY(rs_mpi_create(c->link, size, rank, global_ranks, out));
  (*out)->number = number;
  (*out)->timeout_ms = c->timeout_ms;
  (*out)->base.messages.staged = c->base.messages.staged;
  (*out)->base.messages.best_staging = c->base.messages.best_staging;
  (*out)->base.messages.least_run = c->base.messages.least_run;
  (*out)->handle = reshard_device_retain(c->handle);
  (*out)->base.device = c->base.device;
  (void)rs_board_join(&(*out)->base, &c->base);
  return RESHARD_SUCCESS;
}

/* The number of the communicators that a split makes: none of its ranks has had one above. */
static reshard_status agree_number(rs_mpi *c, int64_t *number) {
  int64_t next = c->link->next;
  const void *all;
  RS_TRY(rs_comm_allgather(&c->base, &next, sizeof next, &all));
  for (int64_t r = 0; r < c->base.size; r++)
    next = rs_max(next, ((const int64_t *)all)[r]);
  *number = next;
  if (next >= c->link->numbers / 2) /* the others are for shrinks */
    return rs_error(RESHARD_ERROR_UNSUPPORTED, "split %lld of an MPI communicator: MPI has tags for %lld",
                    (long long)next, (long long)(c->link->numbers / 2 - 1));
  for (long long mine = c->link->next; mine <= next && !atomic_compare_exchange_weak(&c->link->next, &mine, next + 1);)
    ;
  return RESHARD_SUCCESS;
}

static reshard_status split_ranks(rs_mpi *c, const rs_split *mine, reshard_comm *sub) {
  rs_mpi *made = NULL;
  rs_split_group group;
  int64_t number = 0;
  RS_TRY(rs_split_group_find(&c->base, mine, &group));
  reshard_status status = agree_number(c, &number);
  if (status == RESHARD_SUCCESS) {
    if (group.n > 0)
      status = create_part(c, number, group.n, group.key, group.global_ranks, &made);
    if (made != NULL)
      status = rs_mpi_share_files(c, made);
    status = rs_split_agree(&c->base, status);
  }
  if (made == NULL)
    free(group.global_ranks);
  if (status != RESHARD_SUCCESS) {
    if (made != NULL)
      rs_mpi_release(made);
    return status;
  }
  if (made != NULL)
    rs_mpi_adopt(c, made);
  *sub = made != NULL ? &made->base : NULL;
  return RESHARD_SUCCESS;
}

reshard_status rs_mpi_split(reshard_comm comm, const rs_split *mine, reshard_comm *sub) {
  rs_mpi *c = rs_mpi_of(comm);
  c->begun = rs_now_ns();
  reshard_status status = split_ranks(c, mine, sub);
  c->begun = 0;
  return status;
}

/* --- Shrinks ----------------------------------------------------------------------------------------------------- */

/* A rank's list of lost ones, as others see it. */
typedef struct loss {
  uint64_t hash;
  char text[sizeof((rs_mpi *)NULL)->loss - sizeof(uint64_t)];
} loss;

/* Tells those that are there which ranks this one has lost. */
static void send_loss(rs_mpi *made, int tag, const loss *mine) {
  memcpy(made->loss, mine, sizeof *mine);
  for (int64_t r = 0; r < made->base.size; r++)
    if (r != made->base.rank)
      (void)MPI_Isend(made->loss, sizeof made->loss, MPI_BYTE, rs_mpi_rank(made, r), tag, made->link->mpi,
                      &rs_mpi_talks(made, RS_MPI_TALK_LOSS)[r]);
}

/* Takes the next list of a rank, or returns false. */
static bool receive_loss(const rs_mpi *c, int64_t rank, int tag, loss *out) {
  int there = 0, from = rs_mpi_rank(c, rank);
  return MPI_Iprobe(from, tag, c->link->mpi, &there, MPI_STATUS_IGNORE) == MPI_SUCCESS && there &&
         MPI_Recv(out, sizeof *out, MPI_BYTE, from, tag, c->link->mpi, MPI_STATUS_IGNORE) == MPI_SUCCESS;
}

/* Lists of the ranks of c in a shrink of it. Of a rank the list counts that is like this one's, else the last:
 * before, it may have tried with less, and by now with more. */
struct rs_mpi_losses {
  rs_mpi *c;
  int tag;
  loss *of;     /* [size] */
  bool *known;  /* [size] */
  int64_t came; /* when the last one came */
};

static void losses_free(rs_mpi_losses *l) {
  free(l->of);
  free(l->known);
}

static reshard_status losses_create(rs_mpi *c, const loss *mine, rs_mpi_losses *l) {
  *l = (rs_mpi_losses){.c = c, .tag = rs_mpi_tag(c, RS_MPI_TAG_SHRINK)};
  reshard_status status = rs_alloc_zero(&l->of, c->base.size, sizeof *l->of);
  RS_THEN(status, rs_alloc_zero(&l->known, c->base.size, sizeof *l->known));
  if (status != RESHARD_SUCCESS) {
    losses_free(l);
    return status;
  }
  l->of[c->base.rank] = *mine;
  l->known[c->base.rank] = true;
  return RESHARD_SUCCESS;
}

static void take_losses(rs_mpi_losses *l) {
  const loss *mine = &l->of[l->c->base.rank];
  loss next;
  for (int64_t r = 0; r < l->c->base.size; r++)
    while (receive_loss(l->c, r, l->tag, &next)) {
      if (!l->known[r] || l->of[r].hash != mine->hash)
        l->of[r] = next;
      l->known[r] = true;
      l->came = rs_now_ns();
    }
}

/* An error when ranks have lost others than the lowest one. */
static reshard_status compare_losses(const rs_mpi_losses *l) {
  int64_t lowest = 0;
  while (!l->known[lowest])
    lowest++;
  for (int64_t r = lowest + 1; r < l->c->base.size; r++)
    if (l->known[r] && l->of[r].hash != l->of[lowest].hash)
      return rs_error_differ("lost ranks", lowest, l->of[lowest].text, r, l->of[r].text);
  return RESHARD_SUCCESS;
}

static reshard_status hear_losses(rs_mpi *made) {
  rs_mpi_losses *l = made->losses;
  if (made->timeout_ms > 0) /* else ranks of other lists, which wait elsewhere, would never come */
    return RESHARD_SUCCESS;
  take_losses(l);
  return l->came > 0 && rs_late(l->came, RS_COMM_DIFFER_MS) ? compare_losses(l) : RESHARD_SUCCESS;
}

/* More ranks have not come than were lost: they count as missing from c too. */
static reshard_status error_missing(rs_mpi *c, const rs_mpi *made) {
  char text[160];
  int64_t few[64], n = 0; /* a text has no room for more */
  for (int64_t i = 0, r = 0; i < made->base.size; i++) {
    while (rs_mpi_rank(c, r) != rs_mpi_rank(made, i))
      r++;
    if ((made->why->missing[i / 8] >> i % 8 & 1) == 0)
      continue;
    rs_mpi_miss(c, r);
    if (n < 64)
      few[n++] = r;
  }
  return rs_comm_error_timeout(&c->base, "those that are there", c->timeout_ms,
                               rs_ranges_text(text, sizeof text, n, few));
}

/* The ranks of c but the lost ones. */
static reshard_status create_rest(rs_mpi *c, int64_t n, const int64_t *lost, uint64_t hash, rs_mpi **made) {
  int64_t *ranks = NULL, at = 0, rank = 0, half = c->link->numbers / 2;
  RS_TRY(rs_alloc(&ranks, c->base.size - n, sizeof *ranks));
  for (int64_t r = 0, k = 0; r < c->base.size; r++) {
    if (k < n && lost[k] == r) {
      k++;
      continue;
    }
    if (r == c->base.rank)
      rank = at;
    ranks[at++] = rs_mpi_rank(c, r);
  }
  reshard_status status = create_part(c, half + (int64_t)(hash % (uint64_t)half), at, rank, ranks, made);
  if (status != RESHARD_SUCCESS)
    free(ranks);
  return status;
}

reshard_status rs_mpi_shrink(reshard_comm comm, int64_t n, const int64_t *lost, reshard_comm *sub) {
  rs_mpi *c = rs_mpi_of(comm), *made = NULL;
  rs_mpi_losses losses;
  loss mine = {.hash = rs_hash((uint64_t)c->number, lost, (size_t)n * sizeof *lost)};
  rs_ranges_text(mine.text, sizeof mine.text, n, lost);
  rs_mpi_shrunk(c);
  RS_TRY(losses_create(c, &mine, &losses));
  reshard_status status = create_rest(c, n, lost, mine.hash, &made);
  if (status == RESHARD_SUCCESS) {
    send_loss(made, losses.tag, &mine);
    made->losses = &losses;
    made->hear_losses = hear_losses;
    status = rs_split_agree(&made->base, rs_mpi_share_files(c, made));
    made->losses = NULL;
    take_losses(&losses);
    reshard_status differs = compare_losses(&losses);
    if (differs != RESHARD_SUCCESS)
      status = differs;
    else if (status == RESHARD_ERROR_TIMEOUT)
      status = error_missing(c, made);
    if (status == RESHARD_SUCCESS)
      *sub = &made->base;
    else
      rs_mpi_release(made);
  }
  losses_free(&losses);
  return status;
}
