"""A plugin of pytest: keeps the name of the test that runs in the file FLASHWAVE_CURRENT_TEST, so that whoever finds the
process dead of a signal can say which test it was."""

import os

_PATH = os.environ.get("FLASHWAVE_CURRENT_TEST")


def pytest_runtest_logstart(nodeid, location):
    if _PATH:
        with open(_PATH, "w") as file:
            file.write(nodeid)
