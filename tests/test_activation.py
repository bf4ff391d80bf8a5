# Copyright (c) executorch-slice contributors.
# All rights reserved.
#
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

"""How the package switches itself on, in fresh processes of every kind."""

import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Dict, Optional

import pytest

SLICES = """
import torch
from executorch.exir import to_edge, to_edge_transform_and_lower

class Rows(torch.nn.Module):
    def forward(self, x):
        return (x * 2)[1:3] + 1

def export():
    return torch.export.export(Rows(), (torch.ones(4, 6),))

def slices(manager):
    return sum(op.name == "aten::slice_copy"
               for plan in manager.executorch_program.execution_plan
               for op in plan.operators)
"""


def run(code: str, autoload: bool = True, env: Optional[Dict[str, str]] = None) -> str:
    """What `code` prints in a fresh interpreter; its stderr where it fails."""
    settings = dict(os.environ, TORCH_DEVICE_BACKEND_AUTOLOAD=str(int(autoload)))
    process = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**settings, **(env or {})},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert process.returncode == 0, process.stderr
    return process.stdout.strip()


FIRST = {
    "torch": "import torch",
    "executorch": "import executorch.exir",
    "a deep submodule": "import executorch.exir.passes.spec_prop_pass",
    "the emitter": "from executorch.exir.emit._emitter import _Emitter",
    "a backend": "import executorch.backends.xnnpack.partition.xnnpack_partitioner",
    "the profiler": "import executorch.util.activation_memory_profiler",
    "the in-tree name": "import executorch.exir.passes."
    "replace_slice_copy_with_slice_pass",
    "the package": "import executorch_slice",
    "the runtime": "import executorch.runtime",
    "a public name": "from executorch_slice import decisions",
    "a module of the tree": "import executorch_slice.exir.alias_analysis",
    "enable()": "import executorch_slice; executorch_slice.enable()",
}


@pytest.mark.parametrize("first", FIRST)
def test_import_order_does_not_matter(first: str) -> None:
    out = run(
        FIRST[first] + SLICES + "print(slices(to_edge(export()).to_executorch()))"
    )
    assert out == "0"


def test_to_edge_transform_and_lower() -> None:
    code = "print(slices(to_edge_transform_and_lower(export()).to_executorch()))"
    assert run(SLICES + code) == "0"


def test_autoload_off_is_stock_byte_for_byte() -> None:
    digest = """
    import hashlib
    manager = to_edge(export()).to_executorch()
    """
    show = "print(slices(manager), hashlib.sha256(manager.buffer).hexdigest())"
    code = SLICES + textwrap.dedent(digest)
    loaded = "import sys\nassert 'executorch_slice' not in sys.modules\n"
    stock = run(code + loaded + show, autoload=False)
    within = SLICES + textwrap.dedent(
        """
        import hashlib, executorch_slice
        with executorch_slice.disabled():
            manager = to_edge(export()).to_executorch()
        """
    )
    assert stock.startswith("1 ")
    assert run(within + show) == stock


def test_by_hand_where_autoload_is_off() -> None:
    code = SLICES + "import executorch_slice\n"
    code += "print(slices(to_edge(export()).to_executorch()))"
    assert run(code, autoload=False) == "0"


SWITCHES = """
from executorch_slice import disable, disabled, enable, is_enabled
found = []
def note():
    found.append((is_enabled(), slices(to_edge(export()).to_executorch())))
note()
with disabled():
    note()
    with disabled():
        note()
    note()
note()
switch = disabled()
with switch:
    note()
disable(); note()
with disabled():
    note()
note()
enable(); note()
enable(); note()
on, off = (True, 0), (False, 1)
assert found == [on, off, off, off, on, off, off, off, off, on, on], found
"""


def test_switches() -> None:
    run(SLICES + SWITCHES)


def test_disabled_is_for_one_thread() -> None:
    run(
        SLICES
        + """
import threading
from executorch_slice import disabled, is_enabled
seen = []
with disabled():
    thread = threading.Thread(target=lambda: seen.append(is_enabled()))
    thread.start(); thread.join()
    seen.append(is_enabled())
assert seen == [True, False], seen
"""
    )


def test_disabled_ends_with_an_exception() -> None:
    run(
        """
        from executorch_slice import disabled, is_enabled
        try:
            with disabled():
                raise KeyError
        except KeyError:
            pass
        assert is_enabled()
        """
    )


def test_one_module_under_both_names() -> None:
    run(
        """
        import executorch.exir.passes.replace_slice_copy_with_slice_pass as a
        import executorch_slice.exir.passes.replace_slice_copy_with_slice_pass as b
        import executorch.exir.alias_analysis as c
        import executorch_slice.exir.alias_analysis as d
        import importlib, sys
        assert a is b and c is d
        assert a.__name__ == a.__spec__.name == b.__name__
        assert importlib.import_module("executorch.exir.alias_analysis") is c
        try:
            import executorch.exir.no_such_module
        except ModuleNotFoundError as error:
            assert error.name == "executorch.exir.no_such_module", error.name
        else:
            raise AssertionError
        """
    )


