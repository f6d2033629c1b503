"""For all tests."""

import signal


def pytest_configure() -> None:
    """A shell starts what it puts into the background with Ctrl-C ignored, and so would be all daemons of the tests."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
