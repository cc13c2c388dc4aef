/* A switch saves what a called function must keep and goes on with the other stack: no system call, as ucontext's
 * swapcontext makes one for the signal mask. Machines without such a switch here use ucontext. */
#include "fiber.h"

#include <pthread.h>
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>
#if !defined(__x86_64__) && !defined(__aarch64__)
#include <stdlib.h>
#include <ucontext.h>
#endif

extern "C" {
#define WEAK __attribute__((weak))
void __sanitizer_start_switch_fiber(void **fake_stack, const void *bottom, size_t size) WEAK;
void __sanitizer_finish_switch_fiber(void *fake_stack, const void **bottom_old, size_t *size_old) WEAK;
void __asan_unpoison_memory_region(const volatile void *at, size_t size) WEAK;
void *__tsan_get_current_fiber(void) WEAK;
void *__tsan_create_fiber(unsigned flags) WEAK;
void __tsan_destroy_fiber(void *fiber) WEAK;
void __tsan_switch_to_fiber(void *fiber, unsigned flags) WEAK;
void __tsan_acquire(void *at) WEAK;
void __tsan_release(void *at) WEAK;
void simt_switch_stacks(void **from, void *to);
}

bool simt_tsan() { return __tsan_create_fiber != nullptr; }
void simt_acquire(void *object) {
  if (__tsan_acquire != nullptr)
    __tsan_acquire(object);
}
void simt_release(void *object) {
  if (__tsan_release != nullptr)
    __tsan_release(object);
}

#if defined(__x86_64__)
asm(R"(
.text
.globl simt_switch_stacks
.hidden simt_switch_stacks
.type simt_switch_stacks, @function
simt_switch_stacks:
  endbr64
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size simt_switch_stacks, .-simt_switch_stacks
)");
/* Six registers, the entry as the address to return to, and none for the entry itself; at its first instruction the
 * stack is 8 bytes off a multiple of 16, as after a call. */
static void *first_frame(char *top, void (*entry)()) {
  uint64_t *sp = reinterpret_cast<uint64_t *>(reinterpret_cast<uintptr_t>(top) & ~uintptr_t(15));
  *--sp = 0;
  *--sp = reinterpret_cast<uint64_t>(entry);
  for (int i = 0; i < 6; i++)
    *--sp = 0;
  return sp;
}
#elif defined(__aarch64__)
asm(R"(
.text
.globl simt_switch_stacks
.hidden simt_switch_stacks
.type simt_switch_stacks, %function
simt_switch_stacks:
  sub sp, sp, #160
  stp x19, x20, [sp, #0]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp x19, x20, [sp, #0]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
.size simt_switch_stacks, .-simt_switch_stacks
)");
static void *first_frame(char *top, void (*entry)()) {
  uint64_t *sp = reinterpret_cast<uint64_t *>(reinterpret_cast<uintptr_t>(top) & ~uintptr_t(15)) - 20;
  for (int i = 0; i < 20; i++)
    sp[i] = 0;
  sp[11] = reinterpret_cast<uint64_t>(entry);
  return sp;
}
#else
/* sp is the ucontext: in the stack's lowest bytes, or for the OS thread's own in static memory of that thread. */
static __thread ucontext_t own;
extern "C" void simt_switch_stacks(void **from, void *to) {
  if (*from == nullptr)
    *from = &own;
  swapcontext(static_cast<ucontext_t *>(*from), static_cast<ucontext_t *>(to));
}
#endif

static size_t page() { return static_cast<size_t>(sysconf(_SC_PAGESIZE)); }

bool simt_fiber_create(simt_fiber *fiber, size_t bytes, size_t skew) {
  *fiber = {};
  size_t guard = page();
  bytes = (bytes + guard - 1) / guard * guard;
  void *memory =
      mmap(nullptr, bytes + guard, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED)
    return false;
  mprotect(memory, guard, PROT_NONE);
  fiber->stack = static_cast<char *>(memory) + guard;
  fiber->bytes = bytes;
  fiber->skew = skew;
  if (simt_tsan())
    fiber->tsan = __tsan_create_fiber(0);
  return true;
}

void simt_fiber_destroy(simt_fiber *fiber) {
  if (fiber->tsan != nullptr)
    __tsan_destroy_fiber(fiber->tsan);
  if (fiber->stack != nullptr)
    munmap(fiber->stack - page(), fiber->bytes + page());
  *fiber = {};
}

void simt_fiber_begin(simt_fiber *fiber, void (*entry)()) {
  if (__asan_unpoison_memory_region != nullptr) // of frames that were left for good
    __asan_unpoison_memory_region(fiber->stack, fiber->bytes);
  fiber->fake_stack = nullptr;
#if defined(__x86_64__) || defined(__aarch64__)
  fiber->sp = first_frame(fiber->stack + fiber->bytes - fiber->skew, entry);
#else
  ucontext_t *context = reinterpret_cast<ucontext_t *>(fiber->stack);
  getcontext(context);
  size_t below = (sizeof *context + 63) / 64 * 64;
  context->uc_stack.ss_sp = fiber->stack + below;
  context->uc_stack.ss_size = fiber->bytes - below;
  context->uc_link = nullptr;
  makecontext(context, entry, 0);
  fiber->sp = context;
#endif
}

void simt_fiber_switch(simt_fiber *from, simt_fiber *to) {
  if (__sanitizer_start_switch_fiber != nullptr)
    __sanitizer_start_switch_fiber(&from->fake_stack, to->stack != nullptr ? to->stack : to->bottom, to->bytes);
  if (simt_tsan()) {
    if (from->tsan == nullptr)
      from->tsan = __tsan_get_current_fiber();
    __tsan_switch_to_fiber(to->tsan, 1); // 1: no order between the two
  }
  simt_switch_stacks(&from->sp, to->sp);
  if (__sanitizer_finish_switch_fiber != nullptr)
    __sanitizer_finish_switch_fiber(from->fake_stack, nullptr, nullptr);
}

void simt_fiber_entered(simt_fiber *self, simt_fiber *from) {
  if (__sanitizer_finish_switch_fiber == nullptr)
    return;
  size_t bytes = 0;
  const void *bottom = nullptr;
  __sanitizer_finish_switch_fiber(self->fake_stack, &bottom, &bytes);
  if (from->stack == nullptr) {
    from->bottom = bottom;
    from->bytes = bytes;
  }
}
