/* Transfers over links that have speeds, between threads of one process: a message is due when both of its ranks have
 * come to its round, and its links have carried the bytes of that round. Time is made up, so nobody waits. What an
 * execute takes is held against the estimate of its plan, and passing bytes on against receiving for oneself. */
#include "comm/comm.h"
#include "support/fixtures/case.h"
#include "support/fixtures/layouts.h"

#include <reshard/transfer.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { DOMAINS = 4, MOST_OF_DOMAIN = 8, RANKS = DOMAINS * MOST_OF_DOMAIN, ENTRIES = 8, COLUMNS = 1024 };

/* Bytes that links of a rank carry in a round: out and in, between domains and within. */
typedef struct carried {
  int64_t out[2], in[2];
} carried;

typedef struct slow_world {
  int64_t n, each; /* ranks, and those of a domain */
  int64_t domain[RANKS];
  reshard_topology topology;
  reshard_plan plans[RANKS];
  reshard_comm comms[RANKS];
  reshard_transfer transfers[RANKS];
  const rs_comm_ops *fast;
  rs_comm_ops slow;
  double clock[RANKS]; /* s */
} slow_world;
static slow_world *slow; /* of the exchanges */

static double time_of(const slow_world *w, int within, int64_t bytes) {
  return (double)bytes / (double)(within ? w->topology.within : w->topology.between);
}

static void pass_time(slow_world *w, int64_t n, const rs_exchange *exchanges) {
  carried c[RANKS] = {0};
  double begin[RANKS], due[RANKS];
  for (int64_t i = 0; i < n; i++) {
    int64_t me = exchanges[i].comm->rank;
    bool busy = exchanges[i].nsends + exchanges[i].nreceives > 0;
    begin[me] = due[me] = w->clock[me] + (busy ? 1e-9 * (double)w->topology.round_ns : 0);
    for (int64_t p = 0; p < exchanges[i].nsends; p++)
      c[me].out[w->domain[me] == w->domain[exchanges[i].sends[p].peer]] += exchanges[i].sends[p].bytes;
    for (int64_t p = 0; p < exchanges[i].nreceives; p++)
      c[me].in[w->domain[me] == w->domain[exchanges[i].receives[p].peer]] += exchanges[i].receives[p].bytes;
  }
  for (int64_t i = 0; i < n; i++)
    for (int64_t p = 0; p < exchanges[i].nsends; p++) {
      int64_t me = exchanges[i].comm->rank, peer = exchanges[i].sends[p].peer;
      int within = w->domain[me] == w->domain[peer];
      double end = fmax(begin[me], begin[peer]) + time_of(w, within, rs_max(c[me].out[within], c[peer].in[within]));
      due[me] = fmax(due[me], end);
      due[peer] = fmax(due[peer], end);
    }
  for (int64_t i = 0; i < n; i++)
    w->clock[exchanges[i].comm->rank] = due[exchanges[i].comm->rank];
}

static reshard_status exchange_slowly(int64_t n, const rs_exchange *exchanges, int64_t total_bytes) {
  pass_time(slow, n, exchanges);
  return slow->fast->exchange(n, exchanges, total_bytes);
}

/* The first domain trains, the other three have replicas of two parts, or of one. */
static void open_world(slow_world *w, int64_t each, int64_t chains) {
  reshard_entry entries[ENTRIES];
  char text[2][64];
  int64_t parts = each > 4 ? 2 : 1;
  *w = (slow_world){.n = DOMAINS * each, .each = each, .topology = RESHARD_TOPOLOGY_DEFAULTS};
  for (int64_t r = 0; r < w->n; r++)
    w->domain[r] = r / each;
  w->topology.ranks = w->n;
  w->topology.domain = w->domain;
  w->topology.between = 1000000;
  w->topology.within = 10000000;
  w->topology.round_ns = 200000;
  w->topology.chains = chains;
  snprintf(text[0], sizeof text[0], "chunk(0;0-%d)", (int)each - 1);
  snprintf(text[1], sizeof text[1], "mesh(%dx%d@%d-%d;R,S1)", (int)((w->n - each) / parts), (int)parts, (int)each,
           (int)w->n - 1);
  for (int64_t i = 0; i < ENTRIES; i++) {
    const int64_t shape[2] = {each * (16 + i), COLUMNS};
    entries[i] = (reshard_entry){RESHARD_ENTRY_INIT, .src = layout_from_text(text[0], 2, shape, w->n),
                                 .dst = layout_from_text(text[1], 2, shape, w->n), .dtype = RESHARD_U8};
  }
  reshard_plan_options options = {RESHARD_PLAN_OPTIONS_INIT, .on_cpu = 1, .topology = &w->topology};
  assert_int_equal(reshard_plan_create_all(ENTRIES, entries, w->n, NULL, &options, w->plans), RESHARD_SUCCESS);
  for (int64_t i = 0; i < ENTRIES; i++) {
    reshard_layout_release(entries[i].src);
    reshard_layout_release(entries[i].dst);
  }
  assert_int_equal(reshard_comm_create_local(w->n, NULL, w->comms), RESHARD_SUCCESS);
  w->fast = w->comms[0]->ops;
  w->slow = *w->fast;
  w->slow.exchange = exchange_slowly;
  for (int64_t r = 0; r < w->n; r++)
    w->comms[r]->ops = &w->slow;
}

