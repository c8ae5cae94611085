"""The `control` section of roma.yaml: control law, periods, sharing and the supervisors' ports."""

from typing import Annotated, Final

from pydantic import Field

from roma.config.names import LawName
from roma.config.security import PeerUrl, TlsConfig
from roma.config.workers import ControlPeriod, Host, Port, Seconds
from roma.config.yaml_file import FilePath, Section
from roma.domain.model import Sharing

LATE_SHARE: Final = "late_share"
DEFAULT_LAW: Final = LATE_SHARE
"""Default control law."""

LEAST_MINIMUM, DEFAULT_MINIMUM = 0.02, 0.1
"""Default cores that an idle executable keeps, with `late_share` and with other laws."""

SHORT_PERIOD, LONG_PERIOD = 0.2, 1.0
"""Default control periods in seconds, where a quota is a cgroup file and elsewhere."""


class ControlConfig(Section):
    """The control loop."""

    law: LawName = DEFAULT_LAW
    """Control law. `late_share` holds the share of late requests at its budget (decision 20). `pi`
    takes gains from `roma design tune`. The others are baselines: the ROMA paper to the letter
    (`paper`, `rules`, `static`), Autothrottle's `captain`, HPA's `usage`."""
    gains: dict[str, float | str] = Field(default_factory=dict)
    """Gains of the law by name, e.g. {error: log, K: 0.5, a: 0.8} for pi; defaults otherwise."""
    gains_file: FilePath | None = None
    """A file written by `roma design tune`, relative to roma.yaml; `gains` take precedence."""
    period: ControlPeriod | None = None
    """Control period in seconds. Default with `late_share`: 0.2 where a quota is a cgroup file,
    which costs 0.1 core-ms a change, and 1 through the Docker engine, where a change costs 12.
    Default with other laws: 1, the period that their gains assume. `workers[].period` sets it for
    one worker."""
    window: Seconds | None = None
    """Window of the response-time statistics in seconds; default: the longest control period, and
    at least 1 with `late_share`."""
    sharing: Sharing = Sharing.MAX_MIN
    """Rule for sharing a worker's cores when demands exceed them. `max_min`: a demand below the
    fair share is met in full; `proportional`: the same part of each (η·u, paper Alg. 2)."""
    gamma: Annotated[float, Field(ge=0, le=1)] = 0.0
    """γ: share of the spare cores handed out on top of the demands (paper Alg. 2)."""
    cfs_period: Annotated[float, Field(ge=0.01, le=1)] = 0.1
    """Period of the CPU quota in seconds, at most the control period. A model that has used up its
    quota stalls until the next period."""
    cfs_burst: Annotated[float, Field(ge=0, le=1)] = 1.0
    """Most unused quota that a period inherits from earlier ones, as a share of the quota; 0 turns
    this off. At 1 a model may use up to twice its quota in one period."""
    dry_run: bool = False
    """Compute and log allocations, apply none."""
    host: Host = "127.0.0.1"
    port: Port = 8502
    """Port at which the first worker's supervisor reports its state; further workers count up from
    it."""
    tls: TlsConfig | None = None
    """Certificate of the supervisors' listeners; default: no TLS."""
    insecure: bool = False
    """Accept connections there from other machines although a token is missing."""
    dispatchers: tuple[PeerUrl, ...] = ()
    """Admin addresses of the dispatchers; default: the gateway of this file."""
    decision_log: FilePath | None = None
    """Directory for the decision log, relative to roma.yaml: every decision, and a record per model
    and second, as lines of JSON for `roma report`. At most two files of 64 MiB per worker. Default:
    none."""
