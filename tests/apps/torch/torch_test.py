#!/usr/bin/env python3
"""PyTorch on kolo: builds the wheel, and runs what is in ranks.py and the *_test.py of FILES, in as many processes as each case wants.

    torch_test.py SOURCES BUILD [CASE...]

And what is in gpu_tensors_test.cc, on pretended GPUs, unless cases are named.

SOURCES  the repository    BUILD  build folder, kept; the wheel is unpacked there, and nothing installed
CASE     those with this in their name only

With KOLO_TORCH_SITE nothing is built: that is the folder of an unpacked wheel.
Runs in $KOLO_TORCH_PYTHON, or ~/.cache/kolo/torch/bin/python; exit code 77 where that has no torch 2.15.
"""
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

SOURCES, BUILD = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
PYTHON = os.environ.get("KOLO_TORCH_PYTHON", str(Path.home() / ".cache/kolo/torch/bin/python"))
HERE = Path(__file__).resolve().parent
FILES = ("ranks.py", "coalesced_test.py", "groups_test.py", "horovod_test.py", "horovod_training_test.py")
ENVIRONMENT = {name: value for name, value in os.environ.items()
               if not re.match("(OMPI|PMIX|KOLO|MASTER|TORCHELASTIC)_|RANK$|WORLD_SIZE$|LOCAL_", name)} | {"OMP_NUM_THREADS": "1"}


def unpacked():
    """The folder with the package, of a wheel that is built from the sources as they are."""
    wheels, site = BUILD / "wheels", BUILD / "site"
    shutil.rmtree(wheels, ignore_errors=True)
    built = subprocess.run([SOURCES / "apps/torch/wheel", "--python", PYTHON, "--out", wheels, "--build", BUILD / "build", "-j", "2"], stdout=subprocess.PIPE)
    if built.returncode != 0:
        sys.exit("the wheel was not built")
    wheel = Path(built.stdout.decode().split()[-1])
    if wheel.stat().st_size > 5 << 20:
        sys.exit(f"the wheel has {wheel.stat().st_size} bytes, 5 MiB at most are meant")
    shutil.rmtree(site, ignore_errors=True)
    zipfile.ZipFile(wheel).extractall(site)
    return site


def on_pretended_gpus():
    """How many cases of tensors on GPUs have passed, and how many have not."""
    folder = BUILD / "gpu"
    options = ("CMAKE_BUILD_TYPE=Release", "CMAKE_UNITY_BUILD=ON", f"KOLO_TORCH={PYTHON}", "KOLO_MPI=OFF", "KOLO_PROGRAMS=OFF")
    for command in (["cmake", "-S", SOURCES, "-B", folder, *("-D" + option for option in options)], ["cmake", "--build", folder, "-j", "2", "--target", "torch_gpu_test"]):
        if subprocess.run(command, stdout=subprocess.DEVNULL).returncode != 0:
            sys.exit("torch_gpu_test was not built")
    done = subprocess.run([folder / "tests/torch_gpu_test"], stdout=subprocess.PIPE, text=True, timeout=300, env=ENVIRONMENT)
    passed = len(re.findall(r"^\[ +OK \]", done.stdout, re.MULTILINE))
    failed = done.returncode != 0 or not passed
    if failed:
        print(f"FAILED on pretended GPUs, with {done.returncode}\n{done.stdout}", flush=True)
    return passed, int(failed)


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return taken.getsockname()[1]


def run(file_of_cases, cases, ranks, site, variables):
    """Runs cases one after the other, in new processes. Returns what rank 0 says of them, and what went wrong, or ''."""
    seconds = 60 + 10 * len(cases)
    with tempfile.TemporaryDirectory() as folder:
        common = ENVIRONMENT | variables | {"PYTHONPATH": str(site), "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        files = [open(f"{folder}/{rank}", "w+") for rank in range(ranks)]
        running = [subprocess.Popen([PYTHON, HERE / file_of_cases, *cases], env=common | {"RANK": str(rank), "LOCAL_RANK": str(rank)}, stdout=file, stderr=file,
                                    start_new_session=True) for rank, file in enumerate(files)]
        until, wrong = time.monotonic() + seconds, []
        for rank, process in enumerate(running):
            try:
                code = process.wait(max(0, until - time.monotonic()))
                if code not in (0, -signal.SIGKILL):
                    wrong.append(f"rank {rank} ended with {code}")
            except subprocess.TimeoutExpired:
                wrong.append(f"rank {rank} has not ended within {seconds} s")
        for process in running:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        texts = []
        for file in files:
            file.seek(0)
            texts.append(file.read())
            file.close()
        done = sum(text.count("case done") for text in texts)
        expected = len(cases) * (ranks - sum(process.returncode == -signal.SIGKILL for process in running))
        if not wrong and done != expected:
            wrong.append(f"{done} of {expected} cases came to the end")
        said = re.findall("case done: (.*)", texts[0])
        return said, "" if not wrong else "; ".join(wrong) + "\n" + "\n".join(f"--- rank {rank}\n{text}" for rank, text in enumerate(texts))


def main():
    asked = subprocess.run([PYTHON, "-c", "import torch; print(torch.__version__)"], capture_output=True, text=True) if shutil.which(PYTHON) else None
    if not asked or not asked.stdout.startswith("2.15."):
        print(f"skipped: {PYTHON} has no torch 2.15; name a Python that has in KOLO_TORCH_PYTHON")
        sys.exit(77)
    site = Path(os.environ.get("KOLO_TORCH_SITE") or unpacked())
    jobs = {}  # those that need no processes of their own share them
    for file in FILES:
        listed = subprocess.run([PYTHON, HERE / file, "list"], capture_output=True, text=True, env=ENVIRONMENT | {"PYTHONPATH": str(site)}, check=True)
        for line in listed.stdout.split("\n"):
            if not line or len(sys.argv) > 3 and not any(part in line for part in sys.argv[3:]):
                continue
            case, ranks, alone, *variables = line.split()
            jobs.setdefault((file, int(ranks), case if alone == "1" else "", *variables), []).append(case)
    passed, failed = (0, 0) if len(sys.argv) > 3 else on_pretended_gpus()
    for (file, ranks, _, *variables), cases in jobs.items():
        said, wrong = run(file, cases, ranks, site, dict(variable.split("=") for variable in variables))
        for text in said:
            print(f"ok with {ranks} ranks: {text}", flush=True)
        if wrong:
            print(f"FAILED with {ranks} ranks: one of {', '.join(cases)}\n{wrong}", flush=True)
        passed, failed = passed + len(said), failed + bool(wrong)
    print(f"{passed} passed, {failed} failed")
    sys.exit(1 if failed or not passed else 0)


main()
