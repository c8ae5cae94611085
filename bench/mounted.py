"""`python -m bench.mounted FILE`: an aiohttp program that is nothing but the inference endpoint."""

import sys
from pathlib import Path

import uvloop
from aiohttp import web

import roma
from roma.config import schema


def main() -> None:
    """Serve the endpoint of a roma.yaml at its `gateway.port`."""
    config = schema.load(Path(sys.argv[1]))
    app, gateway = roma.aiohttp_app(config), config.gateway
    web.run_app(
        app,
        host=gateway.host,
        port=gateway.port,
        print=None,
        access_log=None,
        loop=uvloop.new_event_loop(),
    )


if __name__ == "__main__":
    main()
