/* Stacks to run on in turn, on one OS thread. Sanitizers are told of each switch; they are found at run time, as this
 * code is never instrumented itself. Under ThreadSanitizer each fiber is a thread of its own, and a switch orders
 * nothing: only simt_acquire and simt_release do. */
#ifndef SIMT_FIBER_H
#define SIMT_FIBER_H

#include <stddef.h>

struct simt_fiber {
  void *sp;
  char *stack; /* NULL: the OS thread's own */
  size_t bytes, skew;
  void *tsan, *fake_stack;
  const void *bottom; /* of the OS thread's stack, for ASan: known after the first switch away */
};

/* skew: where in a page the stack begins, so that many stacks do not share the lines of the cache. false: no memory. */
bool simt_fiber_create(simt_fiber *fiber, size_t bytes, size_t skew);
void simt_fiber_destroy(simt_fiber *fiber);
/* The next switch to it begins `entry`, which never returns. Whatever was on the stack is forgotten. */
void simt_fiber_begin(simt_fiber *fiber, void (*entry)());
/* `from` is what runs now. */
void simt_fiber_switch(simt_fiber *from, simt_fiber *to);
/* First thing in an entry: ends the switch to it. */
void simt_fiber_entered(simt_fiber *self, simt_fiber *from);

bool simt_tsan();
void simt_acquire(void *object);
void simt_release(void *object);

#endif
