"""A server's handler in front of the real one: a test overrides what it looks at."""

from dispatcher.live.http.handler import Handler


class Passing(Handler):
    """Passes everything on."""

    def __init__(self, handler):
        self.handler = handler

    def check_before_body(self, request):
        return self.handler.check_before_body(request)

    def handle(self, request, connection):
        return self.handler.handle(request, connection)

    def error(self, request, status, message):
        return self.handler.error(request, status, message)
