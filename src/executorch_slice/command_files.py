# Copyright (c) executorch-slice contributors.
# All rights reserved.
#
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

"""Files that the commands read and write, and one clear line where that fails."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from zipfile import is_zipfile

import torch
from executorch.exir._serialize._program import (
    _get_extended_header,
    deserialize_pte_binary,
)
from executorch.exir.schema import Program
from executorch_slice.exit_codes import CommandError, ExitCode
from torch.export import ExportedProgram


def read_exported(path: Path) -> ExportedProgram:
    """The program that `torch.export.save()` wrote to `path`.

    Raises:
        CommandError: there is none, with `ExitCode.FILE`.
    """
    data = _read(path)
    if _is_program(data):
        raise _unfit(path, "a lowered program: `executorch-slice inspect` reads it")
    file = io.BytesIO(data)
    if not is_zipfile(file):
        raise _unfit(path, "no program saved by torch.export.save(), or a broken one")
    file.seek(0)
    try:
        return torch.export.load(file)
    except Exception as error:
        what = "no program saved by torch.export.save(), or a broken one"
        raise _unfit(path, f"{what}: {_first_line(error)}") from error


def read_program(path: Path) -> Program:
    """The ExecuTorch program in `path`.

    Raises:
        CommandError: there is none, or a part of it is missing, with `ExitCode.FILE`.
    """
    data = _read(path)
    if not _is_program(data):
        if is_zipfile(io.BytesIO(data)):
            what = "a zip file: of a saved torch.export program, use explain or lower"
            raise _unfit(path, what)
        raise _unfit(path, "no ExecuTorch program")
    header = _get_extended_header(data)
    if header is not None and header.is_valid():
        size = header.segment_base_offset + header.segment_data_size
        if len(data) < max(size, header.program_size):
            missing = max(size, header.program_size) - len(data)
            raise _unfit(path, f"truncated: its last {missing:,} bytes are missing")
    try:
        return deserialize_pte_binary(data).program
    except Exception as error:
        raise _unfit(
            path, f"a broken ExecuTorch program: {_first_line(error)}"
        ) from error


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turns an error of the file system into a CommandError about `path`."""
    try:
        yield
    except OSError as error:
        raise CommandError(
            ExitCode.FILE, f"cannot write {path}: {error.strerror}"
        ) from error


def _read(path: Path) -> bytes:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise CommandError(
            ExitCode.FILE, f"cannot read {path}: {error.strerror}"
        ) from error
    if not data:
        raise _unfit(path, "empty")
    return data


def _is_program(data: bytes) -> bool:
    """Whether `data` has the file identifier of ExecuTorch's flatbuffers."""
    return data[4:6] == b"ET" and data[6:8].isdigit()


def _unfit(path: Path, what: str) -> CommandError:
    return CommandError(ExitCode.FILE, f"{path} is {what}")


def _first_line(error: Exception) -> str:
    line, *_ = str(error).splitlines() or [""]
    line, *_ = line.split(" Please check the warnings above")  # which are not shown
    return f"{type(error).__name__}: {line}" if line else type(error).__name__
