/* The rendezvous and those who are no ranks of it: liars, floods, slow ones, replays and others that listen in place of
 * rank 0, with a secret and without one; ranks that differ in it; where rank 0 listens. */
#define _GNU_SOURCE
#include "comm/bootstrap/bootstrap.h"
#include "support/fixtures/case.h"
#include "support/processes/children.h"
#include "support/processes/ports.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>

enum { BYTES = 100, LONG_MS = 60000, SHORT_MS = 1500, FLOOD = 400 };
static const char some_secret[] = "a secret of these ranks";

static struct sockaddr_in address_of(const char *host, int port) {
  struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
  inet_pton(AF_INET, host, &at.sin_addr);
  return at;
}

/* A socket that listens at a port; 0: at one which is free. */
static int listen_at(int *port) {
  struct sockaddr_in at = address_of("127.0.0.1", *port);
  socklen_t size = sizeof at;
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;
  assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on), 0);
  assert_int_equal(bind(fd, (struct sockaddr *)&at, size) | listen(fd, 8), 0);
  assert_int_equal(getsockname(fd, (struct sockaddr *)&at, &size), 0);
  *port = ntohs(at.sin_port);
  return fd;
}

static reshard_rendezvous place_of(int port, int64_t rank, const char *secret, int64_t timeout_ms) {
  reshard_rendezvous at = RESHARD_RENDEZVOUS_DEFAULTS;
  at.n = at.local_n = 2;
  at.rank = at.local_rank = rank;
  at.timeout_ms = timeout_ms;
  at.port = port;
  snprintf(at.address, sizeof at.address, "127.0.0.1");
  snprintf(at.secret, sizeof at.secret, "%s", secret);
  return at;
}

/* A rank, which gets the bytes of all or that error. */
static pid_t start(reshard_rendezvous at, reshard_status expected, const char *text) {
  pid_t child = fork();
  if (child != 0)
    return child;
  char mine[BYTES], all[2 * BYTES];
  memset(mine, 'A' + (int)at.rank, BYTES);
  CHILD_CHECK(reshard_rendezvous_allgather(&at, mine, BYTES, all) == expected);
  CHILD_CHECK(expected == RESHARD_SUCCESS || strstr(reshard_last_error(), text) != NULL);
  for (int i = 0; i < 2 * BYTES && expected == RESHARD_SUCCESS; i++)
    CHILD_CHECK(all[i] == 'A' + i / BYTES);
  _exit(0);
}

static pid_t start_good(int port, int64_t rank, const char *secret) {
  return start(place_of(port, rank, secret, LONG_MS), RESHARD_SUCCESS, "");
}

/* Connects as soon as someone listens. */
static int call_at(int port) {
  struct sockaddr_in at = address_of("127.0.0.1", port);
  for (;;) {
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(fd, (struct sockaddr *)&at, sizeof at) == 0)
      return fd;
    close(fd);
    poll(NULL, 0, 5);
  }
}

/* The greeting of rank 1, as all that know the address and the job can make it. */
static rs_greeting greet(int secret) {
  uint64_t version = rs_hash(0, RESHARD_VERSION_STRING, strlen(RESHARD_VERSION_STRING));
  return (rs_greeting){.magic = 0x72657368617265u,
                       .run = rs_hash(version, "", 0),
                       .n = 2,
                       .rank = 1,
                       .bytes = BYTES,
                       .patience = RS_PATIENCE_MOST_NS,
                       .secret = secret};
}

/* Bytes until the other side ends the connection. */
static int64_t count_bytes(int fd) {
  char bytes[256];
  int64_t n = 0;
  for (ssize_t got; (got = recv(fd, bytes, sizeof bytes, 0)) > 0;)
    n += got;
  close(fd);
  return n;
}

static void say(int fd, const void *bytes, size_t n) { (void)send(fd, bytes, n, MSG_NOSIGNAL); }

static const char *secret_of(int with) { return with ? some_secret : ""; }

/* --- Strangers ---------------------------------------------------------------------------------------------------- */

