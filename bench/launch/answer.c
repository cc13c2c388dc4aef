/* A thread that answers SIGUSR1: it tells on standard error where the ranks of this process are. */
#include "bench/launch/session.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

/* Ranks of one communicator in this process tell of each other; others are asked one by one. */
static void print_reports(const session *s) {
  if (s->comms == NULL)
    fprintf(stderr, "reshard: no communicator yet\n"); /* and perhaps no number of this process */
  for (int64_t i = 0; s->comms != NULL && i < (strcmp(s->comm, "local") == 0 ? 1 : s->locals); i++) {
    size_t needed = 0;
    (void)reshard_comm_report(s->comms[i], 0, NULL, 0, &needed);
    char *text = calloc(2, needed); /* it may have grown */
    if (text != NULL && reshard_comm_report(s->comms[i], 0, text, 2 * needed, NULL) == RESHARD_SUCCESS)
      fprintf(stderr, "reshard: process %lld: %s", (long long)s->processes.me, text);
    free(text);
  }
}

static void *answer(void *user) {
  session *s = user;
  sigset_t asked;
  int signal;
  sigemptyset(&asked);
  sigaddset(&asked, SIGUSR1);
  while (sigwait(&asked, &signal) == 0) {
    pthread_mutex_lock(&s->asking);
    bool over = s->over;
    if (!over)
      print_reports(s);
    pthread_mutex_unlock(&s->asking);
    if (over)
      return NULL;
  }
  return NULL;
}

void session_answer(session *s) {
  sigset_t asked;
  sigemptyset(&asked);
  sigaddset(&asked, SIGUSR1);
  pthread_mutex_init(&s->asking, NULL);
  pthread_sigmask(SIG_BLOCK, &asked, NULL); /* here, and in threads that are started later */
  s->answers = pthread_create(&s->answerer, NULL, answer, s) == 0;
}

void session_silence(session *s) {
  pthread_mutex_lock(&s->asking);
  s->over = true;
  pthread_mutex_unlock(&s->asking);
  if (s->answers) {
    pthread_kill(s->answerer, SIGUSR1);
    pthread_join(s->answerer, NULL);
  }
  pthread_mutex_destroy(&s->asking);
}
