/* Parts of an MPI communicator: splits, and those that are there after a loss. They share its duplicate, with tags of
 * their own, since MPI has no way to make another without all ranks.
 *
 * The number that gives a part its tags is agreed in a split. Of a shrink it follows from what is shrunk and who is
 * lost: those that are there then meet on tags that no one else uses, and what an earlier try has left is not heard. */
#include "comm/gather.h"
#include "comm/mpi/end.h"
#include "comm/mpi/link.h"
#include "comm/mpi/nodes.h"

/* The group as a communicator with tags of its own. */
static reshard_status create_part(rs_mpi *c, int64_t number, rs_split_group *group, reshard_comm *part) {
  rs_mpi *made = NULL;
  RS_TRY(rs_mpi_create(c->link, group->n, group->key, group->global_ranks, &made));
  *part = &made->base;
  group->global_ranks = NULL;
  made->number = number;
  made->base.timeout_ms = c->base.timeout_ms;
  made->base.messages = c->base.messages;
  made->handle = reshard_device_retain(c->handle);
  made->base.device = c->base.device;
  (void)rs_board_join(&made->base, &c->base);
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

static reshard_status split_mpi(rs_mpi *c, rs_split_group *group, reshard_comm *part) {
  reshard_status status = RESHARD_SUCCESS;
  int64_t number = 0;
  RS_TRY(agree_number(c, &number));
  if (group->n > 0)
    status = create_part(c, number, group, part);
  if (*part != NULL)
    status = rs_mpi_share_files(c, rs_mpi_of(*part), group->ranks);
  RS_TRY(rs_comm_agree(&c->base, status));
  if (*part != NULL)
    rs_mpi_adopt(c, rs_mpi_of(*part));
  return RESHARD_SUCCESS;
}

/* --- Shrinks ----------------------------------------------------------------------------------------------------- */

/* The shrink of one rank. */
typedef struct mpi_shrink {
  rs_shrink base;
  rs_mpi *made;
} mpi_shrink;

/* Shows those that are there this rank's list. */
static void send_list(mpi_shrink *s) {
  rs_mpi *made = s->made;
  int tag = rs_mpi_tag(rs_mpi_of(s->base.comm), RS_MPI_TAG_SHRINK);
  made->loss = s->base.mine;
  for (int64_t r = 0; r < made->base.size; r++)
    if (r != made->base.rank)
      (void)MPI_Isend(&made->loss, sizeof made->loss, MPI_BYTE, rs_mpi_rank(made, r), tag, made->link->mpi,
                      &rs_mpi_talks(made, RS_MPI_TALK_LOSS)[r]);
}

static bool receive_list(rs_shrink *s, int64_t i, rs_loss *loss) {
  const rs_mpi *c = rs_mpi_of(s->comm);
  int there = 0, from = rs_mpi_rank(c, s->group->ranks[i]), tag = rs_mpi_tag(c, RS_MPI_TAG_SHRINK);
  return MPI_Iprobe(from, tag, c->link->mpi, &there, MPI_STATUS_IGNORE) == MPI_SUCCESS && there &&
         MPI_Recv(loss, sizeof *loss, MPI_BYTE, from, tag, c->link->mpi, MPI_STATUS_IGNORE) == MPI_SUCCESS;
}

static void miss_rank(rs_shrink *s, int64_t i) { ((mpi_shrink *)s)->made->missing[i] = true; }

/* Another rank that gives up tells so on what is made. */
static reshard_status pause_shrink(rs_shrink *s, int64_t since) {
  rs_mpi *made = ((mpi_shrink *)s)->made;
  rs_mpi_send_unsent(made->link);
  rs_mpi_hear(made);
  if (made->ended)
    return rs_error((reshard_status)made->why->status, "%s", made->why->text);
  rs_mpi_sleep(since);
  return RESHARD_SUCCESS;
}

/* More ranks have not come than were lost: they count as missing from c too. */
static reshard_status error_missing(const mpi_shrink *s) {
  rs_mpi *c = rs_mpi_of(s->base.comm);
  const int64_t *ranks = s->base.group->ranks;
  char text[160];
  int64_t few[64], n = 0; /* a text has no room for more */
  for (int64_t i = 0; i < s->base.group->n; i++) {
    if (!s->made->why->missing[i])
      continue;
    rs_mpi_miss(c, ranks[i]);
    if (n < 64)
      few[n++] = ranks[i];
  }
  return rs_comm_error_timeout(&c->base, "those that are there", c->base.timeout_ms,
                               rs_ranges_text(text, sizeof text, n, few));
}

/* Ranks that have all published the same list meet on what is made of it. */
static reshard_status meet_rest(mpi_shrink *s) {
  rs_mpi *made = s->made;
  RS_TRY(rs_mpi_begin(made));
  send_list(s);
  reshard_status status = rs_shrink_await(&s->base);
  if (status != RESHARD_SUCCESS)
    (void)rs_mpi_give_up(made, status);
  RS_TRY(rs_mpi_end(made, status));
  status = rs_mpi_share_files(rs_mpi_of(s->base.comm), made, s->base.group->ranks);
  return rs_comm_agree(&made->base, status);
}

static reshard_status shrink_mpi(rs_mpi *c, rs_split_group *group, reshard_comm *part) {
  mpi_shrink s = {
      .base = {.comm = &c->base, .group = group, .look = receive_list, .miss = miss_rank, .pause = pause_shrink}};
  const uint64_t half = (uint64_t)c->link->numbers / 2;
  rs_mpi_abort(c, true);
  reshard_status status = rs_shrink_begin(&s.base);
  uint64_t hash = rs_hash((uint64_t)c->number, &s.base.mine.hash, sizeof s.base.mine.hash);
  RS_THEN(status, create_part(c, (int64_t)(half + hash % half), group, part));
  s.made = rs_mpi_of(*part);
  RS_THEN(status, meet_rest(&s));
  if (status == RESHARD_ERROR_TIMEOUT)
    status = error_missing(&s);
  rs_shrink_end(&s.base);
  return status;
}

reshard_status rs_mpi_make_part(reshard_comm comm, rs_split_group *group, reshard_comm *part) {
  return (group->nlost > 0 ? shrink_mpi : split_mpi)(rs_mpi_of(comm), group, part);
}
