/* End of a test of the virtual GPU that expects reports. */
#ifndef VG_EXPECT_REPORTS_H
#define VG_EXPECT_REPORTS_H

#include "support/fixtures/case.h"
#include "virtual_gpu.h"

/* Ends the machine, and fails the test unless there are n reports, each with all of the words. */
static inline void expect_reports(int n, const char *words) {
  int all = vg_end();
  if (all != n || vg_reports_with(words) != n) {
    for (int i = 0; i < all; i++)
      print_message("%s\n", vg_report(i));
    fail_msg("%d reports, %d of them with '%s': expected %d", all, vg_reports_with(words), words, n);
  }
}

#endif
