"""Runs one file of tests under pytest, in a directory that goes with it. usage: run.py FILE"""

import os
import sys
import tempfile

try:
    import ml_dtypes  # noqa: F401
    import pytest
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)


class Passed:
    """Counts what passed: a file of which all was skipped is a skip, not a success."""

    count = 0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.count += report.when == "call" and report.passed


passed = Passed()
with tempfile.TemporaryDirectory() as scratch:
    # In place of a name of the user's, which would stay.
    where = ["--basetemp", os.path.join(scratch, "of_pytest"), "--rootdir", os.path.dirname(sys.argv[1])]
    status = pytest.main(["-q", "-rs", "-p", "no:cacheprovider", *where, sys.argv[1]], plugins=[passed])
sys.exit(77 if status in (0, pytest.ExitCode.NO_TESTS_COLLECTED) and passed.count == 0 else status)