/* Executes once; returns what the links took, s. *estimate: of the plans, in the rounds of the transfer. */
static double run_world(slow_world *w, double *estimate) {
  const reshard_transfer_options packed = {.size = RESHARD_TRANSFER_OPTIONS_INIT, .path = RESHARD_PATH_PACKED};
  const reshard_transfer_options *options[RANKS];
  reshard_arrays arrays[RANKS];
  const reshard_arrays *lists[RANKS];
  void *sides[RANKS][2][ENTRIES];
  for (int64_t r = 0; r < w->n; r++) {
    for (int64_t i = 0; i < ENTRIES; i++)
      for (int s = 0; s < 2; s++) {
        sides[r][s][i] = calloc((size_t)(w->each * (16 + i)), COLUMNS);
        assert_non_null(sides[r][s][i]);
      }
    arrays[r] = (reshard_arrays){.size = RESHARD_ARRAYS_INIT, .src = sides[r][0], .dst = sides[r][1]};
    lists[r] = &arrays[r];
    options[r] = &packed;
  }
  assert_int_equal(reshard_transfer_create_all(w->n, w->plans, w->comms, lists, options, w->transfers),
                   RESHARD_SUCCESS);
  slow = w;
  assert_int_equal(reshard_execute_all(w->n, w->transfers, NULL), RESHARD_SUCCESS);
  double time = 0, busy = 0;
  reshard_transfer_info taken;
  assert_int_equal(reshard_transfer_get_info(w->transfers[0], &taken), RESHARD_SUCCESS);
  for (int64_t r = 0; r < w->n; r++) {
    reshard_plan_info info;
    assert_int_equal(reshard_plan_get_info(w->plans[r], &info), RESHARD_SUCCESS);
    busy = fmax(busy, time_of(w, 0, rs_max(info.between_sent_bytes, info.between_received_bytes)));
    busy = fmax(busy, time_of(w, 1, rs_max(info.within_sent_bytes, info.within_received_bytes)));
    time = fmax(time, w->clock[r]);
  }
  double steps = (double)(taken.rounds + taken.later_rounds);
  *estimate = busy * steps / (double)taken.rounds + steps * 1e-9 * (double)w->topology.round_ns;
  for (int64_t r = 0; r < w->n; r++) {
    reshard_transfer_destroy(w->transfers[r]);
    for (int64_t i = 0; i < 2 * ENTRIES; i++)
      free(sides[r][i / ENTRIES][i % ENTRIES]);
  }
  return time;
}

static void close_world(slow_world *w) {
  for (int64_t r = 0; r < w->n; r++) {
    reshard_plan_destroy(w->plans[r]);
    w->comms[r]->ops = w->fast;
  }
  for (int64_t r = 0; r < w->n; r++)
    reshard_comm_destroy(w->comms[r]);
}

CASE(links_take_what_plans_estimate_and_less_where_bytes_are_passed_on) {
  const int64_t chains[] = {RESHARD_NO_CHAINS, 3, 1};
  for (int64_t each = 2; each <= MOST_OF_DOMAIN; each += 2) {
    double time[3], estimate;
    for (int k = 0; k < 3; k++) {
      slow_world w;
      open_world(&w, each, chains[k]);
      time[k] = run_world(&w, &estimate);
      close_world(&w);
      print_message("domains of %lld, %lld chains: %.4f s, estimated %.4f, %.3f\n", (long long)each,
                    (long long)chains[k], time[k], estimate, estimate / time[k]);
      assert_true(estimate < 1.15 * time[k] && time[k] < 1.15 * estimate);
    }
    if (each == 4 || each == 8) /* of four replicas */
      assert_true(time[0] >= 3 * time[1] && time[0] >= 3 * time[2]);
  }
}

RUN_CASES
