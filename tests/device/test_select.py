from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from kvsuite.device import select
from kvsuite.device.select import cuda_problem, device_name, gpu_ids, resolve_device, visible_gpus
from kvsuite.errors import ConfigError, DeviceError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def fake_torch(cards: int = 1, *, cuda: str | None = "13.0", kernel: Callable[..., Any] | None = None) -> Any:
    return SimpleNamespace(
        __version__="9.9",
        version=SimpleNamespace(cuda=cuda, hip=None),
        cuda=SimpleNamespace(
            is_available=lambda: cards > 0,
            device_count=lambda: cards,
            get_device_name=lambda device: f"card at {device}",
        ),
        ones=kernel or (lambda *_, **__: SimpleNamespace(item=lambda: 1.0)),
    )


def use_torch(monkeypatch: pytest.MonkeyPatch, module: Any) -> None:
    monkeypatch.setitem(sys.modules, "torch", module)


@pytest.mark.parametrize(
    ("listed", "ids"),
    [
        ("0", ("0",)),
        ("2,3", ("2", "3")),
        (" 2 , 3 ", ("2", "3")),
        ("", ()),
        ("-1", ()),
        ("0,-1,1", ("0",)),
        ("NoDevFiles", ()),
        ("1,1", ()),
        ("GPU-8932f937,GPU-2d1bf3c8", ("GPU-8932f937", "GPU-2d1bf3c8")),
        ("MIG-4f0a", ("MIG-4f0a",)),
    ],
)
def test_a_listed_set_of_cards_is_read_as_cuda_reads_it(
    listed: str, ids: tuple[str, ...], tmp_path: Path
) -> None:
    assert gpu_ids({"CUDA_VISIBLE_DEVICES": listed}, tmp_path) == ids
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": listed}, tmp_path) == len(ids)


def test_a_listed_card_that_is_not_installed_ends_the_list(tmp_path: Path) -> None:
    for card in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        (tmp_path / "dev").mkdir(exist_ok=True)
        (tmp_path / "dev" / card).touch()
    assert visible_gpus({}, tmp_path) == 2
    assert gpu_ids({"CUDA_VISIBLE_DEVICES": "1,2,0"}, tmp_path) == ("1",)


def test_the_driver_lists_cards_that_have_no_node_yet(tmp_path: Path) -> None:
    for address in ("0000:01:00.0", "0000:41:00.0", "0000:c1:00.0"):
        (tmp_path / "proc/driver/nvidia/gpus" / address).mkdir(parents=True)
    assert gpu_ids({}, tmp_path) == ("0", "1", "2")


def test_without_a_driver_there_is_no_card_and_torch_is_not_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_torch(monkeypatch, None)
    assert visible_gpus({}, tmp_path) == 0


def test_torch_counts_cards_that_only_it_can_see(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/dxg").touch()
    assert gpu_ids({}, tmp_path) is None
    use_torch(monkeypatch, fake_torch(cards=3))
    assert visible_gpus({}, tmp_path) == 3
    use_torch(monkeypatch, None)
    assert visible_gpus({}, tmp_path) == 0


def test_the_cpu_needs_no_torch() -> None:
    script = """
import sys
from kvsuite.device.select import resolve_device
assert resolve_device("cpu") == "cpu"
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.parametrize("text", ["gpu", "cuda:", "cuda:-1", "cuda:0,1", "CPU", ""])
def test_an_unknown_device_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="expected auto, cpu, cuda or cuda:N"):
        resolve_device(text)


def test_a_usable_card_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    use_torch(monkeypatch, fake_torch(cards=2))
    asked = {"CUDA_VISIBLE_DEVICES": "0,1"}
    found = [resolve_device(text, asked) for text in ("auto", "cuda", "cuda:1", "cpu")]
    assert found == ["cuda:0", "cuda:0", "cuda:1", "cpu"]


def test_auto_falls_back_and_cuda_never_does(monkeypatch: pytest.MonkeyPatch) -> None:
    use_torch(monkeypatch, fake_torch(cards=0))
    asked = {"CUDA_VISIBLE_DEVICES": "0"}
    assert resolve_device("auto", asked) == "cpu"
    with pytest.raises(DeviceError, match=r"sees 0 cards \(CUDA_VISIBLE_DEVICES is '0'\).*--device cpu"):
        resolve_device("cuda", asked)


def test_the_message_says_what_stands_in_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("no kernel image is available")

    for module, said in [
        (None, r"torch is not installed: install kvsuite\[device\]"),
        (fake_torch(cuda=None), "torch 9.9 is built without CUDA: install a CUDA build"),
        (fake_torch(cards=1), "sees 1 cards .*CUDA_VISIBLE_DEVICES is not set"),
        (fake_torch(cards=2, kernel=broken), r"card 1 does not run a kernel \(no kernel image"),
    ]:
        use_torch(monkeypatch, module)
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        with pytest.raises(DeviceError, match=f"device cuda:1 was asked for, but .*{said}"):
            resolve_device("cuda:1", {})


def test_a_warning_of_torch_is_part_of_the_message(monkeypatch: pytest.MonkeyPatch) -> None:
    def unavailable() -> bool:
        import warnings

        warnings.warn("CUDA driver is too old", UserWarning, stacklevel=1)
        return False

    module = fake_torch()
    module.cuda.is_available = unavailable
    use_torch(monkeypatch, module)
    problem = cuda_problem(0, {})
    assert problem is not None
    assert "torch says: CUDA driver is too old" in problem


def test_a_device_has_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    assert device_name("cpu")
    use_torch(monkeypatch, fake_torch())
    assert select.device_name("cuda:0") == "card at cuda:0"
