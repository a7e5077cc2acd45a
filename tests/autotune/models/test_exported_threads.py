"""Exported models in a program in C with many threads: they make, run and free instances at once, makes fail
between them, and processes are forked meanwhile."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import needs
import pytest
import state_models as states
from exported_cases import packing, parallel
from model_cases import layers, model_of

from autotune.backends.building import shared_library
from autotune.codegen.simt import cxx
from autotune.models.module import Module

if cxx.command() is None:
    needs.missing("c++")

# Each thread compares its results with those that one thread had before. `fork`: the children too.
DRIVER = """
#define _POSIX_C_SOURCE 200809L
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "net.h"

enum { THREADS = 8, TIMES = %(times)d, INPUTS = net_%(x)s_elements, OUTPUTS = net_%(y)s_elements };
static float x[THREADS][INPUTS], right[THREADS][OUTPUTS];
static const char *path;
static pthread_barrier_t begin;

static int once(int k) {
    float *y = malloc(sizeof right[k]);
    net_instance *made = NULL;
    int wrong = !y || net_make(&made, path) || net_run(made, x[k], y) || memcmp(y, right[k], sizeof right[k]);
    net_free(made);
    free(y);
    return wrong;
}

static void *work(void *given) {
    int k = *(int *)given;
    pthread_barrier_wait(&begin);
    for (int t = 0; t < TIMES; t++) {
        net_instance *made = NULL;
        if (once(k)) return "a result is wrong";
        if (%(beside)d && t %% 3 == k %% 3) {
            int status = net_make(&made, "missing");
            if (made) status = net_UNREADABLE, net_free(made); /* another has the weights */
            if (status != net_UNREADABLE) return "no file is read";
        }
    }
    return NULL;
}

int main(int argc, char **argv) {
    pthread_t threads[THREADS];
    int numbers[THREADS], forks = argc > 2 ? atoi(argv[2]) : 0;
    void *said = NULL;
    net_instance *made = NULL;
    path = *argv[1] ? argv[1] : NULL;
    pthread_barrier_init(&begin, NULL, THREADS + 1);
    if (net_make(&made, path)) return 3;
    for (int k = 0; k < THREADS; k++) {
        for (int i = 0; i < INPUTS; i++) x[k][i] = (float)((i + k) %% 7);
        if (net_run(made, x[k], right[k])) return 4;
    }
    net_free(made);
    for (int k = 0; k < THREADS; k++) {
        numbers[k] = k;
        if (pthread_create(&threads[k], NULL, work, &numbers[k])) return 5;
    }
    pthread_barrier_wait(&begin);
    for (; forks > 0; forks--) {
        int status;
        pid_t child = fork();
        if (!child) {
            alarm(60);
            _exit(once(0));
        }
        if (waitpid(child, &status, 0) != child || status) return 6;
    }
    for (int k = 0; k < THREADS; k++) {
        pthread_join(threads[k], &said);
        if (said) return puts(said), 7;
    }
    puts("well");
    return 0;
}
"""


def driver(net: Module, folder: Path, *flags: str, times: int, forks: int = 0, **how: Any) -> str:
    """What the program says, and what is said of it."""
    files = net.export(folder, "net", **how)
    (x, y) = (t.name.replace(".", "_") for t in (*net.inputs, *net.outputs))
    said = DRIVER % {"x": x, "y": y, "times": times, "beside": int(files.weights is not None)}
    (folder / "driver.c").write_text(said)
    compiler = cxx.command(("gcc", "clang"), "cc")
    assert compiler is not None
    strict = ("-std=c99", "-O1", "-Wall", "-Wextra", "-pedantic", "-Werror", "-pthread")
    command = [*compiler, *strict, *flags, "driver.c", "./net.so", "-Wl,-rpath,.", "-o", "driver"]
    subprocess.run(command, cwd=folder, check=True)
    run = ["./driver", "" if files.weights is None else files.weights.name, str(forks)]
    done = subprocess.run(run, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    return done.stdout + done.stderr + (f"exit status {done.returncode}" if done.returncode else "")


def wide(values: int = 1 << 20) -> Module:
    """A layer of so many weights."""
    return states.untuned(model_of(layers(1, m=1, n=int(values**0.5))[0]))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*the log has no schedule:UserWarning")
@pytest.mark.parametrize("weights", ["inside", "beside"])
@pytest.mark.parametrize("targets", [None, ["cpu"]], ids=["own", "targets"])
@pytest.mark.parametrize("looks", ["thread", "address,undefined"])
def test_sanitizers_find_nothing_among_threads(looks, weights, targets, tmp_path, monkeypatch) -> None:
    """Neither races, nor memory that is used too late or left."""
    compiler = cxx.command(("gcc", "clang"), "none")
    if compiler is None or compiler[0].endswith("ziglang"):
        needs.missing("gcc")
    flags = (f"-fsanitize={looks}", "-fno-sanitize-recover=all", "-g")
    (tmp_path / "a.c").write_text("int main(void) { return 0; }\n")
    subprocess.run([*compiler, *flags, "a.c", "-o", "a"], cwd=tmp_path, check=True)
    if subprocess.run(["./a"], cwd=tmp_path, capture_output=True, check=False).returncode:
        pytest.skip(f"this system runs no program under -fsanitize={looks}")
    monkeypatch.setattr(shared_library, "linker", lambda *_: (*compiler, *flags))
    said = driver(packing(), tmp_path, *flags, times=40, weights=weights, targets=targets)
    assert said == "well\n"


@pytest.mark.slow
@pytest.mark.usefixtures("two_cpus")
def test_children_of_a_fork_run_with_threads_while_others_do(tmp_path) -> None:
    net = parallel(model_of(layers(2, m=16, n=48)[0]))
    assert driver(net, tmp_path, times=300, forks=60) == "well\n"


@pytest.mark.slow
def test_children_of_a_fork_make_instances_while_others_read_the_weights(tmp_path) -> None:
    assert driver(wide(), tmp_path, times=60, forks=60, weights="beside") == "well\n"
