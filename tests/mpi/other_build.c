/* libreshard_mpi refuses a libreshard of another build. This program has the build's name in its place: the names of a
 * program go before those of its libraries. */
#include <reshard/mpi.h>

#include <stdio.h>
#include <string.h>

const char *rs_build(void);
const char *rs_build(void) { return "0.0.9, build of another day"; }

int main(void) {
  int not_looked_at = 0;
  reshard_comm comm = NULL;
  reshard_status status = reshard_comm_from_mpi(&not_looked_at, NULL, 0, &comm);
  const char *said = reshard_last_error(), *own = "libreshard_mpi is " RESHARD_VERSION_STRING ", build ";
  printf("%s: %s\n", reshard_status_string(status), said);
  return !(status == RESHARD_ERROR_UNSUPPORTED && comm == NULL && strncmp(said, own, strlen(own)) == 0 &&
           strstr(said, "and libreshard is 0.0.9, build of another day") != NULL);
}
