"""A model server with given service times: TensorFlow Serving's REST API on the standard library.

It runs inside containers that have Python and nothing else, as a CPU or (with SERIAL) a GPU model
server. Options by environment: PORT; WORK, core-seconds that a request computes; SLEEP, seconds it
waits instead; SERIAL, one request at a time; BURN, threads that compute all the time. A request
that says "eat" takes memory until the kernel kills the process.
"""

import hashlib
import json
import os
import threading
import time
from contextlib import nullcontext
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

WORK = float(os.environ.get("WORK", "0"))
SLEEP = float(os.environ.get("SLEEP", "0"))
TURN = threading.Lock() if os.environ.get("SERIAL") else nullcontext()
BLOCK = b"x" * (1 << 20)
EATEN = []
AVAILABLE = {"model_version_status": [{"version": "1", "state": "AVAILABLE", "status": {}}]}


def burn(work):
    """Compute for `work` core-seconds; hashing large blocks leaves other threads running."""
    end = time.thread_time() + work
    while time.thread_time() < end:
        hashlib.sha256(BLOCK).digest()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.answer(AVAILABLE)

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        while b"eat" in body:
            EATEN.append(bytearray(os.urandom(1 << 20)))
        with TURN:
            time.sleep(SLEEP)
            burn(WORK)
        self.answer({"predictions": [[1.0]]})

    def answer(self, body):
        data = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass


if __name__ == "__main__":
    for _ in range(int(os.environ.get("BURN", "0"))):
        threading.Thread(target=burn, args=(float("inf"),), daemon=True).start()
    ThreadingHTTPServer(("0.0.0.0", int(os.environ.get("PORT", "8501"))), Handler).serve_forever()
