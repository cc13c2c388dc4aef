#define _GNU_SOURCE /* struct ucred, F_GET_SEALS */
#include "comm/roll.h"

#include "device/cpu/memory_file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define MEMORY "reshard-roll"

enum { FIND_MS = 250 }; /* at most, for the process that holds a name to listen: the machine may be busy */
enum { SEALS = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL }; /* of a page: no access to it ever ends in a SIGBUS */

/* A rank in the page. Zeros: it is out of sight. */
typedef struct roll_rank {
  _Alignas(64) _Atomic uint64_t came[RS_ROLL_KINDS];
  _Atomic int64_t waited; /* when it has told last that it waits in what it came to, or has come */
  atomic_bool inside;     /* it is not through with that */
  _Atomic int32_t pid;    /* 0: it has not joined */
  atomic_bool left;
  atomic_bool missing; /* when the reason was given */
} roll_rank;

/* Progress of the reason. */
enum { NO_REASON, REASON_BEGUN, REASON_THERE };

typedef struct roll_page {
  uint64_t key;          /* of the rank that has made it */
  _Atomic uint64_t name; /* hash of the communicator's, by which its ranks find it; 0: they do not */
  _Atomic uint32_t state;
  int32_t status; /* of the reason */
  char reason[RS_ROLL_REASON];
  roll_rank ranks[];
} roll_page;

struct rs_roll {
  int64_t n, rank, joins;
  rs_roll_offer offer;
  roll_page *page;             /* NULL: none; this rank's own at first */
  _Atomic(roll_page *) joined; /* the page once this rank is in it: it stays then; any thread may look */
  atomic_bool left;
  size_t bytes;
  uint64_t came[RS_ROLL_KINDS]; /* as in the page, also before there is one */
  int32_t listener;             /* of the name; -1: none */
  _Atomic rs_roll_kind kind;    /* what the rank waits in */
  int64_t asked;                /* when it was about to give up; 0: it is not */
};

/* --- Pages -------------------------------------------------------------------------------------------------------- */

static roll_page *map_page(int fd, size_t bytes) {
  struct stat file;
  int seals = fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & SEALS) != SEALS || fstat(fd, &file) != 0 || file.st_size != (off_t)bytes)
    return NULL;
  void *page = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  return page != MAP_FAILED ? page : NULL;
}

static void drop_page(rs_roll *roll) {
  if (roll->page != NULL)
    munmap(roll->page, roll->bytes);
  roll->page = NULL;
}

static void close_descriptor(int32_t *fd) {
  if (*fd >= 0)
    close(*fd);
  *fd = -1;
}

static void make_page(rs_roll *roll) {
  const void *address = roll;
  int64_t draw[] = {rs_now_ns(), getpid()};
  int fd;
  if (rs_memory_file_make(MEMORY, (int64_t)roll->bytes, S_IRUSR | S_IWUSR, &fd) != 0)
    return;
  roll->page = map_page(fd, roll->bytes);
  if (roll->page == NULL) {
    close(fd);
    return;
  }
  roll->page->key = rs_hash(rs_hash(1, draw, sizeof draw), &address, sizeof address);
  roll->offer = (rs_roll_offer){rs_system_hash("pid"), roll->page->key, (int32_t)getpid(), fd};
}

reshard_status rs_roll_make(int64_t n, int64_t rank, rs_roll **roll) {
  rs_roll *made = NULL;
  RS_TRY(rs_alloc_zero(&made, 1, sizeof *made));
  *made = (rs_roll){.n = n, .rank = rank, .offer.fd = -1, .listener = -1};
  made->bytes = sizeof *made->page + (size_t)n * sizeof *made->page->ranks;
  make_page(made);
  *roll = made;
  return RESHARD_SUCCESS;
}

void rs_roll_destroy(rs_roll *roll) {
  if (roll == NULL)
    return;
  drop_page(roll);
  close_descriptor(&roll->offer.fd);
  close_descriptor(&roll->listener);
  free(roll);
}

rs_roll_offer rs_roll_own_offer(const rs_roll *roll) { return roll != NULL ? roll->offer : (rs_roll_offer){.fd = -1}; }

/* The page of another rank; NULL: it is gone, or another user's. */
static roll_page *open_page(const rs_roll_offer *offer, size_t bytes) {
  char path[64];
  snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)offer->pid, (int)offer->fd);
  int fd = open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0)
    return NULL;
  roll_page *page = map_page(fd, bytes);
  close(fd);
  if (page != NULL && page->key != offer->key) { /* the descriptor is something else by now */
    munmap(page, bytes);
    page = NULL;
  }
  return page;
}

