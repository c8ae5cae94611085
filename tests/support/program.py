"""`roma device` as a user starts it."""

import asyncio
import re
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


class Program:
    """A worker of the SavedModels in a folder, with one run of each for its profile."""

    def __init__(self, saved, port, *options):
        self._command = [sys.executable, "-m", "roma", "device", "--models", str(saved)]
        self._command += ["--port", str(port), "--profile-runs", "1", *options]
        self.process = None

    async def start(self):
        await asyncio.to_thread(self._start)

    def _start(self):
        self.process = subprocess.Popen(self._command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
        assert any(re.match("roma device: ready on", line) for line in self.process.stderr)

    def end(self, number=signal.SIGTERM):
        if self.process is not None:
            self.process.send_signal(number)
            self.process.communicate(timeout=60)
            self.process = None
