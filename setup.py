# Copyright (c) executorch-slice contributors.
# All rights reserved.
#
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

"""Maps the repository's folders, which carry ExecuTorch's names, into one package."""

from setuptools import find_packages, setup

PACKAGE = "executorch_slice"
# Folders of the ExecuTorch tree that this repository extends.
TREE = ("backends", "exir", "kernels", "util")

folders = {PACKAGE: f"src/{PACKAGE}"}
for package in find_packages(f"src/{PACKAGE}"):
    folders[f"{PACKAGE}.{package}"] = f"src/{PACKAGE}/{package.replace('.', '/')}"
for root in TREE:
    for package in [root, *(f"{root}.{p}" for p in find_packages(root))]:
        if not {"test", "tests"} & set(package.split(".")):
            folders[f"{PACKAGE}.{package}"] = package.replace(".", "/")

setup(
    packages=list(folders),
    package_dir=folders,
    package_data={
        PACKAGE: ["py.typed"],
        f"{PACKAGE}.kernels.prim_ops": ["CMakeLists.txt", "*.cpp", "*.h"],
    },
)
