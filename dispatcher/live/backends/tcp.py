"""Reads the kernel's information about a lost connection."""

import socket
import struct
from typing import Any, Final

_BYTES_ACKED: Final = 120
"""Offset of `tcpi_bytes_acked` in Linux's struct tcp_info: bytes acknowledged by the other kernel,
plus one for the SYN (RFC 4898, tcpEStatsAppHCThruOctetsAcked)."""

_BYTES_SENT: Final = 200
"""Offset of `tcpi_bytes_sent`, which includes retransmissions; `tcpi_bytes_retrans` follows."""

_SIZE: Final = 216


def is_unreceived(sock: Any, written: int, error: Exception | None) -> bool:
    """Return True if the end of the written bytes certainly never reached the other program.

    `written` is the number of bytes since the connection was made. `error` is what ended it, None
    for a FIN. A request whose end is missing was not executed. In doubt, and where the system gives
    no information, it counts as received.
    """
    is_reset = isinstance(error, ConnectionResetError)
    if error is not None and not is_reset and not isinstance(error, BrokenPipeError):
        return False
    try:
        if sock.family == socket.AF_UNIX:  # closed with unread data, which includes the end
            return error is not None
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _SIZE)
    except (AttributeError, OSError):
        return False
    if len(info) < _SIZE:
        return False
    if is_reset:
        # A reset carries no acknowledgement: sent bytes may have been read a moment ago.
        sent, again = struct.unpack_from("=QQ", info, _BYTES_SENT)
        return bool(sent - again < written)
    # A FIN acknowledges all bytes before it; EPIPE is a reset behind a FIN, or a refused write.
    (acked,) = struct.unpack_from("=Q", info, _BYTES_ACKED)
    return bool(acked - 1 < written)
