"""Echo for Mosec (https://mosecorg.github.io/mosec): `mosec_echo.py BATCH --port P`, /inference."""

import sys
from typing import Any

from mosec import Server, Worker

Body = dict[str, Any]


class Single(Worker):
    """Requests, one at a time, the default."""

    def forward(self, data: Body) -> Body:
        """Echo."""
        return {"predictions": data["instances"]}


class Batched(Worker):
    """Its dynamic batching: a batch is a list."""

    def forward(self, data: list[Body]) -> list[Body]:
        """Echo each."""
        return [{"predictions": one["instances"]} for one in data]


if __name__ == "__main__":
    batch = int(sys.argv.pop(1))
    server = Server()
    if batch > 1:
        server.append_worker(Batched, num=1, max_batch_size=batch, max_wait_time=1)
    else:
        server.append_worker(Single, num=1)
    server.run()
