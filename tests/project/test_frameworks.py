"""TensorFlow and PyTorch never share a process: what is asked for both refuses in words."""

import sys

import pytest

from roma import frameworks
from roma.errors import LaunchError
from roma.worker import registry
from roma.worker.registry import RuntimeKind

REFUSED = "PyTorch cannot be imported: TensorFlow is in this process already"


@pytest.mark.parametrize(
    ("wanted", "other"), [("torch", "tensorflow"), ("tensorflow", "torch")], ids=str
)
def test_the_second_framework_is_refused(monkeypatch, wanted, other):
    monkeypatch.delitem(sys.modules, wanted, raising=False)
    monkeypatch.delitem(sys.modules, other, raising=False)
    frameworks.claim(wanted)
    monkeypatch.setitem(sys.modules, other, sys)
    frameworks.claim(other)
    with pytest.raises(LaunchError, match="run each in a process of its own"):
        frameworks.claim(wanted)


def test_pytorch_is_refused_where_tensorflow_is(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "tensorflow", sys)
    with pytest.raises(LaunchError, match=REFUSED):
        registry.make(RuntimeKind.TORCH, {}, "cpu", 1)
    with pytest.raises(LaunchError, match=REFUSED):
        registry.save_sample(RuntimeKind.TORCH, tmp_path)