/* Takes the rank's place in the page; false: another one has it. */
static bool enter_page(rs_roll *roll, roll_page *page) {
  roll_rank *own = &page->ranks[roll->rank];
  int32_t none = 0;
  if (!atomic_compare_exchange_strong(&own->pid, &none, (int32_t)getpid()))
    return false;
  for (int kind = 0; kind < RS_ROLL_KINDS; kind++)
    own->came[kind] = roll->came[kind];
  roll->joined = page;
  if (roll->left) /* meanwhile, of another thread */
    own->left = true;
  return true;
}

static int open_socket(void) { return socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0); }

/* Address of the name, which all users of the machine can list. Half of the hash does not give a secret in it away. */
static socklen_t name_address(uint64_t name, struct sockaddr_un *at) {
  *at = (struct sockaddr_un){.sun_family = AF_UNIX}; /* abstract: it leaves no file */
  int length = snprintf(at->sun_path + 1, sizeof at->sun_path - 1, MEMORY "-%08x", (unsigned)(name >> 32));
  return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length);
}

/* Listens at the name from now on, for others to find its page; false: errno tells why it does not. */
static bool hold_name(rs_roll *roll, uint64_t name, int fd) {
  struct sockaddr_un at;
  socklen_t size = name_address(name, &at);
  if (bind(fd, (struct sockaddr *)&at, size) != 0)
    return false;
  roll->page->name = name; /* before anyone looks for it */
  roll->listener = fd;
  (void)listen(fd, SOMAXCONN);
  return true;
}

/* Process of this user that listens at the name; -1: there is none, or it is this rank from now on. */
static pid_t find_holder(rs_roll *roll, uint64_t name) {
  struct sockaddr_un at;
  socklen_t size = name_address(name, &at);
  for (int64_t since = rs_now_ns(); !rs_late(since, FIND_MS); nanosleep(&(struct timespec){0, 1000000}, NULL)) {
    struct ucred who;
    socklen_t bytes = sizeof who;
    int fd = open_socket();
    if (fd < 0 || hold_name(roll, name, fd))
      return -1;
    bool refused = errno != EADDRINUSE;
    bool found = !refused && connect(fd, (struct sockaddr *)&at, size) == 0 &&
                 getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &bytes) == 0;
    close(fd);
    if (found || refused)
      return found && who.uid == geteuid() ? who.pid : -1;
  }
  return -1;
}

/* Enters the page of that name, of which the process has a descriptor. */
static void find_page(rs_roll *roll, pid_t pid, uint64_t name) {
  static const char memory[] = "/memfd:" MEMORY " "; /* "(deleted)" */
  char path[64], link[64];
  snprintf(path, sizeof path, "/proc/%d/fd", (int)pid);
  DIR *list = opendir(path);
  for (struct dirent *entry; list != NULL && (entry = readdir(list)) != NULL;) {
    ssize_t length = readlinkat(dirfd(list), entry->d_name, link, sizeof link - 1);
    link[rs_max(length, 0)] = '\0';
    if (strncmp(link, memory, strlen(memory)) != 0)
      continue;
    int32_t fd = openat(dirfd(list), entry->d_name, O_RDWR | O_CLOEXEC | O_NONBLOCK);
    roll_page *page = fd >= 0 ? map_page(fd, roll->bytes) : NULL;
    if (page != NULL && page->name == name && enter_page(roll, page)) {
      drop_page(roll);
      close_descriptor(&roll->offer.fd);
      roll->page = page;
      roll->offer.key = page->key;
      roll->offer.fd = fd;
      break;
    }
    if (page != NULL)
      munmap(page, roll->bytes);
    close_descriptor(&fd);
  }
  if (list != NULL)
    closedir(list);
}

/* Processes that do not see each other's numbers find different names. */
void rs_roll_find(rs_roll *roll, const void *name, size_t bytes) {
  if (roll == NULL || roll->page == NULL || roll->offer.node == 0)
    return;
  uint64_t hash = rs_hash(roll->offer.node, name, bytes);
  pid_t holder = find_holder(roll, hash);
  if (roll->listener >= 0)
    (void)enter_page(roll, roll->page);
  else if (holder > 0)
    find_page(roll, holder, hash);
}

void rs_roll_hold(rs_roll *roll) {
  if (roll == NULL || roll->joined == NULL || roll->joins > 0 || roll->listener >= 0)
    return;
  int fd = open_socket();
  if (fd >= 0 && !hold_name(roll, roll->page->name, fd))
    close(fd);
}

