/* A fork while another thread opens the process's first memory file: the child has a lock that nobody holds, and a file
 * of its own. Handlers of this test are the first of the process, so that they run inside of the library's. */
#include "device/cpu/segment.h"

#include <reshard/comm.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/fixtures/case.h"
#include "support/fixtures/rank_threads.h"

static pthread_t opener;
static atomic_int opener_id;
static atomic_bool opens, opened, closes;

/* Opens the file, and has it open until the test is over. */
static void *open_file(void *unused) {
  opener_id = (int)syscall(SYS_gettid);
  opened = rs_shared_open(NULL) == RESHARD_SUCCESS;
  while (opened && !closes)
    test_sleep_ms(1);
  if (opened)
    rs_shared_close();
  return unused;
}

/* The thread sleeps, in a lock. */
static bool is_held_up(void) {
  char path[64], stat[512] = "";
  snprintf(path, sizeof path, "/proc/self/task/%d/stat", (int)opener_id);
  FILE *f = fopen(path, "r");
  size_t n = f != NULL ? fread(stat, 1, sizeof stat - 1, f) : 0;
  if (f != NULL)
    fclose(f);
  stat[n] = 0;
  const char *behind = strrchr(stat, ')');
  return behind != NULL && behind[2] == 'S';
}

static void open_meanwhile(void) {
  if (!opens)
    return;
  opens = false;
  if (pthread_create(&opener, NULL, open_file, NULL) != 0)
    return;
  while (!opened && (opener_id == 0 || !is_held_up()))
    sched_yield();
}

__attribute__((constructor(101))) static void come_first(void) { (void)pthread_atfork(open_meanwhile, NULL, NULL); }

CASE(child_of_a_fork_beside_the_first_open_has_no_lock_held) {
  reshard_comm comm;
  int status = -1;
  assert_int_equal(reshard_comm_create_local(1, NULL, &comm), RESHARD_SUCCESS); /* the library watches forks */
  opens = true;
  pid_t child = fork();
  if (child == 0) {
    void *memory;
    alarm(10);
    if (rs_shared_alloc(4096, &memory) != RESHARD_SUCCESS)
      _exit(1);
    memset(memory, 1, 4096);
    rs_shared_free(memory);
    _exit(0);
  }
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_int_not_equal(opener_id, 0);
  closes = true;
  pthread_join(opener, NULL);
  assert_true(opened);
  reshard_comm_destroy(comm);
  assert_int_equal(status, 0);
}

RUN_CASES
