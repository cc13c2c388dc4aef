/* A program on a virtual GPU: `reshard` or reshard_gpu with its main renamed, between vg_begin and vg_end. What the
 * checker reports goes to standard error, and makes a run that was fine end with status 70.
 *
 * Environment: VG_DEVICES  GPUs of the machine (default 1; 0: a driver and no GPU; -1: no driver)
 *              VG_SMS      multiprocessors of each (default 132): fewer make larger tiles
 *              VG_SEED     seed of the schedules (default 1)
 *              VG_CHECK    0: nothing but misuse and leaks is looked for, for larger runs
 *              VG_WITHOUT  an edge (host/device/stream.h) whose waits are left out
 *              VG_DIGEST   not empty: says vg_digest() at the end */
#include "virtual_gpu.h"

#include "device/stream.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int reshard_main(int argc, char **argv);

static const char *text_of(const char *name) {
  const char *text = getenv(name);
  return text != NULL && *text != '\0' ? text : NULL;
}

static long number(const char *name, long otherwise) {
  const char *text = text_of(name);
  return text != NULL ? strtol(text, NULL, 0) : otherwise;
}

/* Runs as the last thing: the program may exit anywhere. What failed leaves its memory to the system: no leak is told.
 */
static void end(int status, void *unused) {
  (void)unused;
  for (int i = 0; status != 0 && vg_report(i) != NULL; i++)
    fprintf(stderr, "virtual GPU: %s\n", vg_report(i));
  int reports = status == 0 ? vg_end() : 0;
  if (text_of("VG_DIGEST") != NULL)
    fprintf(stderr, "digest %016llx\n", (unsigned long long)vg_digest());
  if (reports > 0) {
    fflush(NULL);
    _exit(70);
  }
}

static bool left_out(void *name, const char *edge, bool wait) { return wait && strcmp(edge, name) == 0; }

int main(int argc, char **argv) {
  long devices = number("VG_DEVICES", 1);
  vg_begin(&(vg_options){.devices = (int)devices,
                         .no_device = devices < 1,
                         .multiprocessors = (int)number("VG_SMS", 0),
                         .l2 = 64 << 10, /* what must be out of the cache need not be large */
                         .seed = (uint64_t)number("VG_SEED", 1),
                         .no_check = number("VG_CHECK", 1) == 0});
  if (getenv("VG_WITHOUT") != NULL)
    rs_stream_set_hook(left_out, getenv("VG_WITHOUT"));
  on_exit(end, NULL);
  return reshard_main(argc, argv);
}
