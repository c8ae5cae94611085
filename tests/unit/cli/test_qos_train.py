"""`roma qos train`: what its options refuse, before anything is learned."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from roma.cli.app import app
from roma.cli.qos_command import train
from roma.domain.errors import ConfigError


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"devices": "v100"}, r"devices = v100: must be of g2, p2, each once, like g2\*5,p2\*5"),
        ({"devices": "p2,p2"}, "devices = p2,p2: must be"),
        ({"devices": "p2*0"}, r"devices = p2\*0: must be"),
        ({"devices": "p2*101"}, r"devices = p2\*101: must be ≤ 100 together"),
        ({"hours": "12-9"}, "hours = 12-9: must be half an hour of a day or more, like 9-12"),
        ({"hours": "9-25"}, "hours = 9-25: must be"),
        (
            {"devices": "p2*5", "rate": 0.4},
            "rate = 0.4: must be ≥ 0.48 where devices learn from 60 s",
        ),
        (
            {"out": Path("none/policy.json")},
            "out = none/policy.json: must be a file in a directory",
        ),
        ({"out": Path("/")}, "out = /: must be a file in a directory that exists"),
    ],
)
def test_options_that_are_wrong_are_one_line(options, message):
    told = {"out": Path("x"), "devices": "p2", "hours": "9-12", "rate": None, **options}
    with pytest.raises(ConfigError, match=message):
        train(**told)


@pytest.mark.parametrize("rate", ["0.01", "1e9", "inf", "nan"])
def test_a_rate_that_no_devices_have_is_refused(rate):
    assert CliRunner().invoke(app, ["qos", "train", "x", "--rate", rate]).exit_code == 2
