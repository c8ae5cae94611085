"""A model server that writes down the number of each request it computes, and can be made to fail.

    python -m tests.support.recording_server PORT LOG

It speaks TensorFlow Serving's REST API for bodies like {"instances": [17]} or {"instances": ["a"]}
and answers {"predictions": [17]}. Each number becomes a line of LOG before it is answered. Lines on
standard input change how it behaves from then on:

    answer            as it should; the first behaviour
    garbage           bytes that are no HTTP
    error             status 500
    silence           nothing, ever
    drip              an answer of one byte per second
    hang up           the connection closed instead of an answer
    twice             two answers to one request, in one piece
    burn SECONDS      compute for so many core-seconds per request; the first is 0
    wait SECONDS      wait so long per request; the first is 0.004
    eat               take memory until the kernel kills the process
    close / open      stop listening and drop every connection, listen again
    drop              drop every connection
"""

import asyncio
import contextlib
import json
import os
import sys
import time

AVAILABLE = json.dumps(
    {"model_version_status": [{"version": "1", "state": "AVAILABLE", "status": {}}]}
).encode()


class RecordingServer:
    """The state of the program; `command` takes a line."""

    def __init__(self, port, log):
        self.port, self.log = port, log
        self.how, self.burn, self.wait = "answer", 0.0, 0.004
        self.listener = None
        self.open = set()

    async def command(self, line):
        match line.split():
            case ["burn", seconds]:
                self.burn = float(seconds)
            case ["wait", seconds]:
                self.wait = float(seconds)
            case ["open"]:
                self.listener = await asyncio.start_server(
                    self.serve, "127.0.0.1" if not os.environ.get("HOST") else os.environ["HOST"],
                    self.port,
                )  # fmt: skip
            case ["close"]:
                self.listener.close()
                self.drop()
            case ["drop"]:
                self.drop()
            case ["eat"]:
                eaten = []
                while True:
                    eaten.append(os.urandom(1 << 20))
            case _:
                self.how = line

    def drop(self):
        for writer in list(self.open):
            writer.transport.abort()

    async def serve(self, reader, writer):
        self.open.add(writer)
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                while True:
                    await self.one(reader, writer)
        finally:
            self.open.discard(writer)
            writer.transport.abort()

    async def one(self, reader, writer):
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = head.split("\r\n")[:-2]
        headers = dict(line.lower().split(": ", 1) for line in lines)
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        if first.startswith("GET "):
            return self.send(writer, 200, AVAILABLE)
        try:
            (number,) = json.loads(body)["instances"]
        except (ValueError, KeyError, TypeError, RecursionError):
            number = None  # not for us to judge
        else:
            os.write(self.log, f"{number}\n".encode())
        await asyncio.sleep(self.wait)
        end = time.thread_time() + self.burn
        while time.thread_time() < end:
            pass
        return await self.end(writer, json.dumps({"predictions": [number]}).encode())

    async def end(self, writer, body):
        match self.how:
            case "answer":
                self.send(writer, 200, body)
            case "twice":
                # At once: nobody can tell a second one that comes later from the next request's.
                self.send(writer, 200, body, times=2)
            case "error":
                self.send(writer, 500, b'{"error": "as told"}')
            case "garbage":
                writer.write(b"\x00\xff not HTTP\r\n\r\n")
            case "hang up":
                raise ConnectionError
            case "silence":
                await asyncio.sleep(3600)
            case "drip":
                for byte in b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body):
                    writer.write(bytes([byte]))
                    await asyncio.sleep(1)
        await writer.drain()

    def send(self, writer, status, body, times=1):
        head = b"HTTP/1.1 %d Said\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        writer.write((head % (status, len(body)) + body) * times)


async def main(port, log):
    server = RecordingServer(port, os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND))
    await server.command("open")
    told = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(told), sys.stdin)
    while line := (await told.readline()).decode().strip():
        await server.command(line)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), sys.argv[2]))
