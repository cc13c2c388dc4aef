/* The order of tiles whose sources are on several GPUs: one of each GPU in turn, as a dealer gives cards. So the links
 * to all of them are in use from the first tile to the last, and not one link at a time. */
#include "device/cuda/tiles.h"

#include <string.h>

reshard_status rs_box_deal_note(rs_box_tables *tables, rs_box_class class, int32_t peer) {
  rs_box_hand *last = tables->hand.n > 0 ? &tables->hand.at[tables->hand.n - 1] : NULL;
  if (last == NULL || last->class != class || last->peer != peer) {
    RS_TRY(rs_vec_reserve(&tables->hand, tables->hand.n + 1));
    last = &tables->hand.at[tables->hand.n++];
    *last = (rs_box_hand){class, peer, 0};
  }
  last->end = tables->tile[class].n;
  return RESHARD_SUCCESS;
}

/* Tiles of a class in a new order: the k-th of each peer are together, in the order that they had. dealt: of each peer
 * so far. place: [k], where the next k-th one goes. */
static void deal_tiles(const rs_box_tables *tables, rs_box_class class, uint32_t *dealt, uint32_t *place,
                       rs_box_tile *out) {
  const rs_box_tile *tile = tables->tile[class].at;
  for (int placing = 0; placing < 2; placing++) {
    int64_t i = 0;
    for (int64_t h = 0; h < tables->hand.n; h++)
      for (const rs_box_hand *hand = &tables->hand.at[h]; hand->class == class && i < hand->end; i++)
        if (placing)
          out[place[dealt[hand->peer]++]++] = tile[i];
        else
          place[++dealt[hand->peer]]++;
    memset(dealt, 0, (size_t)(place - dealt) * sizeof *dealt);
    for (int64_t k = 0; k < tables->tile[class].n && !placing; k++)
      place[k + 1] += place[k];
  }
}

reshard_status rs_box_deal(rs_box_tables *tables) {
  int64_t peers = 0;
  for (int64_t h = 0; h < tables->hand.n; h++)
    peers = rs_max(peers, tables->hand.at[h].peer + 1);
  for (int c = 0; c < RS_BOX_CLASSES; c++) {
    int64_t n = tables->tile[c].n, counts = peers + n + 1;
    if (n < 2 || tables->hand.n < 2)
      continue;
    RS_TRY(rs_vec_reserve(&tables->dealt, n));
    RS_TRY(rs_vec_reserve(&tables->count, counts));
    memset(tables->count.at, 0, (size_t)counts * sizeof *tables->count.at);
    deal_tiles(tables, (rs_box_class)c, tables->count.at, tables->count.at + peers, tables->dealt.at);
    memcpy(tables->tile[c].at, tables->dealt.at, (size_t)n * sizeof *tables->dealt.at);
  }
  return RESHARD_SUCCESS;
}
