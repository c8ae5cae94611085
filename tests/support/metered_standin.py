"""The stand-in model server of `standin.py` that also reports the CPU accounting of its cgroup.

For pods with this checkout inside: each request computes for `WORK` core-seconds. It begins to
listen `LOADS` seconds after its start, and ends at once when told to, with what it computes then.
"""

import os
import signal
import time
from dataclasses import asdict
from http.server import ThreadingHTTPServer

from roma.kubernetes.pods import CPU_PATH
from supervisor.cgroups import own_group
from tests.support import standin


class MeteredHandler(standin.Handler):
    """Answers as the stand-in, and to CPU_PATH as ROMA's own model server."""

    def do_GET(self):
        if self.path == CPU_PATH:
            self.answer(asdict(own_group().read()))
        else:
            super().do_GET()


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    time.sleep(float(os.environ.get("LOADS", "0")))
    ThreadingHTTPServer(("0.0.0.0", 8501), MeteredHandler).serve_forever()
