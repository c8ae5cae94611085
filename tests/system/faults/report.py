"""`python -m tests.system.faults.report`: run every fault and write docs/faults.md (about three minutes)."""

import asyncio
import sys
import tempfile
from pathlib import Path

from tests.system.faults.fault_runner import CALM, HARM, RATE, Row, drive
from tests.system.faults.matrix import MATRIX

PAGE = Path(__file__).parents[3] / "docs/faults.md"

HEAD = f"""\
# Faults, and what comes of them

Written by `make faults`: a real `roma dispatcher`, and a `roma supervisor` where one is concerned,
in front of stand-in model servers that write down the number of each request they compute. An
open-loop load of {RATE:g} req/s goes on before, during and after each fault. `tests/system/faults` runs the
same in CI and fails unless, in every line,

- each request sent has exactly one end, and the dispatcher's `/metrics` counted the same ends as the
  clients (where the gateway itself was not restarted);
- no request was computed twice, and whoever was answered got the answer to his own request;
- refusals and failures are of the stated kinds, and failures no more than stated;
- {CALM} requests in a row are answered afterwards.

*Recovery* is the time from the end of the fault (a program is started again or goes on, packets pass)
until the last request had ended that was not answered within {HARM:g} s. A program's
own start is part of it. It is measured here, and compared nowhere: tests count requests.

What no test here can do: netem, the kernel's own faulty network, is no part of many kernels; a link
through two TUN devices stands for it (`tests/support/lossy_link.py`). The wall clock is shifted for the
programs alone (`tests/support/wallclock.c`, preloaded), for others use this machine's. No steady
clock leaps in Linux; a paused program sees one that does.

| fault | what is done | outcome stated | sent | failed | refused | recovery |
|---|---|---|---|---|---|---|
"""

TAIL = """
More, with whole deployments by `roma up` (restarts, cgroups, safe shares):
`tests/system/faults/test_faults_live.py`; with containers and an engine that hangs: `tests/system/docker`.

## In a cluster
`make kubernetes` does these to a real API server, kubelet and containerd (`tests/system/kubernetes`), and to a fake API server
what a real one does not do on request (`tests/protocol/kubernetes`). In each, every request has exactly one end.

| fault | what is done, under load where requests are named | outcome stated |
|---|---|---|
| pod deleted | one of two, at 40 req/s | no request fails; the pod that replaces it is found and served |
| container killed | SIGKILL to its processes, at 40 req/s | what it computed fails (two requests at most); it serves again, and is controlled |
| containerd killed | SIGKILL, started again, at 40 req/s | no request fails |
| out of memory | memory used up from outside until the kernel ends the server, at 40 req/s | what it computed fails (at most 2); one restart, `OOMKilled`; its limit is not raised before it runs again |
| node drained | `kubectl drain`, then `uncordon`, at 40 req/s | what cannot be served is refused; the new pods are found and served |
| node gone, or without its labels | removed while a request runs on it (fake) | its request is answered; the node that replaces it is served at once, and controlled |
| kubelet killed | SIGKILL while a limit changes, started again | the API has the limit, the kernel gets it when the kubelet is back; no container restarts |
| API server killed | SIGKILL, started again | the known pods stay and are served, "holding" is shown; afterwards limits move again |
| leading supervisor killed | SIGKILL, at 40 req/s | the other one takes the Lease and goes on from the cores in force; no request fails |
| Lease deleted | with its holder, and alone | the holder makes it again at once; without it, another takes it after 3 s |
| API server refuses | 401, 403, 409, 422, 429, 500, 503 (fake) | told once in its words; passing ones are tried at the next tick, a refused value after 30 |
| limit moved by somebody else | as a VerticalPodAutoscaler does (fake) | said once for each move, and set again at the same tick |
| watch too old, gap | ERROR 410, versions that no watch saw (fake) | everything is listed again; no pod is lost or served after its end |
| API server does not answer | calls of 30 s (fake) | no tick waits for longer than a third of its period |
"""


def line(row: Row) -> str:
    """Return a row of the table."""
    fault = row.fault
    cells = (
        fault.name,
        fault.injection,
        fault.outcome,
        row.sent,
        row.failed,
        row.refused,
        f"{row.recovery:.2f} s",
    )
    return "| " + " | ".join(map(str, cells)) + " |\n"


async def main() -> None:
    lines = []
    for fault in MATRIX:
        with tempfile.TemporaryDirectory(prefix="roma-fault-") as directory:
            lines.append(line(await drive(fault, Path(directory))))
        sys.stdout.write(lines[-1])
        sys.stdout.flush()
    PAGE.write_text(HEAD + "".join(lines) + TAIL)


if __name__ == "__main__":
    asyncio.run(main())
