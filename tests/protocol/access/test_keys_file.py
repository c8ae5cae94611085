"""The keys file: what it says, what is wrong with it, and that nothing of it is ever shown."""

import contextlib
import json
import os
import re
import sys
from datetime import UTC, datetime
from pathlib import Path
from subprocess import PIPE, Popen

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.live.auth.access import opened
from roma.config import file_edit
from roma.config.gateway import GatewayConfig
from roma.domain.errors import ConfigError
from roma.domain.model import Priority
from roma.security import api_keys

TOKEN = "roma_abcdefgh_" + "s3cretZZZZ" * 4 + "xyz"
HASH = api_keys.hashed(TOKEN)
FORM = re.compile(r"roma_([a-z]{8})_[A-Za-z0-9_-]{43}")
ROOT = Path(__file__).parents[3]


def parsed(text):
    return api_keys.parse(text, source="keys.yaml")


def test_what_a_key_says():
    found = parsed(
        f"""
keys:
  abcdefgh:
    name: checkout
    hash: {HASH}
    models: [digits, photos]
    rate: 2.5
    concurrency: 4
    expires: 2027-01-31
  reports: {{certificate: r.example, models: "*", priority: batch, expires: "2027-01-31T12:00:00+02:00"}}
"""
    ).keys
    key = found["abcdefgh"]
    assert (key.name, key.models, key.rate) == ("checkout", ("digits", "photos"), 2.5)
    assert key.effective_burst == 3
    assert key.expires == datetime(2027, 1, 31, tzinfo=UTC)
    other = found["reports"]
    assert (other.models, other.priority) == ("*", Priority.LOW)
    assert other.expires == datetime(2027, 1, 31, 10, tzinfo=UTC)


@pytest.mark.parametrize(
    ("entry", "fault"),
    [
        ("{models: '*'}", "keys.abcdefgh.hash = …: must be set, or certificate in its place"),
        (f"{{hash: '{HASH}', certificate: c, models: '*'}}", "keys.abcdefgh.hash = …: must be set"),
        (f"{{hash: {TOKEN}, models: '*'}}", "keys.abcdefgh.hash = …: must be sha256: and 64 hex"),
        (f"{{hash: '{HASH}'}}", "keys.abcdefgh.models: missing"),
        (f"{{hash: '{HASH}', models: m}}", "keys.abcdefgh.models"),
        (f"{{hash: '{HASH}', models: [a, 's3cret*']}}", "models = …: must be names of models, or"),
        (f"{{hash: '{HASH}', models: '*', rate: 0}}", "keys.abcdefgh.rate = …: input should be gr"),
        (f"{{hash: '{HASH}', models: '*', burst: 2}}", "burst = …: must be absent without rate"),
        (f"{{hash: '{HASH}', models: '*', expires: soon}}", "must be a date or a time in ISO 8601"),
        (
            f"{{hash: '{HASH}', models: '*', token: {TOKEN}}}",
            "keys.abcdefgh.token = …: unknown key",
        ),
        (f"{{hash: '{HASH}', models: '*', {TOKEN}: 1}}", "keys.abcdefgh.… = …: unknown key"),
    ],
)
def test_a_fault_names_its_key_and_bound_and_shows_no_value(entry, fault):
    with pytest.raises(ConfigError) as caught:
        parsed(f"keys:\n  abcdefgh: {entry}\n")
    assert fault in str(caught.value)
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        f"keys: {{abcdefgh: {{hash: {TOKEN}",
        f"keys:\n\t{TOKEN}",
        f"{TOKEN}: 1\n{TOKEN}: 2",
        f"keys: !!int {TOKEN}",
        f"keys: {TOKEN}",
        f"- {TOKEN}",
        "",
    ],
)
def test_what_is_no_keys_file_is_refused_without_being_quoted(text):
    with pytest.raises(ConfigError) as caught:
        parsed(text)
    assert str(caught.value).startswith("keys.yaml: ")
    assert "s3cret" not in str(caught.value)
    assert caught.value.__cause__ is None  # a traceback would show it
    assert caught.value.__suppress_context__


def test_twins_are_refused():
    entry = f"{{hash: '{HASH}', models: '*'}}"
    with pytest.raises(ConfigError, match=r"keys\.abcdefgi\.hash = …: must be different from"):
        parsed(f"keys:\n  abcdefgh: {entry}\n  abcdefgi: {entry}\n")
    with pytest.raises(ConfigError, match=r"keys\.b\.certificate = …: must be different from"):
        parsed("keys: {a: {certificate: c, models: '*'}, b: {certificate: c, models: '*'}}")


