/* Processes as torchrun and Slurm describe them in the environment. */
#include "comm/bootstrap/bootstrap.h"

#include "device/environment.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* A number of the environment, from `from` to below; the value stays where the variable is not set. */
static reshard_status read_number(const char *name, int64_t from, int64_t below, int64_t *value) {
  const char *text = getenv(name);
  char *end;
  if (text == NULL)
    return RESHARD_SUCCESS;
  errno = 0;
  long long given = strtoll(text, &end, 10);
  if (end == text || *end != '\0' || errno != 0 || given < from || given >= below)
    return rs_error(RESHARD_ERROR_INVALID, "%s=%s: a number from %lld to %lld is expected", name, text, (long long)from,
                    (long long)below - 1);
  *value = given;
  return RESHARD_SUCCESS;
}

/* Both variables, or neither. */
static reshard_status check_pair(const char *a, const char *b) {
  if ((getenv(a) != NULL) == (getenv(b) != NULL))
    return RESHARD_SUCCESS;
  return rs_error(RESHARD_ERROR_INVALID, "%s is set and %s is not", getenv(a) != NULL ? a : b,
                  getenv(a) != NULL ? b : a);
}

static reshard_status check_fits(const char *name, const char *text, size_t size) {
  return strlen(text) < size ? RESHARD_SUCCESS
                             : rs_error(RESHARD_ERROR_INVALID, "%s: %zu characters, at most %zu are known", name,
                                        strlen(text), size - 1);
}

static const char *first_set(const char *const *names) {
  while (*names != NULL && getenv(*names) == NULL)
    names++;
  return *names;
}

static reshard_status read_text(const char *name, char *out, size_t size) {
  const char *text = name != NULL ? getenv(name) : "";
  RS_TRY(check_fits(name != NULL ? name : "", text, size));
  snprintf(out, size, "%s", text);
  return RESHARD_SUCCESS;
}

/* The local rank is one of those on this node, whose number the variable `by` gives. */
static reshard_status check_local(const reshard_rendezvous *r, const char *name, const char *by) {
  return r->local_rank < r->local_n ? RESHARD_SUCCESS
                                    : rs_error(RESHARD_ERROR_INVALID, "%s=%lld, and %lld processes on this node by %s",
                                               name, (long long)r->local_rank, (long long)r->local_n, by);
}

/* As torchrun sets it. The port is the one after MASTER_PORT, where torchrun itself listens. */
static reshard_status read_torchrun(reshard_rendezvous *r) {
  const char *const jobs[] = {"RESHARD_JOB", "TORCHELASTIC_RUN_ID", NULL};
  int64_t port = 0;
  RS_TRY(read_number("WORLD_SIZE", 1, 1 << 20, &r->n));
  RS_TRY(read_number("RANK", 0, r->n, &r->rank));
  r->local_n = r->n;
  r->local_rank = r->rank;
  RS_TRY(read_number("LOCAL_WORLD_SIZE", 1, r->n + 1, &r->local_n));
  RS_TRY(read_number("LOCAL_RANK", 0, r->n, &r->local_rank));
  if (getenv("LOCAL_WORLD_SIZE") != NULL)
    RS_TRY(check_pair("LOCAL_WORLD_SIZE", "LOCAL_RANK"));
  RS_TRY(check_local(r, "LOCAL_RANK", getenv("LOCAL_WORLD_SIZE") != NULL ? "LOCAL_WORLD_SIZE" : "WORLD_SIZE"));
  RS_TRY(read_text(first_set(jobs), r->job, sizeof r->job));
  if (r->n == 1)
    return RESHARD_SUCCESS;
  if (getenv("MASTER_ADDR") == NULL || getenv("MASTER_PORT") == NULL)
    return rs_error(RESHARD_ERROR_INVALID, "RANK is set and %s is not",
                    getenv("MASTER_ADDR") == NULL ? "MASTER_ADDR" : "MASTER_PORT");
  RS_TRY(read_number("MASTER_PORT", 1, 65535, &port));
  r->port = (int)port + 1;
  return read_text("MASTER_ADDR", r->address, sizeof r->address);
}

