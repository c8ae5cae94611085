"""TensorFlow and PyTorch never share a process: what is asked for both refuses in words."""

import subprocess
import sys

import pytest

from roma.device import registry
from roma.device.registry import RuntimeKind
from roma.domain.errors import LaunchError
from roma.tensors import frameworks

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


def test_a_model_server_imports_tensorflow_without_keras():
    program = (
        "import sys\n"
        "from roma.tensors import frameworks\n"
        "from roma.serving import session\n"
        "frameworks.skip_keras()\n"
        "session.import_tensorflow()\n"
        "assert 'keras' not in sys.modules and 'tensorflow' in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
