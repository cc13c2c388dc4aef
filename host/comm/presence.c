#define _GNU_SOURCE /* struct ucred, F_GET_SEALS */
#include "comm/presence.h"

#include "device/cpu/segment.h"

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

#define MEMORY "reshard-presence"

enum { FIND_MS = 250 }; /* at most, for the process that holds a name to listen: the machine may be busy */
enum { SEALS = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL }; /* of a segment: no access to it ever ends in a SIGBUS */

/* A rank in the segment. Zeros: it is out of sight. */
typedef struct presence_rank {
  _Alignas(64) _Atomic uint64_t came[RS_PRESENCE_KINDS];
  _Atomic int64_t waited; /* when it has told last that it waits in what it came to, or has come */
  atomic_bool inside;     /* it is not through with that */
  _Atomic int32_t pid;    /* 0: it has not joined */
  atomic_bool left;
  atomic_bool missing; /* when the reason was given */
} presence_rank;

/* Progress of the reason. */
enum { NO_REASON, REASON_BEGUN, REASON_THERE };

typedef struct presence_segment {
  uint64_t key;          /* of the rank that has made it */
  _Atomic uint64_t name; /* hash of the communicator's, by which its ranks find it; 0: they do not */
  _Atomic uint32_t state;
  int32_t status; /* of the reason */
  char reason[RS_PRESENCE_REASON];
  presence_rank ranks[];
} presence_segment;

struct rs_presence {
  int64_t n, rank, joins;
  rs_presence_offer offer;
  presence_segment *segment;          /* NULL: none; this rank's own at first */
  _Atomic(presence_segment *) joined; /* the segment once this rank is in it: it stays then; any thread may look */
  atomic_bool left;
  size_t bytes;
  uint64_t came[RS_PRESENCE_KINDS]; /* as in the segment, also before there is one */
  int32_t listener;                 /* of the name; -1: none */
  _Atomic rs_presence_kind kind;    /* what the rank waits in */
  int64_t asked;                    /* when it was about to give up; 0: it is not */
};

/* --- Segments ----------------------------------------------------------------------------------------------------- */

static presence_segment *map_segment(int fd, size_t bytes) {
  struct stat file;
  int seals = fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & SEALS) != SEALS || fstat(fd, &file) != 0 || file.st_size != (off_t)bytes)
    return NULL;
  void *segment = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  return segment != MAP_FAILED ? segment : NULL;
}

static void drop_segment(rs_presence *presence) {
  if (presence->segment != NULL)
    munmap(presence->segment, presence->bytes);
  presence->segment = NULL;
}

static void close_descriptor(int32_t *fd) {
  if (*fd >= 0)
    close(*fd);
  *fd = -1;
}

static void make_segment(rs_presence *presence) {
  const void *address = presence;
  int64_t draw[] = {rs_now_ns(), getpid()};
  int fd;
  if (rs_memory_file_make(MEMORY, (int64_t)presence->bytes, S_IRUSR | S_IWUSR, &fd) != 0)
    return;
  presence->segment = map_segment(fd, presence->bytes);
  if (presence->segment == NULL) {
    close(fd);
    return;
  }
  presence->segment->key = rs_hash(rs_hash(1, draw, sizeof draw), &address, sizeof address);
  presence->offer = (rs_presence_offer){rs_system_hash("pid"), presence->segment->key, (int32_t)getpid(), fd};
}

reshard_status rs_presence_make(int64_t n, int64_t rank, rs_presence **presence) {
  rs_presence *made = NULL;
  RS_TRY(rs_alloc_zero(&made, 1, sizeof *made));
  *made = (rs_presence){.n = n, .rank = rank, .offer.fd = -1, .listener = -1};
  made->bytes = sizeof *made->segment + (size_t)n * sizeof *made->segment->ranks;
  make_segment(made);
  *presence = made;
  return RESHARD_SUCCESS;
}

void rs_presence_destroy(rs_presence *presence) {
  if (presence == NULL)
    return;
  drop_segment(presence);
  close_descriptor(&presence->offer.fd);
  close_descriptor(&presence->listener);
  free(presence);
}

