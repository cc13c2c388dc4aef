/* The messages of a round between threads: each receive is paired with its send, and the pairs are copied together. */
#include "comm/local/local.h"

#include "device/cpu/cpu.h"

#include <stdlib.h>

reshard_status rs_local_reserve(reshard_comm comm, int64_t most) {
  rs_team *team = rs_team_of(comm);
  if (most <= team->reserved)
    return RESHARD_SUCCESS;
  rs_relay *links = NULL;
  rs_span *spans = NULL;
  rs_program **programs = NULL;
  reshard_status status;
  RS_TRY_GOTO(status, rs_alloc_zero(&links, most, sizeof *links), fail);
  RS_TRY_GOTO(status, rs_alloc(&spans, most, sizeof *spans), fail);
  RS_TRY_GOTO(status, rs_alloc(&programs, most, sizeof *programs), fail);
  free(team->links);
  free(team->spans);
  free(team->programs);
  team->links = links;
  team->spans = spans;
  team->programs = programs;
  team->reserved = most;
  return RESHARD_SUCCESS;
fail:
  free(links);
  free(spans);
  free(programs);
  return status;
}

/* Turns are few and their parts sorted, so a search is as quick as a cursor per sender and needs no memory. */
static const rs_part *find_send(const rs_exchange *exchange, int64_t receiver) {
  int64_t low = 0, high = exchange->nsends;
  RS_LOWER_BOUND(low, high, exchange->sends[i].peer < receiver);
  return low < exchange->nsends && exchange->sends[low].peer == receiver ? &exchange->sends[low] : NULL;
}

/* Pairs each receive with its send, as links; counts what comes. */
static reshard_status pair_messages(rs_team *team, int64_t n, const rs_exchange *exchanges, int64_t *nlinks) {
  int64_t sends = 0, made = 0;
  for (int64_t i = 0; i < n; i++)
    sends += exchanges[i].nsends;
  for (int64_t i = 0; i < n; i++) {
    int64_t me = exchanges[i].comm->rank;
    for (int64_t r = 0; r < exchanges[i].nreceives; r++) {
      const rs_part *want = &exchanges[i].receives[r];
      const rs_part *have = find_send(&exchanges[want->peer], me); /* exchanges are by rank: all ranks are here */
      if (have == NULL || have->bytes != want->bytes || made == team->reserved)
        return rs_error(RESHARD_ERROR_INTERNAL, "rank %lld expects %lld bytes from rank %lld, which sends %lld",
                        (long long)me, (long long)want->bytes, (long long)want->peer,
                        have != NULL ? (long long)have->bytes : 0);
      rs_relay *link = &team->links[made++];
      link->pack = have->program;
      link->span = (rs_span){have->at, want->at, want->bytes, want->staged};
      link->unpack = want->program;
    }
    rs_comm_count_exchange(&exchanges[i]);
  }
  if (sends != made)
    return rs_error(RESHARD_ERROR_INTERNAL, "%lld messages are sent, %lld are received", (long long)sends,
                    (long long)made);
  *nlinks = made;
  return RESHARD_SUCCESS;
}

/* Messages that fit a core's cache are packed and unpacked one by one, each by one thread, if they are enough for all
 * threads. For longer ones the threads do all packing together, then all copying, then all unpacking. */
enum { CACHED_MESSAGE = 1 << 20 };

static reshard_status exchange_on_cpu(rs_team *team, rs_device *device, int64_t nlinks, int64_t total_bytes) {
  int64_t longest = 0;
  for (int64_t i = 0; i < nlinks; i++)
    longest = rs_max(longest, team->links[i].span.bytes);
  if (longest <= CACHED_MESSAGE && nlinks >= 2 * rs_device_cpu_threads(device))
    return device->work->relay(device, nlinks, team->links, total_bytes, NULL);
  for (int64_t i = 0; i < nlinks; i++) {
    team->programs[i] = (rs_program *)team->links[i].pack;
    team->spans[i] = team->links[i].span;
  }
  RS_TRY(device->work->run(device, nlinks, team->programs, NULL));
  RS_TRY(device->work->copy(device, nlinks, team->spans, total_bytes, NULL));
  for (int64_t i = 0; i < nlinks; i++)
    team->programs[i] = (rs_program *)team->links[i].unpack;
  return device->work->run(device, nlinks, team->programs, NULL);
}

/* Fetches the messages to the ranks of one GPU in one batch of copies. Memory of a GPU that this one does not reach is
 * left to the driver, span by span. Links are in the order of the exchanges' receives. */
static reshard_status fetch_messages(rs_team *team, int64_t lane, int64_t n, const rs_exchange *exchanges,
                                     int64_t total_bytes) {
  rs_device *device = team->lanes[lane];
  int64_t link = 0, count = 0;
  void *stream = NULL;
  for (int64_t i = 0; i < n; link += exchanges[i++].nreceives) {
    if (exchanges[i].comm->process.lane != lane)
      continue;
    const rs_exchange *exchange = &exchanges[i];
    int64_t begin = rs_parts_begin(exchange->receives, exchange->nreceives, exchange->comm->rank);
    stream = exchange->stream;
    for (int64_t r = 0; r < exchange->nreceives; r++) {
      const rs_part *p = rs_parts_at(exchange->receives, exchange->nreceives, begin, r);
      const rs_span *span = &team->links[link + (p - exchange->receives)].span;
      if (exchange->comm->memory.direct || exchanges[p->peer].comm->process.lane == lane)
        team->spans[count++] = *span;
      else
        RS_TRY(device->memory->memcpy(device, span->dst, span->src, (size_t)span->bytes, stream));
    }
  }
  return count > 0 ? device->work->copy(device, count, team->spans, total_bytes, stream) : RESHARD_SUCCESS;
}

static reshard_status exchange_on_streams(rs_team *team, int64_t n, const rs_exchange *exchanges, int64_t total_bytes) {
  for (int64_t lane = 0; lane < team->nlanes; lane++)
    RS_TRY(fetch_messages(team, lane, n, exchanges, total_bytes));
  return RESHARD_SUCCESS;
}

reshard_status rs_local_exchange(int64_t n, const rs_exchange *exchanges, int64_t total_bytes) {
  rs_team *team = rs_team_of(exchanges[0].comm);
  rs_device *device = exchanges[0].comm->device;
  int64_t nlinks = 0;
  RS_TRY(pair_messages(team, n, exchanges, &nlinks));
  return device->work->relay != NULL ? exchange_on_cpu(team, device, nlinks, total_bytes)
                                     : exchange_on_streams(team, n, exchanges, total_bytes);
}
