"""The way to an engine behind ssh: a stand-in for ssh makes the socket and stays."""

import os

from supervisor.broker.tunnel import tunnel

SSH = """#!/bin/sh
echo $$ > {0}/pid
for word; do case $word in -L*) word=${{word#-L}}; touch "${{word%%:*}}"; esac; done
exec sleep 1000
"""


async def test_ctrl_c_in_a_terminal_does_not_end_it_before_the_containers_are_removed(
    tmp_path, monkeypatch
):
    """The kernel sends SIGINT to the whole process group in the foreground."""
    ssh = tmp_path / "ssh"
    ssh.write_text(SSH.format(tmp_path))
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    async with tunnel("far") as way:
        assert way.down == ""
        assert os.getpgid(int((tmp_path / "pid").read_text())) != os.getpgid(0)