/* The first host of "node[03-05,9],other". */
static reshard_status first_host(const char *list, char *out, size_t size) {
  size_t at = strcspn(list, "[,");
  const char *number = list[at] == '[' ? list + at + 1 : "";
  int digits = (int)strspn(number, "0123456789");
  if (at == 0 || at + (size_t)digits >= size || (list[at] == '[' && digits == 0))
    return rs_error(RESHARD_ERROR_INVALID, "SLURM_STEP_NODELIST=%s: no first host", list);
  snprintf(out, size, "%.*s%.*s", (int)at, list, digits, number);
  return RESHARD_SUCCESS;
}

/* The number of tasks on this node in a list such as "4(x2),1", node after node. */
static reshard_status read_tasks(const char *name, reshard_rendezvous *r) {
  const char *list = getenv(name), *at = list;
  int64_t id = 0, node;
  RS_TRY(read_number("SLURM_NODEID", 0, 1 << 20, &id));
  node = id;
  for (long long tasks, times; *at != '\0'; at += *at == ',') {
    char *end;
    tasks = strtoll(at, &end, 10);
    times = 1;
    if (end > at && strncmp(end, "(x", 2) == 0) {
      times = strtoll(end + 2, &end, 10);
      end += *end == ')';
    }
    if (end == at || (*end != ',' && *end != '\0') || tasks < 1 || tasks > r->n || times < 1)
      break;
    at = end;
    node -= times;
    if (node < 0) {
      r->local_n = tasks;
      return RESHARD_SUCCESS;
    }
  }
  return rs_error(RESHARD_ERROR_INVALID, "%s=%s: no number of tasks of node %lld", name, list, (long long)id);
}

/* The processes of this node, as far as that is known. */
static reshard_status read_slurm_local(int64_t nodes, reshard_rendezvous *r) {
  const char *tasks = "SLURM_STEP_TASKS_PER_NODE", *equal = "SLURM_NTASKS_PER_NODE", *by = "SLURM_STEP_NUM_TASKS";
  r->local_n = nodes == 1 ? r->n : 1;
  r->local_rank = nodes == 1 ? r->rank : 0;
  RS_TRY(read_number("SLURM_LOCALID", 0, r->n, &r->local_rank));
  if (nodes > 1 && getenv(tasks) != NULL && getenv("SLURM_NODEID") != NULL)
    RS_TRY(read_tasks(by = tasks, r));
  else if (nodes > 1 && getenv(equal) != NULL)
    RS_TRY(read_number(by = equal, 1, r->n + 1, &r->local_n));
  else if (nodes > 1)
    r->local_n = r->local_rank + 1; /* at least */
  return check_local(r, "SLURM_LOCALID", by);
}

