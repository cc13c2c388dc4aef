#include "entries.h"

reshard_entry *entries_of(const case_plan *c) {
  reshard_entry *entries = cli_alloc(c->nentries, sizeof *entries);
  for (int64_t i = 0; i < c->nentries; i++) {
    const case_entry *e = &c->entry[i];
    const oracle_region *g = &e->region;
    entries[i] = (reshard_entry){
        .size = RESHARD_ENTRY_INIT,
        .src = e->src.layout,
        .dst = e->dst.layout,
        .dtype = e->dtype,
        .src_offset = e->given & GIVEN_SRC_OFFSET ? g->src_offset : NULL,
        .src_extent = e->given & GIVEN_SRC_EXTENT ? g->src_extent : NULL,
        .dst_offset = e->given & GIVEN_DST_OFFSET ? g->dst_offset : NULL,
        .dst_extent = e->given & GIVEN_DST_EXTENT ? g->dst_extent : NULL,
        .permutation = e->given & GIVEN_PERMUTATION ? g->permutation : NULL,
        .name = e->given & GIVEN_NAME ? e->name : NULL,
    };
  }
  return entries;
}

void entries_make(uint64_t seed, int64_t ranks, case_plan *c) {
  const case_fixed fixed = {.ranks = ranks};
  cli_text why = {0};
  if (!case_make(seed, &fixed, c, &why))
    cli_exit(EXIT_FAILED, "seed %llu: %s", (unsigned long long)seed, why.at);
}