/* Greetings of rank 1 and nothing more, half of one, or nothing: many of them, before rank 1 comes. */
CASE(silent_connections_hold_up_nobody) {
  for (int with = 0; with < 2; with++) {
    int port = free_port(), fd[40];
    pid_t first = start_good(port, 0, secret_of(with));
    for (int i = 0; i < 40; i++) {
      rs_greeting g = greet(with);
      fd[i] = call_at(port);
      say(fd[i], &g, i % 3 == 0 ? sizeof g : i % 3 == 1 ? sizeof g / 2 : 0);
    }
    int64_t since = rs_now_ns();
    assert_true(child_is_good(start_good(port, 1, secret_of(with))));
    assert_true(rs_now_ns() - since < RS_PATIENCE_NS * 10); /* on a busy machine; none is waited for */
    assert_true(child_is_good(first));
    for (int i = 0; i < 40; i++)
      assert_in_range(count_bytes(fd[i]), 0, sizeof(rs_welcome));
  }
}

/* One that lies about the secret sees what rank 0 draws, and no byte of a rank. */
CASE(liar_about_the_secret_gets_no_bytes) {
  int port = free_port(), fd[3];
  pid_t first = start_good(port, 0, some_secret);
  for (int i = 0; i < 3; i++) {
    char bytes[BYTES + sizeof(rs_proof)] = "";
    rs_greeting g = greet(i > 0);
    rs_welcome welcome;
    fd[i] = call_at(port);
    say(fd[i], &g, sizeof g);
    assert_int_equal(recv(fd[i], &welcome, sizeof welcome, MSG_WAITALL), sizeof welcome);
    assert_int_equal(welcome.secret, 1);
    if (i == 1) { /* nonces for a proof */
      say(fd[i], welcome.nonce, sizeof welcome.nonce);
      rs_admission admission;
      assert_int_equal(recv(fd[i], &admission, sizeof admission, MSG_WAITALL), sizeof admission);
      assert_int_equal(admission.refused, 1);
      for (size_t k = 0; k < sizeof admission.proof; k++)
        assert_int_equal(admission.proof[k], 0);
    }
    say(fd[i], bytes, sizeof bytes);
  }
  assert_true(child_is_good(start_good(port, 1, some_secret)));
  assert_true(child_is_good(first));
  assert_int_equal(count_bytes(fd[0]), 0);
  assert_int_equal(count_bytes(fd[1]), 0);
  assert_in_range(count_bytes(fd[2]), 0, sizeof(rs_admission));
}

/* More connections than rank 0 has room for, all with a greeting, again and again. */
CASE(flood_of_connections_ends_the_oldest) {
  for (int with = 0; with < 2; with++) {
    int port = free_port();
    pid_t first = start_good(port, 0, secret_of(with)), flood = fork();
    if (flood == 0) {
      int fd[FLOOD];
      for (int i = 0;; i++) {
        rs_greeting g = greet(with);
        if (i >= FLOOD)
          close(fd[i % FLOOD]);
        fd[i % FLOOD] = call_at(port);
        say(fd[i % FLOOD], &g, sizeof g);
      }
    }
    close(call_at(port));
    assert_true(child_is_good(start_good(port, 1, secret_of(with))));
    assert_true(child_is_good(first));
    kill(flood, SIGKILL);
    assert_false(child_is_good(flood));
  }
}

/* A connection has the time of a greeting: one that comes byte by byte is ended. */
CASE(slow_greeting_is_ended) {
  int port = free_port();
  pid_t first = start_good(port, 0, some_secret);
  rs_greeting g = greet(1);
  int fd = call_at(port);
  int64_t since = rs_now_ns(), sent = 0;
  char end;
  while (recv(fd, &end, 1, MSG_DONTWAIT) < 0 && errno == EAGAIN && sent < (int64_t)sizeof g) {
    say(fd, (const char *)&g + sent++, 1);
    poll(NULL, 0, 100);
  }
  assert_true(sent < (int64_t)sizeof g);
  assert_true(rs_now_ns() - since >= RS_PATIENCE_NS);
  close(fd);
  assert_true(child_is_good(start_good(port, 1, some_secret)));
  assert_true(child_is_good(first));
}