/* As srun sets it. Without MASTER_PORT the port follows from the number of the step, which all ranks know. */
static reshard_status read_slurm(reshard_rendezvous *r) {
  const char *step = getenv("SLURM_STEP_ID"), *job = getenv("SLURM_JOB_ID"), *list = getenv("SLURM_STEP_NODELIST");
  int64_t port = 0, nodes = 1;
  RS_TRY(
      read_number(getenv("SLURM_STEP_NUM_TASKS") != NULL ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS", 1, 1 << 20, &r->n));
  RS_TRY(read_number("SLURM_PROCID", 0, r->n, &r->rank));
  RS_TRY(read_number("SLURM_STEP_NUM_NODES", 1, 1 << 20, &nodes));
  RS_TRY(read_slurm_local(nodes, r));
  snprintf(r->job, sizeof r->job, "slurm %s.%s", job != NULL ? job : "", step != NULL ? step : "");
  if (getenv("RESHARD_JOB") != NULL)
    RS_TRY(read_text("RESHARD_JOB", r->job, sizeof r->job));
  RS_TRY(read_number("MASTER_PORT", 1, 65535, &port));
  r->port = port > 0 ? (int)port + 1 : 20000 + (int)(rs_hash(0, r->job, strlen(r->job)) % 20000);
  if (getenv("MASTER_ADDR") != NULL)
    return read_text("MASTER_ADDR", r->address, sizeof r->address);
  snprintf(r->address, sizeof r->address, "127.0.0.1");
  if (nodes == 1)
    return RESHARD_SUCCESS;
  if (list == NULL)
    return rs_error(RESHARD_ERROR_INVALID, "SLURM_STEP_NUM_NODES=%lld, and neither MASTER_ADDR nor SLURM_STEP_NODELIST",
                    (long long)nodes);
  return first_host(list, r->address, sizeof r->address);
}

/* --- The secret --------------------------------------------------------------------------------------------------- */

/* A file of this user's, or root's, that no other can read or write. */
static reshard_status check_secret_file(const char *path, int fd) {
  struct stat info = {0};
  if (fstat(fd, &info) == 0 && S_ISREG(info.st_mode) && (info.st_mode & (S_IRWXG | S_IRWXO)) == 0 &&
      (info.st_uid == geteuid() || info.st_uid == 0))
    return RESHARD_SUCCESS;
  return rs_error(
      RESHARD_ERROR_INVALID,
      "RESHARD_SECRET_FILE=%s: a file of mode 0600 of this user is expected, and it has mode 0%o of user %u", path,
      (unsigned)info.st_mode & 07777, (unsigned)info.st_uid);
}

/* Reads the one line of the secret's file. */
static reshard_status read_secret_file(const char *path, char *out, size_t size) {
  int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0)
    return rs_error(RESHARD_ERROR_INVALID, "RESHARD_SECRET_FILE=%s: %s", path, strerror(errno));
  char text[512];
  ssize_t n = 0, some = 1;
  reshard_status status = check_secret_file(path, fd);
  while (status == RESHARD_SUCCESS && n < (ssize_t)sizeof text && some > 0) {
    some = read(fd, text + n, sizeof text - (size_t)n);
    n += some > 0 ? some : 0;
  }
  close(fd);
  RS_TRY(status);
  while (n > 0 && (text[n - 1] == '\n' || text[n - 1] == '\r'))
    n--;
  if (some < 0 || n == 0 || n >= (ssize_t)size || memchr(text, '\0', (size_t)n) != NULL ||
      memchr(text, '\n', (size_t)n) != NULL)
    return rs_error(RESHARD_ERROR_INVALID, "RESHARD_SECRET_FILE=%s: one line of 1 to %zu characters is expected", path,
                    size - 1);
  memcpy(out, text, (size_t)n);
  out[n] = '\0';
  return RESHARD_SUCCESS;
}

static reshard_status read_secret(reshard_rendezvous *r) {
  const char *text = getenv("RESHARD_SECRET"), *path = getenv("RESHARD_SECRET_FILE");
  if (text != NULL && path != NULL)
    return rs_error(RESHARD_ERROR_INVALID, "RESHARD_SECRET and RESHARD_SECRET_FILE are both set");
  if (path != NULL)
    return read_secret_file(path, r->secret, sizeof r->secret);
  if (text != NULL && *text == '\0') /* as where a command that was to give it has failed */
    return rs_error(RESHARD_ERROR_INVALID, "RESHARD_SECRET is set, and empty");
  return text != NULL ? read_text("RESHARD_SECRET", r->secret, sizeof r->secret) : RESHARD_SUCCESS;
}

reshard_status reshard_rendezvous_from_environment(reshard_rendezvous *rendezvous) {
  const char *const slurm[] = {"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", NULL};
  RS_TRY(RS_GIVEN("reshard_rendezvous_from_environment", rendezvous));
  reshard_rendezvous r = {.size = RESHARD_RENDEZVOUS_INIT, .n = 1, .local_n = 1};
  RS_TRY(RS_SIZED(reshard_rendezvous, rendezvous));
  RS_TRY(check_pair("RANK", "WORLD_SIZE"));
  if (getenv("RANK") != NULL)
    RS_TRY(read_torchrun(&r));
  else if (getenv("SLURM_STEP_ID") != NULL && getenv("SLURM_PROCID") != NULL && first_set(slurm) != NULL)
    RS_TRY(read_slurm(&r));
  RS_TRY(rs_environment_number("RESHARD_TIMEOUT_MS", &r.timeout_ms));
  RS_TRY(read_secret(&r));
  *rendezvous = r;
  return RESHARD_SUCCESS;
}