void rs_roll_join(rs_roll *roll, const rs_roll_offer *first, size_t stride, const int64_t *at) {
  if (roll == NULL || roll->joins >= 2)
    return;
  if (++roll->joins == 2) {
    close_descriptor(&roll->offer.fd);
    return;
  }
  close_descriptor(&roll->listener);
  const rs_roll_offer *offer = NULL;
  int64_t holder = -1;
  for (int64_t r = 0; r < roll->n && holder < 0; r++) {
    offer = (const rs_roll_offer *)((const char *)first + (size_t)(at != NULL ? at[r] : r) * stride);
    if (offer->fd >= 0 && offer->node != 0 && offer->node == roll->offer.node)
      holder = r;
  }
  if (holder < 0 || roll->page == NULL || roll->page->key != offer->key) {
    roll->joined = NULL; /* others have found another page, or none */
    drop_page(roll);
    close_descriptor(&roll->offer.fd);
    roll->page = holder >= 0 ? open_page(offer, roll->bytes) : NULL;
  }
  if (roll->page != NULL && roll->joined == NULL)
    (void)enter_page(roll, roll->page);
}

/* --- Ranks that came ---------------------------------------------------------------------------------------------- */

/* The rank in a page that is joined; NULL: it is in none. */
static roll_rank *own_rank(const rs_roll *roll) {
  roll_page *page = roll != NULL ? roll->joined : NULL;
  return page != NULL ? &page->ranks[roll->rank] : NULL;
}

void rs_roll_come(rs_roll *roll, rs_roll_kind kind, uint64_t number) {
  roll_rank *own = own_rank(roll);
  if (roll == NULL)
    return;
  roll->kind = kind;
  roll->asked = 0; /* that was in an earlier call */
  roll->came[kind] = kind == RS_ROLL_CALL ? number : roll->came[kind] + 1;
  if (own == NULL)
    return;
  own->waited = rs_now_ns();
  own->inside = kind != RS_ROLL_CALL; /* where the ranks meet in its steps */
  own->came[kind] = roll->came[kind];
}

void rs_roll_pass(rs_roll *roll) {
  roll_rank *own = own_rank(roll);
  if (own != NULL)
    own->inside = false;
}

void rs_roll_wait(rs_roll *roll) {
  roll_rank *own = own_rank(roll);
  if (own != NULL)
    own->waited = rs_now_ns();
}

void rs_roll_leave(rs_roll *roll) {
  if (roll != NULL)
    roll->left = true;
  roll_rank *own = own_rank(roll);
  if (own != NULL)
    own->left = true;
}

/* A process that nobody has waited for is there still, by its number alone. */
static bool process_ended(int32_t pid) {
  int fd = (int)syscall(SYS_pidfd_open, pid, 0);
  if (fd < 0)
    return errno == ESRCH || (kill(pid, 0) != 0 && errno == ESRCH);
  bool ended = poll(&(struct pollfd){.fd = fd, .events = POLLIN}, 1, 0) > 0;
  close(fd);
  return ended;
}

/* In a shrink ranks come to that have left what is shrunk. */
static bool is_absent(const rs_roll *roll, const roll_rank *own, int64_t r) {
  const roll_rank *other = &roll->joined->ranks[r];
  int32_t pid = other->pid;
  if (pid == 0 || other == own)
    return false;
  return other->came[roll->kind] < own->came[roll->kind] || (other->left && roll->kind != RS_ROLL_SHRINK) ||
         (pid != own->pid && process_ended(pid));
}

/* True when rank r is in the same step as this one, and has not told since then that it waits there. */
static bool is_silent(const rs_roll *roll, const roll_rank *own, int64_t r) {
  const roll_rank *other = &roll->joined->ranks[r];
  return other != own && other->pid != 0 && other->inside && other->came[roll->kind] == own->came[roll->kind] &&
         other->waited < roll->asked;
}

void rs_roll_ask(rs_roll *roll, int64_t limit_ms) {
  const roll_rank *own = own_rank(roll);
  bool silent = own != NULL;
  if (own == NULL)
    return;
  for (roll->asked = rs_now_ns(); silent && rs_roll_reason(roll) == NULL && !rs_late(roll->asked, limit_ms);) {
    rs_roll_wait(roll); /* others may ask, too */
    silent = false;
    for (int64_t r = 0; r < roll->n; r++)
      silent |= is_silent(roll, own, r);
    if (silent)
      nanosleep(&(struct timespec){0, 1000000}, NULL);
  }
}

