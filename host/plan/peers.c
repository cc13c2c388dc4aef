/* The peers of a plan: ranks that messages of any class go to or come from. */
#include "plan/messages.h"

#include <stdlib.h>

/* Adds one message to what is known of a peer. */
static void add_message(rs_peer *p, bool sending, const rs_class *c, int64_t message) {
  const rs_side *side = sending ? &c->send : &c->receive;
  int64_t bytes = side->messages.at[message].elements * c->wire.width * c->entries;
  rs_peer_add_message(p, sending, side, message, c->entries);
  *(sending ? &p->sent : &p->received) += bytes;
}

/* Merges a class' messages, by peer, into the peers known so far, by rank: `from` to `into`. */
static int64_t merge_messages(const struct reshard_plan_s *plan, const rs_class *c, const rs_peer *from, int64_t n,
                              rs_peer *into) {
  const rs_messages *send = &c->send.messages, *receive = &c->receive.messages;
  int64_t i = 0, s = 0, r = 0, made = 0;
  for (;;) {
    s += s < send->n && send->at[s].peer == plan->rank; /* is kept */
    int64_t sent = s < send->n ? send->at[s].peer : INT64_MAX;
    int64_t received = r < receive->n ? receive->at[r].peer : INT64_MAX;
    int64_t rank = rs_min(i < n ? from[i].rank : INT64_MAX, rs_min(sent, received));
    if (rank == INT64_MAX)
      return made;
    rs_peer *p = &into[made++];
    *p = i < n && from[i].rank == rank ? from[i++] : (rs_peer){.rank = rank, .send_message = -1, .receive_message = -1};
    if (sent == rank)
      add_message(p, true, c, s++);
    if (received == rank)
      add_message(p, false, c, r++);
  }
}

/* Peers of all classes. A world full of peers, if any class has many, is merged over and over; distinct geometries are
 * few. */
reshard_status rs_plan_find_peers(struct reshard_plan_s *plan) {
  int64_t sends = 0, receives = 0, n = 0;
  rs_peer *peers[2] = {NULL, NULL};
  for (int64_t i = 0; i < plan->classes.n; i++) {
    rs_class *c = &plan->classes.at[i];
    c->send.first_message = sends;
    c->receive.first_message = receives;
    sends += c->send.messages.n;
    receives += c->receive.messages.n;
  }
  int64_t most = rs_min(sends + receives, plan->world);
  RS_TRY(rs_plan_alloc(plan, &peers[0], most, sizeof(rs_peer)));
  plan->peers.at = peers[0];
  if (plan->classes.n > 1)
    RS_TRY(rs_alloc(&peers[1], most, sizeof(rs_peer)));
  int from = plan->classes.n % 2; /* the last class' go to the first list */
  for (int64_t i = 0; i < plan->classes.n; i++, from = 1 - from)
    n = merge_messages(plan, &plan->classes.at[i], peers[from], n, peers[1 - from]);
  plan->peers.n = n;
  plan->peers.cap = most;
  free(peers[1]);
  return RESHARD_SUCCESS;
}
