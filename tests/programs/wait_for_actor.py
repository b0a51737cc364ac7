"""A loop that waits for an actor of Ray, which computes in another process. Prints the thread that
waits and the one that works; or why Ray did not start: it gives itself 30 s."""

import os
import sys
import threading
import time

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

import numpy as np
import ray

CALLS = 40
TOOK_S = 0.02


@ray.remote
class Maker:
    """Makes arrays that are too large to be sent with the answer."""

    def make(self) -> np.ndarray:
        """One that takes a while."""
        end = time.monotonic() + TOOK_S
        while time.monotonic() < end:
            pass
        return np.zeros(100_000, np.float32)

    def thread(self) -> int:
        """Which makes them."""
        return threading.get_native_id()


if __name__ == "__main__":
    try:
        ray.init(
            num_cpus=1,
            include_dashboard=False,
            logging_level="CRITICAL",
            object_store_memory=100 << 20,
        )
    except Exception as error:  # Ray raises no other type
        if "timed out during startup" not in str(error):
            raise
        sys.stdout.write(f"{error}\n")
        sys.exit()
    maker = Maker.remote()
    thread = ray.get(maker.thread.remote())
    for _ in range(CALLS):
        ray.get(maker.make.remote())
    ray.shutdown()
    sys.stdout.write(f"{threading.get_native_id()} {thread}\n")