/* Passes bytes on between a rank and rank 0, and keeps those of the rank. */
static int64_t record(int client, int server, char *kept, int64_t most) {
  int64_t n = 0;
  struct pollfd polls[] = {{client, POLLIN, 0}, {server, POLLIN, 0}};
  while (poll(polls, 2, -1) > 0) {
    char bytes[4096];
    int from = polls[0].revents != 0 ? 0 : 1;
    ssize_t got = recv(polls[from].fd, bytes, sizeof bytes, 0);
    if (got <= 0)
      break;
    say(polls[1 - from].fd, bytes, (size_t)got);
    if (from == 0 && n + got <= most) {
      memcpy(kept + n, bytes, (size_t)got);
      n += got;
    }
  }
  close(client);
  close(server);
  return n;
}

/* All that a rank has sent, once more: rank 0 has drawn another nonce. */
CASE(replayed_bytes_prove_nothing) {
  char kept[4096];
  int middle = 0, listener = listen_at(&middle), port = free_port();
  pid_t first = start_good(port, 0, some_secret), second = start_good(middle, 1, some_secret);
  int client = accept(listener, NULL, NULL);
  int64_t n = record(client, call_at(port), kept, sizeof kept);
  assert_true(child_is_good(second));
  assert_true(child_is_good(first));
  close(listener);
  assert_int_equal(n, sizeof(rs_greeting) + 2 * sizeof(rs_proof) + BYTES + 1);
  for (int64_t i = 0; i + (int64_t)strlen(some_secret) <= n; i++)
    assert_true(memcmp(kept + i, some_secret, strlen(some_secret)) != 0);
  first = start_good(port, 0, some_secret);
  int fd = call_at(port);
  say(fd, kept, (size_t)n);
  assert_in_range(count_bytes(fd), 0, sizeof(rs_welcome) + sizeof(rs_admission));
  assert_true(child_is_good(start_good(port, 1, some_secret)));
  assert_true(child_is_good(first));
}

/* Another that listens first, and answers without the secret, gets no byte of a rank. The port is rank 0's then. */
CASE(test_other_listener) {
  int port = free_port();
  pid_t second = start_good(port, 1, some_secret);
  int listener = listen_at(&port);
  for (int i = 0; i < 3; i++) {
    int fd = accept(listener, NULL, NULL);
    rs_greeting g;
    rs_welcome welcome = {.secret = i > 0};
    rs_admission admission = {.refused = i == 1};
    rs_proof proof;
    assert_int_equal(recv(fd, &g, sizeof g, MSG_WAITALL), sizeof g);
    say(fd, &welcome, sizeof welcome);
    if (i > 0) {
      assert_int_equal(recv(fd, proof, sizeof proof, MSG_WAITALL), sizeof proof);
      memcpy(admission.proof, proof, sizeof proof); /* its own proof is none of rank 0 */
      say(fd, &admission, sizeof admission);
    }
    assert_int_equal(count_bytes(fd), 0);
  }
  close(listener);
  assert_true(child_is_good(start_good(port, 0, some_secret)));
  assert_true(child_is_good(second));
}

/* --- Ranks that differ -------------------------------------------------------------------------------------------- */

CASE(secrets_that_differ_are_told_on_both_sides) {
  const struct {
    const char *first, *second, *text;
  } cases[] = {{"one", "", "RESHARD_SECRET set on rank 0, not set on rank 1"},
               {"", "one", "RESHARD_SECRET not set on rank 0, set on rank 1"},
               {"one", "two", "RESHARD_SECRET one secret on rank 0, another on rank 1"}};
  for (int i = 0; i < 3; i++) {
    int port = free_port();
    pid_t a = start(place_of(port, 0, cases[i].first, SHORT_MS), RESHARD_ERROR_MISMATCH, cases[i].text);
    pid_t b = start(place_of(port, 1, cases[i].second, SHORT_MS), RESHARD_ERROR_MISMATCH, cases[i].text);
    assert_true(child_is_good(a) & child_is_good(b));
  }
}

/* --- Where rank 0 listens ----------------------------------------------------------------------------------------- */

static bool is_open(const char *host, int port) {
  struct sockaddr_in at = address_of(host, port);
  int fd = socket(AF_INET, SOCK_STREAM, 0);
  bool open = connect(fd, (struct sockaddr *)&at, sizeof at) == 0;
  close(fd);
  return open;
}

