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

with tempfile.TemporaryDirectory() as scratch:
    # In place of a name of the user's, which would stay.
    where = ["--basetemp", os.path.join(scratch, "of_pytest"), "--rootdir", os.path.dirname(sys.argv[1])]
    status = pytest.main(["-q", "-p", "no:cacheprovider", *where, sys.argv[1]])
sys.exit(status)