typedef bool rank_test(const rs_roll *roll, const roll_rank *own, int64_t r);

static int64_t list_ranks(const rs_roll *roll, rank_test *is, int64_t nlost, const int64_t *lost, int64_t most,
                          int64_t *ranks) {
  const roll_rank *own = own_rank(roll);
  int64_t n = 0;
  for (int64_t r = 0, l = 0; own != NULL && r < roll->n && n < most; r++) {
    while (l < nlost && lost[l] < r)
      l++;
    if ((l >= nlost || lost[l] != r) && is(roll, own, r))
      ranks[n++] = r;
  }
  return n;
}

int64_t rs_roll_absent(const rs_roll *roll, int64_t nlost, const int64_t *lost, int64_t most, int64_t *ranks) {
  int64_t n = list_ranks(roll, is_absent, nlost, lost, most, ranks);
  return n > 0 ? n : list_ranks(roll, is_silent, nlost, lost, most, ranks);
}

/* Ranks that have not joined, at most `most`. */
static int64_t list_unseen(const rs_roll *roll, int64_t most, int64_t *ranks) {
  int64_t n = 0;
  for (int64_t r = 0; r < roll->n && n < most; r++)
    if (roll->joined->ranks[r].pid == 0)
      ranks[n++] = r;
  return n;
}

const char *rs_roll_text(const rs_roll *roll, int64_t nlost, const int64_t *lost, char buffer[RS_ROLL_TEXT]) {
  int64_t few[64]; /* a text has no room for more */
  char absent[RS_ROLL_TEXT / 3], unseen[RS_ROLL_TEXT / 3];
  bool met = roll != NULL && roll->joins > 0;
  buffer[0] = '\0';
  if (own_rank(roll) == NULL)
    return buffer;
  int64_t nabsent = rs_roll_absent(roll, nlost, lost, 64, few);
  rs_ranges_text(absent, sizeof absent, nabsent, few);
  int64_t nunseen = list_unseen(roll, 64, few);
  rs_ranges_text(unseen, sizeof unseen, nunseen, few);
  if (nabsent > 0)
    snprintf(buffer, RS_ROLL_TEXT, "%s%s%s", absent,
             nunseen == 0 ? ""
             : met        ? "; not known of: "
                          : "; not come, or out of sight: ",
             unseen);
  else if (nunseen > 0)
    snprintf(buffer, RS_ROLL_TEXT, "%s: %s", met ? "not known, of" : "not come, or out of sight", unseen);
  else
    snprintf(buffer, RS_ROLL_TEXT, "none: all ranks have come");
  return buffer;
}

/* --- The end ------------------------------------------------------------------------------------------------------ */

const char *rs_roll_reason(const rs_roll *roll) {
  return own_rank(roll) != NULL && roll->joined->state == REASON_THERE ? roll->joined->reason : NULL;
}

reshard_status rs_roll_status(const rs_roll *roll) {
  return rs_roll_reason(roll) != NULL ? (reshard_status)roll->joined->status : RESHARD_SUCCESS;
}

/* A process that ends within this leaves the others without the text: they do not wait for it for long. */
const char *rs_roll_conclude(rs_roll *roll, reshard_status status, const char *reason) {
  const roll_rank *own = own_rank(roll);
  uint32_t expected = NO_REASON;
  if (own == NULL)
    return NULL;
  roll_page *page = roll->joined;
  if (atomic_compare_exchange_strong(&page->state, &expected, REASON_BEGUN)) {
    rank_test *is = list_ranks(roll, is_absent, 0, NULL, 1, &(int64_t){0}) > 0 ? is_absent : is_silent;
    for (int64_t r = 0; r < roll->n; r++)
      page->ranks[r].missing = status == RESHARD_ERROR_TIMEOUT && is(roll, own, r);
    page->status = status;
    snprintf(page->reason, sizeof page->reason, "%s", reason);
    page->state = REASON_THERE;
  }
  for (int64_t since = rs_now_ns(); page->state != REASON_THERE && !rs_late(since, 20);)
    sched_yield();
  return rs_roll_reason(roll);
}

int64_t rs_roll_missing(const rs_roll *roll, int64_t *ranks) {
  int64_t n = 0, unseen;
  if (rs_roll_reason(roll) == NULL || list_unseen(roll, 1, &unseen) > 0)
    return 0;
  for (int64_t r = 0; r < roll->n; r++)
    if (roll->joined->ranks[r].missing)
      ranks[n++] = r;
  return n;
}
