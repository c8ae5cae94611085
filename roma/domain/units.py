"""The only place where units are converted.

Inside ROMA, time is a float in seconds and CPU is a float in cores. Every other unit lives at a
border (kernel files, configuration, HTTP headers), carries its unit in its name and is converted
here.
"""

import math

US_PER_S = 1_000_000
NS_PER_S = 1_000_000_000
MS_PER_S = 1_000

MIN_QUOTA_US = 1_000
"""The kernel refuses a CFS quota below 1 ms (`min_cfs_quota_period` in kernel/sched/core.c)."""


def period_us(period: float) -> int:
    """Return a CFS period in microseconds."""
    return round(period * US_PER_S)


def quota_us(cores: float, period: float) -> int:
    """Return the CFS quota, in microseconds per `period` seconds, that grants `cores`.

    Rounded down, so that quotas never add up to more than the cores they represent, but never below
    the kernel's minimum of 1 ms.
    """
    # 1e-6 only undoes binary representation: 0.29 cores of 100 ms are 29000 µs, not 28999.
    return max(MIN_QUOTA_US, math.floor(cores * period * US_PER_S + 1e-6))


def burst_us(quota: int, share: float) -> int:
    """Return a CFS burst in microseconds: the `share` of a quota that a period may inherit.

    At most the quota itself: the kernel refuses more.
    """
    return min(quota, math.floor(quota * share + 1e-6))


def cores_from_quota(quota: int, period: int) -> float:
    """Return the cores granted by a quota and a period given in the same unit."""
    return quota / period


def min_cores(period: float) -> float:
    """Return the fewest cores a quota of `period` seconds can express."""
    return MIN_QUOTA_US / period_us(period)


def seconds_from_ns(nanoseconds: int) -> float:
    """Return nanoseconds (cpuacct.usage) as seconds."""
    return nanoseconds / NS_PER_S


def seconds_from_us(microseconds: int) -> float:
    """Return microseconds (cpu.stat of cgroup v2) as seconds."""
    return microseconds / US_PER_S


def milliseconds(seconds: float) -> float:
    """Return seconds as milliseconds, for output that people read."""
    return seconds * MS_PER_S


def retry_after_s(seconds: float) -> int:
    """Return a Retry-After header's value: whole seconds, at least 1 (RFC 9110 §10.2.3)."""
    return max(1, math.ceil(seconds))