def test_a_token_s_id_is_its_key():
    with pytest.raises(ConfigError, match=r"keys\.checkout-1 = …: must be eight letters"):
        parsed(f"keys: {{checkout-1: {{hash: '{HASH}', models: '*'}}}}")


@given(st.text())
def test_any_text_is_a_keys_file_or_a_config_error(text):
    with contextlib.suppress(ConfigError):  # and no other
        parsed(text)


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.dates(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)
FIELDS = ["name", "hash", "certificate", "models", "rate", "burst", "concurrency", "priority"]


@given(st.dictionaries(st.sampled_from([*FIELDS, "expires", "other"]), PLAIN))
def test_any_entry_is_a_key_or_a_config_error(entry):
    import yaml

    with contextlib.suppress(ConfigError):  # and no other
        parsed(yaml.safe_dump({"keys": {"abcdefgh": entry}}))


def test_tokens_have_the_form_and_are_all_different():
    ids = {api_keys.new_id() for _ in range(100)}
    tokens = {api_keys.new_token(id_) for id_ in ids}
    assert len(tokens) == len(ids) == 100
    assert all(FORM.fullmatch(token) for token in tokens)


def test_add_prints_the_token_once_and_keeps_its_hash(roma, tmp_path):
    file = tmp_path / "keys.yaml"
    done = roma("keys", "add", file, "checkout", "--model", "m", "--rate", "5")
    token = done.stdout.strip()
    assert done.stderr == ""
    assert FORM.fullmatch(token)
    assert file.stat().st_mode & 0o777 == 0o600
    assert token not in file.read_text()
    (key,) = api_keys.load(file).keys.values()
    assert key.hash == api_keys.hashed(token)
    assert [p.name for p in tmp_path.iterdir()] == ["keys.yaml"]  # nothing half written stays
    listed = roma("keys", "list", file).stdout
    assert "checkout" in listed
    assert "5 req/s" in listed
    assert key.hash[7:] not in listed
    as_json = roma("keys", "list", file, "--json").stdout
    (shown,) = json.loads(as_json)
    assert (shown["name"], shown["models"], shown["rate"]) == ("checkout", ["m"], 5)
    assert "hash" not in shown
    assert key.hash[7:] not in as_json


def test_what_people_wrote_stays(roma, tmp_path):
    file = tmp_path / "keys.yaml"
    file.write_text(
        f"# ours\nkeys:\n  abcdefgh:  # the first\n    {{hash: '{HASH}', models: '*'}}\n"
    )
    file.chmod(0o640)  # a group reads it
    assert roma("keys", "add", file, "other", "--model", "m").returncode == 0
    assert "# ours" in file.read_text()
    assert "# the first" in file.read_text()
    assert file.stat().st_mode & 0o777 == 0o640
    assert roma("keys", "revoke", file, "other").returncode == 0
    assert list(api_keys.load(file).keys) == ["abcdefgh"]


