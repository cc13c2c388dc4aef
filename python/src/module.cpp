// The module reshard._core.
#include "core.h"

NB_MODULE(_core, m) {
#ifdef NDEBUG
  nb::set_leak_warnings(false); // a thread that waits at exit keeps its objects
#endif
  bind_error(m);
  bind_layout(m);
  bind_plan(m);
  bind_comm(m);
  bind_transfer(m);
  bind_sharded(m);
  bind_checkpoint(m);
  bind_file(m);
}
