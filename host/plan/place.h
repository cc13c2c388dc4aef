/* Messages that are a range of a buffer, and so are not staged. */
#ifndef RS_PLAN_PLACE_H
#define RS_PLAN_PLACE_H

#include "plan/plan.h"

/* The data that stays on the rank, as a message to itself, for rs_message_in_place. */
rs_peer rs_plan_own(const struct reshard_plan_s *plan);

/* Place of a message that is one contiguous range of one of the rank's own buffers, and so needs no packing (sending)
 * or unpacking. buffer: number in the lists of all entries. strides: per buffer of this side, NULL or NULL element for
 * contiguous. False when the message is no such range. For the data that stays on the rank both sides can be asked
 * for. place may be NULL. */
typedef struct rs_place {
  int64_t buffer;
  int64_t offset; /* bytes */
} rs_place;
bool rs_message_in_place(const struct reshard_plan_s *plan, const rs_peer *peer, bool sending,
                         const int64_t *const *strides, rs_place *place);
/* The array that was looked up last. */
typedef struct rs_last_array {
  const struct reshard_layout_s *layout; /* NULL: none yet */
  int64_t rank, array;
  reshard_array_info info;
} rs_last_array;
/* Sets src_in_place and dst_in_place of a message, of the ends that are asked for. last: of each, from message to
 * message. */
void rs_message_find_places(const rs_class *class_, const rs_side *side, rs_route route, rs_message *message,
                            bool of_source, bool of_destination, rs_last_array last[2]);

#endif