rs_presence_offer rs_presence_own_offer(const rs_presence *presence) {
  return presence != NULL ? presence->offer : (rs_presence_offer){.fd = -1};
}

/* The segment of another rank; NULL: it is gone, or another user's. */
static presence_segment *open_segment(const rs_presence_offer *offer, size_t bytes) {
  char path[64];
  snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)offer->pid, (int)offer->fd);
  int fd = open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0)
    return NULL;
  presence_segment *segment = map_segment(fd, bytes);
  close(fd);
  if (segment != NULL && segment->key != offer->key) { /* the descriptor is something else by now */
    munmap(segment, bytes);
    segment = NULL;
  }
  return segment;
}

/* Takes the rank's place in the segment; false: another one has it. */
static bool enter_segment(rs_presence *presence, presence_segment *segment) {
  presence_rank *own = &segment->ranks[presence->rank];
  int32_t none = 0;
  if (!atomic_compare_exchange_strong(&own->pid, &none, (int32_t)getpid()))
    return false;
  for (int kind = 0; kind < RS_PRESENCE_KINDS; kind++)
    own->came[kind] = presence->came[kind];
  presence->joined = segment;
  if (presence->left) /* meanwhile, of another thread */
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

/* Listens at the name from now on, for others to find its segment; false: errno tells why it does not. */
static bool hold_name(rs_presence *presence, uint64_t name, int fd) {
  struct sockaddr_un at;
  socklen_t size = name_address(name, &at);
  if (bind(fd, (struct sockaddr *)&at, size) != 0)
    return false;
  presence->segment->name = name; /* before anyone looks for it */
  presence->listener = fd;
  (void)listen(fd, SOMAXCONN);
  return true;
}

/* Process of this user that listens at the name; -1: there is none, or it is this rank from now on. */
static pid_t find_holder(rs_presence *presence, uint64_t name) {
  struct sockaddr_un at;
  socklen_t size = name_address(name, &at);
  for (int64_t since = rs_now_ns(); !rs_late(since, FIND_MS); nanosleep(&(struct timespec){0, 1000000}, NULL)) {
    struct ucred who;
    socklen_t bytes = sizeof who;
    int fd = open_socket();
    if (fd < 0 || hold_name(presence, name, fd))
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

/* Enters the segment of that name, of which the process has a descriptor. */
static void find_segment(rs_presence *presence, pid_t pid, uint64_t name) {
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
    presence_segment *segment = fd >= 0 ? map_segment(fd, presence->bytes) : NULL;
    if (segment != NULL && segment->name == name && enter_segment(presence, segment)) {
      drop_segment(presence);
      close_descriptor(&presence->offer.fd);
      presence->segment = segment;
      presence->offer.key = segment->key;
      presence->offer.fd = fd;
      break;
    }
    if (segment != NULL)
      munmap(segment, presence->bytes);
    close_descriptor(&fd);
  }
  if (list != NULL)
    closedir(list);
}

/* Processes that do not see each other's numbers find different names. */
void rs_presence_find(rs_presence *presence, const void *name, size_t bytes) {
  if (presence == NULL || presence->segment == NULL || presence->offer.node == 0)
    return;
  uint64_t hash = rs_hash(presence->offer.node, name, bytes);
  pid_t holder = find_holder(presence, hash);
  if (presence->listener >= 0)
    (void)enter_segment(presence, presence->segment);
  else if (holder > 0)
    find_segment(presence, holder, hash);
}

void rs_presence_hold(rs_presence *presence) {
  if (presence == NULL || presence->joined == NULL || presence->joins > 0 || presence->listener >= 0)
    return;
  int fd = open_socket();
  if (fd >= 0 && !hold_name(presence, presence->segment->name, fd))
    close(fd);
}

void rs_presence_join(rs_presence *presence, const rs_presence_offer *first, size_t stride, const int64_t *at) {
  if (presence == NULL || presence->joins >= 2)
    return;
  if (++presence->joins == 2) {
    close_descriptor(&presence->offer.fd);
    return;
  }
  close_descriptor(&presence->listener);
  const rs_presence_offer *offer = NULL;
  int64_t holder = -1;
  for (int64_t r = 0; r < presence->n && holder < 0; r++) {
    offer = (const rs_presence_offer *)((const char *)first + (size_t)(at != NULL ? at[r] : r) * stride);
    if (offer->fd >= 0 && offer->node != 0 && offer->node == presence->offer.node)
      holder = r;
  }
  if (holder < 0 || presence->segment == NULL || presence->segment->key != offer->key) {
    presence->joined = NULL; /* others have found another segment, or none */
    drop_segment(presence);
    close_descriptor(&presence->offer.fd);
    presence->segment = holder >= 0 ? open_segment(offer, presence->bytes) : NULL;
  }
  if (presence->segment != NULL && presence->joined == NULL)
    (void)enter_segment(presence, presence->segment);
}

/* --- Ranks that came ---------------------------------------------------------------------------------------------- */

/* The rank in a segment that is joined; NULL: it is in none. */
static presence_rank *own_rank(const rs_presence *presence) {
  presence_segment *segment = presence != NULL ? presence->joined : NULL;
  return segment != NULL ? &segment->ranks[presence->rank] : NULL;
}

void rs_presence_come(rs_presence *presence, rs_presence_kind kind, uint64_t number) {
  presence_rank *own = own_rank(presence);
  if (presence == NULL)
    return;
  presence->kind = kind;
  presence->asked = 0; /* that was in an earlier call */
  presence->came[kind] = kind == RS_PRESENCE_CALL ? number : presence->came[kind] + 1;
  if (own == NULL)
    return;
  own->waited = rs_now_ns();
  own->inside = kind != RS_PRESENCE_CALL; /* where the ranks meet in its steps */
  own->came[kind] = presence->came[kind];
}

void rs_presence_pass(rs_presence *presence) {
  presence_rank *own = own_rank(presence);
  if (own != NULL)
    own->inside = false;
}

void rs_presence_wait(rs_presence *presence) {
  presence_rank *own = own_rank(presence);
  if (own != NULL)
    own->waited = rs_now_ns();
}

void rs_presence_leave(rs_presence *presence) {
  if (presence != NULL)
    presence->left = true;
  presence_rank *own = own_rank(presence);
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
static bool is_absent(const rs_presence *presence, const presence_rank *own, int64_t r) {
  const presence_rank *other = &presence->joined->ranks[r];
  int32_t pid = other->pid;
  if (pid == 0 || other == own)
    return false;
  return other->came[presence->kind] < own->came[presence->kind] ||
         (other->left && presence->kind != RS_PRESENCE_SHRINK) || (pid != own->pid && process_ended(pid));
}

/* True when rank r is in the same step as this one, and has not told since then that it waits there. */
static bool is_silent(const rs_presence *presence, const presence_rank *own, int64_t r) {
  const presence_rank *other = &presence->joined->ranks[r];
  return other != own && other->pid != 0 && other->inside && other->came[presence->kind] == own->came[presence->kind] &&
         other->waited < presence->asked;
}

void rs_presence_ask(rs_presence *presence, int64_t limit_ms) {
  const presence_rank *own = own_rank(presence);
  bool silent = own != NULL;
  if (own == NULL)
    return;
  for (presence->asked = rs_now_ns();
       silent && rs_presence_reason(presence) == NULL && !rs_late(presence->asked, limit_ms);) {
    rs_presence_wait(presence); /* others may ask, too */
    silent = false;
    for (int64_t r = 0; r < presence->n; r++)
      silent |= is_silent(presence, own, r);
    if (silent)
      nanosleep(&(struct timespec){0, 1000000}, NULL);
  }
}

typedef bool rank_test(const rs_presence *presence, const presence_rank *own, int64_t r);

static int64_t list_ranks(const rs_presence *presence, rank_test *is, int64_t nlost, const int64_t *lost, int64_t most,
                          int64_t *ranks) {
  const presence_rank *own = own_rank(presence);
  int64_t n = 0;
  for (int64_t r = 0, l = 0; own != NULL && r < presence->n && n < most; r++) {
    while (l < nlost && lost[l] < r)
      l++;
    if ((l >= nlost || lost[l] != r) && is(presence, own, r))
      ranks[n++] = r;
  }
  return n;
}

int64_t rs_presence_absent(const rs_presence *presence, int64_t nlost, const int64_t *lost, int64_t most,
                           int64_t *ranks) {
  int64_t n = list_ranks(presence, is_absent, nlost, lost, most, ranks);
  return n > 0 ? n : list_ranks(presence, is_silent, nlost, lost, most, ranks);
}

/* Ranks that have not joined, at most `most`. */
static int64_t list_unseen(const rs_presence *presence, int64_t most, int64_t *ranks) {
  int64_t n = 0;
  for (int64_t r = 0; r < presence->n && n < most; r++)
    if (presence->joined->ranks[r].pid == 0)
      ranks[n++] = r;
  return n;
}

const char *rs_presence_text(const rs_presence *presence, int64_t nlost, const int64_t *lost,
                             char buffer[RS_PRESENCE_TEXT]) {
  int64_t few[64]; /* a text has no room for more */
  char absent[RS_PRESENCE_TEXT / 3], unseen[RS_PRESENCE_TEXT / 3];
  bool met = presence != NULL && presence->joins > 0;
  buffer[0] = '\0';
  if (own_rank(presence) == NULL)
    return buffer;
  int64_t nabsent = rs_presence_absent(presence, nlost, lost, 64, few);
  rs_ranges_text(absent, sizeof absent, nabsent, few);
  int64_t nunseen = list_unseen(presence, 64, few);
  rs_ranges_text(unseen, sizeof unseen, nunseen, few);
  if (nabsent > 0)
    snprintf(buffer, RS_PRESENCE_TEXT, "%s%s%s", absent,
             nunseen == 0 ? ""
             : met        ? "; not known of: "
                          : "; not come, or out of sight: ",
             unseen);
  else if (nunseen > 0)
    snprintf(buffer, RS_PRESENCE_TEXT, "%s: %s", met ? "not known, of" : "not come, or out of sight", unseen);
  else
    snprintf(buffer, RS_PRESENCE_TEXT, "none: all ranks have come");
  return buffer;
}

/* --- The end ------------------------------------------------------------------------------------------------------ */

const char *rs_presence_reason(const rs_presence *presence) {
  return own_rank(presence) != NULL && presence->joined->state == REASON_THERE ? presence->joined->reason : NULL;
}

reshard_status rs_presence_status(const rs_presence *presence) {
  return rs_presence_reason(presence) != NULL ? (reshard_status)presence->joined->status : RESHARD_SUCCESS;
}

/* A process that ends within this leaves the others without the text: they do not wait for it for long. */
const char *rs_presence_conclude(rs_presence *presence, reshard_status status, const char *reason) {
  const presence_rank *own = own_rank(presence);
  uint32_t expected = NO_REASON;
  if (own == NULL)
    return NULL;
  presence_segment *segment = presence->joined;
  if (atomic_compare_exchange_strong(&segment->state, &expected, REASON_BEGUN)) {
    rank_test *is = list_ranks(presence, is_absent, 0, NULL, 1, &(int64_t){0}) > 0 ? is_absent : is_silent;
    for (int64_t r = 0; r < presence->n; r++)
      segment->ranks[r].missing = status == RESHARD_ERROR_TIMEOUT && is(presence, own, r);
    segment->status = status;
    snprintf(segment->reason, sizeof segment->reason, "%s", reason);
    segment->state = REASON_THERE;
  }
  for (int64_t since = rs_now_ns(); segment->state != REASON_THERE && !rs_late(since, 20);)
    sched_yield();
  return rs_presence_reason(presence);
}

int64_t rs_presence_missing(const rs_presence *presence, int64_t *ranks) {
  int64_t n = 0, unseen;
  if (rs_presence_reason(presence) == NULL || list_unseen(presence, 1, &unseen) > 0)
    return 0;
  for (int64_t r = 0; r < presence->n; r++)
    if (presence->joined->ranks[r].missing)
      ranks[n++] = r;
  return n;
}
