/* Orders of values, as qsort and bsearch want them. */
#ifndef RS_BASE_ORDER_H
#define RS_BASE_ORDER_H

#include <stdint.h>

#define RS_ORDER(x, y) (((x) > (y)) - ((x) < (y)))

/* Of numbers. */
static inline int rs_order_numbers(const void *a, const void *b) {
  return RS_ORDER(*(const int64_t *)a, *(const int64_t *)b);
}

/* Defines the order of elements by a member, or by one and then another. */
#define RS_ORDER_BY(name, type, member) RS_ORDER_BY_TWO(name, type, member, member)
#define RS_ORDER_BY_TWO(name, type, first, second) \
  static int name(const void *a, const void *b) { \
    const type *x = a, *y = b; \
    int order = RS_ORDER(x->first, y->first); \
    return order != 0 ? order : RS_ORDER(x->second, y->second); \
  }

#endif