CASE(rank_0_listens_where_the_address_says) {
  const struct {
    const char *address;
    int64_t local;
    bool here, elsewhere;
  } cases[] = {
      {"127.0.0.1", 2, true, false}, /* all of 127.0.0.0/8 are of this machine, and another user's to look at */
      {"127.0.0.2", 2, false, true},      {"127.0.1.1", 1, true, true}, /* to others the name is another address */
      {"192.0.2.1", 2, true, true},                                     /* of a machine in between */
      {"no-name.invalid", 2, true, true},                               /* here; the others know it */
      {"localhost", 2, true, false},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    rs_listeners listeners;
    reshard_rendezvous at = place_of(free_port(), 0, "", SHORT_MS);
    snprintf(at.address, sizeof at.address, "%s", cases[i].address);
    at.local_n = cases[i].local;
    assert_int_equal(rs_listen_at(&at, &listeners), RESHARD_SUCCESS);
    assert_int_equal(is_open("127.0.0.1", at.port), cases[i].here);
    assert_int_equal(is_open("127.0.0.2", at.port), cases[i].elsewhere);
    rs_listeners second;
    assert_int_equal(rs_listen_at(&at, &second), RESHARD_ERROR_SYSTEM);
    assert_non_null(strstr(reshard_last_error(), "rank 0 cannot listen at"));
    rs_listeners_close(&listeners);
  }
}

/* --- The environment ---------------------------------------------------------------------------------------------- */

static reshard_status read_environment(reshard_rendezvous *r) {
  *r = (reshard_rendezvous)RESHARD_RENDEZVOUS_DEFAULTS;
  return reshard_rendezvous_from_environment(r);
}

static void write_secret(const char *path, const char *text, size_t n, mode_t mode) {
  int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
  assert_int_equal(write(fd, text, n), n);
  assert_int_equal(fchmod(fd, mode), 0);
  close(fd);
}

CASE(secrets_come_from_variable_or_private_file) {
  reshard_rendezvous r;
  char path[] = "secret", text[300];
  memset(text, 'x', sizeof text);
  setenv("RESHARD_SECRET", "word", 1);
  assert_int_equal(read_environment(&r), RESHARD_SUCCESS);
  assert_string_equal(r.secret, "word");
  setenv("RESHARD_SECRET_FILE", path, 1);
  assert_int_equal(read_environment(&r), RESHARD_ERROR_INVALID);
  setenv("RESHARD_SECRET", "", 1);
  unsetenv("RESHARD_SECRET_FILE");
  assert_int_equal(read_environment(&r), RESHARD_ERROR_INVALID);
  unsetenv("RESHARD_SECRET");
  setenv("RESHARD_SECRET_FILE", path, 1);
  assert_int_equal(read_environment(&r), RESHARD_ERROR_INVALID); /* there is none */
  write_secret(path, "from a file\n", 12, 0600);
  assert_int_equal(read_environment(&r), RESHARD_SUCCESS);
  assert_string_equal(r.secret, "from a file");
  write_secret(path, "two\nlines\n", 10, 0600);
  assert_int_equal(read_environment(&r), RESHARD_ERROR_INVALID);
  const struct {
    size_t n;
    mode_t mode;
    reshard_status status;
  } cases[] = {{4, 0400, RESHARD_SUCCESS},        {4, 0640, RESHARD_ERROR_INVALID}, {4, 0604, RESHARD_ERROR_INVALID},
               {4, 0620, RESHARD_ERROR_INVALID},  {0, 0600, RESHARD_ERROR_INVALID}, {255, 0600, RESHARD_SUCCESS},
               {256, 0600, RESHARD_ERROR_INVALID}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    assert_int_equal(unlink(path), 0);
    write_secret(path, text, cases[i].n, cases[i].mode);
    assert_int_equal(read_environment(&r), cases[i].status);
    assert_true(cases[i].status == RESHARD_SUCCESS ||
                strstr(reshard_last_error(), "RESHARD_SECRET_FILE=secret") != NULL);
  }
  assert_int_equal(unlink(path), 0);
  unsetenv("RESHARD_SECRET_FILE");
}

RUN_CASES
