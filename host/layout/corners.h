/* Checks that boxes cover a shape exactly once, by their corners alone; finds a gap or an overlap where they do not. */
#ifndef RS_LAYOUT_CORNERS_H
#define RS_LAYOUT_CORNERS_H

#include "base/base.h"

/* Boxes are at corners + box[i] * 2 * ndim, lo then hi, as in boxes.h; none is empty, all are inside of the shape. */

/* excess 0: every element of the shape is in exactly one of the n boxes. Else point is the first element, in row-major
 * order, where that is wrong. excess -1: it is in no box; excess e > 0: it is in e + 1 of them. O(2^k n) time and
 * memory, k = dims that not every box spans. */
reshard_status rs_corners_check(int ndim, const int64_t *shape, const int64_t *corners, int64_t n, const int64_t *box,
                                int64_t *excess, int64_t *point);

/* Writes to i and j the numbers (into box) of the first two boxes that contain the point; they must exist. */
void rs_corners_pair(int ndim, const int64_t *corners, int64_t n, const int64_t *box, const int64_t *point, int64_t *i,
                     int64_t *j);

/* Grows a point that is in no box, the first such in row-major order, to a box [point, hi) in the shape. It shares no
 * element with any box and cannot be larger in any dim. O(n ndim^2). */
void rs_corners_gap(int ndim, const int64_t *shape, const int64_t *corners, int64_t n, const int64_t *box,
                    const int64_t *point, int64_t *hi);

#endif
