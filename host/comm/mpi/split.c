/* Parts of an MPI communicator: splits, and those that are there after a loss. They share its duplicate, with tags of
 * their own, since MPI has no way to make another without all ranks.
 *
 * The number that gives a part its tags is agreed in a split. Of a shrink it follows from what is shrunk and who is
 * lost: those that are there then meet on tags that no one else uses, and what an earlier try has left is not heard. */
#include "comm/mpi/mpi.h"

#include "comm/split_group.h"

#include <stdlib.h>
#include <string.h>

/* Some ranks of c, this one among them, with tags of their own; takes global_ranks. */
static reshard_status create_part(rs_mpi *c, int64_t number, int64_t size, int64_t rank, int64_t *global_ranks,
                                  rs_mpi **out) {
  RS_TRY(rs_mpi_create(c->link, size, rank, global_ranks, out));
  (*out)->number = number;
  (*out)->timeout_ms = c->timeout_ms;
  (*out)->base.staged = c->base.staged;
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

reshard_status rs_mpi_split(reshard_comm comm, const rs_split *mine, reshard_comm *sub) {
  rs_mpi *c = rs_mpi_of(comm), *made = NULL;
  rs_split_group group;
  int64_t number = 0;
  RS_TRY(rs_split_group_find(comm, mine, &group));
  reshard_status status = agree_number(c, &number);
  if (status == RESHARD_SUCCESS) {
    if (group.n > 0)
      status = create_part(c, number, group.n, group.key, group.global_ranks, &made);
    status = rs_split_agree(comm, status);
  }
  if (made == NULL)
    free(group.global_ranks);
  if (status != RESHARD_SUCCESS) {
    if (made != NULL)
      rs_mpi_release(made);
    return status;
  }
  if (made != NULL) {
    made->parent = c;
    made->next = c->children;
    c->children = made;
    atomic_fetch_add(&c->users, 1);
  }
  *sub = made != NULL ? &made->base : NULL;
  return RESHARD_SUCCESS;
}