def test_spawned_process(tmp_path: Path) -> None:
    script = tmp_path / "spawns.py"
    with open(script, "w") as f:
        f.write(
            SLICES
            + textwrap.dedent(
                """
                def lower():
                    return slices(to_edge(export()).to_executorch())

                if __name__ == "__main__":
                    import multiprocessing
                    with multiprocessing.get_context("spawn").Pool(1) as pool:
                        print(pool.apply(lower))
                """
            )
        )
    out = subprocess.run([sys.executable, script], capture_output=True, text=True)
    assert out.stdout.strip() == "0", out.stderr


def test_under_pytest() -> None:
    import executorch_slice

    assert executorch_slice.is_enabled()


WARNS = """
import warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import executorch.exir
ours = [str(w.message) for w in caught if "executorch-slice" in str(w.message)]
print(len(ours), *ours)
import executorch_slice
assert not executorch_slice.is_enabled()
from executorch.exir import memory
assert not hasattr(memory, "slice")
"""

STOCK = """
assert slices(to_edge(export()).to_executorch()) == 1
try:
    executorch_slice.enable()
except executorch_slice.UnsupportedExecuTorchError as error:
    print(error)
else:
    raise AssertionError("enable() did not raise")
"""


@pytest.mark.parametrize("version", ["1.4.1", "1.6.0", "2.0.0a1"])
def test_version_out_of_range(version: str) -> None:
    fake = f"""
import importlib.metadata as metadata
real = metadata.version
metadata.version = lambda name: "{version}" if name == "executorch" else real(name)
"""
    warned, raised = run(fake + WARNS + SLICES + STOCK).splitlines()
    assert warned.startswith("1 ") and f"executorch {version} is installed" in warned
    assert f"executorch {version}" in raised


@pytest.mark.parametrize(
    "change,names",
    [
        ("memory_planning.get_node_tensor_specs = lambda node, other: []", "(node,"),
        ("del memory_planning.update_all_tensors_lifetime", "is missing"),
    ],
)
def test_seam_that_looks_different(change: str, names: str) -> None:
    """Upstream is changed as soon as it is imported, before the package looks."""
    fake = f"""
import wrapt
@wrapt.when_imported("executorch.exir.program._program")
def change(module):
    from executorch.exir import memory_planning
    {change}
"""
    stock = STOCK if "lambda" not in change and "del" not in change else ""
    out = run(fake + WARNS + stock)
    assert out.startswith("1 ") and "executorch.exir.memory_planning" in out
    assert names.split(",")[0].strip("(") in out


def test_without_executorch() -> None:
    """A torch that has the package but no ExecuTorch imports without a word."""
    run(
        """
        import sys, warnings
        warnings.simplefilter("error", UserWarning)
        sys.modules["executorch"] = None
        import torch, executorch_slice
        """
    )


def test_target_still_executing_when_the_hook_is_registered(tmp_path: Path) -> None:
    (tmp_path / "slow_module.py").write_text(
        "import probe\nprobe.register()\nready = True\n"
    )
    (tmp_path / "probe.py").write_text(
        "seen = []\n"
        "def register():\n"
        "    from executorch_slice._activation import _after_import\n"
        "    _after_import('slow_module', lambda m: seen.append(m.ready))\n"
    )
    out = run(
        "import slow_module, probe, importlib.machinery as machinery\n"
        "print(probe.seen, type(slow_module.__spec__) is machinery.ModuleSpec)",
        env={"PYTHONPATH": str(tmp_path)},
    )
    assert out == "[True] True"


def test_from_a_wheel(tmp_path: Path) -> None:
    """What is built from the checkout works alone, and holds no test."""
    checkout = Path(__file__).parents[1]
    source = tmp_path / "source"
    ignored = shutil.ignore_patterns(".*", "build", "*.egg-info", "__pycache__")
    shutil.copytree(checkout, source, ignore=ignored)
    pip = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check"]
    install = ["install", "--no-deps", "--no-build-isolation", "--target"]
    site = tmp_path / "site"
    subprocess.run([*pip, *install, str(site), str(source)], check=True)
    assert (site / "executorch_slice" / "py.typed").exists()
    assert (site / "executorch_slice" / "exir" / "alias_analysis.py").exists()
    assert not list(site.rglob("tests"))
    code = SLICES + (
        "import executorch_slice\n"
        "print(slices(to_edge(export()).to_executorch()), executorch_slice.__file__)"
    )
    assert run(code, env={"PYTHONPATH": str(site)}) == (
        f"0 {site / 'executorch_slice' / '__init__.py'}"
    )


def test_import_torch_loads_nothing_heavy() -> None:
    run(
        """
        import sys, torch
        assert "executorch_slice" in sys.modules
        names = ("executorch", "rich", "wrapt")
        heavy = [m for m in sys.modules if m.split(".")[0] in names]
        assert not heavy, heavy
        assert "executorch_slice.exir" not in sys.modules
        """
    )


def test_backends_are_joined_when_they_are_imported() -> None:
    run(
        """
        import sys, executorch.exir
        ours = [m for m in sys.modules if m.startswith("executorch_slice.backends")]
        assert "executorch_slice.seams" in sys.modules and not ours, ours
        """
    )
