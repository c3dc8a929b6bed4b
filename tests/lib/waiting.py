"""Waiting for conditions, always with an end."""
import contextlib
import faulthandler
import os
import sys
import threading
import time


class TookTooLong(Exception):
    pass


def wait_until(condition, seconds, what):
    """Returns the first true value of condition().  Raises TookTooLong after so many seconds."""
    end = time.monotonic() + seconds
    pause = 0.001
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise TookTooLong(f"waited {seconds} s for {what}")
        time.sleep(pause)
        pause = min(pause * 1.5, 0.05)


class Watchdog:
    """Ends what hangs.

    A call into a hung mount cannot be interrupted, but it ends when the mount's daemon dies.  So when
    a guarded block takes too long, `rescue` is called on a thread of its own to kill the daemons; if
    that does not help within half a minute, the whole run is ended (the keeper then cleans up)."""

    def __init__(self, rescue):
        self.rescue = rescue

    @contextlib.contextmanager
    def limit(self, seconds, what):
        done = threading.Event()
        state = {"expired": False}

        def watch():
            if done.wait(seconds):
                return
            state["expired"] = True
            print(f"\n{what}: still not done after {seconds} s, stuck here:", file=sys.stderr, flush=True)
            faulthandler.dump_traceback(sys.stderr, all_threads=True)
            self.rescue(what)
            if not done.wait(30):
                print(f"{what}: does not end; giving up on the whole run", file=sys.stderr, flush=True)
                os._exit(3)

        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        try:
            yield state
        finally:
            done.set()
            thread.join()
        if state["expired"]:
            raise TookTooLong(f"{what} took over {seconds} s")
