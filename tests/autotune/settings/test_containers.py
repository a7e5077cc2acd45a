"""What works in a bare container: no home, a user without an entry, nowhere to write temporary files, a
/dev/shm of a page. Linux makes the parts of one for a process and its children (unshare)."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from children import python_path
from needs import missing

# A new folder of mounts for these alone. What lies in $1 is seen at /mnt, which can be written; temporary
# files nowhere. The process begins where it cannot write.
BOX = """
set -e
mount --make-rprivate /
mount --bind "$1" /mnt
for place in /tmp /var/tmp; do mount -t tmpfs -o ro tmpfs $place; done
mount -t tmpfs -o size=4k tmpfs /dev/shm
shift
cd /proc
exec "$@"
"""
# A user of a number that no list of users has, who may mount.
UNSHARE = ("unshare", "-m", "--map-user=61234", "--keep-caps")
LOAD = """
import warnings
import numpy as np, autotune as at
warnings.simplefilter("ignore")
kernel = at.load("add", n=64, threads=1, fallback=True)
assert (kernel(np.ones(64, "float32"), np.ones(64, "float32")) == 2).all()
assert at.tune("add", n=64, threads=1, trials=2, progress=None).best is not None
print(at.load("add", n=64, threads=1).chosen_by)
"""


def boxed(folder: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """A command of Python in such a container. ``variables``: all that are set but the paths."""
    if sys.platform != "linux" or Path(sys.prefix).is_relative_to("/tmp") or not shutil.which("unshare"):
        missing("unshare")
    if subprocess.run([*UNSHARE, "true"], capture_output=True, check=False).returncode:
        missing("unshare")
    source = Path(__file__).resolve().parents[3]
    path = python_path(__file__)
    if source.is_relative_to("/tmp"):  # which the container does not see
        for package in ("autotune", "schedules", "kernels_db", "cost_model", "configs"):
            shutil.copytree(source / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
        path = "/mnt"
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"} | variables
    command = [*UNSHARE, "bash", "-c", BOX, "box", str(folder), sys.executable, *words]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.slow
def test_tuning_and_loading_need_a_place_for_the_log_alone(tmp_path: Path) -> None:
    ran = boxed(tmp_path, "-c", LOAD, AUTOTUNE_DB="/mnt/tuning.db")
    assert ran.returncode == 0 and ran.stdout == "log\n", ran.stderr
    assert ran.stderr.count("compiled kernels are not kept") == 1
    assert ran.stderr.count("AUTOTUNE_CACHE_DIR") == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "variables", "says"),
    [
        (
            ("cache",),
            {},
            "no home directory, and temporary files .* nowhere .* AUTOTUNE_CACHE_DIR",
        ),
        (
            ("log", "stats"),
            {},
            "no home directory, and temporary files .* nowhere .* AUTOTUNE_DB",
        ),
        (("tune", "add", "--shape", "n=8", "--trials", "1"), {"HOME": "/proc"}, "AUTOTUNE_DB"),
        (
            ("export", "add", "--shape", "n=8", "--fallback", "/mnt/x"),
            {"AUTOTUNE_DB": "/mnt/tuning.db"},
            "temporary files can be written nowhere .* set TMPDIR to",
        ),
    ],
)
def test_what_needs_another_place_names_the_setting(
    words: tuple[str, ...], variables: dict[str, str], says: str, tmp_path: Path
) -> None:
    ran = boxed(tmp_path, "-m", "autotune", *words, **variables)
    assert ran.returncode == 2 and re.search(says, ran.stderr), ran.stderr
    assert "Traceback" not in ran.stderr


@pytest.mark.slow
def test_limits_of_files_are_no_limit_of_tuning(tmp_path: Path) -> None:
    """Of their number, and of their size: those that tuning sets itself are not above them."""
    env = {**os.environ, "PYTHONPATH": python_path(__file__), "AUTOTUNE_DB": str(tmp_path / "tuning.db")}
    limited = 'ulimit -n 64; ulimit -f 8192; exec "$@"'
    command = ["bash", "-c", limited, "limited", sys.executable, "-c", LOAD]
    ran = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0 and ran.stdout == "log\n", ran.stderr