def test_a_link_stays_and_keys_added_at_once_are_all_there(roma, tmp_path):
    file, link = tmp_path / "there" / "keys.yaml", tmp_path / "keys.yaml"
    file.parent.mkdir()
    link.symlink_to(file)
    commands = [
        [sys.executable, "-m", "roma", "keys", "add", link, f"n{i}", "--model", "m"]
        for i in range(4)
    ]
    with contextlib.ExitStack() as stack:
        started = [stack.enter_context(Popen(c, stdout=PIPE, text=True)) for c in commands]
        tokens = [process.communicate()[0].strip() for process in started]
    assert [process.returncode for process in started] == [0] * 4
    hashes = {key.hash for key in api_keys.load(file).keys.values()}
    assert hashes == {api_keys.hashed(token) for token in tokens}
    assert roma("keys", "revoke", link, "n0").returncode == 0
    assert len(api_keys.load(file).keys) == 3
    assert link.is_symlink()
    assert [p.name for p in file.parent.iterdir()] == ["keys.yaml"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a file away")
def test_an_edited_file_keeps_its_owner_and_group(tmp_path):
    file = tmp_path / "keys.yaml"
    file.write_text("keys: {}\n")
    os.chown(file, 4321, 4322)
    file_edit.write(file, "keys:\n")
    assert (file.stat().st_uid, file.stat().st_gid) == (4321, 4322)


def test_a_link_to_itself_is_one_line(roma, tmp_path):
    link = tmp_path / "keys.yaml"
    link.symlink_to(link)
    assert roma("keys", "add", link, "n", "--model", "m").stderr == (
        f"{link}: cannot be written: its links form a circle\n"
    )


def test_what_would_be_wrong_is_not_written(roma, tmp_path):
    file = tmp_path / "keys.yaml"
    file.write_text(f"keys: {{abcdefgh: {{hash: '{HASH}', models: '*'}}}}\n")
    before = file.read_text()
    for arguments in (
        ("add", file, "x", "--model", "m", "--burst", "2"),
        ("add", file, "x y", "--model", "m"),
        ("add", file, "x", "--model", "m", "--expires", "soon"),
        ("add", file, "x", "--model", "m", "--expires", "2020-01-01"),
        ("revoke", file, "nobody"),
    ):
        done = roma("keys", *arguments)
        assert done.returncode == 2
        assert re.fullmatch(rf"{re.escape(str(file))}: .*\n", done.stderr)
        assert done.stdout == ""
        assert file.read_text() == before


def test_a_key_that_is_merged_in_is_not_said_to_be_revoked(roma, tmp_path):
    file = tmp_path / "keys.yaml"
    file.write_text(f"keys: {{<<: {{abcdefgh: {{hash: '{HASH}', models: '*'}}}}}}\n")
    assert list(api_keys.load(file).keys) == ["abcdefgh"]
    done = roma("keys", "revoke", file, "abcdefgh")
    bound = "must be written out to be edited, without a merge key"
    assert (done.returncode, done.stderr) == (2, f"{file}: keys: {bound}\n")
    assert done.stdout == ""


def test_a_key_that_is_over_already_is_not_added(roma, tmp_path):
    done = roma(
        "keys", "add", tmp_path / "keys.yaml", "x", "--model", "m", "--expires", "2020-01-01"
    )
    assert done.returncode == 2
    assert re.search(
        r"keys\.[a-z]{8}\.expires = 2020-01-01T00:00:00\+00:00: must be after now", done.stderr
    )
    assert not (tmp_path / "keys.yaml").exists()


async def test_a_key_that_is_over_is_named(roma, tmp_path, caplog):
    file = tmp_path / "keys.yaml"
    file.write_text(
        f"keys: {{abcdefgh: {{name: shop, hash: '{HASH}', models: '*', expires: 2020-01-01}},"
        " other: {certificate: r.example, models: '*', expires: 9000-01-01}}\n"
    )
    line = (
        f"{file}: keys.abcdefgh.expires = 2020-01-01T00:00:00+00:00: has expired: shop is refused"
    )
    async with opened(GatewayConfig(keys=file)):
        assert [record.getMessage() for record in caplog.records] == [f"gateway.keys: {line}"]
    assert "(expired)" in roma("keys", "list", file).stdout
    text = "models: {m: {sla: {response_time: 1}}}\n"
    text += "workers: [{backend: static, cores: 1, executables: [{url: 'http://h:1', model: m}]}]\n"
    (tmp_path / "roma.yaml").write_text(text + "gateway: {keys: keys.yaml}\n")
    checked = roma("config", "check", tmp_path / "roma.yaml")
    assert f"note: gateway.keys: {line}" in checked.stdout


def test_a_token_file_is_replaced_with_the_old_one_beside_it(roma, tmp_path):
    from roma.security import tokens

    file = tmp_path / "admin.token"
    assert roma("keys", "token", file).returncode == 0
    assert file.stat().st_mode & 0o777 == 0o600
    first = file.read_text().strip()
    assert "is there already" in roma("keys", "token", file).stderr
    assert file.read_text().strip() == first
    done = roma("keys", "token", file, "--replace")
    assert first not in done.stdout + done.stderr
    new, old = file.read_text().split()
    assert old == first != new
    found = tokens.read(file)
    assert found.matches(first)
    assert found.matches(new)
    assert found.authorization == f"Bearer {new}"


@pytest.mark.parametrize(
    "text", ["", "short", "with space " * 8, "x" * 40 + "\n" + "y" * 9, "é" * 40]
)
def test_a_weak_or_odd_token_file_is_refused_without_being_quoted(tmp_path, text):
    from roma.security import tokens

    file = tmp_path / "admin.token"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        tokens.read(file)
    assert str(caught.value).startswith(f"{file}: ")
    assert not text or text not in str(caught.value)
