"""`roma init` without a measurement: what it says of the file that it wrote."""

from typer.testing import CliRunner

from roma.cli import init_command
from roma.cli.app import app
from roma.config.profile import ModelProfile, Point


def test_what_to_type_next_is_quoted_for_a_shell(tmp_path, monkeypatch):
    async def measured(*_):
        point = Point(cores=1, batch=1, cost=0.001, response_time=0.002, requests=10)
        return ModelProfile(cost=0.001, points=(point,))

    monkeypatch.setattr(init_command, "_measured", measured)
    (tmp_path / "m" / "1").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["init", "m", "--out", "my models.yaml"])
    assert done.exit_code == 0, done.output
    assert "`roma config check 'my models.yaml'`" in done.output
    assert "`roma up 'my models.yaml'`" in done.output
    plain = CliRunner().invoke(app, ["init", "m"])
    assert "`roma up roma.yaml`" in plain.output
