"""The optional parts of an installation that are not there, and the command that installs each."""

from __future__ import annotations

import platform
from collections.abc import Mapping

from graphweave.core import extras

_COMPILER_BY_SYSTEM = {
    "debian": "apt-get install g++",
    "ubuntu": "apt-get install g++",
    "fedora": "dnf install gcc-c++",
    "rhel": "dnf install gcc-c++",
    "suse": "zypper install gcc-c++",
    "opensuse": "zypper install gcc-c++",
    "arch": "pacman -S gcc",
    "alpine": "apk add g++",
}
"""Name of a Linux distribution in its file os-release -> the command that installs a C++ compiler."""
_COMPILER_ANYWHERE = "conda install -c conda-forge gxx"


def missing(*, compiler: bool) -> list[dict[str, str]]:
    """The packages that are not installed: name, use in graphweave, and the command that installs it. `compiler` says
    whether there is a C++ compiler."""
    found = []
    if not compiler:
        found.append({"what": "a C++ compiler", "uses": "kernels for tensors on the CPU", "install": _for_compiler()})
    for extra, uses in extras.USES.items():
        absent = extras.missing_packages(extra)
        if absent:
            found.append({"what": ", ".join(absent), "uses": uses, "install": extras.command(extra)})
    return found


def _for_compiler() -> str:
    try:
        return compiler_command(platform.freedesktop_os_release())
    except OSError:  # there is no such file
        return _COMPILER_ANYWHERE


def compiler_command(release: Mapping[str, str]) -> str:
    """The command that installs a C++ compiler where os-release has these fields."""
    names = [release.get("ID", ""), *release.get("ID_LIKE", "").split()]
    return next((_COMPILER_BY_SYSTEM[name] for name in names if name in _COMPILER_BY_SYSTEM), _COMPILER_ANYWHERE)
