"""The probe site's `manage.py`: what the tests start as real processes."""

import ctypes
import os
import resource
import signal
import sys

#: `prctl` option: the signal that this process gets when its parent dies.
PR_SET_PDEATHSIG = 1

if __name__ == "__main__":
    # A test run that is killed takes its workers along, and a crash on purpose leaves no core file.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.environ["DJANGO_SETTINGS_MODULE"] = "tests.acceptance.harness.settings"
    from django.core.management import execute_from_command_line

    execute_from_command_line(sys.argv)
